/* Reading of GGUF keys, for the two files that make a configuration of them: config_gguf.c and config_gguf_deepseek.c.
 * Keys are "<architecture>.<name>"; integer widths are the writer's choice. */
#ifndef DSE_MODEL_CONFIG_GGUF_H
#define DSE_MODEL_CONFIG_GGUF_H

#include "model/config_internal.h"

struct dse_gguf_keys {
    const struct dse_gguf *gguf;
    const char *arch;
    struct dse_error *err;
    enum dse_status status; /* first failure; later reads do nothing */
};

/* "<architecture>.<name>"; returns key */
const char *dse_gguf_keys_name(const struct dse_gguf_keys *r, const char *name, char key[96]);
bool dse_gguf_keys_have(const struct dse_gguf_keys *r, const char *name);
/* minimum…maximum, or `absent` if there is no such key. */
int dse_gguf_keys_int(struct dse_gguf_keys *r, const char *name, int64_t minimum, int64_t maximum, int64_t absent);
int dse_gguf_keys_require(struct dse_gguf_keys *r, const char *name, int64_t maximum); /* 1…maximum */
double dse_gguf_keys_number(struct dse_gguf_keys *r, const char *name, double absent);
/* Fails because of a full key; returns the status for r->status. */
enum dse_status dse_gguf_keys_missing(struct dse_gguf_keys *r, const char *key);

/* What only the DeepSeek family has. */
void dse_config_gguf_deepseek(struct dse_gguf_keys *r, struct dse_config *config);

#endif

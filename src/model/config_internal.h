/* What the two readers of hyper-parameters share: limits, field names, the checks between fields. */
#ifndef DSE_MODEL_CONFIG_INTERNAL_H
#define DSE_MODEL_CONFIG_INTERNAL_H

#include "model/config.h"

/* Far above every published model of these families, low enough that no product of two of them overflows an int64 and
 * no list of a lying length is ever allocated. */
#define DSE_MAX_LAYERS  1024
#define DSE_MAX_EMBD    (1 << 18)
#define DSE_MAX_HEADS   4096
#define DSE_MAX_HEAD    1024
#define DSE_MAX_FF      (1 << 22)
#define DSE_MAX_VOCAB   (1 << 23)
#define DSE_MAX_CONTEXT INT32_MAX

/* How a format spells the fields, for messages. prefix is "llama." in GGUF and "" in config.json. */
struct dse_config_names {
    const char *file, *prefix;
    const char *n_embd, *n_heads, *n_kv_heads, *head_dim, *rms_eps;
    const char *rope_theta, *rope_dimensions, *rope_factor, *rope_low, *rope_high, *rope_original, *rope_beta_fast,
        *rope_beta_slow, *rope_attention_factor, *rope_mscale, *rope_mscale_all_dim;
};

void dse_config_init(struct dse_config *config);
/* DSE_ERR_UNSUPPORTED for every other name. */
DSE_MUST_CHECK enum dse_status dse_config_set_arch(struct dse_config *config, const char *name, size_t bytes,
                                                   const char *file, const char *field, struct dse_error *err);
/* Fills what follows from other fields (head_dim 0: D/H; kv heads 0: H; rope dimensions 0: d; original context) and
 * refuses combinations that make no sense. */
DSE_MUST_CHECK enum dse_status dse_config_check(struct dse_config *config, const struct dse_config_names *names,
                                                struct dse_error *err);
/* Adds without duplicates; the id must be below n_vocab. */
DSE_MUST_CHECK enum dse_status dse_config_add_stop(struct dse_config *config, int64_t id, const char *file,
                                                   const char *field, struct dse_error *err);
/* Copies text that came with a file: valid characters only, no control characters, cut at a character. */
void dse_config_copy_text(char *out, size_t capacity, const char *text, size_t bytes);

#endif

/* What the three parts of the GGUF reader share: one parsed file (a model may have several) and message helpers.
 *
 * Included by gguf.c, gguf_parse.c and gguf_values.c only.
 */
#ifndef DSE_MODEL_GGUF_INTERNAL_H
#define DSE_MODEL_GGUF_INTERNAL_H

#include "base/arena.h"
#include "model/gguf.h"

/* Limits of what a header may hold; far above every published file. A header's counts are also checked against the
 * bytes that remain, so these only bound the time spent on a large file full of nonsense. */
#define DSE_GGUF_MAX_VALUES     65536
#define DSE_GGUF_MAX_TENSORS    (1 << 20)
#define DSE_GGUF_MAX_KEY_BYTES  65535
#define DSE_GGUF_MAX_NAME_BYTES 255
#define DSE_GGUF_MAX_ALIGNMENT  65536
#define DSE_GGUF_MAX_SHARDS     4096

struct dse_gguf_shard {
    char *path;
    struct dse_map map;
    struct dse_gguf_value *values;        /* in the order of the file */
    const struct dse_gguf_value **by_key; /* sorted */
    size_t n_values;
    struct dse_tensor *tensors; /* in the order of the file; names live in the arena */
    size_t n_tensors;
    struct dse_arena names;
};

struct dse_gguf {
    struct dse_gguf_shard *shards; /* the first one carries the metadata */
    size_t n_shards;
    struct dse_tensor *tensors; /* of all shards */
    const struct dse_tensor **by_name;
    size_t n_tensors;
};

/* Reads and checks the header of shard->map, which is open. On failure the shard is left for dse_gguf_shard_close. */
DSE_MUST_CHECK enum dse_status dse_gguf_parse(struct dse_gguf_shard *shard, struct dse_error *err);
const struct dse_gguf_value *dse_gguf_shard_value(const struct dse_gguf_shard *shard, const char *key);
/* False if the value is not an integer or does not fit. */
bool dse_gguf_value_i64(const struct dse_gguf_value *value, int64_t *out);
size_t dse_gguf_value_bytes(enum dse_gguf_value_type type); /* 0 for strings and arrays */

/* Text of a file for a message: at most 63 bytes, control and non-ASCII bytes as '?'. Returns out. */
const char *dse_printable(const char *data, size_t bytes, char out[64]);

#endif

/* GGUF v2 and v3, single or split files, mapped. Everything in the header is checked against the real file size before
 * it is used; no byte of the data section is touched by opening. */
#ifndef DSE_MODEL_GGUF_H
#define DSE_MODEL_GGUF_H

#include <stdbool.h>

#include "base/error.h"
#include "base/file.h"
#include "model/tensor.h"

struct dse_gguf;

/* path: a file, or the first shard "…-00001-of-0000N.gguf" (any shard finds the others). */
DSE_MUST_CHECK enum dse_status dse_gguf_open(const char *path, struct dse_gguf **gguf, struct dse_error *err);
/* One file, read into memory: it may change afterwards, or go. Split files are refused. */
DSE_MUST_CHECK enum dse_status dse_gguf_read(const char *path, size_t max_bytes, struct dse_gguf **gguf,
                                             struct dse_error *err);
void dse_gguf_close(struct dse_gguf *gguf);

size_t dse_gguf_tensor_count(const struct dse_gguf *gguf); /* over all shards */
const struct dse_tensor *dse_gguf_tensor_at(const struct dse_gguf *gguf, size_t index);
const struct dse_tensor *dse_gguf_tensor(const struct dse_gguf *gguf, const char *name); /* NULL if absent; O(log n) */

enum dse_gguf_value_type {
    DSE_GGUF_U8,
    DSE_GGUF_I8,
    DSE_GGUF_U16,
    DSE_GGUF_I16,
    DSE_GGUF_U32,
    DSE_GGUF_I32,
    DSE_GGUF_F32,
    DSE_GGUF_BOOL,
    DSE_GGUF_STRING,
    DSE_GGUF_ARRAY,
    DSE_GGUF_U64,
    DSE_GGUF_I64,
    DSE_GGUF_F64
};

struct dse_gguf_string {
    const char *data;
    size_t bytes;
}; /* borrowed from the map, not NUL-terminated */

/* One metadata entry. For arrays: element type, count and where the elements start in the map (strings: use the
 * iterator below). */
struct dse_gguf_value {
    struct dse_gguf_string key;
    enum dse_gguf_value_type type;
    enum dse_gguf_value_type element_type; /* arrays */
    size_t count;                          /* arrays */
    const uint8_t *data;                   /* value or first element */
    size_t bytes;                          /* of data; whole array */
};

size_t dse_gguf_value_count(const struct dse_gguf *gguf);
const struct dse_gguf_value *dse_gguf_value_at(const struct dse_gguf *gguf, size_t index);
const struct dse_gguf_value *dse_gguf_value(const struct dse_gguf *gguf, const char *key); /* NULL if absent */

/* Typed reads. Absent: *out keeps its value and DSE_OK is returned. Present with a wrong type or out of range:
 * DSE_ERR_CORRUPT naming the key. Integers of any width and sign are accepted for each other. */
DSE_MUST_CHECK enum dse_status dse_gguf_get_i64(const struct dse_gguf *gguf, const char *key, int64_t minimum,
                                                int64_t maximum, int64_t *out, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_gguf_get_f64(const struct dse_gguf *gguf, const char *key, double *out,
                                                struct dse_error *err); /* any float or integer; must be finite */
DSE_MUST_CHECK enum dse_status dse_gguf_get_bool(const struct dse_gguf *gguf, const char *key, bool *out,
                                                 struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_gguf_get_string(const struct dse_gguf *gguf, const char *key,
                                                   struct dse_gguf_string *out, struct dse_error *err);

/* Walks a string array: *cursor starts at 0; false at the end. The whole array was checked when the file was opened. */
bool dse_gguf_next_string(const struct dse_gguf_value *array, size_t *cursor, struct dse_gguf_string *out);
/* Element of an array of integers (any width); false if the array is not of integers or index is out of range. */
bool dse_gguf_array_i64(const struct dse_gguf_value *array, size_t index, int64_t *out);

const char *dse_gguf_path(const struct dse_gguf *gguf);
/* False if a shard has become shorter than when it was opened. */
bool dse_gguf_intact(const struct dse_gguf *gguf);
bool dse_gguf_maps(const struct dse_gguf *gguf, const char *path); /* path names one of its shards */

#endif

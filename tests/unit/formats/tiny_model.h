/* Builds tiny model files in memory, valid by default and breakable in every field: the raw material of the format
 * tests. Written from the formats' descriptions, independent of the readers under test. Allocation failure aborts. */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    uint8_t *data;
    size_t length, capacity;
};
void bytes_put(struct bytes *b, const void *data, size_t n);
void bytes_text(struct bytes *b, const char *text);
void bytes_u32(struct bytes *b, uint32_t v);
void bytes_u64(struct bytes *b, uint64_t v);
void bytes_zero(struct bytes *b, size_t n);
void bytes_free(struct bytes *b);

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64 };

#define TINY_ACTUAL UINT64_MAX /* "write the true number" */

struct tiny_value {
    char key[128];
    size_t key_bytes;   /* may differ from strlen for keys with NUL */
    uint64_t key_claim; /* written length */
    uint32_t type;
    struct bytes payload;          /* as it stands behind the type */
    size_t at, payload_at, end_at; /* set by the build */
};

struct tiny_tensor {
    char name[320];
    uint64_t name_claim;
    uint32_t n_dims;  /* written; dims beyond 8 are not */
    uint64_t dims[8]; /* GGUF order: row length first */
    uint32_t type;
    uint64_t offset; /* TINY_ACTUAL: where its data really is */
    size_t data_bytes;
    struct bytes content; /* optional: zeros otherwise */
    size_t at, dims_at, type_at, end_at, data_at;
};

enum { TINY_MAX_VALUES = 96, TINY_MAX_TENSORS = 128 };

struct tiny_gguf {
    char magic[4];
    uint32_t version;
    uint64_t claimed_tensors, claimed_values;
    struct tiny_value values[TINY_MAX_VALUES];
    int n_values;
    struct tiny_tensor tensors[TINY_MAX_TENSORS];
    int n_tensors;
    size_t alignment; /* of the layout, whatever the key says */
    size_t data_at;
};

/* llama, 1 layer, D 32, H 4, K 2, d 8, F 64, V 32, weights Q8_0, norms F32, a tokenizer of 32 tokens. */
void tiny_gguf_init(struct tiny_gguf *g);
void tiny_gguf_free(struct tiny_gguf *g);
struct tiny_value *tiny_value(struct tiny_gguf *g, const char *key); /* NULL if absent */
struct tiny_value *tiny_set(struct tiny_gguf *g, const char *key, uint32_t type, const void *payload, size_t n);
void tiny_remove(struct tiny_gguf *g, const char *key);
void tiny_set_u32(struct tiny_gguf *g, const char *key, uint32_t v);
void tiny_set_f32(struct tiny_gguf *g, const char *key, float v);
void tiny_set_string(struct tiny_gguf *g, const char *key, const char *text);
/* A value of the given type with a harmless content: 1, "text", [1]. */
void tiny_set_of_type(struct tiny_gguf *g, const char *key, uint32_t type);
void tiny_set_array(struct tiny_gguf *g, const char *key, uint32_t element, uint64_t claim, uint64_t count);
struct tiny_tensor *tiny_tensor(struct tiny_gguf *g, const char *name);
struct tiny_tensor *tiny_add_tensor(struct tiny_gguf *g, const char *name, uint32_t type, uint64_t columns,
                                    uint64_t rows); /* rows 0: a vector */
void tiny_remove_tensor(struct tiny_gguf *g, const char *name);
void tiny_gguf_build(struct tiny_gguf *g, struct bytes *out);

/* The same model as a Hugging Face folder: objects to change, then text. Weights F32. */
json_t *tiny_config(void);
json_t *tiny_header(size_t *data_bytes);
void tiny_safetensors_build(const json_t *header, size_t data_bytes, struct bytes *out);
/* Header given as text; claim TINY_ACTUAL writes its true length. */
void tiny_safetensors_raw(const char *header, size_t header_bytes, uint64_t claim, size_t data_bytes,
                          struct bytes *out);

#endif

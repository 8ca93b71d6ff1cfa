/* What the device tests share: random numbers, a small model in memory, a pool of KV blocks, comparisons. */
#ifndef TEST_DEVICE_DATA_H
#define TEST_DEVICE_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* The same sequence on every machine. */
struct random {
    uint64_t state;
};
uint32_t random_u32(struct random *random);
float random_float(struct random *random, float low, float high);
void random_fill(struct random *random, float *out, size_t n, float low, float high);

/* FNV-1a over the bits. */
uint64_t hash_floats(const float *values, size_t n);
void assert_same_bits(const float *a, const float *b, size_t n, const char *what);

/* A model file as model/ would have opened it, all of it made up. types: of the matrices. */
struct fake_model {
    struct dse_model_file file;
    struct dse_tensor tensors[64];
    struct dse_layer_tensors layers[4];
    int n_tensors;
};
struct fake_shape {
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, rope_dimensions;
    bool bias, qk_norm, mtp; /* mtp: a prediction layer follows, in use */
    enum dse_type type;
    enum dse_rope_pairs pairs;
    uint64_t seed;
};
extern const struct fake_shape small_shape;
/* path: what the pack cache identifies the model by; an existing file. */
void fake_model_init(struct fake_model *model, const struct fake_shape *shape, const char *path);
void fake_model_deinit(struct fake_model *model);

/* Sequences of blocks in one pool, the blocks of a sequence scattered over it. Every byte starts as NaN. */
struct fake_kv {
    struct dse_kv_layout layout;
    uint8_t *pool;
    int n_sequences, blocks_per_sequence;
    int32_t *blocks;
};
void fake_kv_init(struct fake_kv *kv, enum dse_kv_type type, int n_layers, int n_kv_heads, int head_dim,
                  int n_sequences, int max_tokens);
void fake_kv_init_layout(struct fake_kv *kv, const struct dse_kv_layout *layout, int n_sequences, int max_tokens);
void fake_kv_deinit(struct fake_kv *kv);
struct dse_kv_view fake_kv_view(const struct fake_kv *kv, int sequence);
/* Where element i of the key or value of a token lies, read and written as f32. */
float fake_kv_get(const struct fake_kv *kv, int sequence, int layer, int head, bool value, int token, int i);
void fake_kv_set(struct fake_kv *kv, int sequence, int layer, int head, bool value, int token, int i, float x);

#endif

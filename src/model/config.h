/* Hyper-parameters of every architecture in one struct, whatever the file format.
 *
 * D hidden, H heads, K kv heads, d head dimension, F ffn, L layers, V vocabulary rows.
 */
#ifndef DSE_MODEL_CONFIG_H
#define DSE_MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/gguf.h"

enum dse_arch { DSE_ARCH_LLAMA, DSE_ARCH_QWEN2, DSE_ARCH_QWEN3 };

enum dse_rope_scaling { DSE_ROPE_NONE, DSE_ROPE_LINEAR, DSE_ROPE_LLAMA3, DSE_ROPE_YARN };

/* Which elements of a head form a rotated pair. */
enum dse_rope_pairs {
    DSE_ROPE_HALF,        /* (i, i + r/2): Hugging Face llama, qwen2, qwen3; GGUF qwen2, qwen3 */
    DSE_ROPE_INTERLEAVED, /* (2i, 2i+1): GGUF llama, whose converter re-ordered the rows of q and k */
};

struct dse_rope_config {
    double theta;
    int dimensions; /* rotated dimensions r, even, <= d */
    enum dse_rope_pairs pairs;
    enum dse_rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_context;                 /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: explicit factor on cos and sin, 0 = none given */
    double mscale, mscale_all_dim;            /* yarn: 0 = none given */
};

#define DSE_MAX_STOP_TOKENS 16

struct dse_config {
    enum dse_arch arch;
    char arch_name[32]; /* as the file spells it: "llama" */
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int64_t context_length; /* trained context after scaling */
    float rms_eps;
    bool tied_embeddings; /* output head is token_embd */
    bool qkv_bias;        /* qwen2: on q, k, v */
    bool qk_norm;         /* qwen3 */
    struct dse_rope_config rope;
    /* End-of-generation ids of the configuration files (union); the tokenizer adds its own. */
    int32_t stop_tokens[DSE_MAX_STOP_TOKENS];
    int n_stop_tokens;
    char name[128];     /* general.name or folder name, "" if none */
    char basename[128]; /* what it was distilled or fine-tuned from, "" if unknown */
};

/* Reads and checks everything; refuses by field name. */
DSE_MUST_CHECK enum dse_status dse_config_from_gguf(const struct dse_gguf *gguf, struct dse_config *config,
                                                    struct dse_error *err);
/* config: the object of config.json; generation: that of generation_config.json or NULL. */
DSE_MUST_CHECK enum dse_status dse_config_from_json(const json_t *config, const json_t *generation,
                                                    struct dse_config *out, struct dse_error *err);

/* Inverse frequencies after scaling, r/2 values in double rounded to f32, and the factor on cos and sin.
 * divisors: rope_freqs.weight of a GGUF or NULL. out has dimensions/2 elements. */
void dse_rope_frequencies(const struct dse_rope_config *rope, const float *divisors, float *out, float *cos_sin_factor);

#endif

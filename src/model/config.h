/* Hyper-parameters of every architecture in one struct, whatever the file format.
 *
 * D hidden, H heads, K kv heads, d head dimension, F ffn, L layers, V vocabulary rows; R and Rq latent ranks of keys
 * and queries; E experts, k used; Hi and di heads and dimension of the indexer.
 */
#ifndef DSE_MODEL_CONFIG_H
#define DSE_MODEL_CONFIG_H

#include <dse/dse.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/gguf.h"

enum dse_arch {
    DSE_ARCH_LLAMA,
    DSE_ARCH_QWEN2,
    DSE_ARCH_QWEN3,
    DSE_ARCH_DEEPSEEK,   /* V1: attention of llama, mixture of experts */
    DSE_ARCH_DEEPSEEK2,  /* V2, V3, R1, V3.1: latent attention, mixture of experts */
    DSE_ARCH_DEEPSEEK32, /* V3.2: the same with an indexer that chooses the keys */
};

const char *dse_arch_gguf_name(enum dse_arch arch); /* as general.architecture spells it */

enum dse_rope_scaling { DSE_ROPE_NONE, DSE_ROPE_LINEAR, DSE_ROPE_LLAMA3, DSE_ROPE_YARN };

/* Which elements of a head form a rotated pair. */
enum dse_rope_pairs {
    DSE_ROPE_HALF, /* (i, i + r/2): Hugging Face llama, qwen2, qwen3, deepseek V1; GGUF qwen2, qwen3; the indexer */
    DSE_ROPE_INTERLEAVED, /* (2i, 2i+1): GGUF llama and deepseek V1, whose converter re-ordered the rows of q and k;
                             latent attention in both formats */
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
    double mscale;                            /* yarn: 0 = none given */
    double mscale_all_dim;                    /* the same; with latent attention in every scaling */
};

/* Multi-head latent attention (DeepSeek-V2 report, 2024, section 2.1). A head of q is [nope | rope]; one row of the
 * cache holds the normed latent (kv_rank values) and the rotated key part that all heads share (rope values). */
struct dse_latent_config {
    int kv_rank;       /* R; 0: this model has ordinary heads */
    int q_rank;        /* Rq; 0: q comes from x directly */
    int nope, rope, v; /* per head; head_dim is nope + rope */
    bool expand;       /* --numerics fast: a device loads and reserves what the expanded form takes */
};

/* Variance floor of the norms over the two latents: the class default, whatever rms_norm_eps says. */
#define DSE_LATENT_EPS 1e-6f

enum dse_moe_score { DSE_SCORE_SOFTMAX, DSE_SCORE_SIGMOID };

/* How groups of experts are ranked: by their best expert (V2), by the sum of their two best (V3). */
enum dse_moe_groups { DSE_GROUPS_NONE, DSE_GROUPS_BEST, DSE_GROUPS_BEST_TWO };

struct dse_moe_config {
    int n_experts;      /* E; 0: a dense model */
    int n_used;         /* k, experts per token */
    int n_shared;       /* shared experts, one FFN of width n_shared * n_ff; 0: none */
    int n_ff;           /* width of one expert */
    int n_dense_layers; /* the first layers, with an ordinary FFN of width dse_config.n_ff */
    enum dse_moe_score score;
    enum dse_moe_groups grouping;
    int n_groups, n_groups_used; /* contiguous ranges of E / n_groups experts */
    bool has_bias;               /* selection adds a bias per expert; weights do not */
    bool normalize;              /* weights of the chosen divided by their sum */
    float scale;                 /* on every weight, after normalizing */
};

/* V3.2's indexer: per query the top_k keys with the largest index score are attended to. */
struct dse_indexer_config {
    int n_heads; /* 0: none */
    int head_dim, top_k;
};

/* The most experts, and the most used per token, of any model that is accepted. */
#define DSE_MAX_EXPERTS      1024
#define DSE_MAX_EXPERTS_USED 32

#define DSE_MAX_STOP_TOKENS 16

struct dse_config {
    enum dse_arch arch;
    char arch_name[32]; /* as the file spells it: "llama" */
    /* head_dim is that of q and k: nope + rope with latent attention, where n_kv_heads is 1 */
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int64_t context_length; /* trained context after scaling */
    float rms_eps;
    bool tied_embeddings; /* output head is token_embd */
    bool qkv_bias;        /* qwen2: on q, k, v */
    bool qk_norm;         /* qwen3 */
    bool fp8_blocks;      /* matrices may be F8_E4M3 with a scale per 128 x 128 weights */
    struct dse_rope_config rope;
    struct dse_latent_config latent;
    struct dse_moe_config moe;
    struct dse_indexer_config indexer;
    int n_mtp_layers; /* multi-token prediction layers that follow the n_layers decoder layers, 0: none */
    int n_mtp_used;   /* of them, those that a device loads and the cache has room for: 0 unless asked for at opening */
    /* End-of-generation ids of the configuration files (union); the tokenizer adds its own. */
    int32_t stop_tokens[DSE_MAX_STOP_TOKENS];
    int n_stop_tokens;
    enum dse_pooling pooling; /* of an embedding model */
    bool adds_eos;            /* behind a text to be embedded */
    int32_t fim[3];           /* tokens of prefix, suffix and middle for filling holes; -1: the file does not say */
    char name[128];     /* general.name, or of a folder its name or its id in the Hugging Face cache; "" if none */
    char basename[128]; /* what it was distilled or fine-tuned from, "" if unknown */
};

/* Reads and checks everything; refuses by field name. */
DSE_MUST_CHECK enum dse_status dse_config_from_gguf(const struct dse_gguf *gguf, struct dse_config *config,
                                                    struct dse_error *err);
/* config: the object of config.json; generation: that of generation_config.json or NULL. */
DSE_MUST_CHECK enum dse_status dse_config_from_json(const json_t *config, const json_t *generation,
                                                    struct dse_config *out, struct dse_error *err);

/* What q·k is multiplied with before the softmax: 1 / sqrt(head_dim), for latent attention with scaled rope times the
 * square of yarn's magnitude for mscale_all_dim. */
float dse_attention_scale(const struct dse_config *config);

/* Layers that a device keeps and that the KV cache has a part for. */
static inline int dse_layers_used(const struct dse_config *config)
{
    return config->n_layers + config->n_mtp_used;
}

/* Layer has experts instead of a dense FFN. */
static inline bool dse_layer_is_moe(const struct dse_config *config, int layer)
{
    return config->moe.n_experts > 0 && layer >= config->moe.n_dense_layers;
}

/* Inverse frequencies after scaling, r/2 values in double rounded to f32, and the factor on cos and sin.
 * divisors: rope_freqs.weight of a GGUF or NULL. out has dimensions/2 elements. */
void dse_rope_frequencies(const struct dse_rope_config *rope, const float *divisors, float *out, float *cos_sin_factor);

#endif

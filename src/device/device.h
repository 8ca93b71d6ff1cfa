/* The op table of a device: everything a forward pass asks for. CPU first; GPU and remote stages implement the same.
 *
 * A forward pass runs on the engine thread and calls these in order; each call returns when its result is complete.
 * Rows are tokens of the batch; x is the residual stream [n_rows, D] f32. Every op gives the same bits for a row
 * whatever other rows are in the call.
 */
#ifndef DSE_DEVICE_DEVICE_H
#define DSE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/thread.h"
#include "kernels/kv_layout.h"
#include "kernels/matrix.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/weights.h"

/* One matrix per head, all of one shape, packed one after the other: head h begins at data + h * head_bytes. */
struct dse_head_matrix {
    struct dse_matrix head; /* of head 0 */
    size_t head_bytes;
    int n_heads;
};

struct dse_expert {
    struct dse_matrix gate, up, down;
};

/* Weights of one layer as the device keeps them: norms decoded to f32, matrices packed. What a layer does not have is
 * zero. */
struct dse_layer {
    const float *attn_norm, *ffn_norm; /* [D] */
    struct dse_matrix q, k, v, o;
    const float *q_bias, *k_bias, *v_bias; /* NULL if none */
    const float *q_norm, *k_norm;          /* [d] or NULL */
    struct dse_matrix gate, up, down;

    struct dse_matrix q_a, q_b, kv_a;
    const float *q_a_norm, *kv_a_norm; /* [Rq] [R] */
    struct dse_head_matrix k_b, v_b;   /* per head [R, nope] (transposed: q_nope to latent) and [v, R] */
    struct dse_head_matrix k_up;       /* per head [nope, R]: latent to key; only with config.latent.expand */

    struct dse_matrix index_q, index_k, index_weights;
    const float *index_k_norm, *index_k_norm_bias; /* [di] */

    struct dse_matrix router;   /* [E, D], always f32 */
    const float *router_bias;   /* [E] or NULL */
    struct dse_expert *experts; /* [E] or NULL */
    struct dse_expert shared;   /* rows 0: none */

    /* prediction layer */
    struct dse_matrix mtp_project;                                /* [D, 2D] */
    const float *mtp_embd_norm, *mtp_hidden_norm, *mtp_head_norm; /* [D] */
};

/* The experts chosen for each row: ascending ids, and the factor on each one's result. */
struct dse_routes {
    int n_used;
    int32_t *experts; /* [n_rows][n_used] */
    float *weights;   /* [n_rows][n_used] */
};

/* Keys that each row attends to, ascending positions; row m has min(top_k, position + 1). NULL keys: all up to the
 * row's position. */
struct dse_key_choice {
    int top_k;
    int32_t *keys; /* [n_rows][top_k] */
};

struct dse_device_weights {
    const struct dse_config *config;
    const struct dse_tensor *token_embd; /* looked up from the file, row by row */
    const float *output_norm;
    struct dse_matrix output;
    struct dse_layer *layers;      /* [dse_layers_used]: decoder layers, then prediction layers */
    const float *rope_frequencies; /* [r/2] */
    float rope_factor;             /* on cos and sin */
    uint64_t resident_bytes;       /* anonymous memory taken for packed weights */
    uint64_t expert_bytes;         /* of storage_bytes: routed experts */
    void *storage;                 /* of the device: packed memory or map */
    size_t storage_bytes;
};

/* Bytes that k_up takes in all layers on the CPU; 0: the model has no latent attention. */
uint64_t dse_expansion_bytes(const struct dse_model_file *file, bool f32);

/* How the cache of a model lies in memory; prediction layers in use have their part after the decoder layers'. */
struct dse_kv_layout dse_kv_layout_of(const struct dse_config *config, enum dse_kv_type type);

/* Row m of the batch belongs to a sequence and has a position in it; positions of one sequence ascend. */
struct dse_rows {
    int n_rows;
    const int32_t *tokens;        /* [n_rows] */
    const int32_t *positions;     /* [n_rows] */
    const struct dse_kv_view *kv; /* [n_rows] view of the row's sequence */
    int first;                    /* of a part of the batch: the number of its row 0 in the batch */
};

/* ---- adapters: W x + scale * B (A x) in f32, each row with those of its own sequence ---- */

struct dse_low_rank {
    struct dse_matrix a, b; /* [rank, in] [out, rank]; a.rows 0: nothing is added */
    float scale;
};

/* An adapter as the device keeps it. */
struct dse_device_adapter {
    struct dse_low_rank *sites; /* [n_layers][DSE_SITE_COUNT] */
    void *storage;              /* of the device */
    uint64_t bytes;             /* of both */
};

struct dse_adapter_part {
    const struct dse_device_adapter *adapter;
    float scale; /* of the request */
};

/* Consecutive rows of the batch with the same adapters. */
struct dse_adapter_run {
    int first, n_rows, n_parts;
    const struct dse_adapter_part *parts; /* added in this order */
};

/* What adapters add in one layer. Runs ascend; rows in none of them get the bits that they get without any adapter in
 * the batch. */
struct dse_adaption {
    int layer;
    const struct dse_adapter_run *runs;
    int n_runs;
    float *low;                 /* memory of the caller for A x: [DSE_ADAPTION_SITES][low_rows][low_width] */
    size_t low_rows, low_width; /* at least the rows of the batch; at least the ranks of a run's parts together */
};

/* Matrices with one input whose A x exist at once. */
#define DSE_ADAPTION_SITES 3

/* Rows whose absorbed queries and chosen keys exist at once: latent attention takes a larger batch in parts. */
#define DSE_LATENT_ROWS 128

struct dse_device;

struct dse_device_ops {
    const char *name;

    /* Packs (or maps from the pack cache) the weights of an opened model. pack_cache NULL: anonymous memory. */
    enum dse_status (*load)(struct dse_device *device, const struct dse_model_file *file, bool f32,
                            const char *pack_cache, struct dse_device_weights *out, struct dse_error *err);
    /* Keeps mapped weights in memory, all but the experts; false: they were not mapped, or the system refused, which is
     * logged. */
    bool (*keep)(struct dse_device *device, const struct dse_device_weights *weights);
    void (*unload)(struct dse_device *device, struct dse_device_weights *weights);

    /* Memory that an adapter will take; UINT64_MAX if that overflows. */
    uint64_t (*adapter_bytes)(const struct dse_device *device, const struct dse_config *config,
                              const struct dse_adapter_file *file);
    /* Packs an adapter for a model of this configuration. */
    enum dse_status (*load_adapter)(struct dse_device *device, const struct dse_config *config,
                                    const struct dse_adapter_file *file, struct dse_device_adapter *out,
                                    struct dse_error *err);
    void (*unload_adapter)(struct dse_device *device, struct dse_device_adapter *adapter);

    /* Scratch bytes that the ops below need for at most max_rows rows; taken once with reserve. */
    size_t (*scratch_bytes)(const struct dse_device *device, const struct dse_config *config, int max_rows);
    enum dse_status (*reserve)(struct dse_device *device, const struct dse_config *config, int max_rows,
                               struct dse_error *err);

    /* x[m] = row tokens[m] of the embedding, decoded */
    void (*embed)(struct dse_device *device, const struct dse_tensor *table, const struct dse_rows *rows, float *x);
    /* Where an op takes an adaption, NULL means that no row has an adapter. */

    /* q [n, H*d], k [n, K*d], v [n, K*d]  =  Wq,Wk,Wv · rms(x, attn_norm) (+ biases) */
    void (*qkv)(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                const struct dse_adaption *adaption, const float *x, int n_rows, float *q, float *k, float *v);
    /* per head: optional q/k norm, rope by position; q in place, k and v into the KV blocks of the row's sequence */
    void (*rope_store)(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *k,
                       const float *v);
    /* out [n, H*d]: causal attention over positions 0…positions[m] of the row's sequence; scale 1/sqrt(d); GQA */
    void (*attention)(struct dse_device *device, const struct dse_config *config, int layer,
                      const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q, float *out);
    /* x += W · in; site: which matrix of the layer w is */
    void (*project_add)(struct dse_device *device, const struct dse_matrix *w, const struct dse_adaption *adaption,
                        enum dse_adapter_site site, const float *in, int n_rows, float *x);
    /* h [n, F] = silu(Wgate · n) * (Wup · n), n = rms(x, ffn_norm) */
    void (*ffn_up)(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                   const struct dse_adaption *adaption, const float *x, int n_rows, float *h);
    /* ---- latent attention: R kv_rank, per head nope + rope values of q ---- */

    /* q [n, H*(nope+rope)] and ck [n, R+rope], not yet normed or rotated; q_latent [n, Rq]: the normed query latent,
     * written only when the model has one */
    void (*latent_qkv)(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                       const struct dse_adaption *adaption, const float *x, int n_rows, float *q_latent, float *q,
                       float *ck);
    /* rope on the last rope values of every head of q, in place; norm of ck's first R values, rope on the rest, both
     * into the blocks of the row's sequence */
    void (*latent_store)(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                         const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *ck);
    /* y [n, H, rows] = W_h · x_h for every head; x_h = the first W.cols values at x + (m * H + h) * x_stride */
    void (*head_project)(struct dse_device *device, const struct dse_head_matrix *w, const float *x, size_t x_stride,
                         int n_rows, float *y);
    /* out [n, H, R]: softmax(scale * (absorbed · c + q_rope · k_rope)) c over the row's keys; absorbed [n, H, R] */
    void (*latent_attention)(struct dse_device *device, const struct dse_config *config, int layer,
                             const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                             const float *absorbed, const struct dse_key_choice *choice, float *out);
    /* out [n, H, v]: the same attention in expanded form, for rows of one sequence at consecutive positions that see
     * all keys up to their own. Keys and values of a head are computed from the latents, block by block. Its rounding
     * is not the absorbed form's; a row's bits do not depend on the other rows. Only with config.latent.expand. */
    void (*expanded_attention)(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                               const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                               float *out);
    /* V3.2: stores the indexer key of every row, then chooses the keys of every row */
    void (*index_keys)(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *x,
                       const float *q_latent, struct dse_key_choice *choice);

    /* ---- mixture of experts ---- */

    /* scores of rms(x, ffn_norm) in f32, selection, weights */
    void (*route)(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                  const float *x, int n_rows, struct dse_routes *routes);
    /* x += sum over the chosen experts, ascending, of weight * FFN_e(n), then + FFN_shared(n); n = rms(x, ffn_norm) */
    void (*moe)(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                const struct dse_adaption *adaption, const struct dse_routes *routes, int n_rows, float *x);

    /* ---- multi-token prediction ---- */

    /* x [n, D], the stream after the last decoder layer, becomes the input of the prediction layer:
     * Wproject · [rms(e, embd_norm) ; rms(rms(x, output_norm), hidden_norm)], e = row tokens[m] of the embedding.
     * joined [n, 2D]: memory of the caller for what Wproject is applied to. */
    void (*mtp_input)(struct dse_device *device, const struct dse_device_weights *weights,
                      const struct dse_layer *layer, const struct dse_rows *rows, float *joined, float *x);

    /* logits [n_out, V] = W · rms(x[row_index[i]], norm); norm is output_norm or a prediction layer's own */
    void (*logits)(struct dse_device *device, const struct dse_device_weights *weights, const float *norm,
                   const float *x, const int32_t *row_index, int n_out, float *logits);
};

struct dse_device {
    const struct dse_device_ops *ops;
    struct dse_pool *pool; /* CPU: runs the ops; owned by the device */
    void *state;           /* of the implementation */
};

/* "auto" or "cpu"; anything else is DSE_ERR_DEVICE naming it. */
DSE_MUST_CHECK enum dse_status dse_device_open(const char *name, int n_threads, struct dse_device **device,
                                               struct dse_error *err);
void dse_device_close(struct dse_device *device);

/* What this machine offers, for `devices`: returns the number of entries written. */
struct dse_device_info {
    char name[32], description[128], reason[128];
    bool usable;
    uint64_t memory_bytes;
};
int dse_device_list(struct dse_device_info *out, int max);

#endif

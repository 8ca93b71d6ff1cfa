/* Scratch and rows of a forward pass, and the passes themselves.
 *
 * Called by the engine thread, eval and bench. All buffers are taken at creation for at most max_rows rows; running a
 * step never allocates. The device is shared by everyone who uses the model, so compute sections take its lock.
 */
#ifndef DSE_ENGINE_FORWARD_H
#define DSE_ENGINE_FORWARD_H

#include "device/device.h"
#include "engine/model.h"
#include "kernels/vector.h"

struct dse_forward {
    struct dse_model *model; /* borrowed */
    int max_rows, max_out;
    bool expand;                 /* fast numerics: as the model was opened, until someone clears it */
    int32_t *tokens, *positions; /* [max_rows] behind rows */
    struct dse_kv_view *views;   /* [max_rows] */
    struct dse_rows rows;        /* the step being formed */
    dse_rmsnorm_fn *rmsnorm;
    float *x;                     /* [max_rows, D] residual stream */
    float *q;                     /* [max_rows, H*d] */
    float *k, *v;                 /* [max_rows, K*d]; latent attention: k [max_rows, R+rope] */
    float *attention;             /* [max_rows, H*d]; latent attention: [max_rows, H*v] */
    float *h;                     /* [max_rows, F] */
    float *q_latent;              /* [max_rows, Rq] */
    float *absorbed, *latents;    /* [DSE_LATENT_ROWS, H*R] */
    struct dse_key_choice choice; /* of DSE_LATENT_ROWS rows */
    struct dse_routes routes;     /* of max_rows rows */
    float *joined;                /* [max_rows, 2D] only with a prediction layer */
    float *logits;                /* [max_out, V] */
    /* Adapters: with room for them [max_rows] runs, of which the step has some, and A x. */
    struct dse_adapter_run *runs;
    struct dse_adaption adaption;
    int adapter_rank;
    void *adapter_memory;
    void *memory;
    size_t memory_bytes;
};

/* Bytes of everything that a pass over max_rows rows takes: ours and the device's. */
DSE_MUST_CHECK enum dse_status dse_forward_plan(const struct dse_model *model, int max_rows, int max_out,
                                                uint64_t *bytes, struct dse_error *err);
/* max_out 0: no logits buffer, the caller brings its own. */
DSE_MUST_CHECK enum dse_status dse_forward_init(struct dse_forward *forward, struct dse_model *model, int max_rows,
                                                int max_out, struct dse_error *err);
/* Room for rows whose adapters have ranks of at most adapter_rank together; 0: nothing is taken. */
uint64_t dse_forward_adapter_bytes(int max_rows, int adapter_rank);
DSE_MUST_CHECK enum dse_status dse_forward_take_adapters(struct dse_forward *forward, int adapter_rank,
                                                         struct dse_error *err);
void dse_forward_deinit(struct dse_forward *forward); /* safe on a zeroed struct */

/* Forms a step: clear, then push row after row. The view must stay valid until the step has run. */
void dse_forward_clear(struct dse_forward *forward);
void dse_forward_push(struct dse_forward *forward, int32_t token, int32_t position, struct dse_kv_view view);

/* The rows pushed since `first_row` use these adapters, which must stay valid until the step has run; there is room for
 * them. */
void dse_forward_adapt(struct dse_forward *forward, int first_row, const struct dse_adapter_part *parts, int n_parts);
/* For the ops of a layer: NULL when no row of the step has an adapter, and for prediction layers, which have none. */
const struct dse_adaption *dse_forward_adaption(struct dse_forward *forward, int layer);

/* All layers over the rows pushed; the result stays in x. Writes the KV of every row. */
void dse_forward_run(struct dse_forward *forward, const struct dse_kv_layout *layout);
/* Head over chosen rows of x: out f32 [n_out, V]. */
void dse_forward_logits(struct dse_forward *forward, const int32_t *row_index, int n_out, float *out);

/* The hidden state of a row of x, f32 [D]: what the head gets. */
void dse_forward_hidden(const struct dse_forward *forward, int row, float *out);

/* Multi-token prediction, for a model that was opened with it, after dse_forward_run: the prediction layer over the
 * rows pushed, row m together with next_tokens[m], the token that follows it. Writes the layer's own KV of every row,
 * so all rows of a sequence must come through here; x becomes its result, so logits of the model itself come first. */
void dse_forward_mtp(struct dse_forward *forward, const struct dse_kv_layout *layout, const int32_t *next_tokens);
/* Head over chosen rows of that x: for the token after the next one. */
void dse_forward_mtp_logits(struct dse_forward *forward, const int32_t *row_index, int n_out, float *out);

/* forward_llama.c: layers [layer_begin, layer_end) of llama, qwen2 and qwen3; embeds when it starts at layer 0. */
void dse_forward_llama(struct dse_forward *forward, const struct dse_kv_layout *layout, int layer_begin, int layer_end);

/* forward_deepseek.c: the same for deepseek, deepseek2 and deepseek32. */
void dse_forward_deepseek(struct dse_forward *forward, const struct dse_kv_layout *layout, int layer_begin,
                          int layer_end);
void dse_forward_deepseek_mtp(struct dse_forward *forward, const struct dse_kv_layout *layout,
                              const int32_t *next_tokens);

#endif

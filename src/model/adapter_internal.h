/* What the two readers of adapters share with adapter.c, which knows the model. Included by adapter*.c only. */
#ifndef DSE_MODEL_ADAPTER_INTERNAL_H
#define DSE_MODEL_ADAPTER_INTERNAL_H

#include "model/adapter.h"

/* An adapter while it is read: a place for every matrix of the model. */
struct dse_adapter_builder {
    const char *path; /* of the file with the tensors */
    const struct dse_model_file *base;
    struct dse_adapter_file *file;
    struct dse_adapter_module *places; /* [n_layers][DSE_SITE_COUNT] */
    bool gguf;                         /* names and order of rows as GGUF has them */
};

/* Puts a tensor in its place. text: the end of its name, "N.MODULE" and then end_a or end_b; N is the layer, without
 * sign or leading zeros, MODULE the matrix as the kind of file spells it in a layer, "self_attn.q_proj" or "attn_q".
 * Refuses other names, what the model does not have, what cannot be added to, wrong shapes and types, all by name. */
DSE_MUST_CHECK enum dse_status dse_adapter_put(struct dse_adapter_builder *builder, const struct dse_tensor *tensor,
                                               const char *text, const char *end_a, const char *end_b,
                                               struct dse_error *err);
/* A tensor that is no factor of a matrix of a layer. */
enum dse_status dse_adapter_refuse_name(const struct dse_adapter_builder *builder, const char *name,
                                        struct dse_error *err);

/* After all tensors are put: every place that has one factor has both, of one rank, which is noted. */
DSE_MUST_CHECK enum dse_status dse_adapter_pair(struct dse_adapter_builder *builder, struct dse_error *err);
/* alpha / divisor, which must be finite. */
DSE_MUST_CHECK enum dse_status dse_adapter_set_scale(const struct dse_adapter_builder *builder,
                                                     struct dse_adapter_module *place, double alpha, double divisor,
                                                     struct dse_error *err);

/* adapter_peft.c: all tensors into their places. config_path: the folder's adapter_config.json. */
DSE_MUST_CHECK enum dse_status dse_adapter_read_peft(struct dse_adapter_builder *builder, const char *config_path,
                                                     size_t max_bytes, struct dse_error *err);
/* adapter_gguf.c: the same. */
DSE_MUST_CHECK enum dse_status dse_adapter_read_gguf(struct dse_adapter_builder *builder, size_t max_bytes,
                                                     struct dse_error *err);

#endif

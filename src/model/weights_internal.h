/* What the parts of opening a model share: weights.c (the file), weights_layers.c and weights_experts.c (tensors of a
 * layer), weights_fp8.c (scales), weights_unknown.c and weights_text.c (tokenizer files, templates). */
#ifndef DSE_MODEL_WEIGHTS_INTERNAL_H
#define DSE_MODEL_WEIGHTS_INTERNAL_H

#include "model/weights.h"

const struct dse_tensor *dse_weights_find(const struct dse_model_file *file, const char *name); /* NULL if absent */
/* Finds a tensor, checks its type and that its shape is the one given, and adds it to the sums. A tensor of one
 * dimension is a vector and is read element by element. */
DSE_MUST_CHECK enum dse_status dse_weights_take(struct dse_model_file *file, const char *name, int n_dims,
                                                const size_t *shape, const struct dse_tensor **out,
                                                struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_weights_take_layer(struct dse_model_file *file, int layer, struct dse_error *err);
/* The experts of a layer, stacked (GGUF) or one by one (folders). */
DSE_MUST_CHECK enum dse_status dse_weights_take_experts(struct dse_model_file *file, int layer, struct dse_error *err);
/* "blk.LAYER.GGUF" or "model.layers.LAYER.HUGGING_FACE" */
void dse_weights_layer_name(const struct dse_model_file *file, int layer, const char *gguf, const char *hugging_face,
                            char name[96]);
/* The matrix of a layer that a name without ".weight" means, in a GGUF file ("attn_q") or a folder
 * ("self_attn.q_proj"): the offset of its field in struct dse_layer_tensors. False: no layer has one of that name. */
bool dse_weights_layer_field(bool is_gguf, const char *name, size_t bytes, size_t *field);
/* The file, which is one of the two, has a tensor of this layer that only prediction layers have. */
bool dse_weights_has_mtp(const struct dse_gguf *gguf, const struct dse_safetensors *safetensors, int layer);
/* Folders: gives every FP8 matrix its block_scales. */
DSE_MUST_CHECK enum dse_status dse_weights_attach_scales(struct dse_model_file *file, struct dse_error *err);

/* Which tensors were taken, and the refusal of all others but those that cannot change a result. */
DSE_MUST_CHECK enum dse_status dse_weights_mark_none(struct dse_model_file *file, struct dse_error *err);
void dse_weights_mark(struct dse_model_file *file, const struct dse_tensor *tensor);
DSE_MUST_CHECK enum dse_status dse_weights_refuse_unknown(const struct dse_model_file *file, struct dse_error *err);
/* The status of a model that cannot be opened: a device or a file without permission in its place is as little a model
 * as one with bad content. */
enum dse_status dse_model_file_status(enum dse_status status, struct dse_error *err);

/* Types, counts and ids of the tokenizer.* keys that text work relies on. */
DSE_MUST_CHECK enum dse_status dse_gguf_check_tokenizer(const struct dse_gguf *gguf, struct dse_error *err);
/* Fill tokenizer_json, tokenizer_config and chat_template. What is not there stays NULL. */
DSE_MUST_CHECK enum dse_status dse_model_text_from_gguf(struct dse_model_file *file, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_model_text_from_folder(struct dse_model_file *file, const char *folder,
                                                          struct dse_error *err);
/* The path made absolute; the last component is kept even if it is a link, so that shards beside it are found. */
DSE_MUST_CHECK enum dse_status dse_model_resolve_path(const char *path, char **out, struct dse_error *err);

#endif

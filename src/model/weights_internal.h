/* What the two halves of opening a model share: weights.c (tensors) and weights_text.c (tokenizer files, templates). */
#ifndef DSE_MODEL_WEIGHTS_INTERNAL_H
#define DSE_MODEL_WEIGHTS_INTERNAL_H

#include "model/weights.h"

/* Types, counts and ids of the tokenizer.* keys that text work relies on. */
DSE_MUST_CHECK enum dse_status dse_gguf_check_tokenizer(const struct dse_gguf *gguf, struct dse_error *err);
/* Fill tokenizer_json, tokenizer_config and chat_template. What is not there stays NULL. */
DSE_MUST_CHECK enum dse_status dse_model_text_from_gguf(struct dse_model_file *file, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_model_text_from_folder(struct dse_model_file *file, const char *folder,
                                                          struct dse_error *err);
/* The path made absolute; the last component is kept even if it is a link, so that shards beside it are found. */
DSE_MUST_CHECK enum dse_status dse_model_resolve_path(const char *path, char **out, struct dse_error *err);

#endif

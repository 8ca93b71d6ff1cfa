/* What the two readers of tokenizer definitions share. Private to model/tokenizer_source*.c. */
#ifndef DSE_MODEL_TOKENIZER_SOURCE_INTERNAL_H
#define DSE_MODEL_TOKENIZER_SOURCE_INTERNAL_H

#include <jansson.h>

#include "model/gguf.h"
#include "text/tokenizer.h"

/* A definition together with the arrays it points to. Token texts stay where the file's reader keeps them. */
struct dse_tokenizer_parts {
    struct dse_tokenizer_def def;
    struct dse_slice *tokens;
    uint8_t *kinds;
    struct dse_slice *merges;
};

#define DSE_TOKENIZER_MAX_TOKENS (1 << 24)
#define DSE_TOKENIZER_MAX_MERGES (1 << 24)

/* Takes zeroed parts; what they hold is freed by the caller, for failure too. */
DSE_MUST_CHECK enum dse_status dse_tokenizer_parts_from_gguf(const struct dse_gguf *gguf,
                                                             struct dse_tokenizer_parts *parts, struct dse_error *err);
/* config: tokenizer_config.json or NULL. */
DSE_MUST_CHECK enum dse_status dse_tokenizer_parts_from_json(const json_t *tokenizer, const json_t *config,
                                                             struct dse_tokenizer_parts *parts, struct dse_error *err);

DSE_MUST_CHECK enum dse_status dse_tokenizer_parts_allocate(struct dse_tokenizer_parts *parts, size_t n_tokens,
                                                            size_t n_merges, struct dse_error *err);
/* "left right" -> its two sides. False unless there is exactly one blank with text on both sides. */
bool dse_tokenizer_split_merge(const char *text, size_t bytes, struct dse_slice sides[2]);
/* True if the text is one character of the byte-level alphabet. */
bool dse_tokenizer_is_byte_char(const char *text, size_t bytes);

#endif

/* Makes a tokenizer from an opened model file: GGUF metadata (tokenizer.ggml.*) or tokenizer.json. This room knows
 * the formats and fills a definition; the tokenizer itself lives in text/. */
#ifndef DSE_MODEL_TOKENIZER_SOURCE_H
#define DSE_MODEL_TOKENIZER_SOURCE_H

#include "model/weights.h"
#include "text/tokenizer.h"

DSE_MUST_CHECK enum dse_status dse_tokenizer_from_model(const struct dse_model_file *file, struct dse_tokenizer **out,
                                                        struct dse_error *err);

#endif

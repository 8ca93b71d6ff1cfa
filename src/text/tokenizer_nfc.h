/* Unicode normalisation form C as the Hugging Face tokenizers library does it. */
#ifndef DSE_TEXT_TOKENIZER_NFC_H
#define DSE_TEXT_TOKENIZER_NFC_H

#include "base/buffer.h"
#include "base/error.h"

/* text must be valid UTF-8. If it is in NFC for sure already, *normal points to it; else to out's content (out is
 * cleared first). */
DSE_MUST_CHECK enum dse_status dse_nfc(const char *text, size_t bytes, struct dse_buffer *out, const char **normal,
                                       size_t *normal_bytes, struct dse_error *err);

#endif

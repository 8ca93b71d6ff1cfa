/* Character classes as the Hugging Face tokenizers library understands them, as sorted ranges of code points.
 *
 * The pre-tokenizer writes them into its patterns, so that token ids do not depend on the Unicode version of the
 * system's libraries. The tables are generated (tools/make_unicode_ranges.py).
 */
#ifndef DSE_TEXT_UNICODE_RANGES_H
#define DSE_TEXT_UNICODE_RANGES_H

#include <stddef.h>
#include <stdint.h>

enum dse_unicode_class {
    DSE_UNICODE_L,         /* \p{L} */
    DSE_UNICODE_M,         /* \p{M} */
    DSE_UNICODE_N,         /* \p{N} */
    DSE_UNICODE_P,         /* \p{P} */
    DSE_UNICODE_S,         /* \p{S} */
    DSE_UNICODE_SPACE,     /* \s */
    DSE_UNICODE_DIGIT,     /* what "Digits" splits off: newer than \p{N} */
    DSE_UNICODE_NFC_INERT, /* the library's NFC neither moves nor composes these, current Unicode does */
    DSE_UNICODE_COUNT
};

struct dse_unicode_range {
    uint32_t first, last;
};
struct dse_unicode_table {
    const struct dse_unicode_range *ranges;
    size_t count;
};
extern const struct dse_unicode_table dse_unicode_tables[DSE_UNICODE_COUNT];

#endif

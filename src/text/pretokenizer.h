/* Pre-tokenizers: cut text into the pieces inside which byte pairs are merged.
 *
 * Each is a sequence of regular expressions with "isolated" behaviour: every match and every gap between matches is a
 * piece, and the next expression sees each piece alone. They run in time linear in the text.
 */
#ifndef DSE_TEXT_PRETOKENIZER_H
#define DSE_TEXT_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct dse_pretokenizer; /* immutable, any thread */

/* name: as in GGUF's tokenizer.ggml.pre, aliases included. Unknown: DSE_ERR_UNSUPPORTED naming it. jit false leaves the
 * interpreter, which is also the fallback where the system forbids executable memory. */
DSE_MUST_CHECK enum dse_status dse_pretokenizer_create(const char *name, bool jit, struct dse_pretokenizer **out,
                                                       struct dse_error *err);
void dse_pretokenizer_free(struct dse_pretokenizer *pretokenizer);

/* What a GGUF leaves unsaid because the name implies it. */
struct dse_pretokenizer_traits {
    const char *name;   /* the canonical one, static */
    bool nfc;           /* text is normalised to NFC first */
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool adds_bos;      /* raw prompts get BOS unless the file says otherwise */
};
/* False if the name is unknown. */
bool dse_pretokenizer_traits(const char *name, struct dse_pretokenizer_traits *traits);

/* Spellings of the two steps of a tokenizer.json that are not regular expressions. */
#define DSE_PRETOKENIZER_DIGITS     "<Digits individual>"
#define DSE_PRETOKENIZER_BYTE_LEVEL "<ByteLevel use_regex>"
/* Name of the pre-tokenizer with exactly these steps, regular expressions as tokenizer.json spells them except that
 * line breaks are written \r and \n; NULL if there is none. */
const char *dse_pretokenizer_identify(const char *const *steps, size_t count);

/* Matching needs memory of its own for each call in progress. Zero-initialised; one thread at a time. */
struct dse_pretokenizer_run {
    void *match_data, *match_context, *jit_stack;
};
void dse_pretokenizer_run_deinit(struct dse_pretokenizer_run *run);

typedef enum dse_status dse_piece_fn(void *user, const char *piece, size_t bytes, struct dse_error *err);
/* Calls fn for each piece in order; pieces point into text, which must be valid UTF-8. Stops at the first error. */
DSE_MUST_CHECK enum dse_status dse_pretokenizer_split(const struct dse_pretokenizer *pretokenizer,
                                                      struct dse_pretokenizer_run *run, const char *text, size_t bytes,
                                                      dse_piece_fn *fn, void *user, struct dse_error *err);

#endif

/* Byte pair encoding of one piece: bytes -> token ids by ranked merges. */
#ifndef DSE_TEXT_BPE_H
#define DSE_TEXT_BPE_H

#include "text/tokenizer.h"

struct dse_bpe; /* immutable, any thread */

/* left < 0: this rank is never applied. */
struct dse_bpe_merge {
    int32_t left, right, result;
};

/* byte_ids: token of each byte, -1 for none. merges [n_merges] in order of rank; a later duplicate of a pair wins, as
 * in Hugging Face. */
DSE_MUST_CHECK enum dse_status dse_bpe_create(const int32_t byte_ids[256], const struct dse_bpe_merge *merges,
                                              size_t n_merges, struct dse_bpe **out, struct dse_error *err);
void dse_bpe_free(struct dse_bpe *bpe);

/* Working memory, reused from piece to piece. Zero-initialised; one thread at a time. */
struct dse_bpe_scratch {
    struct dse_bpe_symbol *symbols;
    size_t n_symbols; /* capacity */
    uint64_t *heap;
    size_t n_heap; /* capacity */
};
void dse_bpe_scratch_deinit(struct dse_bpe_scratch *scratch);

/* Appends the ids of one piece. O(n log n). At most INT32_MAX bytes. */
DSE_MUST_CHECK enum dse_status dse_bpe_encode(const struct dse_bpe *bpe, struct dse_bpe_scratch *scratch,
                                              const char *piece, size_t bytes, struct dse_tokens *out,
                                              struct dse_error *err);

#endif

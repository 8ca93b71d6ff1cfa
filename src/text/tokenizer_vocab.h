/* The vocabulary of a tokenizer: bytes and kind of each token, lookup by bytes, and added tokens found in text. */
#ifndef DSE_TEXT_TOKENIZER_VOCAB_H
#define DSE_TEXT_TOKENIZER_VOCAB_H

#include "text/tokenizer.h"

struct dse_vocab {
    size_t n_tokens;
    char *bytes;     /* of all tokens, one after the other, a NUL after each */
    size_t *offsets; /* [n_tokens + 1] */
    uint8_t *kinds;  /* [n_tokens] enum dse_token_kind */
    int32_t *slots;  /* hash of plain tokens by bytes: open addressing, -1 free */
    size_t mask;
    uint64_t seed;
    int32_t *added; /* ids of control, user and byte-character tokens, sorted by bytes */
    size_t n_added;
    uint32_t added_begin[257]; /* by first byte */
    int32_t byte_ids[256];     /* -1: no token for this byte */
};

/* vocab is zero-initialised; on failure it must still be deinitialised. */
DSE_MUST_CHECK enum dse_status dse_vocab_init(struct dse_vocab *vocab, const struct dse_tokenizer_def *def,
                                              struct dse_error *err);
void dse_vocab_deinit(struct dse_vocab *vocab);

static inline struct dse_slice dse_vocab_token(const struct dse_vocab *vocab, size_t id)
{
    return (struct dse_slice){vocab->bytes + vocab->offsets[id], vocab->offsets[id + 1] - vocab->offsets[id] - 1};
}

/* Id of the normal token with exactly these bytes, or -1. */
int32_t dse_vocab_find(const struct dse_vocab *vocab, const char *bytes, size_t count);
/* Id of the added token with exactly this text, or -1. */
int32_t dse_vocab_find_added(const struct dse_vocab *vocab, const char *bytes, size_t count);

/* First place at or after `from` where an added token begins; the longest one there. Without special only tokens that
 * stand for a byte character count. False: none in the rest of the text. */
bool dse_vocab_next_added(const struct dse_vocab *vocab, const char *text, size_t bytes, size_t from, bool special,
                          size_t *at, int32_t *id);

/* Byte-level spelling (Ġ for a blank) -> bytes. out has room for `bytes`. False if a character stands for no byte or
 * the text is not UTF-8. */
bool dse_byte_level_decode(const char *text, size_t bytes, char *out, size_t *out_bytes);

#endif

/* Byte-level BPE tokenizer: text <-> token ids, exact to Hugging Face tokenizers for the supported pre-tokenizers.
 *
 * A definition (vocabulary, merges, added tokens) is handed in by whoever read the file; this room knows no file
 * formats. A tokenizer is immutable after creation and may be used from any thread.
 */
#ifndef DSE_TEXT_TOKENIZER_H
#define DSE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct dse_slice {
    const char *data;
    size_t bytes;
};

enum dse_token_kind {
    DSE_TOKEN_NORMAL,    /* text in byte-level characters (Ġ for a blank) */
    DSE_TOKEN_CONTROL,   /* added and special: matched in text, hidden in output */
    DSE_TOKEN_USER,      /* added, not special: matched in text, shown in output */
    DSE_TOKEN_UNUSED,    /* padding row: never produced, never matched */
    DSE_TOKEN_BYTE_CHAR, /* added token that stands for one of the byte characters */
};

/* All pointers are borrowed during dse_tokenizer_create only. */
struct dse_tokenizer_def {
    const char *pre; /* "deepseek-v3", "qwen2", … */
    size_t n_tokens;
    const struct dse_slice *tokens; /* [n_tokens] text as stored in the file */
    const uint8_t *kinds;           /* [n_tokens] enum dse_token_kind */
    size_t n_merges;
    const struct dse_slice *merges; /* [2 * n_merges] left and right of each, in order of rank */
    bool nfc;                       /* normalise to NFC first (qwen) */
    bool ignore_merges;             /* llama3 */
    bool add_bos;                   /* raw prompts get BOS */
    int32_t bos, eos, eot, pad;     /* -1 if none */
};

struct dse_tokenizer;

DSE_MUST_CHECK enum dse_status dse_tokenizer_create(const struct dse_tokenizer_def *def, struct dse_tokenizer **out,
                                                    struct dse_error *err);
void dse_tokenizer_free(struct dse_tokenizer *tokenizer);

struct dse_tokens {
    int32_t *ids;
    size_t count, capacity;
}; /* zero-initialised by the caller */
void dse_tokens_deinit(struct dse_tokens *tokens);
DSE_MUST_CHECK enum dse_status dse_tokens_push(struct dse_tokens *tokens, int32_t id, struct dse_error *err);

enum dse_encode_flags {
    DSE_ENCODE_PARSE_SPECIAL = 1, /* literal texts of added tokens become those tokens (as Hugging Face does) */
    DSE_ENCODE_ADD_BOS = 2,       /* put BOS in front if the tokenizer wants one and the text does not begin with it */
};

/* Appends to *out. Text must be valid UTF-8: else DSE_ERR_INVALID with the byte offset. Time is linear in bytes
 * (n log n inside one piece). */
DSE_MUST_CHECK enum dse_status dse_tokenizer_encode(const struct dse_tokenizer *tokenizer, const char *text,
                                                    size_t bytes, unsigned flags, struct dse_tokens *out,
                                                    struct dse_error *err);

/* The same, but no added token may match across a barrier: positions inside the text, ascending. Where the longest one
 * would, a shorter one at the same place may match; what is left is encoded as the plain text it is. BOS texts count as
 * any other: one with a barrier inside is not the text's own BOS. */
DSE_MUST_CHECK enum dse_status dse_tokenizer_encode_guarded(const struct dse_tokenizer *tokenizer, const char *text,
                                                            size_t bytes, unsigned flags, const size_t *barriers,
                                                            size_t n_barriers, struct dse_tokens *out,
                                                            struct dse_error *err);
size_t dse_tokenizer_count(const struct dse_tokenizer *tokenizer);
/* The bytes a token stands for; {NULL, 0} for ids out of range. Control tokens give their literal text. */
struct dse_slice dse_tokenizer_bytes(const struct dse_tokenizer *tokenizer, int32_t id);
enum dse_token_kind dse_tokenizer_kind(const struct dse_tokenizer *tokenizer, int32_t id);
/* Id of an added token with exactly this text, or -1. */
int32_t dse_tokenizer_find_added(const struct dse_tokenizer *tokenizer, const char *text);
int32_t dse_tokenizer_bos(const struct dse_tokenizer *tokenizer); /* -1 if none */
int32_t dse_tokenizer_eos(const struct dse_tokenizer *tokenizer);
bool dse_tokenizer_adds_bos(const struct dse_tokenizer *tokenizer);
/* True for ids that end a generation by themselves: eos, eot, and the usual end-of-turn control tokens by text. */
bool dse_tokenizer_is_stop(const struct dse_tokenizer *tokenizer, int32_t id);

/* Whole text of ids; invalid UTF-8 becomes U+FFFD per maximal invalid part. Unknown ids: DSE_ERR_INVALID.
 * Returns owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_tokenizer_decode(const struct dse_tokenizer *tokenizer, const int32_t *ids,
                                                    size_t count, bool skip_special, char **text, size_t *bytes,
                                                    struct dse_error *err);

#endif

/* A small byte-level vocabulary for tests: 256 byte tokens, a few merges, a few added tokens. */
#ifndef DSE_TESTS_TINY_VOCAB_H
#define DSE_TESTS_TINY_VOCAB_H

#include "text/tokenizer.h"

#define TINY_MAX_TOKENS 300
#define TINY_MAX_MERGES 40

struct tiny_vocab {
    struct dse_tokenizer_def def;
    struct dse_slice tokens[TINY_MAX_TOKENS];
    uint8_t kinds[TINY_MAX_TOKENS];
    struct dse_slice merges[2 * TINY_MAX_MERGES];
    char bytes[256][4];
};

enum {
    TINY_BOS = 256,
    TINY_EOS,
    TINY_USER,
    TINY_IM_END,
    TINY_UNUSED,
    TINY_HE,
    TINY_HEL,
    TINY_LO,
    TINY_HELLO,
    TINY_BLANK_A,
    TINY_COUNT
};

/* bos "<bos>", eos "<eos>", user token "<tool>", "<|im_end|>" control, one unused row; tokens "he" "hel" "lo" "hello" " a". */
void tiny_vocab_init(struct tiny_vocab *vocab);
void tiny_vocab_add(struct tiny_vocab *vocab, const char *text, enum dse_token_kind kind);
void tiny_vocab_merge(struct tiny_vocab *vocab, const char *left, const char *right);

#endif

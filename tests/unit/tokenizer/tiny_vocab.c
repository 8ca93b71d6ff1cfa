#include "tiny_vocab.h"

#include <string.h>

#include "base/utf8.h"

void tiny_vocab_add(struct tiny_vocab *vocab, const char *text, enum dse_token_kind kind)
{
    vocab->tokens[vocab->def.n_tokens] = (struct dse_slice){text, strlen(text)};
    vocab->kinds[vocab->def.n_tokens++] = (uint8_t)kind;
}

void tiny_vocab_merge(struct tiny_vocab *vocab, const char *left, const char *right)
{
    struct dse_slice *pair = &vocab->merges[2 * vocab->def.n_merges++];
    pair[0] = (struct dse_slice){left, strlen(left)};
    pair[1] = (struct dse_slice){right, strlen(right)};
}

void tiny_vocab_init(struct tiny_vocab *vocab)
{
    memset(vocab, 0, sizeof *vocab);
    vocab->def = (struct dse_tokenizer_def){.pre = "smollm",
                                            .tokens = vocab->tokens,
                                            .kinds = vocab->kinds,
                                            .merges = vocab->merges,
                                            .add_bos = true,
                                            .bos = TINY_BOS,
                                            .eos = TINY_EOS,
                                            .eot = -1,
                                            .pad = -1};
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool is_itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        size_t bytes = dse_utf8_encode(is_itself ? byte : next++, vocab->bytes[byte]);
        vocab->tokens[byte] = (struct dse_slice){vocab->bytes[byte], bytes};
    }
    vocab->def.n_tokens = 256;
    tiny_vocab_add(vocab, "<bos>", DSE_TOKEN_CONTROL);
    tiny_vocab_add(vocab, "<eos>", DSE_TOKEN_CONTROL);
    tiny_vocab_add(vocab, "<tool>", DSE_TOKEN_USER);
    tiny_vocab_add(vocab, "<|im_end|>", DSE_TOKEN_CONTROL);
    tiny_vocab_add(vocab, "[PAD260]", DSE_TOKEN_UNUSED);
    tiny_vocab_add(vocab, "he", DSE_TOKEN_NORMAL);
    tiny_vocab_add(vocab, "hel", DSE_TOKEN_NORMAL);
    tiny_vocab_add(vocab, "lo", DSE_TOKEN_NORMAL);
    tiny_vocab_add(vocab, "hello", DSE_TOKEN_NORMAL);
    tiny_vocab_add(vocab,
                   "\xC4\xA0"
                   "a",
                   DSE_TOKEN_NORMAL);
    tiny_vocab_merge(vocab, "h", "e");
    tiny_vocab_merge(vocab, "l", "o");
    tiny_vocab_merge(vocab, "he", "l");
    tiny_vocab_merge(vocab, "hel", "lo");
    tiny_vocab_merge(vocab, "\xC4\xA0", "a");
}

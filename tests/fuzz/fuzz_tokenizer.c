/* Tokenizer under arbitrary input. The first byte chooses: text to encode and decode again with a small vocabulary under
 * one of the pre-tokenizers, or a tokenizer.json to read (and use, should it be accepted). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/utf8.h"
#include "model/tokenizer_source.h"
#include "text/tokenizer.h"

static const char *const pres[] = {"deepseek-v3", "qwen2", "llama-bpe", "deepseek-llm", "deepseek-coder", "smollm"};
#define N_PRES (sizeof pres / sizeof pres[0])

/* All 256 bytes, some words, and added tokens; every text can be spelled, so a round trip must give it back. */
static struct dse_tokenizer *small_tokenizer(const char *pre)
{
    static const struct {
        const char *text;
        uint8_t kind;
    } more[] = {{"he", DSE_TOKEN_NORMAL},   {"ll", DSE_TOKEN_NORMAL},   {"hell", DSE_TOKEN_NORMAL},
                {"aa", DSE_TOKEN_NORMAL},   {"aaaa", DSE_TOKEN_NORMAL}, {"\xC4\xA0\xC4\xA0", DSE_TOKEN_NORMAL},
                {"<a>", DSE_TOKEN_CONTROL}, {"<a><b>", DSE_TOKEN_USER}};
    static const char *const merges[] = {"h", "e", "l", "l", "he", "ll", "a", "a", "aa", "aa", "\xC4\xA0", "\xC4\xA0"};
    enum { N_MORE = sizeof more / sizeof more[0], N_SIDES = sizeof merges / sizeof merges[0] };
    char spelling[256][4];
    struct dse_slice tokens[256 + N_MORE], sides[N_SIDES];
    uint8_t kinds[256 + N_MORE] = {0};
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool is_itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        tokens[b] = (struct dse_slice){spelling[b], dse_utf8_encode(is_itself ? b : next++, spelling[b])};
    }
    for (size_t i = 0; i < N_MORE; i++) {
        tokens[256 + i] = (struct dse_slice){more[i].text, strlen(more[i].text)};
        kinds[256 + i] = more[i].kind;
    }
    for (size_t i = 0; i < N_SIDES; i++)
        sides[i] = (struct dse_slice){merges[i], strlen(merges[i])};
    struct dse_tokenizer_def def = {.pre = pre,
                                    .n_tokens = 256 + N_MORE,
                                    .tokens = tokens,
                                    .kinds = kinds,
                                    .n_merges = N_SIDES / 2,
                                    .merges = sides,
                                    .bos = -1,
                                    .eos = -1,
                                    .eot = -1,
                                    .pad = -1};
    struct dse_tokenizer *tokenizer = NULL;
    if (dse_tokenizer_create(&def, &tokenizer, NULL) != DSE_OK) abort();
    return tokenizer;
}

/* exact: the tokenizer changes no text. */
static void round_trip(const struct dse_tokenizer *tokenizer, const char *text, size_t bytes, unsigned flags,
                       bool exact)
{
    struct dse_tokens tokens = {0};
    enum dse_status status = dse_tokenizer_encode(tokenizer, text, bytes, flags, &tokens, NULL);
    if (exact && (status == DSE_OK) != (bytes == 0 || dse_utf8_valid(text, bytes))) abort();
    char *back = NULL;
    size_t back_bytes = 0;
    if (status == DSE_OK) {
        if (dse_tokenizer_decode(tokenizer, tokens.ids, tokens.count, false, &back, &back_bytes, NULL) != DSE_OK)
            abort();
        if (exact && (back_bytes != bytes || memcmp(back, text, bytes) != 0)) abort();
    }
    dse_free(back);
    dse_tokens_deinit(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dse_tokenizer *tokenizers[N_PRES];
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size--;
    if (data[0] == '{') { /* the whole input is JSON, so that seeds are plain files */
        json_t *root = NULL;
        if (dse_json_parse((const char *)data, size + 1, "input", &root, NULL) != DSE_OK) return 0;
        struct dse_model_file file = {.tokenizer_json = root, .tokenizer_config = json_object_get(root, "config")};
        struct dse_tokenizer *tokenizer = NULL;
        struct dse_error err;
        if (dse_tokenizer_from_model(&file, &tokenizer, &err) == DSE_OK) {
            round_trip(tokenizer, "hello <a> \xC3\xBC 12", 14, DSE_ENCODE_PARSE_SPECIAL | DSE_ENCODE_ADD_BOS, false);
            dse_tokenizer_free(tokenizer);
        }
        json_decref(root);
        return 0;
    }
    size_t which = (size_t)data[0] / 2 % N_PRES;
    if (!tokenizers[which]) tokenizers[which] = small_tokenizer(pres[which]);
    round_trip(tokenizers[which], text, size, data[0] & 1 ? DSE_ENCODE_PARSE_SPECIAL : 0, true);
    return 0;
}

/* Grammars from requests: the input is a grammar, a zero byte, and tokens. The grammar is compiled; then each input byte
 * picks a token, and what the mask says about it must be what acceptance says. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_internal.h"

enum { N_TEXTS = 256 + 8, STOP = N_TEXTS, N_TOKENS, N_MASK = (N_TOKENS + 63) / 64, MAX_STEPS = 64 };

static const struct dse_token_trie *tiny_trie(void)
{
    static const char *const words[] = {"ab", "abc", "true", "\"}", "[[", "\xE6\xB8\xA9", "\xF0\x9F", "  "};
    static struct dse_token_trie *trie;
    static char bytes[256];
    struct dse_slice texts[N_TOKENS];
    uint8_t uses[N_TOKENS] = {[STOP] = GRAMMAR_TOKEN_STOP};
    if (trie) return trie;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct dse_slice){&bytes[i], 1};
    }
    for (int i = 0; i < 8; i++)
        texts[256 + i] = (struct dse_slice){words[i], strlen(words[i])};
    texts[STOP] = (struct dse_slice){"", 0};
    if (dse_token_trie_create_from(texts, uses, N_TOKENS, &trie, NULL) != DSE_OK) abort();
    return trie;
}

static void walk(struct dse_grammar_state *state, const uint8_t *data, size_t size)
{
    uint64_t mask[N_MASK];
    for (size_t i = 0; i < size && i < MAX_STEPS; i++) {
        dse_grammar_mask(state, mask);
        /* An allowed token near the byte if there is one, so that the walk goes on; sometimes the byte itself. */
        int32_t token = data[i];
        if (i % 8 != 7)
            for (int n = 0; n < N_TOKENS; n++) {
                int32_t next = (data[i] + n) % N_TOKENS;
                if (!(mask[next / 64] >> (next % 64) & 1)) continue;
                token = next;
                break;
            }
        bool allowed = mask[token / 64] >> (token % 64) & 1;
        bool may_end = dse_grammar_may_end(state);
        if (may_end != (mask[STOP / 64] >> (STOP % 64) & 1)) abort();
        if (dse_grammar_must_end(state) && !may_end) abort();
        bool accepted = dse_grammar_accept(state, token);
        /* The mask of a hostile grammar stops at a limit of work, so it may allow less, never more. */
        if (allowed && !accepted) abort();
        if (!accepted) return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n_source = end ? (size_t)(end - data) : size;
    struct dse_grammar *grammar = NULL;
    struct dse_grammar_state *state = NULL;
    struct dse_error err;
    if (dse_grammar_compile((const char *)data, n_source, &grammar, &err) != DSE_OK) {
        if (err.message[0] == 0 || grammar) abort();
        return 0;
    }
    if (dse_grammar_state_create(grammar, tiny_trie(), &state, &err) == DSE_OK && end)
        walk(state, end + 1, size - n_source - 1);
    dse_grammar_state_free(state);
    dse_grammar_unref(grammar);
    return 0;
}

/* Token texts as a trie in preorder: a walk is one pass over an array, and a subtree is skipped by one assignment.
 * Built once per model; immutable; read by grammar.c.
 */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

struct trie_item {
    const uint8_t *text;
    uint32_t bytes, token;
};

static int compare_items(const void *a, const void *b)
{
    const struct trie_item *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token; /* ids differ */
}

/* How many leading bytes of an item reuse the open nodes of the item before it. Of two equal texts the second gets a
 * leaf of its own beside the first. */
static uint32_t shared_prefix(const struct trie_item *previous, const struct trie_item *item)
{
    uint32_t n = 0, limit = previous->bytes < item->bytes ? previous->bytes : item->bytes;
    while (n < limit && previous->text[n] == item->text[n])
        n++;
    return n == item->bytes ? n - 1 : n;
}

static enum dse_status build_nodes(struct dse_token_trie *trie, const struct trie_item *items, size_t n_items,
                                   struct dse_error *err)
{
    size_t n_nodes = 0;
    for (size_t i = 0; i < n_items; i++)
        n_nodes += items[i].bytes - (i ? shared_prefix(&items[i - 1], &items[i]) : 0);
    if (n_nodes >= UINT32_MAX) return dse_fail(err, DSE_ERR_LIMIT, "token texts need %zu trie nodes", n_nodes);
    trie->nodes = dse_alloc(DSE_MEM_TEXT, n_nodes * sizeof *trie->nodes);
    uint32_t *open = dse_alloc(DSE_MEM_TEXT, DSE_GRAMMAR_MAX_TOKEN_BYTES * sizeof *open); /* node at each depth */
    if (!trie->nodes || !open) {
        dse_free(open);
        return dse_fail_memory(err, n_nodes * sizeof *trie->nodes, "the token trie");
    }
    uint32_t depth = 0;
    for (size_t i = 0; i < n_items; i++) {
        uint32_t shared = i ? shared_prefix(&items[i - 1], &items[i]) : 0;
        while (depth > shared)
            trie->nodes[open[--depth]].skip = trie->n_nodes;
        for (; depth < items[i].bytes; depth++) {
            open[depth] = trie->n_nodes;
            trie->nodes[trie->n_nodes++] = (struct trie_node){
                .token = (uint32_t)(trie->n_words * 64), .depth = (uint16_t)depth, .byte = items[i].text[depth]};
        }
        trie->nodes[trie->n_nodes - 1].token = items[i].token;
        if (depth > trie->max_depth) trie->max_depth = depth;
    }
    while (depth > 0)
        trie->nodes[open[--depth]].skip = trie->n_nodes;
    dse_free(open);
    return DSE_OK;
}

/* Bytes that a grammar must match for the token, 0: it never can. */
static size_t matched_bytes(const struct dse_slice *text, uint8_t use)
{
    bool usable = text->bytes > 0 && text->bytes < DSE_GRAMMAR_MAX_TOKEN_BYTES;
    if (usable && use == GRAMMAR_TOKEN_CONTROL) return text->bytes + 1;
    return usable && use == GRAMMAR_TOKEN_TEXT && !memchr(text->data, GRAMMAR_CONTROL_BYTE, text->bytes) ? text->bytes
                                                                                                         : 0;
}

static enum dse_status fill_trie(struct dse_token_trie *trie, const struct dse_slice *texts, const uint8_t *uses,
                                 struct dse_error *err)
{
    size_t n = trie->n_tokens, total = 0, n_items = 0;
    for (size_t i = 0; i < n; i++)
        total += matched_bytes(&texts[i], uses[i]);
    if (total >= UINT32_MAX) return dse_fail(err, DSE_ERR_LIMIT, "token texts are %zu bytes", total);
    trie->stops = dse_calloc(DSE_MEM_TEXT, trie->n_words, sizeof *trie->stops);
    trie->offsets = dse_alloc(DSE_MEM_TEXT, (n + 1) * sizeof *trie->offsets);
    trie->texts = dse_alloc(DSE_MEM_TEXT, total);
    struct trie_item *items = dse_calloc(DSE_MEM_TEXT, n, sizeof *items);
    if (!trie->stops || !trie->offsets || !trie->texts || !items) {
        dse_free(items);
        return dse_fail_memory(err, total + n * sizeof *items, "the token trie");
    }
    uint32_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        trie->offsets[i] = offset;
        if (uses[i] == GRAMMAR_TOKEN_STOP) trie->stops[i / 64] |= 1ull << (i % 64);
        size_t bytes = matched_bytes(&texts[i], uses[i]);
        if (bytes == 0) continue;
        trie->texts[offset] = GRAMMAR_CONTROL_BYTE; /* stays in front of a control token */
        memcpy(trie->texts + offset + bytes - texts[i].bytes, texts[i].data, texts[i].bytes);
        items[n_items++] = (struct trie_item){trie->texts + offset, (uint32_t)bytes, (uint32_t)i};
        offset += (uint32_t)bytes;
    }
    trie->offsets[n] = offset;
    if (n_items) qsort(items, n_items, sizeof *items, compare_items);
    enum dse_status status = build_nodes(trie, items, n_items, err);
    dse_free(items);
    return status;
}

enum dse_status dse_token_trie_create_from(const struct dse_slice *texts, const uint8_t *uses, size_t n_tokens,
                                           struct dse_token_trie **out, struct dse_error *err)
{
    *out = NULL;
    if (n_tokens >= INT32_MAX) return dse_fail(err, DSE_ERR_LIMIT, "%zu tokens", n_tokens);
    struct dse_token_trie *trie = dse_calloc(DSE_MEM_TEXT, 1, sizeof *trie);
    if (!trie) return dse_fail_memory(err, sizeof *trie, "the token trie");
    static atomic_uint_fast64_t next_id = 1;
    trie->id = atomic_fetch_add(&next_id, 1);
    trie->n_tokens = n_tokens;
    trie->n_words = (n_tokens + 63) / 64;
    enum dse_status status = fill_trie(trie, texts, uses, err);
    if (status != DSE_OK) {
        dse_token_trie_free(trie);
        return status;
    }
    *out = trie;
    return DSE_OK;
}

enum dse_status dse_token_trie_create(const struct dse_tokenizer *tokenizer, const int32_t *stops, int n_stops,
                                      struct dse_token_trie **out, struct dse_error *err)
{
    *out = NULL;
    size_t n = dse_tokenizer_count(tokenizer);
    struct dse_slice *texts = dse_calloc(DSE_MEM_TEXT, n, sizeof *texts);
    uint8_t *uses = dse_calloc(DSE_MEM_TEXT, n, sizeof *uses);
    enum dse_status status;
    if (!texts || !uses) {
        status = dse_fail_memory(err, n * sizeof *texts, "the token trie");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = (int32_t)i;
        enum dse_token_kind kind = dse_tokenizer_kind(tokenizer, id);
        texts[i] = dse_tokenizer_bytes(tokenizer, id);
        uses[i] = kind == DSE_TOKEN_UNUSED ? GRAMMAR_TOKEN_NEVER : GRAMMAR_TOKEN_TEXT;
        if (kind == DSE_TOKEN_CONTROL) uses[i] = GRAMMAR_TOKEN_CONTROL;
    }
    for (int i = 0; i < n_stops; i++)
        if (stops[i] >= 0 && (size_t)stops[i] < n) uses[stops[i]] = GRAMMAR_TOKEN_STOP;
    status = dse_token_trie_create_from(texts, uses, n, out, err);
done:
    dse_free(texts);
    dse_free(uses);
    return status;
}

void dse_token_trie_free(struct dse_token_trie *trie)
{
    if (!trie) return;
    dse_free(trie->nodes);
    dse_free(trie->stops);
    dse_free(trie->offsets);
    dse_free(trie->texts);
    dse_free(trie);
}

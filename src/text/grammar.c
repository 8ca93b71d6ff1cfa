/* The grammar of one sequence: which tokens may come next, and moving on. Called by the engine between the forward pass
 * and the sampler; never allocates after the state was created.
 */
#include "text/grammar_internal.h"

#include <string.h>

struct mask_slot {
    uint32_t config; /* 0: unused */
    uint64_t last_use;
};

struct dse_grammar_state {
    struct dse_grammar *grammar;
    const struct dse_token_trie *trie;
    struct grammar_matcher matcher;
    uint32_t config;
    bool ended;     /* a stop token was accepted */
    uint32_t *path; /* [trie->max_depth + 1] configurations on the way down */
    struct mask_slot *slots;
    uint64_t *masks; /* [n_slots][n_words + 1]: the last word takes the bits of inner nodes */
    uint32_t n_slots;
    uint64_t clock;
};

enum dse_status dse_grammar_state_create(struct dse_grammar *grammar, const struct dse_token_trie *trie,
                                         struct dse_grammar_state **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_grammar_state *state = dse_calloc(DSE_MEM_TEXT, 1, sizeof *state);
    if (!state) return dse_fail_memory(err, sizeof *state, "a grammar state");
    state->grammar = dse_grammar_ref(grammar);
    state->trie = trie;
    size_t mask_bytes = (trie->n_words + 1) * sizeof *state->masks;
    size_t n_slots = DSE_GRAMMAR_MASK_CACHE_BYTES / mask_bytes;
    state->n_slots = n_slots < 1 ? 1 : n_slots > 64 ? 64 : (uint32_t)n_slots;
    enum dse_status status = dse_grammar_matcher_init(&state->matcher, grammar, err);
    if (status != DSE_OK) goto fail;
    state->path = dse_alloc(DSE_MEM_TEXT, (trie->max_depth + 1) * sizeof *state->path);
    state->slots = dse_calloc(DSE_MEM_TEXT, state->n_slots, sizeof *state->slots);
    state->masks = dse_alloc(DSE_MEM_TEXT, state->n_slots * mask_bytes);
    if (!state->path || !state->slots || !state->masks) {
        status = dse_fail_memory(err, state->n_slots * mask_bytes, "a grammar state");
        goto fail;
    }
    state->config = dse_grammar_matcher_start(&state->matcher);
    *out = state;
    return DSE_OK;
fail:
    dse_grammar_state_free(state);
    return status;
}

void dse_grammar_state_free(struct dse_grammar_state *state)
{
    if (!state) return;
    dse_grammar_matcher_deinit(&state->matcher);
    dse_grammar_unref(state->grammar);
    dse_free(state->path);
    dse_free(state->slots);
    dse_free(state->masks);
    dse_free(state);
}

static void flush(struct dse_grammar_state *state)
{
    state->config = dse_grammar_matcher_flush(&state->matcher, state->config);
    memset(state->slots, 0, state->n_slots * sizeof *state->slots);
}

/* Walks the trie. False if the matcher ran out of room and it is not the last try; on the last try whatever does not
 * fit is not allowed. */
static bool walk(struct dse_grammar_state *state, uint64_t *mask, bool last_try)
{
    struct grammar_matcher *m = &state->matcher;
    const struct dse_token_trie *trie = state->trie;
    const struct trie_node *nodes = trie->nodes;
    const uint8_t *class_of_byte = state->grammar->class_of_byte;
    uint32_t n_classes = state->grammar->n_classes, *path = state->path;
    uint64_t work_limit = m->work_done + DSE_GRAMMAR_MAX_MASK_WORK;
    memset(mask, 0, (trie->n_words + 1) * sizeof *mask);
    path[0] = state->config;
    for (uint32_t i = 0; i < trie->n_nodes;) {
        const struct trie_node *node = &nodes[i];
        uint32_t from = path[node->depth], byte_class = class_of_byte[node->byte];
        uint32_t to = m->rows[from * n_classes + byte_class];
        if (to == 0) {
            to = m->work_done > work_limit ? GRAMMAR_DEAD : dse_grammar_matcher_step(m, from, byte_class);
            if (to == GRAMMAR_FULL && !last_try) return false;
            if (to == GRAMMAR_FULL) to = GRAMMAR_DEAD;
        }
        if (to == GRAMMAR_DEAD) {
            i = node->skip;
            continue;
        }
        path[node->depth + 1] = to;
        mask[node->token / 64] |= 1ull << (node->token % 64); /* inner nodes: the spare word */
        i++;
    }
    return true;
}

static struct mask_slot *oldest_slot(struct dse_grammar_state *state)
{
    struct mask_slot *oldest = &state->slots[0];
    for (uint32_t i = 1; i < state->n_slots; i++)
        if (state->slots[i].last_use < oldest->last_use) oldest = &state->slots[i];
    return oldest;
}

static const uint64_t *find_mask(struct dse_grammar_state *state)
{
    struct grammar_matcher *m = &state->matcher;
    size_t stride = state->trie->n_words + 1;
    uint32_t known = m->configs[state->config].mask_slot;
    state->clock++;
    if (known) {
        state->slots[known - 1].last_use = state->clock;
        return state->masks + (known - 1) * stride;
    }
    struct mask_slot *slot = oldest_slot(state);
    if (slot->config) m->configs[slot->config].mask_slot = 0;
    slot->config = 0;
    uint32_t number = (uint32_t)(slot - state->slots);
    uint64_t *mask = state->masks + number * stride;
    if (!walk(state, mask, false)) {
        flush(state);
        walk(state, mask, true);
    }
    *slot = (struct mask_slot){state->config, state->clock};
    m->configs[state->config].mask_slot = number + 1;
    return mask;
}

void dse_grammar_mask(struct dse_grammar_state *state, uint64_t *mask)
{
    const struct dse_token_trie *trie = state->trie;
    if (state->config == GRAMMAR_DEAD || state->ended)
        memset(mask, 0, trie->n_words * sizeof *mask);
    else
        memcpy(mask, find_mask(state), trie->n_words * sizeof *mask);
    if (!dse_grammar_may_end(state)) return;
    for (size_t i = 0; i < trie->n_words; i++)
        mask[i] |= trie->stops[i];
}

bool dse_grammar_accept_bytes(struct dse_grammar_state *state, const char *text, size_t bytes)
{
    if (state->ended && bytes > 0) state->config = GRAMMAR_DEAD;
    for (size_t i = 0; i < bytes && state->config != GRAMMAR_DEAD; i++) {
        uint32_t byte_class = state->grammar->class_of_byte[(uint8_t)text[i]];
        uint32_t to = dse_grammar_matcher_step(&state->matcher, state->config, byte_class);
        if (to == GRAMMAR_FULL) {
            flush(state);
            to = dse_grammar_matcher_step(&state->matcher, state->config, byte_class);
        }
        state->config = to == GRAMMAR_FULL ? GRAMMAR_DEAD : to;
    }
    return state->config != GRAMMAR_DEAD;
}

bool dse_grammar_accept(struct dse_grammar_state *state, int32_t token)
{
    const struct dse_token_trie *trie = state->trie;
    if (token < 0 || (size_t)token >= trie->n_tokens) {
        state->config = GRAMMAR_DEAD;
        return false;
    }
    if (trie->stops[token / 64] >> (token % 64) & 1) {
        state->ended = dse_grammar_may_end(state);
        if (!state->ended) state->config = GRAMMAR_DEAD;
        return state->ended;
    }
    uint32_t bytes = trie->offsets[token + 1] - trie->offsets[token];
    if (bytes == 0) { /* control tokens and the like */
        state->config = GRAMMAR_DEAD;
        return false;
    }
    return dse_grammar_accept_bytes(state, (const char *)trie->texts + trie->offsets[token], bytes);
}

bool dse_grammar_may_end(const struct dse_grammar_state *state)
{
    return state->config != GRAMMAR_DEAD && (state->ended || grammar_config_may_end(&state->matcher, state->config));
}

bool dse_grammar_must_end(const struct dse_grammar_state *state)
{
    return dse_grammar_may_end(state) && (state->ended || state->matcher.configs[state->config].count == 1);
}

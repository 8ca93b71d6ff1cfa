/* The grammar of one sequence: which tokens may come next, and moving on. Called by the engine between the forward pass
 * and the sampler; never allocates after the state was created.
 */
#include "text/grammar_internal.h"

#include <string.h>

struct dse_grammar_state {
    struct dse_grammar *grammar;
    const struct dse_token_trie *trie;
    struct grammar_matcher matcher;
    uint32_t config;
    bool ended;                  /* a stop token was accepted */
    uint32_t *path;              /* [trie->max_depth + 1] configurations on the way down */
    uint64_t *walked;            /* [n_words + 1] of a walk: the last word takes the bits of inner nodes */
    struct grammar_masks *masks; /* the grammar's; NULL: none for this trie */
};

/* The first sequence makes the grammar's masks. Without memory for them every mask is worked out. */
static struct grammar_masks *shared_masks(struct dse_grammar *grammar, const struct dse_token_trie *trie)
{
    pthread_mutex_lock(&grammar->lock);
    if (!grammar->masks) grammar->masks = dse_grammar_masks_create(trie);
    struct grammar_masks *masks = grammar->masks;
    pthread_mutex_unlock(&grammar->lock);
    return masks && dse_grammar_masks_fit(masks, trie) ? masks : NULL;
}

enum dse_status dse_grammar_state_create(struct dse_grammar *grammar, const struct dse_token_trie *trie,
                                         struct dse_grammar_state **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_grammar_state *state = dse_calloc(DSE_MEM_TEXT, 1, sizeof *state);
    if (!state) return dse_fail_memory(err, sizeof *state, "a grammar state");
    state->grammar = dse_grammar_ref(grammar);
    state->trie = trie;
    size_t mask_bytes = (trie->n_words + 1) * sizeof *state->walked;
    enum dse_status status = dse_grammar_matcher_init(&state->matcher, grammar, err);
    if (status != DSE_OK) goto fail;
    state->path = dse_alloc(DSE_MEM_TEXT, (trie->max_depth + 1) * sizeof *state->path);
    state->walked = dse_alloc(DSE_MEM_TEXT, mask_bytes);
    if (!state->path || !state->walked) {
        status = dse_fail_memory(err, mask_bytes, "a grammar state");
        goto fail;
    }
    state->masks = shared_masks(grammar, trie);
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
    dse_free(state->walked);
    dse_free(state);
}

static void flush(struct dse_grammar_state *state)
{
    state->config = dse_grammar_matcher_flush(&state->matcher, state->config);
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

static void fill_mask(struct dse_grammar_state *state, uint64_t *mask)
{
    uint64_t hash[2];
    dse_grammar_matcher_hash(&state->matcher, state->config, hash);
    if (state->masks && dse_grammar_masks_find(state->masks, hash, mask)) return;
    if (!walk(state, state->walked, false)) {
        flush(state);
        walk(state, state->walked, true);
    }
    memcpy(mask, state->walked, state->trie->n_words * sizeof *mask);
    if (state->masks) dse_grammar_masks_put(state->masks, hash, mask);
}

void dse_grammar_mask(struct dse_grammar_state *state, uint64_t *mask)
{
    const struct dse_token_trie *trie = state->trie;
    if (state->config == GRAMMAR_DEAD || state->ended)
        memset(mask, 0, trie->n_words * sizeof *mask);
    else
        fill_mask(state, mask);
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

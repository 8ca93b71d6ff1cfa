/* Token masks of one grammar, shared by all its sequences. Called by grammar.c.
 *
 * A configuration is known by a hash of its stacks' contents, so a state that comes again is found again: later in the
 * same answer, in another choice, in another request. 128 bits with a seed of this process; who could make two of them
 * meet would spoil answers under their own grammar only.
 */
#include "text/grammar_internal.h"

#include <string.h>

struct slot {
    uint64_t hash[2], last_use; /* last_use 0: empty */
};

struct grammar_masks {
    pthread_mutex_t lock;
    uint64_t trie_id;
    size_t n_words;
    uint32_t n_slots;
    uint64_t clock;
    struct slot *slots;
    uint64_t *masks; /* [n_slots][n_words] */
};

struct grammar_masks *dse_grammar_masks_create(const struct dse_token_trie *trie)
{
    size_t mask_bytes = (trie->n_words + 1) * sizeof(uint64_t);
    size_t n_slots = DSE_GRAMMAR_MASK_CACHE_BYTES / mask_bytes;
    if (n_slots < 1) n_slots = 1;
    if (n_slots > DSE_GRAMMAR_MAX_MASKS) n_slots = DSE_GRAMMAR_MAX_MASKS;
    struct grammar_masks *masks = dse_calloc(DSE_MEM_TEXT, 1, sizeof *masks);
    if (!masks) return NULL;
    masks->trie_id = trie->id;
    masks->n_words = trie->n_words;
    masks->n_slots = (uint32_t)n_slots;
    masks->slots = dse_calloc(DSE_MEM_TEXT, n_slots, sizeof *masks->slots);
    masks->masks = dse_alloc(DSE_MEM_TEXT, n_slots * mask_bytes);
    pthread_mutex_init(&masks->lock, NULL);
    if (masks->slots && masks->masks) return masks;
    dse_grammar_masks_free(masks);
    return NULL;
}

void dse_grammar_masks_free(struct grammar_masks *masks)
{
    if (!masks) return;
    pthread_mutex_destroy(&masks->lock);
    dse_free(masks->slots);
    dse_free(masks->masks);
    dse_free(masks);
}

bool dse_grammar_masks_fit(const struct grammar_masks *masks, const struct dse_token_trie *trie)
{
    return masks->trie_id == trie->id;
}

bool dse_grammar_masks_find(struct grammar_masks *m, const uint64_t hash[2], uint64_t *mask)
{
    bool found = false;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_slots && !found; i++) {
        struct slot *slot = &m->slots[i];
        found = slot->last_use && slot->hash[0] == hash[0] && slot->hash[1] == hash[1];
        if (!found) continue;
        slot->last_use = ++m->clock;
        memcpy(mask, m->masks + i * m->n_words, m->n_words * sizeof *mask);
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}

void dse_grammar_masks_put(struct grammar_masks *m, const uint64_t hash[2], const uint64_t *mask)
{
    pthread_mutex_lock(&m->lock);
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < m->n_slots && m->slots[oldest].last_use; i++)
        if (m->slots[i].last_use < m->slots[oldest].last_use) oldest = i;
    m->slots[oldest] = (struct slot){{hash[0], hash[1]}, ++m->clock};
    memcpy(m->masks + oldest * m->n_words, mask, m->n_words * sizeof *mask);
    pthread_mutex_unlock(&m->lock);
}

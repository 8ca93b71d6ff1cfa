/* Compiled grammars by their source (see grammar_cache.h). */
#include "text/grammar_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/random.h"
#include "text/grammar_internal.h"

struct entry {
    struct dse_grammar *grammar; /* NULL: free */
    char *source;
    size_t bytes, cost;
    uint64_t hash, last_use;
};

struct dse_grammar_cache {
    pthread_mutex_t lock;
    struct entry entries[DSE_GRAMMAR_CACHE_ENTRIES];
    size_t used_bytes;
    uint64_t clock, seed;
};

enum dse_status dse_grammar_cache_create(struct dse_grammar_cache **out, struct dse_error *err)
{
    *out = dse_calloc(DSE_MEM_TEXT, 1, sizeof **out);
    if (!*out) return dse_fail_memory(err, sizeof **out, "the grammar cache");
    pthread_mutex_init(&(*out)->lock, NULL);
    dse_random_bytes(&(*out)->seed, sizeof(*out)->seed);
    return DSE_OK;
}

static void drop(struct dse_grammar_cache *cache, struct entry *entry)
{
    cache->used_bytes -= entry->cost;
    dse_grammar_unref(entry->grammar);
    dse_free(entry->source);
    *entry = (struct entry){.grammar = NULL};
}

void dse_grammar_cache_free(struct dse_grammar_cache *cache)
{
    if (!cache) return;
    for (size_t i = 0; i < DSE_GRAMMAR_CACHE_ENTRIES; i++)
        if (cache->entries[i].grammar) drop(cache, &cache->entries[i]);
    pthread_mutex_destroy(&cache->lock);
    dse_free(cache);
}

/* Only spares comparisons: sources are compared. */
static uint64_t hash_source(const struct dse_grammar_cache *cache, const char *source, size_t bytes)
{
    uint64_t hash = cache->seed ^ bytes;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)source[i]) * 0x100000001b3u;
    return hash;
}

static struct entry *find(struct dse_grammar_cache *cache, uint64_t hash, const char *source, size_t bytes)
{
    for (size_t i = 0; i < DSE_GRAMMAR_CACHE_ENTRIES; i++) {
        struct entry *e = &cache->entries[i];
        if (e->grammar && e->hash == hash && e->bytes == bytes && memcmp(e->source, source, bytes) == 0) return e;
    }
    return NULL;
}

struct dse_grammar *dse_grammar_cache_find(struct dse_grammar_cache *cache, const char *source, size_t bytes)
{
    uint64_t hash = hash_source(cache, source, bytes);
    pthread_mutex_lock(&cache->lock);
    struct entry *e = find(cache, hash, source, bytes);
    struct dse_grammar *grammar = e ? dse_grammar_ref(e->grammar) : NULL;
    if (e) e->last_use = ++cache->clock;
    pthread_mutex_unlock(&cache->lock);
    return grammar;
}

static struct entry *oldest(struct dse_grammar_cache *cache)
{
    struct entry *found = NULL;
    for (size_t i = 0; i < DSE_GRAMMAR_CACHE_ENTRIES; i++) {
        struct entry *e = &cache->entries[i];
        if (e->grammar && (!found || e->last_use < found->last_use)) found = e;
    }
    return found;
}

static struct entry *free_entry(struct dse_grammar_cache *cache)
{
    for (size_t i = 0; i < DSE_GRAMMAR_CACHE_ENTRIES; i++)
        if (!cache->entries[i].grammar) return &cache->entries[i];
    return NULL;
}

void dse_grammar_cache_put(struct dse_grammar_cache *cache, const char *source, size_t bytes,
                           struct dse_grammar *grammar)
{
    /* Masks are taken when the first sequence comes, so they count from the beginning. */
    size_t cost = bytes + grammar->n_nodes * sizeof *grammar->nodes + DSE_GRAMMAR_MASK_CACHE_BYTES;
    if (cost > DSE_GRAMMAR_CACHE_BYTES / 2) return;
    char *copy = dse_strndup(DSE_MEM_TEXT, source, bytes);
    if (!copy) return;
    uint64_t hash = hash_source(cache, source, bytes);
    pthread_mutex_lock(&cache->lock);
    struct entry *e = find(cache, hash, source, bytes);
    while (!e && (cache->used_bytes + cost > DSE_GRAMMAR_CACHE_BYTES || !free_entry(cache)))
        drop(cache, oldest(cache));
    if (!e) {
        e = free_entry(cache);
        *e = (struct entry){dse_grammar_ref(grammar), copy, bytes, cost, hash, ++cache->clock};
        cache->used_bytes += cost;
        copy = NULL;
    }
    pthread_mutex_unlock(&cache->lock);
    dse_free(copy);
}

size_t dse_grammar_cache_count(struct dse_grammar_cache *cache)
{
    size_t n = 0;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < DSE_GRAMMAR_CACHE_ENTRIES; i++)
        n += cache->entries[i].grammar != NULL;
    pthread_mutex_unlock(&cache->lock);
    return n;
}

/* The index over blocks of the KV pool. Called by kv_pool.c only; knows tokens, not tensors. */
#include "engine/prefix_cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "base/random.h"
#include "device/pack_hash.h"

static uint64_t hash_block(const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    uint64_t hash = chain->hash;
    if (chain->n_blocks == 0) hash = pack_hash_step(hash, pack_hash(&chain->scope, sizeof chain->scope));
    for (int i = 0; i < DSE_KV_BLOCK_TOKENS; i += 2)
        hash = pack_hash_step(hash, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]);
    return hash;
}

enum dse_status dse_prefix_init(struct dse_prefix_cache *cache, int n_blocks, int max_parked, struct dse_error *err)
{
    *cache = (struct dse_prefix_cache){
        .n_blocks = n_blocks, .max_parked = max_parked, .oldest = -1, .newest = -1, .unsaved = -1};
    cache->hash = hash_block;
    cache->n_buckets = 64;
    while (cache->n_buckets < (uint32_t)n_blocks * 2)
        cache->n_buckets *= 2;
    cache->entries = dse_calloc(DSE_MEM_KV, (size_t)n_blocks, sizeof *cache->entries);
    cache->buckets = dse_calloc(DSE_MEM_KV, cache->n_buckets, sizeof *cache->buckets);
    if (cache->entries == NULL || cache->buckets == NULL) {
        dse_prefix_deinit(cache);
        return dse_fail_memory(err, (size_t)n_blocks * sizeof *cache->entries, "the prefix cache");
    }
    memset(cache->buckets, -1, cache->n_buckets * sizeof *cache->buckets);
    dse_random_bytes(&cache->epoch, sizeof cache->epoch);
    dse_random_bytes(&cache->bucket_seed, sizeof cache->bucket_seed);
    cache->epoch |= 1; /* never 0 */
    return DSE_OK;
}

void dse_prefix_deinit(struct dse_prefix_cache *cache)
{
    dse_free(cache->entries);
    dse_free(cache->buckets);
    *cache = (struct dse_prefix_cache){0};
}

void dse_prefix_chain_restart(struct dse_prefix_chain *chain)
{
    *chain = (struct dse_prefix_chain){.scope = chain->scope};
}

/* Mixed with a secret: who can choose hashes cannot choose buckets. */
static int32_t *bucket_of(const struct dse_prefix_cache *cache, uint64_t hash)
{
    return &cache->buckets[pack_hash_step(cache->bucket_seed, hash) & (cache->n_buckets - 1)];
}

static int32_t find_hash(const struct dse_prefix_cache *cache, uint64_t hash)
{
    int32_t block = *bucket_of(cache, hash);
    while (block >= 0 && cache->entries[block].hash != hash)
        block = cache->entries[block].next;
    return block;
}

static bool continues(const struct dse_prefix_entry *entry, const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    return memcmp(&entry->scope, &chain->scope, sizeof chain->scope) == 0 && entry->parent.epoch == chain->last.epoch &&
           entry->parent.serial == chain->last.serial && memcmp(entry->tokens, tokens, sizeof entry->tokens) == 0;
}

int32_t dse_prefix_find(const struct dse_prefix_cache *cache, const struct dse_prefix_chain *chain,
                        const int32_t *tokens)
{
    if (chain->ended) return -1;
    int32_t block = find_hash(cache, cache->hash(chain, tokens));
    return block >= 0 && continues(&cache->entries[block], chain, tokens) ? block : -1;
}

void dse_prefix_advance(const struct dse_prefix_cache *cache, struct dse_prefix_chain *chain, int32_t block)
{
    chain->hash = cache->entries[block].hash;
    chain->last = cache->entries[block].id;
    chain->n_blocks++;
}

/* One more, or one less, continues what this entry continues; that is there as long as the entry is. */
static void count_child(struct dse_prefix_cache *cache, const struct dse_prefix_entry *entry, int32_t change)
{
    const int32_t parent = entry->depth > 0 ? find_hash(cache, entry->parent_hash) : -1;
    if (parent >= 0) cache->entries[parent].n_children += change;
}

int32_t dse_prefix_add(struct dse_prefix_cache *cache, const struct dse_prefix_chain *chain, const int32_t *tokens,
                       int32_t block, const struct dse_prefix_id *id)
{
    const uint64_t hash = cache->hash(chain, tokens);
    struct dse_prefix_entry *entry = &cache->entries[block];
    int32_t present = find_hash(cache, hash);
    if (present >= 0) return continues(&cache->entries[present], chain, tokens) ? present : -1;
    if (entry->filled) return -1; /* a block has one name */
    int32_t *bucket = bucket_of(cache, hash);
    *entry = (struct dse_prefix_entry){.scope = chain->scope,
                                       .hash = hash,
                                       .parent_hash = chain->hash,
                                       .depth = chain->n_blocks,
                                       .parent = chain->last,
                                       .next = *bucket,
                                       .older = -1,
                                       .newer = -1,
                                       .filled = true};
    entry->id = id != NULL ? *id : (struct dse_prefix_id){.epoch = cache->epoch, .serial = ++cache->serial};
    memcpy(entry->tokens, tokens, sizeof entry->tokens);
    *bucket = block;
    cache->n_filled++;
    count_child(cache, entry, 1);
    return block;
}

/* In front: what was parked last, and of a sequence its beginning, is written first. */
static void mark_unsaved(struct dse_prefix_cache *cache, int32_t block)
{
    struct dse_prefix_entry *entry = &cache->entries[block];
    if (entry->unsaved) dse_prefix_saved(cache, block);
    entry->unsaved = true;
    entry->before = -1;
    entry->after = cache->unsaved;
    if (cache->unsaved >= 0) cache->entries[cache->unsaved].before = block;
    cache->unsaved = block;
}

void dse_prefix_saved(struct dse_prefix_cache *cache, int32_t block)
{
    struct dse_prefix_entry *entry = &cache->entries[block];
    *(entry->before >= 0 ? &cache->entries[entry->before].after : &cache->unsaved) = entry->after;
    if (entry->after >= 0) cache->entries[entry->after].before = entry->before;
    entry->unsaved = false;
}

static void forget(struct dse_prefix_cache *cache, int32_t block)
{
    if (cache->entries[block].unsaved) dse_prefix_saved(cache, block);
    int32_t *link = bucket_of(cache, cache->entries[block].hash);
    while (*link != block)
        link = &cache->entries[*link].next;
    *link = cache->entries[block].next;
    cache->entries[block].filled = false;
    cache->n_filled--;
    count_child(cache, &cache->entries[block], -1);
}

int32_t dse_prefix_park(struct dse_prefix_cache *cache, int32_t block)
{
    struct dse_prefix_entry *entry = &cache->entries[block];
    entry->parked = true;
    entry->older = cache->newest;
    entry->newer = -1;
    *(cache->newest >= 0 ? &cache->entries[cache->newest].newer : &cache->oldest) = block;
    cache->newest = block;
    cache->n_parked++;
    if (cache->saving) mark_unsaved(cache, block);
    return cache->n_parked > cache->max_parked ? dse_prefix_evict(cache) : -1;
}

void dse_prefix_unpark(struct dse_prefix_cache *cache, int32_t block)
{
    struct dse_prefix_entry *entry = &cache->entries[block];
    *(entry->older >= 0 ? &cache->entries[entry->older].newer : &cache->oldest) = entry->newer;
    *(entry->newer >= 0 ? &cache->entries[entry->newer].older : &cache->newest) = entry->older;
    entry->parked = false;
    cache->n_parked--;
}

int32_t dse_prefix_evict(struct dse_prefix_cache *cache)
{
    int32_t block = cache->oldest;
    if (block < 0) return -1;
    dse_prefix_unpark(cache, block);
    forget(cache, block);
    dse_counter_add(DSE_COUNTER_PREFIX_EVICTIONS, 1);
    return block;
}

bool dse_prefix_forget(struct dse_prefix_cache *cache, int32_t block)
{
    const struct dse_prefix_entry *entry = &cache->entries[block];
    if (!entry->filled || !entry->parked || entry->n_children > 0) return false;
    dse_prefix_unpark(cache, block);
    forget(cache, block);
    return true;
}

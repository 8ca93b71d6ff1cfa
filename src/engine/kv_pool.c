/* Blocks of the KV cache: free list, reference counts, promises, and what goes in and out of the prefix cache. Called by scheduler, eval and bench on one thread. */
#include "engine/kv_pool.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

enum dse_status dse_kv_pool_init(struct dse_kv_pool *pool, const struct dse_kv_layout *layout, int n_blocks,
                                 struct dse_error *err)
{
    *pool = (struct dse_kv_pool){.layout = *layout};
    if (n_blocks < 1 || !dse_mul_size((size_t)n_blocks, layout->block_bytes, &pool->memory_bytes))
        return dse_fail(err, DSE_ERR_NO_MEMORY, "a KV pool of %d blocks is not possible", n_blocks);
    pool->memory = dse_alloc_pages(DSE_MEM_KV, pool->memory_bytes);
    pool->free_blocks = dse_calloc(DSE_MEM_KV, (size_t)n_blocks, sizeof *pool->free_blocks);
    pool->references = dse_calloc(DSE_MEM_KV, (size_t)n_blocks, sizeof *pool->references);
    if (pool->memory == NULL || pool->free_blocks == NULL || pool->references == NULL) {
        size_t bytes = pool->memory_bytes;
        dse_kv_pool_deinit(pool);
        return dse_fail_memory(err, bytes, "the KV pool");
    }
    pool->n_blocks = pool->n_free = n_blocks;
    /* Low blocks on top of the stack: a lightly used pool touches only its beginning. */
    for (int i = 0; i < n_blocks; i++)
        pool->free_blocks[i] = n_blocks - 1 - i;
    return DSE_OK;
}

enum dse_status dse_kv_pool_cache(struct dse_kv_pool *pool, int max_parked, struct dse_error *err)
{
    return dse_prefix_init(&pool->cache, pool->n_blocks, max_parked, err);
}

void dse_kv_pool_deinit(struct dse_kv_pool *pool)
{
    dse_prefix_deinit(&pool->cache);
    if (pool->memory != NULL) dse_free_pages(pool->memory);
    dse_free(pool->free_blocks);
    dse_free(pool->references);
    *pool = (struct dse_kv_pool){0};
}

int dse_kv_pool_used(const struct dse_kv_pool *pool)
{
    return pool->n_blocks - pool->n_free - pool->cache.n_parked;
}

int dse_kv_pool_available(const struct dse_kv_pool *pool)
{
    return pool->n_free + pool->cache.n_parked - pool->n_promised;
}

bool dse_kv_promise(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, int n_blocks)
{
    if (n_blocks > dse_kv_pool_available(pool)) return false;
    pool->n_promised += n_blocks;
    sequence->promised += n_blocks;
    return true;
}

/* The caller made sure that there is one. */
static int32_t unused_block(struct dse_kv_pool *pool)
{
    int32_t block = pool->n_free > 0 ? pool->free_blocks[--pool->n_free] : dse_prefix_evict(&pool->cache);
    pool->references[block] = 1;
    return block;
}

static bool take_block(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence)
{
    if (sequence->n_blocks == sequence->max_blocks) return false;
    if (sequence->promised > 0) {
        sequence->promised--;
        pool->n_promised--;
    } else if (dse_kv_pool_available(pool) < 1) {
        return false;
    }
    sequence->blocks[sequence->n_blocks++] = unused_block(pool);
    return true;
}

void dse_kv_unpromise(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence)
{
    pool->n_promised -= sequence->promised;
    sequence->promised = 0;
}

bool dse_kv_extend(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, int64_t length)
{
    int wanted = dse_kv_blocks_for(length);
    while (sequence->n_blocks < wanted)
        if (!take_block(pool, sequence)) return false;
    return true;
}

bool dse_kv_fork(struct dse_kv_pool *pool, const struct dse_kv_sequence *parent, struct dse_kv_sequence *child)
{
    int full = parent->length / DSE_KV_BLOCK_TOKENS;
    if (full > child->max_blocks) return false;
    for (int i = 0; i < full; i++) {
        child->blocks[i] = parent->blocks[i];
        pool->references[parent->blocks[i]]++;
    }
    child->n_blocks = full;
    if (parent->length % DSE_KV_BLOCK_TOKENS != 0) {
        if (!take_block(pool, child)) {
            int promised = child->promised;
            child->promised = 0;
            dse_kv_release(pool, child);
            child->promised = promised;
            return false;
        }
        const size_t bytes = pool->layout.block_bytes;
        memcpy(pool->memory + (size_t)child->blocks[full] * bytes, pool->memory + (size_t)parent->blocks[full] * bytes,
               bytes);
    }
    child->length = parent->length;
    child->chain = parent->chain;
    return true;
}

static void refer(struct dse_kv_pool *pool, int32_t block)
{
    if (pool->references[block]++ == 0) dse_prefix_unpark(&pool->cache, block);
}

static void drop(struct dse_kv_pool *pool, int32_t block)
{
    if (--pool->references[block] > 0) return;
    if (dse_prefix_holds(&pool->cache, block)) block = dse_prefix_park(&pool->cache, block);
    if (block >= 0) pool->free_blocks[pool->n_free++] = block;
}

void dse_kv_attach(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens, int max_tokens)
{
    if (pool->cache.n_blocks == 0) return;
    while (sequence->length + DSE_KV_BLOCK_TOKENS <= max_tokens && sequence->n_blocks < sequence->max_blocks) {
        int32_t block = dse_prefix_find(&pool->cache, &sequence->chain, tokens + sequence->length);
        if (block < 0) return;
        refer(pool, block);
        sequence->blocks[sequence->n_blocks++] = block;
        sequence->length += DSE_KV_BLOCK_TOKENS;
        dse_prefix_advance(&pool->cache, &sequence->chain, block);
    }
}

void dse_kv_record(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens)
{
    struct dse_prefix_chain *chain = &sequence->chain;
    if (pool->cache.n_blocks == 0) return;
    while (!chain->ended && (chain->n_blocks + 1) * DSE_KV_BLOCK_TOKENS <= sequence->length) {
        int32_t *block = &sequence->blocks[chain->n_blocks];
        int32_t kept = dse_prefix_add(&pool->cache, chain, tokens + chain->n_blocks * DSE_KV_BLOCK_TOKENS, *block,
                                      NULL);
        if (kept < 0) {
            chain->ended = true;
            return;
        }
        if (kept != *block) {
            refer(pool, kept);
            drop(pool, *block);
            *block = kept;
        }
        dse_prefix_advance(&pool->cache, chain, kept);
    }
}

int32_t dse_kv_take(struct dse_kv_pool *pool)
{
    return dse_kv_pool_available(pool) < 1 ? -1 : unused_block(pool);
}

void dse_kv_give_back(struct dse_kv_pool *pool, int32_t block)
{
    drop(pool, block);
}

bool dse_kv_adopt(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens, int32_t block,
                  const struct dse_prefix_id *parent, const struct dse_prefix_id *id)
{
    struct dse_prefix_chain *chain = &sequence->chain;
    bool fits = !chain->ended && sequence->n_blocks < sequence->max_blocks && chain->n_blocks == sequence->n_blocks &&
                chain->last.epoch == parent->epoch && chain->last.serial == parent->serial;
    int32_t kept = fits ? dse_prefix_add(&pool->cache, chain, tokens + sequence->length, block, id) : -1;
    if (kept >= 0 && kept != block) refer(pool, kept); /* somebody computed it meanwhile */
    if (kept != block) drop(pool, block);
    if (kept < 0) return false;
    sequence->blocks[sequence->n_blocks++] = kept;
    sequence->length += DSE_KV_BLOCK_TOKENS;
    dse_prefix_advance(&pool->cache, chain, kept);
    return true;
}

void dse_kv_release(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence)
{
    for (int i = sequence->n_blocks; i-- > 0;) /* the order that the cache needs */
        drop(pool, sequence->blocks[i]);
    dse_kv_unpromise(pool, sequence);
    sequence->n_blocks = sequence->length = 0;
    dse_prefix_chain_restart(&sequence->chain);
}

int dse_kv_forget(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence)
{
    int n_blocks = sequence->n_blocks, gone = 0;
    dse_kv_release(pool, sequence);
    while (n_blocks-- > 0 && dse_prefix_forget(&pool->cache, sequence->blocks[n_blocks])) {
        pool->free_blocks[pool->n_free++] = sequence->blocks[n_blocks];
        gone++;
    }
    return gone;
}

/* Blocks of the KV cache: free list, reference counts, promises. Called by scheduler, eval and bench on one thread. */
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

void dse_kv_pool_deinit(struct dse_kv_pool *pool)
{
    if (pool->memory != NULL) dse_free_pages(pool->memory);
    dse_free(pool->free_blocks);
    dse_free(pool->references);
    *pool = (struct dse_kv_pool){0};
}

int dse_kv_pool_used(const struct dse_kv_pool *pool)
{
    return pool->n_blocks - pool->n_free;
}

int dse_kv_pool_available(const struct dse_kv_pool *pool)
{
    return pool->n_free - pool->n_promised;
}

bool dse_kv_promise(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, int n_blocks)
{
    if (n_blocks > dse_kv_pool_available(pool)) return false;
    pool->n_promised += n_blocks;
    sequence->promised += n_blocks;
    return true;
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
    int32_t block = pool->free_blocks[--pool->n_free];
    pool->references[block] = 1;
    sequence->blocks[sequence->n_blocks++] = block;
    return true;
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
    return true;
}

void dse_kv_release(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence)
{
    for (int i = 0; i < sequence->n_blocks; i++) {
        int32_t block = sequence->blocks[i];
        if (--pool->references[block] == 0) pool->free_blocks[pool->n_free++] = block;
    }
    pool->n_promised -= sequence->promised;
    sequence->n_blocks = sequence->length = sequence->promised = 0;
}

/* Blocks out to files and back (see prefix_tier.h). Called by scheduler.c and engine.c. */
#include "engine/prefix_tier.h"

#include <string.h>

void dse_prefix_tier_save(struct dse_kv_pool *pool, struct dse_prefix_disk *disk, int max_copies)
{
    struct dse_prefix_cache *cache = &pool->cache;
    if (!dse_prefix_disk_writes(disk)) dse_prefix_tier_stop_saving(pool);
    while (cache->unsaved >= 0) {
        const int32_t block = cache->unsaved;
        const struct dse_prefix_entry *entry = &cache->entries[block];
        if (dse_prefix_disk_has(disk, entry->hash)) {
            dse_prefix_disk_use(disk, entry->hash, entry->parent_hash);
        } else {
            struct dse_prefix_file_header header = {.scope = entry->scope,
                                                    .hash = entry->hash,
                                                    .parent_hash = entry->parent_hash,
                                                    .id = entry->id,
                                                    .parent = entry->parent,
                                                    .block_bytes = pool->layout.block_bytes,
                                                    .depth = (uint32_t)entry->depth};
            memcpy(header.tokens, entry->tokens, sizeof header.tokens);
            if (max_copies-- == 0 || !dse_prefix_disk_offer(disk, &header, dse_kv_block(pool, block))) return;
        }
        dse_prefix_saved(cache, block);
    }
}

void dse_prefix_tier_stop_saving(struct dse_kv_pool *pool)
{
    pool->cache.saving = false;
    while (pool->cache.unsaved >= 0)
        dse_prefix_saved(&pool->cache, pool->cache.unsaved);
}

bool dse_prefix_tier_fetch(struct dse_kv_pool *pool, struct dse_prefix_disk *disk,
                           const struct dse_kv_sequence *sequence, const int32_t *tokens, int max_tokens, uint64_t task)
{
    struct dse_prefix_load load = {.task = task};
    struct dse_prefix_chain chain = sequence->chain;
    int position = sequence->length;
    while (!chain.ended && load.n < DSE_PREFIX_LOAD_BLOCKS && position + DSE_KV_BLOCK_TOKENS <= max_tokens &&
           sequence->n_blocks + load.n < sequence->max_blocks) {
        struct dse_prefix_file_header *want = &load.want[load.n];
        uint64_t hash = pool->cache.hash(&chain, tokens + position);
        if (!dse_prefix_disk_has(disk, hash)) break;
        int32_t block = dse_kv_take(pool);
        if (block < 0) break;
        want->scope = chain.scope;
        want->hash = hash;
        want->parent_hash = chain.hash;
        want->parent = chain.last;
        want->block_bytes = pool->layout.block_bytes;
        want->depth = (uint32_t)chain.n_blocks;
        memcpy(want->tokens, tokens + position, sizeof want->tokens);
        load.blocks[load.n] = block;
        load.memory[load.n++] = dse_kv_block(pool, block);
        chain.hash = hash;
        chain.n_blocks++;
        position += DSE_KV_BLOCK_TOKENS;
    }
    if (load.n == 0) return false;
    if (dse_prefix_disk_load(disk, &load)) return true;
    for (int i = 0; i < load.n; i++)
        dse_kv_give_back(pool, load.blocks[i]);
    return false;
}

int dse_prefix_tier_adopt(struct dse_kv_pool *pool, const struct dse_prefix_load *load,
                          struct dse_kv_sequence *sequence, const int32_t *tokens)
{
    int adopted = 0;
    bool goes_on = sequence != NULL;
    for (int i = 0; i < load->n; i++) {
        goes_on = goes_on && i < load->n_read;
        if (goes_on)
            goes_on = dse_kv_adopt(pool, sequence, tokens, load->blocks[i], &load->want[i].parent, &load->ids[i]);
        else
            dse_kv_give_back(pool, load->blocks[i]);
        adopted += goes_on;
    }
    return adopted;
}

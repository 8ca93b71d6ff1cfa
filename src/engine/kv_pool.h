/* The KV pool: blocks of DSE_KV_BLOCK_TOKENS tokens, reference counted, and the block table of a sequence.
 *
 * Owned by one thread (the engine's, or whoever called eval or bench). Nothing here allocates after init. Blocks are
 * promised by count when a request is admitted and taken one by one as it grows, so that what was promised is there.
 * With a prefix cache, blocks that were given back stay findable until they are needed; they count as free.
 */
#ifndef DSE_ENGINE_KV_POOL_H
#define DSE_ENGINE_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/prefix_cache.h"
#include "kernels/kv_layout.h"

struct dse_kv_pool {
    struct dse_kv_layout layout;
    uint8_t *memory; /* n_blocks * block_bytes */
    size_t memory_bytes;
    int n_blocks;
    int n_free;           /* entries of free_blocks */
    int n_promised;       /* of the free and the parked ones, spoken for */
    int32_t *free_blocks; /* stack */
    int32_t *references;  /* [n_blocks] */
    struct dse_prefix_cache cache;
};

/* Token i of the sequence lies in block blocks[i / 32] at i % 32. */
struct dse_kv_sequence {
    int32_t *blocks; /* [max_blocks], memory of the caller */
    int n_blocks, max_blocks;
    int length;   /* tokens whose keys and values are stored */
    int promised; /* blocks it may still take for certain */
    struct dse_prefix_chain chain;
};

static inline int dse_kv_blocks_for(int64_t tokens)
{
    return (int)((tokens + DSE_KV_BLOCK_TOKENS - 1) / DSE_KV_BLOCK_TOKENS);
}

DSE_MUST_CHECK enum dse_status dse_kv_pool_init(struct dse_kv_pool *pool, const struct dse_kv_layout *layout,
                                                int n_blocks, struct dse_error *err);
/* From now on keeps blocks that were given back, at most max_parked of them. */
DSE_MUST_CHECK enum dse_status dse_kv_pool_cache(struct dse_kv_pool *pool, int max_parked, struct dse_error *err);
void dse_kv_pool_deinit(struct dse_kv_pool *pool);         /* safe on a zeroed struct */
int dse_kv_pool_used(const struct dse_kv_pool *pool);      /* by sequences */
int dse_kv_pool_available(const struct dse_kv_pool *pool); /* free or only cached, and not promised */

/* Promises n more blocks; false, and nothing changes, if they are not there. */
bool dse_kv_promise(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, int n_blocks);
/* Takes back what of a promise was not used. */
void dse_kv_unpromise(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence);
/* Takes blocks until `length` tokens fit, promised ones first, then any available; false when there are none or the
 * table is full (blocks taken so far stay). */
bool dse_kv_extend(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, int64_t length);
/* child (empty) becomes a copy of parent: full blocks shared, the last partial one copied. false without a block. */
bool dse_kv_fork(struct dse_kv_pool *pool, const struct dse_kv_sequence *parent, struct dse_kv_sequence *child);
/* The sequence, of whole blocks or empty, goes on with the blocks of the cache that continue its chain with `tokens`, which
 * are all of its tokens, as long as there are no more than max_tokens. */
void dse_kv_attach(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens, int max_tokens);
/* Makes the full blocks of the sequence findable, tokens being all of its tokens. A block that the cache has already is
 * replaced by that one: what refers to a block of the cache refers to the blocks before it too. */
void dse_kv_record(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens);
/* A block that is filled from elsewhere: -1 if none is available. Given back, or adopted: becomes the next one of the
 * sequence, as dse_kv_record would have it; parent and id are those it had where it was computed. false: it does not
 * fit there, and was given back. */
int32_t dse_kv_take(struct dse_kv_pool *pool);
void dse_kv_give_back(struct dse_kv_pool *pool, int32_t block);
bool dse_kv_adopt(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence, const int32_t *tokens, int32_t block,
                  const struct dse_prefix_id *parent, const struct dse_prefix_id *id);
static inline uint8_t *dse_kv_block(const struct dse_kv_pool *pool, int32_t block)
{
    return pool->memory + (size_t)block * pool->layout.block_bytes;
}

/* Gives back blocks and promise; length 0. */
void dse_kv_release(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence);
/* The same, and takes out of the cache, from the last to the first, those of the blocks that nobody else refers to and
 * nothing stands on. Returns how many are gone. */
int dse_kv_forget(struct dse_kv_pool *pool, struct dse_kv_sequence *sequence);

static inline struct dse_kv_view dse_kv_view(const struct dse_kv_pool *pool, const struct dse_kv_sequence *sequence)
{
    return (struct dse_kv_view){.pool = pool->memory, .blocks = sequence->blocks};
}

#endif

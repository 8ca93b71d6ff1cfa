/* Which blocks of the KV pool hold which beginnings of prompts, so that a beginning is computed once.
 *
 * A full block is named by a chain: a scope (model, adapter, salt) and then block after block of tokens. Its entry holds
 * a hash to find it by, its 32 tokens, and the unforgeable id of the entry before it. A hit is one only if scope,
 * tokens and that id are equal: by induction the whole beginning is, whatever the hash does. Results do not depend on
 * how a prompt is cut, so a block that is found equals the one that would have been computed, bit for bit.
 *
 * Owned by the pool (kv_pool.c), which counts references; used on its one thread. Nothing here allocates after init.
 * A block that nobody refers to is parked, oldest first: the pool takes it back when it needs one. Blocks of a sequence
 * are parked from the last to the first, and who refers to a block refers to all before it. So a block is always parked
 * before, and evicted before, what it stands on: no entry is left that cannot be found.
 */
#ifndef DSE_ENGINE_PREFIX_CACHE_H
#define DSE_ENGINE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/kv_layout.h"

/* What a block depends on besides tokens. Requests of different scopes never share. */
struct dse_prefix_scope {
    uint64_t model[2]; /* weights, how they are computed, KV type: dse_prefix_model */
    uint64_t adapter;  /* 0: none */
    uint64_t salt[2];  /* of the client: timing tells nothing about the prompts of others */
};

/* Given once in the world: a random number for each process, and a count. {0, 0} is in front of the first block. */
struct dse_prefix_id {
    uint64_t epoch, serial;
};

/* Where a sequence stands: after its first n_blocks blocks, all of which are in the cache. */
struct dse_prefix_chain {
    struct dse_prefix_scope scope;
    uint64_t hash;
    struct dse_prefix_id last;
    int n_blocks;
    bool ended; /* a block could not be kept, so none after it can be found */
};

struct dse_prefix_entry {
    struct dse_prefix_scope scope;
    uint64_t hash, parent_hash;
    struct dse_prefix_id id, parent;
    int32_t depth;         /* blocks before it */
    int32_t n_children;    /* entries that continue it */
    int32_t next;          /* of the same bucket */
    int32_t older, newer;  /* parked ones, in the order they were parked */
    int32_t before, after; /* unsaved ones, that parked last in front */
    bool filled, parked, unsaved;
    int32_t tokens[DSE_KV_BLOCK_TOKENS];
};

typedef uint64_t dse_prefix_hash_fn(const struct dse_prefix_chain *chain, const int32_t *tokens);

struct dse_prefix_cache {
    int n_blocks; /* of the pool; 0: no cache */
    int max_parked, n_parked, n_filled;
    struct dse_prefix_entry *entries; /* [n_blocks], by block */
    int32_t *buckets;                 /* [n_buckets], a power of two */
    uint32_t n_buckets;
    int32_t oldest, newest; /* parked */
    bool saving;            /* there is a disk tier: blocks that are parked are to be looked at */
    int32_t unsaved;        /* the first of them */
    uint64_t epoch, serial, bucket_seed;
    dse_prefix_hash_fn *hash; /* a test puts a bad one here */
};

/* max_parked: blocks that stay although nobody refers to them. */
DSE_MUST_CHECK enum dse_status dse_prefix_init(struct dse_prefix_cache *cache, int n_blocks, int max_parked,
                                               struct dse_error *err);
void dse_prefix_deinit(struct dse_prefix_cache *cache); /* safe on a zeroed struct */

/* Back to the beginning of its scope. */
void dse_prefix_chain_restart(struct dse_prefix_chain *chain);
/* The block that continues the chain with these 32 tokens, or -1. */
int32_t dse_prefix_find(const struct dse_prefix_cache *cache, const struct dse_prefix_chain *chain,
                        const int32_t *tokens);
/* The chain goes on with a block of the cache. */
void dse_prefix_advance(const struct dse_prefix_cache *cache, struct dse_prefix_chain *chain, int32_t block);
/* Makes a block findable as the continuation of the chain. Returns it; or an equal one that is there already; or -1,
 * when another beginning has the same hash: there is one entry a hash, so that nobody can make long lists. id: the one
 * that it was given when it was computed, by another process; NULL: it gets one now. */
int32_t dse_prefix_add(struct dse_prefix_cache *cache, const struct dse_prefix_chain *chain, const int32_t *tokens,
                       int32_t block, const struct dse_prefix_id *id);

static inline bool dse_prefix_holds(const struct dse_prefix_cache *cache, int32_t block)
{
    return cache->n_blocks > 0 && cache->entries[block].filled;
}
/* A block of the cache has lost its last reference. Returns a block that is no longer in the cache because this was one
 * too many (that one itself, if none may stay), or -1. */
int32_t dse_prefix_park(struct dse_prefix_cache *cache, int32_t block);
void dse_prefix_unpark(struct dse_prefix_cache *cache, int32_t block); /* it has a reference again */
/* It needs no look any more. */
void dse_prefix_saved(struct dse_prefix_cache *cache, int32_t block);
/* Forgets the block that was parked first and returns it; -1: none is parked. */
int32_t dse_prefix_evict(struct dse_prefix_cache *cache);
/* Forgets this block, unless it is referred to or others stand on it. */
bool dse_prefix_forget(struct dse_prefix_cache *cache, int32_t block);

#endif

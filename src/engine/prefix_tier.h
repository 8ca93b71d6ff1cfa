/* Between the KV pool and the disk tier of the prefix cache, on the engine thread: which blocks go out, which come back.
 *
 * A request whose beginning is in files waits, holding what it has, while they are read; nobody else waits for it. When a
 * file turns out not to be good, the rest of the prompt is computed.
 */
#ifndef DSE_ENGINE_PREFIX_TIER_H
#define DSE_ENGINE_PREFIX_TIER_H

#include "engine/kv_pool.h"
#include "engine/prefix_disk.h"

/* Offers blocks that nobody uses and that are in no file, as many as there is room for, at most max_copies. */
void dse_prefix_tier_save(struct dse_kv_pool *pool, struct dse_prefix_disk *disk, int max_copies);
/* The memory of the pool is no longer to be trusted: nothing more is saved. */
void dse_prefix_tier_stop_saving(struct dse_kv_pool *pool);

/* Begins to read the blocks that continue the sequence, after dse_kv_attach with the same tokens. false: there are none,
 * or no room for them; nothing is to be waited for. */
bool dse_prefix_tier_fetch(struct dse_kv_pool *pool, struct dse_prefix_disk *disk,
                           const struct dse_kv_sequence *sequence, const int32_t *tokens, int max_tokens,
                           uint64_t task);
/* Gives the blocks of a load that is done to the sequence that waited for it; NULL: it is gone. Returns how many. */
int dse_prefix_tier_adopt(struct dse_kv_pool *pool, const struct dse_prefix_load *load,
                          struct dse_kv_sequence *sequence, const int32_t *tokens);

#endif

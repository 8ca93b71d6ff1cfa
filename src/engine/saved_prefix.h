/* Computed beginnings of prompts that outlast the engine: out of the prefix cache into a file, back, and away.
 *
 * The calls run on any thread but the engine's and may take as long as the file takes. The engine thread only counts
 * references: it holds the blocks while the caller writes them out of the pool, for what is in the cache never changes,
 * and hands out blocks that the caller fills. So decoding goes on meanwhile, with so much less memory for others.
 *
 * What is saved is whole blocks, as many as the prefix cache still has of the beginning, so up to 31 tokens at the end
 * are computed again. What is restored is found like anything in the cache: by all of its tokens, in its scope.
 */
#ifndef DSE_ENGINE_SAVED_PREFIX_H
#define DSE_ENGINE_SAVED_PREFIX_H

#include <dse/dse.h>

#include "engine/saved_file.h"

struct dse_saved_prefix {
    const int32_t *tokens;
    int n_tokens;
    const void *cache_salt; /* as in struct dse_request */
    size_t cache_salt_bytes;
    uint64_t adapter_identity; /* as a FINISH event told it */
};

/* folder: of dse_saved_folder_open. stop: see there; NULL: never. *n_tokens and *bytes: what was written. Nothing of it
 * is in the cache, or the name is not possible: DSE_ERR_INVALID. No memory is free to hold it while it is written:
 * DSE_ERR_UNAVAILABLE. Others as of dse_saved_file_write. An older file stays as it was after any failure. */
DSE_MUST_CHECK enum dse_status dse_engine_save_prefix(struct dse_engine *engine, const struct dse_saved_prefix *prefix,
                                                      int folder, const char *name, dse_saved_stop_fn *stop, void *user,
                                                      int *n_tokens, uint64_t *bytes, struct dse_error *err);

struct dse_restored_prefix {
    int32_t *tokens; /* owned (dse_free): those whose blocks are in the cache now */
    int n_tokens;
    uint64_t adapter_identity; /* as it was saved */
    uint64_t bytes;            /* of the file */
};
/* Of prefix, the salt counts. Failures as of dse_saved_file_open and dse_saved_file_read; DSE_ERR_UNAVAILABLE: running
 * requests leave no room for it now. After a failure the cache is as it was. */
DSE_MUST_CHECK enum dse_status dse_engine_restore_prefix(struct dse_engine *engine,
                                                         const struct dse_saved_prefix *prefix, int folder,
                                                         const char *name, dse_saved_stop_fn *stop, void *user,
                                                         struct dse_restored_prefix *restored, struct dse_error *err);

/* Takes out of the cache what no request uses and nothing else begins with. Files stay, those of the cache on disk too.
 * *n_tokens: so many are gone. */
DSE_MUST_CHECK enum dse_status dse_engine_forget_prefix(struct dse_engine *engine,
                                                        const struct dse_saved_prefix *prefix, int *n_tokens,
                                                        struct dse_error *err);

/* On the engine thread: does what the calls above ask of it. */
void dse_engine_transfers(struct dse_engine *engine);

#endif

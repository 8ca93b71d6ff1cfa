/* Bump allocator: many small objects, freed together. Grows in chunks up to max_bytes, then returns NULL. */
#ifndef DSE_BASE_ARENA_H
#define DSE_BASE_ARENA_H

#include "base/alloc.h"

struct dse_arena {
    enum dse_mem tag;
    struct dse_arena_chunk *chunks;
    size_t used_bytes, max_bytes;
};

void dse_arena_init(struct dse_arena *arena, enum dse_mem tag, size_t max_bytes); /* allocates nothing */
void *dse_arena_alloc(struct dse_arena *arena, size_t bytes);                     /* zeroed, aligned to 16 */
char *dse_arena_strndup(struct dse_arena *arena, const char *text, size_t bytes);
void dse_arena_reset(struct dse_arena *arena); /* frees all but the first chunk */
void dse_arena_deinit(struct dse_arena *arena);

#endif

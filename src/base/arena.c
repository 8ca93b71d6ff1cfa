/* Bump allocator. Chunks are chained, newest first; each is at least CHUNK_BYTES. */
#include "base/arena.h"

#include <string.h>

#include "base/checked.h"

#define CHUNK_BYTES ((size_t)64 << 10)

struct dse_arena_chunk {
    struct dse_arena_chunk *next;
    size_t used, capacity;
    size_t padding; /* keeps data 16-byte aligned */
    char data[];
};

void dse_arena_init(struct dse_arena *arena, enum dse_mem tag, size_t max_bytes)
{
    *arena = (struct dse_arena){.tag = tag, .max_bytes = max_bytes};
}

void *dse_arena_alloc(struct dse_arena *arena, size_t bytes)
{
    size_t size, used;
    if (!dse_align_size(bytes, 16, &size) || !dse_add_size(arena->used_bytes, size, &used)) return NULL;
    if (used > arena->max_bytes) return NULL;
    struct dse_arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->capacity - chunk->used < size) {
        size_t capacity = size > CHUNK_BYTES ? size : CHUNK_BYTES, total;
        if (!dse_add_size(capacity, sizeof *chunk, &total)) return NULL;
        chunk = dse_alloc(arena->tag, total);
        if (chunk == NULL) return NULL;
        *chunk = (struct dse_arena_chunk){.next = arena->chunks, .capacity = capacity};
        arena->chunks = chunk;
    }
    void *result = chunk->data + chunk->used;
    chunk->used += size;
    arena->used_bytes = used;
    return memset(result, 0, size);
}

char *dse_arena_strndup(struct dse_arena *arena, const char *text, size_t bytes)
{
    size_t total;
    if (!dse_add_size(bytes, 1, &total)) return NULL;
    char *copy = dse_arena_alloc(arena, total);
    if (copy != NULL && bytes > 0) memcpy(copy, text, bytes);
    return copy;
}

void dse_arena_reset(struct dse_arena *arena)
{
    while (arena->chunks != NULL && arena->chunks->next != NULL) {
        struct dse_arena_chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        dse_free(chunk);
    }
    if (arena->chunks != NULL) arena->chunks->used = 0;
    arena->used_bytes = 0;
}

void dse_arena_deinit(struct dse_arena *arena)
{
    dse_arena_reset(arena);
    dse_free(arena->chunks);
    arena->chunks = NULL;
}

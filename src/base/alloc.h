/* Tagged heap: live byte counters per tag, a fault hook for tests, and a guard that forbids allocation.
 *
 * Never aborts for lack of memory: returns NULL. All pointers come from malloc underneath and are freed with dse_free.
 */
#ifndef DSE_BASE_ALLOC_H
#define DSE_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dse_mem {
    DSE_MEM_MISC,
    DSE_MEM_MODEL,   /* metadata, packed weights */
    DSE_MEM_TEXT,    /* tokenizer, templates, grammars */
    DSE_MEM_KV,      /* KV pool */
    DSE_MEM_SCRATCH, /* activations of a step */
    DSE_MEM_REQUEST, /* lives as long as one request */
    DSE_MEM_SERVER,
    DSE_MEM_JSON, /* every parsed or built JSON value, whoever owns it */
    DSE_MEM_COUNT
};

void *dse_alloc(enum dse_mem tag, size_t bytes);                /* uninitialised; bytes 0 gives a valid pointer */
void *dse_calloc(enum dse_mem tag, size_t count, size_t bytes); /* zeroed, overflow-checked */
void *dse_realloc(enum dse_mem tag, void *pointer, size_t bytes);
void *dse_alloc_aligned(enum dse_mem tag, size_t alignment, size_t bytes); /* power of two; uninitialised */
char *dse_strdup(enum dse_mem tag, const char *text);
char *dse_strndup(enum dse_mem tag, const char *text, size_t bytes); /* copies exactly bytes, adds a NUL */
void dse_free(void *pointer);                                        /* NULL is fine */

#ifdef __clang_analyzer__
/* So that the analyzer knows what is zeroed, what leaks and what is used after it was freed; + 1: none
 * of these is ever asked for nothing. */
#include <stdlib.h>
#include <string.h>
#define dse_alloc(tag, bytes)                    (malloc)((bytes) + 1)
#define dse_calloc(tag, count, bytes)            (calloc)((count) + 1, bytes)
#define dse_realloc(tag, pointer, bytes)         (realloc)(pointer, (bytes) + 1)
#define dse_alloc_aligned(tag, alignment, bytes) (aligned_alloc)(alignment, (bytes) + 1)
#define dse_strdup(tag, text)                    (strdup)(text)
#define dse_strndup(tag, text, bytes)            (strndup)(text, bytes)
#define dse_free(pointer)                        (free)(pointer)
#endif

/* Large page-aligned anonymous memory (mmap, transparent huge pages advised), zeroed. Freed with dse_free_pages. */
void *dse_alloc_pages(enum dse_mem tag, size_t bytes);
void dse_free_pages(void *pointer);

/* Where such memory lies in a map that begins at `map` and is 4 MiB longer than it: header page, memory, end, all on
 * page borders. Here so that a test can ask for the page sizes of other machines. */
struct dse_page_span {
    uintptr_t start, user, end;
};
struct dse_page_span dse_page_span(uintptr_t map, size_t bytes, size_t page);

size_t dse_mem_live_bytes(enum dse_mem tag);
const char *dse_mem_name(enum dse_mem tag);

/* Test hook: the n-th allocation from now (1 = next) returns NULL; 0 switches it off. */
void dse_alloc_fail_after(long n);

/* While forbidden, an allocation on this thread aborts with a message in debug builds (DSE_DEBUG defined). Nests. */
void dse_alloc_forbid_begin(void);
void dse_alloc_forbid_end(void);

#endif

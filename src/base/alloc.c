/* The tagged heap. Each block carries a 16-byte header with its tag and size, so that counters are exact without asking
 * malloc; aligned blocks keep the header right in front of the aligned address. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

struct header {
    size_t bytes;
    uint32_t tag;
    uint32_t shift; /* from the start of the malloc block to the user's pointer */
};

_Static_assert(sizeof(struct header) == 16, "user pointers stay 16-byte aligned");

static atomic_size_t live_bytes[DSE_MEM_COUNT];
static atomic_long fail_countdown;
static _Thread_local int forbid_depth;

void dse_alloc_fail_after(long n)
{
    atomic_store(&fail_countdown, n);
}
void dse_alloc_forbid_begin(void)
{
    forbid_depth++;
}
void dse_alloc_forbid_end(void)
{
    forbid_depth--;
}

size_t dse_mem_live_bytes(enum dse_mem tag)
{
    return atomic_load(&live_bytes[tag]);
}

const char *dse_mem_name(enum dse_mem tag)
{
    static const char *const names[DSE_MEM_COUNT] = {"misc",    "model",   "text",   "kv",
                                                     "scratch", "request", "server", "json"};
    return names[tag];
}

/* True if this allocation is to fail for a test; aborts when allocation is forbidden on this thread. */
static bool must_fail(void)
{
#ifdef DSE_DEBUG
    if (forbid_depth > 0) {
        fputs("allocation inside the token loop\n", stderr);
        abort();
    }
#endif
    return atomic_load_explicit(&fail_countdown, memory_order_relaxed) > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1;
}

static void *finish(void *block, size_t shift, enum dse_mem tag, size_t bytes)
{
    if (block == NULL) return NULL;
    struct header *header = (struct header *)((char *)block + shift) - 1;
    *header = (struct header){bytes, (uint32_t)tag, (uint32_t)shift};
    atomic_fetch_add_explicit(&live_bytes[tag], bytes, memory_order_relaxed);
    return header + 1;
}

/* The names are in parentheses because the header makes them macros for the analyzer. */
void *(dse_alloc)(enum dse_mem tag, size_t bytes)
{
    size_t total;
    if (must_fail() || !dse_add_size(bytes, sizeof(struct header), &total)) return NULL;
    return finish(malloc(total), sizeof(struct header), tag, bytes);
}

void *(dse_calloc)(enum dse_mem tag, size_t count, size_t bytes)
{
    size_t product, total;
    if (!dse_mul_size(count, bytes, &product) || must_fail()) return NULL;
    if (!dse_add_size(product, sizeof(struct header), &total)) return NULL;
    return finish(calloc(1, total), sizeof(struct header), tag, product);
}

void *(dse_alloc_aligned)(enum dse_mem tag, size_t alignment, size_t bytes)
{
    size_t total;
    if (alignment < sizeof(struct header)) alignment = sizeof(struct header);
    if (must_fail() || !dse_add_size(bytes, alignment, &total) || !dse_align_size(total, alignment, &total))
        return NULL;
    return finish(aligned_alloc(alignment, total), alignment, tag, bytes);
}

void *(dse_realloc)(enum dse_mem tag, void *pointer, size_t bytes)
{
    if (pointer == NULL) return dse_alloc(tag, bytes);
    struct header old = *((struct header *)pointer - 1);
    if (old.shift != sizeof(struct header)) return NULL; /* aligned blocks do not grow */
    size_t total;
    if (must_fail() || !dse_add_size(bytes, sizeof(struct header), &total)) return NULL;
    void *block = realloc((struct header *)pointer - 1, total);
    if (block == NULL) return NULL;
    atomic_fetch_sub_explicit(&live_bytes[old.tag], old.bytes, memory_order_relaxed);
    return finish(block, sizeof(struct header), tag, bytes);
}

char *(dse_strndup)(enum dse_mem tag, const char *text, size_t bytes)
{
    size_t total;
    if (!dse_add_size(bytes, 1, &total)) return NULL;
    char *copy = dse_alloc(tag, total);
    if (copy == NULL) return NULL;
    if (bytes > 0) memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

char *(dse_strdup)(enum dse_mem tag, const char *text)
{
    return dse_strndup(tag, text, strlen(text));
}

void(dse_free)(void *pointer)
{
    if (pointer == NULL) return;
    struct header header = *((struct header *)pointer - 1);
    atomic_fetch_sub_explicit(&live_bytes[header.tag], header.bytes, memory_order_relaxed);
    free((char *)pointer - header.shift);
}

/* Page allocations are few and long-lived: a page of its own in front of the memory holds the header, so that the
 * user's address lies on a 2 MiB border and huge pages can back it. */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* 4, 16 or 64 KiB: what mmap and munmap deal in. */
static size_t page_bytes(void)
{
    long bytes = sysconf(_SC_PAGESIZE);
    return bytes > 0 ? (size_t)bytes : 4096;
}

struct dse_page_span dse_page_span(uintptr_t map, size_t bytes, size_t page)
{
    struct dse_page_span span;
    span.user = (map + page + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    span.start = span.user - page;
    span.end = (span.user + bytes + page - 1) & ~(uintptr_t)(page - 1);
    return span;
}

void *dse_alloc_pages(enum dse_mem tag, size_t bytes)
{
    size_t total, page = page_bytes();
    if (must_fail() || !dse_add_size(bytes, 2 * HUGE_PAGE_BYTES, &total) || !dse_align_size(total, page, &total))
        return NULL;
    char *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    struct dse_page_span span = dse_page_span((uintptr_t)map, bytes, page);
    if (span.start > (uintptr_t)map) munmap(map, span.start - (uintptr_t)map);
    if (span.end < (uintptr_t)map + total) munmap((void *)span.end, (uintptr_t)map + total - span.end);
    *(struct header *)span.start = (struct header){bytes, (uint32_t)tag, (uint32_t)page};
    madvise((void *)span.user, bytes, MADV_HUGEPAGE);
    atomic_fetch_add_explicit(&live_bytes[tag], bytes, memory_order_relaxed);
    return (void *)span.user;
}

void dse_free_pages(void *pointer)
{
    if (pointer == NULL) return;
    const size_t page = page_bytes();
    char *start = (char *)pointer - page;
    struct header *header = (struct header *)start;
    atomic_fetch_sub_explicit(&live_bytes[header->tag], header->bytes, memory_order_relaxed);
    munmap(start, page + (header->bytes + page - 1) / page * page);
}

/* Byte pair encoding with a linked list of symbols and a heap of candidate merges. Called by tokenizer.c only.
 *
 * Always the adjacent pair of lowest rank is merged, the leftmost of equals first. A megabyte of one letter is a legal
 * piece, so nothing here may be quadratic.
 */
#include "text/bpe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"

#define NO_RANK UINT32_MAX
#define NONE    UINT32_MAX

struct pair {
    int32_t left, right; /* left < 0: free */
    uint32_t rank;
};

struct dse_bpe {
    int32_t byte_ids[256];
    struct pair *pairs; /* open addressing, a power of two, at most half full */
    uint32_t mask;
    uint64_t seed;    /* files are untrusted: nobody shall be able to prepare collisions */
    int32_t *results; /* [n_merges] by rank */
};

struct dse_bpe_symbol {
    int32_t id; /* -1: merged away */
    uint32_t previous, next;
    uint32_t rank; /* of the pair (this, next); a heap entry with another rank is out of date */
};

static uint32_t slot_of(const struct dse_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ bpe->seed;
    key *= 0x9E3779B97F4A7C15u;
    key ^= key >> 32;
    key *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(key >> 32) & bpe->mask;
}

static uint32_t rank_of(const struct dse_bpe *bpe, int32_t left, int32_t right)
{
    for (uint32_t i = slot_of(bpe, left, right);; i = (i + 1) & bpe->mask) {
        const struct pair *pair = &bpe->pairs[i];
        if (pair->left < 0) return NO_RANK;
        if (pair->left == left && pair->right == right) return pair->rank;
    }
}

enum dse_status dse_bpe_create(const int32_t byte_ids[256], const struct dse_bpe_merge *merges, size_t n_merges,
                               struct dse_bpe **out, struct dse_error *err)
{
    if (n_merges > INT32_MAX / 4)
        return dse_fail(err, DSE_ERR_LIMIT, "%zu merges, at most %d are supported", n_merges, INT32_MAX / 4);
    size_t n_slots = 16;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    struct dse_bpe *bpe = dse_calloc(DSE_MEM_TEXT, 1, sizeof *bpe);
    if (!bpe) return dse_fail_memory(err, sizeof *bpe, "merges");
    memcpy(bpe->byte_ids, byte_ids, sizeof bpe->byte_ids);
    bpe->mask = (uint32_t)(n_slots - 1);
    bpe->seed = dse_clock_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)bpe;
    bpe->pairs = dse_calloc(DSE_MEM_TEXT, n_slots, sizeof *bpe->pairs);
    bpe->results = dse_calloc(DSE_MEM_TEXT, n_merges ? n_merges : 1, sizeof *bpe->results);
    if (!bpe->pairs || !bpe->results) {
        dse_bpe_free(bpe);
        return dse_fail_memory(err, n_slots * sizeof *bpe->pairs, "merges");
    }
    for (size_t i = 0; i < n_slots; i++)
        bpe->pairs[i].left = -1;
    for (size_t rank = 0; rank < n_merges; rank++) {
        const struct dse_bpe_merge *merge = &merges[rank];
        if (merge->left < 0) continue;
        uint32_t i = slot_of(bpe, merge->left, merge->right);
        while (bpe->pairs[i].left >= 0 && (bpe->pairs[i].left != merge->left || bpe->pairs[i].right != merge->right))
            i = (i + 1) & bpe->mask;
        bpe->pairs[i] = (struct pair){merge->left, merge->right, (uint32_t)rank};
        bpe->results[rank] = merge->result;
    }
    *out = bpe;
    return DSE_OK;
}

void dse_bpe_free(struct dse_bpe *bpe)
{
    if (!bpe) return;
    dse_free(bpe->pairs);
    dse_free(bpe->results);
    dse_free(bpe);
}

void dse_bpe_scratch_deinit(struct dse_bpe_scratch *scratch)
{
    dse_free(scratch->symbols);
    dse_free(scratch->heap);
    *scratch = (struct dse_bpe_scratch){0};
}

/* ---- heap of (rank, position), smallest first ---------------------------------------------------------------- */

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
    size_t i = (*count)++;
    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t top = heap[0], entry = heap[--*count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *count) break;
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = entry;
    return top;
}

/* ---- encoding ------------------------------------------------------------------------------------------------ */

/* There are n - 1 candidates at first; each of at most n - 1 merges takes one and adds two: 2 n are enough. */
static enum dse_status reserve(struct dse_bpe_scratch *scratch, size_t bytes, struct dse_error *err)
{
    if (scratch->n_symbols >= bytes) return DSE_OK;
    size_t want = bytes < 256 ? 256 : bytes, symbol_bytes, heap_bytes;
    dse_bpe_scratch_deinit(scratch);
    if (!dse_mul_size(want, sizeof *scratch->symbols, &symbol_bytes) ||
        !dse_mul_size(want, 2 * sizeof *scratch->heap, &heap_bytes))
        return dse_fail_memory(err, SIZE_MAX, "one piece of text");
    scratch->symbols = dse_alloc(DSE_MEM_REQUEST, symbol_bytes);
    scratch->heap = dse_alloc(DSE_MEM_REQUEST, heap_bytes);
    if (!scratch->symbols || !scratch->heap) {
        dse_bpe_scratch_deinit(scratch);
        return dse_fail_memory(err, symbol_bytes + heap_bytes, "one piece of text");
    }
    scratch->n_symbols = want;
    scratch->n_heap = 2 * want;
    return DSE_OK;
}

/* Looks the pair (at, next) up and makes it a candidate. */
static void consider(const struct dse_bpe *bpe, struct dse_bpe_scratch *scratch, size_t *n_heap, uint32_t at)
{
    struct dse_bpe_symbol *symbol = &scratch->symbols[at];
    symbol->rank = symbol->next == NONE ? NO_RANK : rank_of(bpe, symbol->id, scratch->symbols[symbol->next].id);
    if (symbol->rank != NO_RANK) heap_push(scratch->heap, n_heap, (uint64_t)symbol->rank << 32 | at);
}

enum dse_status dse_bpe_encode(const struct dse_bpe *bpe, struct dse_bpe_scratch *scratch, const char *piece,
                               size_t bytes, struct dse_tokens *out, struct dse_error *err)
{
    enum dse_status status = reserve(scratch, bytes, err);
    if (status != DSE_OK) return status;
    struct dse_bpe_symbol *symbols = scratch->symbols;
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(uint8_t)piece[i]];
        /* A byte without a token vanishes and its neighbours may merge, as in Hugging Face without an unknown token
         * (SmolLM2 lacks a few control characters). */
        if (id < 0) continue;
        symbols[count] = (struct dse_bpe_symbol){.id = id, .previous = count - 1, .next = count + 1};
        count++;
    }
    if (count == 0) return DSE_OK;
    symbols[0].previous = NONE;
    symbols[count - 1].next = NONE;

    size_t n_heap = 0;
    for (uint32_t i = 0; i < count; i++)
        consider(bpe, scratch, &n_heap, i);
    while (n_heap > 0) {
        uint64_t entry = heap_pop(scratch->heap, &n_heap);
        uint32_t at = (uint32_t)entry, rank = (uint32_t)(entry >> 32);
        struct dse_bpe_symbol *left = &symbols[at];
        if (left->id < 0 || left->rank != rank) continue;
        struct dse_bpe_symbol *right = &symbols[left->next];
        left->id = bpe->results[rank];
        left->next = right->next;
        right->id = -1;
        if (left->next != NONE) symbols[left->next].previous = at;
        consider(bpe, scratch, &n_heap, at);
        if (left->previous != NONE) consider(bpe, scratch, &n_heap, left->previous);
    }
    for (uint32_t i = 0; i != NONE; i = symbols[i].next) {
        status = dse_tokens_push(out, symbols[i].id, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}

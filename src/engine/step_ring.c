/* The ring of step records: a sequence lock for each slot, all words atomic. See step_ring.h. */
#include "engine/step_ring.h"

#include <string.h>

#include "engine/engine_internal.h"

#define X(id, name) name,
const char *const dse_step_cause_names[DSE_STEP_CAUSE_COUNT] = {DSE_STEP_CAUSES(X)};
#undef X

void dse_step_ring_put(struct dse_step_ring *ring, struct dse_step_record *record)
{
    uint64_t words[DSE_STEP_RECORD_WORDS];
    record->number = atomic_load_explicit(&ring->last, memory_order_relaxed) + 1;
    memcpy(words, record, sizeof words);
    const size_t at = record->number % DSE_STEP_RING_LENGTH;
    const uint64_t version = atomic_load_explicit(&ring->slots[at].version, memory_order_relaxed);
    atomic_store_explicit(&ring->slots[at].version, version + 1, memory_order_relaxed);
    /* Each word is released after the odd version: who reads a new word sees it changed at the second look. */
    for (size_t i = 0; i < DSE_STEP_RECORD_WORDS; i++)
        atomic_store_explicit(&ring->slots[at].words[i], words[i], memory_order_release);
    atomic_store_explicit(&ring->slots[at].version, version + 2, memory_order_release);
    atomic_store_explicit(&ring->last, record->number, memory_order_release);
}

static bool read_slot(const struct dse_step_ring *ring, uint64_t number, struct dse_step_record *out)
{
    uint64_t words[DSE_STEP_RECORD_WORDS];
    const size_t at = number % DSE_STEP_RING_LENGTH;
    const uint64_t before = atomic_load_explicit(&ring->slots[at].version, memory_order_acquire);
    for (size_t i = 0; i < DSE_STEP_RECORD_WORDS; i++)
        words[i] = atomic_load_explicit(&ring->slots[at].words[i], memory_order_acquire);
    if (before % 2 != 0 || atomic_load_explicit(&ring->slots[at].version, memory_order_relaxed) != before) return false;
    memcpy(out, words, sizeof words);
    return out->number == number;
}

int dse_step_ring_read(const struct dse_step_ring *ring, uint64_t after, struct dse_step_record *out, int max)
{
    const uint64_t last = atomic_load_explicit(&ring->last, memory_order_acquire);
    uint64_t number = after + 1;
    if (last >= DSE_STEP_RING_LENGTH && number < last - DSE_STEP_RING_LENGTH + 1)
        number = last - DSE_STEP_RING_LENGTH + 1;
    int count = 0;
    for (; number <= last && count < max; number++)
        if (read_slot(ring, number, &out[count])) count++;
    return count;
}

const struct dse_step_ring *dse_engine_steps(const struct dse_engine *engine)
{
    return &engine->steps;
}

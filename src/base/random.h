/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter-based generator, so
 * that the draw of a (seed, sequence, position) never depends on what else ran. Also
 * random bytes for ids and seeds. */
#ifndef DSE_BASE_RANDOM_H
#define DSE_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

void dse_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);
double dse_philox_uniform(uint64_t seed, uint64_t sequence, uint64_t position); /* in [0, 1) */
/* From the kernel, for ids and seeds. Where getrandom is not to be had they are still all different, but can be
 * guessed. */
void dse_random_bytes(void *out, size_t bytes);

#endif

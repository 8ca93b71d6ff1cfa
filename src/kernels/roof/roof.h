/* How fast an instruction set multiplies when nothing else is in the way: what `bench kernel` compares matmul with.
 *
 * s8: products of 8-bit values summed up as the matmul kernels of that instruction set do it, one operand read from the
 * L1; f32: fused multiply-adds. No unpacking, no scales, no memory: no kernel of this kind can be faster.
 */
#ifndef DSE_KERNELS_ROOF_H
#define DSE_KERNELS_ROOF_H

#include <stdint.h>

/* Runs n rounds; returns the multiply-adds of one. */
typedef uint64_t dse_roof_fn(uint64_t n);

#endif

/* Between pack.c and pack_a8.c: file blocks taken apart into small integers. Private to this room. */
#ifndef DSE_KERNELS_PACK_H
#define DSE_KERNELS_PACK_H

#include <stdint.h>

#include "quant/types.h"

/* 32 weights: d * scale[i/16] * q[i] - dmin * min[i/16], d and dmin f16 bits. */
struct dse_a8_block {
    uint16_t d, dmin;
    int8_t scale[2];
    uint8_t min[2];
    int8_t q[32];
};

/* One file block of a type whose layout is A8: fills block_elements / 32 blocks (1 or 8). */
void dse_a8_unpack(enum dse_type type, const uint8_t *source, struct dse_a8_block *out);

/* The eight 6-bit scales and mins of Q4_K and Q5_K. */
void dse_k_scales_unpack(const uint8_t c[12], uint8_t scale[8], uint8_t min[8]);

#endif

/* Helpers of the AVX-512 (VNNI) matmul kernels: loads, and the sums of a tile (tile_body.h). Include only
 * from *_avx512.c files. The counterpart of tile_avx2.h with all 16 rows of a panel in one register.
 */
#ifndef DSE_KERNELS_MATMUL_TILE_AVX512_H
#define DSE_KERNELS_MATMUL_TILE_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"
#include "kernels/prototypes.h"

#define DSE_INLINE static inline __attribute__((always_inline))

#define TILE_ROWS 8
/* Panels read side by side with one activation row: a core gets more out of the memory from several streams. */
#define TILE_STREAMS 4

/* All 16 rows. */
typedef __m512 tile_sums;

DSE_INLINE void clear_sums_of(tile_sums *sums)
{
    *sums = _mm512_setzero_ps();
}

DSE_INLINE void store_sums_of(float *out, tile_sums *sums)
{
    _mm512_storeu_ps(out, *sums);
}

#include "kernels/matmul/tile_body.h"

DSE_INLINE __m512i load_512(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* Four bytes to every dword. */
DSE_INLINE __m512i broadcast_4(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

DSE_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

DSE_INLINE __m512i load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

DSE_INLINE __m512i load_s8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* factor0 * half_sums[0] + factor1 * half_sums[1] in every dword; factors is a pair of s16 per dword. */
DSE_INLINE __m512i weigh_half_sums(__m512i factors, const int16_t *half_sums)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, broadcast_4(half_sums));
}

#endif

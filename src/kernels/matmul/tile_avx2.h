/* Helpers of the AVX2 matmul kernels: loads, and the sums of a tile (tile_body.h). Include only from *_avx2.c files. */
#ifndef DSE_KERNELS_MATMUL_TILE_AVX2_H
#define DSE_KERNELS_MATMUL_TILE_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"
#include "kernels/prototypes.h"

#define DSE_INLINE static inline __attribute__((always_inline))

#define TILE_ROWS 4
/* Panels read side by side with one activation row: a core gets more out of the memory from several streams. */
#define TILE_STREAMS 4

/* Rows 8h..8h+7 in [h]. */
typedef __m256 tile_sums[2];

DSE_INLINE void clear_sums_of(tile_sums *sums)
{
    (*sums)[0] = (*sums)[1] = _mm256_setzero_ps();
}

DSE_INLINE void store_sums_of(float *out, tile_sums *sums)
{
    _mm256_storeu_ps(out, (*sums)[0]);
    _mm256_storeu_ps(out + 8, (*sums)[1]);
}

#include "kernels/matmul/tile_body.h"

DSE_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Activations are loaded in each half of the rows anew: kept over both they do not fit the registers, and a compiler
 * that sees that they are the same moves all of them through the stack. */
DSE_INLINE void reload(size_t *block)
{
    __asm__("" : "+r"(*block));
}

/* Four bytes to every dword. */
DSE_INLINE __m256i broadcast_4(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Rows 8h..8h+7 of 16 f16. */
DSE_INLINE __m256 load_f16(const uint8_t *p, int h)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * h)));
}

/* Rows 8h..8h+7 of 16 u8 as f32. */
DSE_INLINE __m256 load_u8_ps(const uint8_t *p, int h)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * h))));
}

/* Rows 8h..8h+7 of two arrays of 16 bytes, each pair as two s16 of a dword. */
DSE_INLINE __m256i pair_s8(const uint8_t *first, const uint8_t *second, int h)
{
    __m256i a = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(first + 8 * h)));
    __m256i b = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(second + 8 * h)));
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
}

DSE_INLINE __m256i pair_u8(const uint8_t *first, const uint8_t *second, int h)
{
    __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(first + 8 * h)));
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(second + 8 * h)));
    return _mm256_or_si256(a, _mm256_slli_epi32(b, 16));
}

#endif

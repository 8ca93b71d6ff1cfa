/* Roofs of AVX2: see roof.h. Eight sums of s8, as many as a tile of the matmul kernels has. Every loop over
 * them is unrolled: the sums live in registers. */
#define DSE_NAME(op) dse_##op##_avx2
#define ROOF_SUMS    6
#include "kernels/roof/roof_f32_body.h"

uint64_t dse_roof_s8_avx2(uint64_t n)
{
    static int8_t values[32];
    __m256i weights[2] = {_mm256_set1_epi8(1), _mm256_set1_epi8(2)};
    __m256i sum[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        sum[j] = _mm256_setzero_si256();
    for (uint64_t i = 0; i < n; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < 8; j += 2) {
            int four;
            memcpy(&four, values + 4 * j, sizeof four);
            __m256i a = _mm256_set1_epi32(four);
            sum[j] = _mm256_add_epi16(sum[j], _mm256_maddubs_epi16(weights[0], a));
            sum[j + 1] = _mm256_add_epi16(sum[j + 1], _mm256_maddubs_epi16(weights[1], a));
        }
        __asm__ volatile("" ::: "memory"); /* values are read again */
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        __asm__ volatile("" ::"x"(sum[j]));
    return 8 * 32;
}

/* Roofs of AVX-512: see roof.h. */
#define DSE_NAME(op) dse_##op##_avx512
#define ROOF_SUMS    12
#include "kernels/roof/roof_f32_body.h"

uint64_t dse_roof_s8_avx512(uint64_t n)
{
    static int8_t values[32];
    const __m512i weights = _mm512_set1_epi8(1);
    __m512i sum[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        sum[j] = _mm512_setzero_si512();
    for (uint64_t i = 0; i < n; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            int four;
            memcpy(&four, values + 4 * j, sizeof four);
            sum[j] = _mm512_dpbusd_epi32(sum[j], weights, _mm512_set1_epi32(four));
        }
        __asm__ volatile("" ::: "memory"); /* values are read again */
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        __asm__ volatile("" ::"v"(sum[j]));
    return 8 * 64;
}

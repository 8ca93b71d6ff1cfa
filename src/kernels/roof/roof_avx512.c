/* Roofs of AVX-512: see roof.h. */
#include <immintrin.h>
#include <string.h>

#include "kernels/prototypes.h"

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

uint64_t dse_roof_f32_avx512(uint64_t n)
{
    const __m512 a = _mm512_set1_ps(0.5f);
    __m512 sum[12];
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        sum[j] = _mm512_setzero_ps();
    for (uint64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            sum[j] = _mm512_fmadd_ps(a, a, sum[j]);
            __asm__("" : "+v"(sum[j]));
        }
    }
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        __asm__ volatile("" ::"v"(sum[j]));
    return 12 * 16;
}

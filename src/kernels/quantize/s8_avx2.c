/* Activation quantizer, AVX2. Called through activation.c; the result is that of s8_scalar.c. */
#include <immintrin.h>
#include <string.h>

#include "kernels/prototypes.h"

/* Largest of 8 non-negative dwords. */
static inline uint32_t max_of(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* Sum of 16 s8. */
static inline int sum_of(__m128i q)
{
    __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

void dse_quantize_s8_avx2(const float *x, size_t cols, int8_t *values, float *scales, float *sums, int16_t *half_sums)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* undoes the lanes of the two packs */
    for (size_t b = 0; b < cols / 32; b++, x += 32, values += 32) {
        __m256 v[4];
        __m256i bits = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        uint32_t largest_bits = max_of(bits);
        float largest;
        memcpy(&largest, &largest_bits, 4);
        if (dse_quantize_unusual(largest_bits, b, values, scales, sums, half_sums)) continue;
        float scale = largest / 127.0f;
        __m256 inverse = _mm256_set1_ps(127.0f / largest);
        __m256i q[4];
        for (int i = 0; i < 4; i++)
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        packed = _mm256_permutevar8x32_epi32(packed, order);
        _mm256_storeu_si256((__m256i *)(void *)values, packed);
        int sum0 = sum_of(_mm256_castsi256_si128(packed)), sum1 = sum_of(_mm256_extracti128_si256(packed, 1));
        dse_quantize_finish(b, scale, sum0, sum1, scales, sums, half_sums);
    }
}

/* AVX-512 variant of the matmul with FP8 weights. */
#define DSE_NAME(op) dse_##op##_avx512
#define MAX_NY       8
#include "kernels/vector/v16.h"

/* 16 e4m3 as f16 but for its bias, which the scales make up for: moved up by seven bits, sign apart; subnormals too. */
DSE_INLINE v16 widen_e4m3(const uint8_t *p)
{
    __m256i f16 = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(f16, _mm256_set1_epi16((short)0xBF80)));
}

#include "kernels/matmul/fp8_body.h"

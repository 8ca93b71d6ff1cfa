/* The table of element types and the half-precision conversions.
 *
 * Used by the file readers to size rows and by every kernel to look up block shapes. Nothing here reads weights: the
 * decoders are in decode.c. Unknown type numbers come straight from untrusted files and must stay harmless.
 */
#include "quant/types.h"

#include <string.h>

#include "base/checked.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weight files are little-endian and are used as mapped");

#define N_TYPES 31

static const struct dse_type_info types[N_TYPES] = {
    [DSE_TYPE_F32] = {"f32", 1, 4, true},         [DSE_TYPE_F16] = {"f16", 1, 2, true},
    [DSE_TYPE_Q4_0] = {"q4_0", 32, 18, true},     [DSE_TYPE_Q4_1] = {"q4_1", 32, 20, true},
    [DSE_TYPE_Q5_0] = {"q5_0", 32, 22, true},     [DSE_TYPE_Q5_1] = {"q5_1", 32, 24, true},
    [DSE_TYPE_Q8_0] = {"q8_0", 32, 34, true},     [DSE_TYPE_Q2_K] = {"q2_k", 256, 84, true},
    [DSE_TYPE_Q3_K] = {"q3_k", 256, 110, true},   [DSE_TYPE_Q4_K] = {"q4_k", 256, 144, true},
    [DSE_TYPE_Q5_K] = {"q5_k", 256, 176, true},   [DSE_TYPE_Q6_K] = {"q6_k", 256, 210, true},
    [DSE_TYPE_IQ4_NL] = {"iq4_nl", 32, 18, true}, [DSE_TYPE_IQ4_XS] = {"iq4_xs", 256, 136, true},
    [DSE_TYPE_I8] = {"i8", 1, 1, false},          [DSE_TYPE_I16] = {"i16", 1, 2, false},
    [DSE_TYPE_I32] = {"i32", 1, 4, false},        [DSE_TYPE_I64] = {"i64", 1, 8, false},
    [DSE_TYPE_F64] = {"f64", 1, 8, true},         [DSE_TYPE_BF16] = {"bf16", 1, 2, true},
};

static const struct dse_type_info f8_e4m3 = {"f8_e4m3", 1, 1, true};

const struct dse_type_info *dse_type_info(uint32_t type)
{
    if (type == DSE_TYPE_F8_E4M3) return &f8_e4m3;
    if (type >= N_TYPES || types[type].name == NULL) return NULL;
    return &types[type];
}

bool dse_type_row_bytes(enum dse_type type, size_t elements, size_t *bytes)
{
    const struct dse_type_info *info = dse_type_info(type);
    if (info == NULL || elements % (size_t)info->block_elements != 0) return false;
    return dse_mul_size(elements / (size_t)info->block_elements, (size_t)info->block_bytes, bytes);
}

static float float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float dse_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1F;
    uint32_t mantissa = h & 0x3FF;
    if (exponent == 0) {
        /* Zero and subnormals: mantissa * 2^-24 is exact in f32. */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31) return float_from_bits(sign | 0x7F800000 | mantissa << 13);
    return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t dse_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return sign | 0x7E00;
    /* 65520 is the midpoint between the largest half and the next step: it and all above round to infinity. */
    if (magnitude >= 0x477FF000) return sign | 0x7C00;
    if (magnitude >= 0x38800000) {
        uint32_t rounded = magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1);
        return sign | (uint16_t)(rounded >> 13);
    }
    /* Below 2^-25 (the midpoint to the smallest subnormal, which ties to zero) nothing remains. */
    if (magnitude <= 0x33000000) return sign;
    uint32_t shift = 126 - (magnitude >> 23);
    uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    uint32_t half = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1);
    uint32_t middle = 1u << (shift - 1);
    if (rest > middle || (rest == middle && (half & 1))) half++;
    return sign | (uint16_t)half;
}

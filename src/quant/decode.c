/* Scalar decoders of every block format that files carry: the reference that kernels are compared with.
 *
 * Bit-exact by construction: products are formed in the order of the format's definition (scale times sub-scale first)
 * and never contracted. Sources may have any alignment. Callers pass whole blocks whose bytes were checked before.
 */
#include "quant/fp8.h"
#include "quant/types.h"

#include <math.h>
#include <string.h>

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static float load_half(const uint8_t *p)
{
    return dse_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static int nibble(const uint8_t *q, int j)
{
    return j < 16 ? q[j] & 15 : q[j - 16] >> 4;
}

static void decode_q4_0(const uint8_t *b, float *y)
{
    float d = load_half(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(nibble(b + 2, j) - 8);
}

static void decode_q4_1(const uint8_t *b, float *y)
{
    float d = load_half(b), m = load_half(b + 2);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)nibble(b + 4, j) + m;
}

static int five_bits(const uint8_t *high, const uint8_t *q, int j)
{
    return nibble(q, j) | (high[j / 8] >> (j % 8) & 1) << 4;
}

static void decode_q5_0(const uint8_t *b, float *y)
{
    float d = load_half(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(five_bits(b + 2, b + 6, j) - 16);
}

static void decode_q5_1(const uint8_t *b, float *y)
{
    float d = load_half(b), m = load_half(b + 2);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)five_bits(b + 4, b + 8, j) + m;
}

static void decode_q8_0(const uint8_t *b, float *y)
{
    float d = load_half(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)b[2 + j];
}

static void decode_iq4_nl(const uint8_t *b, float *y)
{
    float d = load_half(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)iq4_values[nibble(b + 2, j)];
}

/* In the 256-blocks weight i belongs to half i/128, and two-bit fields of quarter (i mod 128)/32 sit at bit
 * 2*quarter. */

static void decode_q2_k(const uint8_t *b, float *y)
{
    float d = load_half(b + 80), dmin = load_half(b + 82);
    for (int i = 0; i < 256; i++) {
        int quarter = i % 128 / 32;
        int q = b[16 + 32 * (i / 128) + i % 32] >> 2 * quarter & 3;
        uint8_t s = b[i / 16];
        y[i] = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
    }
}

static void decode_q3_k(const uint8_t *b, float *y)
{
    const uint8_t *high = b, *low = b + 32, *scales = b + 96;
    float d = load_half(b + 108);
    for (int i = 0; i < 256; i++) {
        int quarter = i % 128 / 32, l = i % 32, j = i / 16;
        int q = (low[32 * (i / 128) + l] >> 2 * quarter & 3) - (high[l] >> (i / 32) & 1 ? 0 : 4);
        int scale = (scales[j % 8] >> 4 * (j / 8) & 15) | (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
        y[i] = d * (float)(scale - 32) * (float)q;
    }
}

/* Sub-block j's 6-bit scale and minimum out of the 12 bytes that Q4_K and Q5_K share. */
static void k_scale_min(const uint8_t *c, int j, int *scale, int *minimum)
{
    if (j < 4) {
        *scale = c[j] & 63;
        *minimum = c[j + 4] & 63;
    } else {
        *scale = (c[j + 4] & 15) | (c[j - 4] >> 6) << 4;
        *minimum = (c[j + 4] >> 4) | (c[j] >> 6) << 4;
    }
}

static void decode_q4_k(const uint8_t *b, float *y)
{
    float d = load_half(b), dmin = load_half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        k_scale_min(b + 4, j, &scale, &minimum);
        float ds = d * (float)scale, dm = dmin * (float)minimum;
        for (int l = 0; l < 32; l++) {
            int q = b[16 + 32 * (j / 2) + l] >> 4 * (j % 2) & 15;
            y[32 * j + l] = ds * (float)q - dm;
        }
    }
}

static void decode_q5_k(const uint8_t *b, float *y)
{
    float d = load_half(b), dmin = load_half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        k_scale_min(b + 4, j, &scale, &minimum);
        float ds = d * (float)scale, dm = dmin * (float)minimum;
        for (int l = 0; l < 32; l++) {
            int q = (b[48 + 32 * (j / 2) + l] >> 4 * (j % 2) & 15) | (b[16 + l] >> j & 1) << 4;
            y[32 * j + l] = ds * (float)q - dm;
        }
    }
}

static void decode_q6_k(const uint8_t *b, float *y)
{
    float d = load_half(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        int q = b[64 * half + 32 * (quarter % 2) + l] >> 4 * (quarter / 2) & 15;
        q |= (b[128 + 32 * half + l] >> 2 * quarter & 3) << 4;
        y[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(q - 32);
    }
}

static void decode_iq4_xs(const uint8_t *b, float *y)
{
    float d = load_half(b);
    int high = b[2] | b[3] << 8;
    for (int j = 0; j < 8; j++) {
        int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
        float ds = d * (float)(scale - 32);
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = ds * (float)iq4_values[nibble(b + 8 + 16 * j, l)];
    }
}

static void decode_f16(const uint8_t *b, float *y)
{
    *y = load_half(b);
}

static void decode_bf16(const uint8_t *b, float *y)
{
    *y = dse_bf16_to_f32((uint16_t)(b[0] | b[1] << 8));
}

static void decode_f8_e4m3(const uint8_t *b, float *y)
{
    *y = dse_f8_e4m3_to_f32(*b);
}

static void decode_f64(const uint8_t *b, float *y)
{
    double value;
    memcpy(&value, b, sizeof value);
    *y = (float)value;
}

void dse_type_decode(enum dse_type type, const void *source, float *out, size_t elements)
{
    void (*decode)(const uint8_t *block, float *values) = NULL;
    switch (type) {
    case DSE_TYPE_F32: memcpy(out, source, elements * sizeof *out); return;
    case DSE_TYPE_F16: decode = decode_f16; break;
    case DSE_TYPE_BF16: decode = decode_bf16; break;
    case DSE_TYPE_F64: decode = decode_f64; break;
    case DSE_TYPE_F8_E4M3: decode = decode_f8_e4m3; break;
    case DSE_TYPE_Q4_0: decode = decode_q4_0; break;
    case DSE_TYPE_Q4_1: decode = decode_q4_1; break;
    case DSE_TYPE_Q5_0: decode = decode_q5_0; break;
    case DSE_TYPE_Q5_1: decode = decode_q5_1; break;
    case DSE_TYPE_Q8_0: decode = decode_q8_0; break;
    case DSE_TYPE_Q2_K: decode = decode_q2_k; break;
    case DSE_TYPE_Q3_K: decode = decode_q3_k; break;
    case DSE_TYPE_Q4_K: decode = decode_q4_k; break;
    case DSE_TYPE_Q5_K: decode = decode_q5_k; break;
    case DSE_TYPE_Q6_K: decode = decode_q6_k; break;
    case DSE_TYPE_IQ4_NL: decode = decode_iq4_nl; break;
    case DSE_TYPE_IQ4_XS: decode = decode_iq4_xs; break;
    default:
        /* Not decodable: callers look at dse_type_info first; defined output keeps a mistake visible. */
        memset(out, 0, elements * sizeof *out);
        return;
    }
    const struct dse_type_info *info = dse_type_info(type);
    const uint8_t *block = source;
    for (size_t i = 0; i < elements; i += (size_t)info->block_elements, block += info->block_bytes)
        decode(block, out + i);
}

/* Where a block's two halves lie, and the most they are multiplied by: sub-scale times value, and sub-minimum. */
float dse_type_block_bound(enum dse_type type, const void *block)
{
    const uint8_t *b = block;
    switch (type) {
    case DSE_TYPE_Q4_0: return fabsf(load_half(b)) * 8;
    case DSE_TYPE_Q4_1: return fabsf(load_half(b)) * 15 + fabsf(load_half(b + 2));
    case DSE_TYPE_Q5_0: return fabsf(load_half(b)) * 16;
    case DSE_TYPE_Q5_1: return fabsf(load_half(b)) * 31 + fabsf(load_half(b + 2));
    case DSE_TYPE_Q8_0: return fabsf(load_half(b)) * 128;
    case DSE_TYPE_Q2_K: return fabsf(load_half(b + 80)) * (15 * 3) + fabsf(load_half(b + 82)) * 15;
    case DSE_TYPE_Q3_K: return fabsf(load_half(b + 108)) * (32 * 4);
    case DSE_TYPE_Q4_K: return fabsf(load_half(b)) * (63 * 15) + fabsf(load_half(b + 2)) * 63;
    case DSE_TYPE_Q5_K: return fabsf(load_half(b)) * (63 * 31) + fabsf(load_half(b + 2)) * 63;
    case DSE_TYPE_Q6_K: return fabsf(load_half(b + 208)) * (128 * 32);
    case DSE_TYPE_IQ4_NL: return fabsf(load_half(b)) * 127;
    case DSE_TYPE_IQ4_XS: return fabsf(load_half(b)) * (32 * 127);
    default: return INFINITY;
    }
}

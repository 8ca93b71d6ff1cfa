/* File blocks of the formats without a layout of their own, taken apart into the affine s8 form, exactly. Called by
 * pack.c.
 *
 * Block layouts: the GGUF specification; dse_type_decode is the reference the result is compared with.
 */
#include <string.h>

#include "kernels/pack.h"

/* The non-linear 4-bit code book of IQ4_NL and IQ4_XS. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16;
}

static void set_scale(struct dse_a8_block *b, uint16_t d, int scale)
{
    b->d = d;
    b->scale[0] = b->scale[1] = (int8_t)scale;
}

/* Bit j of high is the fifth bit of quant j. */
static void five_bits(const uint8_t *nibbles, uint32_t high, int offset, int8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((nibbles[i] & 15) + (int)(high >> i & 1) * 16 - offset);
        q[16 + i] = (int8_t)((nibbles[i] >> 4) + (int)(high >> (16 + i) & 1) * 16 - offset);
    }
}

static void unpack_q5_0(const uint8_t *source, struct dse_a8_block *out)
{
    set_scale(out, load16(source), 1);
    five_bits(source + 6, load32(source + 2), 16, out->q);
}

/* d * q + m is d * q - (-m) * 1. */
static void unpack_q5_1(const uint8_t *source, struct dse_a8_block *out)
{
    set_scale(out, load16(source), 1);
    out->dmin = load16(source + 2) ^ 0x8000;
    out->min[0] = out->min[1] = 1;
    five_bits(source + 8, load32(source + 4), 0, out->q);
}

static void unpack_iq4_nl(const uint8_t *source, struct dse_a8_block *out)
{
    set_scale(out, load16(source), 1);
    for (int i = 0; i < 16; i++) {
        out->q[i] = iq4_values[source[2 + i] & 15];
        out->q[16 + i] = iq4_values[source[2 + i] >> 4];
    }
}

static void unpack_iq4_xs(const uint8_t *source, struct dse_a8_block *out)
{
    unsigned high = load16(source + 2);
    for (int j = 0; j < 8; j++) {
        int low = source[4 + j / 2] >> (j % 2 * 4) & 15;
        const uint8_t *q = source + 8 + 16 * j;
        set_scale(&out[j], load16(source), (low | (int)(high >> 2 * j & 3) << 4) - 32);
        for (int i = 0; i < 16; i++) {
            out[j].q[i] = iq4_values[q[i] & 15];
            out[j].q[16 + i] = iq4_values[q[i] >> 4];
        }
    }
}

static void unpack_q2_k(const uint8_t *source, struct dse_a8_block *out)
{
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = source + 16 + 32 * (j / 4);
        out[j].d = load16(source + 80);
        out[j].dmin = load16(source + 82);
        for (int h = 0; h < 2; h++) {
            out[j].scale[h] = (int8_t)(source[2 * j + h] & 15);
            out[j].min[h] = source[2 * j + h] >> 4;
        }
        for (int i = 0; i < 32; i++)
            out[j].q[i] = (int8_t)(q[i] >> 2 * (j % 4) & 3);
    }
}

static void unpack_q3_k(const uint8_t *source, struct dse_a8_block *out)
{
    const uint8_t *scales = source + 96;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = source + 32 + 32 * (j / 4);
        out[j].d = load16(source + 108);
        for (int h = 0; h < 2; h++) {
            int s = 2 * j + h;
            int scale = (scales[s % 8] >> (s / 8 * 4) & 15) | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4;
            out[j].scale[h] = (int8_t)(scale - 32);
        }
        for (int i = 0; i < 32; i++)
            out[j].q[i] = (int8_t)((q[i] >> 2 * (j % 4) & 3) - (source[i] >> j & 1 ? 0 : 4));
    }
}

static void unpack_q5_k(const uint8_t *source, struct dse_a8_block *out)
{
    uint8_t scale[8], min[8];
    dse_k_scales_unpack(source + 4, scale, min);
    for (int j = 0; j < 8; j++) {
        const uint8_t *qh = source + 16, *q = source + 48 + 32 * (j / 2);
        set_scale(&out[j], load16(source), scale[j]);
        out[j].dmin = load16(source + 2);
        out[j].min[0] = out[j].min[1] = min[j];
        for (int i = 0; i < 32; i++)
            out[j].q[i] = (int8_t)((q[i] >> (j % 2 * 4) & 15) + (qh[i] >> j & 1) * 16);
    }
}

void dse_a8_unpack(enum dse_type type, const uint8_t *source, struct dse_a8_block *out)
{
    memset(out, 0, sizeof *out * (size_t)(dse_type_info((uint32_t)type)->block_elements / 32));
    switch (type) {
    case DSE_TYPE_Q5_0: unpack_q5_0(source, out); return;
    case DSE_TYPE_Q5_1: unpack_q5_1(source, out); return;
    case DSE_TYPE_Q2_K: unpack_q2_k(source, out); return;
    case DSE_TYPE_Q3_K: unpack_q3_k(source, out); return;
    case DSE_TYPE_Q5_K: unpack_q5_k(source, out); return;
    case DSE_TYPE_IQ4_NL: unpack_iq4_nl(source, out); return;
    case DSE_TYPE_IQ4_XS: unpack_iq4_xs(source, out); return;
    default: return;
    }
}

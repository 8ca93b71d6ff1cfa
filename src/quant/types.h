/* Element types of weight files: GGML numbers, block shapes, decoding.
 *
 * Layouts: the GGUF specification; the decoders here are the scalar reference
 * that every kernel is compared with.
 */
#ifndef DSE_QUANT_TYPES_H
#define DSE_QUANT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are GGML's type numbers as stored in GGUF files. */
enum dse_type {
    DSE_TYPE_F32 = 0,
    DSE_TYPE_F16 = 1,
    DSE_TYPE_Q4_0 = 2,
    DSE_TYPE_Q4_1 = 3,
    DSE_TYPE_Q5_0 = 6,
    DSE_TYPE_Q5_1 = 7,
    DSE_TYPE_Q8_0 = 8,
    DSE_TYPE_Q2_K = 10,
    DSE_TYPE_Q3_K = 11,
    DSE_TYPE_Q4_K = 12,
    DSE_TYPE_Q5_K = 13,
    DSE_TYPE_Q6_K = 14,
    DSE_TYPE_IQ4_NL = 20,
    DSE_TYPE_IQ4_XS = 23,
    DSE_TYPE_I8 = 24,
    DSE_TYPE_I16 = 25,
    DSE_TYPE_I32 = 26,
    DSE_TYPE_I64 = 27,
    DSE_TYPE_F64 = 28,
    DSE_TYPE_BF16 = 30,
    DSE_TYPE_F8_E4M3 =
        0x108, /* of ours, only in safetensors: e4m3fn, 1 byte; a matrix has a scale per 128 x 128 block */
    DSE_TYPE_UNREADABLE =
        0xFFFF, /* of ours, in no file: a tensor that is listed but whose type we do not compute with */
};

struct dse_type_info {
    const char *name;   /* "q4_k" */
    int block_elements; /* 1, 32 or 256 */
    int block_bytes;
    bool decodable; /* dse_type_decode can turn it into f32 */
};

/* Side of the square of weights that share a scale in F8_E4M3 matrices. */
#define DSE_F8_BLOCK 128

/* NULL for a number we do not know. */
const struct dse_type_info *dse_type_info(uint32_t type);

/* elements is a multiple of the block size. F8_E4M3 comes without the scale of its block: see quant/fp8.h. */
void dse_type_decode(enum dse_type type, const void *source, float *out, size_t elements);

/* At least the largest magnitude that this block decodes to, from its scales alone; NaN if one of them is. INFINITY for
 * types whose blocks have none. */
float dse_type_block_bound(enum dse_type type, const void *block);

/* Bytes of a row of `elements`; false on overflow or if elements is not a whole number of blocks. */
bool dse_type_row_bytes(enum dse_type type, size_t elements, size_t *bytes);

/* IEEE half and bfloat16, round to nearest even. */
float dse_f16_to_f32(uint16_t h);
uint16_t dse_f32_to_f16(float f);
static inline float dse_bf16_to_f32(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)b << 16};
    return v.f;
}

#endif

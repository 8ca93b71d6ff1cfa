/* Bytes of the packed layouts: what pack.c writes and the kernels in this folder read. Nobody else looks inside.
 *
 * A panel is 16 rows. Quantized panels are blocks of 32 columns (256 for the K layouts), one after the other. A "dword
 * row" is 64 bytes: dword r belongs to row r, its four bytes are four neighbouring columns, so that one broadcast of
 * four activation bytes meets 16 rows. A nibble plane has four dword rows v = 0..3: byte c of a dword holds column 4v+c
 * in its low and column 16+4v+c in its high nibble, so low nibbles are the first half of the block and high ones the
 * second.
 */
#ifndef DSE_KERNELS_MATMUL_LAYOUT_H
#define DSE_KERNELS_MATMUL_LAYOUT_H

#include <stddef.h>

/* U4 per 32: 16 f16 d, 16 f16 m, nibble plane. Weight = d * u + m. */
#define DSE_U4_M      32
#define DSE_U4_QUANTS 64
#define DSE_U4_BYTES  320

/* U4S per 32: 16 f16 d, nibble plane. Weight = d * (u - 8). */
#define DSE_U4S_QUANTS 32
#define DSE_U4S_BYTES  288

/* U4K per 256: 16 f16 d, 16 f16 dmin, then 8 times: 16 u8 scale, 16 u8 min, nibble plane.
 * Weight = d * scale * u - dmin * min. */
#define DSE_U4K_DMIN         32
#define DSE_U4K_BLOCKS       64
#define DSE_U4K_BLOCK_MIN    16
#define DSE_U4K_BLOCK_QUANTS 32
#define DSE_U4K_BLOCK_BYTES  288
#define DSE_U4K_BYTES        (DSE_U4K_BLOCKS + 8 * DSE_U4K_BLOCK_BYTES)

/* Q8 per 32: 16 f16 d, 8 dword rows of s8 (row s: columns 4s..4s+3). Weight = d * q. */
#define DSE_Q8_QUANTS 32
#define DSE_Q8_BYTES  544

/* Q6K per 256: 16 f16 d, then 8 times: 16 s8 scales of the first half, 16 of the second, nibble plane (low four bits),
 * and two dword rows g = 0..1 of high bits: bits 0-1 of byte c for column 8g+c, 2-3 for 16+8g+c, 4-5 for 8g+4+c, 6-7
 * for 16+8g+4+c. Weight = d * scale * (u - 32). */
#define DSE_Q6K_BLOCKS       32
#define DSE_Q6K_BLOCK_QUANTS 32
#define DSE_Q6K_BLOCK_HIGH   288
#define DSE_Q6K_BLOCK_BYTES  416
#define DSE_Q6K_BYTES        (DSE_Q6K_BLOCKS + 8 * DSE_Q6K_BLOCK_BYTES)

/* A8 per 32: 16 f16 d, 16 f16 dmin, [2 halves][16] s8 scale, [2 halves][16] u8 min, 8 dword rows of s8 as in Q8.
 * Weight = d * scale * q - dmin * min. */
#define DSE_A8_DMIN   32
#define DSE_A8_SCALES 64
#define DSE_A8_MINS   96
#define DSE_A8_QUANTS 128
#define DSE_A8_BYTES  640

/* FP8 per 128 columns, the last block of a panel may have fewer: 16 f32 scales * 2^8, [columns][16] e4m3. A lane has
 * its own scale because the rows of a panel may lie in two blocks of the source. Weight = e4m3 * scale. The 2^8 is for
 * kernels that read the bits as f16, whose exponent bias is 8 larger: one product gives the weight, rounded once. */
#define DSE_FP8_COLS   128
#define DSE_FP8_QUANTS 64
#define DSE_FP8_BYTES  2112
static inline size_t dse_fp8_block_cols(size_t cols, size_t begin)
{
    return cols - begin < DSE_FP8_COLS ? cols - begin : DSE_FP8_COLS;
}

#endif

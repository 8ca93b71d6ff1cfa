/* Matmul of the Q6K layout with s8 activations, AVX2. Called through matmul.c; the result is that of quant_scalar.c.
 *
 * Quants stay unsigned (u = q + 32): two products fit int16 (2 * 2 * 63 * 127 = 32004), the s8 scale of the half is
 * applied by vpmaddwd. The 32 * scale * (sum of a) that this adds is what the integer sum starts from, negated.
 *
 * Unpacking costs about as much as multiplying with two rows. With more than one tile of rows some blocks are unpacked
 * into the L1 first, then multiplied with all rows.
 */
#include "kernels/matmul/tile_avx2.h"

/* Two neighbouring dword rows of 8 weight rows: quants of both halves of the block. */
struct q6_quants {
    __m256i low[2], high[2];
};

DSE_INLINE void unpack(const uint8_t *block, int g, int h, struct q6_quants *u)
{
    const __m256i low_mask = _mm256_set1_epi8(15), top_mask = _mm256_set1_epi8(0x30);
    __m256i w0 = load_256(block + DSE_Q6K_BLOCK_QUANTS + 128 * g + 32 * h);
    __m256i w1 = load_256(block + DSE_Q6K_BLOCK_QUANTS + 128 * g + 64 + 32 * h);
    __m256i top = load_256(block + DSE_Q6K_BLOCK_HIGH + 64 * g + 32 * h);
    u->low[0] = _mm256_or_si256(_mm256_and_si256(w0, low_mask), _mm256_and_si256(_mm256_slli_epi16(top, 4), top_mask));
    u->high[0] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w0, 4), low_mask),
                                 _mm256_and_si256(_mm256_slli_epi16(top, 2), top_mask));
    u->low[1] = _mm256_or_si256(_mm256_and_si256(w1, low_mask), _mm256_and_si256(top, top_mask));
    u->high[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w1, 4), low_mask),
                                 _mm256_and_si256(_mm256_srli_epi16(top, 2), top_mask));
}

DSE_INLINE __m256i multiply_two(const __m256i u[2], const int8_t *a)
{
    return _mm256_add_epi16(_mm256_maddubs_epi16(u[0], broadcast_4(a)), _mm256_maddubs_epi16(u[1], broadcast_4(a + 4)));
}

/* Of rows 8h..8h+7: s8 scales of the halves of a block as pairs of s16, and what the sums of a are multiplied with. */
struct q6_scales {
    __m256i low, high, offset;
};

DSE_INLINE struct q6_scales load_scales(const uint8_t *block, int h)
{
    return (struct q6_scales){
        .low = pair_s8(block, block, h),
        .high = pair_s8(block + 16, block + 16, h),
        .offset = _mm256_mullo_epi16(pair_s8(block, block + 16, h), _mm256_set1_epi16(-32)),
    };
}

DSE_INLINE void begin_sums(__m256i offset, size_t b, const struct tile_act *act, int ny, __m256i *sum)
{
    for (int j = 0; j < ny; j++)
        sum[j] = _mm256_madd_epi16(offset, broadcast_4(act->half_sums[j] + 2 * b));
}

DSE_INLINE void end_sums(const uint8_t *super, int h, size_t b, const struct tile_act *act, int ny, const __m256i *sum,
                         __m256 (*acc)[2])
{
    __m256 d = load_f16(super, h);
    for (int j = 0; j < ny; j++) {
        __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(act->scales[j] + b));
        acc[j][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j]), scale, acc[j][h]);
    }
}

DSE_INLINE void add_q6k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    const uint8_t *super = panel + b / 8 * DSE_Q6K_BYTES;
    const uint8_t *block = super + DSE_Q6K_BLOCKS + b % 8 * DSE_Q6K_BLOCK_BYTES;
    for (int h = 0; h < 2; h++) {
        reload(&b);
        const struct q6_scales scales = load_scales(block, h);
        __m256i sum[4];
        begin_sums(scales.offset, b, act, ny, sum);
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
            struct q6_quants u;
            unpack(block, g, h, &u);
#pragma GCC unroll 4
            for (int j = 0; j < ny; j++) {
                const int8_t *a = act->values[j] + 32 * b + 8 * g;
                __m256i low = _mm256_madd_epi16(multiply_two(u.low, a), scales.low);
                __m256i high = _mm256_madd_epi16(multiply_two(u.high, a + 16), scales.high);
                sum[j] = _mm256_add_epi32(sum[j], _mm256_add_epi32(low, high));
            }
        }
        end_sums(super, h, b, act, ny, sum, acc);
    }
}

/* Unpacked at a time: they stay in the L1 beside the activations of a tile. */
#define CHUNK_BLOCKS 16

/* A block whose quants are bytes, in dword rows of increasing columns. */
struct q6_unpacked {
    uint8_t quants[8][64];
    struct q6_scales scales[2];
};

static void unpack_blocks(const uint8_t *panel, size_t begin, size_t end, struct q6_unpacked *out)
{
    for (size_t b = begin; b < end; b++, out++) {
        const uint8_t *block = panel + b / 8 * DSE_Q6K_BYTES + DSE_Q6K_BLOCKS + b % 8 * DSE_Q6K_BLOCK_BYTES;
        for (int h = 0; h < 2; h++) {
            out->scales[h] = load_scales(block, h);
            for (int g = 0; g < 2; g++) {
                struct q6_quants u;
                unpack(block, g, h, &u);
                for (int i = 0; i < 2; i++) {
                    _mm256_store_si256((__m256i *)(out->quants[2 * g + i] + 32 * h), u.low[i]);
                    _mm256_store_si256((__m256i *)(out->quants[4 + 2 * g + i] + 32 * h), u.high[i]);
                }
            }
        }
    }
}

DSE_INLINE void add_unpacked(const struct q6_unpacked *block, const uint8_t *super, size_t b,
                             const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    for (int h = 0; h < 2; h++) {
        __m256i sum[4];
        reload(&b);
        begin_sums(block->scales[h].offset, b, act, ny, sum);
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++) {
            const __m256i u[2] = {load_256(block->quants[2 * s] + 32 * h), load_256(block->quants[2 * s + 1] + 32 * h)};
            const __m256i scale = s < 2 ? block->scales[h].low : block->scales[h].high;
#pragma GCC unroll 4
            for (int j = 0; j < ny; j++) {
                __m256i products = multiply_two(u, act->values[j] + 32 * b + 8 * s);
                sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(products, scale));
            }
        }
        end_sums(super, h, b, act, ny, sum, acc);
    }
}

/* Blocks begin..end-1 of a panel, unpacked, times ny rows: added to what is in out, or to zero. */
DSE_INLINE void add_chunk(const struct dse_matmul_job *job, const uint8_t *panel, const struct q6_unpacked *unpacked,
                          size_t begin, size_t end, size_t first, int ny, float *out, struct dse_matmul_fetch *fetch)
{
    struct tile_act act;
    tile_sums acc[TILE_ROWS];
    set_rows(job, first, (size_t)ny, &act);
    for (int j = 0; j < ny; j++)
        for (int h = 0; h < 2; h++)
            acc[j][h] = begin == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(out + j * DSE_PANEL_ROWS + 8 * h);
    for (size_t b = begin; b < end; b++) {
        dse_matmul_fetch_some(fetch);
        add_unpacked(unpacked + (b - begin), panel + b / 8 * DSE_Q6K_BYTES, b, &act, ny, acc);
    }
    for (int j = 0; j < ny; j++)
        store_sums_of(out + j * DSE_PANEL_ROWS, &acc[j]);
}

static void run_unpacked(const struct dse_matmul_job *job)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    struct q6_unpacked unpacked[CHUNK_BLOCKS];
    for (size_t p = 0; p < job->n_panels; p++) {
        const uint8_t *panel = job->panels + p * job->panel_bytes;
        struct dse_matmul_fetch fetch = dse_matmul_fetch_after(job, panel, (job->n_rows + TILE_ROWS - 1) / TILE_ROWS);
        for (size_t begin = 0, end; begin < blocks; begin = end) {
            end = blocks - begin < CHUNK_BLOCKS ? blocks : begin + CHUNK_BLOCKS;
            unpack_blocks(panel, begin, end, unpacked);
            for (size_t i = 0; i < job->n_rows; i += TILE_ROWS) {
                float *out = job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS;
                switch (job->n_rows - i) {
                case 1: add_chunk(job, panel, unpacked, begin, end, i, 1, out, &fetch); break;
                case 2: add_chunk(job, panel, unpacked, begin, end, i, 2, out, &fetch); break;
                case 3: add_chunk(job, panel, unpacked, begin, end, i, 3, out, &fetch); break;
                default: add_chunk(job, panel, unpacked, begin, end, i, TILE_ROWS, out, &fetch); break;
                }
            }
        }
    }
}

void dse_matmul_q6k_avx2(const struct dse_matmul_job *job)
{
    if (job->n_rows > TILE_ROWS)
        run_unpacked(job);
    else
        run_blocks(job, add_q6k);
}

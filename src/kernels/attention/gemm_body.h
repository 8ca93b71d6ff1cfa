/* The two small matrix products of attention (scores from K, output from V), written once over 16 lanes; included by
 * gemm_<isa>.c, which defines DSE_NAME(op).
 *
 * The tile is as many query columns as fit in registers by one or two vectors of b; b is read once per tile and each of
 * its rows is broadcast against the columns. Accumulators start from out or zero and take one fma per term, so an
 * element's bits do not depend on the tile.
 */
#include "kernels/attention.h"
#include "kernels/vector/v16.h"

#if defined(__AVX512F__)
enum { MAX_COLUMNS = 8, MAX_COLUMNS_OF_TWO = 8 };
#elif defined(__AVX2__) || defined(DSE_V16_NEON)
enum { MAX_COLUMNS = 6, MAX_COLUMNS_OF_TWO = 3 };
#else
enum { MAX_COLUMNS = 4, MAX_COLUMNS_OF_TWO = 0 };
#endif

DSE_INLINE v16 load_b(const void *b, bool half, size_t index)
{
    return half ? v16_load_f16((const uint16_t *)b + index) : v16_load((const float *)b + index);
}

/* columns and vectors are constants at every call, so that acc lives in registers. */
DSE_INLINE void tile(const float *restrict a, size_t a_stride, const void *restrict b, bool half, size_t b_stride,
                     size_t k, float *restrict out, size_t out_stride, bool add, int columns, int vectors)
{
    v16 acc[MAX_COLUMNS][2];
    for (int c = 0; c < columns; c++)
        for (int v = 0; v < vectors; v++)
            acc[c][v] = add ? v16_load(out + (size_t)c * out_stride + 16 * (size_t)v) : v16_set1(0.0f);
    for (size_t i = 0; i < k; i++) {
        for (int v = 0; v < vectors; v++) {
            v16 bv = load_b(b, half, i * b_stride + 16 * (size_t)v);
            /* the broadcasts are repeated for the second vector: kept, they would push an accumulator out */
            __asm__("" : "+r"(a));
            for (int c = 0; c < columns; c++)
                acc[c][v] = v16_fma(v16_set1(a[(size_t)c * a_stride + i]), bv, acc[c][v]);
        }
    }
    for (int c = 0; c < columns; c++)
        for (int v = 0; v < vectors; v++)
            v16_store(out + (size_t)c * out_stride + 16 * (size_t)v, acc[c][v]);
}

DSE_INLINE void tile_columns(const float *a, size_t a_stride, const void *b, bool half, size_t b_stride, size_t k,
                             float *out, size_t out_stride, bool add, int columns, int vectors)
{
    switch (columns) {
    case 1: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 1, vectors); break;
    case 2: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 2, vectors); break;
    case 3: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 3, vectors); break;
    case 4: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 4, vectors); break;
#if defined(__AVX2__) || defined(DSE_V16_NEON)
    case 5: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 5, vectors); break;
    case 6: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 6, vectors); break;
#endif
#if defined(__AVX512F__)
    case 7: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 7, vectors); break;
    case 8: tile(a, a_stride, b, half, b_stride, k, out, out_stride, add, 8, vectors); break;
#endif
    default: break;
    }
}

/* Vectors of b outside, columns inside: a stretch of b, k rows high, is read from afar once and stays in the L1 for the
 * other columns. */
DSE_INLINE void product(const float *a, size_t a_stride, size_t n_columns, const void *b, bool half, size_t b_stride,
                        size_t k, size_t n, float *out, size_t out_stride, bool add)
{
    size_t n_tiles = (n_columns + MAX_COLUMNS - 1) / MAX_COLUMNS;
    size_t element = half ? sizeof(uint16_t) : sizeof(float), step;
    for (size_t j = 0; j < n; j += step) {
        int vectors = n_columns <= n_tiles * MAX_COLUMNS_OF_TWO && j + 32 <= n ? 2 : 1;
        const uint8_t *bj = (const uint8_t *)b + j * element;
        step = 16 * (size_t)vectors;
        for (size_t t = 0, c = 0, columns; t < n_tiles; t++, c += columns) {
            columns = (n_columns - c + (n_tiles - t) - 1) / (n_tiles - t);
            const float *ac = a + c * a_stride;
            float *oc = out + c * out_stride + j;
            if (vectors == 2)
                tile_columns(ac, a_stride, bj, half, b_stride, k, oc, out_stride, add, (int)columns, 2);
            else
                tile_columns(ac, a_stride, bj, half, b_stride, k, oc, out_stride, add, (int)columns, 1);
        }
    }
}

dse_attention_fn DSE_NAME(attention_f16);
void DSE_NAME(attention_f16)(const float *a, size_t a_stride, size_t n_columns, const void *b, size_t b_stride,
                             size_t k, size_t n, float *out, size_t out_stride, bool add)
{
    product(a, a_stride, n_columns, b, true, b_stride, k, n, out, out_stride, add);
}

dse_attention_fn DSE_NAME(attention_f32);
void DSE_NAME(attention_f32)(const float *a, size_t a_stride, size_t n_columns, const void *b, size_t b_stride,
                             size_t k, size_t n, float *out, size_t out_stride, bool add)
{
    product(a, a_stride, n_columns, b, false, b_stride, k, n, out, out_stride, add);
}

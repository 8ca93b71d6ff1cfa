/* Attention of a tile of query rows over one 256-key split: the piece that every attention is made of, for ordinary
 * heads and for latent attention.
 *
 * Called by the CPU device, which cuts a batch into tiles and splits, gives them to threads and merges the partial
 * results in ascending order. A partial result depends on its own query row only, never on the tile it was computed in.
 */
#ifndef DSE_KERNELS_ATTENTION_H
#define DSE_KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kv_layout.h"
#include "kernels/vector.h"

/* Query columns (row, head) that one tile may have. */
#define DSE_ATTENTION_COLUMNS 32
/* Floats from one column's scores to the next: not a power of two, or all columns would share a few sets of the L1. */
#define DSE_ATTENTION_SCORES (DSE_KV_SPLIT_TOKENS + 16)

/* out[c][j] (+)= sum over i of a[c][i] * b[i][j], i ascending, one fma per term. n is a multiple of 16. */
typedef void dse_attention_fn(const float *a, size_t a_stride, size_t n_columns, const void *b, size_t b_stride,
                              size_t k, size_t n, float *out, size_t out_stride, bool add);

struct dse_attention_ops {
    dse_attention_fn *product_f16, *product_f32; /* by the element type of b */
    struct dse_vector_ops vector;
};
void dse_attention_ops_pick(struct dse_attention_ops *ops);

/* head_dim rounded up to whole vectors: the stride of everything per column below. */
static inline size_t dse_attention_width(int head_dim)
{
    return ((size_t)head_dim + 15) / 16 * 16;
}

/* Latent attention: a query is [absorbed (latent) | rotated (rope)], as a row of the cache is; a result is `latent`
 * values. */
static inline size_t dse_latent_key_width(int latent, int rope)
{
    return dse_attention_width(latent + rope) | 16; /* an odd number of cache lines: rows do not share their places */
}
static inline size_t dse_latent_width(const struct dse_kv_layout *layout)
{
    return dse_attention_width(layout->latent);
}

/* A column is one query head of one row; columns of a row are adjacent, rows ascend by position. */
struct dse_attention_tile {
    const struct dse_kv_layout *layout;
    const struct dse_kv_view *kv; /* of the sequence */
    int layer, kv_head;
    int n_rows, group;   /* n_rows * group columns, at most DSE_ATTENTION_COLUMNS */
    const int32_t *last; /* [n_rows], ascending: the last key that a row sees */
    /* Latent only. NULL: keys are positions 0, 1, 2 … Else a tile of one row, whose keys are these positions,
     * ascending; `last` and splits count in this list. */
    const int32_t *keys;
    /* Already multiplied by the softmax scale. [columns][width]; latent: [latent + rope][DSE_ATTENTION_COLUMNS],
     * columns up to the next multiple of 16 are zero. */
    const float *q;
    float *scores; /* scratch [columns][DSE_ATTENTION_SCORES] */
    float *block;  /* scratch [32][width or key width], keys or values of a block in f32 */
    float *dots;   /* latent: scratch [32][DSE_ATTENTION_COLUMNS] */
};

/* The keys [split * 256, split * 256 + 256) as far as each row may see them. Writes m, l [columns] and o
 * [columns][width]; rows that see none of these keys get nothing written. */
typedef void dse_attention_split_fn(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                                    int split, float *m, float *l, float *o);
dse_attention_split_fn dse_attention_split;        /* ordinary heads; width: dse_attention_width(head_dim) */
dse_attention_split_fn dse_latent_attention_split; /* width: dse_latent_width */

#endif

/* Latent attention in expanded form, one head and one 256-key split at a time: keys and values of the split are
 * computed from the latents in the cache, then rows attend to them as ordinary heads do.
 *
 * Called by the CPU device (cpu_expanded.c) for many rows of one sequence, where it takes fewer multiplications than
 * the absorbed form. What a row gets depends on its query and on the cache only, never on the rows beside it.
 */
#ifndef DSE_KERNELS_EXPANDED_H
#define DSE_KERNELS_EXPANDED_H

#include "kernels/attention.h"
#include "kernels/matrix.h"

/* Keys that are computed from their latents together. */
#define DSE_EXPANDED_KEYS 64

/* Floats from one row to the next: an odd number of cache lines, so that rows do not share their places in the L1. */
static inline size_t dse_expanded_key_stride(int n)
{
    return dse_attention_width(n) | 16;
}
static inline size_t dse_expanded_value_stride(int v)
{
    return dse_attention_width(v) | 16;
}

struct dse_expanded_split {
    const struct dse_kv_layout *layout;
    const struct dse_kv_view *kv; /* of the sequence */
    int layer;
    const struct dse_matrix *k, *v; /* of the head: latent to key [nope, R], latent to value [v, R] */
    size_t first_key, n_keys;       /* of the sequence; at most DSE_KV_SPLIT_TOKENS, all of them stored */
    /* Scratch for DSE_EXPANDED_KEYS of them. */
    float *latents;   /* [][dse_latent_key_width] */
    void *latents_s8; /* dse_activation_bytes of the latents */
    float *plain;     /* [][dse_expanded_key_stride(nope)] */
    /* The result. */
    float *keys;   /* [nope + rope][DSE_ATTENTION_SCORES], a column per key */
    float *values; /* [n_keys][dse_expanded_value_stride(v)] */
};

/* Computes keys and values. */
void dse_expanded_fill(const struct dse_attention_ops *ops, const struct dse_expanded_split *split);

/* What dse_attention_split does, for a tile of rows of this head: its group is 1, its q
 * [columns][dse_expanded_key_stride(nope + rope)]; kv, block and dots are not used. o is [columns][width of v]. */
void dse_expanded_attend(const struct dse_attention_ops *ops, const struct dse_expanded_split *split,
                         const struct dse_attention_tile *tile, float *m, float *l, float *o);

#endif

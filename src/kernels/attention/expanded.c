/* One split of latent attention in expanded form (see kernels/expanded.h).
 *
 * The latents of a block of keys are read from the cache once, rounded to s8 if the weights want that, and go through
 * the two matrix products of the head. Keys are then turned so that they lie dimension-major, as the score product
 * reads them. Never reads a row of the cache beyond the last key of the split.
 */
#include "kernels/expanded.h"

#include <string.h>

#include "kernels/attention/split.h"

/* Rows of b that one pass of a product takes: with 16 lanes 8 KiB, which stay in the L1 beside the columns. */
#define PASS 128

/* A row of the cache in f32: the latent, then the rotated key part. */
static void widen(const struct dse_attention_ops *ops, const struct dse_kv_layout *layout, const uint8_t *row,
                  float *out)
{
    const size_t latent = (size_t)layout->latent, rope = (size_t)layout->rope;
    switch (layout->type) {
    case DSE_KV_F32: memcpy(out, row, (latent + rope) * sizeof *out); break;
    case DSE_KV_F16: ops->vector.widen((const uint16_t *)row, latent + rope, out); break;
    case DSE_KV_Q8_0:
        ops->vector.expand(row, latent, out);
        ops->vector.widen((const uint16_t *)(row + layout->row_bytes) - rope, rope, out + latent);
        break;
    }
}

static void read_latents(const struct dse_attention_ops *ops, const struct dse_expanded_split *split, size_t first,
                         size_t n, size_t stride)
{
    const struct dse_kv_layout *layout = split->layout;
    for (size_t i = 0; i < n; i++) {
        const size_t position = split->first_key + first + i;
        const size_t block = (size_t)split->kv->blocks[position / DSE_KV_BLOCK_TOKENS];
        const uint8_t *row = split->kv->pool + block * layout->block_bytes +
                             (size_t)split->layer * layout->layer_bytes +
                             position % DSE_KV_BLOCK_TOKENS * layout->row_bytes;
        widen(ops, layout, row, split->latents + i * stride);
    }
}

/* n rows of `width` values become columns. */
static void turn(const float *rows, size_t stride, size_t n, size_t width, float *columns)
{
    for (size_t i = 0; i < width; i++)
        for (size_t j = 0; j < n; j++)
            columns[i * DSE_ATTENTION_SCORES + j] = rows[j * stride + i];
}

void dse_expanded_fill(const struct dse_attention_ops *ops, const struct dse_expanded_split *split)
{
    const size_t latent = (size_t)split->layout->latent, rope = (size_t)split->layout->rope;
    const size_t stride = dse_latent_key_width(split->layout->latent, split->layout->rope), nope = split->k->rows;
    const size_t plain_stride = dse_expanded_key_stride((int)nope);
    const size_t value_stride = dse_expanded_value_stride((int)split->v->rows);
    struct dse_activation act = {.x = split->latents, .stride = stride};
    dse_activation_place(&act, split->latents_s8, DSE_EXPANDED_KEYS, latent);
    for (size_t first = 0; first < split->n_keys; first += DSE_EXPANDED_KEYS) {
        const size_t left = split->n_keys - first, n = left < DSE_EXPANDED_KEYS ? left : DSE_EXPANDED_KEYS;
        read_latents(ops, split, first, n, stride);
        if (dse_layout_uses_s8(split->k->layout) || dse_layout_uses_s8(split->v->layout))
            dse_activation_quantize(&act, latent, 0, n);
        dse_matmul(split->k, &act, n, 0, nope, NULL, false, split->plain, plain_stride);
        dse_matmul(split->v, &act, n, 0, split->v->rows, NULL, false, split->values + first * value_stride,
                   value_stride);
        turn(split->plain, plain_stride, n, nope, split->keys + first);
        turn(split->latents + latent, stride, n, rope, split->keys + nope * DSE_ATTENTION_SCORES + first);
    }
}

/* out (+)= a times rows [begin, end) of b, pass by pass: the same sums, each term in its turn. */
static void multiply(const struct dse_attention_ops *ops, const float *a, size_t a_stride, size_t n_columns,
                     const float *b, size_t b_stride, size_t begin, size_t end, size_t n, float *out, size_t out_stride)
{
    for (size_t i = begin, step; i < end; i += step) {
        step = end - i < PASS ? end - i : PASS;
        ops->product_f32(a + i, a_stride, n_columns, b + i * b_stride, b_stride, step, n, out, out_stride, i > 0);
    }
}

void dse_expanded_attend(const struct dse_attention_ops *ops, const struct dse_expanded_split *split,
                         const struct dse_attention_tile *tile, float *m, float *l, float *o)
{
    const size_t key = split->k->rows + (size_t)split->layout->rope, width = dse_attention_width((int)split->v->rows);
    const size_t q_stride = dse_expanded_key_stride((int)key);
    const size_t value_stride = dse_expanded_value_stride((int)split->v->rows);
    const int first_row = dse_attention_first_row(tile, split->first_key);
    if (first_row == tile->n_rows) return;

    size_t keys = dse_attention_visible(tile, tile->n_rows - 1, split->first_key);
    multiply(ops, tile->q + (size_t)first_row * q_stride, q_stride, (size_t)(tile->n_rows - first_row), split->keys,
             DSE_ATTENTION_SCORES, 0, key, (keys + 15) / 16 * 16,
             tile->scores + (size_t)first_row * DSE_ATTENTION_SCORES, DSE_ATTENTION_SCORES);
    dse_attention_softmax(ops, tile, first_row, split->first_key, m, l);
    /* behind the keys that all rows see come stretches that only the later rows see */
    size_t done = 0;
    for (int row = first_row; row < tile->n_rows; row++) {
        keys = dse_attention_visible(tile, row, split->first_key);
        multiply(ops, tile->scores + (size_t)row * DSE_ATTENTION_SCORES, DSE_ATTENTION_SCORES,
                 (size_t)(tile->n_rows - row), split->values, value_stride, done, keys, width, o + (size_t)row * width,
                 width);
        done = keys;
    }
}

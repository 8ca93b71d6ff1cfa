/* One split of attention: scores, softmax and weighted values of a tile of query columns over up to 256 keys.
 *
 * Reads whole blocks of 32 keys but uses, per row, only keys up to the row's position: what lies beyond may be garbage
 * or NaN and never enters an arithmetic operation whose result is kept.
 */
#include "kernels/attention/split.h"

#include <string.h>

#include "kernels/dispatch.h"

void dse_attention_ops_pick(struct dse_attention_ops *ops)
{
    ops->product_f16 = (dse_attention_fn *)dse_kernel_pick("attention", "f16")->function;
    ops->product_f32 = (dse_attention_fn *)dse_kernel_pick("attention", "f32")->function;
    dse_vector_ops_pick(&ops->vector);
}

size_t dse_attention_visible(const struct dse_attention_tile *tile, int row, size_t first_key)
{
    size_t end = (size_t)tile->last[row] + 1;
    if (end <= first_key) return 0;
    return end - first_key < DSE_KV_SPLIT_TOKENS ? end - first_key : DSE_KV_SPLIT_TOKENS;
}

int dse_attention_first_row(const struct dse_attention_tile *tile, size_t first_key)
{
    int row = 0;
    while (row < tile->n_rows && dse_attention_visible(tile, row, first_key) == 0)
        row++;
    return row;
}

size_t dse_attention_block_keys(const struct dse_attention_tile *tile, size_t first_key, size_t block)
{
    size_t keys = dse_attention_visible(tile, tile->n_rows - 1, first_key) - block * DSE_KV_BLOCK_TOKENS;
    return keys < DSE_KV_BLOCK_TOKENS ? keys : DSE_KV_BLOCK_TOKENS;
}

static void multiply(const struct dse_attention_ops *ops, const struct dse_attention_operand *b, const float *a,
                     size_t a_stride, size_t n_columns, size_t first, size_t k, size_t n, float *out, size_t out_stride,
                     bool add)
{
    size_t element = b->half ? sizeof(uint16_t) : sizeof(float);
    const uint8_t *data = (const uint8_t *)b->data + first * b->stride * element;
    dse_attention_fn *product = b->half ? ops->product_f16 : ops->product_f32;
    product(a, a_stride, n_columns, data, b->stride, k, n, out, out_stride, add);
}

void dse_attention_softmax(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int first_row,
                           size_t first_key, float *m, float *l)
{
    size_t group = (size_t)tile->group;
    for (int row = first_row; row < tile->n_rows; row++) {
        size_t keys = dse_attention_visible(tile, row, first_key);
        for (size_t c = (size_t)row * group; c < ((size_t)row + 1) * group; c++)
            l[c] = ops->vector.softmax(tile->scores + c * DSE_ATTENTION_SCORES, keys, &m[c]);
    }
}

/* Rows ascend by position, so behind the keys that all rows see come stretches that only the later rows see; each
 * stretch is a product with fewer columns. */
void dse_attention_add_values(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                              const struct dse_attention_operand *v, int first_row, size_t first_key, size_t block,
                              size_t width, float *o)
{
    size_t group = (size_t)tile->group, begin = block * DSE_KV_BLOCK_TOKENS, done = 0;
    size_t last = dse_attention_block_keys(tile, first_key, block);
    for (int row = first_row; row < tile->n_rows && done < last; row++) {
        size_t keys = dse_attention_visible(tile, row, first_key);
        keys = keys > begin ? keys - begin : 0;
        if (keys > last) keys = last;
        if (keys <= done) continue;
        size_t column = (size_t)row * group;
        multiply(ops, v, tile->scores + column * DSE_ATTENTION_SCORES + begin + done, DSE_ATTENTION_SCORES,
                 (size_t)(tile->n_rows - row) * group, done, keys - done, width, o + column * width, width,
                 begin + done > 0);
        done = keys;
    }
}

/* Values of n_keys keys: in place when their rows are whole vectors, else widened into the scratch block. */
static struct dse_attention_operand prepare(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                                            const uint8_t *area, size_t n_keys, size_t row, size_t padded)
{
    bool half = tile->layout->type == DSE_KV_F16;
    if (row == padded) return (struct dse_attention_operand){area, row, half};
    for (size_t i = 0; i < n_keys; i++) {
        float *out = tile->block + i * padded;
        if (half)
            ops->vector.widen((const uint16_t *)area + i * row, row, out);
        else
            memcpy(out, (const float *)area + i * row, row * sizeof *out);
        memset(out + row, 0, (padded - row) * sizeof *out);
    }
    return (struct dse_attention_operand){tile->block, padded, false};
}

static const uint8_t *head_block(const struct dse_attention_tile *tile, size_t block)
{
    return dse_attention_layer(tile, block) + (size_t)tile->kv_head * tile->layout->head_bytes;
}

void dse_attention_split(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int split,
                         float *m, float *l, float *o)
{
    const struct dse_kv_layout *layout = tile->layout;
    size_t width = dse_attention_width(layout->head_dim), group = (size_t)tile->group;
    size_t first_key = (size_t)split * DSE_KV_SPLIT_TOKENS, first_block = first_key / DSE_KV_BLOCK_TOKENS;
    size_t n_keys = dse_attention_visible(tile, tile->n_rows - 1, first_key);
    size_t n_blocks = (n_keys + DSE_KV_BLOCK_TOKENS - 1) / DSE_KV_BLOCK_TOKENS;
    int first_row = dse_attention_first_row(tile, first_key);
    if (first_row == tile->n_rows) return;

    for (size_t block = 0; block < n_blocks; block++) {
        int row = first_row; /* rows whose keys end before this block are skipped */
        while (dse_attention_visible(tile, row, first_key) <= block * DSE_KV_BLOCK_TOKENS)
            row++;
        size_t column = (size_t)row * group, n_columns = (size_t)(tile->n_rows - row) * group;
        if (block + 1 < n_blocks) dse_attention_fetch_ahead(head_block(tile, first_block + block + 1), layout->k_bytes);
        const struct dse_attention_operand k = {head_block(tile, first_block + block), DSE_KV_BLOCK_TOKENS,
                                                layout->type == DSE_KV_F16};
        multiply(ops, &k, tile->q + column * width, width, n_columns, 0, (size_t)layout->head_dim, DSE_KV_BLOCK_TOKENS,
                 tile->scores + column * DSE_ATTENTION_SCORES + block * DSE_KV_BLOCK_TOKENS, DSE_ATTENTION_SCORES,
                 false);
    }
    dse_attention_fetch_ahead(head_block(tile, first_block) + layout->k_bytes, layout->v_bytes);
    dse_attention_softmax(ops, tile, first_row, first_key, m, l);
    for (size_t block = 0; block < n_blocks; block++) {
        if (block + 1 < n_blocks)
            dse_attention_fetch_ahead(head_block(tile, first_block + block + 1) + layout->k_bytes, layout->v_bytes);
        struct dse_attention_operand v = prepare(ops, tile, head_block(tile, first_block + block) + layout->k_bytes,
                                                 dse_attention_block_keys(tile, first_key, block),
                                                 (size_t)layout->head_dim, width);
        dse_attention_add_values(ops, tile, &v, first_row, first_key, block, width, o);
    }
}

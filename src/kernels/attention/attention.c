/* One split of attention: scores, softmax and weighted values of a tile of query columns over up to 256 keys.
 *
 * Reads whole blocks of 32 keys but uses, per row, only keys up to the row's position: what lies beyond may be garbage or
 * NaN and never enters an arithmetic operation whose result is kept.
 */
#include "kernels/attention.h"

#include <string.h>

#include "kernels/dispatch.h"

void dse_attention_ops_pick(struct dse_attention_ops *ops)
{
    ops->product_f16 = (dse_attention_fn *)dse_kernel_pick("attention", "f16")->function;
    ops->product_f32 = (dse_attention_fn *)dse_kernel_pick("attention", "f32")->function;
    dse_vector_ops_pick(&ops->vector);
}

/* The second operand of a product: in place when its rows are whole vectors, else widened into the scratch block. */
struct operand {
    const void *data;
    size_t stride;
    bool half;
};

static struct operand prepare(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                              const uint8_t *area, size_t n_rows, size_t row, size_t padded)
{
    bool half = tile->layout->type == DSE_KV_F16;
    if (row == padded) return (struct operand){area, row, half};
    for (size_t i = 0; i < n_rows; i++) {
        float *out = tile->block + i * padded;
        if (half)
            ops->vector.widen((const uint16_t *)area + i * row, row, out);
        else
            memcpy(out, (const float *)area + i * row, row * sizeof *out);
        memset(out + row, 0, (padded - row) * sizeof *out);
    }
    return (struct operand){tile->block, padded, false};
}

/* Asks for a K or V area ahead of its use: areas of consecutive blocks lie far apart, where no hardware prefetcher
 * follows. */
static void fetch_ahead(const uint8_t *area, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(area + at);
}

static void multiply(const struct dse_attention_ops *ops, const struct operand *b, const float *a, size_t a_stride,
                     size_t n_columns, size_t first, size_t k, size_t n, float *out, size_t out_stride, bool add)
{
    size_t element = b->half ? sizeof(uint16_t) : sizeof(float);
    const uint8_t *data = (const uint8_t *)b->data + first * b->stride * element;
    dse_attention_fn *product = b->half ? ops->product_f16 : ops->product_f32;
    product(a, a_stride, n_columns, data, b->stride, k, n, out, out_stride, add);
}

static const uint8_t *head_block(const struct dse_attention_tile *tile, size_t block)
{
    const struct dse_kv_layout *layout = tile->layout;
    return tile->kv->pool + (size_t)tile->kv->blocks[block] * layout->block_bytes +
           (size_t)tile->layer * layout->layer_bytes + (size_t)tile->kv_head * layout->head_bytes;
}

/* Keys of the split that a row sees. */
static size_t visible(const struct dse_attention_tile *tile, int row, size_t first_key)
{
    size_t end = (size_t)tile->positions[row] + 1;
    if (end <= first_key) return 0;
    return end - first_key < DSE_KV_SPLIT_TOKENS ? end - first_key : DSE_KV_SPLIT_TOKENS;
}

/* Adds the block's values to o. Rows ascend by position, so behind the keys that all rows see come stretches that only
 * the later rows see; each stretch is a product with fewer columns. */
static void add_values(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int first_row,
                       size_t first_key, size_t block, float *o)
{
    size_t width = dse_attention_width(tile->layout->head_dim), group = (size_t)tile->group;
    size_t begin = block * DSE_KV_BLOCK_TOKENS, done = 0;
    const uint8_t *area = head_block(tile, first_key / DSE_KV_BLOCK_TOKENS + block) + tile->layout->k_bytes;
    size_t last = visible(tile, tile->n_rows - 1, first_key) - begin;
    if (last > DSE_KV_BLOCK_TOKENS) last = DSE_KV_BLOCK_TOKENS;
    struct operand v = prepare(ops, tile, area, last, (size_t)tile->layout->head_dim, width);
    for (int row = first_row; row < tile->n_rows && done < last; row++) {
        size_t keys = visible(tile, row, first_key);
        keys = keys > begin ? keys - begin : 0;
        if (keys > last) keys = last;
        if (keys <= done) continue;
        size_t column = (size_t)row * group;
        multiply(ops, &v, tile->scores + column * DSE_ATTENTION_SCORES + begin + done, DSE_ATTENTION_SCORES,
                 (size_t)(tile->n_rows - row) * group, done, keys - done, width, o + column * width, width,
                 begin + done > 0);
        done = keys;
    }
}

void dse_attention_split(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int split,
                         float *m, float *l, float *o)
{
    size_t width = dse_attention_width(tile->layout->head_dim), group = (size_t)tile->group;
    size_t first_key = (size_t)split * DSE_KV_SPLIT_TOKENS, first_block = first_key / DSE_KV_BLOCK_TOKENS;
    size_t n_keys = visible(tile, tile->n_rows - 1, first_key);
    int first_row = 0;
    while (first_row < tile->n_rows && visible(tile, first_row, first_key) == 0)
        first_row++;
    if (first_row == tile->n_rows) return;

    size_t n_blocks = (n_keys + DSE_KV_BLOCK_TOKENS - 1) / DSE_KV_BLOCK_TOKENS;
    for (size_t block = 0; block < n_blocks; block++) {
        int row = first_row; /* rows whose keys end before this block are skipped */
        while (visible(tile, row, first_key) <= block * DSE_KV_BLOCK_TOKENS)
            row++;
        size_t column = (size_t)row * group, n_columns = (size_t)(tile->n_rows - row) * group;
        if (block + 1 < n_blocks) fetch_ahead(head_block(tile, first_block + block + 1), tile->layout->k_bytes);
        const struct operand k = {head_block(tile, first_block + block), DSE_KV_BLOCK_TOKENS,
                                  tile->layout->type == DSE_KV_F16};
        multiply(ops, &k, tile->q + column * width, width, n_columns, 0, (size_t)tile->layout->head_dim,
                 DSE_KV_BLOCK_TOKENS, tile->scores + column * DSE_ATTENTION_SCORES + block * DSE_KV_BLOCK_TOKENS,
                 DSE_ATTENTION_SCORES, false);
    }
    fetch_ahead(head_block(tile, first_block) + tile->layout->k_bytes, tile->layout->v_bytes);
    for (int row = first_row; row < tile->n_rows; row++)
        for (size_t c = (size_t)row * group; c < ((size_t)row + 1) * group; c++)
            l[c] = ops->vector.softmax(tile->scores + c * DSE_ATTENTION_SCORES, visible(tile, row, first_key), &m[c]);
    for (size_t block = 0; block < n_blocks; block++) {
        if (block + 1 < n_blocks)
            fetch_ahead(head_block(tile, first_block + block + 1) + tile->layout->k_bytes, tile->layout->v_bytes);
        add_values(ops, tile, first_row, first_key, block, o);
    }
}

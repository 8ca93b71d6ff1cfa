/* One split of latent attention: the rows of the cache serve as keys and as values, for all query heads of a row.
 *
 * Scores come from the product kernel with its roles swapped, keys broadcast against lanes that are query columns: rows
 * lie token-major, as the values need them, and 16 heads fill a vector. Reads only rows up to the last one that the
 * tile sees; like attention.c it keeps no result that a key beyond a row's last one has entered.
 */
#include <string.h>

#include "kernels/attention/split.h"

/* Row of a key, numbered within the tile's keys. */
static const uint8_t *row_of(const struct dse_attention_tile *tile, size_t key)
{
    size_t position = tile->keys != NULL ? (size_t)tile->keys[key] : key;
    return dse_attention_layer(tile, position / DSE_KV_BLOCK_TOKENS) +
           position % DSE_KV_BLOCK_TOKENS * tile->layout->row_bytes;
}

/* A row in f32, padded with zeros to the key width. */
static void widen(const struct dse_attention_ops *ops, const struct dse_kv_layout *layout, const uint8_t *row,
                  float *out)
{
    size_t latent = (size_t)layout->latent, rope = (size_t)layout->rope, n = latent + rope;
    switch (layout->type) {
    case DSE_KV_F32: memcpy(out, row, n * sizeof *out); break;
    case DSE_KV_F16: ops->vector.widen((const uint16_t *)row, n, out); break;
    case DSE_KV_Q8_0:
        ops->vector.expand(row, latent, out);
        ops->vector.widen((const uint16_t *)(row + layout->row_bytes) - rope, rope, out + latent);
        break;
    }
    memset(out + n, 0, (dse_latent_key_width(layout->latent, layout->rope) - n) * sizeof *out);
}

/* n rows from a key on, in place where they lie together in a type that the product takes and, for values, are whole
 * vectors; else in f32 in the scratch block. */
static struct dse_attention_operand prepare(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                                            size_t key, size_t n, bool values)
{
    const struct dse_kv_layout *layout = tile->layout;
    size_t width = dse_latent_key_width(layout->latent, layout->rope), row = (size_t)(layout->latent + layout->rope);
    bool in_place = tile->keys == NULL && (layout->type == DSE_KV_F32 || (layout->type == DSE_KV_F16 && values));
    if (in_place && (!values || row % 16 == 0))
        return (struct dse_attention_operand){row_of(tile, key), row, layout->type == DSE_KV_F16};
    for (size_t i = 0; i < n; i++)
        widen(ops, layout, row_of(tile, key + i), tile->block + i * width);
    return (struct dse_attention_operand){tile->block, width, false};
}

/* Values of a query that stay in the L1 while all keys of a block meet them: 6 KiB of 16 columns. */
#define QUERY_PART 96
/* Keys per call, between which the next rows are asked for: one tile of the widest product kernel. */
#define KEY_PART 8

/* Scores of all columns with n keys of a block. The n_next rows from a key on are asked for meanwhile, one or two at
 * a time: a block at once is more than the core can wait for. */
static void score(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                  const struct dse_attention_operand *rows, size_t n, size_t next, size_t n_next, float *scores)
{
    size_t columns = (size_t)tile->n_rows * (size_t)tile->group,
           k = (size_t)(tile->layout->latent + tile->layout->rope), asked = 0, call = 0,
           n_calls = (k + QUERY_PART - 1) / QUERY_PART * ((n + KEY_PART - 1) / KEY_PART);
    for (size_t i = 0; i < k; i += QUERY_PART) {
        for (size_t key = 0, part; key < n; key += part) {
            part = n - key < KEY_PART ? n - key : KEY_PART;
            for (call++; asked < n_next * call / n_calls; asked++)
                dse_attention_fetch_ahead(row_of(tile, next + asked), tile->layout->row_bytes);
            ops->product_f32((const float *)rows->data + key * rows->stride + i, rows->stride, part,
                             tile->q + i * DSE_ATTENTION_COLUMNS, DSE_ATTENTION_COLUMNS,
                             k - i < QUERY_PART ? k - i : QUERY_PART, (columns + 15) / 16 * 16,
                             tile->dots + key * DSE_ATTENTION_COLUMNS, DSE_ATTENTION_COLUMNS, i > 0);
        }
    }
    for (size_t c = 0; c < columns; c++)
        for (size_t i = 0; i < n; i++)
            scores[c * DSE_ATTENTION_SCORES + i] = tile->dots[i * DSE_ATTENTION_COLUMNS + c];
}

void dse_latent_attention_split(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int split,
                                float *m, float *l, float *o)
{
    size_t first_key = (size_t)split * DSE_KV_SPLIT_TOKENS;
    size_t n_keys = dse_attention_visible(tile, tile->n_rows - 1, first_key);
    size_t n_blocks = (n_keys + DSE_KV_BLOCK_TOKENS - 1) / DSE_KV_BLOCK_TOKENS;
    int first_row = dse_attention_first_row(tile, first_key);
    if (first_row == tile->n_rows) return;

    for (size_t block = 0; block < n_blocks; block++) {
        size_t begin = block * DSE_KV_BLOCK_TOKENS, n = dse_attention_block_keys(tile, first_key, block);
        size_t n_next = block + 1 < n_blocks ? dse_attention_block_keys(tile, first_key, block + 1) : 0;
        struct dse_attention_operand rows = prepare(ops, tile, first_key + begin, n, false);
        score(ops, tile, &rows, n, first_key + begin + n, n_next, tile->scores + begin);
    }
    dse_attention_softmax(ops, tile, first_row, first_key, m, l);
    for (size_t block = 0; block < n_blocks; block++) {
        size_t begin = block * DSE_KV_BLOCK_TOKENS, n = dse_attention_block_keys(tile, first_key, block);
        struct dse_attention_operand rows = prepare(ops, tile, first_key + begin, n, true);
        dse_attention_add_values(ops, tile, &rows, first_row, first_key, block, dse_latent_width(tile->layout), o);
    }
}

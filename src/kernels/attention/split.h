/* What the two forms of a split share: attention.c (ordinary heads) implements it, latent.c uses it too. Private to
 * this folder. */
#ifndef DSE_KERNELS_ATTENTION_SPLIT_H
#define DSE_KERNELS_ATTENTION_SPLIT_H

#include "kernels/attention.h"

/* The second operand of a product; its elements are f32 or half. */
struct dse_attention_operand {
    const void *data;
    size_t stride;
    bool half;
};

/* Asks for an area ahead of its use: areas of consecutive blocks lie far apart, where no hardware prefetcher
 * follows. */
static inline void dse_attention_fetch_ahead(const uint8_t *area, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(area + at);
}

/* The tile's layer in a block of its sequence. */
static inline const uint8_t *dse_attention_layer(const struct dse_attention_tile *tile, size_t block)
{
    return tile->kv->pool + (size_t)tile->kv->blocks[block] * tile->layout->block_bytes +
           (size_t)tile->layer * tile->layout->layer_bytes;
}

/* Keys of the split beginning at first_key that a row sees. */
size_t dse_attention_visible(const struct dse_attention_tile *tile, int row, size_t first_key);

/* First row that sees keys of the split; n_rows if none does. */
int dse_attention_first_row(const struct dse_attention_tile *tile, size_t first_key);

/* Scores of all columns of rows from first_row on into weights; sums and largest scores to l and m. */
void dse_attention_softmax(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile, int first_row,
                           size_t first_key, float *m, float *l);

/* Keys of a block (numbered within the split) that the tile's last row sees. */
size_t dse_attention_block_keys(const struct dse_attention_tile *tile, size_t first_key, size_t block);

/* o [columns][width] (+)= weights times v, the values of a block, of which only the keys that a row sees are used. */
void dse_attention_add_values(const struct dse_attention_ops *ops, const struct dse_attention_tile *tile,
                              const struct dse_attention_operand *v, int first_row, size_t first_key, size_t block,
                              size_t width, float *o);

#endif

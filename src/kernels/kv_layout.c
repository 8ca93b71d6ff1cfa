/* Byte sizes of a KV block. The engine allocates by them, the store and the attention kernels address by them. */
#include "kernels/kv_layout.h"

static size_t padded(size_t bytes)
{
    return (bytes + DSE_KV_ALIGNMENT - 1) / DSE_KV_ALIGNMENT * DSE_KV_ALIGNMENT;
}

static void init_latent(struct dse_kv_layout *layout, size_t element)
{
    size_t latent = (size_t)layout->latent, rope = (size_t)layout->rope;
    layout->row_bytes = layout->type == DSE_KV_Q8_0
                            ? latent / DSE_KV_Q8_BLOCK * DSE_KV_Q8_BLOCK_BYTES + rope * sizeof(uint16_t)
                            : (latent + rope) * element;
    layout->index_offset = padded(layout->row_bytes * DSE_KV_BLOCK_TOKENS);
    layout->k_bytes = layout->v_bytes = layout->head_bytes = 0;
    layout->layer_bytes = layout->index_offset + padded((size_t)layout->index_dim * DSE_KV_BLOCK_TOKENS * element);
}

void dse_kv_layout_init(struct dse_kv_layout *layout)
{
    size_t element = layout->type == DSE_KV_F32 ? sizeof(float) : sizeof(uint16_t);
    if (layout->latent > 0) {
        init_latent(layout, element);
    } else {
        layout->row_bytes = layout->index_offset = 0;
        layout->k_bytes = layout->v_bytes = padded((size_t)layout->head_dim * DSE_KV_BLOCK_TOKENS * element);
        layout->head_bytes = layout->k_bytes + layout->v_bytes;
        layout->layer_bytes = (size_t)layout->n_kv_heads * layout->head_bytes;
    }
    layout->block_bytes = (size_t)layout->n_layers * layout->layer_bytes;
}

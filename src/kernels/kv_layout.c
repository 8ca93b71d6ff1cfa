/* Byte sizes of a KV block. The engine allocates by them, the store and the attention kernels address by them. */
#include "kernels/kv_layout.h"

static size_t padded(size_t bytes)
{
    return (bytes + DSE_KV_ALIGNMENT - 1) / DSE_KV_ALIGNMENT * DSE_KV_ALIGNMENT;
}

void dse_kv_layout_init(struct dse_kv_layout *layout)
{
    size_t element = layout->type == DSE_KV_F32 ? sizeof(float) : sizeof(uint16_t);
    size_t area = padded((size_t)layout->head_dim * DSE_KV_BLOCK_TOKENS * element);
    layout->k_bytes = area;
    layout->v_bytes = area;
    layout->head_bytes = layout->k_bytes + layout->v_bytes;
    layout->layer_bytes = (size_t)layout->n_kv_heads * layout->head_bytes;
    layout->block_bytes = (size_t)layout->n_layers * layout->layer_bytes;
}

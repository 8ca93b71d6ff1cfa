/* Layout of one KV block for one layer, shared by the KV pool (engine), the store and the attention kernels.
 *
 * A block holds DSE_KV_BLOCK_TOKENS tokens. For each kv head:  K as [head_dim][32 tokens]  then  V as [32 tokens][head_dim],
 * both f16 (or f32 with --compute f32). Every K and V area is a multiple of 512 bytes. K lies dimension-major so that 32
 * scores come out of plain vector fma, without horizontal sums. A sequence is a table of block numbers plus its exact
 * length; nothing is ever read beyond it.
 */
#ifndef DSE_KERNELS_KV_LAYOUT_H
#define DSE_KERNELS_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define DSE_KV_BLOCK_TOKENS 32
#define DSE_KV_ALIGNMENT    512
/* Keys whose softmax is computed as one partial result; partials are merged in ascending order. */
#define DSE_KV_SPLIT_TOKENS 256

enum dse_kv_type { DSE_KV_F16, DSE_KV_F32 };

struct dse_kv_layout {
    enum dse_kv_type type;
    int n_layers, n_kv_heads, head_dim;
    size_t k_bytes, v_bytes; /* one head of one block, padded to 512 */
    size_t head_bytes;       /* k_bytes + v_bytes */
    size_t layer_bytes;      /* n_kv_heads * head_bytes */
    size_t block_bytes;      /* n_layers * layer_bytes */
};

/* Fills the byte fields from the others. */
void dse_kv_layout_init(struct dse_kv_layout *layout);

/* The KV of one sequence as an op sees it. */
struct dse_kv_view {
    uint8_t *pool;         /* block 0 */
    const int32_t *blocks; /* block numbers of the sequence, in order */
};

#endif

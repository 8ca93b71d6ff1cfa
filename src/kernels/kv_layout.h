/* Layout of one KV block for one layer, shared by the KV pool (engine), the store and the attention kernels.
 *
 * A block holds DSE_KV_BLOCK_TOKENS tokens of one sequence, and each of its areas is a multiple of 512 bytes.
 * Ordinary heads, for each kv head: K as [head_dim][32 tokens], then V as [32 tokens][head_dim], both f16 (or f32 with
 * --compute f32). K lies dimension-major so that 32 scores come out of plain vector fma, without horizontal sums.
 * Latent attention (latent > 0): one copy serves as K and V, as [32 tokens][row], a row being `latent` values of the
 * normed latent and then `rope` values of the shared rotated key, f16 or f32. With q8_0 the latent, a multiple of 32,
 * is 34-byte blocks of 32 (f16 scale, 32 s8; dse_shrink_fn says how values become one) and the rope part stays f16.
 * Behind the rows, with an indexer, its keys as [index_dim][32 tokens] f16 (or f32).
 * A sequence is a table of block numbers plus its exact length; nothing is ever read beyond it.
 */
#ifndef DSE_KERNELS_KV_LAYOUT_H
#define DSE_KERNELS_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define DSE_KV_BLOCK_TOKENS 32
#define DSE_KV_ALIGNMENT    512
/* Keys whose softmax is computed as one partial result; partials are merged in ascending order. */
#define DSE_KV_SPLIT_TOKENS 256

/* A block of DSE_KV_Q8_0: f16 scale, then s8 values. */
#define DSE_KV_Q8_BLOCK       32
#define DSE_KV_Q8_BLOCK_BYTES 34

enum dse_kv_type { DSE_KV_F16, DSE_KV_F32, DSE_KV_Q8_0 };

struct dse_kv_layout {
    enum dse_kv_type type;
    int n_layers, n_kv_heads, head_dim;
    int latent, rope;        /* latent attention: values of a row; 0: ordinary heads */
    int index_dim;           /* values of an indexer key, 0: none */
    size_t row_bytes;        /* latent: one token of one layer */
    size_t index_offset;     /* latent: bytes from the layer's first row to its indexer keys */
    size_t k_bytes, v_bytes; /* one head of one block, padded to 512; latent: 0 */
    size_t head_bytes;       /* k_bytes + v_bytes */
    size_t layer_bytes;      /* n_kv_heads * head_bytes, or the areas of the latent form */
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

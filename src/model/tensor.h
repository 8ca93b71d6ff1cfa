/* A named tensor inside a mapped file. */
#ifndef DSE_MODEL_TENSOR_H
#define DSE_MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "quant/types.h"

#define DSE_TENSOR_MAX_DIMS 4

/* shape is in row-major order as Hugging Face writes it (a Linear is [out, in]); a GGUF header lists it reversed.
 * Rows (the last dimension) are whole blocks of the type. data is borrowed from the file's map and was checked to lie
 * inside it. */
struct dse_tensor {
    const char *name;
    enum dse_type type;
    int n_dims;
    size_t shape[DSE_TENSOR_MAX_DIMS]; /* unused ones are 1 */
    const void *data;
    size_t bytes;
    /* Matrices of F8_E4M3: f32 [ceil(rows/128)][ceil(columns/128)], unaligned, little-endian; the weight is the decoded
     * value times the scale of its block. NULL otherwise. */
    const void *block_scales;
};

#endif

/* Packing of one tensor for the CPU: whole, or cut into a matrix per head, which may be transposed (see cpu_pack.h).
 *
 * Called by the threads that load a model; units share no byte of the result.
 */
#include "device/cpu_pack.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/vector.h"
#include "quant/fp8.h"

#define UNIT_ROWS 256 /* of a whole matrix */

static size_t tensor_cols(const struct dse_tensor *tensor)
{
    return tensor->shape[tensor->n_dims - 1];
}

static size_t tensor_rows(const struct dse_tensor *tensor)
{
    size_t rows = 1;
    for (int i = 0; i + 1 < tensor->n_dims; i++)
        rows *= tensor->shape[i];
    return rows;
}

bool dse_cpu_source_shape(const struct cpu_source *source, struct cpu_packed_shape *shape)
{
    const size_t cols = tensor_cols(source->tensor);
    if (source->head_bytes == NULL)
        *shape = (struct cpu_packed_shape){tensor_rows(source->tensor), cols, 1, 0};
    else if (source->transposed)
        *shape = (struct cpu_packed_shape){cols, source->n_rows, source->n_heads, 0};
    else
        *shape = (struct cpu_packed_shape){source->n_rows, cols, source->n_heads, 0};
    return dse_matrix_packed_bytes(source->layout, shape->rows, shape->cols, &shape->matrix_bytes);
}

/* The largest magnitude among the block scales. NaN aside: every layout shows it. */
static float largest_scale(const struct dse_tensor *tensor)
{
    const size_t n = ((tensor_rows(tensor) + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK) *
                     ((tensor_cols(tensor) + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK);
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        float scale;
        memcpy(&scale, (const uint8_t *)tensor->block_scales + i * sizeof scale, sizeof scale);
        scale = fabsf(scale);
        if (scale > largest) largest = scale;
    }
    return largest;
}

/* f16 must hold the largest weights in full and the small ones about as well beside them: below F16_LEAST its steps are
 * no longer finer than the rounding of the largest. */
#define F8_LARGEST  448.0f
#define F16_LARGEST 65504.0f
#define F16_LEAST   0x1p-10f

/* Whether f16 holds every weight of the heads' rows. NaN aside. Blocks are decoded only where their scales alone leave
 * it open, which no sound model's do: this runs at every start. */
static bool blocks_fit_f16(const struct cpu_source *source)
{
    enum { LARGEST_BLOCK = 256 };
    const struct dse_tensor *tensor = source->tensor;
    const struct dse_type_info *info = dse_type_info((uint32_t)tensor->type);
    size_t row_bytes;
    if (!dse_type_row_bytes(tensor->type, tensor_cols(tensor), &row_bytes)) return true; /* nor will it be packed */
    for (size_t head = 0; head < source->n_heads; head++) {
        const uint8_t *block = tensor->data;
        block += (head * source->group_rows + source->first_row) * row_bytes;
        const uint8_t *const end = block + source->n_rows * row_bytes;
        for (; block < end; block += info->block_bytes) {
            if (dse_type_block_bound(tensor->type, block) <= F16_LARGEST) continue;
            float values[LARGEST_BLOCK];
            dse_type_decode(tensor->type, block, values, (size_t)info->block_elements);
            for (int i = 0; i < info->block_elements; i++)
                if (fabsf(values[i]) > F16_LARGEST) return false;
        }
    }
    return true;
}

enum dse_layout dse_cpu_source_layout(const struct cpu_source *source, bool f32)
{
    const struct dse_tensor *tensor = source->tensor;
    enum dse_layout layout = dse_matrix_layout(tensor->type, tensor_cols(tensor), f32);
    if (layout == DSE_LAYOUT_FP8) {
        const float scale = largest_scale(tensor), weight = F8_LARGEST * scale;
        if (!(scale < DSE_FP8_SCALE_LIMIT)) return DSE_LAYOUT_F32;
        if (source->transposed && !(weight >= F16_LEAST && weight <= F16_LARGEST)) return DSE_LAYOUT_F32;
    }
    if (!source->transposed || layout == DSE_LAYOUT_F32 || layout == DSE_LAYOUT_BF16) return layout;
    /* A block of 8-bit values has a scale in f16, so its weights may be a hundred times what f16 holds. Steps below the
     * scale do not exist, so nothing is too small. */
    const bool fits = layout == DSE_LAYOUT_FP8 || layout == DSE_LAYOUT_F16 || blocks_fit_f16(source);
    if (fits && source->to_blocks && dse_layout_uses_s8(layout) && source->n_rows % DSE_ACT_BLOCK == 0)
        return DSE_LAYOUT_Q8;
    return fits ? DSE_LAYOUT_F16 : DSE_LAYOUT_F32;
}

size_t dse_cpu_source_units(const struct cpu_source *source)
{
    if (source->head_bytes != NULL) return source->n_heads;
    return (tensor_rows(source->tensor) + UNIT_ROWS - 1) / UNIT_ROWS;
}

size_t dse_cpu_source_scratch(const struct cpu_source *source)
{
    const size_t cols = tensor_cols(source->tensor);
    if (source->transposed) return 2 * source->n_rows * cols;
    if (source->tensor->type != DSE_TYPE_F8_E4M3 || source->layout == DSE_LAYOUT_FP8) return 0;
    return (source->head_bytes != NULL ? source->n_rows : UNIT_ROWS) * cols;
}

/* Rows of the tensor as f32; the caller knows that they exist. */
static void decode_rows(const struct dse_tensor *tensor, size_t first, size_t n, float *out)
{
    const size_t cols = tensor_cols(tensor);
    size_t row_bytes;
    if (tensor->type == DSE_TYPE_F8_E4M3)
        dse_fp8_decode_rows(tensor->data, tensor->block_scales, cols, first, n, out);
    else if (dse_type_row_bytes(tensor->type, cols, &row_bytes))
        dse_type_decode(tensor->type, (const uint8_t *)tensor->data + first * row_bytes, out, n * cols);
}

/* n rows to out_row of the packed matrix at out. */
static void pack_rows(const struct cpu_source *source, size_t first, size_t n, float *scratch, uint8_t *out,
                      size_t out_row)
{
    const struct dse_tensor *tensor = source->tensor;
    const size_t cols = tensor_cols(tensor);
    if (source->layout == DSE_LAYOUT_FP8) {
        dse_matrix_pack_fp8(tensor->data, tensor->block_scales, cols, first, first + n, out, out_row);
    } else if (tensor->type == DSE_TYPE_F8_E4M3) {
        decode_rows(tensor, first, n, scratch);
        dse_matrix_pack(DSE_TYPE_F32, scratch, cols, 0, n, DSE_LAYOUT_F32, out, out_row);
    } else {
        dse_matrix_pack(tensor->type, tensor->data, cols, first, first + n, source->layout, out, out_row);
    }
}

/* f32 values in place to 16-bit floats; BF16 values came from bf16 and lose nothing. */
static void narrow(enum dse_layout layout, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        const uint16_t half = layout == DSE_LAYOUT_BF16 ? (uint16_t)(bits >> 16) : dse_f32_to_f16(values[i]);
        memcpy((uint8_t *)values + i * sizeof half, &half, sizeof half);
    }
}

static void pack_transposed(const struct cpu_source *source, size_t first, float *scratch, uint8_t *out)
{
    const size_t n = source->n_rows, cols = tensor_cols(source->tensor);
    float *turned = scratch + n * cols;
    decode_rows(source->tensor, first, n, scratch);
    for (size_t i = 0; i < cols; i++)
        for (size_t j = 0; j < n; j++)
            turned[i * n + j] = scratch[j * cols + i];
    enum dse_type type = DSE_TYPE_F32;
    if (source->layout == DSE_LAYOUT_Q8) {
        struct dse_vector_ops vector;
        dse_vector_ops_pick(&vector);
        vector.shrink(turned, n * cols, (uint8_t *)scratch); /* n is a number of blocks: none lies in two rows */
        dse_matrix_pack(DSE_TYPE_Q8_0, scratch, n, 0, cols, source->layout, out, 0);
        return;
    }
    if (source->layout != DSE_LAYOUT_F32) {
        narrow(source->layout, turned, n * cols);
        type = source->layout == DSE_LAYOUT_BF16 ? DSE_TYPE_BF16 : DSE_TYPE_F16;
    }
    dse_matrix_pack(type, turned, n, 0, cols, source->layout, out, 0);
}

void dse_cpu_source_pack(const struct cpu_source *source, size_t unit, float *scratch, uint8_t *out)
{
    if (source->head_bytes == NULL) {
        const size_t rows = tensor_rows(source->tensor), begin = unit * UNIT_ROWS;
        pack_rows(source, begin, rows - begin < UNIT_ROWS ? rows - begin : UNIT_ROWS, scratch, out, begin);
        return;
    }
    struct cpu_packed_shape shape;
    if (!dse_cpu_source_shape(source, &shape)) return; /* it was planned, so it can be packed */
    const size_t first = unit * source->group_rows + source->first_row;
    if (source->transposed)
        pack_transposed(source, first, scratch, out + unit * shape.matrix_bytes);
    else
        pack_rows(source, first, source->n_rows, scratch, out + unit * shape.matrix_bytes, 0);
}

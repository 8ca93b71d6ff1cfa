/* Activations in the s8 form: their memory and the call of the quantizer. Used by the device before a matmul. */
#include <pthread.h>

#include "base/checked.h"
#include "kernels/dispatch.h"
#include "kernels/matrix.h"
#include "kernels/prototypes.h"

#define ALIGNMENT 64

/* Offsets of the four arrays for n_rows x cols; false on overflow. offset[4] is the total. */
static bool place_offsets(size_t n_rows, size_t cols, size_t offset[5])
{
    size_t blocks, values;
    if (!dse_align_size(cols, DSE_ACT_BLOCK, &values)) return false;
    blocks = values / DSE_ACT_BLOCK;
    const size_t row_bytes[4] = {values, blocks * sizeof(float), blocks * sizeof(float), blocks * 2 * sizeof(int16_t)};
    offset[0] = 0;
    for (int i = 0; i < 4; i++) {
        size_t bytes;
        if (!dse_mul_size(row_bytes[i], n_rows, &bytes) || !dse_align_size(bytes, ALIGNMENT, &bytes) ||
            !dse_add_size(offset[i], bytes, &offset[i + 1]))
            return false;
    }
    return true;
}

bool dse_layout_uses_s8(enum dse_layout layout)
{
    return layout != DSE_LAYOUT_F32 && layout != DSE_LAYOUT_F16 && layout != DSE_LAYOUT_BF16 &&
           layout != DSE_LAYOUT_FP8;
}

size_t dse_activation_bytes(size_t n_rows, size_t cols)
{
    size_t offset[5];
    return place_offsets(n_rows, cols, offset) ? offset[4] : SIZE_MAX;
}

void dse_activation_place(struct dse_activation *act, void *memory, size_t n_rows, size_t cols)
{
    size_t offset[5] = {0};
    uint8_t *base = memory;
    place_offsets(n_rows, cols, offset);
    act->values = (int8_t *)(base + offset[0]);
    act->scales = (float *)(base + offset[1]);
    act->sums = (float *)(base + offset[2]);
    act->half_sums = (int16_t *)(base + offset[3]);
}

static dse_quantize_fn *chosen;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    chosen = (dse_quantize_fn *)dse_kernel_pick("quantize", "s8")->function;
}

void dse_activation_quantize(struct dse_activation *act, size_t cols, size_t begin, size_t end)
{
    pthread_once(&chosen_once, choose);
    dse_quantize_fn *quantize = chosen;
    size_t blocks = cols / DSE_ACT_BLOCK;
    for (size_t m = begin; m < end; m++)
        quantize(act->x + m * act->stride, cols, act->values + m * cols, act->scales + m * blocks,
                 act->sums + m * blocks, act->half_sums + m * 2 * blocks);
}

/* How one tensor becomes one packed matrix, or one per head. Shared by cpu_load.c and cpu_pack.c only. */
#ifndef DSE_DEVICE_CPU_PACK_H
#define DSE_DEVICE_CPU_PACK_H

#include "kernels/matrix.h"
#include "model/tensor.h"

/* Head h lies in rows [h * group_rows + first_row, … + n_rows) of the tensor, all its leading dimensions taken as
 * rows. */
struct cpu_source {
    const struct dse_tensor *tensor;
    struct dse_matrix *matrix; /* where the description goes; of head 0 */
    size_t *head_bytes;        /* NULL: one matrix, the whole tensor */
    size_t n_heads, group_rows, first_row, n_rows;
    bool transposed; /* a head's matrix is the transpose of those rows */
    bool to_blocks;  /* what is transposed and was quantized is quantized again, along its new rows */
    enum dse_layout layout;
};

struct cpu_packed_shape {
    size_t rows, cols; /* of one matrix */
    size_t n_matrices, matrix_bytes;
};

/* False if it cannot be packed: the columns are no whole number of blocks, or the size overflows. */
bool dse_cpu_source_shape(const struct cpu_source *source, struct cpu_packed_shape *shape);
/* Which layout holds its values; f32: everything as f32. What is transposed loses its blocks and becomes 16-bit floats,
 * or f32 where those would not do, or with to_blocks Q8_0. Reads the scales of all blocks, of what is transposed or
 * F8_E4M3. */
enum dse_layout dse_cpu_source_layout(const struct cpu_source *source, bool f32);

/* Independent pieces of the work, and the floats of scratch that each needs. */
size_t dse_cpu_source_units(const struct cpu_source *source);
size_t dse_cpu_source_scratch(const struct cpu_source *source);
void dse_cpu_source_pack(const struct cpu_source *source, size_t unit, float *scratch, uint8_t *out);

#endif

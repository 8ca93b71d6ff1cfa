/* The kernel table (kernels.def) at run time: which variants this build has and which one this CPU gets.
 *
 * An op's own header says what its function pointers are; dse_kernel_pick returns them as a generic function pointer.
 */
#ifndef DSE_KERNELS_DISPATCH_H
#define DSE_KERNELS_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dse_kernel {
    const char *op, *types, *isa; /* "matmul", "u4k", "avx2" */
    uint32_t features;            /* enum dse_cpu_feature bits it needs */
    void (*function)(void);       /* cast to the op's type before calling */
};

size_t dse_kernel_count(void);
const struct dse_kernel *dse_kernel_at(size_t index);    /* NULL past the end */
bool dse_kernel_usable(const struct dse_kernel *kernel); /* on this CPU, as masked */
/* The first usable variant; there is always the scalar one. NULL only for a pair that does not exist. */
const struct dse_kernel *dse_kernel_pick(const char *op, const char *types);

#endif

/* The kernel table: built from kernels.def, asked by the op drivers, the tests and the CLI. Calls no kernel itself. */
#include "kernels/dispatch.h"

#include <string.h>

#include "base/cpu.h"
#include "kernels/prototypes.h"

static const struct dse_kernel kernels[] = {
#define DSE_KERNEL(op, types, isa, features, function) {#op, #types, #isa, features, (void (*)(void))function},
#include "kernels/kernels.def"
#undef DSE_KERNEL
};

size_t dse_kernel_count(void)
{
    return sizeof kernels / sizeof kernels[0];
}

const struct dse_kernel *dse_kernel_at(size_t index)
{
    return index < dse_kernel_count() ? &kernels[index] : NULL;
}

bool dse_kernel_usable(const struct dse_kernel *kernel)
{
    return (kernel->features & ~dse_cpu_features()) == 0;
}

const struct dse_kernel *dse_kernel_pick(const char *op, const char *types)
{
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = &kernels[i];
        if (strcmp(k->op, op) == 0 && strcmp(k->types, types) == 0 && dse_kernel_usable(k)) return k;
    }
    return NULL;
}

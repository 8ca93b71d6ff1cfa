/* Prototypes of every kernel in kernels.def, each with the function type of its op: dse_<op>_fn, from the op's
 * header. */
#ifndef DSE_KERNELS_PROTOTYPES_H
#define DSE_KERNELS_PROTOTYPES_H

#include "kernels/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize/quantize.h"
#include "kernels/roof/roof.h"
#include "kernels/vector.h"

#define DSE_KERNEL(op, types, isa, features, function) dse_##op##_fn function;
#include "kernels/kernels.def"
#undef DSE_KERNEL

#endif

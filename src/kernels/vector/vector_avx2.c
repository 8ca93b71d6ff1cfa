/* AVX2, FMA and F16C variant of the vector operations. */
#define DSE_NAME(op) dse_##op##_avx2
#include "kernels/vector/vector_body.h"

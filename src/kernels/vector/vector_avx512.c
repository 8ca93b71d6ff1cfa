/* AVX-512 variant of the vector operations. */
#define DSE_NAME(op) dse_##op##_avx512
#include "kernels/vector/vector_body.h"

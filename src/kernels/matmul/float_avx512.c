/* AVX-512 variant of the matmul with F32, F16 and BF16 weights. */
#define DSE_NAME(op) dse_##op##_avx512
#define MAX_NY       8
#include "kernels/matmul/float_body.h"

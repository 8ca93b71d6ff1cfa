/* AVX2 and F16C variant of the matmul with F32, F16 and BF16 weights. */
#define DSE_NAME(op) dse_##op##_avx2
#define MAX_NY       6
#include "kernels/matmul/float_body.h"

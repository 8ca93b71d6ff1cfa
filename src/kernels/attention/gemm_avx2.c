/* AVX2, FMA and F16C variant of the attention products. */
#define DSE_NAME(op) dse_##op##_avx2
#include "kernels/attention/gemm_body.h"

/* AVX-512 variant of the attention products. */
#define DSE_NAME(op) dse_##op##_avx512
#include "kernels/attention/gemm_body.h"

/* NEON variant of the attention products: of every 64-bit ARM. */
#define DSE_V16_NEON
#define DSE_NAME(op) dse_##op##_neon
#include "kernels/attention/gemm_body.h"

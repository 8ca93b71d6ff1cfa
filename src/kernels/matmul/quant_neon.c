/* NEON variant of the quantized matmul: of every 64-bit ARM. */
#define DSE_NAME(op) dse_##op##_neon
#include "kernels/matmul/quant_neon_body.h"

/* Matrix variant of the quantized matmul: two weight rows times two activation rows of eight columns in one instruction. */
#define DSE_NAME(op) dse_##op##_i8mm
#include "kernels/matmul/quant_neon_body.h"

/* Dot product variant of the quantized matmul: four columns in one instruction (Cortex-A76 and later). */
#define DSE_NAME(op) dse_##op##_dotprod
#include "kernels/matmul/quant_neon_body.h"

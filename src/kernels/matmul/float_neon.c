/* NEON variant of the matmul with F32, F16 and BF16 weights: of every 64-bit ARM. */
#define DSE_V16_NEON
#define DSE_NAME(op) dse_##op##_neon
#define MAX_NY       6
#include "kernels/matmul/float_body.h"

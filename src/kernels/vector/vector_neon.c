/* NEON variant of the vector operations: of every 64-bit ARM. */
#define DSE_V16_NEON
#define DSE_NAME(op) dse_##op##_neon
#include "kernels/vector/vector_body.h"

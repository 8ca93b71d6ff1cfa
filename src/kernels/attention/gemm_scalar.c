/* The reference: plain C, one lane after the other. The definition of the attention products; never removed. */
#define DSE_NAME(op) dse_##op##_scalar
#include "kernels/attention/gemm_body.h"

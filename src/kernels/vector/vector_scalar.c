/* The reference: plain C, one lane after the other. The definition of every vector operation; never removed. */
#define DSE_NAME(op) dse_##op##_scalar
#include "kernels/vector/vector_body.h"

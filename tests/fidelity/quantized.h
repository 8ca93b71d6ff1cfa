/* Models with experts in quantized blocks, written while a test runs: none of the reference models has rows that are whole
 * K-quant blocks. */
#ifndef DSE_TEST_QUANTIZED_H
#define DSE_TEST_QUANTIZED_H

#include "quant/types.h"

/* Writes a GGUF of a DeepSeek V2 (3 layers, the first one dense; 2 of 6 experts and a shared one; kv_b split) with random
 * weights into the folder. gate_up and down: types of the experts, shared or not; other matrices are Q8_0. Returns the
 * file's path, which the caller frees. */
char *quantized_model_write(const char *folder, enum dse_type gate_up, enum dse_type down);

#endif

/* Weights and activations for the kernel tests and the microbenchmark: random and extreme, reproducible by seed. */
#ifndef DSE_TESTS_KERNEL_DATA_H
#define DSE_TESTS_KERNEL_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/matrix.h"

/* The source types that have a packed layout, in the order of the enum. */
extern const enum dse_type packed_types[];
extern const size_t packed_type_count;

enum data_kind {
    DATA_RANDOM,
    DATA_LARGEST, /* every quant and scale at its largest magnitude, activations all +-127 */
    DATA_ODD,     /* zero, subnormal and negative scales; rows of zeros */
};

uint64_t random_next(uint64_t *state);
float random_unit(uint64_t *state); /* [-1, 1) */

/* rows x cols of file blocks. Returns owned (dse_free). */
uint8_t *make_source(enum dse_type type, size_t rows, size_t cols, enum data_kind kind, uint64_t seed);
/* The same packed as this CPU's matrix. data is owned (dse_free). */
struct dse_matrix make_matrix(enum dse_type type, const uint8_t *source, size_t rows, size_t cols);
void free_matrix(struct dse_matrix *w);
/* The scale of every block of 128 x 128 of an F8_E4M3 matrix. Returns owned (dse_free). */
float *make_fp8_scales(size_t rows, size_t cols, enum data_kind kind, uint64_t seed);

/* n_rows x cols activations with stride cols + 3, quantized where cols allows. */
struct test_activation {
    struct dse_activation act;
    float *x;
    void *memory;
};
struct test_activation make_activation(size_t n_rows, size_t cols, enum data_kind kind, uint64_t seed);
void free_activation(struct test_activation *t);

#endif

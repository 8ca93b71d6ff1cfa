/* Reference numbers of the tiny models: prompts, logits, argmax and greedy continuations from Hugging Face. */
#ifndef DSE_TEST_REFERENCE_H
#define DSE_TEST_REFERENCE_H

#include <stdint.h>

struct reference;

/* Folders of tests/data/reference/variants: DeepSeek models of unusual shapes; see README.md of the references. */
extern const char *const reference_variants[];
extern const int reference_n_variants;

/* path of the .safetensors below the folder of reference models; fails the test if it cannot be read */
struct reference *reference_open(const char *path);
void reference_close(struct reference *reference);

/* Tensor "promptN.<name>"; *count elements. Fails the test if it is absent or of another type. */
const float *reference_f32(const struct reference *reference, int prompt, const char *name, int *count);
const int32_t *reference_i32(const struct reference *reference, int prompt, const char *name, int *count);

/* What an evaluation of a prompt is compared by. */
struct comparison {
    double max_error, rms, cosine;   /* over the stored positions */
    double median_error;             /* of the positions' largest errors */
    int n_positions, n_argmax_equal; /* over all positions */
};
int reference_argmax(const float *logits, int n_vocab); /* the first of equals */
struct comparison reference_compare(const struct reference *reference, int prompt, const float *logits, int n_vocab);

#endif

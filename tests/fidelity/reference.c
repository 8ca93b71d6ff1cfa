/* Reading reference.safetensors and comparing logits with it. */
#include "reference.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_support.h"
#include "model/safetensors.h"

const char *const reference_variants[] = {
    "variants/v1_gqa",           "variants/v1_one_kv",       "variants/v1_one_head",        "variants/v2_odd",
    "variants/v2_groups_of_one", "variants/v2_all_groups",   "variants/v2_no_shared",       "variants/v3_odd",
    "variants/v3_no_q_lora",     "variants/v3_unnormalized", "variants/v3_group_of_groups", "variants/v3_fp8_edges",
    "variants/v32_odd",          "variants/v32_all_keys",    "variants/v32_one_key",        "variants/v2_linear",
    "variants/v3_llama3",
};
const int reference_n_variants = sizeof reference_variants / sizeof *reference_variants;

struct reference {
    struct dse_safetensors *file;
    int32_t *narrowed[16]; /* i64 tensors as i32, freed at close */
    int n_narrowed;
};

struct reference *reference_open(const char *path)
{
    struct reference *reference = calloc(1, sizeof *reference);
    struct dse_error error = {0};
    assert_non_null(reference);
    if (dse_safetensors_open(reference_path(path), &reference->file, &error) != DSE_OK)
        fail_msg("%s: %s", path, error.message);
    return reference;
}

void reference_close(struct reference *reference)
{
    for (int i = 0; i < reference->n_narrowed; i++)
        free(reference->narrowed[i]);
    dse_safetensors_close(reference->file);
    free(reference);
}

static const struct dse_tensor *find(const struct reference *reference, int prompt, const char *name, int *count)
{
    char full[64];
    (void)snprintf(full, sizeof full, "prompt%d.%s", prompt, name);
    const struct dse_tensor *tensor = dse_safetensors_tensor(reference->file, full);
    if (tensor == NULL) fail_msg("the reference has no %s", full);
    size_t elements = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        elements *= tensor->shape[i];
    *count = (int)elements;
    return tensor;
}

const float *reference_f32(const struct reference *reference, int prompt, const char *name, int *count)
{
    const struct dse_tensor *tensor = find(reference, prompt, name, count);
    assert_int_equal(tensor->type, DSE_TYPE_F32);
    return tensor->data;
}

const int32_t *reference_i32(const struct reference *reference, int prompt, const char *name, int *count)
{
    const struct dse_tensor *tensor = find(reference, prompt, name, count);
    if (tensor->type == DSE_TYPE_I32) return tensor->data;
    assert_int_equal(tensor->type, DSE_TYPE_I64);
    struct reference *writable = (struct reference *)reference;
    assert_in_range(writable->n_narrowed, 0, 15);
    int32_t *ids = calloc((size_t)*count, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < *count; i++) {
        int64_t wide;
        memcpy(&wide, (const char *)tensor->data + (size_t)i * sizeof wide, sizeof wide);
        ids[i] = (int32_t)wide;
    }
    writable->narrowed[writable->n_narrowed++] = ids;
    return ids;
}

int reference_argmax(const float *logits, int n_vocab)
{
    int best = 0;
    for (int i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct comparison reference_compare(const struct reference *reference, int prompt, const float *logits, int n_vocab)
{
    int n_positions, n_logits, n_argmax;
    const int32_t *positions = reference_i32(reference, prompt, "logit_positions", &n_positions);
    const float *expected = reference_f32(reference, prompt, "logits", &n_logits);
    const int32_t *best = reference_i32(reference, prompt, "argmax", &n_argmax);
    assert_int_equal(n_logits, n_positions * n_vocab);
    struct comparison c = {.n_positions = n_argmax};
    double squares = 0, dot = 0, ours = 0, theirs = 0;
    double *largest = calloc((size_t)n_positions, sizeof *largest);
    assert_non_null(largest);
    for (int p = 0; p < n_positions; p++) {
        const float *a = logits + (size_t)positions[p] * (size_t)n_vocab, *b = expected + (size_t)p * (size_t)n_vocab;
        for (int i = 0; i < n_vocab; i++) {
            double d = (double)a[i] - (double)b[i];
            if (!(fabs(d) <= largest[p])) largest[p] = fabs(d); /* NaN becomes the maximum and stays */
            squares += d * d;
            dot += (double)a[i] * (double)b[i];
            ours += (double)a[i] * (double)a[i];
            theirs += (double)b[i] * (double)b[i];
        }
        if (!(largest[p] <= c.max_error)) c.max_error = largest[p];
    }
    qsort(largest, (size_t)n_positions, sizeof *largest, ascending);
    c.median_error = largest[n_positions / 2];
    free(largest);
    c.rms = sqrt(squares / n_logits);
    c.cosine = dot / sqrt(ours * theirs);
    for (int p = 0; p < n_argmax; p++)
        c.n_argmax_equal += reference_argmax(logits + (size_t)p * (size_t)n_vocab, n_vocab) == best[p];
    return c;
}

/* Copies of reference models with scaled weights: f32 and bf16, where a power of two costs no bit. */
#include "scaled.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_support.h"
#include "model/safetensors.h"

static void copy_file(const char *from, const char *to)
{
    char bytes[8192];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    size_t n = fread(bytes, 1, sizeof bytes, in);
    assert_in_range(n, 1, sizeof bytes - 1);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    (void)fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void scale_value(uint8_t *at, enum dse_type type, int exponent)
{
    uint32_t bits = 0;
    uint16_t half;
    float value;
    if (type == DSE_TYPE_BF16) {
        memcpy(&half, at, sizeof half);
        bits = (uint32_t)half << 16;
    } else {
        memcpy(&bits, at, sizeof bits);
    }
    memcpy(&value, &bits, sizeof value);
    value = ldexpf(value, exponent);
    memcpy(&bits, &value, sizeof bits);
    if (type == DSE_TYPE_BF16) {
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof half);
    } else {
        memcpy(at, &bits, sizeof bits);
    }
}

static void apply(const struct dse_tensor *tensor, uint8_t *data, const struct scaling *rule)
{
    const size_t size = tensor->type == DSE_TYPE_BF16 ? 2 : 4, n = tensor->bytes / size;
    const size_t cols = tensor->n_dims > 1 ? n / tensor->shape[0] : 1;
    if (tensor->type != DSE_TYPE_BF16 && tensor->type != DSE_TYPE_F32) fail_msg("%s: cannot be scaled", tensor->name);
    for (size_t i = 0; i < n; i++) {
        const size_t row = rule->period > 0 ? i / cols % rule->period : 0;
        if (rule->period == 0 || (row >= rule->first && row < rule->last))
            scale_value(data + i * size, tensor->type, rule->exponent);
    }
}

static void write_weights(const char *from, const char *to, const struct scaling *rules, size_t n_rules)
{
    struct dse_safetensors *file;
    struct dse_error error = {0};
    if (dse_safetensors_open(from, &file, &error) != DSE_OK) fail_msg("%s", error.message);
    const size_t count = dse_safetensors_count(file);
    struct dse_tensor *tensors = calloc(count, sizeof *tensors);
    size_t *matches = calloc(n_rules, sizeof *matches);
    assert_non_null(tensors);
    assert_non_null(matches);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = *dse_safetensors_at(file, i);
        uint8_t *data = malloc(tensors[i].bytes);
        assert_non_null(data);
        memcpy(data, tensors[i].data, tensors[i].bytes);
        for (size_t r = 0; r < n_rules; r++) {
            if (strstr(tensors[i].name, rules[r].part) == NULL) continue;
            apply(&tensors[i], data, &rules[r]);
            matches[r]++;
        }
        tensors[i].data = data;
    }
    for (size_t r = 0; r < n_rules; r++)
        if (matches[r] == 0) fail_msg("%s has no tensor like %s", from, rules[r].part);
    if (dse_safetensors_write(to, tensors, count, &error) != DSE_OK) fail_msg("%s", error.message);
    for (size_t i = 0; i < count; i++)
        free((void *)tensors[i].data);
    free(tensors);
    free(matches);
    dse_safetensors_close(file);
}

static const char *const files[] = {"config.json", "model.safetensors"};

char *scaled_model_write(const char *model, const struct scaling *rules, size_t n_rules)
{
    char *folder = strdup("/tmp/dse-scaled-XXXXXX"), from[1024], to[256];
    assert_non_null(folder);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(from, sizeof from, "%s/%s", reference_path(model), files[i]);
        (void)snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        if (i == 0)
            copy_file(from, to);
        else
            write_weights(from, to, rules, n_rules);
    }
    return folder;
}

void scaled_model_remove(char *folder)
{
    char path[256];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

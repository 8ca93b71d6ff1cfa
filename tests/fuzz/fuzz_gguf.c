/* GGUF files: header, configuration, tokenizer keys, tensors of a model, and everything that an accepted file exposes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const struct dse_gguf *gguf)
{
    for (size_t i = 0; i < dse_gguf_tensor_count(gguf); i++) {
        const struct dse_tensor *t = dse_gguf_tensor_at(gguf, i);
        if (dse_gguf_tensor(gguf, t->name) != t) abort();
        sink += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1];
    }
    for (size_t i = 0; i < dse_gguf_value_count(gguf); i++) {
        const struct dse_gguf_value *v = dse_gguf_value_at(gguf, i);
        size_t cursor = 0;
        struct dse_gguf_string text;
        while (dse_gguf_next_string(v, &cursor, &text))
            sink += text.bytes > 0 ? (uint8_t)text.data[text.bytes - 1] : 0;
        int64_t number;
        if (dse_gguf_array_i64(v, v->count - 1, &number)) sink += (uint64_t)number;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    if (fd < 0 && (fd = memfd_create("fuzz_gguf", 0)) < 0) abort();
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct dse_gguf *gguf = NULL;
    struct dse_model_file *file = NULL;
    struct dse_error err = {.status = DSE_OK};
    if (dse_gguf_open(path, &gguf, &err) == DSE_OK) {
        touch(gguf);
        dse_gguf_close(gguf);
        if (dse_model_file_open(path, &file, &err) == DSE_OK) {
            float *frequencies = malloc(sizeof *frequencies * (size_t)file->config.rope.dimensions), factor;
            const float *divisors = file->rope_divisors != NULL ? file->rope_divisors->data : NULL;
            dse_rope_frequencies(&file->config.rope, divisors, frequencies, &factor);
            free(frequencies);
            dse_model_file_close(file);
        } else if (err.message[0] == '\0') {
            abort();
        }
    } else if (gguf != NULL || err.message[0] == '\0') {
        abort();
    }
    return 0;
}

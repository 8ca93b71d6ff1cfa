/* safetensors files, and config.json where the input is a JSON object. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "model/config.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void as_config(const uint8_t *data, size_t size)
{
    json_t *object;
    struct dse_config config;
    struct dse_error err = {.status = DSE_OK};
    if (dse_json_parse((const char *)data, size, "config.json", &object, &err) != DSE_OK) return;
    if (dse_config_from_json(object, object, &config, &err) == DSE_OK) {
        float *frequencies = malloc(sizeof *frequencies * (size_t)config.rope.dimensions), factor;
        dse_rope_frequencies(&config.rope, NULL, frequencies, &factor);
        free(frequencies);
    } else if (err.message[0] == '\0') {
        abort();
    }
    json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    if (size > 0 && data[0] == '{') {
        as_config(data, size);
        return 0;
    }
    if (fd < 0 && (fd = memfd_create("fuzz_safetensors", 0)) < 0) abort();
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct dse_safetensors *file = NULL;
    struct dse_error err = {.status = DSE_OK};
    if (dse_safetensors_open(path, &file, &err) != DSE_OK) {
        if (file != NULL || err.message[0] == '\0') abort();
        return 0;
    }
    for (size_t i = 0; i < dse_safetensors_count(file); i++) {
        const struct dse_tensor *t = dse_safetensors_at(file, i);
        if (dse_safetensors_tensor(file, t->name) != t) abort();
        if (t->bytes > 0) sink += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1];
        sink += strlen(dse_safetensors_dtype(file, t));
    }
    dse_safetensors_close(file);
    return 0;
}

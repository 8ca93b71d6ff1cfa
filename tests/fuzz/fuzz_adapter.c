/* Adapters: a GGUF file, the tensors of a PEFT folder or, where the input is a JSON object, its configuration, each
 * with a good other half. What is accepted is packed as well.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "device/device.h"
#include "model/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LAYERS 2
#define WIDTH  8

static const char good_config[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4}";
static const char good_header[] = "{\"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\":"
                                  "{\"dtype\":\"F32\",\"shape\":[2,8],\"data_offsets\":[0,64]},"
                                  "\"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\":"
                                  "{\"dtype\":\"F32\",\"shape\":[8,2],\"data_offsets\":[64,128]}}";

static char folder[] = "/tmp/dse-fuzz-adapter-XXXXXX", config_path[64], tensors_path[64];
static struct dse_model_file base;
static struct dse_layer_tensors layers[LAYERS];
static struct dse_tensor square = {.name = "w", .n_dims = 2, .shape = {WIDTH, WIDTH, 1, 1}};
static struct dse_device *device;
static int gguf_fd = -1;
static volatile float sink;

static void clean(void)
{
    (void)unlink(config_path);
    (void)unlink(tensors_path);
    (void)rmdir(folder);
    dse_device_close(device);
}

static void write_file(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(head, 1, head_bytes, file) != head_bytes || fwrite(data, 1, bytes, file) != bytes ||
        fclose(file) != 0)
        abort();
}

static void prepare(void)
{
    struct dse_error err;
    if (mkdtemp(folder) == NULL) abort();
    snprintf(config_path, sizeof config_path, "%s/adapter_config.json", folder);
    snprintf(tensors_path, sizeof tensors_path, "%s/adapter_model.safetensors", folder);
    if (dse_device_open("cpu", 1, &device, &err) != DSE_OK) abort();
    gguf_fd = memfd_create("fuzz_adapter", 0);
    if (gguf_fd < 0) abort();
    base.config = (struct dse_config){.arch = DSE_ARCH_LLAMA,
                                      .arch_name = "llama",
                                      .n_layers = LAYERS,
                                      .n_embd = WIDTH,
                                      .n_heads = 2,
                                      .n_kv_heads = 2,
                                      .head_dim = 4,
                                      .n_ff = WIDTH,
                                      .rope = {.pairs = DSE_ROPE_INTERLEAVED}};
    for (int l = 0; l < LAYERS; l++) {
        layers[l].q = layers[l].k = layers[l].v = layers[l].o = &square;
        layers[l].gate = layers[l].up = layers[l].down = &square;
    }
    base.layers = layers;
    atexit(clean);
}

static void check(const struct dse_adapter_file *file)
{
    struct dse_device_adapter packed;
    struct dse_error err;
    if (file->n_modules == 0 || file->n_modules > LAYERS * 7) abort();
    for (size_t i = 0; i < file->n_modules; i++) {
        const struct dse_adapter_module *m = &file->modules[i];
        bool seen[WIDTH] = {false};
        if (m->layer < 0 || m->layer >= LAYERS || m->rank < 1 || m->rank > file->max_rank || !isfinite(m->scale))
            abort();
        for (size_t row = 0; row < WIDTH; row++) {
            const size_t to = dse_adapter_row(m, row);
            if (to >= WIDTH || seen[to]) abort();
            seen[to] = true;
        }
    }
    if (device->ops->load_adapter(device, &base.config, file, &packed, &err) != DSE_OK) return;
    if (packed.bytes != device->ops->adapter_bytes(device, &base.config, file)) abort();
    for (size_t i = 0; i < file->n_modules; i++) {
        const struct dse_adapter_module *m = &file->modules[i];
        const struct dse_low_rank *low = &packed.sites[(size_t)m->layer * DSE_SITE_COUNT + (size_t)m->site];
        const float x[WIDTH] = {1, 1, 1, 1, 1, 1, 1, 1};
        float *t = calloc((size_t)m->rank + 16, sizeof *t), y[WIDTH + 16];
        struct dse_activation in = {.x = x, .stride = WIDTH}, middle = {.x = t, .stride = (size_t)m->rank};
        if (low->a.rows != (size_t)m->rank || low->b.rows != WIDTH) abort();
        dse_matmul(&low->a, &in, 1, 0, low->a.rows, NULL, false, t, (size_t)m->rank);
        dse_matmul(&low->b, &middle, 1, 0, WIDTH, NULL, false, y, WIDTH);
        sink = y[0] + y[WIDTH - 1];
        free(t);
    }
    device->ops->unload_adapter(device, &packed);
}

static void open_one(const char *path)
{
    struct dse_adapter_file *file = NULL;
    struct dse_error err = {.status = DSE_OK};
    if (dse_adapter_file_open(path, &base, 1 << 20, &file, &err) != DSE_OK) {
        if (file != NULL || err.message[0] == '\0') abort();
        return;
    }
    check(file);
    dse_adapter_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (gguf_fd < 0) prepare();
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        char path[64];
        if (ftruncate(gguf_fd, 0) != 0 || pwrite(gguf_fd, data, size, 0) != (ssize_t)size) abort();
        snprintf(path, sizeof path, "/proc/self/fd/%d", gguf_fd);
        open_one(path);
        return 0;
    }
    if (size > 0 && data[0] == '{') {
        const uint64_t length = sizeof good_header - 1;
        uint8_t file[8 + sizeof good_header + 128] = {0};
        memcpy(file, &length, 8);
        memcpy(file + 8, good_header, length);
        write_file(config_path, data, size, "", 0);
        write_file(tensors_path, file, 8 + length + 128, "", 0);
    } else {
        write_file(config_path, good_config, sizeof good_config - 1, "", 0);
        write_file(tensors_path, data, size, "", 0);
    }
    open_one(folder);
    return 0;
}

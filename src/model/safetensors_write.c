/* Writer of safetensors: one file, atomically. Used for logits of `eval --output` and by tests. */
#include <string.h>

#include "base/buffer.h"
#include "base/checked.h"
#include "base/file.h"
#include "model/safetensors.h"
#include "model/safetensors_internal.h"

#define MAX_HEADER_BYTES ((size_t)100 << 20)

static const struct dse_safetensors_dtype *dtype_of(enum dse_type type)
{
    for (int i = 0; i < dse_safetensors_n_dtypes; i++) {
        if (dse_safetensors_dtypes[i].type == type && type != DSE_TYPE_UNREADABLE) return &dse_safetensors_dtypes[i];
    }
    return NULL;
}

static enum dse_status check_tensor(const struct dse_tensor *tensor, struct dse_error *err)
{
    const struct dse_safetensors_dtype *dtype = dtype_of(tensor->type);
    if (dtype == NULL)
        return dse_fail(err, DSE_ERR_UNSUPPORTED, "tensor '%s': its type cannot be written as safetensors",
                        tensor->name);
    size_t bytes = (size_t)dtype->bytes;
    bool fits = tensor->n_dims >= 0 && tensor->n_dims <= DSE_TENSOR_MAX_DIMS;
    for (int i = 0; fits && i < tensor->n_dims; i++)
        fits = dse_mul_size(bytes, tensor->shape[i], &bytes);
    if (!fits || bytes != tensor->bytes)
        return dse_fail(err, DSE_ERR_INVALID, "tensor '%s': %zu bytes do not match its shape", tensor->name,
                        tensor->bytes);
    return DSE_OK;
}

static void put_entry(struct dse_buffer *header, const struct dse_tensor *tensor, size_t begin)
{
    dse_buffer_puts(header, header->length > 9 ? "," : "");
    dse_buffer_put_json_string(header, tensor->name, strlen(tensor->name));
    dse_buffer_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_of(tensor->type)->name);
    for (int i = 0; i < tensor->n_dims; i++)
        dse_buffer_printf(header, "%s%zu", i > 0 ? "," : "", tensor->shape[i]);
    dse_buffer_printf(header, "],\"data_offsets\":[%zu,%zu]}", begin, begin + tensor->bytes);
}

enum dse_status dse_safetensors_write(const char *path, const struct dse_tensor *tensors, size_t count,
                                      struct dse_error *err)
{
    size_t data_bytes = 0, total = 0;
    char *file = NULL;
    struct dse_buffer header;
    dse_buffer_init(&header, DSE_MEM_MISC, MAX_HEADER_BYTES);
    enum dse_status status = DSE_OK;
    /* The format allows no padding between tensors: written by falling element size, each one is aligned. */
    dse_buffer_append(&header, "\0\0\0\0\0\0\0\0{", 9);
    for (int size = 8; size >= 1; size /= 2) {
        for (size_t i = 0; i < count; i++) {
            if ((status = check_tensor(&tensors[i], err)) != DSE_OK) goto out;
            if (dtype_of(tensors[i].type)->bytes != size) continue;
            put_entry(&header, &tensors[i], data_bytes);
            if (!dse_add_size(data_bytes, tensors[i].bytes, &data_bytes)) {
                status = dse_fail(err, DSE_ERR_LIMIT, "tensor '%s': the file would be too large", tensors[i].name);
                goto out;
            }
        }
    }
    dse_buffer_putc(&header, '}');
    while (header.length % 8 != 0 && dse_buffer_putc(&header, ' '))
        ;
    if (header.failed || !dse_add_size(header.length, data_bytes, &total) ||
        (file = dse_alloc(DSE_MEM_MISC, total)) == NULL) {
        status = dse_fail_memory(err, total, path);
        goto out;
    }
    uint64_t header_bytes = header.length - 8;
    memcpy(file, header.data, header.length);
    memcpy(file, &header_bytes, 8);
    size_t at = header.length;
    for (int size = 8; size >= 1; size /= 2) {
        for (size_t i = 0; i < count; i++) {
            if (dtype_of(tensors[i].type)->bytes != size || tensors[i].bytes == 0) continue;
            memcpy(file + at, tensors[i].data, tensors[i].bytes);
            at += tensors[i].bytes;
        }
    }
    status = dse_file_write_atomic(path, file, total, 0644, err);
out:
    dse_free(file);
    dse_buffer_deinit(&header);
    return status;
}

/* FP8 folders: the scales of every F8_E4M3 matrix are found, checked and attached to it, once, before any tensor is
 * used. Called by weights.c. A weight without scales, and scales without a weight, are refused: both mean that half of
 * a model was lost or that it was quantized in another way. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/safetensors_internal.h"
#include "model/weights_internal.h"

static const char suffix[] = "_scale_inv";

static enum dse_status check_values(const struct dse_model_file *file, const struct dse_tensor *scales,
                                    struct dse_error *err)
{
    for (size_t i = 0; i < scales->bytes / sizeof(float); i++) {
        float scale;
        memcpy(&scale, (const char *)scales->data + i * sizeof scale, sizeof scale);
        if (!(scale >= 0 && isfinite(scale)))
            return dse_fail_at(
                err, DSE_ERR_CORRUPT, file->path, -1,
                "%s: tensor '%s' holds the scale %g for block [%zu, %zu], expected zero or a positive number",
                file->path, scales->name, (double)scale, i / scales->shape[1], i % scales->shape[1]);
    }
    return DSE_OK;
}

static enum dse_status attach(struct dse_model_file *file, size_t index, const struct dse_tensor *weight,
                              struct dse_error *err)
{
    char name[288];
    snprintf(name, sizeof name, "%s%s", weight->name, suffix);
    const struct dse_tensor *scales = dse_safetensors_tensor(file->safetensors, name);
    if (scales == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                           "%s: tensor '%s' is missing: the FP8 weight has no scales", file->path, name);
    if (scales->type != DSE_TYPE_F32)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                           "%s: tensor '%s' has the type %s, scales are supported as F32 only", file->path, name,
                           dse_safetensors_dtype(file->safetensors, scales));
    size_t rows = (weight->shape[0] + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK,
           columns = (weight->shape[1] + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK;
    if (scales->n_dims != 2 || scales->shape[0] != rows || scales->shape[1] != columns)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                           "%s: tensor '%s' has %d dimensions [%zu, %zu], a weight of [%zu, %zu] needs scales of [%zu, "
                           "%zu]",
                           file->path, name, scales->n_dims, scales->shape[0], scales->shape[1], weight->shape[0],
                           weight->shape[1], rows, columns);
    enum dse_status status = check_values(file, scales, err);
    if (status == DSE_OK) dse_safetensors_set_scales(file->safetensors, index, scales->data);
    return status;
}

static enum dse_status check_companion(const struct dse_model_file *file, const struct dse_tensor *scales,
                                       size_t length, struct dse_error *err)
{
    char name[288];
    snprintf(name, sizeof name, "%.*s", (int)length, scales->name);
    const struct dse_tensor *weight = dse_safetensors_tensor(file->safetensors, name);
    if (weight != NULL && weight->type == DSE_TYPE_F8_E4M3) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1, "%s: tensor '%s' holds scales, but '%s' is %s", file->path,
                       scales->name, name, weight == NULL ? "missing" : "no FP8 weight");
}

enum dse_status dse_weights_attach_scales(struct dse_model_file *file, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    for (size_t i = 0; i < dse_safetensors_count(file->safetensors) && status == DSE_OK; i++) {
        const struct dse_tensor *tensor = dse_safetensors_at(file->safetensors, i);
        size_t length = strlen(tensor->name), tail = sizeof suffix - 1;
        if (length > tail && strcmp(tensor->name + length - tail, suffix) == 0)
            status = check_companion(file, tensor, length - tail, err);
        else if (tensor->type == DSE_TYPE_F8_E4M3 && tensor->n_dims == 2 && file->config.fp8_blocks)
            status = attach(file, i, tensor, err);
    }
    return status;
}

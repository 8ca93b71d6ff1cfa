/* safetensors, one file or the shards of model.safetensors.index.json, mapped and checked. Shard names must be plain
 * file names inside the folder. */
#ifndef DSE_MODEL_SAFETENSORS_H
#define DSE_MODEL_SAFETENSORS_H

#include <stdbool.h>

#include "base/error.h"
#include "model/tensor.h"

struct dse_safetensors;

/* path: a .safetensors file, or a folder with model.safetensors(.index.json). Types other than F32 F16 BF16 F64 I8 I16
 * I32 I64 F8_E4M3 are listed with DSE_TYPE_UNREADABLE. Tensors of the format may start at any byte: data may be
 * unaligned. */
DSE_MUST_CHECK enum dse_status dse_safetensors_open(const char *path, struct dse_safetensors **file,
                                                    struct dse_error *err);
/* One file, read into memory: it may change afterwards, or go. */
DSE_MUST_CHECK enum dse_status dse_safetensors_read(const char *path, size_t max_bytes, struct dse_safetensors **file,
                                                    struct dse_error *err);
void dse_safetensors_close(struct dse_safetensors *file);
size_t dse_safetensors_count(const struct dse_safetensors *file);
const struct dse_tensor *dse_safetensors_at(const struct dse_safetensors *file, size_t index);
const struct dse_tensor *dse_safetensors_tensor(const struct dse_safetensors *file, const char *name); /* or NULL */
/* The type as the file spells it ("F8_E4M3"), for a tensor of this file; its `type` is DSE_TYPE_UNREADABLE if we cannot
 * compute with it. */
const char *dse_safetensors_dtype(const struct dse_safetensors *file, const struct dse_tensor *tensor);
bool dse_safetensors_intact(const struct dse_safetensors *file);
bool dse_safetensors_maps(const struct dse_safetensors *file, const char *path); /* path names one of its shards */

/* Writes tensors (f32, i32, i64, …) as one file, atomically. Used by `eval --output`. */
DSE_MUST_CHECK enum dse_status dse_safetensors_write(const char *path, const struct dse_tensor *tensors, size_t count,
                                                     struct dse_error *err);

#endif

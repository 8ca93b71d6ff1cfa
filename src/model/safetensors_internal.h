/* What the reader and the writer of safetensors share: the table of dtypes. And what weights_fp8.c adds to a tensor. */
#ifndef DSE_MODEL_SAFETENSORS_INTERNAL_H
#define DSE_MODEL_SAFETENSORS_INTERNAL_H

#include <stddef.h>

#include "quant/types.h"

struct dse_safetensors_dtype {
    const char *name;
    int bytes;
    enum dse_type type; /* DSE_TYPE_UNREADABLE: listed only */
};

extern const struct dse_safetensors_dtype dse_safetensors_dtypes[];
extern const int dse_safetensors_n_dtypes;

struct dse_safetensors;

void dse_safetensors_set_scales(struct dse_safetensors *file, size_t index, const void *scales);

#endif

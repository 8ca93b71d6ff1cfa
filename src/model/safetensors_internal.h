/* What the reader and the writer of safetensors share: the table of dtypes. */
#ifndef DSE_MODEL_SAFETENSORS_INTERNAL_H
#define DSE_MODEL_SAFETENSORS_INTERNAL_H

#include "quant/types.h"

struct dse_safetensors_dtype {
    const char *name;
    int bytes;
    enum dse_type type; /* DSE_TYPE_UNREADABLE: listed only */
};

extern const struct dse_safetensors_dtype dse_safetensors_dtypes[];
extern const int dse_safetensors_n_dtypes;

#endif

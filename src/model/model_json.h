/* JSON files of a model: base/json.h with the statuses of a model file (malformed is DSE_ERR_CORRUPT, not a caller's
 * mistake). */
#ifndef DSE_MODEL_MODEL_JSON_H
#define DSE_MODEL_MODEL_JSON_H

#include "base/json.h"

static inline enum dse_status dse_model_json_status(enum dse_status status, struct dse_error *err)
{
    if (status != DSE_ERR_INVALID) return status;
    if (err != NULL) err->status = DSE_ERR_CORRUPT;
    return DSE_ERR_CORRUPT;
}

DSE_MUST_CHECK static inline enum dse_status dse_model_json_parse(const char *text, size_t bytes, const char *what,
                                                                  json_t **out, struct dse_error *err)
{
    return dse_model_json_status(dse_json_parse_limited(text, bytes, DSE_JSON_MAX_FILE_VALUES, what, out, err), err);
}

DSE_MUST_CHECK static inline enum dse_status dse_model_json_read(const char *path, size_t max_bytes, json_t **out,
                                                                 struct dse_error *err)
{
    return dse_model_json_status(dse_json_read(path, max_bytes, out, err), err);
}

#endif

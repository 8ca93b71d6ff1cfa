/* Typed reading of one field of a JSON object: absent and null are "not given", wrong types and impossible values are
 * DSE_ERR_INVALID with the field as err->file and both the found and the expected in the message. */
#ifndef DSE_SERVER_PARAMS_H
#define DSE_SERVER_PARAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Parsers end at the first failure. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum dse_status try_status = (call);                                                                           \
        if (try_status != DSE_OK) return try_status;                                                                   \
    } while (0)

/* What a number that no type of ours holds has become before it is read (body.c): beyond the range of every field. */
#define DSE_NUMBER_BEYOND 1e308

/* name is the field's key, or the path to it as messages shall give it (see dse_param_get).
 * Integers may be written as 5.0. *out is left alone (the default) when the field is not given. given may be NULL. */
DSE_MUST_CHECK enum dse_status dse_param_int(const json_t *object, const char *name, int64_t min, int64_t max,
                                             int64_t *out, bool *given, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_param_number(const json_t *object, const char *name, double min, double max,
                                                double *out, bool *given, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_param_bool(const json_t *object, const char *name, bool *out, bool *given,
                                              struct dse_error *err);
/* *out borrows from object; without NUL bytes unless bytes is asked for. */
DSE_MUST_CHECK enum dse_status dse_param_string(const json_t *object, const char *name, const char **out, size_t *bytes,
                                                struct dse_error *err);
/* One word of a list that ends with NULL; the message of a refusal is made from the list. *index is left alone when the
 * field is not given. */
DSE_MUST_CHECK enum dse_status dse_param_word(const json_t *object, const char *name, const char *const *words,
                                              int *index, struct dse_error *err);
/* The same for one value; path names it. */
DSE_MUST_CHECK enum dse_status dse_param_word_value(const json_t *value, const char *path, const char *const *words,
                                                    int *index, struct dse_error *err);
/* One value that must be an integer of [min, max]; path names it. */
DSE_MUST_CHECK enum dse_status dse_param_int_value(const json_t *value, const char *path, int64_t min, int64_t max,
                                                   int64_t *out, struct dse_error *err);
/* One value that must be a number of [min, max]; path names it. */
DSE_MUST_CHECK enum dse_status dse_param_number_value(const json_t *value, const char *path, double min, double max,
                                                      double *out, struct dse_error *err);
/* NULL for absent and null. name may be a path such as "stream_options.include_usage": its last part is the key. */
const json_t *dse_param_get(const json_t *object, const char *name);
const char *dse_json_type_name(const json_t *value);

#endif

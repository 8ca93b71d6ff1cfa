/* Typed reading of request fields (see params.h). */
#include "server/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *dse_json_type_name(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

const json_t *dse_param_get(const json_t *object, const char *name)
{
    const char *dot = strrchr(name, '.');
    const json_t *value = json_object_get(object, dot ? dot + 1 : name);
    return json_is_null(value) ? NULL : value;
}

enum dse_status dse_param_int_value(const json_t *value, const char *path, int64_t min, int64_t max, int64_t *out,
                                    struct dse_error *err)
{
    int64_t n;
    if (json_is_integer(value)) {
        n = json_integer_value(value);
    } else if (json_is_real(value)) {
        double d = json_real_value(value);
        if (!(d >= -0x1p63 && d < 0x1p63)) /* %g would not say what the client wrote */
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be an integer from %lld to %lld", path,
                               (long long)min, (long long)max);
        if (d != floor(d)) return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be an integer, not %g", path, d);
        n = (int64_t)d;
    } else {
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be an integer, not %s", path,
                           dse_json_type_name(value));
    }
    if (n < min)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be at least %lld, not %lld", path, (long long)min,
                           (long long)n);
    if (n > max)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be at most %lld, not %lld", path, (long long)max,
                           (long long)n);
    *out = n;
    return DSE_OK;
}

enum dse_status dse_param_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *out,
                              bool *given, struct dse_error *err)
{
    const json_t *value = dse_param_get(object, name);
    if (given) *given = value != NULL;
    return value ? dse_param_int_value(value, name, min, max, out, err) : DSE_OK;
}

enum dse_status dse_param_number_value(const json_t *value, const char *path, double min, double max, double *out,
                                       struct dse_error *err)
{
    if (!json_is_number(value))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a number, not %s", path,
                           dse_json_type_name(value));
    double d = json_number_value(value);
    if (fabs(d) >= DSE_NUMBER_BEYOND)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be from %g to %g", path, min, max);
    if (!(d >= min && d <= max))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be from %g to %g, not %g", path, min, max, d);
    *out = d;
    return DSE_OK;
}

enum dse_status dse_param_number(const json_t *object, const char *name, double min, double max, double *out,
                                 bool *given, struct dse_error *err)
{
    const json_t *value = dse_param_get(object, name);
    if (given) *given = value != NULL;
    return value ? dse_param_number_value(value, name, min, max, out, err) : DSE_OK;
}

/* "a, b or c" */
static void list_words(const char *const *words, char *out, size_t max)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; words[i] && n < max; i++) {
        const char *between = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        int written = snprintf(out + n, max - n, "%s%s", between, words[i]);
        n += written > 0 ? (size_t)written : 0;
    }
}

enum dse_status dse_param_word_value(const json_t *value, const char *path, const char *const *words, int *index,
                                     struct dse_error *err)
{
    char list[200];
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a string, not %s", path,
                           dse_json_type_name(value));
    for (int i = 0; words[i]; i++) {
        size_t bytes = strlen(words[i]);
        if (bytes != json_string_length(value) || memcmp(words[i], json_string_value(value), bytes) != 0) continue;
        *index = i;
        return DSE_OK;
    }
    list_words(words, list, sizeof list);
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be %s, not \"%.40s\"", path, list,
                       json_string_value(value));
}

enum dse_status dse_param_word(const json_t *object, const char *name, const char *const *words, int *index,
                               struct dse_error *err)
{
    const json_t *value = dse_param_get(object, name);
    return value ? dse_param_word_value(value, name, words, index, err) : DSE_OK;
}

enum dse_status dse_param_bool(const json_t *object, const char *name, bool *out, bool *given, struct dse_error *err)
{
    const json_t *value = dse_param_get(object, name);
    if (given) *given = value != NULL;
    if (!value) return DSE_OK;
    if (!json_is_boolean(value))
        return dse_fail_at(err, DSE_ERR_INVALID, name, -1, "%s must be true or false, not %s", name,
                           dse_json_type_name(value));
    *out = json_is_true(value);
    return DSE_OK;
}

enum dse_status dse_param_string(const json_t *object, const char *name, const char **out, size_t *bytes,
                                 struct dse_error *err)
{
    const json_t *value = dse_param_get(object, name);
    if (!value) return DSE_OK;
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_INVALID, name, -1, "%s must be a string, not %s", name,
                           dse_json_type_name(value));
    if (!bytes && strlen(json_string_value(value)) != json_string_length(value))
        return dse_fail_at(err, DSE_ERR_INVALID, name, -1, "%s contains a NUL character", name);
    *out = json_string_value(value);
    if (bytes) *bytes = json_string_length(value);
    return DSE_OK;
}

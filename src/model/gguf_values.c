/* Typed reads of GGUF metadata. A wrong type or a value out of range is refused with the key's name; what was checked
 * when the file was opened (lengths, counts) is relied on here. */
#include "model/gguf_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};

size_t dse_gguf_value_bytes(enum dse_gguf_value_type type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return (size_t)type < sizeof bytes ? bytes[type] : 0;
}

static bool read_integer(enum dse_gguf_value_type type, const uint8_t *data, int64_t *out)
{
    uint64_t bits = 0;
    memcpy(&bits, data, dse_gguf_value_bytes(type));
    switch (type) {
    case DSE_GGUF_I8: *out = (int8_t)bits; return true;
    case DSE_GGUF_I16: *out = (int16_t)bits; return true;
    case DSE_GGUF_I32: *out = (int32_t)bits; return true;
    case DSE_GGUF_I64: *out = (int64_t)bits; return true;
    case DSE_GGUF_U8:
    case DSE_GGUF_U16:
    case DSE_GGUF_U32: *out = (int64_t)bits; return true;
    case DSE_GGUF_U64:
        if (bits > (uint64_t)INT64_MAX) return false;
        *out = (int64_t)bits;
        return true;
    default: return false;
    }
}

bool dse_gguf_value_i64(const struct dse_gguf_value *value, int64_t *out)
{
    return read_integer(value->type, value->data, out);
}

static bool is_integer(enum dse_gguf_value_type type)
{
    return type <= DSE_GGUF_I32 || type == DSE_GGUF_U64 || type == DSE_GGUF_I64;
}

static int64_t offset_of(const struct dse_gguf *gguf, const struct dse_gguf_value *value)
{
    return value->data - gguf->shards[0].map.data;
}

static enum dse_status wrong_type(const struct dse_gguf *gguf, const struct dse_gguf_value *value, const char *key,
                                  const char *expected, struct dse_error *err)
{
    int64_t at = offset_of(gguf, value);
    return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), at,
                       "%s: key '%s' is of type %s, expected %s (at byte %lld)", dse_gguf_path(gguf), key,
                       type_names[value->type], expected, (long long)at);
}

enum dse_status dse_gguf_get_i64(const struct dse_gguf *gguf, const char *key, int64_t minimum, int64_t maximum,
                                 int64_t *out, struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    if (!is_integer(value->type)) return wrong_type(gguf, value, key, "an integer", err);
    int64_t number = 0, at = offset_of(gguf, value);
    bool fits = read_integer(value->type, value->data, &number);
    if (!fits || number < minimum || number > maximum) {
        char found[32] = "above 2^63";
        if (fits) snprintf(found, sizeof found, "%lld", (long long)number);
        return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), at,
                           "%s: key '%s' is %s, expected %lld to %lld (at byte %lld)", dse_gguf_path(gguf), key, found,
                           (long long)minimum, (long long)maximum, (long long)at);
    }
    *out = number;
    return DSE_OK;
}

enum dse_status dse_gguf_get_f64(const struct dse_gguf *gguf, const char *key, double *out, struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    double number;
    int64_t integer = 0;
    if (value->type == DSE_GGUF_F32) {
        float single;
        memcpy(&single, value->data, sizeof single);
        number = (double)single;
    } else if (value->type == DSE_GGUF_F64) {
        memcpy(&number, value->data, sizeof number);
    } else if (is_integer(value->type) && read_integer(value->type, value->data, &integer)) {
        number = (double)integer;
    } else {
        return wrong_type(gguf, value, key, "a number", err);
    }
    if (!isfinite(number)) {
        int64_t at = offset_of(gguf, value);
        return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), at, "%s: key '%s' is not finite (at byte %lld)",
                           dse_gguf_path(gguf), key, (long long)at);
    }
    *out = number;
    return DSE_OK;
}

enum dse_status dse_gguf_get_bool(const struct dse_gguf *gguf, const char *key, bool *out, struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    if (value->type != DSE_GGUF_BOOL) return wrong_type(gguf, value, key, "bool", err);
    if (value->data[0] > 1) {
        int64_t at = offset_of(gguf, value);
        return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), at,
                           "%s: key '%s' is a bool with the value %d (at byte %lld)", dse_gguf_path(gguf), key,
                           value->data[0], (long long)at);
    }
    *out = value->data[0] != 0;
    return DSE_OK;
}

enum dse_status dse_gguf_get_string(const struct dse_gguf *gguf, const char *key, struct dse_gguf_string *out,
                                    struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    if (value->type != DSE_GGUF_STRING) return wrong_type(gguf, value, key, "string", err);
    *out = (struct dse_gguf_string){(const char *)value->data, value->bytes};
    return DSE_OK;
}

bool dse_gguf_next_string(const struct dse_gguf_value *array, size_t *cursor, struct dse_gguf_string *out)
{
    if (array->type != DSE_GGUF_ARRAY || array->element_type != DSE_GGUF_STRING) return false;
    if (*cursor >= array->bytes) return false;
    uint64_t length;
    memcpy(&length, array->data + *cursor, sizeof length);
    *out = (struct dse_gguf_string){(const char *)array->data + *cursor + sizeof length, (size_t)length};
    *cursor += sizeof length + (size_t)length;
    return true;
}

bool dse_gguf_array_i64(const struct dse_gguf_value *array, size_t index, int64_t *out)
{
    if (array->type != DSE_GGUF_ARRAY || !is_integer(array->element_type) || index >= array->count) return false;
    return read_integer(array->element_type, array->data + index * dse_gguf_value_bytes(array->element_type), out);
}

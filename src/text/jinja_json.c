/* JSON in and out of template values: inputs, the tojson and from_json filters.
 *
 * Writing follows Python's json.dumps byte for byte, since models were trained on its output.
 */
#include "text/jinja_json.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja_text.h"

const struct dse_json_style dse_json_style_default = {
    .item_separator = ", ", .key_separator = ": ", .item_separator_bytes = 2, .key_separator_bytes = 2};

static struct dse_jv text_value(struct dse_jinja_run *run, const char *data, size_t bytes, bool borrow)
{
    if (!dse_utf8_valid(data, bytes)) return dse_jinja_fail(run, DSE_ERR_INVALID, "a text is not valid UTF-8");
    return borrow ? dse_jv_borrow(run, data, bytes) : dse_jv_text(run, data, bytes);
}

static struct dse_jv from_json_at(struct dse_jinja_run *run, const json_t *json, bool borrow, unsigned depth)
{
    if (!dse_jinja_charge(run, 1)) return dse_jv_failed();
    if (depth > DSE_JINJA_MAX_VALUE_DEPTH) return dse_jinja_fail(run, DSE_ERR_LIMIT, "JSON nested too deeply");
    struct dse_jv result;
    switch (json_typeof(json)) {
    case JSON_NULL: return dse_jv_none();
    case JSON_TRUE: return dse_jv_of_bool(true);
    case JSON_FALSE: return dse_jv_of_bool(false);
    case JSON_INTEGER: return dse_jv_of_int(json_integer_value(json));
    case JSON_REAL: return dse_jv_of_float(json_real_value(json));
    case JSON_STRING: return text_value(run, json_string_value(json), json_string_length(json), borrow);
    case JSON_ARRAY:
        result = dse_jv_new_list(run, DSE_JV_LIST, json_array_size(json));
        for (size_t i = 0; result.kind != DSE_JV_FAIL && i < json_array_size(json); i++) {
            struct dse_jv item = from_json_at(run, json_array_get(json, i), borrow, depth + 1);
            if (item.kind == DSE_JV_FAIL || !dse_jv_push(run, result, item)) return dse_jv_failed();
        }
        return result;
    default: break;
    }
    result = dse_jv_new_dict(run);
    if (result.kind == DSE_JV_FAIL) return result;
    json_t *object = (json_t *)json; /* jansson's iterators take no const, but do not write */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        struct dse_jv key = text_value(run, json_object_iter_key(at), json_object_iter_key_len(at), borrow);
        struct dse_jv value = key.kind == DSE_JV_FAIL
                                  ? key
                                  : from_json_at(run, json_object_iter_value(at), borrow, depth + 1);
        if (value.kind == DSE_JV_FAIL || !dse_jv_dict_set(run, result.as.dict, key, value)) return dse_jv_failed();
    }
    return result;
}

struct dse_jv dse_jv_from_json(struct dse_jinja_run *run, const json_t *json, bool borrow)
{
    return from_json_at(run, json, borrow, 0);
}

struct dse_jv dse_jv_parse_json(struct dse_jinja_run *run, const struct dse_jv_string *text)
{
    json_t *json;
    struct dse_error err;
    if (!dse_jinja_charge(run, 1 + text->bytes / 8)) return dse_jv_failed();
    if (dse_json_parse(text->data, text->bytes, "from_json", &json, &err) != DSE_OK)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "%.300s", err.message);
    struct dse_jv value = dse_jv_from_json(run, json, false);
    json_decref(json);
    return value;
}

static void put_string(struct dse_buffer *buffer, const struct dse_jv_string *text, bool ascii)
{
    size_t plain = 0;
    dse_buffer_putc(buffer, '"');
    for (size_t at = 0, used; at < text->bytes; at += used) {
        unsigned char lead = (unsigned char)text->data[at];
        used = 1;
        if (lead >= 0x20 && lead != '"' && lead != '\\' && (lead < 0x7F || !ascii)) continue;
        if (ascii && lead == 0x7F) continue;
        dse_buffer_append(buffer, text->data + plain, at - plain);
        uint32_t c = dse_utf8_decode(text->data + at, text->bytes - at, &used);
        plain = at + used;
        const char *position = c < 0x80 ? strchr("\"\"\\\\\nn\rr\tt\bb\ff", (int)c) : NULL;
        if (c && position)
            dse_buffer_printf(buffer, "\\%c", c == '"' || c == '\\' ? (int)c : position[1]);
        else if (c < 0x10000)
            dse_buffer_printf(buffer, "\\u%04x", (unsigned)c);
        else
            dse_buffer_printf(buffer, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (c >> 10)),
                              (unsigned)(0xDC00 + (c & 0x3FF)));
    }
    dse_buffer_append(buffer, text->data + plain, text->bytes - plain);
    dse_buffer_putc(buffer, '"');
}

static void put_line(struct dse_buffer *buffer, const struct dse_json_style *style, unsigned depth)
{
    if (!style->indent) return;
    dse_buffer_putc(buffer, '\n');
    for (unsigned i = 0; i < depth; i++)
        dse_buffer_puts(buffer, style->indent);
}

static bool put_scalar(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, bool ascii)
{
    char number[40];
    switch (v.kind) {
    case DSE_JV_NONE: dse_buffer_puts(buffer, "null"); return true;
    case DSE_JV_BOOL: dse_buffer_puts(buffer, v.as.boolean ? "true" : "false"); return true;
    case DSE_JV_INT: dse_buffer_printf(buffer, "%lld", (long long)v.as.integer); return true;
    case DSE_JV_FLOAT:
        dse_jv_format_float(v.as.real, number);
        dse_buffer_puts(buffer, isnan(v.as.real)    ? "NaN"
                                : !isinf(v.as.real) ? number
                                : v.as.real < 0     ? "-Infinity"
                                                    : "Infinity");
        return true;
    case DSE_JV_STRING:
        if (!dse_jinja_charge_chars(run, v.as.string->bytes)) return false;
        put_string(buffer, v.as.string, ascii);
        return true;
    default: break;
    }
    dse_jinja_fail(run, DSE_ERR_INVALID, "Object of type %s is not JSON serializable", dse_jv_type_name(v));
    return false;
}

static bool put_key(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv key, bool ascii)
{
    if (key.kind == DSE_JV_STRING) return put_scalar(run, buffer, key, ascii);
    if (key.kind == DSE_JV_TUPLE || key.kind == DSE_JV_UNDEFINED)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "keys must be str, int, float, bool or None, not %s",
                              dse_jv_type_name(key)),
               false;
    dse_buffer_putc(buffer, '"');
    bool ok = put_scalar(run, buffer, key, ascii);
    dse_buffer_putc(buffer, '"');
    return ok;
}

static bool write_value(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v,
                        const struct dse_json_style *style, unsigned depth);

static bool write_object(struct dse_jinja_run *run, struct dse_buffer *buffer, const struct dse_jv_dict *dict,
                         const struct dse_json_style *style, unsigned depth)
{
    struct dse_jv keys = dse_jv_new_list(run, DSE_JV_LIST, dict->count), values = keys;
    if (style->sort_keys) {
        values = dse_jv_new_list(run, DSE_JV_LIST, dict->count);
        for (size_t i = 0; i < dict->count && !run->failed; i++) {
            dse_jv_push(run, keys, dict->entries[i].key);
            dse_jv_push(run, values, dict->entries[i].value);
        }
        if (run->failed || !dse_jv_sort(run, keys.as.list->items, values.as.list->items, dict->count, false))
            return false;
    }
    dse_buffer_putc(buffer, '{');
    for (size_t i = 0; i < dict->count; i++) {
        if (i) dse_buffer_append(buffer, style->item_separator, style->item_separator_bytes);
        put_line(buffer, style, depth + 1);
        if (!put_key(run, buffer, style->sort_keys ? keys.as.list->items[i] : dict->entries[i].key, style->ascii))
            return false;
        dse_buffer_append(buffer, style->key_separator, style->key_separator_bytes);
        if (!write_value(run, buffer, style->sort_keys ? values.as.list->items[i] : dict->entries[i].value, style,
                         depth + 1))
            return false;
    }
    if (dict->count) put_line(buffer, style, depth);
    dse_buffer_putc(buffer, '}');
    return true;
}

static bool write_value(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v,
                        const struct dse_json_style *style, unsigned depth)
{
    if (!dse_jinja_charge(run, 8)) return false; /* as much work as evaluating a few nodes */
    if (depth > DSE_JINJA_MAX_VALUE_DEPTH)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "values nested too deeply for JSON"), false;
    if (v.kind == DSE_JV_DICT) {
        if (!write_object(run, buffer, v.as.dict, style, depth)) return false;
    } else if (dse_jv_is_sequence(v)) {
        dse_buffer_putc(buffer, '[');
        for (size_t i = 0; i < v.as.list->count; i++) {
            if (i) dse_buffer_append(buffer, style->item_separator, style->item_separator_bytes);
            put_line(buffer, style, depth + 1);
            if (!write_value(run, buffer, v.as.list->items[i], style, depth + 1)) return false;
        }
        if (v.as.list->count) put_line(buffer, style, depth);
        dse_buffer_putc(buffer, ']');
    } else if (!put_scalar(run, buffer, v, style->ascii)) {
        return false;
    }
    if (buffer->failed)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "JSON longer than %zu bytes", buffer->max_bytes), false;
    return true;
}

bool dse_jv_write_json(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v,
                       const struct dse_json_style *style)
{
    return write_value(run, buffer, v, style, 0);
}

char *dse_json_text(const json_t *json)
{
    struct dse_jinja_run run = {.limits = &dse_template_limits_default, .deadline_ns = UINT64_MAX};
    struct dse_buffer buffer;
    dse_arena_init(&run.arena, DSE_MEM_REQUEST, run.limits->max_memory_bytes);
    dse_jv_buffer_init(&run, &buffer);
    struct dse_jv value = dse_jv_from_json(&run, json, true);
    char *text = NULL;
    if (value.kind != DSE_JV_FAIL && dse_jv_write_json(&run, &buffer, value, &dse_json_style_default))
        text = dse_buffer_take(&buffer);
    dse_buffer_deinit(&buffer);
    dse_arena_deinit(&run.arena);
    return text;
}

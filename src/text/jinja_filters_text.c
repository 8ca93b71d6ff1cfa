/* Filters on single values: text, numbers, JSON. Those on lists are in jinja_filters_list.c. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_builtins.h"
#include "text/jinja_json.h"
#include "text/jinja_text.h"

#define FILTER(name)                                                                                                   \
    static struct dse_jv filter_##name(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jv *argv,          \
                                       const struct dse_jinja_args *args)

static struct dse_jv with_case(struct dse_jinja_run *run, struct dse_jv v, enum dse_jv_case how)
{
    struct dse_jv text = dse_jv_to_string(run, v);
    return text.kind == DSE_JV_FAIL ? text : dse_jv_change_case(run, text.as.string, how);
}

FILTER(upper)
{
    return with_case(run, v, DSE_JV_UPPER);
}
FILTER(lower)
{
    return with_case(run, v, DSE_JV_LOWER);
}
FILTER(capitalize)
{
    return with_case(run, v, DSE_JV_CAPITALIZE);
}
FILTER(title)
{
    return with_case(run, v, DSE_JV_TITLE_FILTER);
}
FILTER(string)
{
    return dse_jv_to_string(run, v);
}

FILTER(trim)
{
    const struct dse_jv_string *set = NULL;
    struct dse_jv text = dse_jv_to_string(run, v);
    if (text.kind == DSE_JV_FAIL) return text;
    if (dse_given(argv[0]) && argv[0].kind != DSE_JV_NONE && !dse_jinja_want_string(run, argv[0], "chars", &set))
        return dse_jv_failed();
    return dse_jv_strip(run, text.as.string, set, true, true);
}

FILTER(default)
{
    bool falsy = dse_given(argv[1]) && dse_jv_truth(argv[1]) && !dse_jv_truth(v);
    if (v.kind != DSE_JV_UNDEFINED && !falsy) return v;
    return dse_given(argv[0]) ? argv[0] : dse_jv_text(run, "", 0);
}

FILTER(replace)
{
    int64_t count = -1;
    struct dse_jv text = dse_jv_to_string(run, v), old = dse_jv_to_string(run, argv[0]),
                  with = dse_jv_to_string(run, argv[1]);
    if (run->failed) return dse_jv_failed();
    if (dse_given(argv[2]) && argv[2].kind != DSE_JV_NONE && !dse_jinja_want_int(run, argv[2], "count", &count))
        return dse_jv_failed();
    return dse_jv_replace(run, text.as.string, old.as.string, with.as.string, count);
}

FILTER(escape)
{
    struct dse_jv text = dse_jv_to_string(run, v);
    struct dse_buffer buffer;
    if (text.kind == DSE_JV_FAIL || !dse_jinja_charge_chars(run, text.as.string->bytes)) return dse_jv_failed();
    dse_jv_buffer_init(run, &buffer);
    for (size_t i = 0; i < text.as.string->bytes; i++) {
        char c = text.as.string->data[i];
        const char *entity = c == '&'    ? "&amp;"
                             : c == '<'  ? "&lt;"
                             : c == '>'  ? "&gt;"
                             : c == '"'  ? "&#34;"
                             : c == '\'' ? "&#39;"
                                         : NULL;
        if (entity)
            dse_buffer_puts(&buffer, entity);
        else
            dse_buffer_putc(&buffer, c);
    }
    return dse_jv_take(run, &buffer);
}

/* Lines after the first get `width` in front (a number of blanks, or a text), blank ones only on demand. */
FILTER(indent)
{
    struct dse_jv text = dse_jv_to_string(run, v), blank, pad = argv[0];
    int64_t width = 4;
    if (text.kind == DSE_JV_FAIL) return text;
    if (!dse_given(pad) || pad.kind != DSE_JV_STRING) {
        if (dse_given(pad) && !dse_jinja_want_int(run, pad, "width", &width)) return dse_jv_failed();
        if ((blank = dse_jv_text(run, " ", 1)).kind == DSE_JV_FAIL) return blank;
        pad = dse_jv_repeat(run, blank.as.string, width);
    }
    if (pad.kind == DSE_JV_FAIL) return pad;
    bool first = dse_given(argv[1]) && dse_jv_truth(argv[1]), blanks = dse_given(argv[2]) && dse_jv_truth(argv[2]);
    const struct dse_jv_string *s = text.as.string;
    struct dse_buffer buffer;
    dse_jv_buffer_init(run, &buffer);
    for (size_t begin = 0; begin <= s->bytes && !buffer.failed && dse_jinja_charge_bytes(run, pad.as.string->bytes);) {
        const char *newline = begin < s->bytes ? memchr(s->data + begin, '\n', s->bytes - begin) : NULL;
        size_t end = newline ? (size_t)(newline - s->data) : s->bytes;
        bool padded = begin == 0 ? first : blanks || end > begin;
        if (padded) dse_buffer_append(&buffer, pad.as.string->data, pad.as.string->bytes);
        dse_buffer_append(&buffer, s->data + begin, end - begin);
        if (newline) dse_buffer_putc(&buffer, '\n');
        begin = end + 1;
    }
    struct dse_jv result = dse_jv_take(run, &buffer);
    return run->failed ? dse_jv_failed() : result;
}

FILTER(wordcount)
{
    struct dse_jv text = dse_jv_to_string(run, v);
    int64_t words = 0;
    if (text.kind == DSE_JV_FAIL || !dse_jinja_charge_chars(run, text.as.string->bytes)) return dse_jv_failed();
    bool inside = false;
    for (size_t i = 0; i < text.as.string->bytes; i++) {
        unsigned char c = (unsigned char)text.as.string->data[i];
        bool word = c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        words += word && !inside;
        inside = word;
    }
    return dse_jv_of_int(words);
}

FILTER(format)
{
    struct dse_jv text = dse_jv_to_string(run, v), list = dse_jv_new_list(run, DSE_JV_TUPLE, args->count);
    if (run->failed) return dse_jv_failed();
    for (size_t i = 0; i < args->count; i++)
        if (!dse_jv_push(run, list, args->items[i])) return dse_jv_failed();
    return dse_jv_percent_format(run, text.as.string, list);
}

/* ---- numbers ---- */

/* Text as a number, Python style: blanks around, whole text. */
static bool text_number(const struct dse_jv_string *text, int base, bool as_int, int64_t *integer, double *real)
{
    char digits[64], *end;
    size_t begin = 0, stop = text->bytes, n = 0;
    while (begin < stop && dse_jv_is_space((unsigned char)text->data[begin]))
        begin++;
    while (stop > begin && dse_jv_is_space((unsigned char)text->data[stop - 1]))
        stop--;
    if (stop == begin || stop - begin >= sizeof(digits)) return false;
    for (size_t i = begin; i < stop; i++)
        if (text->data[i] != '_' && text->data[i]) digits[n++] = text->data[i];
    digits[n] = 0;
    if (n == 0) return false;
    errno = 0;
    if (as_int) {
        if (base == 2 && strlen(digits) > 2 && digits[0] == '0' && (digits[1] | 32) == 'b')
            memmove(digits, digits + 2, n - 1);
        if (base == 8 && strlen(digits) > 2 && digits[0] == '0' && (digits[1] | 32) == 'o')
            memmove(digits, digits + 2, n - 1);
        *integer = strtoll(digits, &end, base);
        return *end == 0 && end != digits && errno == 0;
    }
    if (strpbrk(digits, "xXpP(")) return false; /* strtod knows more than Python */
    *real = strtod(digits, &end);
    return *end == 0 && end != digits;
}

static struct dse_jv truncated(struct dse_jinja_run *run, double real, struct dse_jv fallback)
{
    if (!(fabs(real) < 1e300)) return fallback;
    if (!(fabs(real) < 9.2e18)) return dse_jinja_fail(run, DSE_ERR_LIMIT, "integer too large");
    return dse_jv_of_int((int64_t)real);
}

FILTER(int)
{
    struct dse_jv fallback = dse_given(argv[0]) ? argv[0] : dse_jv_of_int(0);
    int64_t base = 10, integer;
    double real;
    if (dse_given(argv[1]) && !dse_jinja_want_int(run, argv[1], "base", &base)) return dse_jv_failed();
    if (base < 2 || base > 36) base = 10;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    if (dse_jv_as_int(v, &integer)) return dse_jv_of_int(integer);
    if (v.kind == DSE_JV_FLOAT) return truncated(run, v.as.real, fallback);
    if (v.kind != DSE_JV_STRING) return fallback;
    if (text_number(v.as.string, (int)base, true, &integer, &real)) return dse_jv_of_int(integer);
    if (text_number(v.as.string, 10, false, &integer, &real)) return truncated(run, real, fallback);
    return fallback;
}

FILTER(float)
{
    int64_t integer;
    double real;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    if (dse_jv_is_number(v)) return dse_jv_of_float(dse_jv_as_double(v));
    if (v.kind == DSE_JV_STRING && text_number(v.as.string, 10, false, &integer, &real)) return dse_jv_of_float(real);
    return dse_given(argv[0]) ? argv[0] : dse_jv_of_float(0);
}

FILTER(abs)
{
    int64_t integer;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    if (v.kind == DSE_JV_FLOAT) return dse_jv_of_float(fabs(v.as.real));
    if (!dse_jinja_want_int(run, v, "abs", &integer)) return dse_jv_failed();
    if (integer == INT64_MIN) return dse_jinja_fail(run, DSE_ERR_LIMIT, "integer too large");
    return dse_jv_of_int(integer < 0 ? -integer : integer);
}

FILTER(round)
{
    int64_t precision = 0;
    char text[400];
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    if (!dse_jv_is_number(v)) return dse_jinja_fail(run, DSE_ERR_INVALID, "round: a number is required");
    if (dse_given(argv[0]) && !dse_jinja_want_int(run, argv[0], "precision", &precision)) return dse_jv_failed();
    bool up = false, down = false;
    if (dse_given(argv[1]) && argv[1].kind == DSE_JV_STRING) {
        up = argv[1].as.string->bytes == 4 && memcmp(argv[1].as.string->data, "ceil", 4) == 0;
        down = argv[1].as.string->bytes == 5 && memcmp(argv[1].as.string->data, "floor", 5) == 0;
        bool common = argv[1].as.string->bytes == 6 && memcmp(argv[1].as.string->data, "common", 6) == 0;
        if (!up && !down && !common)
            return dse_jinja_fail(run, DSE_ERR_INVALID, "method must be common, ceil or floor");
    }
    precision = precision > 15 ? 15 : precision < -15 ? -15 : precision;
    double value = dse_jv_as_double(v), scale = pow(10, (double)precision);
    if (up || down) return dse_jv_of_float((up ? ceil(value * scale) : floor(value * scale)) / scale);
    if (v.kind != DSE_JV_FLOAT && precision >= 0) return v.kind == DSE_JV_BOOL ? dse_jv_of_int(v.as.boolean) : v;
    if (precision >= 0) { /* printing rounds the exact binary value, as Python does */
        snprintf(text, sizeof(text), "%.*f", (int)precision, value);
        return dse_jv_of_float(strtod(text, NULL));
    }
    value = rint(value * scale) / scale;
    return v.kind == DSE_JV_FLOAT ? dse_jv_of_float(value) : truncated(run, value, v);
}

/* ---- JSON ---- */

static bool separators(struct dse_jinja_run *run, struct dse_jv v, struct dse_json_style *style)
{
    const struct dse_jv_string *item, *key;
    if (!dse_jv_is_sequence(v) || v.as.list->count != 2)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "separators must be two strings"), false;
    if (!dse_jinja_want_string(run, v.as.list->items[0], "separator", &item) ||
        !dse_jinja_want_string(run, v.as.list->items[1], "separator", &key))
        return false;
    style->item_separator = item->data;
    style->item_separator_bytes = item->bytes;
    style->key_separator = key->data;
    style->key_separator_bytes = key->bytes;
    return true;
}

FILTER(tojson)
{
    struct dse_json_style style = dse_json_style_default;
    char indent[65];
    style.ascii = dse_given(argv[0]) && dse_jv_truth(argv[0]);
    style.sort_keys = dse_given(argv[3]) && dse_jv_truth(argv[3]);
    if (dse_given(argv[1]) && argv[1].kind != DSE_JV_NONE) {
        int64_t width = 0;
        size_t bytes = 0;
        if (argv[1].kind == DSE_JV_STRING) {
            bytes = argv[1].as.string->bytes;
            if (bytes >= sizeof(indent)) return dse_jinja_fail(run, DSE_ERR_LIMIT, "indent longer than 64");
            memcpy(indent, argv[1].as.string->data, bytes);
        } else {
            if (!dse_jinja_want_int(run, argv[1], "indent", &width)) return dse_jv_failed();
            if (width >= (int64_t)sizeof(indent)) return dse_jinja_fail(run, DSE_ERR_LIMIT, "indent longer than 64");
            bytes = width > 0 ? (size_t)width : 0;
            memset(indent, ' ', bytes);
        }
        indent[bytes] = 0;
        style.indent = indent;
        style.item_separator = ",";
        style.item_separator_bytes = 1;
    }
    if (dse_given(argv[2]) && argv[2].kind != DSE_JV_NONE && !separators(run, argv[2], &style)) return dse_jv_failed();
    struct dse_buffer buffer;
    dse_jv_buffer_init(run, &buffer);
    dse_jv_write_json(run, &buffer, v, &style);
    struct dse_jv result = dse_jv_take(run, &buffer);
    return run->failed ? dse_jv_failed() : result;
}

FILTER(from_json)
{
    const struct dse_jv_string *text;
    return dse_jinja_want_string(run, v, "from_json", &text) ? dse_jv_parse_json(run, text) : dse_jv_failed();
}

const struct dse_jinja_builtin dse_jinja_text_filters[] = {
    {"upper", "", filter_upper},
    {"lower", "", filter_lower},
    {"capitalize", "", filter_capitalize},
    {"title", "", filter_title},
    {"string", "", filter_string},
    {"safe", "", filter_string},
    {"trim", "chars", filter_trim},
    {"default", "default_value boolean", filter_default},
    {"d", "default_value boolean", filter_default},
    {"replace", "*old *new count", filter_replace},
    {"escape", "", filter_escape},
    {"e", "", filter_escape},
    {"indent", "width first blank", filter_indent},
    {"wordcount", "", filter_wordcount},
    {"format", NULL, filter_format},
    {"int", "default base", filter_int},
    {"float", "default", filter_float},
    {"abs", "", filter_abs},
    {"round", "precision method", filter_round},
    {"tojson", "ensure_ascii indent separators sort_keys", filter_tojson},
    {"from_json", "", filter_from_json},
    {NULL, NULL, NULL},
};

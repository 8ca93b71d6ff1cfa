/* Template strings: concatenation without copying, slicing by character, case, formatting; str() and repr().
 *
 * Every operation charges for the bytes it walks over.
 */
#include "text/jinja_text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "base/utf8.h"

size_t dse_jv_count_chars(const char *data, size_t bytes)
{
    size_t chars = 0;
    for (size_t i = 0; i < bytes; i++)
        chars += ((unsigned char)data[i] & 0xC0) != 0x80;
    return chars;
}

static struct dse_jv make_string(struct dse_jinja_run *run, const char *data, size_t bytes, size_t chars)
{
    struct dse_jv_string *string = dse_jinja_alloc(run, sizeof(*string));
    if (!string) return dse_jv_failed();
    string->data = data;
    string->bytes = bytes;
    string->chars = chars;
    return (struct dse_jv){.kind = DSE_JV_STRING, .as.string = string};
}

struct dse_jv dse_jv_borrow(struct dse_jinja_run *run, const char *data, size_t bytes)
{
    if (!dse_jinja_charge_bytes(run, bytes)) return dse_jv_failed();
    return make_string(run, data, bytes, dse_jv_count_chars(data, bytes));
}

struct dse_jv dse_jv_text(struct dse_jinja_run *run, const char *data, size_t bytes)
{
    char *copy = dse_jinja_alloc(run, bytes + 1);
    if (!copy) return dse_jv_failed();
    if (bytes) memcpy(copy, data, bytes);
    return dse_jv_borrow(run, copy, bytes);
}

void dse_jv_buffer_init(struct dse_jinja_run *run, struct dse_buffer *buffer)
{
    dse_buffer_init(buffer, DSE_MEM_REQUEST, run->limits->max_memory_bytes);
}

struct dse_jv dse_jv_take(struct dse_jinja_run *run, struct dse_buffer *buffer)
{
    struct dse_jv result;
    if (buffer->failed)
        result = dse_jinja_fail(run, DSE_ERR_LIMIT, "text longer than %zu bytes", buffer->max_bytes);
    else
        result = dse_jv_text(run, dse_buffer_text(buffer), buffer->length);
    dse_buffer_deinit(buffer);
    return result;
}

size_t dse_jv_find(const struct dse_jv_string *text, const struct dse_jv_string *needle, size_t from)
{
    if (from > text->bytes || needle->bytes > text->bytes - from) return SIZE_MAX;
    if (needle->bytes == 0) return from;
    /* In growing windows, since a checked memmem (sanitizers) walks over all it is given before it searches: many near
     * matches in one long text would take quadratic time. */
    for (size_t window = needle->bytes + 256;; window *= 2) {
        size_t rest = text->bytes - from, part = window < rest ? window : rest;
        const char *found = memmem(text->data + from, part, needle->data, needle->bytes);
        if (found) return (size_t)(found - text->data);
        if (part == rest) return SIZE_MAX;
        from += part - needle->bytes + 1;
    }
}

struct dse_jv dse_jv_concat(struct dse_jinja_run *run, const struct dse_jv_string *a, const struct dse_jv_string *b)
{
    if (b->bytes == 0) return (struct dse_jv){.kind = DSE_JV_STRING, .as.string = a};
    if (a->bytes == 0) return (struct dse_jv){.kind = DSE_JV_STRING, .as.string = b};
    size_t total, capacity;
    if (!dse_jinja_charge_bytes(run, b->bytes)) return dse_jv_failed();
    if (!dse_add_size(a->bytes, b->bytes, &total) || total > run->limits->max_memory_bytes ||
        !dse_mul_size(total, 2, &capacity))
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "values take more than %zu bytes", run->limits->max_memory_bytes);

    struct dse_jv_tail *tail = a->tail;
    /* Only the longest string on a tail may grow it: nobody has written behind it yet. */
    if (!tail || tail->data + tail->used != a->data + a->bytes || tail->capacity - tail->used < b->bytes) {
        if (!dse_jinja_charge_bytes(run, a->bytes)) return dse_jv_failed();
        if (!(tail = dse_jinja_alloc(run, sizeof(*tail))) || !(tail->data = dse_jinja_alloc(run, capacity)))
            return dse_jv_failed();
        tail->capacity = capacity;
        memcpy(tail->data, a->data, a->bytes);
        tail->used = a->bytes;
    }
    const char *data = tail->data + tail->used - a->bytes;
    memcpy(tail->data + tail->used, b->data, b->bytes);
    tail->used += b->bytes;
    struct dse_jv_string *string = dse_jinja_alloc(run, sizeof(*string));
    if (!string) return dse_jv_failed();
    *string = (struct dse_jv_string){.data = data, .bytes = total, .chars = a->chars + b->chars, .tail = tail};
    return (struct dse_jv){.kind = DSE_JV_STRING, .as.string = string};
}

struct dse_jv dse_jv_repeat(struct dse_jinja_run *run, const struct dse_jv_string *text, int64_t times)
{
    size_t total;
    if (times <= 0 || text->bytes == 0) return make_string(run, "", 0, 0);
    if (!dse_mul_size(text->bytes, (size_t)times, &total) || total > run->limits->max_memory_bytes)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "a string of %zu bytes repeated %lld times is more than %zu bytes",
                              text->bytes, (long long)times, run->limits->max_memory_bytes);
    if (!dse_jinja_charge_bytes(run, total)) return dse_jv_failed();
    char *data = dse_jinja_alloc(run, total);
    if (!data) return dse_jv_failed();
    memcpy(data, text->data, text->bytes);
    for (size_t done = text->bytes; done < total;) { /* doubling: few large copies */
        size_t part = done < total - done ? done : total - done;
        memcpy(data + done, data, part);
        done += part;
    }
    return make_string(run, data, total, text->chars * (size_t)times);
}

static size_t char_bytes(const char *data)
{
    unsigned char lead = (unsigned char)data[0];
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

struct dse_jv dse_jv_characters(struct dse_jinja_run *run, const struct dse_jv_string *text)
{
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, text->chars);
    for (size_t at = 0; list.kind != DSE_JV_FAIL && at < text->bytes;) {
        size_t used = char_bytes(text->data + at);
        struct dse_jv item = make_string(run, text->data + at, used, 1);
        if (item.kind == DSE_JV_FAIL || !dse_jv_push(run, list, item)) return dse_jv_failed();
        at += used;
    }
    return list;
}

size_t dse_jv_byte_of_char(const struct dse_jv_string *text, size_t index)
{
    if (text->chars == text->bytes || index >= text->chars) return index >= text->chars ? text->bytes : index;
    size_t at = 0;
    while (index--)
        at += char_bytes(text->data + at);
    return at;
}

struct dse_jv dse_jv_substring(struct dse_jinja_run *run, const struct dse_jv_string *text, size_t begin, size_t end)
{
    return dse_jv_borrow(run, text->data + begin, end - begin);
}

bool dse_jv_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool strippable(struct dse_jinja_run *run, const char *data, size_t bytes, const struct dse_jv_string *set)
{
    size_t used;
    if (set && !dse_jinja_charge_bytes(run, set->bytes)) return false;
    if (set) return memmem(set->data, set->bytes, data, bytes) != NULL;
    return dse_jv_is_space(dse_utf8_decode(data, bytes, &used));
}

struct dse_jv dse_jv_strip(struct dse_jinja_run *run, const struct dse_jv_string *text, const struct dse_jv_string *set,
                           bool left, bool right)
{
    size_t begin = 0, end = text->bytes;
    while (left && begin < end) {
        size_t used = char_bytes(text->data + begin);
        if (!strippable(run, text->data + begin, used, set)) break;
        begin += used;
    }
    while (right && end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)text->data[last] & 0xC0) == 0x80)
            last--;
        if (!strippable(run, text->data + last, end - last, set)) break;
        end = last;
    }
    if (!dse_jinja_charge_chars(run, text->bytes - (end - begin))) return dse_jv_failed();
    return dse_jv_substring(run, text, begin, end);
}

static void put_code_point(struct dse_buffer *buffer, uint32_t c)
{
    char bytes[4];
    dse_buffer_append(buffer, bytes, dse_utf8_encode(c, bytes));
}

static bool is_letter(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

struct dse_jv dse_jv_change_case(struct dse_jinja_run *run, const struct dse_jv_string *text, enum dse_jv_case how)
{
    struct dse_buffer buffer;
    if (!dse_jinja_charge(run, 1 + text->bytes / 2)) return dse_jv_failed();
    dse_jv_buffer_init(run, &buffer);
    bool word_start = true;
    for (size_t at = 0, used; at < text->bytes; at += used) {
        uint32_t c = dse_utf8_decode(text->data + at, text->bytes - at, &used);
        bool upper = how == DSE_JV_UPPER || (how != DSE_JV_LOWER && word_start);
        if (upper && c == 0xDF)
            dse_buffer_puts(&buffer, how == DSE_JV_UPPER || how == DSE_JV_TITLE_FILTER ? "SS" : "Ss");
        else if (upper)
            put_code_point(&buffer, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
        else
            put_code_point(&buffer, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        if (how == DSE_JV_TITLE)
            word_start = !is_letter(c);
        else if (how == DSE_JV_TITLE_FILTER)
            word_start = dse_jv_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c);
        else
            word_start = false;
    }
    return dse_jv_take(run, &buffer);
}

struct dse_jv dse_jv_replace(struct dse_jinja_run *run, const struct dse_jv_string *text,
                             const struct dse_jv_string *old, const struct dse_jv_string *with, int64_t count)
{
    struct dse_buffer buffer;
    size_t at = 0;
    if (!dse_jinja_charge_bytes(run, text->bytes)) return dse_jv_failed();
    dse_jv_buffer_init(run, &buffer);
    while (count != 0 && !buffer.failed) {
        size_t found = dse_jv_find(text, old, at);
        if (found == SIZE_MAX || !dse_jinja_charge(run, 16 + with->bytes / 64)) break;
        if (count > 0) count--;
        if (old->bytes == 0) { /* before every character, and at the end */
            dse_buffer_append(&buffer, with->data, with->bytes);
            if (at == text->bytes) break;
            size_t used = char_bytes(text->data + at);
            dse_buffer_append(&buffer, text->data + at, used);
            at += used;
            continue;
        }
        dse_buffer_append(&buffer, text->data + at, found - at);
        dse_buffer_append(&buffer, with->data, with->bytes);
        at = found + old->bytes;
    }
    dse_buffer_append(&buffer, text->data + at, text->bytes - at);
    return dse_jv_take(run, &buffer);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* built here, from a fixed set of flags */
static void put_number(struct dse_buffer *buffer, const struct dse_jv *value, const char *flags, int width,
                       int precision, char conversion)
{
    char format[32], text[512];
    if (conversion == 'f') {
        snprintf(format, sizeof(format), "%%%s*.*f", flags);
        snprintf(text, sizeof(text), format, width, precision < 0 ? 6 : precision, dse_jv_as_double(*value));
    } else {
        int64_t integer = value->kind == DSE_JV_FLOAT ? (int64_t)value->as.real : 0;
        dse_jv_as_int(*value, &integer);
        snprintf(format, sizeof(format), conversion == 'x' ? "%%%s*llx" : "%%%s*lld", flags);
        snprintf(text, sizeof(text), format, width, (long long)integer);
    }
    dse_buffer_puts(buffer, text);
}
#pragma GCC diagnostic pop

/* One conversion at text[at] (just behind the %). Returns the bytes used, 0 after a failure. */
static size_t put_conversion(struct dse_jinja_run *run, struct dse_buffer *buffer, const struct dse_jv_string *text,
                             size_t at, const struct dse_jv_list *arguments, size_t *next)
{
    size_t begin = at;
    char flags[4] = "";
    size_t n_flags = 0;
    int width = 0, precision = -1;
    while (at < text->bytes && n_flags < 3 && strchr("-+0", text->data[at]) && text->data[at])
        flags[n_flags++] = text->data[at++];
    while (at < text->bytes && isdigit((unsigned char)text->data[at]) && width < 100)
        width = width * 10 + text->data[at++] - '0';
    if (at < text->bytes && text->data[at] == '.')
        for (at++, precision = 0; at < text->bytes && isdigit((unsigned char)text->data[at]) && precision < 10;)
            precision = precision * 10 + text->data[at++] - '0';
    char conversion = at < text->bytes ? text->data[at] : 0;
    at++;
    if (width > 200) width = 200;
    if (precision > 60) precision = 60;
    if (conversion == '%') return dse_buffer_putc(buffer, '%'), at - begin;
    if (!conversion || !strchr("srdifx", conversion))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "unsupported format character"), 0;
    if (*next >= arguments->count)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "not enough arguments for format string"), 0;
    const struct dse_jv *value = &arguments->items[(*next)++];
    if (conversion == 's' || conversion == 'r')
        return dse_jv_write(run, buffer, *value, conversion == 'r') ? at - begin : 0;
    if (!dse_jv_is_number(*value) || (value->kind == DSE_JV_FLOAT && !(fabs(value->as.real) < 1e18)))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "%%%c format: a number is required, not %s", conversion,
                              dse_jv_type_name(*value)),
               0;
    put_number(buffer, value, flags, width, precision, conversion);
    return at - begin;
}

struct dse_jv dse_jv_percent_format(struct dse_jinja_run *run, const struct dse_jv_string *text,
                                    struct dse_jv arguments)
{
    struct dse_jv_list single = {.items = &arguments, .count = 1};
    const struct dse_jv_list *list = arguments.kind == DSE_JV_TUPLE ? arguments.as.list : &single;
    struct dse_buffer buffer;
    size_t next = 0;
    if (!dse_jinja_charge_bytes(run, text->bytes)) return dse_jv_failed();
    dse_jv_buffer_init(run, &buffer);
    for (size_t at = 0; at < text->bytes && !run->failed;) {
        const char *percent = memchr(text->data + at, '%', text->bytes - at);
        size_t plain = percent ? (size_t)(percent - text->data) - at : text->bytes - at;
        dse_buffer_append(&buffer, text->data + at, plain);
        at += plain;
        if (percent) at += 1 + put_conversion(run, &buffer, text, at + 1, list, &next);
    }
    if (!run->failed && next < list->count && arguments.kind != DSE_JV_DICT)
        dse_jinja_fail(run, DSE_ERR_INVALID, "not all arguments converted during string formatting");
    struct dse_jv result = dse_jv_take(run, &buffer);
    return run->failed ? dse_jv_failed() : result;
}

/* ---- str and repr ---- */

struct dse_jv dse_jv_use_undefined(struct dse_jinja_run *run, struct dse_jv undefined)
{
    const struct dse_jv_string *name = undefined.as.string;
    int bytes = name ? (int)(name->bytes < 100 ? name->bytes : 100) : 0;
    const char *text = name ? name->data : "";
    if (undefined.unsafe)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "access to attribute '%.*s' is not allowed", bytes, text);
    return name ? dse_jinja_fail(run, DSE_ERR_INVALID, "'%.*s' is undefined", bytes, text)
                : dse_jinja_fail(run, DSE_ERR_INVALID, "a value is undefined");
}

void dse_jv_format_float(double value, char out[40])
{
    if (isnan(value) || isinf(value)) {
        snprintf(out, 40, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char digits[40];
    int precision = 0;
    do /* the shortest digits that read back as the same number */
        snprintf(digits, sizeof(digits), "%.*e", precision, value);
    while (++precision <= 16 && strtod(digits, NULL) != value);
    const char *mark = strchr(digits, 'e');
    int exponent = (int)strtol(mark + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, 40, "%.*se%c%02d", (int)(mark - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent; /* precision is one past the last one tried */
    snprintf(out, 40, "%.*f", decimals > 0 ? decimals : 0, value);
    if (decimals <= 0) strncat(out, ".0", 40 - strlen(out) - 1);
}

static bool printable(uint32_t c)
{
    if (c < 0x80) return c >= 0x20 && c != 0x7F;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

static void write_quoted(struct dse_buffer *buffer, const struct dse_jv_string *text)
{
    bool has_single = text->bytes && memchr(text->data, '\'', text->bytes);
    bool has_double = text->bytes && memchr(text->data, '"', text->bytes);
    char quote = has_single && !has_double ? '"' : '\'';
    dse_buffer_putc(buffer, quote);
    for (size_t at = 0, used; at < text->bytes; at += used) {
        uint32_t c = dse_utf8_decode(text->data + at, text->bytes - at, &used);
        if (c == '\\' || c == (uint32_t)quote)
            dse_buffer_printf(buffer, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            dse_buffer_puts(buffer, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (printable(c))
            dse_buffer_append(buffer, text->data + at, used);
        else
            dse_buffer_printf(buffer, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
    dse_buffer_putc(buffer, quote);
}

static bool write_at(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, bool repr, unsigned depth);

static bool write_container(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, unsigned depth)
{
    if (v.kind == DSE_JV_DICT) {
        dse_buffer_putc(buffer, '{');
        for (size_t i = 0; i < v.as.dict->count; i++) {
            if (i) dse_buffer_puts(buffer, ", ");
            if (!write_at(run, buffer, v.as.dict->entries[i].key, true, depth + 1)) return false;
            dse_buffer_puts(buffer, ": ");
            if (!write_at(run, buffer, v.as.dict->entries[i].value, true, depth + 1)) return false;
        }
        dse_buffer_putc(buffer, '}');
        return true;
    }
    bool tuple = v.kind == DSE_JV_TUPLE;
    dse_buffer_putc(buffer, tuple ? '(' : '[');
    for (size_t i = 0; i < v.as.list->count; i++) {
        if (i) dse_buffer_puts(buffer, ", ");
        if (!write_at(run, buffer, v.as.list->items[i], true, depth + 1)) return false;
    }
    if (tuple && v.as.list->count == 1) dse_buffer_putc(buffer, ',');
    dse_buffer_putc(buffer, tuple ? ')' : ']');
    return true;
}

static bool write_at(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, bool repr, unsigned depth)
{
    char number[40];
    if (!dse_jinja_charge(run, depth ? 8 : 1)) return false; /* inside containers: quotes, separators, brackets */
    if (depth > DSE_JINJA_MAX_VALUE_DEPTH)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "values nested too deeply to print"), false;
    switch (v.kind) {
    case DSE_JV_UNDEFINED:
        if (repr) dse_buffer_puts(buffer, "Undefined");
        break;
    case DSE_JV_NONE: dse_buffer_puts(buffer, "None"); break;
    case DSE_JV_BOOL: dse_buffer_puts(buffer, v.as.boolean ? "True" : "False"); break;
    case DSE_JV_INT: dse_buffer_printf(buffer, "%lld", (long long)v.as.integer); break;
    case DSE_JV_FLOAT:
        dse_jv_format_float(v.as.real, number);
        dse_buffer_puts(buffer, number);
        break;
    case DSE_JV_STRING:
        if (repr ? !dse_jinja_charge_chars(run, v.as.string->bytes) : !dse_jinja_charge_bytes(run, v.as.string->bytes))
            return false;
        if (repr)
            write_quoted(buffer, v.as.string);
        else
            dse_buffer_append(buffer, v.as.string->data, v.as.string->bytes);
        break;
    case DSE_JV_LIST:
    case DSE_JV_TUPLE:
    case DSE_JV_DICT:
        if (!write_container(run, buffer, v, depth)) return false;
        break;
    default: dse_buffer_printf(buffer, "<%s>", dse_jv_type_name(v)); break;
    }
    if (buffer->failed)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "output longer than %zu bytes", buffer->max_bytes), false;
    return true;
}

bool dse_jv_write(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, bool repr)
{
    return write_at(run, buffer, v, repr, 0);
}

struct dse_jv dse_jv_to_string(struct dse_jinja_run *run, struct dse_jv v)
{
    if (v.kind == DSE_JV_STRING) return v;
    struct dse_buffer buffer;
    dse_jv_buffer_init(run, &buffer);
    if (!dse_jv_write(run, &buffer, v, false)) {
        dse_buffer_deinit(&buffer);
        return dse_jv_failed();
    }
    return dse_jv_take(run, &buffer);
}

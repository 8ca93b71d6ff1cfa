/* Methods of str, list, dict and loop that templates may call. There are no others: nothing else can be reached. */
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

#define METHOD(name)                                                                                                   \
    static struct dse_jv name(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,                \
                              const struct dse_jinja_args *args)

/* ---- str ---- */

/* Optional string argument: NULL for absent or none. */
static bool string_or_none(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jv_string **out)
{
    *out = NULL;
    if (!dse_given(v) || v.kind == DSE_JV_NONE) return true;
    return dse_jinja_want_string(run, v, "argument", out);
}

static struct dse_jv strip(struct dse_jinja_run *run, struct dse_jv self, struct dse_jv chars, bool left, bool right)
{
    const struct dse_jv_string *set;
    if (!string_or_none(run, chars, &set)) return dse_jv_failed();
    return dse_jv_strip(run, self.as.string, set, left, right);
}

METHOD(str_strip)
{
    return strip(run, self, argv[0], true, true);
}
METHOD(str_lstrip)
{
    return strip(run, self, argv[0], true, false);
}
METHOD(str_rstrip)
{
    return strip(run, self, argv[0], false, true);
}
METHOD(str_upper)
{
    return dse_jv_change_case(run, self.as.string, DSE_JV_UPPER);
}
METHOD(str_lower)
{
    return dse_jv_change_case(run, self.as.string, DSE_JV_LOWER);
}
METHOD(str_title)
{
    return dse_jv_change_case(run, self.as.string, DSE_JV_TITLE);
}
METHOD(str_capitalize)
{
    return dse_jv_change_case(run, self.as.string, DSE_JV_CAPITALIZE);
}

static size_t space_at(const struct dse_jv_string *text, size_t at)
{
    size_t used;
    return dse_jv_is_space(dse_utf8_decode(text->data + at, text->bytes - at, &used)) ? used : 0;
}

static bool push_part(struct dse_jinja_run *run, struct dse_jv list, const struct dse_jv_string *text, size_t begin,
                      size_t end)
{
    struct dse_jv part = dse_jv_substring(run, text, begin, end);
    return part.kind != DSE_JV_FAIL && dse_jv_push(run, list, part);
}

static bool split_spaces(struct dse_jinja_run *run, struct dse_jv list, const struct dse_jv_string *text, int64_t most)
{
    size_t at = 0, used;
    for (;;) {
        while (at < text->bytes && (used = space_at(text, at)))
            at += used;
        if (at >= text->bytes) return true;
        size_t begin = at;
        if (most == 0) {
            struct dse_jv rest = dse_jv_substring(run, text, begin, text->bytes);
            return rest.kind != DSE_JV_FAIL &&
                   dse_jv_push(run, list, dse_jv_strip(run, rest.as.string, NULL, false, true));
        }
        most--;
        while (at < text->bytes && !space_at(text, at))
            do
                at++;
            while (at < text->bytes && ((unsigned char)text->data[at] & 0xC0) == 0x80);
        if (!push_part(run, list, text, begin, at)) return false;
    }
}

/* SIZE_MAX if there is none, or after a failure: many near matches take more work than the text has bytes. */
static size_t find_last(struct dse_jinja_run *run, const struct dse_jv_string *text, const struct dse_jv_string *needle,
                        size_t end)
{
    if (needle->bytes > end) return SIZE_MAX;
    if (needle->bytes == 0) return end;
    if (!dse_jinja_charge_chars(run, end)) return SIZE_MAX;
    for (size_t at = end - needle->bytes + 1; at-- > 0;) {
        if (text->data[at] != needle->data[0]) continue;
        if (!dse_jinja_charge_bytes(run, needle->bytes)) return SIZE_MAX;
        if (memcmp(text->data + at, needle->data, needle->bytes) == 0) return at;
    }
    return SIZE_MAX;
}

static struct dse_jv split(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv, bool from_right)
{
    const struct dse_jv_string *text = self.as.string, *separator;
    int64_t most = -1;
    if (!string_or_none(run, argv[0], &separator) ||
        (dse_given(argv[1]) && !dse_jinja_want_int(run, argv[1], "maxsplit", &most)))
        return dse_jv_failed();
    if (separator && separator->bytes == 0) return dse_jinja_fail(run, DSE_ERR_INVALID, "empty separator");
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, 0);
    if (list.kind == DSE_JV_FAIL || !dse_jinja_charge_bytes(run, text->bytes)) return dse_jv_failed();
    if (!separator) {
        if (from_right && most >= 0)
            return dse_jinja_fail(run, DSE_ERR_UNSUPPORTED, "rsplit(None, n) is not supported");
        return split_spaces(run, list, text, most) ? list : dse_jv_failed();
    }
    if (!from_right || most < 0) {
        size_t begin = 0, found;
        for (; most != 0 && (found = dse_jv_find(text, separator, begin)) != SIZE_MAX; most -= most > 0) {
            if (!push_part(run, list, text, begin, found)) return dse_jv_failed();
            begin = found + separator->bytes;
        }
        return push_part(run, list, text, begin, text->bytes) ? list : dse_jv_failed();
    }
    size_t end = text->bytes, found;
    for (; most > 0 && (found = find_last(run, text, separator, end)) != SIZE_MAX; most--) {
        if (!push_part(run, list, text, found + separator->bytes, end)) return dse_jv_failed();
        end = found;
    }
    if (!push_part(run, list, text, 0, end)) return dse_jv_failed();
    for (size_t i = 0, j = list.as.list->count - 1; i < j; i++, j--) {
        struct dse_jv swap = list.as.list->items[i];
        list.as.list->items[i] = list.as.list->items[j];
        list.as.list->items[j] = swap;
    }
    return list;
}

METHOD(str_split)
{
    return split(run, self, argv, false);
}
METHOD(str_rsplit)
{
    return split(run, self, argv, true);
}

METHOD(str_splitlines)
{
    const struct dse_jv_string *text = self.as.string;
    bool keep = dse_given(argv[0]) && dse_jv_truth(argv[0]);
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, 0);
    for (size_t begin = 0; !run->failed && begin < text->bytes;) {
        size_t end = begin;
        while (end < text->bytes && text->data[end] != '\n' && text->data[end] != '\r')
            end++;
        size_t next = end < text->bytes ? end + 1 : end;
        if (next < text->bytes && text->data[end] == '\r' && text->data[next] == '\n') next++;
        push_part(run, list, text, begin, keep ? next : end);
        begin = next;
    }
    return run->failed ? dse_jv_failed() : list;
}

static struct dse_jv has_affix(struct dse_jinja_run *run, struct dse_jv self, struct dse_jv affix, bool at_end)
{
    if (affix.kind == DSE_JV_TUPLE) {
        for (size_t i = 0; i < affix.as.list->count; i++) {
            if (affix.as.list->items[i].kind == DSE_JV_TUPLE)
                return dse_jinja_fail(run, DSE_ERR_INVALID, "tuple for startswith must only contain str");
            struct dse_jv found = has_affix(run, self, affix.as.list->items[i], at_end);
            if (found.kind == DSE_JV_FAIL || found.as.boolean) return found;
        }
        return dse_jv_of_bool(false);
    }
    const struct dse_jv_string *text = self.as.string, *part;
    if (!dse_jinja_want_string(run, affix, "startswith first arg", &part)) return dse_jv_failed();
    if (part->bytes > text->bytes) return dse_jv_of_bool(false);
    if (!dse_jinja_charge_bytes(run, part->bytes)) return dse_jv_failed();
    return dse_jv_of_bool(part->bytes == 0 ||
                          memcmp(text->data + (at_end ? text->bytes - part->bytes : 0), part->data, part->bytes) == 0);
}

METHOD(str_startswith)
{
    return has_affix(run, self, argv[0], false);
}
METHOD(str_endswith)
{
    return has_affix(run, self, argv[0], true);
}

METHOD(str_removeprefix)
{
    struct dse_jv has = has_affix(run, self, argv[0], false);
    if (has.kind == DSE_JV_FAIL || !has.as.boolean || argv[0].kind != DSE_JV_STRING)
        return has.kind == DSE_JV_FAIL ? has : self;
    return dse_jv_substring(run, self.as.string, argv[0].as.string->bytes, self.as.string->bytes);
}

METHOD(str_removesuffix)
{
    struct dse_jv has = has_affix(run, self, argv[0], true);
    if (has.kind == DSE_JV_FAIL || !has.as.boolean || argv[0].kind != DSE_JV_STRING)
        return has.kind == DSE_JV_FAIL ? has : self;
    return dse_jv_substring(run, self.as.string, 0, self.as.string->bytes - argv[0].as.string->bytes);
}

METHOD(str_replace)
{
    const struct dse_jv_string *old, *with;
    int64_t count = -1;
    if (!dse_jinja_want_string(run, argv[0], "replace() argument 1", &old) ||
        !dse_jinja_want_string(run, argv[1], "replace() argument 2", &with) ||
        (dse_given(argv[2]) && !dse_jinja_want_int(run, argv[2], "count", &count)))
        return dse_jv_failed();
    return dse_jv_replace(run, self.as.string, old, with, count);
}

/* Character position of a substring, -1 if none. */
static struct dse_jv position(struct dse_jinja_run *run, struct dse_jv self, struct dse_jv needle, bool last)
{
    const struct dse_jv_string *text = self.as.string, *part;
    if (!dse_jinja_want_string(run, needle, "argument", &part) || !dse_jinja_charge_bytes(run, text->bytes))
        return dse_jv_failed();
    size_t at = last ? find_last(run, text, part, text->bytes) : dse_jv_find(text, part, 0);
    if (run->failed) return dse_jv_failed();
    return dse_jv_of_int(at == SIZE_MAX ? -1 : (int64_t)dse_jv_count_chars(text->data, at));
}

METHOD(str_find)
{
    return position(run, self, argv[0], false);
}
METHOD(str_rfind)
{
    return position(run, self, argv[0], true);
}
METHOD(str_index)
{
    struct dse_jv at = position(run, self, argv[0], false);
    return at.kind == DSE_JV_INT && at.as.integer < 0 ? dse_jinja_fail(run, DSE_ERR_INVALID, "substring not found")
                                                      : at;
}

METHOD(str_count)
{
    const struct dse_jv_string *text = self.as.string, *part;
    int64_t count = 0;
    if (!dse_jinja_want_string(run, argv[0], "argument", &part) || !dse_jinja_charge_bytes(run, text->bytes))
        return dse_jv_failed();
    if (part->bytes == 0) return dse_jv_of_int((int64_t)text->chars + 1);
    for (size_t at = 0; (at = dse_jv_find(text, part, at)) != SIZE_MAX; at += part->bytes)
        count++;
    return dse_jv_of_int(count);
}

METHOD(str_join)
{
    struct dse_jv items = dse_jv_iterate(run, argv[0]);
    struct dse_buffer buffer;
    if (items.kind == DSE_JV_FAIL) return items;
    dse_jv_buffer_init(run, &buffer);
    for (size_t i = 0; i < items.as.list->count; i++) {
        const struct dse_jv_string *text;
        if (!dse_jinja_want_string(run, items.as.list->items[i], "join() item", &text) ||
            !dse_jinja_charge_bytes(run, text->bytes + self.as.string->bytes)) {
            dse_buffer_deinit(&buffer);
            return dse_jv_failed();
        }
        if (i) dse_buffer_append(&buffer, self.as.string->data, self.as.string->bytes);
        dse_buffer_append(&buffer, text->data, text->bytes);
    }
    return dse_jv_take(run, &buffer);
}

/* `{}`, `{0}`, `{name}` without conversions; `{{` and `}}`. */
METHOD(str_format)
{
    const struct dse_jv_string *text = self.as.string;
    struct dse_buffer buffer;
    size_t next = 0, at = 0;
    if (!dse_jinja_charge_chars(run, text->bytes)) return dse_jv_failed();
    dse_jv_buffer_init(run, &buffer);
    while (at < text->bytes && !run->failed) {
        char c = text->data[at++];
        if (c != '{' && c != '}') {
            dse_buffer_putc(&buffer, c);
            continue;
        }
        if (at < text->bytes && text->data[at] == c) {
            dse_buffer_putc(&buffer, text->data[at++]);
            continue;
        }
        const char *close = c == '{' && at < text->bytes ? memchr(text->data + at, '}', text->bytes - at) : NULL;
        size_t bytes = close ? (size_t)(close - text->data) - at : 0;
        const struct dse_jv *value = NULL;
        if (close && bytes == 0 && next < args->count) value = &args->items[next++];
        if (close && bytes == 1 && text->data[at] >= '0' && text->data[at] <= '9' &&
            (size_t)(text->data[at] - '0') < args->count)
            value = &args->items[text->data[at] - '0'];
        for (size_t i = 0; close && !value && i < args->n_named; i++)
            if (args->named[i].name->bytes == bytes && memcmp(args->named[i].name->data, text->data + at, bytes) == 0)
                value = &args->named[i].value;
        if (!value)
            dse_jinja_fail(run, DSE_ERR_INVALID, "format(): a replacement field without a value");
        else
            dse_jv_write(run, &buffer, *value, false);
        at += bytes + 1;
    }
    struct dse_jv result = dse_jv_take(run, &buffer);
    return run->failed ? dse_jv_failed() : result;
}

static struct dse_jv all_chars(struct dse_jinja_run *run, struct dse_jv self, bool (*is)(uint32_t))
{
    const struct dse_jv_string *text = self.as.string;
    if (!dse_jinja_charge_chars(run, text->bytes)) return dse_jv_failed();
    for (size_t at = 0, used; at < text->bytes; at += used)
        if (!is(dse_utf8_decode(text->data + at, text->bytes - at, &used))) return dse_jv_of_bool(false);
    return dse_jv_of_bool(text->bytes > 0);
}

static bool ascii_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

METHOD(str_isdigit)
{
    return all_chars(run, self, ascii_digit);
}
METHOD(str_isspace)
{
    return all_chars(run, self, dse_jv_is_space);
}

const struct dse_jinja_builtin dse_jinja_string_methods[] = {
    {"strip", "chars", str_strip},
    {"lstrip", "chars", str_lstrip},
    {"rstrip", "chars", str_rstrip},
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"title", "", str_title},
    {"capitalize", "", str_capitalize},
    {"split", "sep maxsplit", str_split},
    {"rsplit", "sep maxsplit", str_rsplit},
    {"splitlines", "keepends", str_splitlines},
    {"startswith", "*prefix", str_startswith},
    {"endswith", "*suffix", str_endswith},
    {"removeprefix", "*prefix", str_removeprefix},
    {"removesuffix", "*suffix", str_removesuffix},
    {"replace", "*old *new count", str_replace},
    {"find", "*sub", str_find},
    {"rfind", "*sub", str_rfind},
    {"index", "*sub", str_index},
    {"count", "*sub", str_count},
    {"join", "*items", str_join},
    {"format", NULL, str_format},
    {"isdigit", "", str_isdigit},
    {"isspace", "", str_isspace},
    {NULL, NULL, NULL},
};

/* ---- list ---- */

METHOD(list_append)
{
    if (self.kind == DSE_JV_TUPLE) return dse_jinja_fail(run, DSE_ERR_INVALID, "'tuple' object has no append");
    return dse_jv_push(run, self, argv[0]) ? dse_jv_none() : dse_jv_failed();
}

METHOD(list_extend)
{
    struct dse_jv items = dse_jv_iterate(run, argv[0]);
    if (self.kind == DSE_JV_TUPLE) return dse_jinja_fail(run, DSE_ERR_INVALID, "'tuple' object has no extend");
    if (items.kind == DSE_JV_FAIL) return items;
    size_t count = items.as.list->count; /* x.extend(x) must end */
    for (size_t i = 0; i < count; i++)
        if (!dse_jv_push(run, self, items.as.list->items[i])) return dse_jv_failed();
    return dse_jv_none();
}

METHOD(list_pop)
{
    struct dse_jv_list *list = self.as.list;
    int64_t index = -1, count = (int64_t)list->count;
    if (self.kind == DSE_JV_TUPLE) return dse_jinja_fail(run, DSE_ERR_INVALID, "'tuple' object has no pop");
    if (dse_given(argv[0]) && !dse_jinja_want_int(run, argv[0], "pop()", &index)) return dse_jv_failed();
    if (index < 0) index += count;
    if (index < 0 || index >= count) return dse_jinja_fail(run, DSE_ERR_INVALID, "pop index out of range");
    struct dse_jv item = list->items[index];
    memmove(list->items + index, list->items + index + 1, (size_t)(count - index - 1) * sizeof(*list->items));
    list->count--;
    return dse_jinja_charge(run, 1 + (uint64_t)(count - index) / 16) ? item : dse_jv_failed();
}

METHOD(list_index)
{
    for (size_t i = 0; i < self.as.list->count; i++) {
        int equal = dse_jv_equal(run, self.as.list->items[i], argv[0]);
        if (equal) return equal < 0 ? dse_jv_failed() : dse_jv_of_int((int64_t)i);
    }
    return dse_jinja_fail(run, DSE_ERR_INVALID, "value is not in list");
}

METHOD(list_count)
{
    int64_t count = 0;
    for (size_t i = 0; i < self.as.list->count; i++) {
        int equal = dse_jv_equal(run, self.as.list->items[i], argv[0]);
        if (equal < 0) return dse_jv_failed();
        count += equal;
    }
    return dse_jv_of_int(count);
}

const struct dse_jinja_builtin dse_jinja_list_methods[] = {
    {"append", "*item", list_append}, {"extend", "*items", list_extend}, {"pop", "index", list_pop},
    {"index", "*value", list_index},  {"count", "*value", list_count},   {NULL, NULL, NULL},
};

/* ---- dict ---- */

METHOD(dict_items)
{
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, self.as.dict->count);
    for (size_t i = 0; list.kind != DSE_JV_FAIL && i < self.as.dict->count; i++) {
        struct dse_jv pair = dse_jv_pair(run, self.as.dict->entries[i].key, self.as.dict->entries[i].value);
        if (pair.kind == DSE_JV_FAIL || !dse_jv_push(run, list, pair)) return dse_jv_failed();
    }
    return list;
}

METHOD(dict_keys)
{
    return dse_jv_iterate(run, self);
}

METHOD(dict_values)
{
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, self.as.dict->count);
    for (size_t i = 0; list.kind != DSE_JV_FAIL && i < self.as.dict->count; i++)
        if (!dse_jv_push(run, list, self.as.dict->entries[i].value)) return dse_jv_failed();
    return list;
}

METHOD(dict_get)
{
    struct dse_jv *value = dse_jv_dict_get(run, self.as.dict, argv[0]);
    if (run->failed) return dse_jv_failed();
    return value ? *value : dse_given(argv[1]) ? argv[1] : dse_jv_none();
}

METHOD(dict_update)
{
    const struct dse_jv_dict *source = argv[0].kind == DSE_JV_DICT ? argv[0].as.dict : NULL;
    if (!source) return dse_jinja_fail(run, DSE_ERR_INVALID, "update() takes a dict");
    for (size_t i = 0; i < source->count; i++)
        if (!dse_jv_dict_set(run, self.as.dict, source->entries[i].key, source->entries[i].value))
            return dse_jv_failed();
    return dse_jv_none();
}

METHOD(dict_pop)
{
    struct dse_jv *value = dse_jv_dict_get(run, self.as.dict, argv[0]);
    if (run->failed) return dse_jv_failed();
    if (!value) return dse_given(argv[1]) ? argv[1] : dse_jinja_fail(run, DSE_ERR_INVALID, "pop(): no such key");
    struct dse_jv result = *value;
    size_t index = (size_t)((struct dse_jv_entry *)((char *)value - offsetof(struct dse_jv_entry, value)) -
                            self.as.dict->entries);
    if (!dse_jinja_charge(run, 1 + self.as.dict->count / 4)) return dse_jv_failed();
    dse_jv_dict_remove(self.as.dict, index);
    return result;
}

METHOD(dict_copy)
{
    struct dse_jv copy = dse_jv_new_dict(run);
    for (size_t i = 0; copy.kind != DSE_JV_FAIL && i < self.as.dict->count; i++)
        if (!dse_jv_dict_set(run, copy.as.dict, self.as.dict->entries[i].key, self.as.dict->entries[i].value))
            return dse_jv_failed();
    return copy;
}

const struct dse_jinja_builtin dse_jinja_dict_methods[] = {
    {"items", "", dict_items},         {"keys", "", dict_keys},
    {"values", "", dict_values},       {"get", "*key default", dict_get},
    {"update", "*other", dict_update}, {"pop", "*key default", dict_pop},
    {"copy", "", dict_copy},           {NULL, NULL, NULL},
};

METHOD(loop_cycle)
{
    if (args->count == 0) return dse_jinja_fail(run, DSE_ERR_INVALID, "no items for cycling given");
    return args->items[self.as.loop->index % args->count];
}

const struct dse_jinja_builtin dse_jinja_loop_methods[] = {{"cycle", NULL, loop_cycle}, {NULL, NULL, NULL}};

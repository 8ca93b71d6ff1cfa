/* Filters on lists and dicts. Where Jinja gives a generator, these give a list. */
#include <string.h>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

#define FILTER(name)                                                                                                   \
    static struct dse_jv filter_##name(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jv *argv,          \
                                       const struct dse_jinja_args *args)

FILTER(length)
{
    switch (v.kind) {
    case DSE_JV_STRING: return dse_jv_of_int((int64_t)v.as.string->chars);
    case DSE_JV_LIST:
    case DSE_JV_TUPLE: return dse_jv_of_int((int64_t)v.as.list->count);
    case DSE_JV_DICT: return dse_jv_of_int((int64_t)v.as.dict->count);
    case DSE_JV_LOOP: return dse_jv_of_int((int64_t)v.as.loop->items->count);
    case DSE_JV_UNDEFINED: return dse_jv_of_int(0);
    default: return dse_jinja_fail(run, DSE_ERR_INVALID, "object of type '%s' has no len()", dse_jv_type_name(v));
    }
}

/* A list that may be changed: iterate() gives a list itself, which belongs to the template. */
static struct dse_jv copy_list(struct dse_jinja_run *run, struct dse_jv v)
{
    struct dse_jv source = dse_jv_iterate(run, v);
    if (source.kind == DSE_JV_FAIL) return source;
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, source.as.list->count);
    for (size_t i = 0; list.kind != DSE_JV_FAIL && i < source.as.list->count; i++)
        if (!dse_jv_push(run, list, source.as.list->items[i])) return dse_jv_failed();
    return list;
}

FILTER(list)
{
    return copy_list(run, v);
}

FILTER(first)
{
    struct dse_jv list = dse_jv_iterate(run, v);
    if (list.kind == DSE_JV_FAIL) return list;
    return list.as.list->count ? list.as.list->items[0] : dse_jv_undefined(NULL);
}

FILTER(last)
{
    struct dse_jv list = dse_jv_iterate(run, v);
    if (list.kind == DSE_JV_FAIL) return list;
    return list.as.list->count ? list.as.list->items[list.as.list->count - 1] : dse_jv_undefined(NULL);
}

FILTER(reverse)
{
    struct dse_jv list = copy_list(run, v);
    if (list.kind == DSE_JV_FAIL) return list;
    struct dse_jv *items = list.as.list->items;
    for (size_t i = 0, n = list.as.list->count; i < n / 2; i++) {
        struct dse_jv swap = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = swap;
    }
    if (v.kind != DSE_JV_STRING) return list;
    struct dse_buffer buffer;
    dse_jv_buffer_init(run, &buffer);
    for (size_t i = 0; i < list.as.list->count; i++)
        dse_buffer_append(&buffer, items[i].as.string->data, items[i].as.string->bytes);
    return dse_jv_take(run, &buffer);
}

FILTER(join)
{
    struct dse_jv list = dse_jv_iterate(run, v);
    struct dse_buffer buffer;
    if (list.kind == DSE_JV_FAIL) return list;
    dse_jv_buffer_init(run, &buffer);
    for (size_t i = 0; i < list.as.list->count && !run->failed; i++) {
        struct dse_jv item = list.as.list->items[i];
        if (dse_given(argv[1]) && argv[1].kind != DSE_JV_NONE) item = dse_jinja_get_path(run, item, argv[1]);
        if (i && dse_given(argv[0])) dse_jv_write(run, &buffer, argv[0], false);
        if (!run->failed) dse_jv_write(run, &buffer, item, false);
    }
    struct dse_jv result = dse_jv_take(run, &buffer);
    return run->failed ? dse_jv_failed() : result;
}

/* ---- map, select, reject ---- */

static const struct dse_jv *named(const struct dse_jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (args->named[i].name->bytes == strlen(name) && memcmp(args->named[i].name->data, name, strlen(name)) == 0)
            return &args->named[i].value;
    return NULL;
}

FILTER(map)
{
    struct dse_jv list = dse_jv_iterate(run, v), result = dse_jv_new_list(run, DSE_JV_LIST, 0);
    const struct dse_jv *attribute = named(args, "attribute"), *fallback = named(args, "default");
    const struct dse_jinja_builtin *filter = NULL;
    struct dse_jinja_args rest = {0};
    if (run->failed) return dse_jv_failed();
    if (!attribute) {
        if (args->count == 0 || args->items[0].kind != DSE_JV_STRING)
            return dse_jinja_fail(run, DSE_ERR_INVALID, "map needs a filter or attribute=");
        filter = dse_jinja_find_filter(args->items[0].as.string->data, args->items[0].as.string->bytes);
        if (!filter) return dse_jinja_fail(run, DSE_ERR_UNSUPPORTED, "map: unknown filter");
        rest = (struct dse_jinja_args){args->items + 1, args->count - 1, args->named, args->n_named};
    }
    for (size_t i = 0; i < list.as.list->count; i++) {
        struct dse_jv item = list.as.list->items[i];
        item = filter ? dse_jinja_call_builtin(run, filter, item, &rest) : dse_jinja_get_path(run, item, *attribute);
        if (!filter && item.kind == DSE_JV_UNDEFINED && fallback) item = *fallback;
        if (run->failed || !dse_jv_push(run, result, item)) return dse_jv_failed();
    }
    return result;
}

static struct dse_jv pick(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jinja_args *args,
                          bool by_attribute, bool wanted)
{
    struct dse_jv list = dse_jv_iterate(run, v), result = dse_jv_new_list(run, DSE_JV_LIST, 0);
    size_t skip = by_attribute ? 1 : 0;
    const struct dse_jinja_builtin *test = NULL;
    struct dse_jinja_args rest = {0};
    if (run->failed) return dse_jv_failed();
    if (args->count < skip) return dse_jinja_fail(run, DSE_ERR_INVALID, "selectattr needs an attribute");
    if (args->count > skip) {
        struct dse_jv name = args->items[skip];
        if (name.kind == DSE_JV_STRING) {
            static const char *const symbols[] = {"==", "eq", "!=", "ne", "<", "lt", "<=", "le", ">", "gt", ">=", "ge"};
            const char *data = name.as.string->data;
            size_t bytes = name.as.string->bytes;
            for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i += 2)
                if (strlen(symbols[i]) == bytes && memcmp(symbols[i], data, bytes) == 0) {
                    data = symbols[i + 1];
                    bytes = 2;
                    break;
                }
            test = dse_jinja_find_test(data, bytes);
        }
        if (!test) return dse_jinja_fail(run, DSE_ERR_UNSUPPORTED, "select: unknown test");
        rest = (struct dse_jinja_args){args->items + skip + 1, args->count - skip - 1, args->named, args->n_named};
    }
    for (size_t i = 0; i < list.as.list->count; i++) {
        struct dse_jv item = list.as.list->items[i];
        struct dse_jv value = by_attribute ? dse_jinja_get_path(run, item, args->items[0]) : item;
        if (test && !run->failed) value = dse_jinja_call_builtin(run, test, value, &rest);
        if (run->failed || !dse_jinja_charge(run, 1)) return dse_jv_failed();
        if (dse_jv_truth(value) == wanted && !dse_jv_push(run, result, item)) return dse_jv_failed();
    }
    return result;
}

FILTER(select)
{
    return pick(run, v, args, false, true);
}
FILTER(reject)
{
    return pick(run, v, args, false, false);
}
FILTER(selectattr)
{
    return pick(run, v, args, true, true);
}
FILTER(rejectattr)
{
    return pick(run, v, args, true, false);
}

/* ---- order ---- */

/* What an element is sorted or compared by. */
static struct dse_jv key_of(struct dse_jinja_run *run, struct dse_jv item, struct dse_jv attribute, struct dse_jv cased)
{
    if (dse_given(attribute) && attribute.kind != DSE_JV_NONE) item = dse_jinja_get_path(run, item, attribute);
    if (item.kind == DSE_JV_STRING && !(dse_given(cased) && dse_jv_truth(cased)))
        return dse_jv_change_case(run, item.as.string, DSE_JV_LOWER);
    return item;
}

static struct dse_jv sorted(struct dse_jinja_run *run, struct dse_jv list, struct dse_jv reverse, struct dse_jv cased,
                            struct dse_jv attribute)
{
    if (list.kind == DSE_JV_FAIL) return list;
    size_t count = list.as.list->count;
    struct dse_jv keys = dse_jv_new_list(run, DSE_JV_LIST, count);
    for (size_t i = 0; keys.kind != DSE_JV_FAIL && i < count; i++) {
        struct dse_jv key = key_of(run, list.as.list->items[i], attribute, cased);
        if (run->failed || !dse_jv_push(run, keys, key)) return dse_jv_failed();
    }
    if (run->failed ||
        !dse_jv_sort(run, keys.as.list->items, list.as.list->items, count, dse_given(reverse) && dse_jv_truth(reverse)))
        return dse_jv_failed();
    return list;
}

FILTER(sort)
{
    return sorted(run, copy_list(run, v), argv[0], argv[1], argv[2]);
}

static struct dse_jv pairs_of(struct dse_jinja_run *run, struct dse_jv v)
{
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_new_list(run, DSE_JV_LIST, 0);
    if (v.kind != DSE_JV_DICT) return dse_jinja_fail(run, DSE_ERR_INVALID, "can only get item pairs from a mapping");
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, v.as.dict->count);
    for (size_t i = 0; list.kind != DSE_JV_FAIL && i < v.as.dict->count; i++) {
        struct dse_jv pair = dse_jv_pair(run, v.as.dict->entries[i].key, v.as.dict->entries[i].value);
        if (pair.kind == DSE_JV_FAIL || !dse_jv_push(run, list, pair)) return dse_jv_failed();
    }
    return list;
}

FILTER(items)
{
    return pairs_of(run, v);
}

FILTER(dictsort)
{
    bool by_value = dse_given(argv[1]) && argv[1].kind == DSE_JV_STRING && argv[1].as.string->bytes == 5;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    return sorted(run, pairs_of(run, v), argv[2], argv[0], dse_jv_of_int(by_value));
}

FILTER(unique)
{
    struct dse_jv list = dse_jv_iterate(run, v), result = dse_jv_new_list(run, DSE_JV_LIST, 0);
    struct dse_jv seen = dse_jv_new_dict(run);
    for (size_t i = 0; !run->failed && i < list.as.list->count; i++) {
        struct dse_jv key = key_of(run, list.as.list->items[i], argv[1], argv[0]);
        if (run->failed || dse_jv_dict_get(run, seen.as.dict, key)) continue;
        if (!dse_jv_dict_set(run, seen.as.dict, key, dse_jv_none()) ||
            !dse_jv_push(run, result, list.as.list->items[i]))
            break;
    }
    return run->failed ? dse_jv_failed() : result;
}

static struct dse_jv extreme(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jv *argv, int wanted)
{
    struct dse_jv list = dse_jv_iterate(run, v), best, best_key = dse_jv_failed();
    if (list.kind == DSE_JV_FAIL) return list;
    if (list.as.list->count == 0) return dse_jv_undefined(NULL);
    best = list.as.list->items[0];
    for (size_t i = 0; i < list.as.list->count; i++) {
        struct dse_jv key = key_of(run, list.as.list->items[i], argv[1], argv[0]);
        int order = 0;
        if (run->failed || (i && !dse_jv_compare(run, key, best_key, &order))) return dse_jv_failed();
        if (i == 0 || order == wanted) {
            best = list.as.list->items[i];
            best_key = key;
        }
    }
    return best;
}

FILTER(min)
{
    return extreme(run, v, argv, -1);
}
FILTER(max)
{
    return extreme(run, v, argv, 1);
}

FILTER(sum)
{
    struct dse_jv list = dse_jv_iterate(run, v), total = dse_given(argv[1]) ? argv[1] : dse_jv_of_int(0);
    if (list.kind == DSE_JV_FAIL) return list;
    for (size_t i = 0; i < list.as.list->count; i++) {
        struct dse_jv item = list.as.list->items[i];
        int64_t a, b, r;
        if (dse_given(argv[0]) && argv[0].kind != DSE_JV_NONE) item = dse_jinja_get_path(run, item, argv[0]);
        if (run->failed || !dse_jinja_charge(run, 1)) return dse_jv_failed();
        if (!dse_jv_is_number(item) || !dse_jv_is_number(total))
            return dse_jinja_fail(run, DSE_ERR_INVALID, "sum: unsupported operand type '%s'", dse_jv_type_name(item));
        if (!dse_jv_as_int(total, &a) || !dse_jv_as_int(item, &b))
            total = dse_jv_of_float(dse_jv_as_double(total) + dse_jv_as_double(item));
        else if (__builtin_add_overflow(a, b, &r))
            return dse_jinja_fail(run, DSE_ERR_LIMIT, "integer too large");
        else
            total = dse_jv_of_int(r);
    }
    return total;
}

FILTER(batch)
{
    struct dse_jv list = dse_jv_iterate(run, v), result = dse_jv_new_list(run, DSE_JV_LIST, 0), row = result;
    int64_t size;
    if (run->failed || !dse_jinja_want_int(run, argv[0], "batch size", &size)) return dse_jv_failed();
    if (size < 1) return dse_jinja_fail(run, DSE_ERR_INVALID, "batch size must be at least 1");
    for (size_t i = 0; i < list.as.list->count && !run->failed; i++) {
        if ((int64_t)i % size == 0) {
            row = dse_jv_new_list(run, DSE_JV_LIST, 0);
            if (row.kind == DSE_JV_FAIL || !dse_jv_push(run, result, row)) break;
        }
        dse_jv_push(run, row, list.as.list->items[i]);
    }
    while (!run->failed && dse_given(argv[1]) && result.as.list->count && (int64_t)row.as.list->count < size)
        dse_jv_push(run, row, argv[1]);
    return run->failed ? dse_jv_failed() : result;
}

const struct dse_jinja_builtin dse_jinja_list_filters[] = {
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"list", "", filter_list},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"reverse", "", filter_reverse},
    {"join", "d attribute", filter_join},
    {"map", NULL, filter_map},
    {"select", NULL, filter_select},
    {"reject", NULL, filter_reject},
    {"selectattr", NULL, filter_selectattr},
    {"rejectattr", NULL, filter_rejectattr},
    {"sort", "reverse case_sensitive attribute", filter_sort},
    {"dictsort", "case_sensitive by reverse", filter_dictsort},
    {"items", "", filter_items},
    {"unique", "case_sensitive attribute", filter_unique},
    {"min", "case_sensitive attribute", filter_min},
    {"max", "case_sensitive attribute", filter_max},
    {"sum", "attribute start", filter_sum},
    {"batch", "*linecount fill_with", filter_batch},
    {NULL, NULL, NULL},
};

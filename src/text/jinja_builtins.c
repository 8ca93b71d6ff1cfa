/* Looking built-ins up, binding their arguments, and the global functions. Called by the parser and the evaluator. */
#include "text/jinja_builtins.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "text/jinja_exec.h"
#include "text/jinja_text.h"

const struct dse_jinja_builtin *dse_jinja_find(const struct dse_jinja_builtin *table, const char *name, size_t bytes)
{
    for (; table->name; table++)
        if (strlen(table->name) == bytes && memcmp(table->name, name, bytes) == 0) return table;
    return NULL;
}

const struct dse_jinja_builtin *dse_jinja_find_filter(const char *name, size_t bytes)
{
    const struct dse_jinja_builtin *found = dse_jinja_find(dse_jinja_text_filters, name, bytes);
    return found ? found : dse_jinja_find(dse_jinja_list_filters, name, bytes);
}

const struct dse_jinja_builtin *dse_jinja_find_test(const char *name, size_t bytes)
{
    return dse_jinja_find(dse_jinja_tests, name, bytes);
}

struct dse_jv dse_jinja_method(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv_string *name)
{
    const struct dse_jinja_builtin *table = self.kind == DSE_JV_STRING ? dse_jinja_string_methods
                                            : dse_jv_is_sequence(self) ? dse_jinja_list_methods
                                            : self.kind == DSE_JV_DICT ? dse_jinja_dict_methods
                                            : self.kind == DSE_JV_LOOP ? dse_jinja_loop_methods
                                                                       : NULL;
    const struct dse_jinja_builtin *found = table ? dse_jinja_find(table, name->data, name->bytes) : NULL;
    if (!found) return dse_jv_undefined(name);
    struct dse_jv_callable *callable = dse_jinja_alloc(run, sizeof(*callable));
    if (!callable) return dse_jv_failed();
    callable->builtin = found;
    callable->self = self;
    return (struct dse_jv){.kind = DSE_JV_CALLABLE, .as.callable = callable};
}

/* Index of a parameter in a signature such as "*old *new count", -1 if none. */
static int parameter_index(const char *signature, const char *name, size_t bytes)
{
    for (int index = 0; *signature; index++) {
        if (*signature == '*') signature++;
        size_t length = strcspn(signature, " ");
        if (length == bytes && memcmp(signature, name, bytes) == 0) return index;
        signature += length;
        if (*signature) signature++;
    }
    return -1;
}

struct dse_jv dse_jinja_call_builtin(struct dse_jinja_run *run, const struct dse_jinja_builtin *builtin,
                                     struct dse_jv self, const struct dse_jinja_args *args)
{
    struct dse_jv argv[DSE_JINJA_MAX_ARGS] = {{.kind = DSE_JV_FAIL}};
    if (!builtin->signature) return builtin->call(run, self, argv, args);
    size_t n = 0;
    for (const char *at = builtin->signature; *at; n++) {
        at += strcspn(at, " ");
        if (*at) at++;
    }
    if (args->count > n)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "%s() takes at most %zu arguments, got %zu", builtin->name, n,
                              args->count);
    for (size_t i = 0; i < args->count; i++)
        argv[i] = args->items[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const struct dse_jv_string *name = args->named[i].name;
        int index = parameter_index(builtin->signature, name->data, name->bytes);
        if (index < 0 || dse_given(argv[index]))
            return dse_jinja_fail(run, DSE_ERR_INVALID, "%s() got an unexpected keyword argument '%.*s'", builtin->name,
                                  (int)(name->bytes < 60 ? name->bytes : 60), name->data);
        argv[index] = args->named[i].value;
    }
    const char *at = builtin->signature;
    for (size_t i = 0; i < n; i++) {
        if (*at == '*' && !dse_given(argv[i]))
            return dse_jinja_fail(run, DSE_ERR_INVALID, "%s() is missing an argument", builtin->name);
        at += strcspn(at, " ");
        if (*at) at++;
    }
    return builtin->call(run, self, argv, args);
}

bool dse_jinja_want_string(struct dse_jinja_run *run, struct dse_jv v, const char *what,
                           const struct dse_jv_string **out)
{
    if (v.kind == DSE_JV_STRING) return *out = v.as.string, true;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v), false;
    dse_jinja_fail(run, DSE_ERR_INVALID, "%s must be str, not %s", what, dse_jv_type_name(v));
    return false;
}

bool dse_jinja_want_int(struct dse_jinja_run *run, struct dse_jv v, const char *what, int64_t *out)
{
    if (dse_jv_as_int(v, out)) return true;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v), false;
    dse_jinja_fail(run, DSE_ERR_INVALID, "%s must be an integer, not %s", what, dse_jv_type_name(v));
    return false;
}

/* ---- globals ---- */

static struct dse_jv global_range(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                  const struct dse_jinja_args *args)
{
    int64_t begin = 0, end, step = 1;
    if (!dse_jinja_want_int(run, argv[0], "range()", &end)) return dse_jv_failed();
    if (dse_given(argv[1])) {
        begin = end;
        if (!dse_jinja_want_int(run, argv[1], "range()", &end)) return dse_jv_failed();
    }
    if (dse_given(argv[2]) && !dse_jinja_want_int(run, argv[2], "range()", &step)) return dse_jv_failed();
    if (step == 0) return dse_jinja_fail(run, DSE_ERR_INVALID, "range() step must not be zero");
    double length = ((double)end - (double)begin) / (double)step;
    if (length > DSE_JINJA_MAX_RANGE)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "range() longer than %d", DSE_JINJA_MAX_RANGE);
    struct dse_jv list = dse_jv_new_list(run, DSE_JV_LIST, 0);
    for (int64_t i = begin; !run->failed && (step > 0 ? i < end : i > end);) {
        dse_jv_push(run, list, dse_jv_of_int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return run->failed ? dse_jv_failed() : list;
}

static struct dse_jv global_dict(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                 const struct dse_jinja_args *args)
{
    struct dse_jv dict = dse_jv_new_dict(run);
    if (dict.kind == DSE_JV_FAIL) return dict;
    if (args->count > 1 || (args->count == 1 && args->items[0].kind != DSE_JV_DICT))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "takes keyword arguments, or one dict");
    for (size_t i = 0; args->count && i < args->items[0].as.dict->count; i++) {
        const struct dse_jv_entry *entry = &args->items[0].as.dict->entries[i];
        if (!dse_jv_dict_set(run, dict.as.dict, entry->key, entry->value)) return dse_jv_failed();
    }
    for (size_t i = 0; i < args->n_named; i++) {
        struct dse_jv key = {.kind = DSE_JV_STRING, .as.string = args->named[i].name};
        if (!dse_jv_dict_set(run, dict.as.dict, key, args->named[i].value)) return dse_jv_failed();
    }
    return dict;
}

static struct dse_jv global_namespace(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                      const struct dse_jinja_args *args)
{
    struct dse_jv dict = global_dict(run, self, argv, args);
    if (dict.kind == DSE_JV_DICT) dict.kind = DSE_JV_NAMESPACE;
    return dict;
}

/* The message goes out as the template wrote it: it is meant for the client. */
static struct dse_jv global_raise(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                  const struct dse_jinja_args *args)
{
    struct dse_jv text = dse_jv_to_string(run, argv[0]);
    if (text.kind == DSE_JV_FAIL) return text;
    size_t bytes = text.as.string->bytes < 480 ? text.as.string->bytes : 480;
    while (bytes && bytes < text.as.string->bytes && ((unsigned char)text.as.string->data[bytes] & 0xC0) == 0x80)
        bytes--; /* never half a character */
    run->failed = true;
    dse_fail(&run->err, DSE_ERR_INVALID, "%.*s", (int)bytes, text.as.string->data);
    run->err.line = run->line;
    return dse_jv_failed();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the format is the template's; strftime only reads the clock */
static struct dse_jv global_strftime_now(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                         const struct dse_jinja_args *args)
{
    const struct dse_jv_string *format;
    char pattern[128], text[512];
    if (!dse_jinja_want_string(run, argv[0], "format", &format)) return dse_jv_failed();
    if (format->bytes >= sizeof(pattern)) return dse_jinja_fail(run, DSE_ERR_LIMIT, "strftime_now() format too long");
    memcpy(pattern, format->data, format->bytes);
    pattern[format->bytes] = 0;
    time_t now = (time_t)dse_clock_unix_s();
    struct tm parts;
    if (!localtime_r(&now, &parts)) return dse_jinja_fail(run, DSE_ERR_IO, "the date is not known");
    return dse_jv_text(run, text, strftime(text, sizeof(text), pattern, &parts));
}
#pragma GCC diagnostic pop

const struct dse_jinja_builtin dse_jinja_globals[] = {
    {"range", "*start stop step", global_range},
    {"dict", NULL, global_dict},
    {"namespace", NULL, global_namespace},
    {"raise_exception", "*message", global_raise},
    {"strftime_now", "*format", global_strftime_now},
    {NULL, NULL, NULL},
};

/* Filters, tests, methods and globals of the template language: tables, looked up by name when a template is parsed. */
#ifndef DSE_TEXT_JINJA_BUILTINS_H
#define DSE_TEXT_JINJA_BUILTINS_H

#include "text/jinja_value.h"

struct dse_jinja_named {
    const struct dse_jv_string *name;
    struct dse_jv value;
};

struct dse_jinja_args {
    const struct dse_jv *items;
    size_t count;
    const struct dse_jinja_named *named;
    size_t n_named;
};

#define DSE_JINJA_MAX_ARGS 6

/* argv: one value per word of the signature, kind DSE_JV_FAIL where not given. Without a signature only args is set. */
typedef struct dse_jv dse_jinja_builtin_fn(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv *argv,
                                           const struct dse_jinja_args *args);

struct dse_jinja_builtin {
    const char *name;
    const char *signature; /* parameter names, "*name" for required ones; NULL: takes anything */
    dse_jinja_builtin_fn *call;
};

/* Sorted by no order, ended by an empty row. */
extern const struct dse_jinja_builtin dse_jinja_text_filters[], dse_jinja_list_filters[], dse_jinja_tests[],
    dse_jinja_globals[], dse_jinja_string_methods[], dse_jinja_list_methods[], dse_jinja_dict_methods[],
    dse_jinja_loop_methods[];

const struct dse_jinja_builtin *dse_jinja_find(const struct dse_jinja_builtin *table, const char *name, size_t bytes);
const struct dse_jinja_builtin *dse_jinja_find_filter(const char *name, size_t bytes);
const struct dse_jinja_builtin *dse_jinja_find_test(const char *name, size_t bytes);
/* Method of a value as a callable, or undefined. */
struct dse_jv dse_jinja_method(struct dse_jinja_run *run, struct dse_jv self, const struct dse_jv_string *name);

struct dse_jv dse_jinja_call_builtin(struct dse_jinja_run *run, const struct dse_jinja_builtin *builtin,
                                     struct dse_jv self, const struct dse_jinja_args *args);
/* object[key] and object.key as templates see them. */
struct dse_jv dse_jinja_get_item(struct dse_jinja_run *run, struct dse_jv object, struct dse_jv key);
struct dse_jv dse_jinja_get_attribute(struct dse_jinja_run *run, struct dse_jv object,
                                      const struct dse_jv_string *name);
/* For filters that take `attribute="a.b"`. */
struct dse_jv dse_jinja_get_path(struct dse_jinja_run *run, struct dse_jv object, struct dse_jv path);

static inline bool dse_given(struct dse_jv v)
{
    return v.kind != DSE_JV_FAIL;
}
/* Argument as string or integer; false: failed. */
bool dse_jinja_want_string(struct dse_jinja_run *run, struct dse_jv v, const char *what,
                           const struct dse_jv_string **out);
bool dse_jinja_want_int(struct dse_jinja_run *run, struct dse_jv v, const char *what, int64_t *out);

#endif

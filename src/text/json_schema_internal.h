/* What the files of the JSON schema compiler share.
 *
 *   json_schema.c          rules, $ref, the list of schemas still to be compiled
 *   json_schema_collect.c  keywords of all schemas that hold for one value -> struct schema_facets
 *   json_schema_emit.c     facets -> trees: types, values, objects, arrays
 *   json_schema_disjoint.c whether two branches of oneOf exclude each other
 *   json_schema_format.c   `format`
 *
 * A value may have to satisfy several schemas at once ($ref beside other keywords, allOf, a property that two parts of
 * an allOf name): a set of schemas, not one schema, is what gets a rule. Lists are persistent: an element never changes
 * once it is linked, so a copy of the head is a copy of the list.
 */
#ifndef DSE_TEXT_JSON_SCHEMA_INTERNAL_H
#define DSE_TEXT_JSON_SCHEMA_INTERNAL_H

#include "text/json_number.h"
#include "text/json_schema.h"
#include "text/regex_grammar.h"

/* Pieces of a path, from the end to the beginning. */
struct schema_path {
    const struct schema_path *parent;
    const char *key; /* NULL: index */
    size_t index;
};

struct schema_node {
    const json_t *json;
    const struct schema_path *path;
};

/* Schemas that all hold. */
struct schema_set {
    struct schema_node nodes[DSE_SCHEMA_MAX_PARTS];
    size_t n;
};

struct schema_part { /* of an object or an array: one schema's keywords, which belong together */
    const struct schema_part *next;
    struct schema_node properties, additional; /* json NULL: not given */
    struct schema_node prefix, items;
};

struct schema_union {
    const struct schema_union *next;
    struct schema_node branches; /* the array */
    bool one;                    /* oneOf */
};

struct schema_values {
    const struct schema_values *next;
    struct schema_node node; /* an array (enum) or the value itself (const) */
    bool is_const;
};

struct schema_names { /* required */
    const struct schema_names *next;
    struct schema_node array;
};

struct schema_pattern {
    const struct schema_pattern *next;
    struct schema_node node;
    const char *text, *format; /* text of a pattern, or name of a format */
    size_t bytes;
};

enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_FRACTION = 8, /* number is both */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_ANY = 127
};

struct schema_facets {
    const struct schema_path *path; /* of the first schema, for messages */
    unsigned types;
    bool constrained; /* some keyword beside unions says something */
    struct json_bound min, max;
    int max_fraction; /* digits behind the point, -1: any */
    uint64_t min_length, max_length, min_items, max_items, min_properties, max_properties;
    const struct schema_pattern *patterns;
    const struct schema_part *objects, *arrays;
    const struct schema_names *required;
    const struct schema_values *values;
    const struct schema_union *unions;
};

struct schema_item { /* of the list of rules without a body */
    struct schema_item *next, *chain;
    struct schema_node *nodes;
    size_t n_nodes;
    uint32_t rule;
};

#define SCHEMA_SLOTS 4096
struct schema_compiler {
    struct grammar_builder *b;
    struct json_text text;
    struct schema_node root;
    const char *field;
    unsigned flags;
    struct schema_item *first, **last, **slots; /* still to do; by content */
    uint32_t space, any, object, colon, comma;  /* 1 + rule; 0: not needed so far */
    uint64_t n_steps, n_branches;
    struct dse_error *err;
};

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum dse_status try_status = (call);                                                                           \
        if (try_status != DSE_OK) return try_status;                                                                   \
    } while (0)

/* "FIELD.path.key: message". key may be NULL. */
enum dse_status dse_schema_fail(struct schema_compiler *s, enum dse_status status, const struct schema_path *path,
                                const char *key, const char *format, ...) __attribute__((format(printf, 5, 6)));
#ifdef __clang_analyzer__ /* as in base/error.h */
#define dse_schema_fail(s, status, ...) ((void)(dse_schema_fail)(s, status, __VA_ARGS__), (status))
#endif
enum dse_status dse_schema_fail_memory(struct schema_compiler *s);
/* "FIELD.path" cut to what fits. */
void dse_schema_path_text(const struct schema_compiler *s, const struct schema_path *path, const char *key, char *out,
                          size_t max);
/* Both NULL after a failure of the builder. */
void *dse_schema_take(struct schema_compiler *s, size_t bytes);
const struct schema_path *dse_schema_path(struct schema_compiler *s, const struct schema_path *parent, const char *key,
                                          size_t index);

/* ---- json_schema.c ---- */
/* Follows $ref while nothing but annotations stands beside it. */
DSE_MUST_CHECK enum dse_status dse_schema_resolve(struct schema_compiler *s, struct schema_node *node);
DSE_MUST_CHECK enum dse_status dse_schema_target(struct schema_compiler *s, const struct schema_node *node,
                                                 struct schema_node *target);
/* A call of the rule for the set; of the empty set: any value. */
DSE_MUST_CHECK enum dse_status dse_schema_call(struct schema_compiler *s, const struct schema_set *set,
                                               struct grammar_tree **out);
DSE_MUST_CHECK enum dse_status dse_schema_set_add(struct schema_compiler *s, struct schema_set *set,
                                                  struct schema_node node);
struct grammar_tree *dse_schema_any(struct schema_compiler *s);
struct grammar_tree *dse_schema_any_object(struct schema_compiler *s);
struct grammar_tree *dse_schema_space(struct schema_compiler *s);
struct grammar_tree *dse_schema_comma(struct schema_compiler *s); /* white space around it included */
struct grammar_tree *dse_schema_colon(struct schema_compiler *s);
void dse_schema_init(struct schema_compiler *s, struct grammar_builder *b, const json_t *root, const char *field,
                     unsigned flags, struct dse_error *err);
/* Bodies for all rules that are still without. */
DSE_MUST_CHECK enum dse_status dse_schema_work_off(struct schema_compiler *s);

/* ---- json_schema_collect.c ---- */
bool dse_schema_is_annotation(const char *keyword, bool at_root);
void dse_schema_facets_init(struct schema_facets *f, const struct schema_path *path);
/* depth: of keywords that combine schemas. */
DSE_MUST_CHECK enum dse_status dse_schema_collect(struct schema_compiler *s, struct schema_node node, int depth,
                                                  struct schema_facets *f);

/* ---- json_schema_emit.c ---- */
DSE_MUST_CHECK enum dse_status dse_schema_emit(struct schema_compiler *s, const struct schema_facets *f, int depth,
                                               struct grammar_tree **out);
/* The set of schemas for a property or an element. */
DSE_MUST_CHECK enum dse_status dse_schema_property_set(struct schema_compiler *s, const struct schema_facets *f,
                                                       const char *name, struct schema_set *set);
struct schema_member {
    const char *name;
    bool required;
};
/* Properties with a name, in order. */
DSE_MUST_CHECK enum dse_status dse_schema_members(struct schema_compiler *s, const struct schema_facets *f,
                                                  const struct schema_member **members, size_t *n);
bool dse_schema_requires(const struct schema_facets *f, const char *name);
/* Whether the value, which must not be one that patterns, properties or items decide on, satisfies the facets. */
DSE_MUST_CHECK enum dse_status dse_schema_admits(struct schema_compiler *s, const struct schema_facets *f,
                                                 const json_t *value, bool *out);
/* Values of enum and const that the other facets let through: called for each. */
typedef enum dse_status schema_value_fn(void *user, const json_t *value);
DSE_MUST_CHECK enum dse_status dse_schema_each_value(struct schema_compiler *s, const struct schema_facets *f,
                                                     schema_value_fn *fn, void *user);

/* ---- json_schema_disjoint.c ---- */
/* Both hold for the same value in no case, as far as can be seen. */
DSE_MUST_CHECK enum dse_status dse_schema_disjoint(struct schema_compiler *s, const struct schema_facets *a,
                                                   const struct schema_facets *b, int depth, bool *out);

/* ---- json_schema_format.c ---- */
/* The pattern of a format of strings, NULL: unknown. */
const char *dse_schema_format_pattern(const char *format);

#endif

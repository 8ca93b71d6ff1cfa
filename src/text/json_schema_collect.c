/* Keywords -> facets: what all schemas that hold for one value say about it, each keyword in its own function.
 *
 * A keyword that is in no table is refused: it might say something. Called for every schema of a set, and again for
 * every branch of anyOf and oneOf.
 */
#include "text/json_schema_internal.h"

#include <math.h>
#include <string.h>

static const char *const annotations[] = {"title",       "description",      "default",        "examples", "example",
                                          "deprecated",  "readOnly",         "writeOnly",      "$comment", "$defs",
                                          "definitions", "contentMediaType", "contentEncoding"};
static const char *const root_annotations[] = {"$schema", "$id", "$vocabulary"};

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0) return true;
    return false;
}

bool dse_schema_is_annotation(const char *keyword, bool at_root)
{
    return strncmp(keyword, "x-", 2) == 0 ||
           is_one_of(keyword, annotations, sizeof annotations / sizeof *annotations) ||
           (at_root && is_one_of(keyword, root_annotations, sizeof root_annotations / sizeof *root_annotations));
}

void dse_schema_facets_init(struct schema_facets *f, const struct schema_path *path)
{
    *f = (struct schema_facets){.path = path,
                                .types = SCHEMA_ANY,
                                .max_fraction = -1,
                                .max_length = UINT64_MAX,
                                .max_items = UINT64_MAX,
                                .max_properties = UINT64_MAX};
}

/* A keyword being looked at. */
struct keyword {
    struct schema_node node; /* the schema it is in */
    const char *name;
    const json_t *value;
    int depth;
};

typedef enum dse_status keyword_fn(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f);

static enum dse_status wrong(struct schema_compiler *s, const struct keyword *k, const char *expected)
{
    return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "must be %s", expected);
}

/* The keyword's value as a schema or an array of its own path. */
static struct schema_node below(struct schema_compiler *s, const struct keyword *k)
{
    return (struct schema_node){k->value, dse_schema_path(s, k->node.path, k->name, 0)};
}

/* ---- types and values ----------------------------------------------------------------------------------------- */

static enum dse_status add_type(struct schema_compiler *s, const struct keyword *k, const json_t *name, unsigned *types)
{
    static const struct {
        const char *name;
        unsigned types;
    } known[] = {{"null", SCHEMA_NULL},       {"boolean", SCHEMA_BOOLEAN},
                 {"integer", SCHEMA_INTEGER}, {"number", SCHEMA_INTEGER | SCHEMA_FRACTION},
                 {"string", SCHEMA_STRING},   {"array", SCHEMA_ARRAY},
                 {"object", SCHEMA_OBJECT}};
    for (size_t i = 0; json_is_string(name) && i < sizeof known / sizeof *known; i++) {
        if (strcmp(json_string_value(name), known[i].name) != 0) continue;
        *types |= known[i].types;
        return DSE_OK;
    }
    return wrong(s, k, "null, boolean, integer, number, string, array or object, or an array of these");
}

static enum dse_status take_type(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    unsigned types = 0;
    if (json_is_true(json_object_get(k->node.json, "nullable"))) types = SCHEMA_NULL;
    if (!json_is_array(k->value)) {
        TRY(add_type(s, k, k->value, &types));
    } else {
        if (json_array_size(k->value) == 0) return wrong(s, k, "a type or an array of at least one");
        for (size_t i = 0; i < json_array_size(k->value); i++)
            TRY(add_type(s, k, json_array_get(k->value, i), &types));
    }
    f->types &= types;
    return DSE_OK;
}

static enum dse_status take_nullable(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    (void)f;
    if (!json_is_boolean(k->value)) return wrong(s, k, "true or false");
    if (json_is_true(k->value) && !json_object_get(k->node.json, "type"))
        return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "is supported beside type only");
    return DSE_OK; /* see take_type */
}

static enum dse_status take_values(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    bool is_const = k->name[0] == 'c';
    if (!is_const && (!json_is_array(k->value) || json_array_size(k->value) == 0))
        return wrong(s, k, "an array of at least one value");
    if (!is_const && json_array_size(k->value) > DSE_SCHEMA_MAX_VALUES)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name, "more than %d values (DSE_SCHEMA_MAX_VALUES)",
                               DSE_SCHEMA_MAX_VALUES);
    struct schema_values *values = dse_schema_take(s, sizeof *values);
    if (!values) return dse_schema_fail_memory(s);
    *values = (struct schema_values){f->values, below(s, k), is_const};
    f->values = values;
    return DSE_OK;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

static enum dse_status take_bound(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    bool upper = strstr(k->name, "ax") != NULL;
    struct json_bound bound, *old = upper ? &f->max : &f->min;
    if (!json_is_number(k->value)) return wrong(s, k, "a number");
    bool exact = json_is_integer(k->value) ? dse_json_bound_from_integer(json_integer_value(k->value), &bound)
                                           : dse_json_bound_from_real(json_real_value(k->value), &bound);
    if (!exact)
        return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "has more than %d digits behind the point",
                               DSE_JSON_MAX_DIGITS);
    if (json_is_real(k->value) && fabs(json_real_value(k->value)) >= DSE_JSON_MAX_BOUND && bound.negative == upper)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name,
                               "numbers beyond 9e18 are not written (DSE_JSON_MAX_BOUND)");
    bound.exclusive = k->name[0] == 'e';
    int order = old->given ? dse_json_bound_compare(&bound, old) : 0;
    bool tighter = !old->given || (upper ? order < 0 : order > 0) || (order == 0 && bound.exclusive);
    if (tighter) *old = bound;
    return DSE_OK;
}

/* Powers of ten up to 1: how many digits stand behind the point. */
static enum dse_status take_multiple(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    static const double powers[] = {1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9};
    if (!json_is_number(k->value) || !(json_number_value(k->value) > 0)) return wrong(s, k, "a number above 0");
    for (int i = 0; i < (int)(sizeof powers / sizeof *powers); i++) {
        if (json_number_value(k->value) != powers[i]) continue;
        if (f->max_fraction < 0 || i < f->max_fraction) f->max_fraction = i;
        return DSE_OK;
    }
    return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "is not supported but for 1, 0.1, 0.01 … 1e-9");
}

/* ---- counts --------------------------------------------------------------------------------------------------- */

static enum dse_status take_count(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    const struct {
        const char *name;
        uint64_t *limit;
    } counts[] = {{"minLength", &f->min_length},         {"maxLength", &f->max_length},
                  {"minItems", &f->min_items},           {"maxItems", &f->max_items},
                  {"minProperties", &f->min_properties}, {"maxProperties", &f->max_properties}};
    double value = json_number_value(k->value);
    if (!json_is_number(k->value) || value < 0 || value != floor(value)) return wrong(s, k, "a whole number from 0 on");
    if (value > DSE_SCHEMA_MAX_COUNT)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name, "%.0f is more than %d (DSE_SCHEMA_MAX_COUNT)",
                               value, DSE_SCHEMA_MAX_COUNT);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (strcmp(k->name, counts[i].name) != 0) continue;
        uint64_t n = (uint64_t)value;
        bool tighter = i % 2 ? n < *counts[i].limit : n > *counts[i].limit;
        if (tighter) *counts[i].limit = n;
    }
    return DSE_OK;
}

/* ---- strings -------------------------------------------------------------------------------------------------- */

static enum dse_status add_pattern(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f,
                                   const char *format)
{
    struct schema_pattern *pattern = dse_schema_take(s, sizeof *pattern);
    if (!pattern) return dse_schema_fail_memory(s);
    *pattern = (struct schema_pattern){.next = f->patterns, .node = below(s, k), .format = format};
    pattern->text = format ? dse_schema_format_pattern(format) : json_string_value(k->value);
    pattern->bytes = format ? strlen(pattern->text) : json_string_length(k->value);
    f->patterns = pattern;
    return DSE_OK;
}

static enum dse_status take_pattern(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    return json_is_string(k->value) ? add_pattern(s, k, f, NULL) : wrong(s, k, "a string");
}

static void narrow(struct json_bound *bound, bool upper, int64_t value)
{
    struct json_bound other;
    (void)dse_json_bound_from_integer(value, &other);
    int order = bound->given ? dse_json_bound_compare(&other, bound) : 0;
    if (!bound->given || (upper ? order < 0 : order > 0)) *bound = other;
}

static enum dse_status take_format(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    static const char *const numeric[] = {"int64", "float", "double"}; /* OpenAPI's; all our numbers are */
    if (!json_is_string(k->value)) return wrong(s, k, "a string");
    const char *format = json_string_value(k->value);
    if (dse_schema_format_pattern(format)) return add_pattern(s, k, f, format);
    bool is_number = f->types == 0 || (f->types & ~(unsigned)(SCHEMA_INTEGER | SCHEMA_FRACTION | SCHEMA_NULL)) == 0;
    if (is_number && strcmp(format, "int32") == 0) {
        narrow(&f->min, false, INT32_MIN);
        narrow(&f->max, true, INT32_MAX);
        return DSE_OK;
    }
    if (is_number && is_one_of(format, numeric, sizeof numeric / sizeof *numeric)) return DSE_OK;
    return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "\"%.40s\" is not supported", format);
}

/* ---- objects and arrays --------------------------------------------------------------------------------------- */

/* Several keywords of a schema make one part; the first of them takes them all. */
static enum dse_status take_object(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    const json_t *properties = json_object_get(k->node.json, "properties");
    const json_t *additional = json_object_get(k->node.json, "additionalProperties");
    if (k->name[0] == 'a' && properties) return DSE_OK;
    if (properties && !json_is_object(properties)) return wrong(s, k, "an object");
    if (json_object_size(properties) > DSE_SCHEMA_MAX_PROPERTIES)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name,
                               "more than %d properties (DSE_SCHEMA_MAX_PROPERTIES)", DSE_SCHEMA_MAX_PROPERTIES);
    struct schema_part *part = dse_schema_take(s, sizeof *part);
    if (!part) return dse_schema_fail_memory(s);
    *part = (struct schema_part){.next = f->objects};
    if (properties)
        part->properties = (struct schema_node){properties, dse_schema_path(s, k->node.path, "properties", 0)};
    if (additional)
        part->additional = (struct schema_node){additional,
                                                dse_schema_path(s, k->node.path, "additionalProperties", 0)};
    f->objects = part;
    return DSE_OK;
}

static enum dse_status take_required(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    if (!json_is_array(k->value)) return wrong(s, k, "an array of names");
    if (json_array_size(k->value) > DSE_SCHEMA_MAX_PROPERTIES)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name,
                               "more than %d names (DSE_SCHEMA_MAX_PROPERTIES)", DSE_SCHEMA_MAX_PROPERTIES);
    for (size_t i = 0; i < json_array_size(k->value); i++) {
        const json_t *name = json_array_get(k->value, i);
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            return wrong(s, k, "an array of names");
    }
    struct schema_names *names = dse_schema_take(s, sizeof *names);
    if (!names) return dse_schema_fail_memory(s);
    *names = (struct schema_names){f->required, below(s, k)};
    f->required = names;
    return DSE_OK;
}

static enum dse_status take_array(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    const json_t *prefix = json_object_get(k->node.json, "prefixItems");
    const json_t *items = json_object_get(k->node.json, "items");
    if (k->name[0] == 'i' && json_is_array(k->value))
        return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name,
                               "must be a schema; an array of schemas is called prefixItems");
    if (k->name[0] == 'i' && prefix) return DSE_OK;
    if (prefix && !json_is_array(prefix)) return wrong(s, k, "an array of schemas");
    if (json_array_size(prefix) > DSE_SCHEMA_MAX_PREFIX)
        return dse_schema_fail(s, DSE_ERR_LIMIT, k->node.path, k->name, "more than %d schemas (DSE_SCHEMA_MAX_PREFIX)",
                               DSE_SCHEMA_MAX_PREFIX);
    struct schema_part *part = dse_schema_take(s, sizeof *part);
    if (!part) return dse_schema_fail_memory(s);
    *part = (struct schema_part){.next = f->arrays};
    if (prefix) part->prefix = (struct schema_node){prefix, dse_schema_path(s, k->node.path, "prefixItems", 0)};
    if (items) part->items = (struct schema_node){items, dse_schema_path(s, k->node.path, "items", 0)};
    f->arrays = part;
    return DSE_OK;
}

static enum dse_status take_unique(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    (void)f;
    if (json_is_false(k->value)) return DSE_OK;
    return json_is_true(k->value)
               ? dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "is not supported but for false")
               : wrong(s, k, "true or false");
}

/* ---- combinations --------------------------------------------------------------------------------------------- */

static enum dse_status take_ref(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    struct schema_node target;
    TRY(dse_schema_target(s, &k->node, &target));
    return dse_schema_collect(s, target, k->depth + 1, f);
}

static enum dse_status take_all_of(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    if (!json_is_array(k->value) || json_array_size(k->value) == 0)
        return wrong(s, k, "an array of at least one schema");
    struct schema_node all = below(s, k);
    for (size_t i = 0; i < json_array_size(k->value); i++) {
        struct schema_node one = {json_array_get(k->value, i), dse_schema_path(s, all.path, NULL, i)};
        TRY(dse_schema_collect(s, one, k->depth + 1, f));
    }
    return DSE_OK;
}

static enum dse_status take_union(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    if (!json_is_array(k->value) || json_array_size(k->value) == 0)
        return wrong(s, k, "an array of at least one schema");
    struct schema_union *u = dse_schema_take(s, sizeof *u);
    if (!u) return dse_schema_fail_memory(s);
    *u = (struct schema_union){f->unions, below(s, k), k->name[0] == 'o'};
    f->unions = u;
    return DSE_OK;
}

/* ---- all of them ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    keyword_fn *take;
} keywords[] = {
    {"type", take_type},
    {"nullable", take_nullable},
    {"enum", take_values},
    {"const", take_values},
    {"minimum", take_bound},
    {"maximum", take_bound},
    {"exclusiveMinimum", take_bound},
    {"exclusiveMaximum", take_bound},
    {"multipleOf", take_multiple},
    {"minLength", take_count},
    {"maxLength", take_count},
    {"pattern", take_pattern},
    {"format", take_format},
    {"properties", take_object},
    {"additionalProperties", take_object},
    {"required", take_required},
    {"minProperties", take_count},
    {"maxProperties", take_count},
    {"items", take_array},
    {"prefixItems", take_array},
    {"minItems", take_count},
    {"maxItems", take_count},
    {"uniqueItems", take_unique},
    {"$ref", take_ref},
    {"allOf", take_all_of},
    {"anyOf", take_union},
    {"oneOf", take_union},
};

static enum dse_status collect_keyword(struct schema_compiler *s, const struct keyword *k, struct schema_facets *f)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (strcmp(k->name, keywords[i].name) != 0) continue;
        bool combines = keywords[i].take == take_ref || keywords[i].take == take_all_of ||
                        keywords[i].take == take_union;
        if (!combines) f->constrained = true;
        return keywords[i].take(s, k, f);
    }
    if (dse_schema_is_annotation(k->name, k->node.json == s->root.json)) return DSE_OK;
    return dse_schema_fail(s, DSE_ERR_INVALID, k->node.path, k->name, "is not supported");
}

enum dse_status dse_schema_collect(struct schema_compiler *s, struct schema_node node, int depth,
                                   struct schema_facets *f)
{
    if (depth > DSE_SCHEMA_MAX_DEPTH)
        return dse_schema_fail(
            s, DSE_ERR_LIMIT, node.path, NULL,
            "$ref, allOf, anyOf or oneOf refer to themselves, or one to the other more than %d times "
            "(DSE_SCHEMA_MAX_DEPTH)",
            DSE_SCHEMA_MAX_DEPTH);
    if (json_is_true(node.json)) return DSE_OK;
    if (json_is_false(node.json)) {
        f->types = 0;
        f->constrained = true;
        return DSE_OK;
    }
    if (!json_is_object(node.json))
        return dse_schema_fail(s, DSE_ERR_INVALID, node.path, NULL, "a schema must be an object, true or false");
    /* The type first: what a format means depends on it. */
    const json_t *type = json_object_get(node.json, "type");
    struct keyword k = {node, "type", type, depth};
    if (type) TRY(collect_keyword(s, &k, f));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node.json, name, value)
    {
        if (value == type) continue;
        if (++s->n_steps > DSE_SCHEMA_MAX_STEPS)
            return dse_schema_fail(s, DSE_ERR_LIMIT, node.path, name,
                                   "more than %u keywords to look at (DSE_SCHEMA_MAX_STEPS)", DSE_SCHEMA_MAX_STEPS);
        k = (struct keyword){node, name, value, depth};
        TRY(collect_keyword(s, &k, f));
        if (grammar_build_failed(s->b)) return dse_schema_fail_memory(s);
    }
    return DSE_OK;
}

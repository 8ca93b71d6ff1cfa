/* Facets -> trees (see json_schema_internal.h): unions multiplied out, values, then each type that is left. */
#include "text/json_schema_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ---- values of enum and const --------------------------------------------------------------------------------- */

static bool equal_values(const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b)) return json_equal(a, b);
    if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
    return json_number_value(a) == json_number_value(b);
}

static bool has_value(const struct schema_values *values, const json_t *value)
{
    if (values->is_const) return equal_values(values->node.json, value);
    for (size_t i = 0; i < json_array_size(values->node.json); i++)
        if (equal_values(json_array_get(values->node.json, i), value)) return true;
    return false;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return SCHEMA_OBJECT;
    case JSON_ARRAY: return SCHEMA_ARRAY;
    case JSON_STRING: return SCHEMA_STRING;
    case JSON_INTEGER: return SCHEMA_INTEGER;
    case JSON_REAL: return json_real_value(value) == floor(json_real_value(value)) ? SCHEMA_INTEGER : SCHEMA_FRACTION;
    case JSON_TRUE:
    case JSON_FALSE: return SCHEMA_BOOLEAN;
    case JSON_NULL: return SCHEMA_NULL;
    }
    return 0;
}

static bool number_fits(const struct schema_facets *f, const json_t *value)
{
    long double v = json_is_integer(value) ? (long double)json_integer_value(value) : json_real_value(value);
    if (f->min.given && (v < f->min.value || (v == f->min.value && f->min.exclusive))) return false;
    return !(f->max.given && (v > f->max.value || (v == f->max.value && f->max.exclusive)));
}

static uint64_t count_characters(const json_t *string)
{
    const char *text = json_string_value(string);
    uint64_t n = 0;
    for (size_t i = 0; i < json_string_length(string); i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Lists of values from `from` on, and all other facets. What would take more than a look is refused. */
static enum dse_status admits(struct schema_compiler *s, const struct schema_facets *f,
                              const struct schema_values *from, const json_t *value, bool *fits)
{
    static const char text[] = "%s beside enum or const is not supported";
    unsigned type = type_of(value);
    *fits = false;
    if (!(type & f->types)) return DSE_OK;
    for (const struct schema_values *values = from; values; values = values->next) {
        s->n_steps += json_array_size(values->node.json);
        if (!has_value(values, value)) return DSE_OK;
    }
    *fits = true;
    if (type & (SCHEMA_INTEGER | SCHEMA_FRACTION)) {
        if (f->max_fraction >= 0 && !(f->max_fraction == 0 && type == SCHEMA_INTEGER))
            return dse_schema_fail(s, DSE_ERR_INVALID, f->path, NULL, text, "multipleOf");
        *fits = number_fits(f, value);
    } else if (type == SCHEMA_STRING) {
        if (f->patterns) return dse_schema_fail(s, DSE_ERR_INVALID, f->patterns->node.path, NULL, text, "it");
        uint64_t n = count_characters(value);
        *fits = f->min_length <= n && n <= f->max_length;
    } else if (type == SCHEMA_ARRAY) {
        if (f->arrays) return dse_schema_fail(s, DSE_ERR_INVALID, f->path, NULL, text, "items or prefixItems");
        *fits = f->min_items <= json_array_size(value) && json_array_size(value) <= f->max_items;
    } else if (type == SCHEMA_OBJECT) {
        if (f->objects || f->required)
            return dse_schema_fail(s, DSE_ERR_INVALID, f->path, NULL, text, "properties or required");
        *fits = f->min_properties <= json_object_size(value) && json_object_size(value) <= f->max_properties;
    }
    return DSE_OK;
}

enum dse_status dse_schema_admits(struct schema_compiler *s, const struct schema_facets *f, const json_t *value,
                                  bool *out)
{
    return admits(s, f, f->values, value, out);
}

enum dse_status dse_schema_each_value(struct schema_compiler *s, const struct schema_facets *f, schema_value_fn *fn,
                                      void *user)
{
    const struct schema_values *values = f->values;
    size_t n = values->is_const ? 1 : json_array_size(values->node.json);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = values->is_const ? values->node.json : json_array_get(values->node.json, i);
        bool fits;
        TRY(admits(s, f, values->next, value, &fits));
        if (fits) TRY(fn(user, value));
        if (++s->n_steps > DSE_SCHEMA_MAX_STEPS)
            return dse_schema_fail(s, DSE_ERR_LIMIT, values->node.path, NULL,
                                   "too many values to compare (DSE_SCHEMA_MAX_STEPS)");
    }
    return DSE_OK;
}

struct value_trees {
    struct schema_compiler *s;
    struct grammar_tree *choice;
    struct dse_slice *scalars;
    size_t n_scalars;
};

/* The shortest text that is read as this number. */
static int print_number(const json_t *value, char *out, size_t max)
{
    if (json_is_integer(value)) return snprintf(out, max, "%lld", (long long)json_integer_value(value));
    double v = json_real_value(value);
    int n = 0;
    for (int precision = 1; precision <= 17; precision++) {
        n = snprintf(out, max, "%.*g", precision, v);
        if (strtod(out, NULL) == v) break;
    }
    if (!strpbrk(out, ".e")) n += snprintf(out + n, max - (size_t)n, ".0");
    return n;
}

/* NULL for arrays and objects, and after a failure. */
static const char *scalar_text(struct schema_compiler *s, const json_t *value, size_t *bytes)
{
    char number[40];
    const char *text = json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null";
    if (json_is_string(value))
        return dse_json_quote(&s->text, json_string_value(value), json_string_length(value), bytes);
    if (json_is_number(value)) {
        print_number(value, number, sizeof number);
        text = number;
    }
    *bytes = strlen(text);
    char *copy = dse_schema_take(s, *bytes + 1);
    return copy ? memcpy(copy, text, *bytes) : NULL;
}

static struct grammar_tree *value_tree(struct schema_compiler *s, const json_t *value)
{
    struct grammar_builder *b = s->b;
    size_t bytes = 0;
    if (!json_is_array(value) && !json_is_object(value)) {
        const char *text = scalar_text(s, value, &bytes);
        return text ? dse_grammar_literal(b, text, bytes) : NULL;
    }
    bool is_array = json_is_array(value), any = false;
    struct grammar_tree *tree = GRAMMAR_SEQ(b, dse_grammar_text(b, is_array ? "[" : "{"), dse_schema_space(s));
    for (size_t i = 0; is_array && i < json_array_size(value); i++, any = true) {
        if (any) dse_grammar_add(b, tree, dse_schema_comma(s));
        dse_grammar_add(b, tree, value_tree(s, json_array_get(value, i)));
    }
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        if (any) dse_grammar_add(b, tree, dse_schema_comma(s));
        dse_grammar_add(b, tree, dse_json_literal(&s->text, key, strlen(key)));
        dse_grammar_add(b, tree, dse_schema_colon(s));
        dse_grammar_add(b, tree, value_tree(s, member));
        any = true;
    }
    if (any) dse_grammar_add(b, tree, dse_schema_space(s));
    return dse_grammar_add(b, tree, dse_grammar_text(b, is_array ? "]" : "}"));
}

static enum dse_status add_value(void *user, const json_t *value)
{
    struct value_trees *v = user;
    if (json_is_array(value) || json_is_object(value)) {
        dse_grammar_add(v->s->b, v->choice, value_tree(v->s, value));
        return DSE_OK;
    }
    struct dse_slice *scalar = &v->scalars[v->n_scalars];
    scalar->data = scalar_text(v->s, value, &scalar->bytes);
    if (!scalar->data) return dse_schema_fail_memory(v->s);
    v->n_scalars++;
    return DSE_OK;
}

static enum dse_status emit_values(struct schema_compiler *s, const struct schema_facets *f, struct grammar_tree **out)
{
    size_t n = f->values->is_const ? 1 : json_array_size(f->values->node.json);
    struct value_trees v = {.s = s, .choice = dse_grammar_choice(s->b)};
    v.scalars = dse_schema_take(s, n * sizeof *v.scalars);
    if (!v.scalars) return dse_schema_fail_memory(s);
    TRY(dse_schema_each_value(s, f, add_value, &v));
    if (v.n_scalars) dse_grammar_add(s->b, v.choice, dse_grammar_one_of(s->b, v.scalars, v.n_scalars));
    *out = v.choice;
    return DSE_OK;
}

/* ---- strings -------------------------------------------------------------------------------------------------- */

/* Both lengths at once: a pattern whose only open length is one repetition of a character takes them over. */
static enum dse_status join_lengths(struct schema_compiler *s, const struct schema_facets *f,
                                    const struct regex_result *pattern)
{
    if (f->min_length <= pattern->min && f->max_length >= pattern->max) return DSE_OK;
    struct grammar_tree *repeat = pattern->repeat;
    if (!repeat)
        return dse_schema_fail(s, DSE_ERR_INVALID, f->patterns->node.path, NULL,
                               "minLength and maxLength beside it are supported if it has one repetition of a "
                               "character and all else has a fixed length");
    uint64_t fixed = pattern->fixed, min = f->min_length > fixed ? f->min_length - fixed : 0;
    if (f->max_length < fixed) {
        *repeat = (struct grammar_tree){.kind = GRAMMAR_CHOICE,
                                        .depth = 1,
                                        .next = repeat->next,
                                        .previous = repeat->previous}; /* nothing is that short */
        return DSE_OK;
    }
    uint64_t max = f->max_length - fixed; /* may be without limit */
    if (min > (uint64_t)repeat->repeat.min) repeat->repeat.min = (int)min;
    if (f->max_length != UINT64_MAX && (repeat->repeat.max < 0 || max < (uint64_t)repeat->repeat.max))
        repeat->repeat.max = (int)max;
    if (repeat->repeat.max >= 0 && repeat->repeat.max < repeat->repeat.min)
        *repeat = (struct grammar_tree){
            .kind = GRAMMAR_CHOICE, .depth = 1, .next = repeat->next, .previous = repeat->previous};
    return DSE_OK;
}

static enum dse_status emit_string(struct schema_compiler *s, const struct schema_facets *f, struct grammar_tree **out)
{
    struct grammar_builder *b = s->b;
    const struct schema_pattern *pattern = f->patterns;
    struct grammar_tree *content = NULL;
    if (pattern) {
        char field[256];
        struct regex_result result = {0};
        dse_schema_path_text(s, pattern->node.path, NULL, field, sizeof field);
        for (const struct schema_pattern *other = pattern->next; other; other = other->next)
            if (other->bytes != pattern->bytes || memcmp(other->text, pattern->text, other->bytes) != 0)
                return dse_schema_fail(s, DSE_ERR_INVALID, pattern->node.path, NULL,
                                       "more than one pattern or format for a string is not supported");
        TRY(dse_regex_tree(&s->text, pattern->text, pattern->bytes, REGEX_JSON_STRING, field, &result, s->err));
        if (grammar_build_failed(b)) return dse_schema_fail_memory(s);
        TRY(join_lengths(s, f, &result));
        content = result.tree;
    } else if (f->min_length > 0 || f->max_length != UINT64_MAX) {
        int max = f->max_length == UINT64_MAX ? -1 : (int)f->max_length;
        content = f->min_length > f->max_length
                      ? dse_grammar_choice(b)
                      : dse_grammar_repeat(b, dse_json_character(&s->text), (int)f->min_length, max);
    } else {
        *out = dse_json_string(&s->text);
        return DSE_OK;
    }
    *out = GRAMMAR_SEQ(b, dse_grammar_text(b, "\""), content, dse_grammar_text(b, "\""));
    return DSE_OK;
}

/* ---- arrays --------------------------------------------------------------------------------------------------- */

static enum dse_status element(struct schema_compiler *s, const struct schema_facets *f, size_t index, bool in_prefix,
                               struct grammar_tree **out)
{
    struct schema_set set = {.n = 0};
    for (const struct schema_part *part = f->arrays; part; part = part->next) {
        const json_t *given = in_prefix ? json_array_get(part->prefix.json, index) : NULL;
        struct schema_node node = part->items;
        if (given) node = (struct schema_node){given, dse_schema_path(s, part->prefix.path, NULL, index)};
        if (node.json) TRY(dse_schema_set_add(s, &set, node));
    }
    return dse_schema_call(s, &set, out);
}

/* What follows element number `index` - 1, as a rule per element that has a place of its own. */
static enum dse_status array_tail(struct schema_compiler *s, const struct schema_facets *f, size_t n_prefix,
                                  struct grammar_tree **out)
{
    struct grammar_builder *b = s->b;
    uint64_t min = f->min_items, max = f->max_items;
    struct grammar_tree *tail = dse_grammar_text(b, ""), *value = NULL;
    size_t first = n_prefix > 0 ? n_prefix : 1;
    if (max > first) {
        TRY(element(s, f, first, false, &value));
        int low = min > first ? (int)(min - first) : 0, high = max == UINT64_MAX ? -1 : (int)(max - first);
        if (high < 0 || low <= high)
            tail = dse_grammar_repeat(b, GRAMMAR_SEQ(b, dse_schema_comma(s), value), low, high);
    }
    for (size_t i = n_prefix > 1 ? n_prefix - 1 : 0; i > 0; i--) {
        if (i >= max) continue;
        uint32_t rule = dse_grammar_rule(b, "elements");
        TRY(element(s, f, i, true, &value));
        struct grammar_tree *more = GRAMMAR_SEQ(b, dse_schema_comma(s), value, tail);
        dse_grammar_define(b, rule, i < min ? more : dse_grammar_optional(b, more));
        tail = dse_grammar_call(b, rule);
    }
    *out = tail;
    return DSE_OK;
}

static enum dse_status emit_array(struct schema_compiler *s, const struct schema_facets *f, struct grammar_tree **out)
{
    struct grammar_builder *b = s->b;
    struct grammar_tree *content = dse_grammar_text(b, ""), *first = NULL, *tail = NULL;
    size_t n_prefix = 0;
    for (const struct schema_part *part = f->arrays; part; part = part->next)
        if (json_array_size(part->prefix.json) > n_prefix) n_prefix = json_array_size(part->prefix.json);
    if (f->min_items > f->max_items) {
        *out = dse_grammar_choice(b);
        return DSE_OK;
    }
    if (f->max_items > 0) {
        TRY(element(s, f, 0, n_prefix > 0, &first));
        TRY(array_tail(s, f, n_prefix, &tail));
        content = GRAMMAR_SEQ(b, first, tail, dse_schema_space(s));
        if (f->min_items == 0) content = dse_grammar_optional(b, content);
    }
    *out = GRAMMAR_SEQ(b, dse_grammar_text(b, "["), dse_schema_space(s), content, dse_grammar_text(b, "]"));
    return DSE_OK;
}

/* ---- objects -------------------------------------------------------------------------------------------------- */

struct object {
    struct schema_compiler *s;
    const struct schema_facets *f;
    struct schema_member *members;
    size_t n, n_required, first_required; /* first_required n: none */
    bool open;                            /* other names may follow */
};

bool dse_schema_requires(const struct schema_facets *f, const char *name)
{
    for (const struct schema_names *names = f->required; names; names = names->next)
        for (size_t i = 0; i < json_array_size(names->array.json); i++)
            if (strcmp(json_string_value(json_array_get(names->array.json, i)), name) == 0) return true;
    return false;
}

enum dse_status dse_schema_property_set(struct schema_compiler *s, const struct schema_facets *f, const char *name,
                                        struct schema_set *set)
{
    for (const struct schema_part *part = f->objects; part; part = part->next) {
        const json_t *declared = name ? json_object_get(part->properties.json, name) : NULL;
        struct schema_node node = part->additional;
        if (declared) node = (struct schema_node){declared, dse_schema_path(s, part->properties.path, name, 0)};
        if (node.json) TRY(dse_schema_set_add(s, set, node));
    }
    return DSE_OK;
}

static enum dse_status add_member(struct object *o, const char *name, const struct schema_path *path)
{
    if (o->n == DSE_SCHEMA_MAX_PROPERTIES)
        return dse_schema_fail(o->s, DSE_ERR_LIMIT, path, NULL, "more than %d properties (DSE_SCHEMA_MAX_PROPERTIES)",
                               DSE_SCHEMA_MAX_PROPERTIES);
    if (strlen(name) > DSE_SCHEMA_MAX_NAME_BYTES)
        return dse_schema_fail(o->s, DSE_ERR_LIMIT, path, NULL,
                               "a name is longer than %d bytes (DSE_SCHEMA_MAX_NAME_BYTES)", DSE_SCHEMA_MAX_NAME_BYTES);
    bool required = dse_schema_requires(o->f, name);
    if (required && o->n_required++ == 0) o->first_required = o->n;
    o->members[o->n++] = (struct schema_member){name, required};
    for (const struct schema_names *names = o->f->required; names; names = names->next)
        o->s->n_steps += json_array_size(names->array.json) / 16 + 1;
    if (o->s->n_steps > DSE_SCHEMA_MAX_STEPS)
        return dse_schema_fail(o->s, DSE_ERR_LIMIT, path, NULL,
                               "too many properties to look at (DSE_SCHEMA_MAX_STEPS)");
    return DSE_OK;
}

static bool is_member(const struct schema_part *parts, const struct schema_part *end, const char *name)
{
    for (; parts != end; parts = parts->next)
        if (json_object_get(parts->properties.json, name)) return true;
    return false;
}

/* Names in the order in which the schemas give them: parts are linked backwards. */
static enum dse_status list_members(struct object *o)
{
    const struct schema_part *parts[DSE_SCHEMA_MAX_PARTS * 4];
    size_t n = 0, limit = sizeof parts / sizeof *parts;
    bool declared = false, given = false;
    o->members = dse_schema_take(o->s, DSE_SCHEMA_MAX_PROPERTIES * sizeof *o->members);
    if (!o->members) return dse_schema_fail_memory(o->s);
    for (const struct schema_part *part = o->f->objects; part; part = part->next) {
        if (n == limit)
            return dse_schema_fail(o->s, DSE_ERR_LIMIT, o->f->path, NULL, "properties come from more than %zu places",
                                   limit);
        parts[n++] = part;
        declared |= part->properties.json != NULL;
        given |= part->additional.json != NULL;
    }
    o->open = given || !declared;
    while (n-- > 0) {
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)parts[n]->properties.json, name, value)
        {
            if (is_member(parts[n]->next, NULL, name)) continue; /* an earlier part has it */
            TRY(add_member(o, name, parts[n]->properties.path));
        }
    }
    for (const struct schema_names *names = o->f->required; names; names = names->next)
        for (size_t i = 0; i < json_array_size(names->array.json); i++) {
            const char *name = json_string_value(json_array_get(names->array.json, i));
            if (is_member(o->f->objects, NULL, name)) continue;
            bool known = false;
            for (size_t j = 0; j < o->n && !known; j++)
                known = strcmp(o->members[j].name, name) == 0;
            if (!known) TRY(add_member(o, name, names->array.path));
        }
    if (o->n_required == 0) o->first_required = o->n;
    return DSE_OK;
}

enum dse_status dse_schema_members(struct schema_compiler *s, const struct schema_facets *f,
                                   const struct schema_member **members, size_t *n)
{
    struct object o = {.s = s, .f = f};
    TRY(list_members(&o));
    *members = o.members;
    *n = o.n;
    return DSE_OK;
}

/* `"name": value` of a member; name NULL: of the others, which are called differently. */
static enum dse_status member_tree(struct object *o, const char *name, struct grammar_tree **out)
{
    struct schema_compiler *s = o->s;
    struct schema_set set = {.n = 0};
    struct grammar_tree *value = NULL, *key = NULL;
    TRY(dse_schema_property_set(s, o->f, name, &set));
    TRY(dse_schema_call(s, &set, &value));
    if (name) {
        key = dse_json_literal(&s->text, name, strlen(name));
    } else if (o->n == 0) {
        key = dse_json_string(&s->text);
    } else {
        struct dse_slice *names = dse_schema_take(s, o->n * sizeof *names);
        if (!names) return dse_schema_fail_memory(s);
        for (size_t i = 0; i < o->n; i++)
            names[i] = (struct dse_slice){o->members[i].name, strlen(o->members[i].name)};
        key = dse_json_string_except(&s->text, names, o->n);
    }
    *out = GRAMMAR_SEQ(s->b, key, dse_schema_colon(s), value);
    return DSE_OK;
}

static enum dse_status member_rule(struct object *o, const char *name, uint32_t *rule)
{
    struct grammar_tree *tree = NULL;
    TRY(member_tree(o, name, &tree));
    *rule = dse_grammar_rule(o->s->b, name ? "member" : "others");
    dse_grammar_define(o->s->b, *rule, tree);
    return DSE_OK;
}

/* What follows member number first_required: the rest of them, the others, white space. */
static enum dse_status object_tail(struct object *o, uint32_t others, struct grammar_tree **out)
{
    struct grammar_builder *b = o->s->b;
    struct grammar_tree *tail = dse_grammar_sequence(b);
    for (size_t i = o->first_required + 1; i < o->n; i++) {
        struct grammar_tree *member = NULL;
        TRY(member_tree(o, o->members[i].name, &member));
        member = GRAMMAR_SEQ(b, dse_schema_comma(o->s), member);
        dse_grammar_add(b, tail, o->members[i].required ? member : dse_grammar_optional(b, member));
    }
    if (o->open) {
        uint64_t max = o->f->max_properties;
        int limit = max == UINT64_MAX ? -1 : (int)(max > o->n + 1 ? max - o->n - 1 : 0);
        struct grammar_tree *more = GRAMMAR_SEQ(b, dse_schema_comma(o->s), dse_grammar_call(b, others));
        dse_grammar_add(b, tail, dse_grammar_repeat(b, more, 0, limit));
    }
    *out = dse_grammar_add(b, tail, dse_schema_space(o->s));
    return DSE_OK;
}

/* The members one of which comes first are those up to the first that must be there. For each of them there is a rule
 * for what may follow it, which ends with a call of the next one's. */
static enum dse_status object_content(struct object *o, struct grammar_tree **out)
{
    struct grammar_builder *b = o->s->b;
    struct grammar_tree *choice = dse_grammar_choice(b), *tail = NULL, *tree = NULL;
    uint32_t others = 0, rest;
    if (o->open) TRY(member_rule(o, NULL, &others));
    TRY(object_tail(o, others, &tail));
    if (o->first_required == 0 && o->n > 0) {
        TRY(member_tree(o, o->members[0].name, &tree));
        *out = GRAMMAR_SEQ(b, tree, tail);
        return DSE_OK;
    }
    rest = dse_grammar_rule(b, "rest");
    dse_grammar_define(b, rest, tail);
    bool may_be_empty = o->first_required == o->n;
    if (may_be_empty && o->open)
        dse_grammar_add(b, choice, GRAMMAR_SEQ(b, dse_grammar_call(b, others), dse_grammar_call(b, rest)));
    for (size_t i = may_be_empty ? o->n : o->first_required + 1; i-- > 0;) {
        uint32_t member;
        TRY(member_rule(o, o->members[i].name, &member));
        dse_grammar_add(b, choice, GRAMMAR_SEQ(b, dse_grammar_call(b, member), dse_grammar_call(b, rest)));
        if (i == 0) break;
        uint32_t before = dse_grammar_rule(b, "rest");
        struct grammar_tree *next = GRAMMAR_SEQ(b, dse_schema_comma(o->s), dse_grammar_call(b, member));
        if (!o->members[i].required) next = dse_grammar_optional(b, next);
        dse_grammar_define(b, before, GRAMMAR_SEQ(b, next, dse_grammar_call(b, rest)));
        rest = before;
    }
    *out = may_be_empty && o->f->min_properties == 0 ? dse_grammar_optional(b, choice) : choice;
    return DSE_OK;
}

static enum dse_status emit_object(struct schema_compiler *s, const struct schema_facets *f, struct grammar_tree **out)
{
    struct grammar_builder *b = s->b;
    struct object o = {.s = s, .f = f};
    struct grammar_tree *content = NULL;
    bool counted = f->min_properties > 0 || f->max_properties != UINT64_MAX;
    if (!f->objects && !f->required && !counted) {
        *out = dse_schema_any_object(s);
        return DSE_OK;
    }
    TRY(list_members(&o));
    if (f->min_properties > (o.n_required > 1 ? o.n_required : 1))
        return dse_schema_fail(s, DSE_ERR_INVALID, f->path, "minProperties",
                               "is supported up to 1 and up to the number of required properties");
    if (f->max_properties < o.n || (o.open && o.n > 0 && f->max_properties != UINT64_MAX))
        return dse_schema_fail(s, DSE_ERR_INVALID, f->path, "maxProperties",
                               "is supported where it limits nothing, or where there are no properties with names");
    if (o.open && f->max_properties == 0) o.open = false;
    TRY(object_content(&o, &content));
    *out = GRAMMAR_SEQ(b, dse_grammar_text(b, "{"), dse_schema_space(s), content, dse_grammar_text(b, "}"));
    return DSE_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------------ */

static enum dse_status emit_types(struct schema_compiler *s, const struct schema_facets *f, struct grammar_tree **out)
{
    struct grammar_builder *b = s->b;
    struct grammar_tree *choice = dse_grammar_choice(b), *tree = NULL;
    if (f->types & SCHEMA_NULL) dse_grammar_add(b, choice, dse_grammar_text(b, "null"));
    if (f->types & SCHEMA_BOOLEAN) {
        dse_grammar_add(b, choice, dse_grammar_text(b, "true"));
        dse_grammar_add(b, choice, dse_grammar_text(b, "false"));
    }
    if (f->types & SCHEMA_FRACTION)
        dse_grammar_add(b, choice, dse_json_number(b, &f->min, &f->max, f->max_fraction));
    else if (f->types & SCHEMA_INTEGER)
        dse_grammar_add(b, choice, dse_json_integer(b, &f->min, &f->max));
    if (f->types & SCHEMA_STRING) {
        TRY(emit_string(s, f, &tree));
        dse_grammar_add(b, choice, tree);
    }
    if (f->types & SCHEMA_ARRAY) {
        TRY(emit_array(s, f, &tree));
        dse_grammar_add(b, choice, tree);
    }
    if (f->types & SCHEMA_OBJECT) {
        TRY(emit_object(s, f, &tree));
        dse_grammar_add(b, choice, tree);
    }
    *out = choice;
    return DSE_OK;
}

static enum dse_status branch_facets(struct schema_compiler *s, const struct schema_facets *rest,
                                     const struct schema_union *u, size_t index, int depth, struct schema_facets *out)
{
    struct schema_node branch = {json_array_get(u->branches.json, index),
                                 dse_schema_path(s, u->branches.path, NULL, index)};
    *out = *rest;
    out->path = branch.path;
    return dse_schema_collect(s, branch, depth + 1, out);
}

/* Every two branches of oneOf must exclude each other: then it is the same as anyOf. */
static enum dse_status check_one_of(struct schema_compiler *s, const struct schema_facets *rest,
                                    const struct schema_union *u, int depth)
{
    for (size_t i = 1; i < json_array_size(u->branches.json); i++)
        for (size_t j = 0; j < i; j++) {
            struct schema_facets a, b;
            bool disjoint = false;
            TRY(branch_facets(s, rest, u, j, depth, &a));
            TRY(branch_facets(s, rest, u, i, depth, &b));
            TRY(dse_schema_disjoint(s, &a, &b, depth, &disjoint));
            if (!disjoint)
                return dse_schema_fail(s, DSE_ERR_INVALID, u->branches.path, NULL,
                                       "it cannot be seen that [%zu] and [%zu] exclude each other (by type, by values, "
                                       "or by a required property with different values); if they need not, write "
                                       "anyOf",
                                       j, i);
        }
    return DSE_OK;
}

static enum dse_status emit_union(struct schema_compiler *s, const struct schema_facets *f, int depth,
                                  struct grammar_tree **out)
{
    const struct schema_union *u = f->unions;
    struct schema_facets rest = *f;
    rest.unions = u->next;
    bool alone = !rest.constrained && !rest.unions;
    struct grammar_tree *choice = dse_grammar_choice(s->b);
    if (u->one) TRY(check_one_of(s, &rest, u, depth));
    for (size_t i = 0; i < json_array_size(u->branches.json); i++) {
        struct grammar_tree *tree = NULL;
        if (++s->n_branches > DSE_SCHEMA_MAX_BRANCHES)
            return dse_schema_fail(s, DSE_ERR_LIMIT, u->branches.path, NULL,
                                   "more than %d branches, multiplied out (DSE_SCHEMA_MAX_BRANCHES)",
                                   DSE_SCHEMA_MAX_BRANCHES);
        if (alone) { /* a rule of its own, which may come back here: recursion */
            struct schema_set set = {.n = 0};
            struct schema_node branch = {json_array_get(u->branches.json, i),
                                         dse_schema_path(s, u->branches.path, NULL, i)};
            TRY(dse_schema_set_add(s, &set, branch));
            TRY(dse_schema_call(s, &set, &tree));
        } else {
            struct schema_facets branch;
            TRY(branch_facets(s, &rest, u, i, depth, &branch));
            TRY(dse_schema_emit(s, &branch, depth + 1, &tree));
        }
        dse_grammar_add(s->b, choice, tree);
    }
    *out = choice;
    return DSE_OK;
}

enum dse_status dse_schema_emit(struct schema_compiler *s, const struct schema_facets *f, int depth,
                                struct grammar_tree **out)
{
    if (grammar_build_failed(s->b)) return dse_schema_fail_memory(s);
    if (depth > DSE_SCHEMA_MAX_DEPTH)
        return dse_schema_fail(s, DSE_ERR_LIMIT, f->path, NULL,
                               "anyOf and oneOf multiply out deeper than %d (DSE_SCHEMA_MAX_DEPTH)",
                               DSE_SCHEMA_MAX_DEPTH);
    if (f->unions) return emit_union(s, f, depth, out);
    if (f->values) return emit_values(s, f, out);
    if (!f->constrained) {
        *out = dse_schema_any(s);
        return DSE_OK;
    }
    return emit_types(s, f, out);
}

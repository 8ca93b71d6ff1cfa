/* Whether two branches of oneOf exclude each other (see json_schema_internal.h). Says no where it cannot tell.
 *
 * Looks at types, at listed values, at bounds of numbers, and at properties that both require and that exclude each
 * other, which is how tagged unions are written.
 */
#include "text/json_schema_internal.h"

#include <string.h>

struct comparison {
    struct schema_compiler *s;
    const struct schema_facets *other;
    bool shared;
};

/* A value of one side: may the other have it too? */
static enum dse_status compare_value(void *user, const json_t *value)
{
    struct comparison *c = user;
    const struct schema_facets *f = c->other;
    bool fits = false, opaque = (json_is_string(value) && f->patterns) || (json_is_array(value) && f->arrays) ||
                                (json_is_object(value) && (f->objects || f->required)) ||
                                (json_is_real(value) && f->max_fraction >= 0);
    if (!opaque) TRY(dse_schema_admits(c->s, f, value, &fits));
    c->shared |= opaque || fits;
    return DSE_OK;
}

static bool below(const struct json_bound *max, const struct json_bound *min)
{
    if (!max->given || !min->given) return false;
    int order = dse_json_bound_compare(max, min);
    return order < 0 || (order == 0 && (max->exclusive || min->exclusive));
}

static enum dse_status property_facets(struct schema_compiler *s, const struct schema_facets *f, const char *name,
                                       struct schema_facets *out)
{
    struct schema_set set = {.n = 0};
    TRY(dse_schema_property_set(s, f, name, &set));
    dse_schema_facets_init(out, f->path);
    for (size_t i = 0; i < set.n; i++)
        TRY(dse_schema_collect(s, set.nodes[i], 0, out));
    return DSE_OK;
}

static enum dse_status disjoint_objects(struct schema_compiler *s, const struct schema_facets *a,
                                        const struct schema_facets *b, int depth, bool *out)
{
    for (const struct schema_names *names = a->required; names && !*out; names = names->next)
        for (size_t i = 0; i < json_array_size(names->array.json) && !*out; i++) {
            const char *name = json_string_value(json_array_get(names->array.json, i));
            struct schema_facets left, right;
            if (!dse_schema_requires(b, name)) continue;
            TRY(property_facets(s, a, name, &left));
            TRY(property_facets(s, b, name, &right));
            TRY(dse_schema_disjoint(s, &left, &right, depth + 1, out));
        }
    return DSE_OK;
}

/* Every branch of a's first union is disjoint with b. */
static enum dse_status disjoint_branches(struct schema_compiler *s, const struct schema_facets *a,
                                         const struct schema_facets *b, int depth, bool *out)
{
    const struct schema_union *u = a->unions;
    *out = true;
    for (size_t i = 0; i < json_array_size(u->branches.json) && *out; i++) {
        struct schema_facets branch = *a;
        struct schema_node node = {json_array_get(u->branches.json, i), dse_schema_path(s, u->branches.path, NULL, i)};
        branch.unions = u->next;
        TRY(dse_schema_collect(s, node, depth + 1, &branch));
        TRY(dse_schema_disjoint(s, &branch, b, depth + 1, out));
    }
    return DSE_OK;
}

enum dse_status dse_schema_disjoint(struct schema_compiler *s, const struct schema_facets *a,
                                    const struct schema_facets *b, int depth, bool *out)
{
    *out = false;
    if (++s->n_steps > DSE_SCHEMA_MAX_STEPS)
        return dse_schema_fail(s, DSE_ERR_LIMIT, a->path, NULL, "too many branches to compare (DSE_SCHEMA_MAX_STEPS)");
    if (grammar_build_failed(s->b)) return dse_schema_fail_memory(s);
    unsigned shared = a->types & b->types;
    if (!shared) {
        *out = true;
        return DSE_OK;
    }
    if (depth > DSE_SCHEMA_MAX_DEPTH) return DSE_OK;
    if (a->unions) return disjoint_branches(s, a, b, depth, out);
    if (b->unions) return disjoint_branches(s, b, a, depth, out);
    if (a->values || b->values) {
        struct comparison c = {.s = s, .other = a->values ? b : a};
        TRY(dse_schema_each_value(s, a->values ? a : b, compare_value, &c));
        *out = !c.shared;
        return DSE_OK;
    }
    if (shared & ~(unsigned)(SCHEMA_INTEGER | SCHEMA_FRACTION | SCHEMA_OBJECT)) return DSE_OK;
    if ((shared & (SCHEMA_INTEGER | SCHEMA_FRACTION)) && !below(&a->max, &b->min) && !below(&b->max, &a->min))
        return DSE_OK;
    *out = true;
    if (!(shared & SCHEMA_OBJECT)) return DSE_OK;
    *out = false;
    return disjoint_objects(s, a, b, depth, out);
}

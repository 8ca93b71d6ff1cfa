/* Refuses left recursion: a rule that can come back to itself before it has taken a byte would never stop expanding.
 * Called by dse_grammar_compile on parsed rules. Looks through nullable prefixes. Work is bounded: rules come from a
 * request.
 */
#include "text/grammar_internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_VISITS 50000000u /* tree nodes looked at while the set of nullable rules settles */

struct recursion_check {
    const struct grammar_rules *rules;
    bool *nullable; /* [n_rules] */
    uint64_t n_visits;
    uint32_t *edges; /* left neighbours, all rules one after the other; NULL while counting */
    uint32_t n_edges;
    uint32_t *first; /* [n_rules + 1] into edges */
};

static bool is_nullable(struct recursion_check *check, const struct grammar_tree *tree)
{
    check->n_visits++;
    switch (tree->kind) {
    case GRAMMAR_LITERAL: return tree->literal.n_bytes == 0;
    case GRAMMAR_CLASS: return false;
    case GRAMMAR_RULE: return check->nullable[tree->rule];
    case GRAMMAR_REPEAT: return tree->repeat.min == 0 || is_nullable(check, tree->first);
    case GRAMMAR_SEQUENCE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next)
            if (!is_nullable(check, child)) return false;
        return true;
    case GRAMMAR_CHOICE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next)
            if (is_nullable(check, child)) return true;
        return false;
    }
    return false;
}

/* Sweeps back and forth, so that chains of rules settle in one sweep whichever way they are written. */
static bool settle_nullable(struct recursion_check *check)
{
    uint32_t n = check->rules->n_rules;
    bool changed = true;
    for (bool forward = false; changed; forward = !forward) {
        changed = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rule = forward ? i : n - 1 - i;
            if (check->nullable[rule] || !is_nullable(check, check->rules->rules[rule].body)) continue;
            check->nullable[rule] = changed = true;
        }
        if (check->n_visits > MAX_VISITS) return false;
    }
    return true;
}

/* Records the rules that may begin at the left edge of tree. Nullability of every part is needed once per level of
 * nesting, so that this takes linear time per level. */
static void collect_edges(struct recursion_check *check, const struct grammar_tree *tree)
{
    switch (tree->kind) {
    case GRAMMAR_LITERAL:
    case GRAMMAR_CLASS: break;
    case GRAMMAR_RULE:
        if (check->edges) check->edges[check->n_edges] = tree->rule;
        check->n_edges++;
        break;
    case GRAMMAR_REPEAT:
        if (tree->repeat.max != 0) collect_edges(check, tree->first);
        break;
    case GRAMMAR_SEQUENCE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next) {
            collect_edges(check, child);
            if (!is_nullable(check, child)) break;
        }
        break;
    case GRAMMAR_CHOICE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next)
            collect_edges(check, child);
        break;
    }
}

/* Names up to four rules of the cycle that ends at the top of the path. */
static enum dse_status fail_cycle(const struct recursion_check *check, const uint32_t *path, uint32_t from,
                                  uint32_t length, struct dse_error *err)
{
    char text[256];
    size_t used = 0;
    for (uint32_t i = from; i < length && i < from + 4; i++) {
        int n = snprintf(text + used, sizeof text - used, "%.40s -> ", check->rules->rules[path[i]].name);
        used += n > 0 && (size_t)n < sizeof text - used ? (size_t)n : 0;
    }
    const struct grammar_rule *rule = &check->rules->rules[path[from]];
    return dse_grammar_fail(err, DSE_ERR_INVALID, rule->line, "left recursion: %s%s%.40s", text,
                            length - from > 4 ? "… -> " : "", rule->name);
}

/* Depth-first search without recursion: path holds the rules on the way, cursor their next edge. */
static enum dse_status find_cycle(const struct recursion_check *check, uint32_t *path, uint32_t *cursor,
                                  uint32_t *place, struct dse_error *err)
{
    enum { NEW = 0, DONE = UINT32_MAX }; /* otherwise 1 + place on the path */
    for (uint32_t root = 0; root < check->rules->n_rules; root++) {
        if (place[root] != NEW) continue;
        uint32_t length = 0;
        path[length] = root;
        cursor[length++] = check->first[root];
        place[root] = length;
        while (length > 0) {
            uint32_t rule = path[length - 1];
            if (cursor[length - 1] == check->first[rule + 1]) {
                place[rule] = DONE;
                length--;
                continue;
            }
            uint32_t to = check->edges[cursor[length - 1]++];
            if (place[to] == DONE) continue;
            if (place[to] != NEW) return fail_cycle(check, path, place[to] - 1, length, err);
            path[length] = to;
            cursor[length++] = check->first[to];
            place[to] = length;
        }
    }
    return DSE_OK;
}

enum dse_status dse_grammar_check_recursion(const struct grammar_rules *rules, struct dse_error *err)
{
    uint32_t n = rules->n_rules;
    struct recursion_check check = {.rules = rules};
    check.nullable = dse_arena_alloc(rules->arena, n * sizeof *check.nullable);
    check.first = dse_arena_alloc(rules->arena, (n + 1) * sizeof *check.first);
    uint32_t *scratch = dse_arena_alloc(rules->arena, 3 * (size_t)n * sizeof *scratch);
    if (!check.nullable || !check.first || !scratch) return dse_fail_memory(err, n, "the grammar");
    if (!settle_nullable(&check)) return dse_grammar_fail(err, DSE_ERR_LIMIT, 0, "too many rules that may be empty");
    for (uint32_t i = 0; i < n; i++)
        collect_edges(&check, rules->rules[i].body);
    check.edges = dse_arena_alloc(rules->arena, check.n_edges * sizeof *check.edges + 1);
    if (!check.edges) return dse_fail_memory(err, check.n_edges, "the grammar");
    check.n_edges = 0;
    for (uint32_t i = 0; i < n; i++) {
        check.first[i] = check.n_edges;
        collect_edges(&check, rules->rules[i].body);
    }
    check.first[n] = check.n_edges;
    return find_cycle(&check, scratch, scratch + n, scratch + 2 * n, err);
}

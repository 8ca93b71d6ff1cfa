/* Trees and rules built by hand (see grammar_build.h), and the removal of what can never be completed. */
#include "text/grammar_build.h"

#include <string.h>

#define MAX_VISITS 50000000u /* tree nodes looked at while the set of productive rules settles */

#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)

enum dse_status dse_grammar_build_init(struct grammar_builder *b, struct dse_error *err)
{
    memset(b, 0, sizeof *b);
    dse_arena_init(&b->arena, DSE_MEM_TEXT, DSE_GRAMMAR_MAX_BUILD_BYTES);
    b->rules.arena = &b->arena;
    b->rules.rules = dse_arena_alloc(&b->arena, DSE_GRAMMAR_MAX_RULES * sizeof *b->rules.rules);
    if (b->rules.rules) return DSE_OK;
    dse_grammar_build_deinit(b);
    return dse_fail_memory(err, DSE_GRAMMAR_MAX_RULES * sizeof *b->rules.rules, "a grammar");
}

void dse_grammar_build_deinit(struct grammar_builder *b)
{
    dse_arena_deinit(&b->arena);
}

void dse_grammar_build_limit(struct grammar_builder *b, const char *what)
{
    if (!grammar_build_failed(b)) b->failed_limit = what;
}

/* NULL after a failure: an arena that is full is a limit, one that got nothing is want of memory. */
static void *take(struct grammar_builder *b, size_t bytes)
{
    if (grammar_build_failed(b)) return NULL;
    void *memory = dse_arena_alloc(&b->arena, bytes);
    if (memory) return memory;
    if (b->arena.used_bytes + bytes + 16 > b->arena.max_bytes)
        dse_grammar_build_limit(b, "it needs more than 64 MiB while it is compiled (DSE_GRAMMAR_MAX_BUILD_BYTES)");
    else
        b->failed_memory = true;
    return NULL;
}

static struct grammar_tree *new_tree(struct grammar_builder *b, enum grammar_tree_kind kind)
{
    struct grammar_tree *tree = take(b, sizeof *tree);
    if (!tree) return NULL;
    tree->kind = kind;
    tree->depth = 1;
    return tree;
}

struct grammar_tree *dse_grammar_literal(struct grammar_builder *b, const char *bytes, size_t n_bytes)
{
    struct grammar_tree *tree = new_tree(b, GRAMMAR_LITERAL);
    uint8_t *copy = take(b, n_bytes + 1);
    if (!tree || !copy) return NULL;
    if (n_bytes > 0) memcpy(copy, bytes, n_bytes);
    tree->literal.bytes = copy;
    tree->literal.n_bytes = n_bytes;
    return tree;
}

struct grammar_tree *dse_grammar_text(struct grammar_builder *b, const char *text)
{
    return dse_grammar_literal(b, text, strlen(text));
}

struct grammar_tree *dse_grammar_class(struct grammar_builder *b, const struct grammar_range *ranges, size_t n_ranges)
{
    if (n_ranges == 0) return dse_grammar_choice(b);
    struct grammar_tree *tree = new_tree(b, GRAMMAR_CLASS);
    struct grammar_range *copy = take(b, n_ranges * sizeof *copy);
    if (!tree || !copy) return NULL;
    memcpy(copy, ranges, n_ranges * sizeof *copy);
    size_t kept = dse_grammar_normalise_ranges(copy, n_ranges, false);
    if (kept == 1 && copy[0].lo >= 0xD800 && copy[0].hi <= 0xDFFF) return dse_grammar_choice(b);
    tree->class.ranges = copy;
    tree->class.n_ranges = kept;
    return tree;
}

struct grammar_tree *dse_grammar_sequence(struct grammar_builder *b)
{
    return new_tree(b, GRAMMAR_SEQUENCE);
}

struct grammar_tree *dse_grammar_choice(struct grammar_builder *b)
{
    return new_tree(b, GRAMMAR_CHOICE);
}

struct grammar_tree *dse_grammar_add(struct grammar_builder *b, struct grammar_tree *parent, struct grammar_tree *child)
{
    if (!parent || !child) return parent;
    if (!grammar_tree_append(parent, child))
        dse_grammar_build_limit(
            b, "it nests deeper than " TEXT_OF(DSE_GRAMMAR_MAX_TREE_DEPTH) " (DSE_GRAMMAR_MAX_TREE_DEPTH)");
    return parent;
}

struct grammar_tree *dse_grammar_sequence_of(struct grammar_builder *b, struct grammar_tree **parts)
{
    struct grammar_tree *tree = dse_grammar_sequence(b);
    for (; *parts; parts++)
        dse_grammar_add(b, tree, *parts);
    return tree;
}

struct grammar_tree *dse_grammar_repeat(struct grammar_builder *b, struct grammar_tree *child, int min, int max)
{
    if (min > DSE_GRAMMAR_MAX_BUILD_REPEAT || max > DSE_GRAMMAR_MAX_BUILD_REPEAT)
        dse_grammar_build_limit(
            b, "a count is larger than " TEXT_OF(DSE_GRAMMAR_MAX_BUILD_REPEAT) " (DSE_GRAMMAR_MAX_BUILD_REPEAT)");
    struct grammar_tree *tree = new_tree(b, GRAMMAR_REPEAT);
    if (!tree) return NULL;
    tree->repeat.min = min;
    tree->repeat.max = max;
    return dse_grammar_add(b, tree, child);
}

struct grammar_tree *dse_grammar_optional(struct grammar_builder *b, struct grammar_tree *child)
{
    return dse_grammar_repeat(b, child, 0, 1);
}

struct grammar_tree *dse_grammar_call(struct grammar_builder *b, uint32_t rule)
{
    struct grammar_tree *tree = new_tree(b, GRAMMAR_RULE);
    if (tree) tree->rule = rule;
    return tree;
}

uint32_t dse_grammar_rule(struct grammar_builder *b, const char *name)
{
    if (grammar_build_failed(b)) return 0;
    if (b->rules.n_rules == DSE_GRAMMAR_MAX_RULES) {
        dse_grammar_build_limit(b,
                                "it needs more than " TEXT_OF(DSE_GRAMMAR_MAX_RULES) " rules (DSE_GRAMMAR_MAX_RULES)");
        return 0;
    }
    size_t bytes = strlen(name);
    char *copy = take(b, bytes + 1);
    if (!copy) return 0;
    memcpy(copy, name, bytes);
    b->rules.rules[b->rules.n_rules] = (struct grammar_rule){.name = copy};
    return b->rules.n_rules++;
}

void dse_grammar_define(struct grammar_builder *b, uint32_t rule, struct grammar_tree *body)
{
    if (!grammar_build_failed(b)) b->rules.rules[rule].body = body;
}

/* ---- what can be completed ------------------------------------------------------------------------------------ */

struct pruning {
    const struct grammar_rules *rules;
    bool *productive; /* [n_rules] some finite text matches */
    uint64_t n_visits;
};

static bool is_productive(struct pruning *p, const struct grammar_tree *tree)
{
    p->n_visits++;
    switch (tree->kind) {
    case GRAMMAR_LITERAL:
    case GRAMMAR_CLASS: return true;
    case GRAMMAR_RULE: return p->productive[tree->rule];
    case GRAMMAR_REPEAT: return tree->repeat.min == 0 || is_productive(p, tree->first);
    case GRAMMAR_SEQUENCE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next)
            if (!is_productive(p, child)) return false;
        return true;
    case GRAMMAR_CHOICE:
        for (const struct grammar_tree *child = tree->first; child; child = child->next)
            if (is_productive(p, child)) return true;
        return false;
    }
    return false;
}

/* Sweeps back and forth, so that chains of rules settle in one sweep whichever way they run. */
static bool settle_productive(struct pruning *p)
{
    uint32_t n = p->rules->n_rules;
    bool changed = true;
    for (bool forward = false; changed; forward = !forward) {
        changed = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rule = forward ? i : n - 1 - i;
            if (p->productive[rule] || !is_productive(p, p->rules->rules[rule].body)) continue;
            p->productive[rule] = changed = true;
        }
        if (p->n_visits > MAX_VISITS) return false;
    }
    return true;
}

/* Takes out of a tree whatever is not productive; false if that is all of it. */
static bool prune(struct pruning *p, struct grammar_tree *tree)
{
    bool some = false;
    switch (tree->kind) {
    case GRAMMAR_LITERAL:
    case GRAMMAR_CLASS: return true;
    case GRAMMAR_RULE: return p->productive[tree->rule];
    case GRAMMAR_REPEAT:
        if (prune(p, tree->first)) return true;
        tree->repeat.max = 0;
        return tree->repeat.min == 0;
    case GRAMMAR_SEQUENCE:
        for (struct grammar_tree *child = tree->first; child; child = child->next)
            if (!prune(p, child)) return false;
        return true;
    case GRAMMAR_CHOICE:
        for (struct grammar_tree *child = tree->first; child; child = child->next) {
            if (prune(p, child)) {
                some = true;
                continue;
            }
            *(child->previous ? &child->previous->next : &tree->first) = child->next;
            *(child->next ? &child->next->previous : &tree->last) = child->previous;
        }
        return some;
    }
    return false;
}

enum dse_status dse_grammar_build_finish(struct grammar_builder *b, uint32_t root, const char *field,
                                         struct dse_grammar **out, struct dse_error *err)
{
    struct pruning p = {.rules = &b->rules};
    *out = NULL;
    p.productive = take(b, b->rules.n_rules * sizeof *p.productive);
    if (!b->failed_memory && !b->failed_limit && !settle_productive(&p))
        dse_grammar_build_limit(b, "its rules depend on one another in too many ways");
    if (b->failed_memory) return dse_fail_memory(err, b->arena.used_bytes, field);
    if (b->failed_limit) return dse_fail_at(err, DSE_ERR_LIMIT, field, -1, "%s: %s", field, b->failed_limit);
    if (!p.productive[root])
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s: no text of finite length satisfies it", field);
    for (uint32_t i = 0; i < b->rules.n_rules; i++)
        if (!p.productive[i] || !prune(&p, b->rules.rules[i].body)) /* nothing refers to it any more */
            b->rules.rules[i].body = dse_grammar_text(b, "");
    if (b->failed_memory) return dse_fail_memory(err, b->arena.used_bytes, field);
    enum dse_status status = dse_grammar_compile_rules(&b->rules, root, out, err);
    if (status == DSE_OK || status == DSE_ERR_NO_MEMORY || !err) return status;
    struct dse_error copy = *err;
    return dse_fail_at(err, status, field, -1, "%s: %s", field, copy.message);
}

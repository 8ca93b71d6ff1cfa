/* Rules -> graph of byte ranges (struct dse_grammar). Called by whoever takes a grammar from a request.
 *
 * A tree is emitted back to front: emit(tree, next) returns the node where matching the tree begins and after which
 * matching goes on at next. Whatever {m,n} repeats becomes a rule of its own, so that nested repetitions add up
 * instead of multiplying. Never emits more than DSE_GRAMMAR_MAX_NODES.
 */
#include "text/grammar_internal.h"

#include <string.h>

#include "base/utf8.h"

#define MAX_ARENA_BYTES (96u << 20) /* a megabyte of source needs less */
#define N_RECENT        16

struct compiler {
    struct grammar_node *nodes;
    uint32_t n_nodes, capacity;
    bool failed_memory, failed_limit;
    /* Sequences of one class often end alike (80-BF): recently emitted nodes are used again. */
    uint32_t recent[N_RECENT], n_recent;
    uint32_t class_next, class_entry; /* of the class that is being emitted */
};

/* After a failure everything goes on with node 0; the flags are looked at in the end. */
static uint32_t new_node(struct compiler *c, enum grammar_op op, uint32_t next, uint32_t other)
{
    if (c->failed_memory || c->failed_limit) return 0;
    if (c->n_nodes == DSE_GRAMMAR_MAX_NODES) return c->failed_limit = true, 0;
    if (c->n_nodes == c->capacity) {
        uint32_t capacity = c->capacity ? 2 * c->capacity : 256;
        struct grammar_node *grown = dse_realloc(DSE_MEM_TEXT, c->nodes, capacity * sizeof *grown);
        if (!grown) return c->failed_memory = true, 0;
        c->nodes = grown;
        c->capacity = capacity;
    }
    c->nodes[c->n_nodes] = (struct grammar_node){.next = next, .other = other, .op = (uint8_t)op};
    return c->n_nodes++;
}

static uint32_t new_bytes(struct compiler *c, uint8_t lo, uint8_t hi, uint32_t next)
{
    uint32_t n = new_node(c, GRAMMAR_BYTES, next, 0);
    if (n) c->nodes[n].lo = lo, c->nodes[n].hi = hi;
    return n;
}

/* ---- character classes ------------------------------------------------------------------------------------- */

/* Splits until all sequences from lo to hi are a product of byte ranges: lengths must agree, and wherever leading
 * bytes differ the continuation bytes must span everything. */
bool dse_grammar_utf8_ranges(uint32_t lo, uint32_t hi, grammar_utf8_fn *fn, void *user)
{
    static const uint32_t length_end[] = {0x7F, 0x7FF, 0xFFFF};
    if (lo > hi) return true;
    if (lo <= 0xDFFF && hi >= 0xD800) { /* surrogates have no encoding */
        return (lo >= 0xD800 || dse_grammar_utf8_ranges(lo, 0xD7FF, fn, user)) &&
               (hi <= 0xDFFF || dse_grammar_utf8_ranges(0xE000, hi, fn, user));
    }
    for (int i = 0; i < 3; i++)
        if (lo <= length_end[i] && hi > length_end[i])
            return dse_grammar_utf8_ranges(lo, length_end[i], fn, user) &&
                   dse_grammar_utf8_ranges(length_end[i] + 1, hi, fn, user);
    for (int i = 1; i < 4; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((lo & ~mask) == (hi & ~mask) || hi <= 0x7F) break;
        if ((lo & mask) != 0)
            return dse_grammar_utf8_ranges(lo, lo | mask, fn, user) &&
                   dse_grammar_utf8_ranges((lo | mask) + 1, hi, fn, user);
        if ((hi & mask) != mask)
            return dse_grammar_utf8_ranges(lo, (hi & ~mask) - 1, fn, user) &&
                   dse_grammar_utf8_ranges(hi & ~mask, hi, fn, user);
    }
    char first[4], last[4];
    size_t n = dse_utf8_encode(lo, first);
    dse_utf8_encode(hi, last);
    return fn(user, (const uint8_t *)first, (const uint8_t *)last, (int)n);
}

static uint32_t shared_bytes(struct compiler *c, uint8_t lo, uint8_t hi, uint32_t next)
{
    for (uint32_t i = 0; i < c->n_recent && i < N_RECENT; i++) {
        const struct grammar_node *n = &c->nodes[c->recent[i]];
        if (n->lo == lo && n->hi == hi && n->next == next) return c->recent[i];
    }
    uint32_t n = new_bytes(c, lo, hi, next);
    if (n) c->recent[c->n_recent++ % N_RECENT] = n;
    return n;
}

static bool emit_utf8(void *user, const uint8_t lo[4], const uint8_t hi[4], int n_bytes)
{
    struct compiler *c = user;
    uint32_t node = c->class_next;
    for (int i = n_bytes - 1; i > 0; i--)
        node = shared_bytes(c, lo[i], hi[i], node);
    node = new_bytes(c, lo[0], hi[0], node);
    c->class_entry = c->class_entry ? new_node(c, GRAMMAR_SPLIT, node, c->class_entry) : node;
    return !c->failed_memory && !c->failed_limit;
}

static uint32_t emit_class(struct compiler *c, const struct grammar_tree *tree, uint32_t next)
{
    c->class_next = next;
    c->class_entry = 0;
    c->n_recent = 0;
    for (size_t i = 0; i < tree->class.n_ranges; i++)
        if (!dse_grammar_utf8_ranges(tree->class.ranges[i].lo, tree->class.ranges[i].hi, emit_utf8, c)) return 0;
    return c->class_entry;
}

/* ---- everything else --------------------------------------------------------------------------------------- */

static uint32_t emit(struct compiler *c, const struct grammar_tree *tree, uint32_t next);

/* x* : a split that enters x, which comes back to the split. */
static uint32_t emit_star(struct compiler *c, const struct grammar_tree *operand, uint32_t next, uint32_t *body)
{
    uint32_t loop = new_node(c, GRAMMAR_SPLIT, 0, next);
    *body = emit(c, operand, loop);
    if (loop) c->nodes[loop].next = *body;
    return loop;
}

static uint32_t emit_repeat(struct compiler *c, const struct grammar_tree *tree, uint32_t next)
{
    const struct grammar_tree *operand = tree->first;
    int min = tree->repeat.min, max = tree->repeat.max;
    uint32_t body = 0;
    if (max == 0) return next;
    if (max < 0 && min == 0) return emit_star(c, operand, next, &body);
    if (max < 0 && min == 1) return emit_star(c, operand, next, &body), body;
    if (max == 1) {
        body = emit(c, operand, next);
        return min == 1 ? body : new_node(c, GRAMMAR_SPLIT, body, next);
    }
    bool single = operand->kind == GRAMMAR_CLASS && operand->class.n_ranges == 1 && operand->class.ranges[0].hi < 128;
    uint32_t rule = single ? 0 : emit(c, operand, 0);
    uint32_t at = next;
    if (max < 0) {
        at = new_node(c, GRAMMAR_SPLIT, 0, next);
        body = single ? emit(c, operand, at) : new_node(c, GRAMMAR_CALL, at, rule);
        if (at) c->nodes[at].next = body;
    }
    for (int i = max < 0 ? min : max; i > 0 && !c->failed_limit && !c->failed_memory; i--) {
        at = single ? emit(c, operand, at) : new_node(c, GRAMMAR_CALL, at, rule);
        if (i > min) at = new_node(c, GRAMMAR_SPLIT, at, next);
    }
    return at;
}

static uint32_t emit(struct compiler *c, const struct grammar_tree *tree, uint32_t next)
{
    uint32_t at = next;
    switch (tree->kind) {
    case GRAMMAR_LITERAL:
        for (size_t i = tree->literal.n_bytes; i-- > 0;)
            at = new_bytes(c, tree->literal.bytes[i], tree->literal.bytes[i], at);
        return at;
    case GRAMMAR_CLASS: return emit_class(c, tree, next);
    case GRAMMAR_RULE: return new_node(c, GRAMMAR_CALL_RULE, next, tree->rule);
    case GRAMMAR_REPEAT: return emit_repeat(c, tree, next);
    case GRAMMAR_SEQUENCE:
        for (const struct grammar_tree *child = tree->last; child; child = child->previous)
            at = emit(c, child, at);
        return at;
    case GRAMMAR_CHOICE:
        at = emit(c, tree->last, next);
        for (const struct grammar_tree *child = tree->last->previous; child; child = child->previous) {
            uint32_t entry = emit(c, child, next);
            at = new_node(c, GRAMMAR_SPLIT, entry, at);
        }
        return at;
    }
    return at;
}

static void find_byte_classes(struct dse_grammar *grammar)
{
    bool starts[257] = {[0] = true};
    for (uint32_t i = 0; i < grammar->n_nodes; i++) {
        const struct grammar_node *n = &grammar->nodes[i];
        if (n->op == GRAMMAR_BYTES) starts[n->lo] = starts[n->hi + 1] = true;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (starts[byte]) grammar->byte_of_class[grammar->n_classes++] = (uint8_t)byte;
        grammar->class_of_byte[byte] = (uint8_t)(grammar->n_classes - 1);
    }
}

static enum dse_status emit_rules(const struct grammar_rules *rules, struct dse_grammar *grammar, uint32_t root,
                                  struct dse_error *err)
{
    uint32_t *entries = dse_arena_alloc(rules->arena, rules->n_rules * sizeof *entries);
    if (!entries) return dse_fail_memory(err, rules->n_rules, "the grammar");
    struct compiler c = {0};
    new_node(&c, GRAMMAR_RETURN, 0, 0);
    for (uint32_t i = 0; i < rules->n_rules; i++) {
        entries[i] = emit(&c, rules->rules[i].body, 0);
        if (c.failed_limit)
            return dse_free(c.nodes), dse_grammar_fail(err, DSE_ERR_LIMIT, rules->rules[i].line,
                                                       "rule '%s': the grammar expands to more than %u nodes",
                                                       rules->rules[i].name, DSE_GRAMMAR_MAX_NODES);
        if (c.failed_memory)
            return dse_free(c.nodes), dse_fail_memory(err, c.capacity * sizeof *c.nodes, "the grammar");
    }
    for (uint32_t i = 0; i < c.n_nodes; i++) {
        struct grammar_node *n = &c.nodes[i];
        if (n->op == GRAMMAR_CALL_RULE) n->op = GRAMMAR_CALL, n->other = entries[n->other];
    }
    grammar->nodes = c.nodes;
    grammar->n_nodes = c.n_nodes;
    grammar->start = entries[root];
    find_byte_classes(grammar);
    return DSE_OK;
}

/* A grammar whose first position already breaks a limit is refused here rather than at the first token. */
static enum dse_status check_start(const struct dse_grammar *grammar, struct dse_error *err)
{
    struct grammar_matcher matcher;
    enum dse_status status = dse_grammar_matcher_init(&matcher, grammar, err);
    if (status != DSE_OK) return status;
    if (dse_grammar_matcher_start(&matcher) <= GRAMMAR_DEAD)
        status = dse_grammar_fail(err, DSE_ERR_LIMIT, 0, "begins with more than %d alternatives or %d nested rules",
                                  DSE_GRAMMAR_MAX_STACKS, DSE_GRAMMAR_MAX_DEPTH);
    dse_grammar_matcher_deinit(&matcher);
    return status;
}

enum dse_status dse_grammar_compile_rules(const struct grammar_rules *rules, uint32_t root, struct dse_grammar **out,
                                          struct dse_error *err)
{
    *out = NULL;
    struct dse_grammar *grammar = dse_calloc(DSE_MEM_TEXT, 1, sizeof *grammar);
    if (!grammar) return dse_fail_memory(err, sizeof *grammar, "a grammar");
    atomic_init(&grammar->references, 1);
    pthread_mutex_init(&grammar->lock, NULL);
    enum dse_status status = dse_grammar_check_recursion(rules, err);
    if (status == DSE_OK) status = emit_rules(rules, grammar, root, err);
    if (status == DSE_OK) status = check_start(grammar, err);
    if (status != DSE_OK) {
        dse_grammar_unref(grammar);
        return status;
    }
    *out = grammar;
    return DSE_OK;
}

enum dse_status dse_grammar_compile(const char *source, size_t bytes, struct dse_grammar **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_arena arena;
    dse_arena_init(&arena, DSE_MEM_TEXT, MAX_ARENA_BYTES);
    struct grammar_rules rules = {.arena = &arena};
    enum dse_status status = dse_grammar_parse(source, bytes, &rules, err);
    uint32_t root = 0;
    while (root < rules.n_rules && strcmp(rules.rules[root].name, "root") != 0)
        root++;
    if (status == DSE_OK && root == rules.n_rules)
        status = dse_grammar_fail(err, DSE_ERR_INVALID, 0, "there is no rule 'root'");
    if (status == DSE_OK) status = dse_grammar_compile_rules(&rules, root, out, err);
    dse_arena_deinit(&arena);
    return status;
}

struct dse_grammar *dse_grammar_ref(struct dse_grammar *grammar)
{
    atomic_fetch_add_explicit(&grammar->references, 1, memory_order_relaxed);
    return grammar;
}

void dse_grammar_unref(struct dse_grammar *grammar)
{
    if (!grammar || atomic_fetch_sub_explicit(&grammar->references, 1, memory_order_acq_rel) != 1) return;
    dse_grammar_masks_free(grammar->masks);
    pthread_mutex_destroy(&grammar->lock);
    dse_free(grammar->nodes);
    dse_free(grammar);
}

/* GBNF text -> rules as syntax trees. Called by dse_grammar_compile.
 *
 * The text comes from a request: every construct is bounded (size, rules, nesting, repetition) and every error names
 * its line. Newlines mean nothing but the end of a comment; a rule ends where the next `name ::=` begins, so that
 * every layout that llama.cpp takes is taken here.
 */
#include "text/grammar_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#define NAME_SLOTS (2 * DSE_GRAMMAR_MAX_RULES) /* open addressing, at most half full; power of two */

struct parser {
    const char *text;
    size_t at, end;
    int line;
    struct grammar_rules *out;
    uint16_t *slots; /* 1 + rule number */
    struct dse_error *err;
};

enum dse_status(dse_grammar_fail)(struct dse_error *err, enum dse_status status, int line, const char *format, ...)
{
    char message[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (line <= 0) return dse_fail_at(err, status, "grammar", -1, "grammar: %s", message);
    status = dse_fail_at(err, status, "grammar", -1, "grammar line %d: %s", line, message);
    if (err) err->line = line;
    return status;
}

#define FAIL(p, ...)       dse_grammar_fail((p)->err, DSE_ERR_INVALID, (p)->line, __VA_ARGS__)
#define FAIL_LIMIT(p, ...) dse_grammar_fail((p)->err, DSE_ERR_LIMIT, (p)->line, __VA_ARGS__)

static enum dse_status fail_memory(struct parser *p)
{
    return dse_fail_memory(p->err, p->end, "the grammar");
}

static int peek(const struct parser *p)
{
    return p->at < p->end ? (unsigned char)p->text[p->at] : -1;
}

static bool is_name_char(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip_space(struct parser *p)
{
    for (; p->at < p->end; p->at++) {
        char c = p->text[p->at];
        if (c == '#')
            while (p->at + 1 < p->end && p->text[p->at + 1] != '\n')
                p->at++;
        else if (c == '\n')
            p->line++;
        else if (c != ' ' && c != '\t' && c != '\r')
            return;
    }
}

static size_t name_length(const struct parser *p)
{
    size_t n = 0;
    while (p->at + n < p->end && is_name_char((unsigned char)p->text[p->at + n]))
        n++;
    return n;
}

/* True at `name ::=`. */
static bool at_definition(const struct parser *p)
{
    struct parser ahead = *p;
    ahead.at += name_length(p);
    skip_space(&ahead);
    return ahead.end - ahead.at >= 3 && memcmp(ahead.text + ahead.at, "::=", 3) == 0;
}

static enum dse_status find_rule(struct parser *p, uint32_t *rule)
{
    const char *name = p->text + p->at;
    size_t n = name_length(p);
    if (n == 0) return FAIL(p, "expected the name of a rule");
    if (n > DSE_GRAMMAR_MAX_NAME_BYTES)
        return FAIL_LIMIT(p, "the name of a rule is longer than %d bytes", DSE_GRAMMAR_MAX_NAME_BYTES);
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    uint32_t slot = hash % NAME_SLOTS;
    for (; p->slots[slot]; slot = (slot + 1) % NAME_SLOTS) {
        const char *known = p->out->rules[p->slots[slot] - 1].name;
        if (strlen(known) == n && memcmp(known, name, n) == 0) break;
    }
    if (!p->slots[slot]) {
        if (p->out->n_rules == DSE_GRAMMAR_MAX_RULES) return FAIL_LIMIT(p, "more than %d rules", DSE_GRAMMAR_MAX_RULES);
        char *copy = dse_arena_strndup(p->out->arena, name, n);
        if (!copy) return fail_memory(p);
        p->out->rules[p->out->n_rules] = (struct grammar_rule){.name = copy, .line = p->line};
        p->slots[slot] = (uint16_t)++p->out->n_rules;
    }
    *rule = p->slots[slot] - 1u;
    p->at += n;
    return DSE_OK;
}

static struct grammar_tree *new_tree(struct parser *p, enum grammar_tree_kind kind)
{
    struct grammar_tree *tree = dse_arena_alloc(p->out->arena, sizeof *tree);
    if (!tree) return fail_memory(p), NULL;
    tree->kind = kind;
    tree->depth = 1;
    return tree;
}

static enum dse_status append_child(struct parser *p, struct grammar_tree *parent, struct grammar_tree *child)
{
    if (!grammar_tree_append(parent, child)) return FAIL_LIMIT(p, "nested deeper than %d", DSE_GRAMMAR_MAX_TREE_DEPTH);
    return DSE_OK;
}

static enum dse_status parse_hex(struct parser *p, int digits, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int c = peek(p), digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return FAIL(p, "an escape needs %d hexadecimal digits", digits);
        value = value << 4 | (uint32_t)digit;
    }
    char unused[4];
    if (dse_utf8_encode(value, unused) == 0) return FAIL(p, "U+%04X is not a character", (unsigned)value);
    *out = value;
    return DSE_OK;
}

/* One character of a literal or class; the caller has checked that there is one. */
static enum dse_status parse_char(struct parser *p, uint32_t *out)
{
    if (peek(p) != '\\') {
        size_t used;
        if (peek(p) == '\n') p->line++;
        *out = dse_utf8_decode(p->text + p->at, p->end - p->at, &used);
        p->at += used;
        return DSE_OK;
    }
    p->at++;
    int c = peek(p);
    if (c < 0) return FAIL(p, "the grammar ends inside an escape");
    p->at++;
    switch (c) {
    case 'x': return parse_hex(p, 2, out);
    case 'u': return parse_hex(p, 4, out);
    case 'U': return parse_hex(p, 8, out);
    case 'n': return *out = '\n', DSE_OK;
    case 't': return *out = '\t', DSE_OK;
    case 'r': return *out = '\r', DSE_OK;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^': return *out = (uint32_t)c, DSE_OK;
    default: break;
    }
    if (c > ' ' && c < 127) return FAIL(p, "unknown escape \\%c", c);
    return FAIL(p, "unknown escape");
}

static enum dse_status parse_literal(struct parser *p, struct grammar_tree **out)
{
    int first_line = p->line;
    p->at++;
    /* An escape never yields more bytes than it is written with, so the rest of the text bounds the literal; find the
     * closing quote first to take just what is needed. */
    size_t close = p->at;
    while (close < p->end && p->text[close] != '"')
        close += p->text[close] == '\\' ? 2 : 1;
    if (close >= p->end) return FAIL(p, "a literal is never closed with \"");
    struct grammar_tree *tree = new_tree(p, GRAMMAR_LITERAL);
    uint8_t *bytes = tree ? dse_arena_alloc(p->out->arena, close - p->at + 4) : NULL;
    if (!bytes) return fail_memory(p);
    size_t n = 0;
    while (p->at < close) {
        uint32_t code_point;
        enum dse_status status = parse_char(p, &code_point);
        if (status != DSE_OK) return status;
        char encoded[4];
        size_t used = dse_utf8_encode(code_point, encoded);
        memcpy(bytes + n, encoded, used);
        n += used;
    }
    if (p->at != close) {
        p->line = first_line;
        return FAIL(p, "an escape runs past the end of its literal");
    }
    p->at++;
    tree->literal.bytes = bytes;
    tree->literal.n_bytes = n;
    *out = tree;
    return DSE_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct grammar_range *x = a, *y = b;
    return x->lo != y->lo ? (x->lo < y->lo ? -1 : 1) : x->hi < y->hi ? -1 : x->hi > y->hi;
}

size_t dse_grammar_normalise_ranges(struct grammar_range *ranges, size_t n, bool negated)
{
    qsort(ranges, n, sizeof *ranges, compare_ranges);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept && ranges[i].lo <= ranges[kept - 1].hi + 1) {
            if (ranges[i].hi > ranges[kept - 1].hi) ranges[kept - 1].hi = ranges[i].hi;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    if (!negated) return kept;
    uint32_t low = 0;
    size_t gaps = 0;
    for (size_t i = 0; i < kept; i++) {
        struct grammar_range range = ranges[i]; /* the gap before it may be stored in its place */
        if (range.lo > low) ranges[gaps++] = (struct grammar_range){low, range.lo - 1};
        low = range.hi + 1;
    }
    if (low <= 0x10FFFF) ranges[gaps++] = (struct grammar_range){low, 0x10FFFF};
    return gaps;
}

static enum dse_status parse_class(struct parser *p, struct grammar_tree **out)
{
    p->at++;
    bool negated = peek(p) == '^';
    if (negated) p->at++;
    size_t close = p->at;
    while (close < p->end && p->text[close] != ']')
        close += p->text[close] == '\\' ? 2 : 1;
    if (close >= p->end) return FAIL(p, "a character class is never closed with ]");
    struct grammar_tree *tree = new_tree(p, GRAMMAR_CLASS);
    struct grammar_range *ranges = tree ? dse_arena_alloc(p->out->arena, (close - p->at + 1) * sizeof *ranges) : NULL;
    if (!ranges) return fail_memory(p);
    size_t n = 0;
    while (p->at < close) {
        enum dse_status status = parse_char(p, &ranges[n].lo);
        if (status != DSE_OK) return status;
        ranges[n].hi = ranges[n].lo;
        if (p->at + 1 < close && p->text[p->at] == '-') {
            p->at++;
            status = parse_char(p, &ranges[n].hi);
            if (status != DSE_OK) return status;
            if (ranges[n].hi < ranges[n].lo)
                return FAIL(p, "the range U+%04X-U+%04X is reversed", (unsigned)ranges[n].lo, (unsigned)ranges[n].hi);
        }
        n++;
    }
    if (p->at != close) return FAIL(p, "an escape runs past the end of its character class");
    p->at++;
    n = dse_grammar_normalise_ranges(ranges, n, negated);
    if (n == 0 || (n == 1 && ranges[0].lo >= 0xD800 && ranges[0].hi <= 0xDFFF))
        return FAIL(p, "a character class matches nothing");
    tree->class.ranges = ranges;
    tree->class.n_ranges = n;
    *out = tree;
    return DSE_OK;
}

static enum dse_status parse_bound(struct parser *p, int *out)
{
    int value = 0;
    if (peek(p) < '0' || peek(p) > '9') return FAIL(p, "expected a number in {m,n}");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        value = value * 10 + (peek(p) - '0');
        if (value > DSE_GRAMMAR_MAX_REPEAT) return FAIL_LIMIT(p, "more than %d repetitions", DSE_GRAMMAR_MAX_REPEAT);
    }
    *out = value;
    return DSE_OK;
}

static enum dse_status parse_repeat_bounds(struct parser *p, int *min, int *max)
{
    int c = peek(p);
    p->at++;
    *min = c == '+';
    *max = c == '?' ? 1 : -1;
    if (c != '{') return DSE_OK;
    skip_space(p);
    enum dse_status status = parse_bound(p, min);
    if (status != DSE_OK) return status;
    *max = *min;
    skip_space(p);
    if (peek(p) == ',') {
        p->at++;
        skip_space(p);
        *max = -1;
        if (peek(p) != '}') {
            status = parse_bound(p, max);
            if (status != DSE_OK) return status;
            if (*max < *min) return FAIL(p, "{%d,%d}: the upper bound is below the lower one", *min, *max);
            skip_space(p);
        }
    }
    if (peek(p) != '}') return FAIL(p, "a repetition {m,n} is never closed with }");
    p->at++;
    return DSE_OK;
}

/* Replaces the last child of a sequence by its repetition. */
static enum dse_status parse_repeat(struct parser *p, struct grammar_tree *sequence)
{
    struct grammar_tree *operand = sequence->last;
    if (!operand) return FAIL(p, "'%c' has nothing to repeat", peek(p));
    struct grammar_tree *tree = new_tree(p, GRAMMAR_REPEAT);
    if (!tree) return DSE_ERR_NO_MEMORY;
    enum dse_status status = parse_repeat_bounds(p, &tree->repeat.min, &tree->repeat.max);
    if (status != DSE_OK) return status;
    sequence->last = operand->previous;
    if (sequence->last)
        sequence->last->next = NULL;
    else
        sequence->first = NULL;
    operand->previous = NULL;
    status = append_child(p, tree, operand);
    return status == DSE_OK ? append_child(p, sequence, tree) : status;
}

static enum dse_status parse_choice(struct parser *p, int n_parens, struct grammar_tree **out);

static enum dse_status parse_group(struct parser *p, int n_parens, struct grammar_tree **out)
{
    int open_line = p->line;
    if (n_parens == DSE_GRAMMAR_MAX_PARENS)
        return FAIL_LIMIT(p, "more than %d nested parentheses", DSE_GRAMMAR_MAX_PARENS);
    p->at++;
    enum dse_status status = parse_choice(p, n_parens + 1, out);
    if (status != DSE_OK) return status;
    if (peek(p) != ')') {
        p->line = open_line;
        return FAIL(p, "'(' is never closed with ')'");
    }
    p->at++;
    return DSE_OK;
}

static enum dse_status parse_item(struct parser *p, int n_parens, struct grammar_tree **out)
{
    static const struct grammar_range any[] = {{0, 0x10FFFF}};
    int c = peek(p);
    if (c == '"') return parse_literal(p, out);
    if (c == '[') return parse_class(p, out);
    if (c == '(') return parse_group(p, n_parens, out);
    if (c == '.' || is_name_char(c)) {
        struct grammar_tree *tree = new_tree(p, c == '.' ? GRAMMAR_CLASS : GRAMMAR_RULE);
        if (!tree) return DSE_ERR_NO_MEMORY;
        *out = tree;
        if (c != '.') return find_rule(p, &tree->rule);
        tree->class.ranges = any;
        tree->class.n_ranges = 1;
        p->at++;
        return DSE_OK;
    }
    if (c > ' ' && c < 127) return FAIL(p, "unexpected '%c'", c);
    return FAIL(p, "unexpected byte 0x%02X", (unsigned)c);
}

static enum dse_status parse_sequence(struct parser *p, int n_parens, struct grammar_tree **out)
{
    struct grammar_tree *sequence = new_tree(p, GRAMMAR_SEQUENCE);
    if (!sequence) return DSE_ERR_NO_MEMORY;
    for (;;) {
        skip_space(p);
        int c = peek(p);
        enum dse_status status;
        if (c < 0 || c == '|' || c == ')' || (is_name_char(c) && at_definition(p))) break;
        if (c == '*' || c == '+' || c == '?' || c == '{') {
            status = parse_repeat(p, sequence);
        } else {
            struct grammar_tree *item = NULL;
            status = parse_item(p, n_parens, &item);
            if (status == DSE_OK) status = append_child(p, sequence, item);
        }
        if (status != DSE_OK) return status;
    }
    *out = sequence;
    if (sequence->first && sequence->first == sequence->last) *out = sequence->first; /* keeps the tree flat */
    return DSE_OK;
}

static enum dse_status parse_choice(struct parser *p, int n_parens, struct grammar_tree **out)
{
    struct grammar_tree *choice = NULL;
    for (;;) {
        struct grammar_tree *sequence = NULL;
        enum dse_status status = parse_sequence(p, n_parens, &sequence);
        if (status != DSE_OK) return status;
        if (!choice && peek(p) != '|') {
            *out = sequence;
            return DSE_OK;
        }
        if (!choice && !(choice = new_tree(p, GRAMMAR_CHOICE))) return DSE_ERR_NO_MEMORY;
        status = append_child(p, choice, sequence);
        if (status != DSE_OK) return status;
        if (peek(p) != '|') break;
        p->at++;
    }
    *out = choice;
    return DSE_OK;
}

static enum dse_status parse_definition(struct parser *p)
{
    uint32_t number = 0;
    enum dse_status status = find_rule(p, &number);
    if (status != DSE_OK) return status;
    struct grammar_rule *rule = &p->out->rules[number];
    if (rule->body) return FAIL(p, "rule '%s' is defined twice, first on line %d", rule->name, rule->line);
    int line = p->line;
    skip_space(p);
    if (p->end - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0)
        return FAIL(p, "expected ::= after the name '%s'", rule->name);
    p->at += 3;
    rule->line = line;
    status = parse_choice(p, 0, &rule->body);
    if (status == DSE_OK && peek(p) == ')') return FAIL(p, "')' without '('");
    return status;
}

static enum dse_status parse_all(struct parser *p)
{
    for (skip_space(p); p->at < p->end; skip_space(p)) {
        if (!is_name_char(peek(p))) return FAIL(p, "expected `name ::=`");
        enum dse_status status = parse_definition(p);
        if (status != DSE_OK) return status;
    }
    for (uint32_t i = 0; i < p->out->n_rules; i++) {
        const struct grammar_rule *rule = &p->out->rules[i];
        if (!rule->body)
            return dse_grammar_fail(p->err, DSE_ERR_INVALID, rule->line, "rule '%s' is used but not defined",
                                    rule->name);
    }
    return DSE_OK;
}

enum dse_status dse_grammar_parse(const char *source, size_t bytes, struct grammar_rules *rules, struct dse_error *err)
{
    if (bytes > DSE_GRAMMAR_MAX_SOURCE_BYTES)
        return dse_grammar_fail(err, DSE_ERR_LIMIT, 0, "%zu bytes, more than %u", bytes, DSE_GRAMMAR_MAX_SOURCE_BYTES);
    struct parser p = {.text = source, .end = bytes, .line = 1, .out = rules, .err = err};
    for (size_t at = 0, used; at < bytes; at += used) {
        if (dse_utf8_decode(source + at, bytes - at, &used) == DSE_UTF8_INVALID) return FAIL(&p, "not valid UTF-8");
        p.line += source[at] == '\n';
    }
    p.line = 1;
    rules->rules = dse_arena_alloc(rules->arena, DSE_GRAMMAR_MAX_RULES * sizeof *rules->rules);
    p.slots = dse_arena_alloc(rules->arena, NAME_SLOTS * sizeof *p.slots);
    if (!rules->rules || !p.slots) return fail_memory(&p);
    return parse_all(&p);
}

/* Regular expressions -> grammar trees (see regex_grammar.h). Patterns come from requests: every construct is
 * bounded. */
#include "text/regex_grammar.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define MAX_CLASS_RANGES 128

struct regex {
    struct json_text *t;
    struct grammar_builder *b;
    const char *text, *field;
    size_t at, end;
    int depth;
    enum regex_target target;
    struct dse_error *err;
};

struct class
{
    struct grammar_range ranges[MAX_CLASS_RANGES + 1];
    size_t n;
};

static enum dse_status fail(struct regex *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static enum dse_status fail(struct regex *r, const char *format, ...)
{
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return dse_fail_at(r->err, DSE_ERR_INVALID, r->field, -1, "%s: at byte %zu of the pattern: %s", r->field, r->at,
                       message);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum dse_status try_status = (call);                                                                           \
        if (try_status != DSE_OK) return try_status;                                                                   \
    } while (0)

static int peek(const struct regex *r)
{
    return r->at < r->end ? (unsigned char)r->text[r->at] : -1;
}

static bool skip(struct regex *r, const char *text)
{
    size_t n = strlen(text);
    if (r->end - r->at < n || memcmp(r->text + r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

static uint64_t add_length(uint64_t a, uint64_t b)
{
    return a > REGEX_UNBOUNDED - b ? REGEX_UNBOUNDED : a + b;
}

static uint64_t times_length(uint64_t a, uint64_t n)
{
    uint64_t product;
    if (a == 0 || n == 0) return 0;
    return __builtin_mul_overflow(a, n, &product) ? REGEX_UNBOUNDED : product;
}

/* ---- classes -------------------------------------------------------------------------------------------------- */

static struct grammar_tree *class_tree(struct regex *r, const struct grammar_range *ranges, size_t n)
{
    return r->target == REGEX_JSON_STRING ? dse_json_class(r->t, ranges, n) : dse_grammar_class(r->b, ranges, n);
}

static bool add_range(struct class *c, uint32_t lo, uint32_t hi)
{
    if (c->n == MAX_CLASS_RANGES) return false;
    c->ranges[c->n++] = (struct grammar_range){lo, hi};
    return true;
}

/* \d \D \w \W \s \S; false if it is none of them or there is no room. */
static bool add_named(struct class *c, int name)
{
    static const struct grammar_range digits[] = {{'0', '9'}},
                                      words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                      spaces[] = {{9, 13},          {32, 32},         {0xA0, 0xA0},
                                                  {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                                  {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                                  {0xFEFF, 0xFEFF}};
    struct grammar_range named[12];
    size_t n;
    switch (name | 0x20) {
    case 'd': memcpy(named, digits, sizeof digits), n = 1; break;
    case 'w': memcpy(named, words, sizeof words), n = 4; break;
    case 's': memcpy(named, spaces, sizeof spaces), n = 10; break;
    default: return false;
    }
    n = dse_grammar_normalise_ranges(named, n, !(name & 0x20));
    for (size_t i = 0; i < n; i++)
        if (!add_range(c, named[i].lo, named[i].hi)) return false;
    return true;
}

static bool is_named(int c)
{
    return c > 0 && strchr("dDwWsS", c) != NULL;
}

static enum dse_status parse_hex(struct regex *r, int min, int max, uint32_t *out)
{
    uint32_t value = 0;
    int n = 0;
    for (; n < max; n++, r->at++) {
        int c = peek(r), digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (c | 0x20) - 'a' + 10;
        else
            break;
        value = value << 4 | (uint32_t)digit;
    }
    if (n < min) return fail(r, "an escape needs %d hexadecimal digits", min);
    *out = value;
    return DSE_OK;
}

static enum dse_status parse_unicode(struct regex *r, uint32_t *out)
{
    char unused[4];
    if (skip(r, "{")) {
        TRY(parse_hex(r, 1, 6, out));
        if (!skip(r, "}")) return fail(r, "\\u{ is never closed with }");
    } else {
        TRY(parse_hex(r, 4, 4, out));
        uint32_t low = 0;
        if (*out >= 0xD800 && *out <= 0xDBFF && skip(r, "\\u")) {
            TRY(parse_hex(r, 4, 4, &low));
            if (low < 0xDC00 || low > 0xDFFF) return fail(r, "\\u%04X stands alone", (unsigned)*out);
            *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    if (dse_utf8_encode(*out, unused) == 0) return fail(r, "U+%04X is not a character", (unsigned)*out);
    return DSE_OK;
}

/* One character, behind a backslash or not; named classes have been looked for before. */
static enum dse_status parse_char(struct regex *r, bool in_class, uint32_t *out)
{
    if (!skip(r, "\\")) {
        size_t used;
        *out = dse_utf8_decode(r->text + r->at, r->end - r->at, &used);
        r->at += used;
        return *out == DSE_UTF8_INVALID ? fail(r, "not valid UTF-8") : DSE_OK;
    }
    int c = peek(r);
    if (c < 0) return fail(r, "it ends inside an escape");
    r->at++;
    switch (c) {
    case 'n': return *out = '\n', DSE_OK;
    case 'r': return *out = '\r', DSE_OK;
    case 't': return *out = '\t', DSE_OK;
    case 'f': return *out = '\f', DSE_OK;
    case 'v': return *out = '\v', DSE_OK;
    case 'x': return parse_hex(r, 2, 2, out);
    case 'u': return parse_unicode(r, out);
    case 'b':
        if (in_class) return *out = '\b', DSE_OK;
        break;
    case '0':
        if (peek(r) < '0' || peek(r) > '9') return *out = 0, DSE_OK;
        break;
    default: break;
    }
    bool letter = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c >= 0x80;
    if (letter) return c < 0x80 ? fail(r, "\\%c is not supported", c) : fail(r, "this escape is not supported");
    *out = (uint32_t)c;
    return DSE_OK;
}

static enum dse_status parse_class_item(struct regex *r, struct class *c)
{
    if (peek(r) == '\\' && r->at + 1 < r->end && is_named(r->text[r->at + 1])) {
        r->at += 2;
        return add_named(c, r->text[r->at - 1]) ? DSE_OK : fail(r, "a class has too many parts");
    }
    uint32_t lo, hi;
    TRY(parse_char(r, true, &lo));
    hi = lo;
    if (peek(r) == '-' && r->at + 1 < r->end && r->text[r->at + 1] != ']') {
        r->at++;
        if (peek(r) == '\\' && r->at + 1 < r->end && is_named(r->text[r->at + 1]))
            return fail(r, "a range cannot end in \\%c", r->text[r->at + 1]);
        TRY(parse_char(r, true, &hi));
        if (hi < lo) return fail(r, "the range U+%04X-U+%04X is reversed", (unsigned)lo, (unsigned)hi);
    }
    return add_range(c, lo, hi) ? DSE_OK : fail(r, "a class has too many parts");
}

static enum dse_status parse_class(struct regex *r, struct grammar_tree **out)
{
    struct class c = {.n = 0};
    bool negated = skip(r, "^");
    while (peek(r) != ']') {
        if (peek(r) < 0) return fail(r, "'[' is never closed with ']'");
        TRY(parse_class_item(r, &c));
    }
    r->at++;
    c.n = dse_grammar_normalise_ranges(c.ranges, c.n, negated);
    *out = class_tree(r, c.ranges, c.n);
    return DSE_OK;
}

/* ---- structure ------------------------------------------------------------------------------------------------ */

static enum dse_status parse_choice(struct regex *r, bool top, struct regex_result *out);

static enum dse_status parse_group(struct regex *r, struct regex_result *out)
{
    size_t open = r->at++;
    if (r->depth == DSE_REGEX_MAX_GROUPS) {
        r->at = open;
        return fail(r, "more than %d groups inside one another (DSE_REGEX_MAX_GROUPS)", DSE_REGEX_MAX_GROUPS);
    }
    if (skip(r, "?") && !skip(r, ":")) {
        bool named = skip(r, "<") && peek(r) != '=' && peek(r) != '!';
        while (named && peek(r) != '>' && peek(r) >= 0)
            r->at++;
        if (!named || !skip(r, ">")) {
            r->at = open;
            return fail(r, "look around and flags are not supported, only (…), (?:…) and (?<name>…)");
        }
    }
    r->depth++;
    TRY(parse_choice(r, false, out));
    r->depth--;
    if (!skip(r, ")")) {
        r->at = open;
        return fail(r, "'(' is never closed with ')'");
    }
    return DSE_OK;
}

static struct grammar_tree *any_but_line_ends(struct regex *r)
{
    static const struct grammar_range any[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, 0x10FFFF}};
    return class_tree(r, any, sizeof any / sizeof *any);
}

static struct grammar_tree *named_class(struct regex *r, int name)
{
    struct class c = {.n = 0};
    add_named(&c, name);
    c.n = dse_grammar_normalise_ranges(c.ranges, c.n, false);
    return class_tree(r, c.ranges, c.n);
}

static enum dse_status parse_atom(struct regex *r, struct regex_result *out)
{
    int c = peek(r);
    *out = (struct regex_result){.min = 1, .max = 1};
    if (c == '(') return parse_group(r, out);
    if (c == '^' || c == '$') return fail(r, "'%c' is supported at the edges of the whole pattern only", c);
    if (c == '*' || c == '+' || c == '?') return fail(r, "'%c' has nothing to repeat", c);
    if (c == '{' || c == '}' || c == ']') return fail(r, "'%c' must be written as \\%c", c, c);
    if (skip(r, "[")) return parse_class(r, &out->tree);
    if (skip(r, ".")) {
        out->tree = any_but_line_ends(r);
        return DSE_OK;
    }
    if (c == '\\' && r->at + 1 < r->end && is_named(r->text[r->at + 1])) {
        out->tree = named_class(r, r->text[r->at + 1]);
        r->at += 2;
        return DSE_OK;
    }
    struct grammar_range one = {0};
    TRY(parse_char(r, false, &one.lo));
    one.hi = one.lo;
    out->tree = class_tree(r, &one, 1);
    return DSE_OK;
}

static enum dse_status parse_bound(struct regex *r, int *out)
{
    int value = 0;
    if (peek(r) < '0' || peek(r) > '9') return fail(r, "expected a number in {m,n}");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        value = value * 10 + (peek(r) - '0');
        if (value > DSE_REGEX_MAX_REPEAT)
            return fail(r, "more than %d repetitions (DSE_REGEX_MAX_REPEAT)", DSE_REGEX_MAX_REPEAT);
    }
    *out = value;
    return DSE_OK;
}

static enum dse_status parse_quantifier(struct regex *r, struct regex_result *out)
{
    int c = peek(r), min = c == '+', max = c == '?' ? 1 : -1;
    if (c != '*' && c != '+' && c != '?' && c != '{') return DSE_OK;
    r->at++;
    if (c == '{') {
        TRY(parse_bound(r, &min));
        max = min;
        if (skip(r, ",")) {
            max = -1;
            if (peek(r) != '}') TRY(parse_bound(r, &max));
            if (max >= 0 && max < min) return fail(r, "{%d,%d}: the upper bound is below the lower one", min, max);
        }
        if (!skip(r, "}")) return fail(r, "a repetition {m,n} is never closed with }");
    }
    skip(r, "?");
    int next = peek(r);
    if (next == '*' || next == '+' || next == '?' || next == '{')
        return fail(r, "'%c' behind a repetition is not supported", next);
    bool single = out->min == 1 && out->max == 1;
    out->tree = dse_grammar_repeat(r->b, out->tree, min, max);
    out->repeat = single ? out->tree : NULL;
    out->fixed = 0;
    out->min = times_length(out->min, (uint64_t)min);
    out->max = max < 0 ? (out->max ? REGEX_UNBOUNDED : 0) : times_length(out->max, (uint64_t)max);
    return DSE_OK;
}

static void add_part(struct regex *r, struct regex_result *out, const struct regex_result *part, int *n_open)
{
    dse_grammar_add(r->b, out->tree, part->tree);
    out->min = add_length(out->min, part->min);
    out->max = add_length(out->max, part->max);
    if (part->min == part->max) {
        out->fixed = add_length(out->fixed, part->min);
        return;
    }
    out->repeat = ++*n_open == 1 ? part->repeat : NULL;
    out->fixed = add_length(out->fixed, part->fixed);
}

static void add_anything(struct regex *r, struct regex_result *out, int *n_open)
{
    struct regex_result any = {.max = REGEX_UNBOUNDED};
    any.tree = any.repeat = dse_grammar_repeat(r->b, dse_json_character(r->t), 0, -1);
    add_part(r, out, &any, n_open);
}

/* One alternative. At the top it may be tied to the edges of the text; where it is not, anything may stand there. */
static enum dse_status parse_sequence(struct regex *r, bool top, struct regex_result *out)
{
    bool search = top && r->target == REGEX_JSON_STRING;
    int n_open = 0;
    *out = (struct regex_result){.tree = dse_grammar_sequence(r->b)};
    bool anchored = top && skip(r, "^");
    if (search && !anchored) add_anything(r, out, &n_open);
    anchored = false;
    while (peek(r) >= 0 && peek(r) != '|' && peek(r) != ')') {
        bool last = r->at + 1 == r->end || r->text[r->at + 1] == '|';
        if (top && last && skip(r, "$")) {
            anchored = true;
            break;
        }
        struct regex_result part;
        TRY(parse_atom(r, &part));
        TRY(parse_quantifier(r, &part));
        add_part(r, out, &part, &n_open);
    }
    if (search && !anchored) add_anything(r, out, &n_open);
    return DSE_OK;
}

static enum dse_status parse_choice(struct regex *r, bool top, struct regex_result *out)
{
    struct grammar_tree *choice = dse_grammar_choice(r->b);
    int n_branches = 0;
    *out = (struct regex_result){.min = REGEX_UNBOUNDED};
    do {
        struct regex_result branch;
        TRY(parse_sequence(r, top, &branch));
        dse_grammar_add(r->b, choice, branch.tree);
        if (branch.min < out->min) out->min = branch.min;
        if (branch.max > out->max) out->max = branch.max;
        out->repeat = ++n_branches == 1 ? branch.repeat : NULL;
        out->fixed = branch.fixed;
    } while (skip(r, "|"));
    out->tree = choice;
    return DSE_OK;
}

enum dse_status dse_regex_tree(struct json_text *t, const char *pattern, size_t bytes, enum regex_target target,
                               const char *field, struct regex_result *out, struct dse_error *err)
{
    struct regex r = {.t = t, .b = t->b, .text = pattern, .end = bytes, .target = target, .field = field, .err = err};
    if (bytes > DSE_REGEX_MAX_BYTES)
        return dse_fail_at(err, DSE_ERR_LIMIT, field, -1, "%s: %zu bytes; at most %d (DSE_REGEX_MAX_BYTES)", field,
                           bytes, DSE_REGEX_MAX_BYTES);
    TRY(parse_choice(&r, true, out));
    return r.at == r.end ? DSE_OK : fail(&r, "')' without '('");
}

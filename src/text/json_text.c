/* JSON strings as grammar trees (see json_text.h). */
#include "text/json_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static struct grammar_tree *one_char(struct grammar_builder *b, const char *characters)
{
    struct grammar_range ranges[24];
    size_t n = 0;
    for (const char *at = characters; *at && n < sizeof ranges / sizeof *ranges; at++) {
        unsigned char lo = (unsigned char)*at, hi = lo;
        if (at[1] == '-') hi = (unsigned char)at[2], at += 2;
        ranges[n++] = (struct grammar_range){lo, hi};
    }
    return dse_grammar_class(b, ranges, n);
}

static struct grammar_tree *hex_digits(struct grammar_builder *b, int count)
{
    return dse_grammar_repeat(b, one_char(b, "0-9A-Fa-f"), count, count);
}

/* ---- free text ------------------------------------------------------------------------------------------------ */

/* What follows \u: a code point of its own, or a pair of surrogates. */
static struct grammar_tree *unicode_escape(struct grammar_builder *b)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    dse_grammar_add(b, choice, GRAMMAR_SEQ(b, one_char(b, "0-9A-CE-Fa-ce-f"), hex_digits(b, 3)));
    dse_grammar_add(b, choice, GRAMMAR_SEQ(b, one_char(b, "Dd"), one_char(b, "0-7"), hex_digits(b, 2)));
    dse_grammar_add(b, choice,
                    GRAMMAR_SEQ(b, one_char(b, "Dd"), one_char(b, "89ABab"), hex_digits(b, 2),
                                dse_grammar_text(b, "\\u"), one_char(b, "Dd"), one_char(b, "C-Fc-f"),
                                hex_digits(b, 2)));
    return GRAMMAR_SEQ(b, dse_grammar_text(b, "u"), choice);
}

struct grammar_tree *dse_json_character(struct json_text *t)
{
    static const struct grammar_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    struct grammar_builder *b = t->b;
    if (!t->character) {
        uint32_t rule = dse_grammar_rule(b, "character");
        struct grammar_tree *escape = dse_grammar_choice(b), *choice = dse_grammar_choice(b);
        dse_grammar_add(b, escape, one_char(b, "\"\\/bfnrt"));
        dse_grammar_add(b, escape, unicode_escape(b));
        dse_grammar_add(b, choice, dse_grammar_class(b, plain, 3));
        dse_grammar_add(b, choice, GRAMMAR_SEQ(b, dse_grammar_text(b, "\\"), escape));
        dse_grammar_define(b, rule, choice);
        t->character = rule + 1;
    }
    return dse_grammar_call(b, t->character - 1);
}

struct grammar_tree *dse_json_string(struct json_text *t)
{
    struct grammar_builder *b = t->b;
    if (!t->string) {
        struct grammar_tree *content = dse_grammar_repeat(b, dse_json_character(t), 0, -1);
        uint32_t rule = dse_grammar_rule(b, "string");
        dse_grammar_define(b, rule, GRAMMAR_SEQ(b, dse_grammar_text(b, "\""), content, dse_grammar_text(b, "\"")));
        t->string = rule + 1;
    }
    return dse_grammar_call(b, t->string - 1);
}

/* ---- characters that matter ----------------------------------------------------------------------------------- */

/* The one way to write a character that cannot stand for itself; its length, 0: it can. */
static size_t escape_of(uint32_t c, char out[6])
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt", digits[] = "0123456789abcdef";
    const char *found = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (!found && c >= 0x20) return 0;
    out[0] = '\\';
    out[1] = found ? to[found - from] : 'u';
    if (found) return 2;
    out[2] = out[3] = '0';
    out[4] = digits[c >> 4];
    out[5] = digits[c & 15];
    return 6;
}

static bool contains(const struct grammar_range *ranges, size_t n_ranges, uint32_t c)
{
    for (size_t i = 0; i < n_ranges; i++)
        if (ranges[i].lo <= c && c <= ranges[i].hi) return true;
    return false;
}

static struct grammar_tree *any_control(struct json_text *t)
{
    struct grammar_builder *b = t->b;
    if (!t->control) {
        uint32_t rule = dse_grammar_rule(b, "control");
        struct grammar_tree *choice = dse_grammar_choice(b);
        for (uint32_t c = 0; c < 0x20; c++) {
            char text[6];
            dse_grammar_add(b, choice, dse_grammar_literal(b, text, escape_of(c, text)));
        }
        dse_grammar_define(b, rule, choice);
        t->control = rule + 1;
    }
    return dse_grammar_call(b, t->control - 1);
}

struct grammar_tree *dse_json_class(struct json_text *t, const struct grammar_range *ranges, size_t n_ranges)
{
    struct grammar_builder *b = t->b;
    struct grammar_tree *choice = dse_grammar_choice(b);
    struct grammar_range *plain = dse_arena_alloc(&b->arena, (n_ranges + 3) * sizeof *plain);
    if (!plain) return b->failed_memory = true, NULL;
    size_t n = 0;
    for (size_t i = 0; i < n_ranges; i++) { /* cut around what needs an escape */
        uint32_t lo = ranges[i].lo < 0x20 ? 0x20 : ranges[i].lo, hi = ranges[i].hi;
        static const uint32_t marks[] = {'"', '\\'};
        for (int m = 0; m < 2; m++) {
            if (lo > marks[m] || hi < marks[m]) continue;
            if (lo < marks[m]) plain[n++] = (struct grammar_range){lo, marks[m] - 1};
            lo = marks[m] + 1;
        }
        if (lo <= hi) plain[n++] = (struct grammar_range){lo, hi};
    }
    if (n > 0) dse_grammar_add(b, choice, dse_grammar_class(b, plain, n));
    bool all = n_ranges > 0 && ranges[0].lo == 0 && ranges[0].hi >= 0x1F;
    if (all) dse_grammar_add(b, choice, any_control(t));
    for (uint32_t c = all ? 0x20 : 0; c <= '\\'; c++) {
        char text[6];
        size_t bytes = escape_of(c, text);
        if (bytes && contains(ranges, n_ranges, c)) dse_grammar_add(b, choice, dse_grammar_literal(b, text, bytes));
    }
    return choice;
}

const char *dse_json_quote(struct json_text *t, const char *text, size_t bytes, size_t *quoted_bytes)
{
    char *out = bytes < DSE_GRAMMAR_MAX_BUILD_BYTES ? dse_arena_alloc(&t->b->arena, 6 * bytes + 2) : NULL;
    if (!out) return t->b->failed_memory = true, NULL;
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < bytes; i++) {
        size_t escaped = escape_of((unsigned char)text[i], out + n);
        if (!escaped) out[n] = text[i];
        n += escaped ? escaped : 1;
    }
    out[n++] = '"';
    *quoted_bytes = n;
    return out;
}

struct grammar_tree *dse_json_literal(struct json_text *t, const char *text, size_t bytes)
{
    size_t n = 0;
    const char *quoted = dse_json_quote(t, text, bytes, &n);
    return quoted ? dse_grammar_literal(t->b, quoted, n) : NULL;
}

/* ---- sets of texts -------------------------------------------------------------------------------------------- */

static int compare_slices(const void *a, const void *b)
{
    const struct dse_slice *x = a, *y = b;
    size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = n ? memcmp(x->data, y->data, n) : 0;
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool too_many_forks(struct grammar_builder *b, int forks)
{
    if (forks > DSE_JSON_TEXT_MAX_FORKS)
        dse_grammar_build_limit(b, "names or values with open ends part at more than 200 places one after the other "
                                   "(DSE_JSON_TEXT_MAX_FORKS)");
    return grammar_build_failed(b);
}

/* Texts [0, n) agree in their first `at` bytes. Every branch shares what its texts begin with, so that a large set
 * costs no more alternatives at once than there are different next bytes. */
static struct grammar_tree *build_one_of(struct grammar_builder *b, const struct dse_slice *texts, size_t n, size_t at,
                                         int forks)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    if (too_many_forks(b, forks)) return NULL;
    for (size_t i = 0, end; i < n && choice; i = end) {
        if (texts[i].bytes == at) { /* the first, if any */
            dse_grammar_add(b, choice, dse_grammar_text(b, ""));
            for (end = i + 1; end < n && texts[end].bytes == at;)
                end++;
            continue;
        }
        for (end = i + 1; end < n && texts[end].data[at] == texts[i].data[at];)
            end++;
        const struct dse_slice *first = &texts[i], *last = &texts[end - 1];
        size_t shared = at;
        while (shared < first->bytes && shared < last->bytes && first->data[shared] == last->data[shared])
            shared++;
        struct grammar_tree *branch = dse_grammar_literal(b, first->data + at, shared - at);
        if (end - i > 1 && (last->bytes > shared || first->bytes > shared))
            branch = GRAMMAR_SEQ(b, branch, build_one_of(b, texts + i, end - i, shared, forks + 1));
        dse_grammar_add(b, choice, branch);
        if (grammar_build_failed(b)) return NULL;
    }
    return choice;
}

struct grammar_tree *dse_grammar_one_of(struct grammar_builder *b, struct dse_slice *texts, size_t n_texts)
{
    if (n_texts > 1) qsort(texts, n_texts, sizeof *texts, compare_slices);
    return build_one_of(b, texts, n_texts, 0, 0);
}

/* After `at` bytes that all of texts [0, n) begin with. */
static struct grammar_tree *build_except(struct json_text *t, const struct dse_slice *texts, size_t n, size_t at,
                                         int forks)
{
    struct grammar_builder *b = t->b;
    if (too_many_forks(b, forks)) return NULL;
    struct grammar_tree *choice = dse_grammar_choice(b);
    struct grammar_range *others = dse_arena_alloc(&b->arena, (n + 1) * sizeof *others);
    if (!choice || !others) return b->failed_memory = true, NULL;
    size_t first = 0, n_others = 0;
    while (first < n && texts[first].bytes == at)
        first++;
    if (first == 0) dse_grammar_add(b, choice, dse_grammar_text(b, "\""));
    for (size_t i = first, end; i < n; i = end) {
        size_t used = 1;
        uint32_t c = dse_utf8_decode(texts[i].data + at, texts[i].bytes - at, &used);
        for (end = i + 1;
             end < n && texts[end].bytes >= at + used && memcmp(texts[end].data + at, texts[i].data + at, used) == 0;)
            end++;
        struct grammar_range one = {c, c};
        dse_grammar_add(
            b, choice,
            GRAMMAR_SEQ(b, dse_json_class(t, &one, 1), build_except(t, texts + i, end - i, at + used, forks + 1)));
        others[n_others++] = one;
        if (grammar_build_failed(b)) return NULL;
    }
    n_others = dse_grammar_normalise_ranges(others, n_others, true);
    static const struct grammar_range all[] = {{0, 0x10FFFF}};
    struct grammar_tree *rest = dse_grammar_repeat(b, dse_json_class(t, all, 1), 0, -1);
    return dse_grammar_add(b, choice,
                           GRAMMAR_SEQ(b, dse_json_class(t, others, n_others), rest, dse_grammar_text(b, "\"")));
}

struct grammar_tree *dse_json_string_except(struct json_text *t, struct dse_slice *texts, size_t n_texts)
{
    if (n_texts > 1) qsort(texts, n_texts, sizeof *texts, compare_slices);
    return GRAMMAR_SEQ(t->b, dse_grammar_text(t->b, "\""), build_except(t, texts, n_texts, 0, 0));
}

/* ---- text without a mark -------------------------------------------------------------------------------------- */

#define MAX_MARK 32 /* code points */

/* How much of the mark the text ends with after c, when it ended with `at` characters of it before. */
static size_t search_step(const uint32_t *mark, size_t at, uint32_t c)
{
    for (size_t k = at + 1; k > 0; k--)
        if (mark[k - 1] == c && memcmp(mark, mark + (at + 1 - k), (k - 1) * sizeof *mark) == 0) return k;
    return 0;
}

/* Any text in which the mark does not occur: one rule per place of the search. */
struct grammar_tree *dse_grammar_text_without(struct grammar_builder *b, const char *literal)
{
    uint32_t mark[MAX_MARK], rules[MAX_MARK] = {0};
    size_t n = 0, bytes = strlen(literal);
    for (size_t at = 0, used; at < bytes && n < MAX_MARK; at += used)
        mark[n++] = dse_utf8_decode(literal + at, bytes - at, &used);
    for (size_t i = 0; i < n; i++)
        rules[i] = dse_grammar_rule(b, "text");
    for (size_t i = 0; i < n; i++) {
        struct grammar_tree *choice = dse_grammar_choice(b);
        struct grammar_range others[MAX_MARK + 1];
        size_t n_others = 0;
        for (size_t k = 0; k < n; k++) { /* every character of the mark once */
            bool seen = false;
            for (size_t j = 0; j < k && !seen; j++)
                seen = mark[j] == mark[k];
            if (seen) continue;
            struct grammar_range one = {mark[k], mark[k]};
            size_t to = search_step(mark, i, mark[k]);
            others[n_others++] = one;
            if (to == n) continue;
            dse_grammar_add(b, choice, GRAMMAR_SEQ(b, dse_grammar_class(b, &one, 1), dse_grammar_call(b, rules[to])));
        }
        n_others = dse_grammar_normalise_ranges(others, n_others, true);
        dse_grammar_add(b, choice,
                        GRAMMAR_SEQ(b, dse_grammar_class(b, others, n_others), dse_grammar_call(b, rules[0])));
        dse_grammar_add(b, choice, dse_grammar_text(b, ""));
        dse_grammar_define(b, rules[i], choice);
    }
    return dse_grammar_call(b, rules[0]);
}

struct grammar_tree *dse_grammar_after_thinking(struct grammar_builder *b, struct grammar_tree *body)
{
    static const char close[] = "</think>";
    struct grammar_tree *lines = dse_grammar_repeat(b, dse_grammar_text(b, "\n"), 0, 2);
    return GRAMMAR_SEQ(b, dse_grammar_text_without(b, close), dse_grammar_text(b, close), lines, body);
}

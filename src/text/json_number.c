/* Numbers between bounds (see json_number.h).
 *
 * A range is cut at zero; what is negative is the same range mirrored behind a minus. A magnitude is a whole part and
 * digits behind the point. While the text so far equals the beginning of a bound it is tight there, and the next digit
 * is bound by the bound's; once it has left the bound all digits are free.
 */
#include "text/json_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WHOLE 999999999999999999u /* DSE_JSON_MAX_DIGITS nines */

/* One side of a range of magnitudes. */
struct edge {
    uint64_t whole;
    const char *digits;
    int n_digits;
    bool exclusive;
};

/* ---- bounds --------------------------------------------------------------------------------------------------- */

bool dse_json_bound_from_integer(int64_t value, struct json_bound *out)
{
    uint64_t whole = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *out = (struct json_bound){.given = true, .negative = value < 0, .whole = whole, .value = (long double)value};
    return true;
}

/* The shortest decimal text that is read as this value is what was meant. */
bool dse_json_bound_from_real(double value, struct json_bound *out)
{
    char text[40], digits[24];
    if (!isfinite(value)) return false;
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    int n = 0, exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10); /* d.ddde±x */
    for (const char *at = text; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') digits[n++] = *at;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    *out = (struct json_bound){.given = true, .negative = value < 0, .value = (long double)value};
    if (value == 0) return true;
    if (fabs(value) >= DSE_JSON_MAX_BOUND) {
        out->whole = (uint64_t)DSE_JSON_MAX_BOUND;
        return true;
    }
    for (int i = 0; i <= exponent; i++)
        out->whole = out->whole * 10 + (uint64_t)(i < n ? digits[i] - '0' : 0);
    for (int i = exponent + 1; i < n; i++) {
        if (out->n_digits == DSE_JSON_MAX_DIGITS) return false;
        out->digits[out->n_digits++] = i < 0 ? '0' : digits[i];
    }
    return true;
}

int dse_json_bound_compare(const struct json_bound *a, const struct json_bound *b)
{
    return a->value < b->value ? -1 : a->value > b->value;
}

/* ---- digits --------------------------------------------------------------------------------------------------- */

static struct grammar_tree *digit(struct grammar_builder *b, int lo, int hi)
{
    struct grammar_range range = {(uint32_t)('0' + lo), (uint32_t)('0' + hi)};
    return lo > hi ? dse_grammar_choice(b) : dse_grammar_class(b, &range, 1);
}

static struct grammar_tree *free_digits(struct grammar_builder *b, int min, int max)
{
    return dse_grammar_repeat(b, digit(b, 0, 9), min, max);
}

static void add_branch(struct grammar_builder *b, struct grammar_tree *choice, struct grammar_tree *first,
                       struct grammar_tree *rest)
{
    dse_grammar_add(b, choice, dse_grammar_add(b, dse_grammar_add(b, dse_grammar_sequence(b), first), rest));
}

/* Whole numbers of n digits from lo to hi (texts of n digits; NULL: not tight there any more). */
static struct grammar_tree *same_length(struct grammar_builder *b, const char *lo, const char *hi, int n)
{
    if (n == 0 || (!lo && !hi)) return free_digits(b, n, n);
    struct grammar_tree *choice = dse_grammar_choice(b);
    int low = lo ? *lo - '0' : 0, high = hi ? *hi - '0' : 9;
    if (lo && hi && low == high) {
        add_branch(b, choice, digit(b, low, low), same_length(b, lo + 1, hi + 1, n - 1));
        return choice;
    }
    if (lo) add_branch(b, choice, digit(b, low, low), same_length(b, lo + 1, NULL, n - 1));
    if (low + (lo != NULL) <= high - (hi != NULL))
        add_branch(b, choice, digit(b, low + (lo != NULL), high - (hi != NULL)), free_digits(b, n - 1, n - 1));
    if (hi) add_branch(b, choice, digit(b, high, high), same_length(b, NULL, hi + 1, n - 1));
    return choice;
}

static struct grammar_tree *whole_range(struct grammar_builder *b, uint64_t lo, uint64_t hi)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    char low[24], high[24], least[24], most[24];
    int n_low = snprintf(low, sizeof low, "%llu", (unsigned long long)lo);
    int n_high = snprintf(high, sizeof high, "%llu", (unsigned long long)hi);
    for (int n = n_low; n <= n_high && lo <= hi; n++) {
        snprintf(least, sizeof least, "%s%.*s", n == 1 ? "0" : "1", n - 1, "00000000000000000000");
        snprintf(most, sizeof most, "%.*s", n, "99999999999999999999");
        const char *from = n == n_low ? low : least, *to = n == n_high ? high : most;
        /* The length is all that limits the rest; the first digit alone is looked at. */
        if (strcmp(from, least) == 0 && strcmp(to, most) == 0)
            add_branch(b, choice, digit(b, n > 1, 9), free_digits(b, n - 1, n - 1));
        else
            dse_grammar_add(b, choice, same_length(b, from, to, n));
    }
    return choice;
}

/* Digits behind the point from number `at` on, `left` of which may come. lo and hi: where it is still tight. */
static struct grammar_tree *fraction_digits(struct grammar_builder *b, const struct edge *lo, const struct edge *hi,
                                            int at, int left)
{
    if (lo && at >= lo->n_digits && !lo->exclusive) lo = NULL; /* equal so far and that will do */
    if (!lo && !hi) return free_digits(b, at == 0, left);
    struct grammar_tree *choice = dse_grammar_choice(b);
    int low = lo && at < lo->n_digits ? lo->digits[at] - '0' : 0;
    int high = !hi ? 9 : at < hi->n_digits ? hi->digits[at] - '0' : 0;
    bool may_end = at > 0 && !lo && (at < hi->n_digits || !hi->exclusive);
    if (may_end) dse_grammar_add(b, choice, dse_grammar_text(b, ""));
    if (left == 0 || low > high) return choice;
    if (lo && hi && low == high) {
        add_branch(b, choice, digit(b, low, low), fraction_digits(b, lo, hi, at + 1, left - 1));
        return choice;
    }
    if (lo) add_branch(b, choice, digit(b, low, low), fraction_digits(b, lo, NULL, at + 1, left - 1));
    if (low + (lo != NULL) <= high - (hi != NULL))
        add_branch(b, choice, digit(b, low + (lo != NULL), high - (hi != NULL)), free_digits(b, 0, left - 1));
    if (hi) add_branch(b, choice, digit(b, high, high), fraction_digits(b, NULL, hi, at + 1, left - 1));
    return choice;
}

/* The point and what is behind it, or nothing. */
static struct grammar_tree *fraction(struct grammar_builder *b, const struct edge *lo, const struct edge *hi, int max)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    bool none = (!lo || (lo->n_digits == 0 && !lo->exclusive)) && (!hi || hi->n_digits > 0 || !hi->exclusive);
    if (none) dse_grammar_add(b, choice, dse_grammar_text(b, ""));
    if (max > 0) add_branch(b, choice, dse_grammar_text(b, "."), fraction_digits(b, lo, hi, 0, max));
    return choice;
}

/* Magnitudes from lo to hi; max_digits behind the point. */
static struct grammar_tree *magnitude(struct grammar_builder *b, const struct edge *lo, const struct edge *hi,
                                      int max_digits)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    if (lo->whole > hi->whole) return choice;
    if (lo->whole == hi->whole) {
        add_branch(b, choice, whole_range(b, lo->whole, lo->whole), fraction(b, lo, hi, max_digits));
        return choice;
    }
    add_branch(b, choice, whole_range(b, lo->whole, lo->whole), fraction(b, lo, NULL, max_digits));
    if (lo->whole + 1 < hi->whole)
        add_branch(b, choice, whole_range(b, lo->whole + 1, hi->whole - 1), fraction(b, NULL, NULL, max_digits));
    add_branch(b, choice, whole_range(b, hi->whole, hi->whole), fraction(b, NULL, hi, max_digits));
    return choice;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

static struct edge edge_of(const struct json_bound *bound)
{
    return (struct edge){bound->whole, bound->digits, bound->n_digits, bound->exclusive};
}

static struct grammar_tree *bounded(struct grammar_builder *b, const struct json_bound *min,
                                    const struct json_bound *max, int max_digits)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    /* Where there is no bound: the limit of digits, or one digit more if the other bound lies there. */
    uint64_t top = (min->given && min->whole > MAX_WHOLE) || (max->given && max->whole > MAX_WHOLE)
                       ? 10 * (MAX_WHOLE + 1)
                       : MAX_WHOLE + 1;
    const struct edge zero = {0}, above_zero = {.exclusive = true}, end = {.whole = top, .exclusive = true};
    bool min_below = !min->given || min->negative, max_below = max->given && max->negative;
    if (!max_below) {
        struct edge lo = min_below ? zero : edge_of(min), hi = max->given ? edge_of(max) : end;
        dse_grammar_add(b, choice, magnitude(b, &lo, &hi, max_digits));
    }
    if (min_below) {
        struct edge lo = max_below ? edge_of(max) : above_zero, hi = min->given ? edge_of(min) : end;
        add_branch(b, choice, dse_grammar_text(b, "-"), magnitude(b, &lo, &hi, max_digits));
    }
    return choice;
}

static struct grammar_tree *free_whole(struct grammar_builder *b)
{
    struct grammar_tree *choice = dse_grammar_choice(b);
    dse_grammar_add(b, choice, digit(b, 0, 0));
    add_branch(b, choice, digit(b, 1, 9), free_digits(b, 0, DSE_JSON_MAX_DIGITS - 1));
    struct grammar_tree *sequence = dse_grammar_sequence(b);
    dse_grammar_add(b, sequence, dse_grammar_optional(b, dse_grammar_text(b, "-")));
    return dse_grammar_add(b, sequence, choice);
}

struct grammar_tree *dse_json_integer(struct grammar_builder *b, const struct json_bound *min,
                                      const struct json_bound *max)
{
    return min->given || max->given ? bounded(b, min, max, 0) : free_whole(b);
}

struct grammar_tree *dse_json_number(struct grammar_builder *b, const struct json_bound *min,
                                     const struct json_bound *max, int max_digits)
{
    static const struct grammar_range signs[] = {{'+', '+'}, {'-', '-'}}, marks[] = {{'E', 'E'}, {'e', 'e'}};
    int n_digits = max_digits < 0 || max_digits > DSE_JSON_MAX_DIGITS ? DSE_JSON_MAX_DIGITS : max_digits;
    if (min->given || max->given) return bounded(b, min, max, n_digits);
    struct grammar_tree *sequence = dse_grammar_sequence(b);
    dse_grammar_add(b, sequence, free_whole(b));
    dse_grammar_add(b, sequence, fraction(b, NULL, NULL, n_digits));
    if (max_digits >= 0) return sequence;
    struct grammar_tree *exponent = dse_grammar_sequence(b);
    dse_grammar_add(b, exponent, dse_grammar_class(b, marks, 2));
    dse_grammar_add(b, exponent, dse_grammar_optional(b, dse_grammar_class(b, signs, 2)));
    dse_grammar_add(b, exponent, free_digits(b, 1, 2));
    return dse_grammar_add(b, sequence, dse_grammar_optional(b, exponent));
}

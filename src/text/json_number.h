/* JSON numbers between two bounds, as grammar trees: automata over the digits. Used by json_schema*.c.
 *
 * Without bounds an integer has up to DSE_JSON_MAX_DIGITS digits, a number as many before and behind its point and an
 * exponent of up to two: no model can go on with digits for ever, and everyone's parser reads them. Between bounds
 * numbers have no exponent and no "-0", and are exactly those that the bounds let through.
 */
#ifndef DSE_TEXT_JSON_NUMBER_H
#define DSE_TEXT_JSON_NUMBER_H

#include "text/grammar_build.h"

#define DSE_JSON_MAX_DIGITS 18

/* A bound as a decimal number. */
struct json_bound {
    bool given, exclusive, negative;
    uint64_t whole;                   /* what stands before the point */
    char digits[DSE_JSON_MAX_DIGITS]; /* behind it, without zeros at the end */
    int n_digits;
    long double value; /* the same, for comparisons */
};

/* Of larger magnitudes only that they are larger is kept. */
#define DSE_JSON_MAX_BOUND 9e18

/* False if it has more digits than can be kept exactly. */
bool dse_json_bound_from_integer(int64_t value, struct json_bound *out);
bool dse_json_bound_from_real(double value, struct json_bound *out);
/* Sign of a - b. */
int dse_json_bound_compare(const struct json_bound *a, const struct json_bound *b);

/* May be a choice of nothing. */
struct grammar_tree *dse_json_integer(struct grammar_builder *b, const struct json_bound *min,
                                      const struct json_bound *max);
/* max_digits: behind the point, -1: up to the limit; 0 gives integers. */
struct grammar_tree *dse_json_number(struct grammar_builder *b, const struct json_bound *min,
                                     const struct json_bound *max, int max_digits);

#endif

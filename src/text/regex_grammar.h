/* Regular expressions -> grammar trees. Used for `pattern` and `format` of JSON schemas and for whole answers.
 *
 * The subset of ECMAScript's that is regular and needs no look around: characters, . classes, \d \w \s and their
 * opposites, \n \r \t \f \v \0 \xHH \uHHHH \u{H}, groups (capturing or not), | * + ? {m} {m,} {m,n} (lazy ones match
 * the same texts), ^ at the beginning and $ at the end of an alternative of the whole. Anything else is refused by name.
 * Characters are Unicode code points; \d \w \s are ASCII's but for \s, which has Unicode's spaces.
 */
#ifndef DSE_TEXT_REGEX_GRAMMAR_H
#define DSE_TEXT_REGEX_GRAMMAR_H

#include "text/json_text.h"

#define DSE_REGEX_MAX_BYTES  16384
#define DSE_REGEX_MAX_GROUPS 64   /* inside one another */
#define DSE_REGEX_MAX_REPEAT 8192 /* bounds of {m,n} */

enum regex_target {
    REGEX_TEXT,        /* the bytes themselves; the whole text must match */
    REGEX_JSON_STRING, /* what stands between the quotes of a JSON string, some part of which must match */
};

#define REGEX_UNBOUNDED UINT64_MAX
struct regex_result {
    struct grammar_tree *tree; /* NULL after a failure of the builder */
    uint64_t min, max;         /* characters that match; max REGEX_UNBOUNDED: no limit */
    /* If one repetition of a character is all whose length is open: it, and the length of the rest. Else NULL. */
    struct grammar_tree *repeat;
    uint64_t fixed;
};

/* field: what messages are about. */
DSE_MUST_CHECK enum dse_status dse_regex_tree(struct json_text *t, const char *pattern, size_t bytes,
                                              enum regex_target target, const char *field, struct regex_result *out,
                                              struct dse_error *err);

#endif

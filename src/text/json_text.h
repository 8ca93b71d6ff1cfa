/* JSON strings as grammar trees: what may stand between the quotes, for free text, for classes of characters, for given
 * texts, and for names that others are not. Used by json_schema*.c, regex_grammar.c and tool_grammar.c.
 *
 * Free text may use every escape. Wherever the characters matter (patterns, given texts, names) each has one way to be
 * written: itself, or the short escape, or for other control characters \u00XX.
 */
#ifndef DSE_TEXT_JSON_TEXT_H
#define DSE_TEXT_JSON_TEXT_H

#include "text/grammar_build.h"

/* Texts of a set may part at this many places one after the other. */
#define DSE_JSON_TEXT_MAX_FORKS 200

struct json_text {
    struct grammar_builder *b;
    uint32_t character, control, string; /* 1 + rule; 0: not needed so far */
};

/* One character of free text; surrogates come in pairs. */
struct grammar_tree *dse_json_character(struct json_text *t);
/* One character out of sorted, disjoint ranges of code points. */
struct grammar_tree *dse_json_class(struct json_text *t, const struct grammar_range *ranges, size_t n_ranges);
/* A string of any content, quotes included. */
struct grammar_tree *dse_json_string(struct json_text *t);
/* This text, quotes included. */
struct grammar_tree *dse_json_literal(struct json_text *t, const char *text, size_t bytes);
/* The same as bytes in the builder's memory; NULL after a failure. */
const char *dse_json_quote(struct json_text *t, const char *text, size_t bytes, size_t *quoted_bytes);
/* A string that is none of these texts, quotes included. Sorts the texts. */
struct grammar_tree *dse_json_string_except(struct json_text *t, struct dse_slice *texts, size_t n_texts);
/* Exactly one of these byte sequences. Sorts them; equal ones count once. */
struct grammar_tree *dse_grammar_one_of(struct grammar_builder *b, struct dse_slice *texts, size_t n_texts);
/* Any text in which this one, of at most 32 characters, does not occur. */
struct grammar_tree *dse_grammar_text_without(struct grammar_builder *b, const char *literal);
/* A thought, its end `</think>`, up to two line ends, the body. */
struct grammar_tree *dse_grammar_after_thinking(struct grammar_builder *b, struct grammar_tree *body);

#endif

/* Building rules without GBNF text: trees from the leaves up. Used by JSON schemas, regular expressions and tool calls.
 *
 * The first failure (memory, a limit) stays with the builder and is looked at once, in the end; until then every
 * function goes on and may return NULL, which all of them take. A tree has one parent; what is needed twice becomes a
 * rule. A choice without children matches nothing: dse_grammar_build_finish removes whatever depends on one, so that no
 * text leads to a place where nothing can follow.
 */
#ifndef DSE_TEXT_GRAMMAR_BUILD_H
#define DSE_TEXT_GRAMMAR_BUILD_H

#include "text/grammar_internal.h"

/* Of all trees of one grammar. */
#define DSE_GRAMMAR_MAX_BUILD_BYTES ((size_t)64 << 20)

struct grammar_builder {
    struct dse_arena arena;
    struct grammar_rules rules;
    bool failed_memory;
    const char *failed_limit; /* which one, for a message: "more than 8192 rules"; NULL: none */
};

DSE_MUST_CHECK enum dse_status dse_grammar_build_init(struct grammar_builder *b, struct dse_error *err);
void dse_grammar_build_deinit(struct grammar_builder *b);
static inline bool grammar_build_failed(const struct grammar_builder *b)
{
    return b->failed_memory || b->failed_limit;
}

/* A limit of the caller's is broken; what: static text that names it. The first failure counts. */
void dse_grammar_build_limit(struct grammar_builder *b, const char *what);

struct grammar_tree *dse_grammar_literal(struct grammar_builder *b, const char *bytes, size_t n_bytes); /* copied */
struct grammar_tree *dse_grammar_text(struct grammar_builder *b, const char *text);
/* Code points, in any order; copied. Without any: matches nothing. */
struct grammar_tree *dse_grammar_class(struct grammar_builder *b, const struct grammar_range *ranges, size_t n_ranges);
struct grammar_tree *dse_grammar_sequence(struct grammar_builder *b);
struct grammar_tree *dse_grammar_choice(struct grammar_builder *b);
/* child has no parent yet and is complete. Returns parent. */
struct grammar_tree *dse_grammar_add(struct grammar_builder *b, struct grammar_tree *parent,
                                     struct grammar_tree *child);
/* A sequence of parts, the list ends with NULL: a part that could not be made ends it too, after its failure was noted. */
struct grammar_tree *dse_grammar_sequence_of(struct grammar_builder *b, struct grammar_tree **parts);
#define GRAMMAR_SEQ(b, ...) dse_grammar_sequence_of(b, (struct grammar_tree *[]){__VA_ARGS__, NULL})
/* max -1: unbounded. Both may be at most DSE_GRAMMAR_MAX_BUILD_REPEAT. */
struct grammar_tree *dse_grammar_repeat(struct grammar_builder *b, struct grammar_tree *child, int min, int max);
struct grammar_tree *dse_grammar_optional(struct grammar_builder *b, struct grammar_tree *child);
struct grammar_tree *dse_grammar_call(struct grammar_builder *b, uint32_t rule);
/* name is copied; the body must be set before the end. */
uint32_t dse_grammar_rule(struct grammar_builder *b, const char *name);
void dse_grammar_define(struct grammar_builder *b, uint32_t rule, struct grammar_tree *body);

/* field: what messages are about. Rules that matter start at root. */
DSE_MUST_CHECK enum dse_status dse_grammar_build_finish(struct grammar_builder *b, uint32_t root, const char *field,
                                                        struct dse_grammar **out, struct dse_error *err);

#endif

/* Grammar-constrained sampling: GBNF text -> a byte-level automaton -> the set of tokens that may come next.
 *
 * GBNF is llama.cpp's notation: rules `name ::= …`, literals, character classes, groups, | * + ? {m,n}, comments.
 * A compiled grammar is immutable; a state belongs to one sequence. Limits hold for rules, states and stack depth.
 */
#ifndef DSE_TEXT_GRAMMAR_H
#define DSE_TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "text/tokenizer.h"

#define DSE_GRAMMAR_MAX_SOURCE_BYTES (1u << 20)
#define DSE_GRAMMAR_MAX_RULES        8192
#define DSE_GRAMMAR_MAX_NODES        (1u << 20)
#define DSE_GRAMMAR_MAX_STACKS       4096 /* alternatives alive at once in a state */
#define DSE_GRAMMAR_MAX_DEPTH        1024 /* of one parse stack */

struct dse_grammar;
struct dse_grammar_state;

/* The start rule is `root`. Left recursion, undefined rules and unreachable limits are errors with line numbers. */
DSE_MUST_CHECK enum dse_status dse_grammar_compile(const char *source, size_t bytes, struct dse_grammar **out,
                                                   struct dse_error *err);
struct dse_grammar *dse_grammar_ref(struct dse_grammar *grammar); /* atomic count */
void dse_grammar_unref(struct dse_grammar *grammar);

/* Token texts arranged as a trie; built once per model, shared by all states, immutable. stops: the ids that end a
 * text, which is for the model to say (its configuration may name more than the tokenizer does). */
struct dse_token_trie;
DSE_MUST_CHECK enum dse_status dse_token_trie_create(const struct dse_tokenizer *tokenizer, const int32_t *stops,
                                                     int n_stops, struct dse_token_trie **out, struct dse_error *err);
void dse_token_trie_free(struct dse_token_trie *trie);

/* All memory that a state may need is taken here: accept and mask never allocate. */
DSE_MUST_CHECK enum dse_status dse_grammar_state_create(struct dse_grammar *grammar, const struct dse_token_trie *trie,
                                                        struct dse_grammar_state **out, struct dse_error *err);
void dse_grammar_state_free(struct dse_grammar_state *state);

/* Bit i of mask is set when token i may come next; mask has (dse_tokenizer_count + 63) / 64 words. Control tokens are
 * allowed only where a grammar of tool calls has a mark, stop tokens when the grammar may end here. */
void dse_grammar_mask(struct dse_grammar_state *state, uint64_t *mask);
/* Moves on by a token that the mask allowed; false if the grammar cannot take it (the state is then dead). */
bool dse_grammar_accept(struct dse_grammar_state *state, int32_t token);
bool dse_grammar_accept_bytes(struct dse_grammar_state *state, const char *text, size_t bytes);
bool dse_grammar_may_end(const struct dse_grammar_state *state);  /* the text so far is complete */
bool dse_grammar_must_end(const struct dse_grammar_state *state); /* and nothing can follow */

#endif

/* Speculation by prompt lookup: the tokens that followed the last few ones earlier in a sequence are computed together
 * with the next one, as long as that pays. No result depends on it: a drafted token counts only if sampling gives the
 * same one, from the logits and the random numbers that it would have met anyway.
 *
 * scheduler.c asks for drafts when it forms a step, step.c tells what became of them. Engine thread only.
 */
#ifndef DSE_ENGINE_SPECULATE_H
#define DSE_ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

#define DSE_MAX_DRAFT 16

/* What steps cost, of the engine. */
struct dse_speculation {
    int max_draft;  /* tokens drafted at most for a sequence and step; 0: none ever */
    double base_ns; /* a step with one row for each of n_base decoding sequences and no other row; 0: not known */
    int n_base;
    int n_since;   /* steps with drafts since the base was measured */
    double row_ns; /* what each further row adds to it */
    bool always;   /* tests: whether it pays or not */
};

/* How drafts of a sequence did, those of long ago counting less. Zero at the start. */
struct dse_draft_record {
    double tried, taken;
    int rest, next_rest; /* tokens to go until the next try; how many after that, should it fail as well */
};

/* Writes to tokens[n_tokens…] what followed the same last tokens before, at most max of them; returns how many. */
int dse_speculate_find(int32_t *tokens, int n_tokens, int max);

/* How many tokens are worth drafting now, at most max, beside so many decoding sequences. */
int dse_speculate_length(const struct dse_speculation *speculation, struct dse_draft_record *record, int n_decoding,
                         int max);

/* A sequence had n_drafted tokens drafted, of which the first n_taken came. */
void dse_speculate_note_draft(struct dse_draft_record *record, int n_drafted, int n_taken);

/* A step without rows of prompts took so long. */
void dse_speculate_note_step(struct dse_speculation *speculation, int n_decoding, int n_drafted, uint64_t elapsed_ns);

#endif

/* When and what to draft: see speculate.h. */
#include "engine/speculate.h"

#include "engine/smoothed.h"

/* Fewer equal tokens are chance more often than a repetition. */
#define MIN_MATCH 3
/* Of two places the one that agrees longer is the better guess; beyond this length they are equally good. */
#define LONG_MATCH 16
/* Old drafts fade by this with every new one. */
#define FADING 0.8
/* Before anything is known of a sequence, as if of two drafted tokens one had been taken. */
#define PRIOR_TRIED 2.0
#define PRIOR_TAKEN 1.0
/* After the first failure it rests for so many tokens, then twice as long each time. */
#define FIRST_REST 16
#define LAST_REST  256
/* A plain step after so many with drafts, to see what it costs by now. */
#define STEPS_PER_BASE 64
/* Before it was measured, a further row is taken to cost this part of a step. */
#define ROW_COST 0.15

/* Tokens that agree, going backwards from two places; at most LONG_MATCH. */
static int agreement(const int32_t *tokens, int earlier, int last)
{
    int n = 0;
    while (n < LONG_MATCH && n <= earlier && tokens[earlier - n] == tokens[last - n])
        n++;
    return n;
}

int dse_speculate_find(int32_t *tokens, int n_tokens, int max)
{
    const int last = n_tokens - 1;
    int best = MIN_MATCH - 1, place = -1;
    for (int i = last - 1; i >= MIN_MATCH - 1 && best < LONG_MATCH; i--) {
        if (tokens[i] != tokens[last]) continue;
        int n = agreement(tokens, i, last);
        if (n > best) {
            best = n;
            place = i;
        }
    }
    if (place < 0) return 0;
    for (int i = 0; i < max; i++) /* runs on into what it wrote: a repetition goes on repeating */
        tokens[n_tokens + i] = tokens[place + 1 + i];
    return max;
}

int dse_speculate_length(const struct dse_speculation *speculation, struct dse_draft_record *record, int n_decoding,
                         int max)
{
    if (max > speculation->max_draft) max = speculation->max_draft;
    if (speculation->always) return max;
    if (speculation->base_ns <= 0 || speculation->n_base != n_decoding || speculation->n_since >= STEPS_PER_BASE)
        return 0;
    if (record->rest > 0) {
        record->rest--;
        return 0;
    }
    const double taken = (record->taken + PRIOR_TAKEN) / (record->tried + PRIOR_TRIED);
    const double row = speculation->row_ns > 0 ? speculation->row_ns / speculation->base_ns : ROW_COST;
    /* Tokens of this sequence per step, against those that the longer step costs everyone. */
    double best = 1, expected = 1, chance = 1;
    int length = 0;
    for (int n = 1; n <= max; n++) {
        chance *= taken;
        expected += chance;
        double gain = (n_decoding - 1 + expected) / n_decoding / (1 + n * row);
        if (gain > best) {
            best = gain;
            length = n;
        }
    }
    return length;
}

void dse_speculate_note_draft(struct dse_draft_record *record, int n_drafted, int n_taken)
{
    /* The first token that did not come says something too, those after it nothing. */
    record->tried = FADING * record->tried + (n_taken < n_drafted ? n_taken + 1 : n_taken);
    record->taken = FADING * record->taken + n_taken;
    if (n_taken > 0) {
        record->next_rest = 0;
        return;
    }
    record->next_rest = record->next_rest == 0 ? FIRST_REST : 2 * record->next_rest;
    if (record->next_rest > LAST_REST) record->next_rest = LAST_REST;
    record->rest = record->next_rest;
    /* after the rest the text may be another one */
    record->tried = record->taken = 0;
}

void dse_speculate_note_step(struct dse_speculation *speculation, int n_decoding, int n_drafted, uint64_t elapsed_ns)
{
    const double elapsed = (double)elapsed_ns;
    if (n_drafted == 0) {
        speculation->base_ns = n_decoding == speculation->n_base ? dse_smoothed(speculation->base_ns, elapsed)
                                                                 : elapsed;
        speculation->n_base = n_decoding;
        speculation->n_since = 0;
    } else if (n_decoding == speculation->n_base && speculation->base_ns > 0) {
        speculation->n_since++;
        /* even where rows cost nothing this stays above zero: a draft that fails is never free */
        double row = (elapsed - speculation->base_ns) / n_drafted, least = 0.02 * speculation->base_ns;
        speculation->row_ns = dse_smoothed(speculation->row_ns, row > least ? row : least);
    }
}

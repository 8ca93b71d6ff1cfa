/* How many prompt tokens a step takes: what time it may cost, by how fast the machine was lately.
 *
 * Alone, a prompt gets steps that a cancelled request can wait for. Beside sequences that decode, a step may take 2.75
 * times what a step of theirs takes without it: their gaps stay even, and the prompt, whose rows share the pass over the
 * weights with theirs, keeps most of its speed. Called by scheduler.c and step.c on the engine thread.
 */
#ifndef DSE_ENGINE_CHUNK_H
#define DSE_ENGINE_CHUNK_H

#include <stdint.h>

struct dse_chunk {
    int limit;           /* tokens at most */
    int alone, beside;   /* tokens of the next step without and with decoding sequences */
    double decode_ns;    /* of a step that only decodes, 0: none was seen yet; */
    double per_token_ns; /* and of a prompt token beside others */
};

void dse_chunk_init(struct dse_chunk *chunk, int limit);
/* Prompt tokens for a step with so many decode rows. */
int dse_chunk_tokens(const struct dse_chunk *chunk, int n_decode_rows);
/* A step with such rows took so long. */
void dse_chunk_note(struct dse_chunk *chunk, int n_prefill_rows, int n_decode_rows, uint64_t elapsed_ns);

#endif

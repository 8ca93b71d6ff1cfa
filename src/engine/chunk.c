/* Step sizes that follow the machine: see chunk.h. */
#include "engine/chunk.h"

#include "engine/smoothed.h"

/* A cancelled request waits for the step in progress. */
#define SLOW_STEP_NS 200000000.0
#define FAST_STEP_NS 80000000.0
#define MIN_ALONE    16
/* Fewer rows would read the weights for too little. */
#define MIN_BESIDE 4
/* Prompts begin with small steps: how fast the machine is shows after the first. */
#define FIRST_ALONE 32
/* Of the time of a step that only decodes: what is left up to four times is for what measures wrong and for neighbours
 * of the machine; and what a step beside others may take at all, so that text still flows. */
#define STRETCH        2.75
#define SLOW_BESIDE_NS 400000000.0

void dse_chunk_init(struct dse_chunk *chunk, int limit)
{
    *chunk = (struct dse_chunk){.limit = limit,
                                .alone = limit < FIRST_ALONE ? limit : FIRST_ALONE,
                                .beside = limit < MIN_BESIDE ? limit : MIN_BESIDE};
}

int dse_chunk_tokens(const struct dse_chunk *chunk, int n_decode_rows)
{
    return n_decode_rows > 0 ? chunk->beside : chunk->alone;
}

/* Of steps that only decode, what an undisturbed one takes: the last ones before a prompt are slower, since a prompt
 * comes in and is tokenized beside them. */
static double undisturbed(double old, double now)
{
    return old > 0 && now > old ? 0.97 * old + 0.03 * now : dse_smoothed(old, now);
}

static int within(const struct dse_chunk *chunk, double tokens, int least)
{
    if (tokens < least) tokens = least;
    return tokens < chunk->limit ? (int)tokens : chunk->limit;
}

/* What is left of the step's time once the decode rows are paid for, but never more than a step may take at all. */
static void choose_beside(struct dse_chunk *chunk)
{
    double step = STRETCH * chunk->decode_ns;
    if (step > SLOW_BESIDE_NS) step = SLOW_BESIDE_NS;
    if (chunk->per_token_ns > 0)
        chunk->beside = within(chunk, (step - chunk->decode_ns) / chunk->per_token_ns, MIN_BESIDE);
}

void dse_chunk_note(struct dse_chunk *chunk, int n_prefill_rows, int n_decode_rows, uint64_t elapsed_ns)
{
    const double elapsed = (double)elapsed_ns;
    if (n_prefill_rows == 0) {
        chunk->decode_ns = undisturbed(chunk->decode_ns, elapsed);
    } else if (n_decode_rows == 0) {
        if (elapsed > SLOW_STEP_NS)
            chunk->alone = within(chunk, chunk->alone / 2.0, MIN_ALONE);
        else if (elapsed < FAST_STEP_NS && n_prefill_rows == chunk->alone)
            chunk->alone = within(chunk, 2.0 * chunk->alone, MIN_ALONE);
        return;
    } else {
        const double rest = elapsed > chunk->decode_ns ? elapsed - chunk->decode_ns : 0.1 * elapsed;
        chunk->per_token_ns = dse_smoothed(chunk->per_token_ns, rest / n_prefill_rows);
    }
    choose_beside(chunk);
}

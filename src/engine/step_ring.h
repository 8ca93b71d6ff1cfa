/* What the last steps of the engine spent their time on: a fixed ring that the engine thread writes and anyone reads.
 *
 * The writer never waits, allocates or takes a lock. A reader copies a record and throws it away if the writer came by
 * meanwhile; numbers count up by one, so a reader sees what it has missed. Written by step.c, read by the server
 * (/debug/steps, the trace file, the rates of /api/edge/state).
 */
#ifndef DSE_ENGINE_STEP_RING_H
#define DSE_ENGINE_STEP_RING_H

#include <stdatomic.h>
#include <stdint.h>

#define DSE_STEP_RING_LENGTH 512

/* X(id, name). In the order in which a step goes through them; the first two lie before it begins. Forward time of a
 * step with rows of several kinds is divided by their number. Requests that lost their blocks are computed again, so
 * that is a cause of its own. */
#define DSE_STEP_CAUSES(X)                                                                                             \
    X(SWAP, "swap")           /* KV blocks copied for the prefix cache on disk */                                      \
    X(WAIT, "wait")           /* for work, or for blocks that are read from disk */                                    \
    X(SCHEDULE, "schedule")   /* admission, forming the batch */                                                       \
    X(PREFILL, "prefill")     /* forward pass: rows of prompts */                                                      \
    X(DECODE, "decode")       /* forward pass: one row for each next token */                                          \
    X(RECOMPUTE, "recompute") /* forward pass: rows that were computed before a preemption */                          \
    X(SAMPLING, "sampling")   /* from logits to tokens, grammars too */                                                \
    X(DELIVERY, "delivery")   /* callbacks: text of tokens, frames of answers */

enum dse_step_cause {
#define X(id, name) DSE_STEP_##id,
    DSE_STEP_CAUSES(X)
#undef X
        DSE_STEP_CAUSE_COUNT
};
extern const char *const dse_step_cause_names[DSE_STEP_CAUSE_COUNT];

struct dse_step_record {
    uint64_t number;                         /* from 1 */
    uint64_t begin_ns;                       /* dse_clock_ns, when waiting was over */
    uint64_t cause_ns[DSE_STEP_CAUSE_COUNT]; /* SWAP and WAIT lie before begin_ns */
    uint64_t prefill_rows, decode_rows, recompute_rows;
    uint64_t chunk_tokens;         /* limit on rows of prompts in this step */
    uint64_t n_tokens;             /* generated */
    uint64_t n_running, n_waiting; /* when the batch was formed */
    uint64_t kv_blocks_used;       /* after the step */
    uint64_t n_preempted;          /* requests set back by this step */
    uint64_t major_faults;         /* of the process: pages read from a file or from swap */
};

#define DSE_STEP_RECORD_WORDS (sizeof(struct dse_step_record) / sizeof(uint64_t))

struct dse_step_ring {
    _Atomic uint64_t last; /* number of the newest record, 0: none */
    struct {
        _Atomic uint64_t version; /* odd while it is written */
        _Atomic uint64_t words[DSE_STEP_RECORD_WORDS];
    } slots[DSE_STEP_RING_LENGTH];
};

/* Engine thread only. Gives the record the next number. */
void dse_step_ring_put(struct dse_step_ring *ring, struct dse_step_record *record);
/* Copies the records with numbers above `after`, oldest first, at most max (then the oldest of them); from any thread.
 * Those that the writer has taken back meanwhile are left out. */
int dse_step_ring_read(const struct dse_step_ring *ring, uint64_t after, struct dse_step_record *out, int max);

struct dse_engine;
const struct dse_step_ring *dse_engine_steps(const struct dse_engine *engine); /* borrowed */

#endif

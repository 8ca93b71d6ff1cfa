/* Who has a place in the batch (admission.c), and which rows make the next step (scheduler.c). Owned by the engine thread;
 * allocates only in init.
 *
 * A request that gets a place is promised KV blocks: for all of prompt and output when max_tokens is given, for the
 * prompt and a little more when it is not. Sequences of the second kind take further blocks as they grow. The order of
 * places is that of policy.h; whoever loses its place keeps its blocks while they are not needed, and whoever loses its
 * blocks is computed again later, which gives the same tokens (results do not depend on the batch).
 */
#ifndef DSE_ENGINE_SCHEDULER_H
#define DSE_ENGINE_SCHEDULER_H

#include "engine/chunk.h"
#include "engine/forward.h"
#include "engine/kv_pool.h"
#include "engine/policy.h"
#include "engine/prefix_disk.h"
#include "engine/task.h"

/* Rows of one sequence in a step. */
struct dse_span {
    struct dse_sequence *sequence;
    int first_row, n_rows;
};

struct dse_scheduler {
    struct dse_kv_pool pool;
    struct dse_prefix_disk *disk; /* borrowed; NULL: the prefix cache is in memory only */
    int n_loads; /* under way, and saved beginnings, with the blocks they fill or hold; also for tasks that are gone */
    struct dse_policy policy;
    uint64_t now_ns;          /* of the turn */
    struct dse_task *waiting; /* without blocks, by id */
    int n_waiting;
    struct dse_task **residents; /* with blocks, active or paused, in order of admission */
    int n_residents;
    int n_sequences; /* open choices of the active ones */
    int max_concurrent, max_sequences;
    struct dse_span *spans; /* of the step being formed */
    int n_spans;
    int n_prefill_rows, n_decode_rows, n_draft_rows;
    struct dse_speculation speculation;
    struct dse_task *stuck; /* a task of the step that did not get the blocks it was promised, a bug; else NULL */
    struct dse_sequence **candidates; /* [max_sequences] sequences with more than one token to compute */
};

DSE_MUST_CHECK enum dse_status dse_scheduler_init(struct dse_scheduler *scheduler, const struct dse_kv_layout *layout,
                                                  int n_blocks, int max_concurrent, int max_sequences, int max_tasks,
                                                  const struct dse_engine_options *options, struct dse_error *err);
void dse_scheduler_deinit(struct dse_scheduler *scheduler); /* safe on a zeroed struct; tasks are not freed */

void dse_scheduler_enqueue(struct dse_scheduler *scheduler, struct dse_task *task, uint64_t now_ns);
/* Takes a task off both lists; its blocks must have been released. */
void dse_scheduler_remove(struct dse_scheduler *scheduler, struct dse_task *task);
/* Takes what was read for tasks that wait for it. */
void dse_scheduler_collect(struct dse_scheduler *scheduler);
/* Gives the places of the batch to those that come first now. */
void dse_scheduler_admit(struct dse_scheduler *scheduler, uint64_t now_ns);
/* Fills forward->rows and the spans: one row per decoding sequence and what it drafts, then prompt tokens as many as chunk allows. The
 * caller must end the stuck task, if there is one. */
void dse_scheduler_form(struct dse_scheduler *scheduler, struct dse_forward *forward, const struct dse_chunk *chunk);
/* After the prompt was computed by the first open choice: gives the others their sequences. False only if the promise
 * made at admission did not hold, which would be a bug. */
DSE_MUST_CHECK bool dse_scheduler_fork(struct dse_scheduler *scheduler, struct dse_task *task);
/* Makes room for another to grow: what was read for waiting ones is given up, else one is set back, the last in order of those that are paused or were promised no end; `task`
 * itself if there is none. */
void dse_scheduler_make_room(struct dse_scheduler *scheduler, struct dse_task *task);
/* Active requests. */
int dse_scheduler_active(const struct dse_scheduler *scheduler);
/* Frees what a choice holds. */
void dse_scheduler_close_sequence(struct dse_scheduler *scheduler, struct dse_sequence *sequence);

#endif

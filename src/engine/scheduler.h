/* Who runs, who waits, and which rows make the next step. Owned by the engine thread; allocates only in init.
 *
 * Admission is first come, first served within a priority, and promises KV blocks: all of prompt and output when
 * max_tokens is given, prompt and a little more when it is not. A sequence of the second kind takes further blocks as
 * it grows; when there are none, one of them (of the lowest priority the one admitted last) goes back to the queue, in
 * front of all of its priority that came after it, and is computed again later, which gives the same tokens (results do
 * not depend on the batch).
 */
#ifndef DSE_ENGINE_SCHEDULER_H
#define DSE_ENGINE_SCHEDULER_H

#include "engine/forward.h"
#include "engine/kv_pool.h"
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
    int n_loads;                  /* under way, with the blocks they fill; also for tasks that are gone */
    struct dse_task *waiting;     /* by priority, then id */
    int n_waiting;
    struct dse_task **running; /* in order of admission */
    int n_running;
    int n_sequences; /* open choices of the running tasks */
    int max_concurrent, max_sequences;
    struct dse_span *spans; /* of the step being formed */
    int n_spans;
    int n_prefill_rows;
    struct dse_task *stuck; /* a task of the step that did not get the blocks it was promised, a bug; else NULL */
    struct dse_sequence **candidates; /* [max_sequences] sequences with more than one token to compute */
};

DSE_MUST_CHECK enum dse_status dse_scheduler_init(struct dse_scheduler *scheduler, const struct dse_kv_layout *layout,
                                                  int n_blocks, int max_concurrent, int max_sequences,
                                                  struct dse_error *err);
void dse_scheduler_deinit(struct dse_scheduler *scheduler); /* safe on a zeroed struct; tasks are not freed */

void dse_scheduler_enqueue(struct dse_scheduler *scheduler, struct dse_task *task);
/* Takes a task off both lists; its blocks must have been released. */
void dse_scheduler_remove(struct dse_scheduler *scheduler, struct dse_task *task);
/* Takes what was read for tasks that wait for it. */
void dse_scheduler_collect(struct dse_scheduler *scheduler);
/* Moves waiting tasks into the batch while there is room. */
void dse_scheduler_admit(struct dse_scheduler *scheduler, uint64_t now_ns);
/* Fills forward->rows and the spans: one row per decoding sequence, then prompt tokens up to prefill_tokens. The caller
 * must end the stuck task, if there is one. */
void dse_scheduler_form(struct dse_scheduler *scheduler, struct dse_forward *forward, int prefill_tokens);
/* After the prompt was computed by the first open choice: gives the others their sequences. False only if the promise
 * made at admission did not hold, which would be a bug. */
DSE_MUST_CHECK bool dse_scheduler_fork(struct dse_scheduler *scheduler, struct dse_task *task);
/* Frees what a choice holds. */
void dse_scheduler_close_sequence(struct dse_scheduler *scheduler, struct dse_sequence *sequence);

#endif

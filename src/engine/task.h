/* A request inside the engine: its sequences (one per choice), samplers and grammar states.
 *
 * Created by submit on the caller's thread with everything it will ever need; from then on it belongs to the engine
 * thread. Other threads only touch the atomic fields, under the engine's registry lock.
 */
#ifndef DSE_ENGINE_TASK_H
#define DSE_ENGINE_TASK_H

#include <dse/dse.h>
#include <stdatomic.h>

#include "engine/adapter.h"
#include "engine/kv_pool.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/speculate.h"

#define DSE_MAX_STOP_IDS 256

struct dse_task;

/* One choice. Tokens 0…n_prompt-1 are the prompt, then what was generated; kv.length of them are computed. The last
 * token is never computed before it is needed, so a running sequence has n_tokens - kv.length >= 1. */
struct dse_sequence {
    struct dse_task *task;
    int choice;
    struct dse_kv_sequence kv;
    int32_t *tokens; /* [n_prompt + max_new] */
    int n_tokens, n_generated;
    struct dse_sampler *sampler; /* NULL when nothing is generated */
    struct dse_grammar_state *grammar;
    bool grammar_on;
    struct dse_forced forced; /* what of them has not come yet */
    bool done;                /* its FINISH event is out or on its way */
    int allotted;             /* rows of the step being formed */
    /* Drafted in this step, behind n_tokens in tokens; how many of them came; how earlier ones did. */
    int n_drafted, n_taken;
    int all_drafted, all_taken; /* the same in all steps */
    struct dse_draft_record drafts;
    uint64_t first_token_ns, last_token_ns;
};

struct dse_task {
    uint64_t id;
    /* registry of the engine, under its lock */
    struct dse_task *registry_previous, *registry_next;
    atomic_bool cancelled;
    atomic_bool running;
    atomic_int shown_processed, shown_generated;
    _Atomic uint64_t shown_first_ns; /* of the first token of any choice */

    /* owned by the engine thread */
    struct dse_task *next; /* inbox, waiting list or list of the dead */
    int n_prompt, max_new, min_tokens, n_choices, n_open;
    int priority;
    uint64_t tenant;
    bool active, resident;              /* has a place in the batch; has blocks */
    bool considered, placed;            /* in the turn's walk */
    uint64_t waited_ns, waits_since_ns; /* without a place: so far, and since when if it has none */
    bool unbounded;                     /* max_tokens -1: reserves as it grows, may be set back to the queue */
    bool prompt_logprobs, hidden_states;
    bool prefilled; /* the prompt is computed and every choice has its own sequence */
    bool ignore_eos;
    bool loading;     /* waits for blocks that are read from files, with what it has of them */
    bool load_failed; /* not again */
    int n_announced;  /* prompt tokens whose logprob event is out */
    int n_hidden;     /* prompt tokens whose hidden state is out */
    int n_cached;     /* prompt tokens found in the prefix cache when it was first admitted */
    bool any_error, any_cancelled;
    int top_logprobs;
    int32_t *stops; /* ids of the model, then those of the request */
    int n_model_stops, n_stops;
    int grammar_after_token;
    struct dse_grammar *grammar; /* referenced */
    struct dse_adapter_set adapters;
    dse_event_fn *on_event;
    void *user;
    uint64_t submitted_ns, admitted_ns;
    struct dse_sequence sequences[DSE_MAX_CHOICES];
};

/* Checks the request against the model and the limits; every refusal names its field. */
DSE_MUST_CHECK enum dse_status dse_task_create(struct dse_model *model, const struct dse_request *request,
                                               int64_t context_length, int pool_blocks, int adapter_rank,
                                               struct dse_task **out, struct dse_error *err);
void dse_task_free(struct dse_task *task);

/* The first choice that is not done: before the choices part, their common sequence. */
struct dse_sequence *dse_task_lead(struct dse_task *task);

/* Before the task is posted: what its tokens may be shared with. */
void dse_task_set_scope(struct dse_task *task, const struct dse_prefix_scope *scope);

/* Tokens whose keys a sequence stores when it has run to its end: the last generated one is not computed. */
static inline int64_t dse_task_stored_tokens(const struct dse_task *task)
{
    return (int64_t)task->n_prompt + (task->max_new > 0 ? task->max_new - 1 : 0);
}

bool dse_task_is_stop(const struct dse_task *task, int32_t token);

#endif

/* Running requests in tests: a collector of events that a test can wait for, and the tiny reference models.
 *
 * Used by the engine's unit tests and the fidelity tests. The callback can hold the engine thread at a chosen event, so
 * that a test decides what happens while a request is in a certain state instead of hoping for the right moment.
 */
#ifndef DSE_TEST_ENGINE_SUPPORT_H
#define DSE_TEST_ENGINE_SUPPORT_H

#include <dse/dse.h>
#include <pthread.h>

#define RUN_MAX_TOKENS 2048

struct run {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t id;
    int n_choices, n_finished;
    struct {
        int32_t tokens[RUN_MAX_TOKENS];
        float logprobs[RUN_MAX_TOKENS];
        struct dse_token_logprob top[RUN_MAX_TOKENS][DSE_MAX_TOP_LOGPROBS];
        int n_top;
        int n_tokens, n_finish_events;
        bool saw_stop_token;
        enum dse_finish finish;
        struct dse_timings timings;
    } choice[DSE_MAX_CHOICES];
    struct dse_error error;
    uint64_t adapter_identity; /* as FINISH told it */
    int n_events, n_progress, n_processed;
    int n_prompt_logprobs, n_hidden;
    int32_t prompt_tokens[RUN_MAX_TOKENS];
    float prompt_logprobs[RUN_MAX_TOKENS];

    int stop_after;              /* > 0: the callback says stop at this token of a choice */
    enum dse_event_kind hold_at; /* with hold: the engine thread waits in the first event of this kind */
    bool hold, held, released;
};

/* path below the folder of reference models, e.g. "llama_linear" */
struct dse_model *open_reference(const char *path, enum dse_compute compute, int n_threads);
struct dse_model *open_reference_as(const char *path, struct dse_model_options options);
/* One of each architecture. */
#define REFERENCE_ARCHITECTURES 7
extern const char *const reference_architectures[REFERENCE_ARCHITECTURES];
const char *reference_path(const char *path); /* static buffer */
/* The same of tests/data/adapters, "llama_linear/a". */
const char *adapter_path(const char *path);
struct dse_adapter *open_adapter(struct dse_model *model, const char *path);
struct dse_engine *create_engine(struct dse_model *model, struct dse_engine_options options);
/* Two engines of one model, when nothing runs any more and no block is in use. */
void close_pair_of_engines(struct dse_engine *a, struct dse_engine *b, struct dse_model *model);

struct run *run_create(void);
void run_free(struct run *run);
bool run_on_event(void *user, const struct dse_event *event);
/* Fills on_event and user and submits; fails the test unless it is accepted. */
void run_submit(struct run *run, struct dse_engine *engine, struct dse_request request);
void run_wait(struct run *run);      /* all choices finished; fails the test after a minute */
void run_wait_held(struct run *run); /* the engine thread stands in the callback */
void run_release(struct run *run);
/* submit, wait: the whole life of one request */
struct run *run_request(struct dse_engine *engine, struct dse_request request);

/* Same tokens in every choice, bit-equal logprobs. */
bool runs_equal(const struct run *a, const struct run *b);
/* Waits until nothing runs and the KV pool is empty; fails the test if that does not happen. */
void wait_until_empty(void);
/* Deterministic prompt of ids in [2, n_vocab). */
void fill_prompt(int32_t *ids, int count, int n_vocab, uint64_t seed);

#endif

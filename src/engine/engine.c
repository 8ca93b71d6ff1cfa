/* The engine: one thread that owns all inference state, a mailbox in front of it, and the public calls.
 *
 * Any thread submits, cancels or looks; the lock that they share with the engine thread is held for a few loads and
 * stores, never while something is computed or a callback runs.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/prefix_scope.h"
#include "engine/prefix_tier.h"
#include "engine/saved_prefix.h"

/* Blocks that are in no file when the engine ends are written for so long. */
#define SAVE_AT_END_NS            5000000000u
#define DEFAULT_PREFIX_DISK_BYTES ((uint64_t)4 << 30)

static void publish_gauges(struct dse_engine *engine)
{
    const struct dse_scheduler *s = &engine->scheduler;
    const int active = dse_scheduler_active(s);
    dse_gauge_set(DSE_GAUGE_REQUESTS_RUNNING, active);
    dse_gauge_set(DSE_GAUGE_REQUESTS_WAITING, s->n_waiting + s->n_residents - active);
    dse_gauge_set(DSE_GAUGE_KV_BLOCKS_USED, dse_kv_pool_used(&s->pool));
    dse_gauge_set(DSE_GAUGE_KV_BLOCKS_CACHED, s->pool.cache.n_parked);
}

void dse_engine_unregister(struct dse_engine *engine, struct dse_task *task)
{
    pthread_mutex_lock(&engine->lock);
    if (task->registry_previous != NULL)
        task->registry_previous->registry_next = task->registry_next;
    else
        engine->registry = task->registry_next;
    if (task->registry_next != NULL) task->registry_next->registry_previous = task->registry_previous;
    engine->n_in_flight--;
    pthread_mutex_unlock(&engine->lock);
    publish_gauges(engine);
}

/* ---- engine thread ---- */

static void finish_task(struct dse_engine *engine, struct dse_task *task, enum dse_finish finish,
                        const struct dse_error *error)
{
    int n_choices = task->n_choices;
    for (int i = 0; i < n_choices; i++)
        if (!task->sequences[i].done) dse_engine_finish(engine, &task->sequences[i], finish, error);
}

static void free_dead(struct dse_engine *engine)
{
    while (engine->dead != NULL) {
        struct dse_task *task = engine->dead;
        engine->dead = task->next;
        dse_task_free(task);
    }
}

static void finish_all(struct dse_engine *engine, enum dse_finish finish, const struct dse_error *error)
{
    struct dse_scheduler *s = &engine->scheduler;
    while (s->n_residents > 0)
        finish_task(engine, s->residents[s->n_residents - 1], finish, error);
    while (s->waiting != NULL)
        finish_task(engine, s->waiting, finish, error);
}

static void finish_cancelled(struct dse_engine *engine)
{
    struct dse_scheduler *s = &engine->scheduler;
    for (int i = s->n_residents - 1; i >= 0; i--)
        if (atomic_load_explicit(&s->residents[i]->cancelled, memory_order_relaxed))
            finish_task(engine, s->residents[i], DSE_FINISH_CANCELLED, NULL);
    for (struct dse_task *task = s->waiting, *next; task != NULL; task = next) {
        next = task->next;
        if (atomic_load_explicit(&task->cancelled, memory_order_relaxed))
            finish_task(engine, task, DSE_FINISH_CANCELLED, NULL);
    }
}

static void fail_all_truncated(struct dse_engine *engine)
{
    struct dse_error error;
    atomic_store(&engine->broken, true);
    (void)dse_fail_at(&error, DSE_ERR_UNAVAILABLE, engine->model->info.path, -1,
                      "model file %s was truncated while in use: restart with a whole file", engine->model->info.path);
    dse_log(DSE_LOG_ERROR, "engine", "%s", error.message);
    if (engine->disk != NULL) dse_prefix_tier_stop_saving(&engine->scheduler.pool);
    finish_all(engine, DSE_FINISH_ERROR, &error);
}

/* Runs on the thread of the disk tier. */
static void on_disk_news(void *user)
{
    struct dse_engine *engine = user;
    pthread_mutex_lock(&engine->lock);
    engine->disk_news = true;
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
}

/* While requests run, a step waits for the copy of one block at most. */
static void save(struct dse_engine *engine)
{
    struct dse_scheduler *s = &engine->scheduler;
    const uint64_t begin_ns = dse_clock_ns();
    if (engine->disk == NULL) return;
    dse_prefix_tier_save(&s->pool, engine->disk, s->n_residents > 0 ? 1 : INT_MAX);
    dse_step_meter_swapped(&engine->meter, begin_ns);
}

/* What is in no file yet, before the memory goes. */
static void save_rest(struct dse_engine *engine)
{
    const uint64_t end = dse_clock_ns() + SAVE_AT_END_NS;
    if (engine->disk == NULL) return;
    for (save(engine); engine->scheduler.pool.cache.unsaved >= 0 && dse_clock_ns() < end; save(engine)) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_mutex_lock(&engine->lock);
        while (!engine->disk_news && pthread_cond_timedwait(&engine->wake, &engine->lock, &until) == 0)
            ;
        engine->disk_news = false;
        pthread_mutex_unlock(&engine->lock);
    }
}

/* Sleeps while there is nothing to do. Moves new tasks to the scheduler; false when the engine is to end. */
static bool receive(struct dse_engine *engine, bool *cancels)
{
    struct dse_scheduler *s = &engine->scheduler;
    const uint64_t asked_ns = dse_clock_ns();
    bool idle = s->n_residents == 0 && (s->waiting == NULL || s->n_loads > 0);
    pthread_mutex_lock(&engine->lock);
    while (idle && !engine->stopping && engine->inbox == NULL && !engine->cancel_pending && !engine->disk_news &&
           engine->transfers == NULL)
        pthread_cond_wait(&engine->wake, &engine->lock);
    engine->disk_news = false;
    struct dse_task *arrived = engine->inbox;
    engine->inbox = NULL;
    engine->inbox_end = &engine->inbox;
    *cancels = engine->cancel_pending;
    engine->cancel_pending = false;
    bool stopping = engine->stopping;
    pthread_mutex_unlock(&engine->lock);
    dse_step_meter_waited(&engine->meter, asked_ns);
    while (arrived != NULL) {
        struct dse_task *task = arrived;
        arrived = task->next;
        dse_scheduler_enqueue(s, task, dse_clock_ns());
    }
    return !stopping;
}

static void *engine_main(void *argument)
{
    struct dse_engine *engine = argument;
    struct dse_scheduler *s = &engine->scheduler;
    bool cancels;
    while (receive(engine, &cancels)) {
        if (cancels) finish_cancelled(engine);
        dse_engine_transfers(engine);
        dse_scheduler_collect(s);
        if (s->n_residents > 0 || s->waiting != NULL) {
            if (!dse_model_intact(engine->model)) fail_all_truncated(engine);
            dse_scheduler_admit(s, dse_clock_ns());
            publish_gauges(engine);
            if (!dse_engine_step(engine) && s->n_residents == 0 && s->waiting != NULL && s->n_loads == 0) {
                /* Nothing runs and the first in line cannot: submit should have refused it. Never spin on it. */
                struct dse_error error;
                (void)dse_fail(&error, DSE_ERR_INTERNAL, "the request does not fit an empty KV pool");
                finish_task(engine, s->waiting, DSE_FINISH_ERROR, &error);
            }
        }
        save(engine);
        publish_gauges(engine);
        free_dead(engine);
    }
    finish_all(engine, DSE_FINISH_CANCELLED, NULL);
    free_dead(engine);
    save_rest(engine);
    pthread_mutex_lock(&engine->lock);
    engine->ended = true;
    pthread_cond_broadcast(&engine->transferred);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- life ---- */

static enum dse_status take_buffers(struct dse_engine *engine, const struct dse_engine_options *options,
                                    struct dse_error *err)
{
    const struct dse_engine_sizes *sizes = &engine->sizes;
    const struct dse_model *model = engine->model;
    size_t tokens = model->tokenizer != NULL ? dse_tokenizer_count(model->tokenizer) : 0;
    if (tokens < (size_t)model->file->config.n_vocab) tokens = (size_t)model->file->config.n_vocab;
    enum dse_status status = dse_scheduler_init(&engine->scheduler, &model->kv_layout, sizes->n_blocks,
                                                sizes->plan.max_concurrent, sizes->max_sequences,
                                                sizes->plan.max_concurrent + sizes->max_queue, options, err);
    if (status == DSE_OK)
        status = dse_forward_init(&engine->forward, engine->model, sizes->max_rows, sizes->max_out, err);
    if (status == DSE_OK && options != NULL)
        status = dse_forward_take_adapters(&engine->forward, options->adapter_rank, err);
    if (status != DSE_OK) return status;
    engine->out_rows = dse_calloc(DSE_MEM_SCRATCH, (size_t)sizes->max_rows, sizeof *engine->out_rows);
    engine->out_index = dse_calloc(DSE_MEM_SCRATCH, (size_t)sizes->max_out, sizeof *engine->out_index);
    engine->choice_logits = dse_calloc(DSE_MEM_SCRATCH, (size_t)model->file->config.n_vocab, sizeof(float));
    engine->hidden = dse_calloc(DSE_MEM_SCRATCH, (size_t)model->file->config.n_embd, sizeof(float));
    engine->mask = dse_calloc(DSE_MEM_SCRATCH, (tokens + 63) / 64, sizeof *engine->mask);
    if (engine->out_rows == NULL || engine->out_index == NULL || engine->choice_logits == NULL ||
        engine->hidden == NULL || engine->mask == NULL)
        return dse_fail_memory(err, tokens * sizeof(float), "step buffers");
    return DSE_OK;
}

/* Without the bound that was asked for, all of the pool may be remembered. */
static enum dse_status start_cache(struct dse_engine *engine, const struct dse_engine_options *options,
                                   struct dse_error *err)
{
    struct dse_kv_pool *pool = &engine->scheduler.pool;
    if (options == NULL) return DSE_OK;
    if (options->prefix_cache_disk != NULL && !options->prefix_caching)
        return dse_fail_at(err, DSE_ERR_INVALID, "prefix_cache_disk", -1,
                           "a prefix cache on disk (--prefix-cache-disk) was asked for, and prefix caching is off");
    if (!options->prefix_caching) return DSE_OK;
    uint64_t blocks = (uint64_t)pool->n_blocks;
    if (options->prefix_cache_bytes > 0 && options->prefix_cache_bytes / pool->layout.block_bytes < blocks)
        blocks = options->prefix_cache_bytes / pool->layout.block_bytes;
    dse_prefix_model(engine->model, engine->model_identity);
    enum dse_status status = dse_kv_pool_cache(pool, (int)blocks, err);
    if (status != DSE_OK || options->prefix_cache_disk == NULL) return status;
    uint64_t space = options->prefix_cache_disk_bytes > 0 ? options->prefix_cache_disk_bytes
                                                          : DEFAULT_PREFIX_DISK_BYTES;
    status = dse_prefix_disk_open(options->prefix_cache_disk, space, engine->model_identity[0],
                                  pool->layout.block_bytes, on_disk_news, engine, &engine->disk, err);
    engine->scheduler.disk = engine->disk;
    pool->cache.saving = engine->disk != NULL;
    return status;
}

/* One row through all layers and the head: pages of the weights come in before the first client waits for them. */
static void warm_up(struct dse_engine *engine)
{
    struct dse_scheduler *s = &engine->scheduler;
    int32_t block, row = 0;
    struct dse_kv_sequence sequence = {.blocks = &block, .max_blocks = 1};
    if (!dse_kv_extend(&s->pool, &sequence, 1)) return;
    dse_forward_clear(&engine->forward);
    dse_forward_push(&engine->forward, 0, 0, dse_kv_view(&s->pool, &sequence));
    dse_forward_run(&engine->forward, &s->pool.layout);
    dse_forward_logits(&engine->forward, &row, 1, engine->forward.logits);
    dse_kv_release(&s->pool, &sequence);
}

/* Experts that are not chosen need no memory, so a model may be larger than it. What every token needs is to stay. */
static void keep_core(struct dse_engine *engine)
{
    struct dse_memory_plan *plan = &engine->sizes.plan;
    const struct dse_model *model = engine->model;
    if (plan->mapped_weight_bytes == 0 || plan->total_bytes <= plan->available_bytes) return;
    if (model->device->ops->keep(model->device, &model->weights))
        plan->locked_bytes = plan->mapped_weight_bytes - plan->expert_bytes;
}

enum dse_status dse_engine_create(struct dse_model *model, const struct dse_engine_options *options,
                                  struct dse_engine **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_engine *engine = dse_calloc(DSE_MEM_MISC, 1, sizeof *engine);
    if (engine == NULL) return dse_fail_memory(err, sizeof *engine, "engine");
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->wake, NULL);
    pthread_cond_init(&engine->transferred, NULL);
    engine->model = dse_model_ref(model);
    engine->inbox_end = &engine->inbox;
    engine->next_id = 1;
    atomic_init(&engine->broken, false);

    enum dse_status status = dse_budget_plan(model, options, dse_cgroup_memory_limit(""), &engine->sizes, err);
    if (status == DSE_OK) status = take_buffers(engine, options, err);
    if (status == DSE_OK) status = start_cache(engine, options, err);
    if (status != DSE_OK) goto fail;
    dse_model_limit_adapters(model, options != NULL ? options->adapter_bytes : 0);
    keep_core(engine);
    dse_chunk_init(&engine->chunk, engine->sizes.chunk_tokens);
    if (options != NULL && options->warmup) warm_up(engine);
    dse_gauge_set(DSE_GAUGE_KV_BLOCKS_TOTAL, engine->sizes.n_blocks);
    dse_gauge_set(DSE_GAUGE_KV_BYTES, (int64_t)engine->sizes.plan.kv_bytes);
    dse_gauge_set(DSE_GAUGE_SCRATCH_BYTES, (int64_t)engine->sizes.plan.scratch_bytes);

    int error_number = pthread_create(&engine->thread, NULL, engine_main, engine);
    if (error_number != 0) {
        status = dse_fail_errno(err, error_number, "", "start the engine thread");
        goto fail;
    }
    engine->thread_started = true;
    *out = engine;
    return DSE_OK;

fail:
    dse_engine_free(engine);
    return status;
}

void dse_engine_free(struct dse_engine *engine)
{
    if (engine == NULL) return;
    if (engine->thread_started) {
        pthread_mutex_lock(&engine->lock);
        engine->stopping = true;
        pthread_cond_signal(&engine->wake);
        pthread_mutex_unlock(&engine->lock);
        pthread_join(engine->thread, NULL);
        /* Who was preparing a request finds the engine stopping and gives its place back, the last thing it does
         * here. */
        pthread_mutex_lock(&engine->lock);
        while (engine->n_in_flight > 0)
            pthread_cond_wait(&engine->wake, &engine->lock);
        while (engine->n_transfers > 0) /* they read and write blocks of the pool */
            pthread_cond_wait(&engine->transferred, &engine->lock);
        pthread_mutex_unlock(&engine->lock);
    }
    dse_prefix_disk_close(engine->disk); /* first: it may be reading into the pool */
    dse_scheduler_deinit(&engine->scheduler);
    dse_forward_deinit(&engine->forward);
    dse_free(engine->out_rows);
    dse_free(engine->out_index);
    dse_free(engine->choice_logits);
    dse_free(engine->hidden);
    dse_free(engine->mask);
    dse_model_unref(engine->model);
    pthread_cond_destroy(&engine->wake);
    pthread_cond_destroy(&engine->transferred);
    pthread_mutex_destroy(&engine->lock);
    dse_free(engine);
}

void dse_engine_get_plan(const struct dse_engine *engine, struct dse_memory_plan *plan)
{
    *plan = engine->sizes.plan;
}

struct dse_model *dse_engine_model(const struct dse_engine *engine)
{
    return engine->model;
}

/* ---- requests, from any thread ---- */

static enum dse_status shutting_down(struct dse_error *err)
{
    return dse_fail(err, DSE_ERR_UNAVAILABLE, "the engine is shutting down");
}

/* Takes a place before the work of preparing a request, so that a flood of them costs little. */
static enum dse_status take_place(struct dse_engine *engine, struct dse_error *err)
{
    int limit = engine->sizes.plan.max_concurrent + engine->sizes.max_queue;
    pthread_mutex_lock(&engine->lock);
    bool stopping = engine->stopping, full = engine->n_in_flight >= limit;
    if (!stopping && !full) engine->n_in_flight++;
    pthread_mutex_unlock(&engine->lock);
    if (stopping) return shutting_down(err);
    if (!full) return DSE_OK;
    enum dse_status status = dse_fail(err, DSE_ERR_BUSY, "the queue is full: %d requests run, %d wait; try again later",
                                      engine->sizes.plan.max_concurrent, engine->sizes.max_queue);
    if (err != NULL) {
        err->need = limit + 1;
        err->have = limit;
    }
    return status;
}

static void give_place_back(struct dse_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->n_in_flight--;
    pthread_cond_signal(&engine->wake); /* dse_engine_free may wait for it */
    pthread_mutex_unlock(&engine->lock);
}

/* 0 when the engine has begun to stop: nobody would look at the task any more. */
static uint64_t post(struct dse_engine *engine, struct dse_task *task)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->stopping) {
        pthread_mutex_unlock(&engine->lock);
        return 0;
    }
    dse_counter_add(DSE_COUNTER_REQUESTS, 1);
    uint64_t id = task->id = engine->next_id++; /* the task may be gone as soon as the lock is */
    task->registry_next = engine->registry;
    if (engine->registry != NULL) engine->registry->registry_previous = task;
    engine->registry = task;
    *engine->inbox_end = task;
    engine->inbox_end = &task->next;
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    return id;
}

bool dse_engine_usable(const struct dse_engine *engine)
{
    return !atomic_load(&engine->broken) && dse_model_intact(engine->model);
}

enum dse_status dse_engine_submit(struct dse_engine *engine, const struct dse_request *request, uint64_t *id,
                                  struct dse_error *err)
{
    struct dse_task *task = NULL;
    enum dse_status status = DSE_OK;
    if (!dse_engine_usable(engine))
        status = dse_fail_at(err, DSE_ERR_UNAVAILABLE, engine->model->info.path, -1,
                             "model file %s was truncated while in use", engine->model->info.path);
    if (status == DSE_OK) status = take_place(engine, err);
    if (status == DSE_OK) {
        status = dse_task_create(engine->model, request, engine->sizes.plan.context_length, engine->sizes.n_blocks,
                                 engine->forward.adapter_rank, &task, err);
        if (status != DSE_OK) give_place_back(engine);
    }
    if (status != DSE_OK) {
        if (status != DSE_ERR_INVALID) dse_counter_add(DSE_COUNTER_REQUESTS_REJECTED, 1);
        return status;
    }
    const struct dse_prefix_scope scope = dse_prefix_scope_of(engine->model_identity, request, &task->adapters);
    dse_task_set_scope(task, &scope);
    task->submitted_ns = dse_clock_ns();
    uint64_t number = post(engine, task);
    if (number == 0) {
        dse_task_free(task);
        give_place_back(engine);
        return shutting_down(err);
    }
    if (id != NULL) *id = number;
    return DSE_OK;
}

void dse_engine_cancel(struct dse_engine *engine, uint64_t id)
{
    pthread_mutex_lock(&engine->lock);
    for (struct dse_task *task = engine->registry; task != NULL; task = task->registry_next) {
        if (task->id != id) continue;
        atomic_store_explicit(&task->cancelled, true, memory_order_relaxed);
        engine->cancel_pending = true;
        pthread_cond_signal(&engine->wake);
        break;
    }
    pthread_mutex_unlock(&engine->lock);
}

int dse_engine_slots(const struct dse_engine *engine, struct dse_slot *slots, int max_slots)
{
    struct dse_engine *writable = (struct dse_engine *)engine; /* for the lock only */
    int count = 0;
    pthread_mutex_lock(&writable->lock);
    for (struct dse_task *task = writable->registry; task != NULL && count < max_slots; task = task->registry_next)
        slots[count++] = (struct dse_slot){
            .id = task->id,
            .running = atomic_load_explicit(&task->running, memory_order_relaxed),
            .n_choices = task->n_choices,
            .submitted_ns = task->submitted_ns,
            .first_token_ns = atomic_load_explicit(&task->shown_first_ns, memory_order_relaxed),
            .n_prompt = task->n_prompt,
            .n_processed = atomic_load_explicit(&task->shown_processed, memory_order_relaxed),
            .n_generated = atomic_load_explicit(&task->shown_generated, memory_order_relaxed),
        };
    pthread_mutex_unlock(&writable->lock);
    /* Oldest first: the registry puts new ones in front. */
    for (int i = 0; i < count / 2; i++) {
        struct dse_slot other = slots[i];
        slots[i] = slots[count - 1 - i];
        slots[count - 1 - i] = other;
    }
    return count;
}

/* Checking a request and taking its memory. Runs on the thread that submits; knows nothing of scheduling. */
#include "engine/task.h"

#include <string.h>

#include "base/alloc.h"

const struct dse_sampling dse_sampling_default = {
    .temperature = 1.0f,
    .top_p = 1.0f,
    .repetition_penalty = 1.0f,
    .top_logprobs = -1,
};

const struct dse_request dse_request_default = {
    .max_tokens = -1,
    .n_choices = 1,
    .sampling = {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .top_logprobs = -1},
    .grammar_after_token = -1,
};

static enum dse_status check_int(int value, int low, int high, const char *field, struct dse_error *err)
{
    if (value >= low && value <= high) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s is %d, it must lie between %d and %d", field, value, low,
                       high);
}

static enum dse_status check_ids(const int32_t *ids, int count, int n_vocab, const char *field, struct dse_error *err)
{
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s[%d] is token %d, the vocabulary has 0…%d", field, i,
                               ids[i], n_vocab - 1);
    return DSE_OK;
}

static enum dse_status check_request(const struct dse_model *model, const struct dse_request *r, int64_t context,
                                     struct dse_error *err)
{
    const int n_vocab = model->file->config.n_vocab;
    if (r->on_event == NULL) return dse_fail_at(err, DSE_ERR_INVALID, "on_event", -1, "on_event is missing");
    if (r->prompt == NULL || r->n_prompt < 1)
        return dse_fail_at(err, DSE_ERR_INVALID, "prompt", -1, "the prompt is empty");
    enum dse_status status = check_int(r->max_tokens, -1, INT32_MAX, "max_tokens", err);
    if (status != DSE_OK) return status;
    /* Output needs a place as well; a request for prefill only may fill the context. */
    if (r->n_prompt > context || (r->n_prompt == context && r->max_tokens != 0)) {
        status = dse_fail_at(err, DSE_ERR_TOO_LONG, "prompt", -1,
                             "the prompt has %d tokens, the context is %lld for prompt and output", r->n_prompt,
                             (long long)context);
        if (err != NULL) {
            err->need = r->n_prompt;
            err->have = context;
        }
        return status;
    }
    status = check_ids(r->prompt, r->n_prompt, n_vocab, "prompt", err);
    if (status == DSE_OK) status = check_int(r->min_tokens, 0, INT32_MAX, "min_tokens", err);
    if (status == DSE_OK) status = check_int(r->n_choices, 1, DSE_MAX_CHOICES, "n_choices", err);
    if (status == DSE_OK) status = check_int(r->n_stop_tokens, 0, DSE_MAX_STOP_IDS, "stop_tokens", err);
    if (status == DSE_OK && r->n_stop_tokens > 0 && r->stop_tokens == NULL)
        status = dse_fail_at(err, DSE_ERR_INVALID, "stop_tokens", -1, "stop_tokens has a count but no ids");
    if (status == DSE_OK) status = check_ids(r->stop_tokens, r->n_stop_tokens, n_vocab, "stop_tokens", err);
    if (status == DSE_OK && r->grammar != NULL)
        status = check_int(r->grammar_after_token, -1, n_vocab - 1, "grammar_after_token", err);
    if (status == DSE_OK && r->cache_salt_bytes > 0 && r->cache_salt == NULL)
        status = dse_fail_at(err, DSE_ERR_INVALID, "cache_salt", -1, "cache_salt has a length but no bytes");
    if (status == DSE_OK && r->forced.n_tokens > 0)
        status = check_ids(r->forced.tokens, r->forced.n_tokens, n_vocab, "forced", err);
    if (status == DSE_OK && r->n_adapters > 0 && r->adapters == NULL)
        status = dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1, "adapters has a count but no entries");
    if (status == DSE_OK && r->sampling.n_logit_bias > 0 && r->sampling.logit_bias == NULL)
        status = dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1, "logit_bias has a count but no entries");
    return status;
}

/* How many tokens each choice may generate, and that the pool could hold them all if it had nothing else to do. */
static enum dse_status resolve_length(struct dse_task *task, const struct dse_request *r, int64_t context,
                                      int pool_blocks, struct dse_error *err)
{
    int64_t room = context - r->n_prompt;
    task->unbounded = r->max_tokens < 0;
    task->max_new = (int)(task->unbounded || r->max_tokens > room ? room : r->max_tokens);
    int64_t shared = r->n_prompt / DSE_KV_BLOCK_TOKENS;
    int64_t own = dse_kv_blocks_for(dse_task_stored_tokens(task)) - shared;
    int64_t need = shared + own * (task->max_new > 0 ? task->n_choices : 1);
    if (need <= pool_blocks) return DSE_OK;
    if (task->unbounded) {
        /* "to the end of the context" of several choices means: as far as the pool goes */
        own = (pool_blocks - shared) / task->n_choices;
        int64_t stored = (shared + own) * DSE_KV_BLOCK_TOKENS;
        if (own > 0 && stored >= r->n_prompt) {
            task->max_new = (int)(stored - r->n_prompt + 1 < room ? stored - r->n_prompt + 1 : room);
            return DSE_OK;
        }
    }
    enum dse_status status = dse_fail_at(err, DSE_ERR_NO_MEMORY, "max_tokens", -1,
                                         "%d choices of %d prompt and %d output tokens need %lld KV blocks, the pool "
                                         "has %d: ask for fewer tokens or choices",
                                         task->n_choices, r->n_prompt, task->max_new, (long long)need, pool_blocks);
    if (err != NULL) {
        err->need = need * DSE_KV_BLOCK_TOKENS;
        err->have = (int64_t)pool_blocks * DSE_KV_BLOCK_TOKENS;
    }
    return status;
}

static enum dse_status copy_stops(struct dse_task *task, const struct dse_model *model, const struct dse_request *r,
                                  struct dse_error *err)
{
    task->n_model_stops = model->n_stop_tokens;
    task->n_stops = model->n_stop_tokens + r->n_stop_tokens;
    task->stops = dse_calloc(DSE_MEM_REQUEST, (size_t)task->n_stops + 1, sizeof *task->stops);
    if (task->stops == NULL) return dse_fail_memory(err, (size_t)task->n_stops * sizeof *task->stops, "stop tokens");
    if (model->n_stop_tokens > 0)
        memcpy(task->stops, model->stop_tokens, (size_t)model->n_stop_tokens * sizeof *task->stops);
    if (r->n_stop_tokens > 0)
        memcpy(task->stops + task->n_model_stops, r->stop_tokens, (size_t)r->n_stop_tokens * sizeof *task->stops);
    return DSE_OK;
}

static enum dse_status create_sequence(struct dse_sequence *sequence, const struct dse_model *model,
                                       const struct dse_request *r, const struct dse_token_trie *trie,
                                       struct dse_error *err)
{
    struct dse_task *task = sequence->task;
    int64_t capacity = (int64_t)task->n_prompt + task->max_new;
    sequence->kv.max_blocks = dse_kv_blocks_for(dse_task_stored_tokens(task));
    sequence->tokens = dse_calloc(DSE_MEM_REQUEST, (size_t)capacity, sizeof *sequence->tokens);
    sequence->kv.blocks = dse_calloc(DSE_MEM_REQUEST, (size_t)sequence->kv.max_blocks, sizeof *sequence->kv.blocks);
    if (sequence->tokens == NULL || sequence->kv.blocks == NULL)
        return dse_fail_memory(err, (size_t)capacity * sizeof *sequence->tokens, "tokens of a request");
    sequence->forced = r->forced;
    memcpy(sequence->tokens, r->prompt, (size_t)r->n_prompt * sizeof *sequence->tokens);
    sequence->n_tokens = r->n_prompt;

    /* Also when nothing will be sampled: the sampler is what checks the sampling parameters. */
    enum dse_status status = dse_sampler_create(&r->sampling, model->file->config.n_vocab, model->n_samplable,
                                                (int)capacity, &sequence->sampler, err);
    if (status != DSE_OK) return status;
    dse_sampler_observe(sequence->sampler, r->prompt, r->n_prompt, true);
    if (task->grammar == NULL) return DSE_OK;
    sequence->grammar_on = r->grammar_after_token < 0;
    return dse_grammar_state_create(task->grammar, trie, &sequence->grammar, err);
}

enum dse_status dse_task_create(struct dse_model *model, const struct dse_request *r, int64_t context_length,
                                int pool_blocks, int adapter_rank, struct dse_task **out, struct dse_error *err)
{
    const struct dse_token_trie *trie = NULL;
    *out = NULL;
    enum dse_status status = check_request(model, r, context_length, err);
    if (status == DSE_OK && r->grammar != NULL) status = dse_model_trie(model, &trie, err);
    if (status != DSE_OK) return status;

    struct dse_task *task = dse_calloc(DSE_MEM_REQUEST, 1, sizeof *task);
    if (task == NULL) return dse_fail_memory(err, sizeof *task, "a request");
    atomic_init(&task->cancelled, false);
    atomic_init(&task->running, false);
    atomic_init(&task->shown_processed, 0);
    atomic_init(&task->shown_generated, 0);
    atomic_init(&task->shown_first_ns, 0);
    task->n_prompt = r->n_prompt;
    task->min_tokens = r->min_tokens;
    task->n_choices = task->n_open = r->n_choices;
    task->priority = r->priority;
    task->tenant = r->tenant;
    task->prompt_logprobs = r->prompt_logprobs;
    task->hidden_states = r->hidden_states;
    task->n_announced = 1; /* nothing predicts the first token */
    task->ignore_eos = r->ignore_eos;
    task->top_logprobs = r->sampling.top_logprobs;
    task->grammar_after_token = r->grammar_after_token;
    task->on_event = r->on_event;
    task->user = r->user;
    if (r->grammar != NULL) task->grammar = dse_grammar_ref(r->grammar);

    status = dse_adapter_set_init(&task->adapters, model, r->adapters, r->n_adapters, adapter_rank, err);
    if (status == DSE_OK) status = resolve_length(task, r, context_length, pool_blocks, err);
    if (status == DSE_OK) status = copy_stops(task, model, r, err);
    for (int i = 0; i < task->n_choices && status == DSE_OK; i++) {
        task->sequences[i].task = task;
        task->sequences[i].choice = i;
        status = create_sequence(&task->sequences[i], model, r, trie, err);
    }
    if (status != DSE_OK) {
        dse_task_free(task);
        return status;
    }
    *out = task;
    return DSE_OK;
}

struct dse_sequence *dse_task_lead(struct dse_task *task)
{
    for (int i = 0; i < task->n_choices; i++)
        if (!task->sequences[i].done) return &task->sequences[i];
    return NULL;
}

void dse_task_set_scope(struct dse_task *task, const struct dse_prefix_scope *scope)
{
    for (int i = 0; i < task->n_choices; i++)
        task->sequences[i].kv.chain.scope = *scope;
}

void dse_task_free(struct dse_task *task)
{
    if (task == NULL) return;
    for (int i = 0; i < task->n_choices; i++) {
        struct dse_sequence *sequence = &task->sequences[i];
        dse_sampler_free(sequence->sampler);
        dse_grammar_state_free(sequence->grammar);
        dse_free(sequence->tokens);
        dse_free(sequence->kv.blocks);
    }
    dse_grammar_unref(task->grammar);
    dse_adapter_set_deinit(&task->adapters);
    dse_free(task->stops);
    dse_free(task);
}

bool dse_task_is_stop(const struct dse_task *task, int32_t token)
{
    for (int i = task->ignore_eos ? task->n_model_stops : 0; i < task->n_stops; i++)
        if (task->stops[i] == token) return true;
    return false;
}

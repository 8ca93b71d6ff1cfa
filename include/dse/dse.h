/* libdse: run a language model.
 *
 *   struct dse_model   weights on the device, tokenizer, template. Immutable, shared, reference counted.
 *   struct dse_engine  one thread that owns all inference state (KV cache, batch) of one model. Requests are posted to
 *                      it from any thread; their tokens come back through a callback that runs on the engine thread.
 *   request            a prompt of token ids, sampling parameters, limits. Any number run at once in one batch.
 *
 * Memory is planned when the engine is created and admitted per request: a request that was accepted will not fail for
 * lack of KV memory. Results do not depend on what else is in the batch, on the thread count or on chunk sizes; with
 * DSE_NUMERICS_FAST they depend on how the prompt was cut into steps, in which other requests and the clock have a
 * part. Nothing here prints, logs or exits.
 *
 * The installed headers are this one, error.h and version.h: token ids in, token ids out. Text is not part of them:
 * tokenizer, chat template, stop texts and grammars (src/text) have no installed header yet, so their types below are
 * opaque to a program outside this tree, which brings its own tokenizer or speaks HTTP with `deepseek-edge serve`.
 */
#ifndef DSE_DSE_H
#define DSE_DSE_H

#include <dse/error.h>
#include <dse/version.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dse_model;
struct dse_engine;
struct dse_tokenizer;
struct dse_template;
struct dse_grammar;

/* ---- model ------------------------------------------------------------------------------------------------- */

enum dse_compute {
    DSE_COMPUTE_AUTO, /* integer activations for quantized weights, f32 accumulation */
    DSE_COMPUTE_F32,  /* everything in f32: reference numbers, slow */
};

/* How latent attention computes a prompt; models without it know no difference. */
enum dse_numerics {
    DSE_NUMERICS_EXACT, /* absorbed everywhere: a token gets the same bits however it came, in a prompt or an answer */
    /* Many rows of one prompt in one step attend in expanded form where that takes fewer multiplications. Results then
     * also depend on how the prompt was cut into steps, so what is cached or replayed belongs to one setting. */
    DSE_NUMERICS_FAST,
};

/* Element type of the KV cache. */
enum dse_kv_cache {
    DSE_KV_CACHE_AUTO, /* f16, or f32 with DSE_COMPUTE_F32 */
    DSE_KV_CACHE_F16,
    DSE_KV_CACHE_Q8_0, /* latents of latent attention in 8 bits, their rope part in f16; no other model */
};

struct dse_model_options {
    int n_threads; /* 0: what the machine and container allow */
    enum dse_compute compute;
    enum dse_numerics numerics;
    enum dse_kv_cache kv_cache;
    const char *device;     /* NULL or "auto" or "cpu"; others are DSE_ERR_DEVICE */
    const char *pack_cache; /* folder for packed weights, NULL: keep them in anonymous memory */
    bool mtp;               /* load the multi-token prediction layer too; a model without one is DSE_ERR_UNSUPPORTED */
};

/* path: GGUF file or Hugging Face folder. */
DSE_MUST_CHECK enum dse_status dse_model_open(const char *path, const struct dse_model_options *options,
                                              struct dse_model **model, struct dse_error *err);
struct dse_model *dse_model_ref(struct dse_model *model);
void dse_model_unref(struct dse_model *model);

/* How an embedding model makes one vector of its hidden states, as its file says. */
enum dse_pooling {
    DSE_POOLING_NONE,  /* the file says nothing */
    DSE_POOLING_MEAN,  /* of all tokens */
    DSE_POOLING_FIRST, /* the first token's */
    DSE_POOLING_LAST,  /* the last token's */
    DSE_POOLING_RANK,  /* a score instead of a vector */
};

struct dse_model_info {
    char name[128], arch[32], quantization[16], path[512], basename[128];
    int64_t n_parameters, n_active_parameters; /* active: that one token uses */
    int64_t context_length;                    /* trained */
    int n_layers, n_vocab, n_threads, n_embd;
    uint64_t file_bytes;     /* weights in the file */
    uint64_t resident_bytes; /* packed weights in anonymous memory (0 when mapped from the pack cache) */
    uint64_t kv_bytes_per_token;
    const char *device_name; /* "cpu" */
    /* DSE_NUMERICS_FAST only where it was asked for and the model has latent attention. Part of the identity of all
     * that is kept of a computation: keys and values of two settings differ. */
    enum dse_numerics numerics;
    enum dse_pooling pooling;
    bool adds_eos; /* a text to be embedded ends with the tokenizer's EOS */
    /* Tokens around the text before and behind a hole, and before what fills it, as the file says; -1: it does not. */
    int32_t fim_prefix, fim_suffix, fim_middle;
};
void dse_model_get_info(const struct dse_model *model, struct dse_model_info *info);
const struct dse_tokenizer *dse_model_tokenizer(const struct dse_model *model); /* borrowed */
const struct dse_template *dse_model_template(const struct dse_model *model);   /* borrowed; NULL if none */
/* Ends a generation: stop ids of the tokenizer and of the configuration files. */
bool dse_model_is_stop(const struct dse_model *model, int32_t token);
/* False when a file of the model was truncated under us. */
bool dse_model_intact(const struct dse_model *model);

/* ---- adapters ---------------------------------------------------------------------------------------------- */

/* LoRA: W + scale * B A for some of a model's matrices. Immutable, shared, reference counted, like the model that it
 * was opened for. A request in flight holds a reference, so an adapter may be dropped or replaced at any time. */
struct dse_adapter;

#define DSE_MAX_ADAPTERS 8

/* path: a folder or .safetensors file of PEFT, or a GGUF adapter. Everything is checked against the model: what does
 * not fit is DSE_ERR_CORRUPT or DSE_ERR_UNSUPPORTED and names tensor or key. DSE_ERR_NO_MEMORY: beyond what the
 * engines of the model have planned for adapters, or what the system has. From any thread; blocks. */
DSE_MUST_CHECK enum dse_status dse_adapter_open(struct dse_model *model, const char *path, struct dse_adapter **adapter,
                                                struct dse_error *err);
struct dse_adapter *dse_adapter_ref(struct dse_adapter *adapter);
void dse_adapter_unref(struct dse_adapter *adapter);

struct dse_adapter_info {
    char path[512];
    int rank;           /* largest of its matrices */
    int n_matrices;     /* that it adds to */
    uint64_t bytes;     /* in memory */
    uint8_t digest[32]; /* of what it computes: equal ones give equal results */
};
void dse_adapter_get_info(const struct dse_adapter *adapter, struct dse_adapter_info *info);

struct dse_adapter_use {
    struct dse_adapter *adapter;
    float scale; /* on top of the adapter's own (alpha and rank); 1: as it was trained; 0: as if it were not there */
};

/* ---- request ----------------------------------------------------------------------------------------------- */

#define DSE_MAX_TOP_LOGPROBS 20
#define DSE_MAX_LOGIT_BIAS   1024
#define DSE_MAX_CHOICES      8

struct dse_logit_bias {
    int32_t token;
    float bias;
};

struct dse_sampling {
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: off */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 1: off; divides positive and multiplies negative logits of seen tokens */
    float presence_penalty, frequency_penalty; /* 0: off; OpenAI's definition, on output tokens */
    uint64_t seed;
    const struct dse_logit_bias *logit_bias; /* borrowed during the call, copied */
    int n_logit_bias;
    int top_logprobs; /* -1: no logprobs; 0…DSE_MAX_TOP_LOGPROBS */
};
extern const struct dse_sampling dse_sampling_default; /* temperature 1, all else off, logprobs off */

struct dse_token_logprob {
    int32_t token;
    float logprob;
};

enum dse_finish {
    DSE_FINISH_NONE,   /* still running */
    DSE_FINISH_STOP,   /* stop token, or the callback said stop */
    DSE_FINISH_LENGTH, /* max_tokens or end of context */
    DSE_FINISH_CANCELLED,
    DSE_FINISH_ERROR,
};

/* Tokens that come next, whatever is likely: not those that a grammar which is on does not allow, then nor the rest.
 * Borrowed until they have come or the choice is finished. */
struct dse_forced {
    const int32_t *tokens;
    int n_tokens;
};

struct dse_timings {
    uint64_t queued_ns, prefill_ns, decode_ns; /* spans: submit->admit, admit->first token, first->last token */
    int n_prompt, n_cached, n_generated;       /* n_prompt counts computed and cached prompt tokens */
    int n_drafted, n_draft_taken;              /* tokens computed on a guess, and those that came */
};

enum dse_event_kind {
    DSE_EVENT_PROGRESS,       /* prefill moved on: n_processed of n_prompt */
    DSE_EVENT_PROMPT_LOGPROB, /* only with prompt_logprobs: one per prompt token from the second on, in order */
    DSE_EVENT_HIDDEN_STATE,   /* only with hidden_states: one per prompt token, in order */
    DSE_EVENT_TOKEN,          /* a token was sampled */
    DSE_EVENT_FINISH,         /* last event of this choice */
};

struct dse_event {
    enum dse_event_kind kind;
    uint64_t request;   /* id that submit returned */
    int choice;         /* 0…n_choices-1 */
    int32_t token;      /* TOKEN, PROMPT_LOGPROB */
    bool is_stop_token; /* TOKEN: ends the generation, not part of the text */
    float logprob;
    int n_top;
    const struct dse_token_logprob *top; /* borrowed during the call */
    struct dse_forced *forced;           /* TOKEN: the callback may fill it */
    int n_processed, n_prompt;           /* PROGRESS; HIDDEN_STATE: n_processed is the token's position */
    int n_cached;                        /* PROGRESS: of n_processed, so many came from the prefix cache */
    const float *hidden;                 /* HIDDEN_STATE: f32 [n_embd] after the last norm; borrowed during the call */
    enum dse_finish finish;              /* FINISH */
    uint64_t adapter_identity;           /* FINISH: of what besides tokens and salt its keys and values depend on */
    struct dse_timings timings;          /* FINISH */
    const struct dse_error *error;       /* FINISH with DSE_FINISH_ERROR */
};

/* Runs on the engine thread: must be quick, must not call back into the engine except dse_engine_cancel. Returning
 * false after DSE_EVENT_TOKEN ends that choice with DSE_FINISH_STOP. */
typedef bool dse_event_fn(void *user, const struct dse_event *event);

struct dse_request {
    const int32_t *prompt; /* copied by submit */
    int n_prompt;          /* at least 1 */
    /* Per choice. A number reserves KV memory for all of it before the request starts, so it waits until that is free.
     * -1: to the end of the context (several choices: as far as the pool goes); reserves a little at a time, and when
     * the pool is full one such request (lowest priority, then youngest) pauses until there is room. 0: prefill
     * only. */
    int max_tokens;
    int min_tokens;  /* no stop token is chosen before; a grammar that nothing can follow ends all the same */
    int n_choices;   /* 1…DSE_MAX_CHOICES, share one prefill; choice i draws from sequence i of the seed */
    bool ignore_eos; /* the model's own stop tokens are never chosen; those below still end it */
    const int32_t *stop_tokens; /* further ids that end the generation (copied) */
    int n_stop_tokens;
    bool prompt_logprobs; /* events for the prompt's own tokens (echo), as choice 0 */
    bool hidden_states;   /* events with the hidden state of each prompt token, as choice 0 */
    struct dse_sampling sampling;
    struct dse_grammar *grammar; /* referenced by submit; NULL: free text */
    struct dse_forced forced;    /* of every choice: how the output begins */
    int grammar_after_token;     /* constraint starts after this token was produced; -1: from the start */
    int priority;                /* higher first; 0 */
    uint64_t tenant;             /* whose request it is: of equal ones, the tenant that was served least goes first */
    /* Requests share computed beginnings of prompts only with those of equal salt (any bytes, borrowed during the call)
     * and adapters. Give clients that should not learn of each other's prompts, by the time a prompt takes,
     * different salts. */
    const void *cache_salt;
    size_t cache_salt_bytes;
    /* Borrowed during the call; the adapters are referenced. Their order and repetitions do not matter: scales of one
     * adapter are summed. The sum of their ranks must fit the engine's adapter_rank. */
    const struct dse_adapter_use *adapters;
    int n_adapters; /* 0…DSE_MAX_ADAPTERS */
    dse_event_fn *on_event;
    void *user;
};
extern const struct dse_request dse_request_default;

/* ---- engine ------------------------------------------------------------------------------------------------ */

/* What may change the order of requests while they run (src/engine/policy.h). */
enum dse_priority_policy {
    DSE_POLICY_REQUEST, /* nothing: a higher priority goes first until it is done */
    DSE_POLICY_TOKEN,   /* every quantum of tokens that a request has produced lowers its priority by one */
};

struct dse_engine_options {
    int64_t context_length; /* per request, prompt + output; 0: largest that fits, at most the model's */
    int max_concurrent;     /* sequences in the batch, 0: default (4); n choices count n (and run alone if more) */
    int max_queue;          /* requests waiting beyond that; more are DSE_ERR_BUSY */
    uint64_t kv_bytes;      /* pool size; 0: max_concurrent contexts, at most a quarter of what the plan may use,
                                * at least one context */
    int chunk_tokens;       /* prompt tokens per step, 0: default (512) */
    double memory_fraction; /* of available memory that the plan may use; 0: 0.9 */
    enum dse_priority_policy priority_policy;
    int priority_quantum;        /* tokens, 0: default (64) */
    uint64_t priority_ageing_ns; /* so much waiting raises the priority by one; 0: never */
    /* Tokens at most that a sequence computes ahead in a step, guessed from its own text, while that pays; 0: none.
     * Changes no result. At most 16. */
    int max_draft;
    bool warmup; /* touch the weights that every token uses before the first request */
    /* Keep the blocks of prompts and answers in the pool until they are needed, and begin with them the prompts that
     * begin the same. Changes no result. */
    bool prefix_caching;
    uint64_t prefix_cache_bytes; /* kept for no running request; 0: as much as the pool has */
    /* NULL, or a folder where blocks also live as files, so that they outlast the pool and the process. Made if
     * missing; must be private to its user; one engine at a time (DSE_ERR_BUSY). */
    const char *prefix_cache_disk;
    uint64_t prefix_cache_disk_bytes; /* of all files in it; 0: 4 GiB */
    int adapter_rank;                 /* largest sum of the ranks of a request's adapters; 0: requests have none */
    /* Planned for adapters that are opened later, beside those that are open; more are refused. */
    uint64_t adapter_bytes;
};

/* The memory plan; `serve` prints it at start. */
struct dse_memory_plan {
    uint64_t weight_bytes;          /* mapped or resident */
    uint64_t resident_weight_bytes; /* packed weights in anonymous memory, or */
    uint64_t mapped_weight_bytes;   /* mapped from the pack cache: the default sizes leave room for them */
    uint64_t kv_bytes, scratch_bytes;
    uint64_t adapter_bytes; /* open ones, and the room for more */
    int adapter_rank;       /* as in the options */
    /* Resident, mapped, kv, scratch and adapters together. Beyond available_bytes: explicit sizes, or weights larger
     * than the memory, leave mapped weights to be read from their file again. */
    uint64_t total_bytes;
    uint64_t expert_bytes; /* of the weights: experts, of which the chosen ones are read */
    uint64_t locked_bytes; /* of mapped weights: kept in memory by a running engine because not all of them fit */
    uint64_t available_bytes;
    const char *available_reason;
    int64_t context_length;
    int64_t kv_tokens; /* tokens in the whole pool */
    int max_concurrent;
};

/* Works the plan out without taking memory. Does not fit: DSE_ERR_NO_MEMORY with need, have and the nearest setting
 * that fits in the message. */
DSE_MUST_CHECK enum dse_status dse_engine_plan(const struct dse_model *model, const struct dse_engine_options *options,
                                               struct dse_memory_plan *plan, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_engine_create(struct dse_model *model, const struct dse_engine_options *options,
                                                 struct dse_engine **engine, struct dse_error *err);
/* Cancels what runs (its FINISH events still come), joins the thread. A submit that is under way on another thread is
 * refused with DSE_ERR_UNAVAILABLE and waited for; no other call may be under way, and none may begin any more, be it
 * because of one of those events. */
void dse_engine_free(struct dse_engine *engine);
void dse_engine_get_plan(const struct dse_engine *engine, struct dse_memory_plan *plan);
struct dse_model *dse_engine_model(const struct dse_engine *engine); /* borrowed */

/* Removes what a prefix cache on disk holds, of any model; not while an engine has it open (DSE_ERR_BUSY). Counts
 * what was removed, also when it fails. Other files in the folder stay. */
DSE_MUST_CHECK enum dse_status dse_prefix_cache_wipe(const char *folder, uint64_t *n_files, uint64_t *bytes,
                                                     struct dse_error *err);

/* False when a file of the model was truncated under us: every submit is refused then. Never waits for a step. */
bool dse_engine_usable(const struct dse_engine *engine);
/* Returns at once. DSE_ERR_TOO_LONG: err->need is prompt tokens, err->have the context. DSE_ERR_BUSY: queue full.
 * DSE_ERR_NO_MEMORY: could never fit the pool. After DSE_OK exactly one FINISH event comes per choice. */
DSE_MUST_CHECK enum dse_status dse_engine_submit(struct dse_engine *engine, const struct dse_request *request,
                                                 uint64_t *id, struct dse_error *err);
/* From any thread, also from the callback. Its FINISH events come within one step. Unknown ids are ignored. */
void dse_engine_cancel(struct dse_engine *engine, uint64_t id);

/* A snapshot for /slots and metrics; never waits for a step. */
struct dse_slot {
    uint64_t id;
    bool running; /* false: waiting */
    int n_choices, n_prompt, n_processed, n_generated;
    uint64_t submitted_ns, first_token_ns; /* CLOCK_MONOTONIC; 0: no token yet */
};
int dse_engine_slots(const struct dse_engine *engine, struct dse_slot *slots, int max_slots);

/* Logits of every position of a token list, f32 [n_ids, n_vocab] into out; blocks; chunked like any prompt. Takes its
 * own KV memory for the call. */
DSE_MUST_CHECK enum dse_status dse_eval_logits(struct dse_model *model, const int32_t *ids, int n_ids, int chunk_tokens,
                                               float *out, struct dse_error *err);

/* The same with adapters. */
DSE_MUST_CHECK enum dse_status dse_eval_adapted_logits(struct dse_model *model, const struct dse_adapter_use *adapters,
                                                       int n_adapters, const int32_t *ids, int n_ids, int chunk_tokens,
                                                       float *out, struct dse_error *err);

/* As dse_eval_logits, unless out is NULL, and in the same pass those of the prediction layer of a model opened with
 * mtp: f32 [n_ids - 1, n_vocab] into mtp_out, row i tells the token at i + 2 from those up to i + 1. At least 2 ids. */
DSE_MUST_CHECK enum dse_status dse_eval_mtp_logits(struct dse_model *model, const int32_t *ids, int n_ids,
                                                   int chunk_tokens, float *out, float *mtp_out, struct dse_error *err);

/* ---- bench ------------------------------------------------------------------------------------------------- */

/* One row of `bench`: rates of prefill (n_gen 0) or decode (n_prompt 0) with n_seqs sequences at a depth. */
struct dse_bench_spec {
    int n_prompt, n_gen, n_depth, n_seqs;
    /* A model opened with DSE_NUMERICS_FAST can be timed both ways: exact is then what a model opened so computes. */
    enum dse_numerics numerics;
};
/* Whether a row can be run, and if memory does not hold it, the nearest that it holds. dse_bench_run checks it too;
 * this is for asking before there is any output. */
DSE_MUST_CHECK enum dse_status dse_bench_check(const struct dse_model *model, const struct dse_bench_spec *spec,
                                               int chunk_tokens, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_bench_run(struct dse_model *model, const struct dse_bench_spec *spec,
                                             int chunk_tokens, double *seconds, struct dse_error *err);

#endif

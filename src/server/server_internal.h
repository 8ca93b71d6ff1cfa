/* What the files of this room share: the server's state and the model it serves. */
#ifndef DSE_SERVER_INTERNAL_H
#define DSE_SERVER_INTERNAL_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "server/adapters.h"
#include "server/auth.h"
#include "server/events.h"
#include "server/http.h"
#include "server/listen.h"
#include "server/server.h"
#include "server/workers.h"
#include "text/chat_prompt.h"
#include "text/chat_template.h"
#include "text/grammar_cache.h"
#include "text/tokenizer.h"

/* Tokens in front of the text before a hole, of that behind it, and of what fills it; all -1: the model knows none. */
struct dse_fim_tokens {
    int32_t prefix, suffix, middle;
};

/* A loaded model as requests see it. Built once, then constant. */
struct dse_served {
    struct dse_engine *engine;
    struct dse_model *model; /* owned reference */
    struct dse_model_info info;
    const struct dse_tokenizer *tokenizer;
    const struct dse_template *tmpl; /* NULL: the model has none */
    struct dse_template_traits traits;
    bool thinks;                   /* template or vocabulary know <think> */
    struct dse_tokens thought_end; /* </think> as the model writes it */
    int n_vocab;
    int64_t context_length;
    int adapter_rank;     /* that the engine has room for */
    size_t longest_token; /* bytes of text that one token can stand for at most */
    struct dse_chat_marks *marks;
    struct dse_grammar_cache *grammars; /* of earlier requests */
    struct dse_fim_tokens fim;
    int32_t file_separator; /* token between the files of a repository, -1: none */
};

struct dse_server {
    struct dse_http *http;
    struct dse_workers *workers; /* continues completions of many prompts */
    struct dse_auth auth;
    char **model_names;
    int n_model_names;
    bool strict_model;
    struct dse_adapter_list *adapters;
    enum dse_reasoning_format reasoning;
    int64_t thought_budget;            /* of requests that name none */
    struct dse_template *own_template; /* when the option overrides the model's */
    struct dse_listener listener;
    bool metrics_vllm, debug_steps;
    char node_id[DSE_LOG_NODE_BYTES];
    struct dse_machine_watch *machine;
    struct dse_step_trace *trace; /* NULL: none is wanted */
    uint64_t start_ns;
    int64_t start_unix_s;

    _Atomic(struct dse_served *) served; /* NULL while loading */
    atomic_bool draining;
    bool ui; /* the page is shown */
    struct dse_events *events;

    struct dse_slots *slots;
    int slot_folder;                 /* -1: none is to be saved */
    struct dse_workers *slot_worker; /* one thread: actions on slots */
    atomic_bool stopping;            /* actions on slots end early */

    pthread_mutex_t lock;
    pthread_cond_t idle;
    int in_flight; /* generations and actions on slots; and the list of generations */
    struct dse_generation *generations;
};

#define DSE_SERVER_FINGERPRINT "b" DSE_VERSION
/* Texts to be tokenized have at most this many bytes, which is more than any context that fits an edge machine holds:
 * the time for one request is bounded, and with it the time to stop. */
#define DSE_SERVER_MAX_TEXT_BYTES (2u << 20)

/* "ok", "loading", "draining", or "failed" once a file of the model was cut short. */
const char *dse_server_state(const struct dse_server *server);
/* All slots of the engine: an owned array (dse_free) of *n; none without a model. false: no memory, *slots is NULL. */
DSE_MUST_CHECK bool dse_server_slots(const struct dse_server *server, struct dse_slot **slots, int *n);

/* Bytes beyond which a prompt is refused: those of a full context, DSE_SERVER_MAX_TEXT_BYTES at most. */
size_t dse_served_max_prompt(const struct dse_served *served);
/* Refuses a prompt that cannot fit, by its bytes alone: tokenizing it would take long and change nothing. */
DSE_MUST_CHECK enum dse_status dse_served_check_prompt(const struct dse_served *served, size_t bytes, const char *param,
                                                       struct dse_error *err);
/* The name clients see first; never NULL. */
const char *dse_server_model_name(const struct dse_server *server);
/* The name of the model itself to echo for a requested one (NULL: none given), or NULL when it has no such name here:
 * then it may be an adapter's. */
const char *dse_server_resolve_model(const struct dse_server *server, const char *requested);
/* One of the names of the model itself, adapters not counted. */
bool dse_server_is_base_model(const struct dse_server *server, const char *name);

/* Handlers, one per route; they answer the exchange in every case. */
typedef void dse_route_fn(struct dse_server *server, struct dse_http_exchange *x);
dse_route_fn dse_handle_chat, dse_handle_completions, dse_handle_models, dse_handle_model, dse_handle_tokenize,
    dse_handle_detokenize, dse_handle_apply_template, dse_handle_health, dse_handle_ready, dse_handle_version,
    dse_handle_metrics, dse_handle_slots, dse_handle_slot_action, dse_handle_messages, dse_handle_messages_count,
    dse_handle_responses, dse_handle_responses_count, dse_handle_embeddings, dse_handle_infill, dse_handle_openapi,
    dse_handle_steps, dse_handle_state, dse_handle_events, dse_handle_ui, dse_handle_load_adapter,
    dse_handle_unload_adapter, dse_handle_adapters, dse_handle_adapter_scales;

#endif

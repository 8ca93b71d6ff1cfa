/* One generation request on its way through the engine: from token ids to the client's answer, in any dialect.
 *
 * dse_generation_run takes everything, submits, and returns; the engine's events then feed the output stage of each
 * choice and the exchange. Events run on the engine thread: they format and append, and never wait. When the client
 * leaves, the engine's requests are cancelled; the generation ends with their last event.
 */
#ifndef DSE_SERVER_GENERATION_H
#define DSE_SERVER_GENERATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/caller.h"
#include "server/errors.h"
#include "server/items.h"
#include "server/logprobs.h"
#include "server/openai_common.h"
#include "server/server_internal.h"
#include "server/tool_answer.h"

#define DSE_MAX_PROMPTS      128  /* of completions */
#define DSE_MAX_INPUTS       2048 /* of embeddings, the most of any generation */
#define DSE_MAX_ANSWER_BYTES (256u << 20)

struct dse_generation;
struct dse_choice;

/* A dialect that answers in a shape of its own: a stream is typed events about c->items, which take the place of the
 * choice's text and calls. One choice per request. The functions format into generation->chunk by dse_stream_event. */
struct dse_event_dialect {
    void (*begin)(struct dse_choice *choice);           /* before the first item */
    void (*tell)(struct dse_choice *choice, bool over); /* what is new in c->items */
    void (*finish)(struct dse_choice *choice);
    /* The frame that ends a stream that failed, and the same as a constant for when there is no memory. */
    void (*put_failure)(struct dse_generation *generation, const struct dse_api_error *error, struct dse_buffer *out);
    const char *no_memory;
    const char *last;   /* of a stream that went well, after finish */
    const char *filler; /* what a stream sends into silence, meaning nothing */
    void (*put_whole)(struct dse_generation *generation, struct dse_buffer *out);
};

/* How a dialect writes things. Each put writes one element of `choices`. */
struct dse_dialect {
    const char *id_prefix, *object, *chunk_object;
    const char *too_long; /* printf format of the context-length message: context, total, prompt, completion */
    const char *prompt_field;
    bool chat;                              /* the text has thoughts and calls in it */
    bool embeds;                            /* there is no text: prompts become vectors */
    const char *const *fields;              /* pairs that end with NULL: a field of a chat request, its name here */
    const struct dse_event_dialect *events; /* NULL: chunks of choices, which the functions below write */
    void (*put_first)(struct dse_choice *choice, struct dse_buffer *out); /* NULL: no opening chunk */
    void (*put_delta)(struct dse_choice *choice, enum dse_channel channel, struct dse_buffer *out);
    void (*put_call)(struct dse_choice *choice, struct dse_slice delta, struct dse_buffer *out);
    void (*put_finish)(struct dse_choice *choice, struct dse_buffer *out); /* last chunk of a choice */
    void (*put_whole)(struct dse_choice *choice, struct dse_buffer *out);
};

/* One engine request: a prompt and its n choices. */
struct dse_gen_prompt {
    struct dse_generation *generation;
    struct dse_tokens tokens; /* owned */
    char *echo;               /* owned; text put in front of each choice, NULL: none */
    size_t echo_bytes;
    struct dse_logprobs echo_logprobs; /* of the prompt's own tokens */
    int index, choices_left;
    uint64_t id; /* engine's, 0 until submitted */
};

struct dse_choice {
    struct dse_generation *generation;
    struct dse_gen_prompt *prompt;
    int index;
    struct dse_output *output;
    struct dse_output *thoughts;  /* follows the text for a budget of thoughts; NULL: there is none */
    int64_t n_thought;            /* tokens */
    struct dse_buffer text[2];    /* by enum dse_channel: since the last chunk, or whole */
    struct dse_tool_answer calls; /* the same of tool calls */
    struct dse_items items;       /* all three, in dialects of events */
    float *vector;                /* owned, of embeddings: [n_embd] */
    struct dse_buffer raw;        /* all bytes fed, kept only for logprobs with stop strings */
    struct dse_logprobs logprobs; /* of text that has come out: since the last chunk, or whole */
    struct dse_logprobs waiting;  /* of text that is held back, for it may be dropped */
    struct dse_tokens tokens;     /* all that were sampled, kept only for a slot */
    uint32_t characters;          /* code points so far, echo included: text_offset */
    bool started, stopped, finished, echo_sent;
    int n_tokens;
    int stop_index; /* of the stop string that ended it, -1: none did */
    enum dse_finish finish;
    struct dse_timings timings;
};

struct dse_generation {
    struct dse_server *server;
    struct dse_served *served;
    struct dse_http_exchange *exchange; /* owned reference */
    const struct dse_dialect *dialect;
    struct dse_gen_params params;
    json_t *stop;                   /* owned: params' stop strings are in it; NULL: none */
    struct dse_grammar *grammar;    /* owned */
    struct dse_gen_prompt *prompts; /* owned array */
    int n_prompts;
    bool starts_in_reasoning;
    enum dse_tool_format tools; /* DSE_TOOLS_NONE: the request has none, or the model no format */
    struct dse_caller caller;
    struct dse_adapter_use adapters[DSE_MAX_ADAPTERS]; /* a reference each */
    int n_adapters;
    char id[48], model[256];
    char *echo;   /* owned: fields of the request that the answer repeats, as JSON; or NULL */
    int n_events; /* told in a stream of events; engine thread */
    int64_t created;
    uint64_t start_ns;

    atomic_int refs;
    struct dse_job job;
    struct dse_choice *choices;           /* [n_prompts * params.n] */
    int n_choices, n_finished;            /* engine thread */
    struct dse_buffer chunk;              /* engine thread: the event being formatted */
    struct dse_error failure;             /* of `failed` */
    const struct dse_gen_prompt *refused; /* the prompt that the failure is about, or NULL */

    pthread_mutex_t lock; /* below */
    int n_submitted, n_running;
    bool submitting, waiting;
    atomic_bool gone, failed; /* the client left; failure is set */

    struct dse_generation *previous, *next; /* in server->generations, under server->lock */
    bool ended;
};

/* Takes root, params' memory, prompts (array and contents), grammar and echo; answers x in every case. */
struct dse_generation_setup {
    struct dse_http_exchange *exchange;
    const struct dse_dialect *dialect;
    const struct dse_gen_params *params;
    json_t *root;
    struct dse_grammar *grammar;
    struct dse_gen_prompt *prompts;
    int n_prompts;
    bool starts_in_reasoning;
    enum dse_tool_format tools; /* DSE_TOOLS_NONE: the request has none, or the model no format */
    char *echo;                 /* see dse_generation */
};
void dse_generation_run(struct dse_server *server, const struct dse_generation_setup *setup);
/* Ends all that are under way: their clients are told that the server shuts down. They are over when
 * server->in_flight is 0. */
void dse_generations_end(struct dse_server *server);

void dse_gen_prompts_free(struct dse_gen_prompt *prompts, int n_prompts);
const char *dse_finish_name(enum dse_finish finish);

/* Ends it: what has not run yet is cancelled, and its client is told. The first failure counts. From any thread,
 * without locks. prompt: the one that the engine refused, NULL for a failure of the generation as a whole. */
void dse_generation_fail(struct dse_generation *generation, const struct dse_gen_prompt *prompt,
                         const struct dse_error *err);

/* A choice will have no more events. Answers when it was the last of the generation, which may then be gone. */
void dse_generation_choice_finished(struct dse_gen_prompt *prompt);

/* The tokens that end a thought. */
static inline struct dse_forced dse_thought_end(const struct dse_served *served)
{
    return (struct dse_forced){served->thought_end.ids, (int)served->thought_end.count};
}

/* choice.c: events to texts. */
DSE_MUST_CHECK enum dse_status dse_choice_init(struct dse_generation *generation, int index, struct dse_error *err);
void dse_choice_deinit(struct dse_choice *choice);
/* The echoed prompt, if there is one, is the beginning of the text of each of its choices. */
void dse_choices_begin_with_echo(struct dse_generation *generation, struct dse_gen_prompt *prompt);
/* Of the engine: user is a struct dse_gen_prompt. */
bool dse_choice_on_event(void *user, const struct dse_event *event);

/* embeddings.c: the hidden states of a prompt to its vector. */
DSE_MUST_CHECK enum dse_status dse_embedding_init(struct dse_choice *choice, struct dse_error *err);
void dse_embedding_add(struct dse_choice *choice, const struct dse_event *event);
void dse_embedding_finish(struct dse_choice *choice);

/* stream.c: the frames of an SSE answer, and of a whole one. A chunk that is lost for want of memory fails the
 * generation; none is sent of one that has failed. */
void dse_stream_first(struct dse_choice *choice);
void dse_stream_delta(struct dse_choice *choice); /* what the output stage let go of, if anything */
void dse_stream_finish(struct dse_choice *choice);
void dse_stream_progress(struct dse_choice *choice, const struct dse_event *event);
void dse_stream_usage(struct dse_generation *generation);
/* The last of a stream, which needs no memory. */
void dse_stream_error(struct dse_generation *generation, const struct dse_api_error *error);
void dse_stream_end(struct dse_generation *generation);
void dse_put_whole_answer(struct dse_generation *generation, struct dse_buffer *out);
/* So far: sums over the choices. */
void dse_generation_sums(const struct dse_generation *generation, struct dse_usage *usage,
                         struct dse_timing_sum *timings);
/* Begins the frame of an event, `{"type":NAME` without the closing brace, in generation->chunk, and returns that. */
struct dse_buffer *dse_stream_event(struct dse_generation *generation, const char *name);
/* The same of a frame without a name: `{` alone. */
struct dse_buffer *dse_stream_object(struct dse_generation *generation);
/* Closes the object and sends. */
void dse_stream_event_send(struct dse_generation *generation);

#endif

/* The HTTP server: what the command line (and tests) may do with it.
 *
 * It may start before a model is there: /health, /metrics, /version and /v1/models answer at once, everything else is
 * 503 until dse_server_set_engine. The engine is borrowed and must outlive the server.
 */
#ifndef DSE_SERVER_SERVER_H
#define DSE_SERVER_SERVER_H

#include <dse/dse.h>

#include "server/auth.h"
#include "text/output.h"

struct dse_server;

/* The web page at `/`: only where this machine alone reaches it, or always, or never. */
enum dse_server_ui { DSE_SERVER_UI_LOOPBACK, DSE_SERVER_UI_ON, DSE_SERVER_UI_OFF };

struct dse_server_options {
    const char *host;                   /* name or address; NULL: 127.0.0.1 */
    int port;                           /* 0: any free one, see dse_server_port */
    const char *uds;                    /* Unix socket path instead of host and port; NULL: none */
    bool insecure;                      /* allow an address beyond loopback without a key */
    const struct dse_api_key *api_keys; /* any of them is accepted; none: no authentication */
    int n_api_keys;
    const char *const *cors_origins; /* none: origins on this machine; "*": all */
    int n_cors_origins;
    const char *const *model_names; /* names to serve under; none: the model's own name */
    int n_model_names;
    bool strict_model; /* 404 for other names; false: any name is answered by the loaded model */
    enum dse_reasoning_format reasoning;
    int64_t thought_budget;    /* tokens that a request which says nothing about it may think; -1: any number */
    const char *chat_template; /* text instead of the model's own; NULL: the model's */
    size_t max_body_bytes;
    size_t max_header_bytes;
    int max_headers;
    int max_connections;
    size_t max_queue_bytes;  /* unread answer bytes before a slow reader is disconnected */
    unsigned ping_ms;        /* silence on a stream before a comment is sent */
    unsigned idle_ms;        /* for a whole request header to arrive */
    unsigned body_ms;        /* for a body to arrive */
    int n_workers;           /* threads that parse, render and tokenize */
    const char *node_id;     /* told in /api/edge/state; NULL: none */
    bool metrics_vllm;       /* /metrics has vLLM's names too */
    bool debug_steps;        /* GET /debug/steps is there */
    const char *trace_steps; /* file for a trace of the engine's steps; NULL: none */
    enum dse_server_ui ui;
    /* Folder for saved slots, made if missing and private to its user; NULL: none are saved. */
    const char *slot_save_path;
    const char *prefix_cache_disk; /* the engine's folder, which slots must not be saved in; NULL: none */
    const char *lora_dir;          /* folder that clients may load adapters from; NULL: they load none */
};
extern const struct dse_server_options dse_server_options_default;

/* Copies what it keeps of options. Refuses an address beyond loopback without a key (DSE_ERR_INVALID) and a
 * chat_template that does not parse; a busy port is DSE_ERR_ADDRESS. */
DSE_MUST_CHECK enum dse_status dse_server_start(const struct dse_server_options *options, struct dse_server **server,
                                                struct dse_error *err);
int dse_server_port(const struct dse_server *server); /* 0 for a Unix socket */
/* "http://127.0.0.1:8080" or "unix:/run/x.sock" */
const char *dse_server_url(const struct dse_server *server);
bool dse_server_shows_ui(const struct dse_server *server);

/* An adapter of the engine's model, of which the server takes a reference: name as clients choose it, path as they
 * see it, scale in requests that name no adapter. A name that is there or is no name is DSE_ERR_INVALID; one that turns
 * out to be the model's own lets dse_server_set_engine fail so. */
DSE_MUST_CHECK enum dse_status dse_server_add_adapter(struct dse_server *server, const char *name, const char *path,
                                                      struct dse_adapter *adapter, float scale, struct dse_error *err);

/* Once. */
DSE_MUST_CHECK enum dse_status dse_server_set_engine(struct dse_server *server, struct dse_engine *engine,
                                                     struct dse_error *err);
/* From now on new work is 503 and /ready says so; waits for the requests in flight. false: some were left at the
 * timeout (dse_server_stop then cancels them). */
bool dse_server_drain(struct dse_server *server, unsigned timeout_ms);
/* Generations under way. */
int dse_server_in_flight(const struct dse_server *server);
/* Ends what is in flight: its clients get an error, within two seconds if they read. Closes all connections. */
void dse_server_stop(struct dse_server *server);

#endif

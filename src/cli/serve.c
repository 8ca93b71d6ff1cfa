/* `serve`: starts the HTTP front, then loads the model behind it, serves until SIGTERM or SIGINT, drains, ends.
 * Either signal also ends the load.
 *
 * The only place that wires server and engine together. What can be refused without loading the model is refused first.
 * Then the front listens, so that a port in use is told before a model is read, and /health answers while it loads:
 * what is announced as "listening" may still be refused by the model, or for want of memory.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/file.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cli/input.h"
#include "cli/lora.h"
#include "cli/model_arguments.h"
#include "cli/plan.h"
#include "cli/node_id.h"
#include "cli/streams.h"
#include "cli/verbs.h"
#include "server/server.h"

#define MAX_KEYS       64
#define MAX_NAMES      16
#define MAX_NAME_BYTES 255
/* Of the adapters of a request together: by default where clients load them, and at most. */
#define DEFAULT_LORA_RANK 128
#define MAX_LORA_RANK     4096

/* Texts that the server options point into. */
struct serve_texts {
    char *key_file, *names, *origins, *chat_template;
    struct dse_api_key keys[MAX_KEYS];
    const char *name_list[MAX_NAMES];
    const char *origin_list[MAX_NAMES];
    char node_id[DSE_LOG_NODE_BYTES];
};

static void texts_deinit(struct serve_texts *texts)
{
    dse_free(texts->key_file);
    dse_free(texts->names);
    dse_free(texts->origins);
    dse_free(texts->chat_template);
}

/* Drops blanks around text, in place. */
static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t bytes = strlen(text);
    while (bytes > 0 && strchr(" \t", text[bytes - 1]) != NULL)
        text[--bytes] = '\0';
    return text;
}

/* Splits text in place at commas, blanks around the pieces dropped and empty ones left out. Returns the number of
 * pieces, -1 for too many. */
static int split(char *text, const char **out, int max)
{
    int count = 0;
    for (char *save = NULL, *piece = strtok_r(text, ",", &save); piece != NULL; piece = strtok_r(NULL, ",", &save)) {
        piece = trim(piece);
        if (piece[0] == '\0') continue;
        if (count == max) return -1;
        out[count++] = piece;
    }
    return count;
}

/* The next line of *rest, cut off in place and trimmed; NULL: there is none. */
static char *next_line(char **rest)
{
    char *line = *rest, *end = line + strcspn(line, "\r\n");
    if (*line == '\0') return NULL;
    *rest = end + (end[0] == '\r' && end[1] == '\n' ? 2 : end[0] != '\0');
    *end = '\0';
    return trim(line);
}

/* "KEY" or "KEY priority=N". The key is kept out of messages. */
static enum dse_status read_key_line(const char *path, int number, char *line, struct dse_api_key *key,
                                     struct dse_error *err)
{
    static const char name[] = "priority=";
    const size_t bytes = strcspn(line, " \t");
    const char *rest = line + bytes + strspn(line + bytes, " \t");
    *key = (struct dse_api_key){.text = line};
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)line[i] < 0x21 || line[i] == 0x7f)
            return dse_fail(err, DSE_ERR_INVALID, "%s, line %d: the key has a control character", path, number);
    if (*rest == '\0') return DSE_OK;
    char *end = NULL;
    const bool named = strncmp(rest, name, sizeof name - 1) == 0;
    const long value = named ? strtol(rest + sizeof name - 1, &end, 10) : 0;
    if (!named || end == rest + sizeof name - 1 || *end != '\0' || value < -DSE_MAX_PRIORITY ||
        value > DSE_MAX_PRIORITY)
        return dse_fail(err, DSE_ERR_INVALID,
                        "%s, line %d: what follows the key must be priority=N, an integer from %d to %d", path, number,
                        -DSE_MAX_PRIORITY, DSE_MAX_PRIORITY);
    line[bytes] = '\0';
    key->has_priority = true;
    key->priority = (int)value;
    return DSE_OK;
}

/* One key per line; empty lines and those that begin with # do not count. Behind the *count keys that are there. */
static enum dse_status read_key_file(const char *path, struct serve_texts *texts, int *count, struct dse_error *err)
{
    size_t bytes;
    int lines[MAX_KEYS];
    const int first = *count;
    enum dse_status status = dse_file_read(path, 65536, &texts->key_file, &bytes, err);
    if (status != DSE_OK) return status;
    if (memchr(texts->key_file, '\0', bytes) != NULL)
        return dse_fail(err, DSE_ERR_INVALID, "%s has NUL bytes; expected one key per line", path);
    char *rest = texts->key_file, *line;
    if (strncmp(rest, "\xEF\xBB\xBF", 3) == 0) rest += 3; /* of editors on Windows */
    for (int number = 1; (line = next_line(&rest)) != NULL; number++) {
        if (line[0] == '\0' || line[0] == '#') continue;
        if (*count == MAX_KEYS) return dse_fail(err, DSE_ERR_LIMIT, "%s: more than %d keys", path, MAX_KEYS);
        status = read_key_line(path, number, line, &texts->keys[*count], err);
        if (status != DSE_OK) return status;
        for (int i = first; i < *count; i++)
            if (strcmp(texts->keys[i].text, texts->keys[*count].text) == 0)
                return dse_fail(err, DSE_ERR_INVALID, "%s, line %d: the key is that of line %d", path, number,
                                lines[i]);
        lines[(*count)++] = number;
    }
    return *count > first ? DSE_OK : dse_fail(err, DSE_ERR_INVALID, "%s holds no key", path);
}

static enum dse_status read_keys(const struct dse_options *options, struct serve_texts *texts,
                                 struct dse_server_options *server, struct dse_error *err)
{
    const struct dse_option_value *keys = &options->values[DSE_OPT_API_KEY];
    const char *path = dse_opt_text(options, DSE_OPT_API_KEY_FILE);
    int count = 0;
    for (; count < keys->count; count++) {
        if (keys->list[count][strspn(keys->list[count], " \t\r\n")] == '\0')
            return dse_fail(err, DSE_ERR_INVALID, "--api-key is empty");
        texts->keys[count].text = keys->list[count];
    }
    enum dse_status status = path != NULL ? read_key_file(path, texts, &count, err) : DSE_OK;
    if (status != DSE_OK) return status;
    server->api_keys = texts->keys;
    server->n_api_keys = count;
    return DSE_OK;
}

static enum dse_status read_list(const char *flag, const char *value, char **copy, const char **list,
                                 const char *const **out, int *count, struct dse_error *err)
{
    if (value == NULL) return DSE_OK;
    /* They go into JSON and Prometheus text, which nothing else would be of. */
    if (!dse_utf8_valid(value, strlen(value)))
        return dse_fail_at(err, DSE_ERR_INVALID, flag, -1, "--%s is not valid UTF-8", flag);
    *copy = dse_strdup(DSE_MEM_SERVER, value);
    if (*copy == NULL) return dse_fail_memory(err, strlen(value), flag);
    *count = split(*copy, list, MAX_NAMES);
    if (*count <= 0)
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not a list of 1 to %d names", flag, value, MAX_NAMES);
    for (int i = 0; i < *count; i++)
        if (strlen(list[i]) > MAX_NAME_BYTES)
            return dse_fail(err, DSE_ERR_INVALID, "--%s: a name has %zu bytes, more than %d", flag, strlen(list[i]),
                            MAX_NAME_BYTES);
    *out = list;
    return DSE_OK;
}

static enum dse_status server_options(const struct dse_options *options, struct serve_texts *texts,
                                      struct dse_server_options *server, struct dse_error *err)
{
    *server = dse_server_options_default;
    server->host = dse_opt_text(options, DSE_OPT_HOST);
    server->port = (int)dse_opt_int(options, DSE_OPT_PORT);
    server->uds = dse_opt_text(options, DSE_OPT_UDS);
    server->insecure = dse_opt_flag(options, DSE_OPT_INSECURE);
    server->lora_dir = dse_opt_text(options, DSE_OPT_LORA_DIR);
    if (server->lora_dir == NULL && options->values[DSE_OPT_LORA_MEMORY].given)
        return dse_fail(err, DSE_ERR_INVALID, "--lora-memory does nothing without --lora-dir");
    /* Where names choose adapters, one that is gone must not be answered by the model without it. */
    const bool by_name = server->lora_dir != NULL || options->values[DSE_OPT_LORA_MODULES].count > 0;
    server->strict_model = !dse_opt_flag(options, DSE_OPT_ANY_MODEL) ||
                           (by_name && !options->values[DSE_OPT_ANY_MODEL].given);
    server->max_body_bytes = (size_t)dse_opt_int(options, DSE_OPT_MAX_BODY);
    server->ping_ms = (unsigned)dse_opt_int(options, DSE_OPT_PING_MS);
    server->reasoning = strcmp(dse_opt_text(options, DSE_OPT_REASONING_FORMAT), "none") == 0 ? DSE_REASONING_NONE
                                                                                             : DSE_REASONING_DEEPSEEK;
    server->thought_budget = dse_opt_int(options, DSE_OPT_REASONING_BUDGET);
    server->metrics_vllm = strcmp(dse_opt_text(options, DSE_OPT_METRICS_COMPAT), "vllm") == 0;
    server->debug_steps = dse_opt_flag(options, DSE_OPT_DEBUG_STEPS);
    server->trace_steps = dse_opt_text(options, DSE_OPT_TRACE_STEPS);
    server->slot_save_path = dse_opt_text(options, DSE_OPT_SLOT_SAVE_PATH);
    server->prefix_cache_disk = dse_opt_text(options, DSE_OPT_PREFIX_DISK);
    if (server->slot_save_path != NULL && !dse_opt_flag(options, DSE_OPT_PREFIX_CACHING))
        return dse_fail(err, DSE_ERR_INVALID,
                        "--slot-save-path saves out of the prefix cache, which --no-enable-prefix-caching takes away");
    server->node_id = texts->node_id;
    const char *ui = dse_opt_text(options, DSE_OPT_UI);
    server->ui = strcmp(ui, "on") == 0    ? DSE_SERVER_UI_ON
                 : strcmp(ui, "off") == 0 ? DSE_SERVER_UI_OFF
                                          : DSE_SERVER_UI_LOOPBACK;
    enum dse_status status = dse_node_id(dse_opt_text(options, DSE_OPT_NODE_ID), "", texts->node_id, err);
    dse_log_set_node(texts->node_id);
    if (status == DSE_OK) status = read_keys(options, texts, server, err);
    if (status == DSE_OK)
        status = read_list("served-model-name", dse_opt_text(options, DSE_OPT_SERVED_NAME), &texts->names,
                           texts->name_list, &server->model_names, &server->n_model_names, err);
    if (status == DSE_OK)
        status = read_list("cors-origins", dse_opt_text(options, DSE_OPT_CORS), &texts->origins, texts->origin_list,
                           &server->cors_origins, &server->n_cors_origins, err);
    size_t bytes;
    if (status == DSE_OK) status = dse_read_chat_template(options, &texts->chat_template, &bytes, err);
    server->chat_template = texts->chat_template;
    return status;
}

static void print_hello(const struct dse_server *server, const struct dse_model *model, bool has_key)
{
    struct dse_model_info info;
    const char *url = dse_server_url(server);
    dse_model_get_info(model, &info);
    dse_talk("ready on %s  (%s)\n", url, has_key ? "clients need a key" : "no key needed");
    if (strncmp(url, "http", 4) != 0 || dse_log_is_json()) return;
    if (dse_server_shows_ui(server)) dse_talk("  chat and dashboard: %s/\n", url);
    dse_talk("  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
             "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Say hi\"}]}'\n"
             "  python: openai.OpenAI(base_url=\"%s/v1\", api_key=\"%s\")\n",
             url, has_key ? " -H 'Authorization: Bearer KEY'" : "", url, has_key ? "KEY" : "none");
}

/* Signals are blocked in all threads and read here, so that no handler runs in the middle of anything. */
static int block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    return pthread_sigmask(SIG_BLOCK, set, NULL);
}

/* Reads the signals while the main thread loads the model, which may take minutes and cannot be stopped half way. */
struct load_watch {
    pthread_t thread;
    int signals, over; /* signalfd; eventfd, readable when the load is over */
    struct dse_server *server;
};

/* A signal closes the port and ends the process in the middle of the load. Nothing needs undoing: a pack cache gets its
 * name when it is complete. A signal that comes as the load ends stays pending for wait_and_drain. */
static void *watch_load(void *argument)
{
    struct load_watch *watch = argument;
    struct pollfd fds[2] = {{.fd = watch->over, .events = POLLIN}, {.fd = watch->signals, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    struct signalfd_siginfo info;
    if (fds[0].revents != 0 || read(watch->signals, &info, sizeof info) != (ssize_t)sizeof info) return NULL;
    bool is_interrupt = info.ssi_signo == SIGINT;
    dse_talk("%s: ended while the model was loading\n", is_interrupt ? "SIGINT" : "SIGTERM");
    dse_server_stop(watch->server);
    _exit(dse_status_exit_code(is_interrupt ? DSE_ERR_CANCELLED : DSE_OK));
}

static void load_watch_stop(struct load_watch *watch)
{
    eventfd_write(watch->over, 1);
    pthread_join(watch->thread, NULL);
    close(watch->over);
    close(watch->signals);
}

static enum dse_status load_watch_start(struct load_watch *watch, struct dse_server *server, const sigset_t *set,
                                        struct dse_error *err)
{
    *watch = (struct load_watch){.signals = signalfd(-1, set, SFD_CLOEXEC), .over = -1, .server = server};
    if (watch->signals >= 0) watch->over = eventfd(0, EFD_CLOEXEC);
    int e = watch->over < 0 ? errno : pthread_create(&watch->thread, NULL, watch_load, watch);
    if (e == 0) return DSE_OK;
    if (watch->over >= 0) close(watch->over);
    if (watch->signals >= 0) close(watch->signals);
    return dse_fail(err, DSE_ERR_IO, "cannot watch for signals: %s", strerror(e));
}

/* Waits for SIGTERM (drain) or SIGINT. A second signal during the drain ends it at once. */
static int wait_and_drain(struct dse_server *server, const sigset_t *set, unsigned drain_ms)
{
    int first = 0, second = 0;
    sigwait(set, &first);
    dse_talk("%s: finishing %d running requests (up to %u s; once more to stop now)\n",
             first == SIGTERM ? "SIGTERM" : "SIGINT", dse_server_in_flight(server), drain_ms / 1000);
    struct timespec none = {0};
    for (unsigned waited = 0; waited < drain_ms || waited == 0; waited += 100) {
        if (dse_server_drain(server, drain_ms < 100 ? drain_ms : 100)) break;
        second = sigtimedwait(set, NULL, &none);
        if (second > 0) break;
    }
    return first;
}

/* The largest sum of ranks that an engine has room for. */
static int adapter_rank(const struct dse_options *options, int of_given)
{
    const int asked = (int)dse_opt_int(options, DSE_OPT_MAX_LORA_RANK);
    const int least = dse_opt_text(options, DSE_OPT_LORA_DIR) != NULL ? DEFAULT_LORA_RANK : 0;
    if (asked > 0) return asked;
    return of_given > least ? of_given < MAX_LORA_RANK ? of_given : MAX_LORA_RANK : least;
}

/* Opens the adapters of the flags and lists them. */
static enum dse_status load_adapters(const struct dse_options *options, struct dse_server *server,
                                     struct dse_model *model, struct dse_cli_adapters *adapters, struct dse_error *err)
{
    const int asked = (int)dse_opt_int(options, DSE_OPT_MAX_LORA_RANK);
    enum dse_status status = dse_cli_adapters_open(adapters, model, err);
    for (int i = 0; i < adapters->count && status == DSE_OK; i++) {
        const struct dse_cli_adapter *a = &adapters->list[i];
        struct dse_adapter_info info;
        dse_adapter_get_info(a->adapter, &info);
        if (asked > 0 && info.rank > asked)
            return dse_fail(err, DSE_ERR_INVALID, "--max-lora-rank is %d, the adapter %s has the rank %d", asked,
                            a->path, info.rank);
        status = dse_server_add_adapter(server, a->name, a->path, a->adapter, a->scale, err);
    }
    return status;
}

/* Model and engine behind the listening server; both are the caller's to free on failure too. */
static enum dse_status load(const struct dse_options *options, struct dse_server *server, const sigset_t *signals,
                            struct dse_cli_adapters *adapters, struct dse_model **model, struct dse_engine **engine,
                            struct dse_error *err)
{
    struct load_watch watch;
    const uint64_t begin_ns = dse_clock_ns();
    enum dse_status status = load_watch_start(&watch, server, signals, err);
    if (status != DSE_OK) return status;
    status = dse_cli_model_open(options, dse_cli_model_name(options), model, err);
    if (status == DSE_OK) status = load_adapters(options, server, *model, adapters, err);
    if (status == DSE_OK) {
        struct dse_engine_options engine_opts;
        dse_cli_engine_options(options, (int)dse_opt_int(options, DSE_OPT_MAX_CONCURRENT),
                               (int)dse_opt_int(options, DSE_OPT_MAX_QUEUE), &engine_opts);
        engine_opts.adapter_rank = adapter_rank(options, adapters->rank);
        if (dse_opt_text(options, DSE_OPT_LORA_DIR) != NULL)
            engine_opts.adapter_bytes = (uint64_t)dse_opt_int(options, DSE_OPT_LORA_MEMORY);
        status = dse_engine_create(*model, &engine_opts, engine, err);
    }
    dse_cli_adapters_close(adapters); /* the server's now */
    load_watch_stop(&watch);
    if (status != DSE_OK) return status;
    dse_gauge_set(DSE_GAUGE_LOAD_NS, (int64_t)(dse_clock_ns() - begin_ns));
    struct dse_memory_plan plan;
    dse_engine_get_plan(*engine, &plan);
    dse_cli_print_plan(*model, &plan);
    return dse_server_set_engine(server, *engine, err);
}

enum dse_status dse_verb_serve(const struct dse_options *options, struct dse_error *err)
{
    struct serve_texts texts = {0};
    struct dse_cli_adapters adapters = {0};
    struct dse_server_options server_opts;
    struct dse_server *server = NULL;
    struct dse_model *model = NULL;
    struct dse_engine *engine = NULL;
    sigset_t signals;
    int ended_by = 0;

    char *path = NULL;
    enum dse_status status = dse_cli_check_flags(options, err);
    /* A model that is not there, and flags that do not go with it, are told before a port is opened. */
    if (status == DSE_OK) status = dse_model_find(dse_cli_model_name(options), &path, NULL, err);
    if (status == DSE_OK) status = dse_cli_check_quantize(options, path, err);
    dse_free(path);
    if (status == DSE_OK) status = server_options(options, &texts, &server_opts, err);
    if (status == DSE_OK) status = dse_cli_adapters_parse(options, &adapters, err);
    if (status == DSE_OK && options->values[DSE_OPT_MAX_LORA_RANK].given && adapters.count == 0 &&
        server_opts.lora_dir == NULL)
        status = dse_fail(err, DSE_ERR_INVALID, "--max-lora-rank does nothing without adapters and without --lora-dir");
    if (status == DSE_OK && block_signals(&signals) != 0)
        status = dse_fail(err, DSE_ERR_INTERNAL, "cannot block signals");
    if (status == DSE_OK) status = dse_server_start(&server_opts, &server, err);
    if (status == DSE_OK) {
        dse_talk("listening on %s\n", dse_server_url(server));
        status = load(options, server, &signals, &adapters, &model, &engine, err);
    }
    if (status == DSE_OK) {
        print_hello(server, model, server_opts.n_api_keys > 0);
        ended_by = wait_and_drain(server, &signals, (unsigned)dse_opt_int(options, DSE_OPT_DRAIN_TIMEOUT) * 1000);
    }
    dse_server_stop(server);
    dse_engine_free(engine);
    dse_cli_adapters_close(&adapters);
    dse_model_unref(model);
    texts_deinit(&texts);
    if (status == DSE_OK && ended_by == SIGINT) status = dse_fail(err, DSE_ERR_CANCELLED, "interrupted");
    return status;
}

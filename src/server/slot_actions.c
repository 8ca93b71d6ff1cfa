/* POST /slots/{id}?action=save|restore|erase, as llama-server has it: what a slot holds goes to a file of the folder
 * --slot-save-path, comes back from it, or is forgotten.
 *
 * The handler runs on a worker and only reads the request; a thread of its own, of low priority, does the rest, one
 * action after the other, so that files are waited for by nobody else.
 */
#include <dse/dse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/saved_prefix.h"
#include "server/body.h"
#include "server/caller.h"
#include "server/errors.h"
#include "server/params.h"
#include "server/server_internal.h"
#include "server/slots.h"

/* Below everything that answers clients. */
#define NICENESS 10

enum action { ACTION_SAVE, ACTION_RESTORE, ACTION_ERASE };

struct slot_action {
    struct dse_job job;
    struct dse_server *server;
    struct dse_http_exchange *exchange; /* owned reference */
    enum action action;
    int id;
    struct dse_caller caller;
    char filename[DSE_SAVED_NAME_BYTES + 1];
};

/* ---- the request ---------------------------------------------------------------------------------------------- */

static enum dse_status read_id(const char *path, int *id, struct dse_error *err)
{
    const char *text = strstr(path, "/slots/") + 7;
    const size_t digits = strspn(text, "0123456789");
    *id = digits > 0 && digits <= 3 && text[digits] == '\0' ? (int)strtol(text, NULL, 10) : -1;
    if (*id >= 0 && *id <= DSE_MAX_SLOT_ID) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, "id_slot", -1, "the slot in the path must be a number from 0 to %d",
                       DSE_MAX_SLOT_ID);
}

static enum dse_status read_action(const struct dse_http_exchange *x, enum action *action, struct dse_error *err)
{
    static const char *const names[] = {"save", "restore", "erase"};
    char text[16];
    if (dse_http_query_repeats(x, "action"))
        return dse_fail_at(err, DSE_ERR_INVALID, "action", -1, "the query has more than one action");
    if (!dse_http_query(x, "action", text, sizeof text)) text[0] = '\0';
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *action = (enum action)i;
        return DSE_OK;
    }
    return dse_fail_at(err, DSE_ERR_INVALID, "action", -1,
                       "the query must be action=save, action=restore or action=erase");
}

static enum dse_status read_body(const json_t *root, struct slot_action *a, struct dse_gen_params *params,
                                 struct dse_error *err)
{
    const char *name = NULL;
    size_t bytes = 0;
    TRY(dse_param_string(root, "filename", &name, &bytes, err));
    if (!name) return dse_fail_at(err, DSE_ERR_INVALID, "filename", -1, "filename is missing; it must be a string");
    TRY(dse_saved_name_check(name, bytes, err));
    memcpy(a->filename, name, bytes); /* and the NUL behind it, for it was all zero */
    return dse_cache_salt_parse(root, params, err);
}

/* ---- the thread of actions ------------------------------------------------------------------------------------ */

static bool is_stopping(void *server)
{
    return atomic_load(&((struct dse_server *)server)->stopping);
}

static double ms_since(uint64_t begin_ns)
{
    return (double)(dse_clock_ns() - begin_ns) * 1e-6;
}

static enum dse_status save(const struct slot_action *a, json_t **answer, struct dse_error *err)
{
    struct dse_server *server = a->server;
    struct dse_slot_tokens held;
    const uint64_t begin_ns = dse_clock_ns();
    uint64_t bytes = 0;
    int n_tokens = 0;
    enum dse_status status = dse_slots_get(server->slots, a->caller.tenant, a->id, &held, err);
    if (status != DSE_OK) return status;
    const struct dse_saved_prefix prefix = {.tokens = held.tokens,
                                            .n_tokens = (int)held.n_tokens,
                                            .cache_salt = held.cache_salt,
                                            .cache_salt_bytes = sizeof held.cache_salt,
                                            .adapter_identity = held.adapter_identity};
    status = dse_engine_save_prefix(atomic_load(&server->served)->engine, &prefix, server->slot_folder, a->filename,
                                    is_stopping, server, &n_tokens, &bytes, err);
    dse_free(held.tokens);
    if (status == DSE_OK)
        *answer = json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", a->id, "filename", a->filename, "n_saved",
                            n_tokens, "n_written", (json_int_t)bytes, "timings", "save_ms", ms_since(begin_ns));
    return status;
}

static enum dse_status restore(const struct slot_action *a, json_t **answer, struct dse_error *err)
{
    struct dse_server *server = a->server;
    struct dse_restored_prefix restored;
    const uint64_t begin_ns = dse_clock_ns();
    const struct dse_saved_prefix prefix = {.cache_salt = a->caller.cache_salt,
                                            .cache_salt_bytes = sizeof a->caller.cache_salt};
    enum dse_status status = dse_engine_restore_prefix(atomic_load(&server->served)->engine, &prefix,
                                                       server->slot_folder, a->filename, is_stopping, server, &restored,
                                                       err);
    if (status != DSE_OK) return status;
    struct dse_slot_tokens held = {.tokens = restored.tokens,
                                   .n_tokens = (size_t)restored.n_tokens,
                                   .adapter_identity = restored.adapter_identity};
    memcpy(held.cache_salt, a->caller.cache_salt, sizeof held.cache_salt);
    dse_slots_put(server->slots, a->caller.tenant, a->id, &held);
    *answer = json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", a->id, "filename", a->filename, "n_restored",
                        restored.n_tokens, "n_read", (json_int_t)restored.bytes, "timings", "restore_ms",
                        ms_since(begin_ns));
    return DSE_OK;
}

/* A slot that holds nothing is erased already. */
static enum dse_status erase(const struct slot_action *a, json_t **answer, struct dse_error *err)
{
    struct dse_server *server = a->server;
    struct dse_slot_tokens held = {0};
    int n_forgotten = 0;
    enum dse_status status = dse_slots_get(server->slots, a->caller.tenant, a->id, &held, err);
    if (status == DSE_OK) {
        const struct dse_saved_prefix prefix = {.tokens = held.tokens,
                                                .n_tokens = (int)held.n_tokens,
                                                .cache_salt = held.cache_salt,
                                                .cache_salt_bytes = sizeof held.cache_salt,
                                                .adapter_identity = held.adapter_identity};
        status = dse_engine_forget_prefix(atomic_load(&server->served)->engine, &prefix, &n_forgotten, err);
        if (status == DSE_ERR_UNSUPPORTED) status = DSE_OK; /* no cache: nothing is in it */
        dse_free(held.tokens);
    } else if (status == DSE_ERR_INVALID) {
        status = DSE_OK;
    }
    if (status != DSE_OK) return status;
    dse_slots_drop(server->slots, a->caller.tenant, a->id);
    *answer = json_pack("{s:i, s:i}", "id_slot", a->id, "n_erased", (int)held.n_tokens);
    return DSE_OK;
}

/* The client named the file, so what is wrong with it is wrong with the request. */
static void answer_failure(const struct slot_action *a, struct dse_error *err)
{
    bool file = strcmp(err->file, "filename") == 0;
    if (file &&
        (err->status == DSE_ERR_CORRUPT || err->status == DSE_ERR_NOT_FOUND || err->status == DSE_ERR_UNSUPPORTED))
        err->status = DSE_ERR_INVALID;
    dse_answer_failure(a->server, a->exchange, err);
}

static void end(struct slot_action *a)
{
    struct dse_server *server = a->server;
    dse_http_unref(a->exchange);
    dse_free(a);
    pthread_mutex_lock(&server->lock);
    if (--server->in_flight == 0) pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
}

static void run(void *argument)
{
    struct slot_action *a = argument;
    struct dse_error err;
    json_t *answer = NULL;
    enum dse_status status = DSE_OK;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS); /* of this thread */
    if (!dse_http_is_gone(a->exchange)) {                      /* else it left while others had their turn */
        status = a->action == ACTION_SAVE      ? save(a, &answer, &err)
                 : a->action == ACTION_RESTORE ? restore(a, &answer, &err)
                                               : erase(a, &answer, &err);
        if (status == DSE_OK)
            dse_answer_json(a->server, a->exchange, 200, answer);
        else
            answer_failure(a, &err);
    }
    end(a);
}

/* ---- handler -------------------------------------------------------------------------------------------------- */

static enum dse_status read_request(struct slot_action *a, const json_t *root, struct dse_error *err)
{
    struct dse_gen_params params = {0};
    if (root) TRY(read_body(root, a, &params, err));
    return dse_caller_identify(&a->server->auth, a->exchange, &params, &a->caller, err);
}

void dse_handle_slot_action(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    json_t *root = NULL;
    enum action action = ACTION_SAVE;
    int id = 0;
    enum dse_status status = read_action(x, &action, &err);
    if (status == DSE_OK) status = read_id(dse_http_path(x), &id, &err);
    if (status == DSE_OK && action != ACTION_ERASE) {
        if (server->slot_folder < 0) {
            dse_answer_problem(server, x, 501, NULL, NULL,
                               "this server saves no slots: start it with --slot-save-path DIR");
            return;
        }
        root = dse_request_object(server, x);
        if (!root) return;
    }
    struct slot_action *a = status == DSE_OK ? dse_calloc(DSE_MEM_SERVER, 1, sizeof *a) : NULL;
    if (a) {
        *a = (struct slot_action){.server = server, .exchange = dse_http_ref(x), .action = action, .id = id};
        pthread_mutex_lock(&server->lock);
        server->in_flight++;
        pthread_mutex_unlock(&server->lock);
        status = read_request(a, root, &err);
        if (status == DSE_OK && !dse_workers_post(server->slot_worker, &a->job, run, a))
            status = dse_fail(&err, DSE_ERR_UNAVAILABLE, "the server is shutting down");
        if (status != DSE_OK) end(a);
    } else if (status == DSE_OK) {
        status = dse_fail_memory(&err, sizeof *a, "an action on a slot");
    }
    json_decref(root);
    if (status != DSE_OK) dse_answer_failure(server, x, &err);
}

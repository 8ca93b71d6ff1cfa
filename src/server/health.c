/* /health, /ready, /version, /slots. On the I/O thread: never wait for the engine. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "server/errors.h"
#include "server/server_internal.h"

const char *dse_server_state(const struct dse_server *server)
{
    struct dse_server *writable = (struct dse_server *)server; /* for the atomics only */
    if (atomic_load(&writable->draining)) return "draining";
    struct dse_served *served = atomic_load(&writable->served);
    if (served == NULL) return "loading";
    return dse_engine_usable(served->engine) ? "ok" : "failed";
}

/* Alive: 200 whatever the engine does. */
void dse_handle_health(struct dse_server *server, struct dse_http_exchange *x)
{
    dse_answer_json(server, x, 200, json_pack("{s:s}", "status", dse_server_state(server)));
}

/* Able to take work. */
void dse_handle_ready(struct dse_server *server, struct dse_http_exchange *x)
{
    const char *now = dse_server_state(server);
    bool ready = strcmp(now, "ok") == 0;
    if (!ready) dse_http_set_header(x, "Retry-After", "2");
    dse_answer_json(server, x, ready ? 200 : 503, json_pack("{s:s}", "status", ready ? "ready" : now));
}

void dse_handle_version(struct dse_server *server, struct dse_http_exchange *x)
{
    dse_answer_json(server, x, 200, json_pack("{s:s, s:s}", "version", DSE_VERSION, "name", "deepseek-edge"));
}

bool dse_server_slots(const struct dse_server *server, struct dse_slot **slots, int *n)
{
    struct dse_served *served = atomic_load(&((struct dse_server *)server)->served);
    *slots = NULL;
    *n = 0;
    for (int max = 64; served && max <= 1 << 24; max *= 4) {
        *slots = dse_calloc(DSE_MEM_SERVER, (size_t)max, sizeof **slots);
        if (!*slots) return false;
        *n = dse_engine_slots(served->engine, *slots, max);
        if (*n < max) return true;
        dse_free(*slots); /* there may be more */
        *slots = NULL;
        *n = 0;
    }
    return !served;
}

/* One object per running or waiting request; never its prompt. */
void dse_handle_slots(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_served *served = atomic_load(&server->served);
    int n;
    struct dse_slot *slots;
    bool ok = dse_server_slots(server, &slots, &n);
    json_t *list = json_array();
    for (int i = 0; i < n && ok; i++)
        ok = json_array_append_new(list, json_pack("{s:I, s:b, s:I, s:i, s:i, s:i}", "id", (json_int_t)slots[i].id,
                                                   "is_processing", (int)slots[i].running, "n_ctx",
                                                   (json_int_t)served->context_length, "n_prompt", slots[i].n_prompt,
                                                   "n_processed", slots[i].n_processed, "n_generated",
                                                   slots[i].n_generated)) == 0;
    dse_free(slots);
    dse_answer_json(server, x, 200, dse_json_if(ok, list));
}

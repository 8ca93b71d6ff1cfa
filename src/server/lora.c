/* Adapters over HTTP: /v1/load_lora_adapter and /v1/unload_lora_adapter as vLLM has them, /lora-adapters as
 * llama-server has it.
 *
 * Loading reads and packs a file, on a worker; until it is done nothing has changed, and nothing has if it fails. It
 * is possible only where --lora-dir says from where.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "server/adapters.h"
#include "server/body.h"
#include "server/errors.h"
#include "server/params.h"
#include "server/server_internal.h"

/* A file that is no adapter for this model is the client's mistake here, not the server's. */
static void answer_load_failure(struct dse_server *server, struct dse_http_exchange *x, struct dse_error *err)
{
    dse_adapter_list_hide_root(server->adapters, err->message);
    struct dse_api_error error = dse_api_error_from(err);
    if (err->status == DSE_ERR_CORRUPT || err->status == DSE_ERR_UNSUPPORTED || err->status == DSE_ERR_LIMIT ||
        err->status == DSE_ERR_IO || err->status == DSE_ERR_INVALID) {
        error.http = 400;
        error.type = "invalid_request_error";
        error.code = NULL;
        error.param = strncmp(err->file, "lora_", 5) == 0 || strcmp(err->file, "load_inplace") == 0 ? err->file
                                                                                                    : "lora_path";
    }
    dse_answer_error(server, x, &error);
}

static void answer_text(struct dse_server *server, struct dse_http_exchange *x, const char *name, const char *what)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, 4096);
    dse_buffer_printf(&out, "Success: LoRA adapter '%s' %s successfully.", name, what);
    dse_answer_buffer(server, x, 200, "text/plain; charset=utf-8", &out);
}

static bool may_load(struct dse_server *server, struct dse_http_exchange *x)
{
    if (dse_adapter_list_may_load(server->adapters)) return true;
    dse_answer_problem(server, x, 403, NULL, "adapters_fixed",
                       "adapters are loaded and unloaded only where the server was started with --lora-dir DIR");
    return false;
}

static enum dse_status required(const json_t *root, const char *name, const char **out, struct dse_error *err)
{
    TRY(dse_param_string(root, name, out, NULL, err));
    return *out ? DSE_OK : dse_fail_at(err, DSE_ERR_INVALID, name, -1, "%s is missing", name);
}

static enum dse_status load(struct dse_server *server, const json_t *root, const char **name, struct dse_error *err)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_adapter *adapter = NULL;
    const char *path = NULL;
    char *resolved = NULL;
    bool replace = false;
    TRY(required(root, "lora_name", name, err));
    TRY(required(root, "lora_path", &path, err));
    TRY(dse_param_bool(root, "load_inplace", &replace, NULL, err));
    TRY(dse_adapter_check_name(*name, err));
    if (dse_server_is_base_model(server, *name))
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_name", -1, "'%.128s' is the name of the model itself", *name);
    TRY(dse_adapter_list_check(server->adapters, *name, replace, err));
    TRY(dse_adapter_list_resolve(server->adapters, path, &resolved, err));
    enum dse_status status = dse_adapter_open(served->model, resolved, &adapter, err);
    dse_free(resolved);
    struct dse_adapter_info info;
    if (status == DSE_OK) dse_adapter_get_info(adapter, &info);
    if (status == DSE_OK && info.rank > served->adapter_rank)
        status = dse_fail_at(err, DSE_ERR_INVALID, "lora_path", -1,
                             "the adapter has the rank %d, the server was started for %d at most (--max-lora-rank)",
                             info.rank, served->adapter_rank);
    if (status == DSE_OK) status = dse_adapter_list_put(server->adapters, *name, path, adapter, 0, replace, err);
    dse_adapter_unref(adapter);
    return status;
}

void dse_handle_load_adapter(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    const char *name = NULL;
    json_t *root = may_load(server, x) ? dse_request_object(server, x) : NULL;
    if (!root) return;
    if (load(server, root, &name, &err) == DSE_OK) {
        dse_log(DSE_LOG_INFO, "lora", "adapter %s loaded", name);
        answer_text(server, x, name, "added");
    } else {
        answer_load_failure(server, x, &err);
    }
    json_decref(root);
}

void dse_handle_unload_adapter(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    const char *name = NULL;
    json_t *root = may_load(server, x) ? dse_request_object(server, x) : NULL;
    if (!root) return;
    enum dse_status status = required(root, "lora_name", &name, &err);
    if (status == DSE_OK) status = dse_adapter_list_remove(server->adapters, name, &err);
    if (status == DSE_OK) {
        dse_log(DSE_LOG_INFO, "lora", "adapter %s unloaded", name);
        answer_text(server, x, name, "removed");
    } else {
        dse_answer_failure(server, x, &err);
    }
    json_decref(root);
}

void dse_handle_adapters(struct dse_server *server, struct dse_http_exchange *x)
{
    dse_answer_json(server, x, 200, dse_adapter_list_json(server->adapters));
}

void dse_handle_adapter_scales(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    json_t *scales = dse_request_array(server, x);
    if (!scales) return;
    if (dse_adapter_list_set_scales(server->adapters, scales, &err) == DSE_OK)
        dse_answer_json(server, x, 200, json_pack("{s:b}", "success", 1));
    else
        dse_answer_failure(server, x, &err);
    json_decref(scales);
}

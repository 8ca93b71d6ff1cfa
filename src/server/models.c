/* /v1/models and /v1/models/{id}. On the I/O thread: never wait for the engine, answer while the model loads. */
#include <string.h>

#include "base/json.h"
#include "server/errors.h"
#include "server/server_internal.h"

static json_t *model_object(struct dse_server *server, const char *name)
{
    json_t *object = json_pack("{s:s, s:s, s:I, s:s}", "id", name, "object", "model", "created",
                               (json_int_t)server->start_unix_s, "owned_by", "deepseek-edge");
    struct dse_served *served = atomic_load(&server->served);
    if (!object || !served) return object;
    bool ok = json_object_set_new(object, "max_model_len", json_integer(served->context_length)) == 0;
    ok &= json_object_set_new(object, "meta",
                              json_pack("{s:I, s:I, s:I, s:I, s:s, s:s, s:I}", "n_ctx",
                                        (json_int_t)served->context_length, "n_ctx_train",
                                        (json_int_t)served->info.context_length, "n_params",
                                        (json_int_t)served->info.n_parameters, "size",
                                        (json_int_t)served->info.file_bytes, "quant", served->info.quantization, "arch",
                                        served->info.arch, "n_vocab", (json_int_t)served->n_vocab)) == 0;
    return dse_json_if(ok, object);
}

/* 0 while the model loads. */
static int64_t context_length(struct dse_server *server)
{
    struct dse_served *served = atomic_load(&server->served);
    return served ? served->context_length : 0;
}

void dse_handle_models(struct dse_server *server, struct dse_http_exchange *x)
{
    json_t *list = json_array();
    bool ok = json_array_append_new(list, model_object(server, dse_server_model_name(server))) == 0;
    for (int i = 1; i < server->n_model_names; i++)
        ok &= json_array_append_new(list, model_object(server, server->model_names[i])) == 0;
    json_t *adapters = dse_adapter_list_models(server->adapters, dse_server_model_name(server), context_length(server));
    ok &= adapters && json_array_extend(list, adapters) == 0;
    json_decref(adapters);
    dse_answer_json(server, x, 200, json_pack("{s:s, s:o}", "object", "list", "data", dse_json_if(ok, list)));
}

void dse_handle_model(struct dse_server *server, struct dse_http_exchange *x)
{
    const char *path = dse_http_path(x), *marker = "/models/";
    const char *id = strstr(path, marker) + strlen(marker); /* the router matched it; ids may contain / and : */
    json_t *adapter;
    if (dse_adapter_list_model(server->adapters, id, dse_server_model_name(server), context_length(server), &adapter))
        dse_answer_json(server, x, 200, adapter);
    else if (dse_server_is_base_model(server, id))
        dse_answer_json(server, x, 200, model_object(server, id));
    else
        dse_answer_problem(server, x, 404, "invalid_request_error", "model_not_found",
                           "no model of this name is served");
}

/* `adapters`: lists, loads and unloads the adapters of a running server over HTTP. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/http_client.h"
#include "cli/json_out.h"
#include "cli/streams.h"
#include "cli/verbs.h"

#define MAX_ANSWER_BYTES (1u << 20)
#define LIST_TIMEOUT_MS  5000
#define LOAD_TIMEOUT_MS  600000

struct client {
    const char *url, *key;
};

/* What the server says is wrong, or its status alone. */
static enum dse_status refused(const struct client *client, int http, const struct dse_buffer *body,
                               struct dse_error *err)
{
    const enum dse_status status = http == 404 ? DSE_ERR_NOT_FOUND : http < 500 ? DSE_ERR_INVALID : DSE_ERR_UNAVAILABLE;
    json_t *answer = NULL;
    if (http == 401) return dse_fail(err, status, "%s wants a key: --api-key or DEEPSEEK_EDGE_API_KEY", client->url);
    if (dse_json_parse(dse_buffer_text(body), body->length, "the answer", &answer, NULL) != DSE_OK) answer = NULL;
    const char *message = json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
    if (message != NULL)
        dse_fail(err, status, "%s", message);
    else
        dse_fail(err, status, "%s answers with status %d: is it a deepseek-edge server?", client->url, http);
    json_decref(answer);
    return status;
}

static enum dse_status ask(const struct client *client, const char *method, const char *path, const json_t *request,
                           unsigned timeout_ms, struct dse_buffer *answer, struct dse_error *err)
{
    struct dse_buffer body;
    int http = 0;
    dse_buffer_init(&body, DSE_MEM_MISC, MAX_ANSWER_BYTES);
    enum dse_status status = DSE_OK;
    if (request != NULL && !dse_json_write(&body, request, JSON_COMPACT))
        status = dse_fail_memory(err, body.length, "a request");
    if (status == DSE_OK)
        status = dse_http_client_send(client->url, method, path, client->key, request != NULL ? &body : NULL,
                                      timeout_ms, &http, answer, err);
    if (status == DSE_OK && http != 200) status = refused(client, http, answer, err);
    dse_buffer_deinit(&body);
    return status;
}

static enum dse_status print_list(const struct client *client, bool as_json, struct dse_error *err)
{
    struct dse_buffer answer;
    json_t *list = NULL, *item;
    size_t i;
    dse_buffer_init(&answer, DSE_MEM_MISC, MAX_ANSWER_BYTES);
    enum dse_status status = ask(client, "GET", "/lora-adapters", NULL, LIST_TIMEOUT_MS, &answer, err);
    if (status == DSE_OK) {
        status = dse_json_parse(dse_buffer_text(&answer), answer.length, "the answer", &list, err);
        if (status != DSE_ERR_NO_MEMORY && !json_is_array(list)) /* comes from a server of others */
            status = dse_fail(err, DSE_ERR_ADDRESS,
                              "%s: /lora-adapters is no JSON array: is it a deepseek-edge server?", client->url);
    }
    if (status == DSE_OK && as_json) {
        status = dse_print_json_line(json_incref(list), err);
    } else if (status == DSE_OK) {
        printf("%-4s %-32s %8s %6s %10s  %s\n", "id", "name", "scale", "rank", "bytes", "path");
        json_array_foreach(list, i, item)
        {
            const char *name = json_string_value(json_object_get(item, "name"));
            const char *path = json_string_value(json_object_get(item, "path"));
            char head[16], tail[64];
            (void)snprintf(head, sizeof head, "%-4lld ", (long long)json_integer_value(json_object_get(item, "id")));
            (void)snprintf(tail, sizeof tail, " %8g %6lld %10lld  ", json_number_value(json_object_get(item, "scale")),
                           (long long)json_integer_value(json_object_get(item, "rank")),
                           (long long)json_integer_value(json_object_get(item, "bytes")));
            fputs(head, stdout);
            dse_print_safely(stdout, name != NULL ? name : "");
            for (size_t n = name != NULL ? strlen(name) : 0; n < 32; n++)
                fputc(' ', stdout);
            fputs(tail, stdout);
            dse_print_safely(stdout, path != NULL ? path : "");
            fputc('\n', stdout);
        }
    }
    json_decref(list);
    dse_buffer_deinit(&answer);
    return status;
}

static enum dse_status change(const struct client *client, const char *path, json_t *request, struct dse_error *err)
{
    struct dse_buffer answer;
    if (request == NULL) return dse_fail(err, DSE_ERR_INVALID, "names and paths must be valid UTF-8");
    dse_buffer_init(&answer, DSE_MEM_MISC, MAX_ANSWER_BYTES);
    enum dse_status status = ask(client, "POST", path, request, LOAD_TIMEOUT_MS, &answer, err);
    if (status == DSE_OK) {
        dse_print_safely(stderr, dse_buffer_text(&answer));
        fputc('\n', stderr);
    }
    dse_buffer_deinit(&answer);
    json_decref(request);
    return status;
}

enum dse_status dse_verb_adapters(const struct dse_options *options, struct dse_error *err)
{
    const struct dse_option_value *keys = &options->values[DSE_OPT_API_KEY];
    const struct client client = {dse_opt_text(options, DSE_OPT_URL), keys->count > 0 ? keys->list[0] : NULL};
    const char *what = options->n_positional > 0 ? options->positional[0] : "list";
    const char *const *given = options->positional + 1;
    const int n = options->n_positional > 0 ? options->n_positional - 1 : 0;
    const bool inplace = dse_opt_flag(options, DSE_OPT_INPLACE);
    if (inplace && strcmp(what, "load") != 0) return dse_fail(err, DSE_ERR_INVALID, "--inplace is for `adapters load`");
    if (strcmp(what, "list") == 0 && n == 0) return print_list(&client, dse_opt_flag(options, DSE_OPT_JSON), err);
    if (dse_opt_flag(options, DSE_OPT_JSON)) return dse_fail(err, DSE_ERR_INVALID, "--json is for `adapters list`");
    if (strcmp(what, "load") == 0 && n == 2)
        return change(
            &client, "/v1/load_lora_adapter",
            json_pack("{s:s, s:s, s:b}", "lora_name", given[0], "lora_path", given[1], "load_inplace", inplace), err);
    if (strcmp(what, "unload") == 0 && n == 1)
        return change(&client, "/v1/unload_lora_adapter", json_pack("{s:s}", "lora_name", given[0]), err);
    return dse_fail(err, DSE_ERR_INVALID,
                    "usage: deepseek-edge adapters [list] | load NAME PATH [--inplace] | unload NAME");
}

/* The body of a request as JSON (see body.h). Runs on a worker. */
#include "server/body.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "server/errors.h"
#include "server/params.h"
#include "server/server_internal.h"

/* A number that JSON allows and no type of ours holds. */
static bool is_out_of_range(const char *number, const char *end)
{
    bool real = false;
    for (const char *p = number; p < end; p++)
        real |= *p == '.' || *p == 'e' || *p == 'E';
    errno = 0;
    if (real) return isinf(strtod(number, NULL));
    (void)strtoll(number, NULL, 10);
    return errno == ERANGE;
}

/* Such numbers become DSE_NUMBER_BEYOND, so that one in a field that we ignore does no harm, and one in a field
 * that we read is out of that field's range. Says whether there were any. */
static bool tame_numbers(char *text)
{
    bool found = false, in_string = false;
    for (char *p = text; *p; p++) {
        if (in_string) {
            if (*p == '\\' && p[1])
                p++;
            else if (*p == '"')
                in_string = false;
        } else if (*p == '"') {
            in_string = true;
        } else if (*p == '-' || isdigit((unsigned char)*p)) {
            char *end = p + strspn(p, "+-.0123456789eE");
            if (end - p >= 5 && is_out_of_range(p, end)) { /* all of them are as long as 9e308 at least */
                bool negative = *p == '-';
                memset(p, ' ', (size_t)(end - p));
                memcpy(p, negative ? "-1e308" : "1e308", negative ? 6 : 5);
                found = true;
            }
            p = end - 1;
        }
    }
    return found;
}

static enum dse_status parse(const char *body, size_t bytes, json_t **root, struct dse_error *err)
{
    static const char what[] = "the request body";
    enum dse_status status = dse_json_parse(body, bytes, what, root, err);
    if (status != DSE_ERR_INVALID || strlen(body) != bytes) return status;
    char *copy = dse_strndup(DSE_MEM_REQUEST, body, bytes);
    if (copy && tame_numbers(copy)) status = dse_json_parse(copy, bytes, what, root, err);
    dse_free(copy);
    return status;
}

/* The body, which must be an object or an array, as JSON; NULL after an error answer. */
static json_t *request_value(struct dse_server *server, struct dse_http_exchange *x, bool array)
{
    size_t bytes;
    struct dse_error err;
    json_t *root = NULL;
    const char *body = dse_http_body(x, &bytes), *expected = array ? "array" : "object";
    const char *type = dse_http_header(x, "Content-Type");
    enum dse_status status = bytes ? parse(body, bytes, &root, &err)
                                   : dse_fail(&err, DSE_ERR_INVALID, "the request body is empty; expected a JSON %s",
                                              expected);
    if (status == DSE_OK && !(array ? json_is_array(root) : json_is_object(root))) {
        json_decref(root);
        root = NULL;
        status = dse_fail(&err, DSE_ERR_INVALID, "the request body must be a JSON %s", expected);
    }
    dse_http_drop_body(x);
    if (status == DSE_OK) return root;
    if (status == DSE_ERR_NO_MEMORY)
        dse_answer_failure(server, x, &err);
    else if (type && !strcasestr(type, "json"))
        dse_answer_problem(server, x, 415, NULL, NULL,
                           array ? "expected Content-Type: application/json and a JSON array as body"
                                 : "expected Content-Type: application/json and a JSON object as body");
    else
        dse_answer_problem(server, x, 400, NULL, NULL, err.message);
    return NULL;
}

json_t *dse_request_object(struct dse_server *server, struct dse_http_exchange *x)
{
    return request_value(server, x, false);
}

json_t *dse_request_array(struct dse_server *server, struct dse_http_exchange *x)
{
    return request_value(server, x, true);
}

bool dse_request_model_known(struct dse_server *server, struct dse_http_exchange *x, const json_t *root)
{
    struct dse_error err;
    const char *name = NULL;
    if (dse_param_string(root, "model", &name, NULL, &err) != DSE_OK) {
        dse_answer_failure(server, x, &err);
        return false;
    }
    if (dse_server_resolve_model(server, name) || dse_adapter_list_has(server->adapters, name)) return true;
    char message[256];
    snprintf(message, sizeof message, "The model `%.128s` does not exist", name);
    struct dse_api_error error = {
        .http = 404, .type = "invalid_request_error", .code = "model_not_found", .param = "model", .message = message};
    dse_answer_error(server, x, &error);
    return false;
}

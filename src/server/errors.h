/* Error answers: {"error":{"message","type","param","code",…}}, the same shape as an HTTP body and inside a stream. */
#ifndef DSE_SERVER_ERRORS_H
#define DSE_SERVER_ERRORS_H

#include <jansson.h>

#include "base/buffer.h"
#include "base/error.h"
#include "server/http.h"

struct dse_server;

struct dse_api_error {
    int http;
    const char *type, *code, *param; /* code and param may be NULL */
    const char *message;
    bool has_lengths; /* prompt too long */
    int64_t n_ctx, n_prompt_tokens;
};

/* What a failure below means to a client; borrows from err. */
struct dse_api_error dse_api_error_from(const struct dse_error *err);
/* For errors_total; whole error answers count themselves. */
void dse_count_error(int http);
bool dse_put_error(struct dse_buffer *out, const struct dse_api_error *error);
/* The same as Anthropic's clients know it: {"type":"error","error":{type,message},"request_id"}. */
bool dse_put_messages_error(struct dse_buffer *out, const struct dse_api_error *error, struct dse_http_exchange *x);
/* Errors at this path have that shape. */
bool dse_path_is_messages(const char *path);

void dse_answer_error(struct dse_server *server, struct dse_http_exchange *x, const struct dse_api_error *error);
void dse_answer_failure(struct dse_server *server, struct dse_http_exchange *x, const struct dse_error *err);
/* For handlers: an error given by its parts. */
void dse_answer_problem(struct dse_server *server, struct dse_http_exchange *x, int http, const char *type,
                        const char *code, const char *message);
/* Takes json; answers with it. */
void dse_answer_json(struct dse_server *server, struct dse_http_exchange *x, int http, json_t *json);
/* Takes what is in the buffer. */
void dse_answer_buffer(struct dse_server *server, struct dse_http_exchange *x, int http, const char *content_type,
                       struct dse_buffer *buffer);
#endif

/* The body of a request: a JSON object, or an error answer. */
#ifndef DSE_SERVER_BODY_H
#define DSE_SERVER_BODY_H

#include <jansson.h>
#include <stdbool.h>

#include "server/http.h"

struct dse_server;

/* The body as a JSON object (returns owned), or NULL after an error answer. */
json_t *dse_request_object(struct dse_server *server, struct dse_http_exchange *x);
/* The same of a body that is an array. */
json_t *dse_request_array(struct dse_server *server, struct dse_http_exchange *x);
/* false after an error answer: the request's model is of the wrong type or not served here. */
bool dse_request_model_known(struct dse_server *server, struct dse_http_exchange *x, const json_t *root);

#endif

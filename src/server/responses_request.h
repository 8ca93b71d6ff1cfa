/* A request of OpenAI's Responses API as the chat request that it stands for. Needs no engine and no model. */
#ifndef DSE_SERVER_RESPONSES_REQUEST_H
#define DSE_SERVER_RESPONSES_REQUEST_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

struct dse_responses_request {
    json_t *chat;     /* owned */
    char *echo;       /* owned (dse_free): members of the answer that repeat the request, as JSON text */
    char ignored[96]; /* kinds of tools that are left out, "" if none */
};

/* On failure nothing is left to free. Errors name the fields of the Responses API. */
DSE_MUST_CHECK enum dse_status dse_responses_request_parse(const json_t *root, struct dse_responses_request *request,
                                                           struct dse_error *err);

/* Pairs that end with NULL: a field of the chat request, what it is called here. */
extern const char *const dse_responses_fields[];

#endif

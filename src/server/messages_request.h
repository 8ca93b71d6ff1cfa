/* A request of Anthropic's Messages API as the chat request that it stands for. Needs no engine and no model. */
#ifndef DSE_SERVER_MESSAGES_REQUEST_H
#define DSE_SERVER_MESSAGES_REQUEST_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/* counting: for count_tokens, which needs no max_tokens. *chat: owned. Errors name Anthropic's fields. */
DSE_MUST_CHECK enum dse_status dse_messages_to_chat(const json_t *root, bool counting, json_t **chat,
                                                    struct dse_error *err);

/* Pairs that end with NULL: a field of the chat request, what it is called here. */
extern const char *const dse_messages_fields[];

#endif

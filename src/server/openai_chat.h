/* From a chat request as JSON to the engine: for /v1/chat/completions and the dialects that translate theirs to it. */
#ifndef DSE_SERVER_OPENAI_CHAT_H
#define DSE_SERVER_OPENAI_CHAT_H

#include <jansson.h>

#include "server/generation.h"

/* Parses, renders and runs. Takes chat and echo (see dse_generation; NULL: none); answers x in every case, errors with
 * the dialect's names of fields. */
void dse_chat_run(struct dse_server *server, struct dse_http_exchange *x, json_t *chat,
                  const struct dse_dialect *dialect, char *echo);
/* Answers with the number of tokens of the prompt behind this beginning of an object. Takes chat. */
void dse_chat_count(struct dse_server *server, struct dse_http_exchange *x, json_t *chat,
                    const struct dse_dialect *dialect, const char *object);

#endif

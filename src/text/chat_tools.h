/* Tools for models whose template has no place for them, or none that we can read calls from: their description joins
 * the system message, earlier calls and results become text, all in the form of DSE_TOOLS_QWEN. Called by the server
 * before a prompt is rendered. */
#ifndef DSE_TEXT_CHAT_TOOLS_H
#define DSE_TEXT_CHAT_TOOLS_H

#include <jansson.h>

#include "base/error.h"

/* messages and tools as the client sent them, checked; tools NULL: only calls and results of the history are rewritten.
 * *out: a new owned array. */
DSE_MUST_CHECK enum dse_status dse_chat_tools_as_text(const json_t *messages, const json_t *tools, json_t **out,
                                                      struct dse_error *err);

#endif

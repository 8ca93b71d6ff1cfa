/* What the translators of other dialects to chat requests share (messages_request.c, responses_request.c): a chat
 * request is a copy of the foreign one, without what means something else there, with messages made from its own. */
#ifndef DSE_SERVER_CHAT_TRANSLATE_H
#define DSE_SERVER_CHAT_TRANSLATE_H

#include <jansson.h>

#include "base/error.h"

#define DSE_FIELD_PATH_BYTES 128

/* A copy of the request that shares its values, without the fields of chat requests that the dialects have not, or
 * spell otherwise. Returns owned, NULL without memory. Fields of ours (grammar, seed, min_p, …) stay. */
json_t *dse_translate_begin(const json_t *root);
/* Puts an owned value into the request; NULL is lack of memory. */
DSE_MUST_CHECK enum dse_status dse_translate_set(json_t *chat, const char *name, json_t *value, struct dse_error *err);
/* Moves a field to another name, if it is there. */
DSE_MUST_CHECK enum dse_status dse_translate_rename(json_t *chat, const char *from, const char *to,
                                                    struct dse_error *err);

/* Appends {role, content: []} and gives it, borrowed. */
DSE_MUST_CHECK enum dse_status dse_translate_message(json_t *messages, const char *role, json_t **message,
                                                     struct dse_error *err);
/* Appends a text part to the content of a message. text: what should be a string; path names it. */
DSE_MUST_CHECK enum dse_status dse_translate_text(json_t *message, const json_t *text, const char *path,
                                                  struct dse_error *err);
/* Appends to a string of the message: thoughts that come in pieces. */
DSE_MUST_CHECK enum dse_status dse_translate_append(json_t *message, const char *name, const json_t *text,
                                                    const char *path, struct dse_error *err);
/* Appends a tool call; arguments: a string or an object. */
DSE_MUST_CHECK enum dse_status dse_translate_call(json_t *message, const json_t *id, const json_t *name,
                                                  const json_t *arguments, struct dse_error *err);
/* The last message, if it is the assistant's and has text, is the beginning of the answer: its parts become one string
 * and continue_final_message is set. */
DSE_MUST_CHECK enum dse_status dse_translate_continue(json_t *chat, json_t *messages, struct dse_error *err);

/* Sets path to "PATH.NAME" or "NAME[index]"-like text; a cut one is still of use. */
void dse_field_path(char path[DSE_FIELD_PATH_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fills in `PATH must be EXPECTED, not TYPE`. */
enum dse_status dse_field_wrong(struct dse_error *err, const char *path, const char *expected, const json_t *found);

#endif

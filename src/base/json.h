/* JSON through jansson, with our limits: strict UTF-8, nesting depth, number of values, duplicate keys refused.
 *
 * Integers keep 64 bits. Object order is insertion order (chat templates need it).
 */
#ifndef DSE_BASE_JSON_H
#define DSE_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buffer.h"
#include "base/error.h"

#define DSE_JSON_MAX_DEPTH 128
/* Values of a text from a client, and of a file of a model. Counted by the memory they take: an array or object is 8, a
 * string 2, a member of an object its value and 2 more for its name. So besides the text of its strings a parsed text
 * never takes more than some 64 bytes times this as DSE_MEM_JSON counts them, some 100 with what malloc adds. */
#define DSE_JSON_MAX_VALUES      (1u << 20)
#define DSE_JSON_MAX_FILE_VALUES (1u << 26)

/* what: file or field name for messages. Returns owned (json_decref). A UTF-8 byte order mark is skipped. */
DSE_MUST_CHECK enum dse_status dse_json_parse(const char *text, size_t bytes, const char *what, json_t **out,
                                              struct dse_error *err);
/* The same with another limit than DSE_JSON_MAX_VALUES. */
DSE_MUST_CHECK enum dse_status dse_json_parse_limited(const char *text, size_t bytes, size_t max_values,
                                                      const char *what, json_t **out, struct dse_error *err);
/* The same, and DSE_JSON_MAX_FILE_VALUES, from a file of at most max_bytes. */
DSE_MUST_CHECK enum dse_status dse_json_read(const char *path, size_t max_bytes, json_t **out, struct dse_error *err);

/* A copy that is whole, or NULL: jansson's own leaves out members for which there is no memory. */
json_t *dse_json_copy(const json_t *value);
json_t *dse_json_deep_copy(const json_t *value);
/* The value (taken), or NULL when something that was to go into it was not there. */
json_t *dse_json_if(bool ok, json_t *value);

/* Appends a value of any kind as text, with flags of json_dumps; false, and out->failed, without memory. json_dumps itself
 * leaves out names for which there is none. */
bool dse_json_write(struct dse_buffer *out, const json_t *value, size_t flags);

/* What json_dumps gave. */
void dse_json_free_text(char *text);

#endif

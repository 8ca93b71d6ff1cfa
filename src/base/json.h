/* JSON through jansson, with our limits: strict UTF-8, nesting depth, duplicate keys refused, allocator tagged.
 *
 * Integers keep 64 bits. Object order is insertion order (chat templates need it).
 */
#ifndef DSE_BASE_JSON_H
#define DSE_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define DSE_JSON_MAX_DEPTH 128

/* what: file or field name for messages. Returns owned (json_decref). A UTF-8 byte order mark is skipped. */
DSE_MUST_CHECK enum dse_status dse_json_parse(const char *text, size_t bytes, const char *what, json_t **out,
                                              struct dse_error *err);
/* The same from a file of at most max_bytes. */
DSE_MUST_CHECK enum dse_status dse_json_read(const char *path, size_t max_bytes, json_t **out, struct dse_error *err);

#endif

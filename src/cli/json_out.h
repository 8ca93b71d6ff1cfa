/* One JSON value as one line (or pretty) on standard output. */
#ifndef DSE_CLI_JSON_OUT_H
#define DSE_CLI_JSON_OUT_H

#include <jansson.h>

#include "base/error.h"

/* Takes value (NULL: out of memory). Prints with two blanks of indent and a newline. */
DSE_MUST_CHECK enum dse_status dse_print_json(json_t *value, struct dse_error *err);
/* The same compact, on one line. */
DSE_MUST_CHECK enum dse_status dse_print_json_line(json_t *value, struct dse_error *err);

/* A string of bytes that may not be UTF-8, such as a file's name: bad ones become U+FFFD. NULL without memory. */
json_t *dse_json_lossy_string(const char *text);

#endif

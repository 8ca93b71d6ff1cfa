/* What several verbs read in the same way: standard input whole, and the file of --chat-template. */
#ifndef DSE_CLI_INPUT_H
#define DSE_CLI_INPUT_H

#include <stddef.h>

#include "cli/options.h"

/* All of standard input, NUL-terminated; more than max_bytes is DSE_ERR_LIMIT. Returns owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_read_stdin(size_t max_bytes, char **text, size_t *bytes, struct dse_error *err);

/* Text of the file or of the built-in that --chat-template names; *source is NULL when the flag was not given. Returns owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_read_chat_template(const struct dse_options *options, char **source, size_t *bytes,
                                                      struct dse_error *err);

#endif

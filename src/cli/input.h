/* What several verbs read in the same way: standard input whole, and the file of --chat-template. */
#ifndef DSE_CLI_INPUT_H
#define DSE_CLI_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buffer.h"
#include "cli/options.h"

/* All of standard input, NUL-terminated; more than max_bytes is DSE_ERR_LIMIT, told as soon as they were read. Returns
 * owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_read_stdin(size_t max_bytes, char **text, size_t *bytes, struct dse_error *err);

/* The next line of standard input without its end, into a buffer whose maximum is that of a line. *more: there was
 * one. */
DSE_MUST_CHECK enum dse_status dse_read_line(struct dse_buffer *line, bool *more, struct dse_error *err);

/* DSE_ERR_INVALID if text holds a NUL: what follows it would be lost on the way to the model. */
DSE_MUST_CHECK enum dse_status dse_check_text(const char *text, size_t bytes, const char *what, struct dse_error *err);

/* Text of the file or of the built-in that --chat-template names; *source is NULL when the flag was not given. Returns
 * owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_read_chat_template(const struct dse_options *options, char **source, size_t *bytes,
                                                      struct dse_error *err);

#endif

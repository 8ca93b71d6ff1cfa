/* The three standard streams: always there, their losses told, nothing in messages that a terminal would obey. */
#ifndef DSE_CLI_STREAMS_H
#define DSE_CLI_STREAMS_H

#include <stdio.h>

#include "base/buffer.h"

/* Called before anything opens a file. */
void dse_streams_open_missing(void);
/* Writes out standard output. Returns exit_code, or that of a failed write if it was 0 and something was lost. */
int dse_streams_finish(int exit_code);
/* Text that may come from a file or a name: control characters but newlines, and bytes that are not UTF-8, are printed
 * as \xNN. */
void dse_print_safely(FILE *out, const char *text);
/* What a server says of itself on standard error: lines of text, each with its newline. With --log-format json each
 * becomes an info line of the log. */
void dse_talk(const char *format, ...) __attribute__((format(printf, 1, 2)));
void dse_put_safely(struct dse_buffer *out, const char *text, size_t bytes);

#endif

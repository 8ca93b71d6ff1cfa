/* Log lines as text or JSON, handed one by one to a sink. Never prompts, never keys.
 *
 * The library itself logs through this and nothing else. Without a sink, which is how a process begins, nothing is
 * formatted and nothing is written: only cli/ prints, and says here where to.
 */
#ifndef DSE_BASE_LOG_H
#define DSE_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum dse_log_level { DSE_LOG_ERROR, DSE_LOG_WARN, DSE_LOG_INFO, DSE_LOG_DEBUG };

/* Gets a whole line with its newline, on the thread that logs, several at once: one write per line keeps them apart. */
typedef void dse_log_sink_fn(const char *line, size_t bytes);

void dse_log_configure(enum dse_log_level level, bool json); /* default: warn, text */
void dse_log_to(dse_log_sink_fn *sink);                      /* NULL, the default: nowhere */
void dse_log(enum dse_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool dse_log_level_parse(const char *name, enum dse_log_level *level);

#endif

/* Log lines on stderr (or a sink), as text or JSON. Never prompts, never keys.
 *
 * The library itself logs through this and nothing else; only cli/ prints.
 */
#ifndef DSE_BASE_LOG_H
#define DSE_BASE_LOG_H

#include <stdbool.h>

enum dse_log_level { DSE_LOG_ERROR, DSE_LOG_WARN, DSE_LOG_INFO, DSE_LOG_DEBUG };

void dse_log_configure(enum dse_log_level level, bool json); /* default: warn, text */
void dse_log(enum dse_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool dse_log_level_parse(const char *name, enum dse_log_level *level);

#endif

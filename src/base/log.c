/* One line per event, formatted on the stack: logging never allocates and works where allocation is forbidden. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"

#define MESSAGE_BYTES 2048
#define LINE_BYTES    (6 * MESSAGE_BYTES + 256) /* every byte as \u00xx, and the names around it */

static _Atomic int log_level = DSE_LOG_WARN;
static _Atomic bool log_json;
static dse_log_sink_fn *_Atomic log_sink;
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void dse_log_configure(enum dse_log_level level, bool json)
{
    log_level = level;
    log_json = json;
}

void dse_log_to(dse_log_sink_fn *sink)
{
    log_sink = sink;
}

bool dse_log_level_parse(const char *name, enum dse_log_level *level)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof *level_names); i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *level = (enum dse_log_level)i;
        return true;
    }
    return false;
}

void dse_log(enum dse_log_level level, const char *component, const char *format, ...)
{
    dse_log_sink_fn *sink = log_sink;
    if (sink == NULL || (int)level > log_level) return;
    char message[MESSAGE_BYTES], memory[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);

    struct timespec now;
    struct tm utc;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);

    struct dse_buffer line;
    dse_buffer_init_fixed(&line, memory, sizeof memory);
    if (log_json) {
        dse_buffer_printf(&line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"component\":\"%s\",\"message\":", stamp,
                          now.tv_nsec / 1000000, level_names[level], component);
        dse_buffer_put_json_string(&line, message, strlen(message));
        dse_buffer_puts(&line, "}\n");
    } else {
        dse_buffer_printf(&line, "%s: %s: %s\n", level_names[level], component, message);
    }
    sink(dse_buffer_text(&line), line.length);
}

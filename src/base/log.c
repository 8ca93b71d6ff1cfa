/* One line per event on stderr, written with a single write so that threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buffer.h"

static _Atomic int log_level = DSE_LOG_WARN;
static _Atomic bool log_json;
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void dse_log_configure(enum dse_log_level level, bool json)
{
    log_level = level;
    log_json = json;
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
    if ((int)level > log_level) return;
    char message[2048];
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
    dse_buffer_init(&line, DSE_MEM_MISC, 16384);
    if (log_json) {
        dse_buffer_printf(&line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"component\":\"%s\",\"message\":", stamp,
                          now.tv_nsec / 1000000, level_names[level], component);
        dse_buffer_put_json_string(&line, message, strlen(message));
        dse_buffer_puts(&line, "}\n");
    } else {
        dse_buffer_printf(&line, "%s: %s: %s\n", level_names[level], component, message);
    }
    ssize_t written = write(STDERR_FILENO, dse_buffer_text(&line), line.length);
    (void)written; /* nowhere to report it */
    dse_buffer_deinit(&line);
}

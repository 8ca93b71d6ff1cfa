/* One line per event, formatted on the stack: logging never allocates and works where allocation is forbidden. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "base/utf8.h"

#define MESSAGE_BYTES 2048
#define LINE_BYTES    (6 * MESSAGE_BYTES + 4096) /* every byte as \u00xx, and the names and fields around it */

static _Atomic int log_level = DSE_LOG_WARN;
static _Atomic bool log_json;
static dse_log_sink_fn *_Atomic log_sink;
static char log_node[DSE_LOG_NODE_BYTES];
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

void dse_log_set_node(const char *node)
{
    snprintf(log_node, sizeof log_node, "%s", node);
}

bool dse_log_is_json(void)
{
    return log_json;
}

bool dse_log_enabled(enum dse_log_level level)
{
    return log_sink != NULL && (int)level <= log_level;
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

/* As JSON, and no byte in it that a terminal would obey or that who prints the line would have to change: the C1
 * controls are escaped as well. */
static void put_string(struct dse_buffer *line, const char *text)
{
    const size_t bytes = strlen(text);
    dse_buffer_putc(line, '"');
    for (size_t at = 0, used; at < bytes; at += used) {
        uint32_t code = dse_utf8_decode(text + at, bytes - at, &used);
        if (code == DSE_UTF8_INVALID)
            dse_buffer_puts(line, "\xEF\xBF\xBD");
        else if (code < 0x20 || (code >= 0x7F && code < 0xA0))
            dse_buffer_printf(line, "\\u%04x", (unsigned)code);
        else if (code == '"' || code == '\\')
            dse_buffer_printf(line, "\\%c", (char)code);
        else
            dse_buffer_append(line, text + at, used);
    }
    dse_buffer_putc(line, '"');
}

static void put_field(struct dse_buffer *line, const struct dse_log_field *field, bool json)
{
    if (field->kind == DSE_LOG_TEXT && field->text == NULL) return;
    dse_buffer_printf(line, json ? ",\"%s\":" : " %s=", field->name);
    switch (field->kind) {
    case DSE_LOG_TEXT: put_string(line, field->text); break;
    case DSE_LOG_NUMBER: dse_buffer_printf(line, "%lld", (long long)field->number); break;
    case DSE_LOG_MS: dse_buffer_printf(line, "%.3f", (double)field->number * 1e-6); break;
    case DSE_LOG_BOOL: dse_buffer_puts(line, field->number ? "true" : "false"); break;
    }
}

static void put_json(struct dse_buffer *line, enum dse_log_level level, const char *component, const char *message,
                     const struct dse_log_field *fields, int n_fields)
{
    struct timespec now;
    struct tm utc;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    dse_buffer_printf(line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"component\":\"%s\",\"message\":", stamp,
                      now.tv_nsec / 1000000, level_names[level], component);
    put_string(line, message);
    if (log_node[0] != '\0') {
        dse_buffer_puts(line, ",\"edge_node_id\":");
        put_string(line, log_node);
    }
    size_t complete = line->length;
    for (int i = 0; i < n_fields; i++) {
        put_field(line, &fields[i], true);
        if (!line->failed && line->capacity - line->length > 2) {
            complete = line->length;
            continue;
        }
        line->failed = false; /* fields that have no room are left out: the line stays JSON */
        line->length = complete;
    }
    dse_buffer_puts(line, "}\n");
}

static void emit(enum dse_log_level level, const char *component, const char *message,
                 const struct dse_log_field *fields, int n_fields)
{
    dse_log_sink_fn *sink = log_sink;
    if (sink == NULL) return;
    char memory[LINE_BYTES];
    struct dse_buffer line;
    dse_buffer_init_fixed(&line, memory, sizeof memory);
    if (log_json) {
        put_json(&line, level, component, message, fields, n_fields);
    } else {
        dse_buffer_printf(&line, "%s: %s: %s", level_names[level], component, message);
        for (int i = 0; i < n_fields; i++)
            put_field(&line, &fields[i], false);
        line.failed = false;
        if (line.length > sizeof memory - 2) line.length = sizeof memory - 2;
        dse_buffer_puts(&line, "\n");
    }
    sink(dse_buffer_text(&line), line.length);
}

void dse_log(enum dse_log_level level, const char *component, const char *format, ...)
{
    if (!dse_log_enabled(level)) return;
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    emit(level, component, message, NULL, 0);
}

void dse_log_fields(enum dse_log_level level, const char *component, const char *message,
                    const struct dse_log_field *fields, int n_fields)
{
    if (dse_log_enabled(level)) emit(level, component, message, fields, n_fields);
}

void dse_log_always(const char *component, const char *message)
{
    char shortened[MESSAGE_BYTES];
    snprintf(shortened, sizeof shortened, "%s", message);
    emit(DSE_LOG_INFO, component, shortened, NULL, 0);
}

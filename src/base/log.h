/* Log lines as text or JSON, handed one by one to a sink. Never prompts, never keys.
 *
 * The library itself logs through this and nothing else. Without a sink, which is how a process begins, nothing is
 * formatted and nothing is written: only cli/ prints, and says here where to.
 */
#ifndef DSE_BASE_LOG_H
#define DSE_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dse_log_level { DSE_LOG_ERROR, DSE_LOG_WARN, DSE_LOG_INFO, DSE_LOG_DEBUG };

/* Gets a whole line with its newline, on the thread that logs, several at once: one write per line keeps them apart. */
typedef void dse_log_sink_fn(const char *line, size_t bytes);

#define DSE_LOG_NODE_BYTES 65

void dse_log_configure(enum dse_log_level level, bool json); /* default: warn, text */
void dse_log_to(dse_log_sink_fn *sink);                      /* NULL, the default: nowhere */
/* Goes into every JSON line as edge_node_id from now on. Before other threads log; copied, "": none. */
void dse_log_set_node(const char *node);
bool dse_log_is_json(void);
bool dse_log_enabled(enum dse_log_level level);
void dse_log(enum dse_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool dse_log_level_parse(const char *name, enum dse_log_level *level);

/* One name and value of a line. In JSON a member of the object, as text name=value behind the message. */
struct dse_log_field {
    const char *name;
    enum { DSE_LOG_TEXT, DSE_LOG_NUMBER, DSE_LOG_MS, DSE_LOG_BOOL } kind;
    const char *text; /* NULL: the field is left out */
    int64_t number;   /* NUMBER, BOOL; MS: nanoseconds, shown as milliseconds */
};
void dse_log_fields(enum dse_log_level level, const char *component, const char *message,
                    const struct dse_log_field *fields, int n_fields);
/* What is said whatever the level, such as "ready": an info line. */
void dse_log_always(const char *component, const char *message);

#endif

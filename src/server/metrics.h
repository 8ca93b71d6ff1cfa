/* What the files of /metrics share: metrics.c (the contract of base/counters.h as Prometheus text), metrics_machine.c
 * (sensors, read by a thread of their own) and metrics_vllm.c (the same numbers under vLLM's names). */
#ifndef DSE_SERVER_METRICS_H
#define DSE_SERVER_METRICS_H

#include "base/buffer.h"
#include "base/counters.h"
#include "base/error.h"
#include "base/sensors.h"

struct dse_server;
struct dse_machine_watch;

void dse_metrics_put_head(struct dse_buffer *out, const char *prefix, const char *name, const char *help,
                          const char *type);
/* The lines of a histogram; labels: "" or `name="value"`. */
void dse_metrics_put_histogram(struct dse_buffer *out, const char *prefix, const char *name, const char *labels,
                               const struct dse_histogram_view *view);
/* The text of a label's value, escaped, without the quotes. */
void dse_metrics_put_label(struct dse_buffer *out, const char *text);

/* Requests that run and wait, counted as /slots counts them: the engine's own gauges move with its steps. false: no
 * memory. */
DSE_MUST_CHECK bool dse_metrics_count_requests(const struct dse_server *server, int64_t *running, int64_t *waiting);

/* Starts and ends the thread that reads the sensors, at once and then every few seconds. */
DSE_MUST_CHECK enum dse_status dse_machine_watch_start(struct dse_machine_watch **watch, struct dse_error *err);
void dse_machine_watch_stop(struct dse_machine_watch *watch); /* safe on NULL */
/* A copy of the last reading; never waits for a sensor. */
void dse_machine_watch_get(struct dse_machine_watch *watch, struct dse_sensors *out);
void dse_metrics_put_machine(struct dse_buffer *out, const struct dse_sensors *sensors);

void dse_metrics_put_vllm(struct dse_buffer *out, const struct dse_server *server);

#endif

/* /metrics: base/counters.h as Prometheus text (version 0.0.4). On the I/O thread: reads atomics, waits for nobody. */
#include "server/metrics.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "server/errors.h"
#include "server/server_internal.h"

#define PREFIX           "deepseek_edge_"
#define MAX_METRIC_BYTES (4u << 20)

void dse_metrics_put_head(struct dse_buffer *out, const char *prefix, const char *name, const char *help,
                          const char *type)
{
    dse_buffer_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

/* Rows of one name are one metric: its head comes once. */
static void put_row_head(struct dse_buffer *out, const struct dse_metric_row *rows, int index, const char *type)
{
    if (index > 0 && strcmp(rows[index].name, rows[index - 1].name) == 0) return;
    dse_metrics_put_head(out, PREFIX, rows[index].name, rows[index].help, type);
}

static void put_value(struct dse_buffer *out, const struct dse_metric_row *row, long long value)
{
    dse_buffer_printf(out, PREFIX "%s", row->name);
    if (row->labels[0]) dse_buffer_printf(out, "{%s}", row->labels);
    if (row->unit == DSE_UNIT_SECONDS)
        dse_buffer_printf(out, " %.9f\n", (double)value * 1e-9);
    else
        dse_buffer_printf(out, " %lld\n", value);
}

void dse_metrics_put_histogram(struct dse_buffer *out, const char *prefix, const char *name, const char *labels,
                               const struct dse_histogram_view *view)
{
    const char *comma = labels[0] ? "," : "", *open = labels[0] ? "{" : "", *close = labels[0] ? "}" : "";
    uint64_t total = 0;
    for (int i = 0; i < DSE_HISTOGRAM_BUCKETS; i++) {
        total += view->buckets[i];
        dse_buffer_printf(out, "%s%s_bucket{%s%sle=\"%g\"} %llu\n", prefix, name, labels, comma, view->bounds[i],
                          (unsigned long long)total);
    }
    total += view->buckets[DSE_HISTOGRAM_BUCKETS]; /* the count is made from the buckets, so that they always agree */
    dse_buffer_printf(out, "%s%s_bucket{%s%sle=\"+Inf\"} %llu\n", prefix, name, labels, comma,
                      (unsigned long long)total);
    dse_buffer_printf(out, "%s%s_sum%s%s%s %.9g\n%s%s_count%s%s%s %llu\n", prefix, name, open, labels, close, view->sum,
                      prefix, name, open, labels, close, (unsigned long long)total);
}

void dse_metrics_put_label(struct dse_buffer *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') dse_buffer_putc(out, '\\');
        if (*text == '\n')
            dse_buffer_puts(out, "\\n");
        else
            dse_buffer_putc(out, *text);
    }
}

/* Head and the label part of an info metric whose labels are those of its row, in order; values end with NULL. */
static void put_info(struct dse_buffer *out, enum dse_server_metric id, const char *const *values, bool known)
{
    const struct dse_metric_row *row = &dse_server_metric_rows[id];
    dse_metrics_put_head(out, PREFIX, row->name, row->help, "gauge");
    if (!known) return;
    dse_buffer_printf(out, PREFIX "%s{", row->name);
    for (const char *label = row->labels; *label && *values; values++) {
        int n = (int)strcspn(label, ",");
        dse_buffer_printf(out, "%.*s=\"", n, label);
        dse_metrics_put_label(out, *values);
        label += n;
        dse_buffer_puts(out, *label ? "\"," : "\"");
        label += *label == ',';
    }
    dse_buffer_puts(out, "} 1\n");
}

static void put_infos(struct dse_buffer *out, struct dse_server *server)
{
    struct dse_served *served = atomic_load(&server->served);
    char features[64], threads[16] = "0";
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    if (served) snprintf(threads, sizeof threads, "%d", served->info.n_threads);
    put_info(out, DSE_SERVER_METRIC_BUILD_INFO, (const char *[]){DSE_VERSION, __VERSION__, NULL}, true);
    const char *device = served && served->info.device_name ? served->info.device_name : "";
    put_info(out, DSE_SERVER_METRIC_BACKEND_INFO, (const char *[]){device, dse_cpu_model(), features, threads, NULL},
             served);
    put_info(out, DSE_SERVER_METRIC_MODEL_INFO,
             (const char *[]){dse_server_model_name(server), served ? served->info.arch : "",
                              served ? served->info.quantization : "", device, NULL},
             served);
}

static void put_server(struct dse_buffer *out, struct dse_server *server)
{
    const struct dse_metric_row *rows = dse_server_metric_rows;
    struct dse_served *served = atomic_load(&server->served);
    put_infos(out, server);
    put_row_head(out, rows, DSE_SERVER_METRIC_READY, "gauge");
    put_value(out, &rows[DSE_SERVER_METRIC_READY], served && !atomic_load(&server->draining) ? 1 : 0);
    put_row_head(out, rows, DSE_SERVER_METRIC_UPTIME, "gauge");
    put_value(out, &rows[DSE_SERVER_METRIC_UPTIME], (long long)(dse_clock_ns() - server->start_ns));
    put_row_head(out, rows, DSE_SERVER_METRIC_MEMORY, "gauge");
    for (int i = 0; i < DSE_MEM_COUNT; i++)
        dse_buffer_printf(out, PREFIX "%s{purpose=\"%s\"} %zu\n", rows[DSE_SERVER_METRIC_MEMORY].name,
                          dse_mem_name((enum dse_mem)i), dse_mem_live_bytes((enum dse_mem)i));
}

bool dse_metrics_count_requests(const struct dse_server *server, int64_t *running, int64_t *waiting)
{
    int n;
    struct dse_slot *slots;
    bool ok = dse_server_slots(server, &slots, &n);
    *running = *waiting = 0;
    for (int i = 0; i < n; i++)
        ++*(slots[i].running ? running : waiting);
    dse_free(slots);
    return ok;
}

void dse_handle_metrics(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, MAX_METRIC_BYTES);
    for (int i = 0; i < DSE_COUNTER_COUNT; i++) {
        put_row_head(&out, dse_counter_rows, i, "counter");
        put_value(&out, &dse_counter_rows[i], (long long)dse_counter_get((enum dse_counter)i));
    }
    int64_t running, waiting;
    if (!dse_metrics_count_requests(server, &running, &waiting)) out.failed = true;
    for (int i = 0; i < DSE_GAUGE_COUNT; i++) {
        int64_t value = i == DSE_GAUGE_REQUESTS_RUNNING   ? running
                        : i == DSE_GAUGE_REQUESTS_WAITING ? waiting
                                                          : dse_gauge_get((enum dse_gauge)i);
        put_row_head(&out, dse_gauge_rows, i, "gauge");
        put_value(&out, &dse_gauge_rows[i], value);
    }
    for (int i = 0; i < DSE_HISTOGRAM_COUNT; i++) {
        struct dse_histogram_view view = dse_histogram_get((enum dse_histogram)i);
        put_row_head(&out, dse_histogram_rows, i, "histogram");
        dse_metrics_put_histogram(&out, PREFIX, dse_histogram_rows[i].name, dse_histogram_rows[i].labels, &view);
    }
    put_server(&out, server);
    struct dse_sensors *sensors = dse_calloc(DSE_MEM_SERVER, 1, sizeof *sensors);
    if (sensors) {
        dse_machine_watch_get(server->machine, sensors);
        dse_metrics_put_machine(&out, sensors);
    } else {
        out.failed = true; /* a metric that is missing now and then is worse than a scrape that fails */
    }
    dse_free(sensors);
    if (server->metrics_vllm) dse_metrics_put_vllm(&out, server);
    dse_answer_buffer(server, x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

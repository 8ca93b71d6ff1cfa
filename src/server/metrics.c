/* /metrics: base/counters.h as Prometheus text (version 0.0.4). On the I/O thread: reads atomics, waits for nobody. */
#include "base/counters.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/errors.h"
#include "server/server_internal.h"

#define PREFIX "deepseek_edge_"

static const struct {
    const char *name, *help;
} counters[] = {
#define ROW(id, metric, text) {metric, text},
    DSE_COUNTERS(ROW)};
static const struct {
    const char *name, *help;
} gauges[] = {DSE_GAUGES(ROW)};
static const struct {
    const char *name, *help;
} histograms[] = {DSE_HISTOGRAMS(ROW)
#undef ROW
};

static void put_head(struct dse_buffer *out, const char *name, const char *help, const char *type)
{
    dse_buffer_printf(out, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

static void put_histogram(struct dse_buffer *out, int index)
{
    const char *name = histograms[index].name;
    struct dse_histogram_view view = dse_histogram_get((enum dse_histogram)index);
    uint64_t total = 0;
    put_head(out, name, histograms[index].help, "histogram");
    for (int i = 0; i < DSE_HISTOGRAM_BUCKETS; i++) {
        total += view.buckets[i];
        dse_buffer_printf(out, PREFIX "%s_bucket{le=\"%g\"} %llu\n", name, dse_histogram_bounds[i],
                          (unsigned long long)total);
    }
    total += view.buckets[DSE_HISTOGRAM_BUCKETS]; /* the count is made from the buckets, so that they always agree */
    dse_buffer_printf(out, PREFIX "%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)total);
    dse_buffer_printf(out, PREFIX "%s_sum %.9g\n" PREFIX "%s_count %llu\n", name, view.sum, name,
                      (unsigned long long)total);
}

static void put_label(struct dse_buffer *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') dse_buffer_putc(out, '\\');
        if (*text == '\n')
            dse_buffer_puts(out, "\\n");
        else
            dse_buffer_putc(out, *text);
    }
}

static void put_info(struct dse_buffer *out, struct dse_server *server)
{
    struct dse_served *served = atomic_load(&server->served);
    put_head(out, "build_info", "Version of the program", "gauge");
    dse_buffer_puts(out, PREFIX "build_info{version=\"" DSE_VERSION "\"} 1\n");
    put_head(out, "model_info", "The model that is served", "gauge");
    if (served) {
        dse_buffer_puts(out, PREFIX "model_info{model=\"");
        put_label(out, dse_server_model_name(server));
        dse_buffer_puts(out, "\",arch=\"");
        put_label(out, served->info.arch);
        dse_buffer_puts(out, "\",quantization=\"");
        put_label(out, served->info.quantization);
        dse_buffer_puts(out, "\",device=\"");
        put_label(out, served->info.device_name ? served->info.device_name : "");
        dse_buffer_puts(out, "\"} 1\n");
    }
    put_head(out, "ready", "1 when the model is loaded and work is taken", "gauge");
    dse_buffer_printf(out, PREFIX "ready %d\n", served && !atomic_load(&server->draining) ? 1 : 0);
    put_head(out, "uptime_seconds", "Time since the server started", "gauge");
    dse_buffer_printf(out, PREFIX "uptime_seconds %.3f\n", (double)(dse_clock_ns() - server->start_ns) / 1e9);
    put_head(out, "memory_bytes", "Heap in use by purpose", "gauge");
    for (int i = 0; i < DSE_MEM_COUNT; i++)
        dse_buffer_printf(out, PREFIX "memory_bytes{purpose=\"%s\"} %zu\n", dse_mem_name((enum dse_mem)i),
                          dse_mem_live_bytes((enum dse_mem)i));
}

/* Running and waiting requests are counted as /slots counts them: the engine's own gauges move with its steps. */
static void count_requests(struct dse_server *server, int64_t *running, int64_t *waiting)
{
    int n;
    struct dse_slot *slots = dse_server_slots(server, &n);
    *running = *waiting = 0;
    for (int i = 0; i < n; i++)
        ++*(slots[i].running ? running : waiting);
    dse_free(slots);
}

void dse_handle_metrics(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, 1u << 20);
    for (int i = 0; i < DSE_COUNTER_COUNT; i++) {
        put_head(&out, counters[i].name, counters[i].help, "counter");
        dse_buffer_printf(&out, PREFIX "%s %llu\n", counters[i].name,
                          (unsigned long long)dse_counter_get((enum dse_counter)i));
    }
    int64_t running, waiting;
    count_requests(server, &running, &waiting);
    for (int i = 0; i < DSE_GAUGE_COUNT; i++) {
        int64_t value = i == DSE_GAUGE_REQUESTS_RUNNING   ? running
                        : i == DSE_GAUGE_REQUESTS_WAITING ? waiting
                                                          : dse_gauge_get((enum dse_gauge)i);
        put_head(&out, gauges[i].name, gauges[i].help, "gauge");
        dse_buffer_printf(&out, PREFIX "%s %lld\n", gauges[i].name, (long long)value);
    }
    for (int i = 0; i < DSE_HISTOGRAM_COUNT; i++)
        put_histogram(&out, i);
    put_info(&out, server);
    dse_answer_buffer(server, x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

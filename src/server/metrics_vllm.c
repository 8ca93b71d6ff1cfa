/* The numbers of /metrics under the names of vLLM's V1 engine, so that dashboards and autoscalers made for it work as
 * they are (`--metrics-compat vllm`). One row for each name; each has the label model_name, as there. */
#include "server/metrics.h"

#include <string.h>

#include "server/server_internal.h"

static const struct {
    const char *name, *labels, *help;
    enum dse_counter counter;
} counters[] = {
    {"prompt_tokens_total", "", "Number of prefill tokens processed, cached ones included.", DSE_COUNTER_PROMPT_TOKENS},
    {"generation_tokens_total", "", "Number of generation tokens processed.", DSE_COUNTER_GENERATED_TOKENS},
    {"prefix_cache_queries_total", "", "Prefix cache queries, in terms of number of queried tokens.",
     DSE_COUNTER_PREFIX_QUERY_TOKENS},
    {"prefix_cache_hits_total", "", "Prefix cache hits, in terms of number of cached tokens.",
     DSE_COUNTER_PREFIX_HIT_TOKENS},
    {"spec_decode_num_draft_tokens_total", "", "Number of draft tokens.", DSE_COUNTER_DRAFT_TOKENS},
    {"spec_decode_num_accepted_tokens_total", "", "Number of accepted tokens.", DSE_COUNTER_DRAFT_TAKEN},
    {"num_preemptions_total", "", "Cumulative number of preemptions.", DSE_COUNTER_PREEMPTIONS},
    {"request_success_total", "finished_reason=\"stop\"", "Count of processed requests.", DSE_COUNTER_CHOICES_STOP},
    {"request_success_total", "finished_reason=\"length\"", "", DSE_COUNTER_CHOICES_LENGTH},
    {"request_success_total", "finished_reason=\"abort\"", "", DSE_COUNTER_CHOICES_CANCELLED},
    {"request_success_total", "finished_reason=\"error\"", "", DSE_COUNTER_CHOICES_ERROR},
};

static const struct {
    const char *name, *help;
    enum dse_histogram histogram;
} histograms[] = {
    {"time_to_first_token_seconds", "Histogram of time to first token in seconds.", DSE_HISTOGRAM_TTFT},
    {"inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", DSE_HISTOGRAM_ITL},
    {"time_per_output_token_seconds", "The same under its older name.", DSE_HISTOGRAM_ITL},
    {"request_time_per_output_token_seconds", "Histogram of time per output token of a request in seconds.",
     DSE_HISTOGRAM_TPOT},
    {"e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", DSE_HISTOGRAM_E2E},
    {"request_queue_time_seconds", "Histogram of time spent in the queue.", DSE_HISTOGRAM_QUEUE},
    {"request_prefill_time_seconds", "Histogram of time spent in prefill.", DSE_HISTOGRAM_PREFILL},
    {"request_decode_time_seconds", "Histogram of time spent in decode.", DSE_HISTOGRAM_DECODE},
    {"request_prompt_tokens", "Number of prefill tokens processed.", DSE_HISTOGRAM_REQUEST_PROMPT},
    {"request_generation_tokens", "Number of generation tokens processed.", DSE_HISTOGRAM_REQUEST_GENERATED},
    {"request_max_num_generation_tokens", "The same: each choice is counted for itself.",
     DSE_HISTOGRAM_REQUEST_GENERATED},
};

void dse_metrics_put_vllm(struct dse_buffer *out, const struct dse_server *server)
{
    if (!atomic_load(&server->served)) return; /* the label has its value once a model is loaded */
    struct dse_buffer labels;
    dse_buffer_init(&labels, DSE_MEM_SERVER, 1u << 20);
    dse_buffer_puts(&labels, "model_name=\"");
    dse_metrics_put_label(&labels, dse_server_model_name(server));
    dse_buffer_puts(&labels, "\"");
    const char *model = dse_buffer_text(&labels);
    if (labels.failed) out->failed = true;

    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        if (i == 0 || strcmp(counters[i].name, counters[i - 1].name) != 0)
            dse_metrics_put_head(out, "vllm:", counters[i].name, counters[i].help, "counter");
        uint64_t value = dse_counter_get(counters[i].counter);
        if (counters[i].counter == DSE_COUNTER_PROMPT_TOKENS) value += dse_counter_get(DSE_COUNTER_PREFIX_HIT_TOKENS);
        dse_buffer_printf(out, "vllm:%s{%s%s%s} %llu\n", counters[i].name, model, counters[i].labels[0] ? "," : "",
                          counters[i].labels, (unsigned long long)value);
    }
    int64_t running, waiting, blocks = dse_gauge_get(DSE_GAUGE_KV_BLOCKS_TOTAL);
    if (!dse_metrics_count_requests(server, &running, &waiting)) out->failed = true;
    double used = blocks > 0 ? (double)dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED) / (double)blocks : 0;
    const struct {
        const char *name, *help;
        double value;
    } gauges[] = {
        {"num_requests_running", "Number of requests in model execution batches.", (double)running},
        {"num_requests_waiting", "Number of requests waiting to be processed.", (double)waiting},
        {"kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", used},
        {"gpu_cache_usage_perc", "The same under its older name.", used},
    };
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++) {
        dse_metrics_put_head(out, "vllm:", gauges[i].name, gauges[i].help, "gauge");
        dse_buffer_printf(out, "vllm:%s{%s} %.9g\n", gauges[i].name, model, gauges[i].value);
    }
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
        struct dse_histogram_view view = dse_histogram_get(histograms[i].histogram);
        dse_metrics_put_head(out, "vllm:", histograms[i].name, histograms[i].help, "histogram");
        dse_metrics_put_histogram(out, "vllm:", histograms[i].name, model, &view);
    }
    dse_buffer_deinit(&labels);
}

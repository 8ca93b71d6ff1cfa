/* The metric contract: every metric of the program is a row here, once. Whoever measures bumps it, only the server
 * renders it (server/metrics*.c), and docs/metrics.md is made from it (`deepseek-edge help --metrics`).
 *
 * A row: X(id, name, unit, labels, help). Names get the prefix deepseek_edge_. Labels are the whole text between the
 * braces when they are constant: rows that follow each other with one name are the series of one metric and share the
 * first one's help. Values live for the process, any room may bump them; relaxed atomics, never a lock.
 */
#ifndef DSE_BASE_COUNTERS_H
#define DSE_BASE_COUNTERS_H

#include <stdint.h>

/* SECONDS are kept as nanoseconds and shown as seconds; the others are shown as they are. */
enum dse_unit {
    DSE_UNIT_NONE,
    DSE_UNIT_SECONDS,
    DSE_UNIT_TOKENS,
    DSE_UNIT_REQUESTS,
    DSE_UNIT_CHOICES,
    DSE_UNIT_ANSWERS,
    DSE_UNIT_STEPS,
    DSE_UNIT_BLOCKS,
    DSE_UNIT_BYTES,
    DSE_UNIT_CELSIUS,
    DSE_UNIT_HERTZ,
    DSE_UNIT_WATTS,
    DSE_UNIT_COUNT
};

/* Counters only go up. */
#define DSE_COUNTERS(X)                                                                                                \
    X(PROMPT_TOKENS, "prompt_tokens_total", TOKENS, "", "Prompt tokens computed")                                      \
    X(EXPANDED_TOKENS, "expanded_tokens_total", TOKENS, "",                                                            \
      "Prompt tokens that attended in expanded form (--numerics fast)")                                                \
    X(GENERATED_TOKENS, "generated_tokens_total", TOKENS, "", "Tokens generated")                                      \
    X(RECOMPUTED_TOKENS, "recomputed_tokens_total", TOKENS, "", "Tokens computed again after a preemption")            \
    X(DRAFT_TOKENS, "draft_tokens_total", TOKENS, "", "Tokens drafted by speculation (--draft-max)")                   \
    X(DRAFT_TAKEN, "draft_tokens_accepted_total", TOKENS, "", "Drafted tokens that were generated")                    \
    X(REQUESTS, "requests_total", REQUESTS, "", "Requests accepted")                                                   \
    X(REQUESTS_FINISHED, "requests_finished_total", REQUESTS, "", "Requests that ended by themselves")                 \
    X(REQUESTS_CANCELLED, "requests_cancelled_total", REQUESTS, "", "Requests whose client left")                      \
    X(REQUESTS_FAILED, "requests_failed_total", REQUESTS, "", "Requests that ended with an error")                     \
    X(REQUESTS_REJECTED, "requests_rejected_total", REQUESTS, "", "Requests refused by admission")                     \
    X(PAUSES, "pauses_total", REQUESTS, "",                                                                            \
      "Times that a request gave its place in the batch to one that goes before it")                                   \
    X(PREEMPTIONS, "preemptions_total", REQUESTS, "",                                                                  \
      "Times that a request lost its KV blocks and went back to the queue")                                            \
    X(CHOICES_STOP, "choices_finished_total", CHOICES, "reason=\"stop\"", "Choices that ended, by reason")             \
    X(CHOICES_LENGTH, "choices_finished_total", CHOICES, "reason=\"length\"", "")                                      \
    X(CHOICES_CANCELLED, "choices_finished_total", CHOICES, "reason=\"cancelled\"", "")                                \
    X(CHOICES_ERROR, "choices_finished_total", CHOICES, "reason=\"error\"", "")                                        \
    X(STEPS, "steps_total", STEPS, "", "Forward passes")                                                               \
    X(STEP_SWAP, "step_seconds_total", SECONDS, "cause=\"swap\"", "Time of the engine thread by cause")                \
    X(STEP_WAIT, "step_seconds_total", SECONDS, "cause=\"wait\"", "")                                                  \
    X(STEP_SCHEDULE, "step_seconds_total", SECONDS, "cause=\"schedule\"", "")                                          \
    X(STEP_PREFILL, "step_seconds_total", SECONDS, "cause=\"prefill\"", "")                                            \
    X(STEP_DECODE, "step_seconds_total", SECONDS, "cause=\"decode\"", "")                                              \
    X(STEP_RECOMPUTE, "step_seconds_total", SECONDS, "cause=\"recompute\"", "")                                        \
    X(STEP_SAMPLING, "step_seconds_total", SECONDS, "cause=\"sampling\"", "")                                          \
    X(STEP_DELIVERY, "step_seconds_total", SECONDS, "cause=\"delivery\"", "")                                          \
    X(PREFIX_QUERY_TOKENS, "prefix_cache_query_tokens_total", TOKENS, "",                                              \
      "Prompt tokens looked up in the prefix cache")                                                                   \
    X(PREFIX_HIT_TOKENS, "prefix_cache_hit_tokens_total", TOKENS, "", "Prompt tokens found there and not computed")    \
    X(PREFIX_DISK_READS, "prefix_cache_disk_reads_total", BLOCKS, "",                                                  \
      "KV blocks read back from the prefix cache on disk")                                                             \
    X(PREFIX_DISK_WRITES, "prefix_cache_disk_writes_total", BLOCKS, "", "KV blocks written to it")                     \
    X(PREFIX_DISK_EVICTIONS, "prefix_cache_disk_evictions_total", BLOCKS, "", "Files it removed to make room")         \
    X(PREFIX_EVICTIONS, "prefix_cache_evictions_total", BLOCKS, "", "KV blocks that the prefix cache gave up")         \
    X(SLOTS_SAVED, "slots_saved_total", NONE, "", "Slots written to files (POST /slots/{id}?action=save)")             \
    X(SLOTS_RESTORED, "slots_restored_total", NONE, "", "Slots read back from files")                                  \
    X(ERRORS_400, "errors_total", ANSWERS, "code=\"400\"", "Error answers by HTTP status, those inside a stream too")  \
    X(ERRORS_401, "errors_total", ANSWERS, "code=\"401\"", "")                                                         \
    X(ERRORS_403, "errors_total", ANSWERS, "code=\"403\"", "")                                                         \
    X(ERRORS_404, "errors_total", ANSWERS, "code=\"404\"", "")                                                         \
    X(ERRORS_405, "errors_total", ANSWERS, "code=\"405\"", "")                                                         \
    X(ERRORS_413, "errors_total", ANSWERS, "code=\"413\"", "")                                                         \
    X(ERRORS_415, "errors_total", ANSWERS, "code=\"415\"", "")                                                         \
    X(ERRORS_429, "errors_total", ANSWERS, "code=\"429\"", "")                                                         \
    X(ERRORS_431, "errors_total", ANSWERS, "code=\"431\"", "")                                                         \
    X(ERRORS_500, "errors_total", ANSWERS, "code=\"500\"", "")                                                         \
    X(ERRORS_501, "errors_total", ANSWERS, "code=\"501\"", "")                                                         \
    X(ERRORS_503, "errors_total", ANSWERS, "code=\"503\"", "")

/* Gauges are set to the present value. */
#define DSE_GAUGES(X)                                                                                                  \
    X(REQUESTS_RUNNING, "requests_running", REQUESTS, "", "Requests in the batch")                                     \
    X(REQUESTS_WAITING, "requests_waiting", REQUESTS, "", "Requests in the queue")                                     \
    X(KV_BLOCKS_USED, "kv_blocks_used", BLOCKS, "", "KV blocks in use")                                                \
    X(KV_BLOCKS_CACHED, "kv_blocks_cached", BLOCKS, "",                                                                \
      "KV blocks that only the prefix cache holds, free for any request")                                              \
    X(PREFIX_DISK_BYTES, "prefix_cache_disk_bytes", BYTES, "", "Bytes of files of the prefix cache on disk")           \
    X(KV_BLOCKS_TOTAL, "kv_blocks", BLOCKS, "", "KV blocks in the pool")                                               \
    X(WEIGHT_BYTES, "weight_bytes", BYTES, "", "Bytes of the model's weights")                                         \
    X(KV_BYTES, "kv_bytes", BYTES, "", "Bytes of the KV pool")                                                         \
    X(SCRATCH_BYTES, "scratch_bytes", BYTES, "", "Bytes of step scratch")                                              \
    X(ADAPTERS, "adapters_loaded", NONE, "", "LoRA adapters that requests can use")                                    \
    X(ADAPTER_BYTES, "adapter_bytes", BYTES, "",                                                                       \
      "Bytes of LoRA adapters, those that only requests in flight still use included")                                 \
    X(LOAD_NS, "model_load_seconds", SECONDS, "", "From the start of loading until the model could be served")

/* Histograms with fixed buckets, in seconds or tokens. */
#define DSE_HISTOGRAMS(X)                                                                                              \
    X(TTFT, "time_to_first_token_seconds", SECONDS, "",                                                                \
      "From acceptance, time in the queue included, to the first token")                                               \
    X(ITL, "inter_token_latency_seconds", SECONDS, "", "Gap between two tokens of a request")                          \
    X(TPOT, "time_per_output_token_seconds", SECONDS, "", "Mean gap between the tokens of a choice, once per choice")  \
    X(E2E, "request_seconds", SECONDS, "", "From acceptance to the end")                                               \
    X(QUEUE, "queue_seconds", SECONDS, "", "Time in the queue")                                                        \
    X(PREFILL, "prefill_seconds", SECONDS, "", "From the queue to the first token, once per choice")                   \
    X(DECODE, "decode_seconds", SECONDS, "", "From the first token to the last one, once per choice")                  \
    X(REQUEST_PROMPT, "request_prompt_tokens", TOKENS, "", "Length of the prompt, once per choice")                    \
    X(REQUEST_GENERATED, "request_generated_tokens", TOKENS, "", "Tokens that were generated, once per choice")

/* What the server knows when it is asked; all gauges. Labels here are names, their values come with the answer. */
#define DSE_SERVER_METRICS(X)                                                                                          \
    X(BUILD_INFO, "build_info", NONE, "version,compiler", "The program")                                               \
    X(BACKEND_INFO, "backend_info", NONE, "backend,cpu,features,threads", "What computes")                             \
    X(MODEL_INFO, "model_info", NONE, "model,arch,quantization,device", "The model that is served")                    \
    X(READY, "ready", NONE, "", "1 when the model is loaded and work is taken")                                        \
    X(UPTIME, "uptime_seconds", SECONDS, "", "Time since the server started")                                          \
    X(MEMORY, "memory_bytes", BYTES, "purpose", "Heap in use by purpose")

/* What base/sensors.h reads of the machine: gauges without samples where it has nothing to read. */
#define DSE_MACHINE_METRICS(X)                                                                                         \
    X(TEMPERATURE, "temperature_celsius", CELSIUS, "zone", "Temperatures")                                             \
    X(CPU_FREQUENCY, "cpu_frequency_hertz", HERTZ, "cpu", "Present clock rate of each CPU")                            \
    X(POWER, "power_watts", WATTS, "rail", "Power drawn")                                                              \
    X(THROTTLED, "throttled", NONE, "source",                                                                          \
      "1 while the machine slows the CPU down: thermal, firmware or the quota of the cgroup")

#define DSE_COUNTER_ENUM(id, name, unit, labels, help) DSE_COUNTER_##id,
enum dse_counter { DSE_COUNTERS(DSE_COUNTER_ENUM) DSE_COUNTER_COUNT };
#define DSE_GAUGE_ENUM(id, name, unit, labels, help) DSE_GAUGE_##id,
enum dse_gauge { DSE_GAUGES(DSE_GAUGE_ENUM) DSE_GAUGE_COUNT };
#define DSE_HISTOGRAM_ENUM(id, name, unit, labels, help) DSE_HISTOGRAM_##id,
enum dse_histogram { DSE_HISTOGRAMS(DSE_HISTOGRAM_ENUM) DSE_HISTOGRAM_COUNT };
#define DSE_SERVER_METRIC_ENUM(id, name, unit, labels, help) DSE_SERVER_METRIC_##id,
enum dse_server_metric { DSE_SERVER_METRICS(DSE_SERVER_METRIC_ENUM) DSE_SERVER_METRIC_COUNT };
#define DSE_MACHINE_METRIC_ENUM(id, name, unit, labels, help) DSE_MACHINE_METRIC_##id,
enum dse_machine_metric { DSE_MACHINE_METRICS(DSE_MACHINE_METRIC_ENUM) DSE_MACHINE_METRIC_COUNT };

/* The rows as data, by the enums above. */
struct dse_metric_row {
    const char *name;
    enum dse_unit unit;
    const char *labels, *help;
};
extern const struct dse_metric_row dse_counter_rows[DSE_COUNTER_COUNT], dse_gauge_rows[DSE_GAUGE_COUNT],
    dse_histogram_rows[DSE_HISTOGRAM_COUNT], dse_server_metric_rows[DSE_SERVER_METRIC_COUNT],
    dse_machine_metric_rows[DSE_MACHINE_METRIC_COUNT];
const char *dse_unit_name(enum dse_unit unit); /* "seconds", …; "" for none */

#define DSE_HISTOGRAM_BUCKETS 16

struct dse_histogram_view {
    const double *bounds; /* [DSE_HISTOGRAM_BUCKETS] upper ones, in the histogram's unit; +Inf is implied */
    uint64_t buckets[DSE_HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last one is beyond all bounds */
    uint64_t count;
    double sum;
};

void dse_counter_add(enum dse_counter counter, uint64_t n);
uint64_t dse_counter_get(enum dse_counter counter);
void dse_gauge_set(enum dse_gauge gauge, int64_t value);
int64_t dse_gauge_get(enum dse_gauge gauge);
void dse_histogram_observe(enum dse_histogram histogram, double value); /* seconds or tokens */
struct dse_histogram_view dse_histogram_get(enum dse_histogram histogram);

#endif

/* Process-wide counters that any room may bump and only the server renders. Relaxed atomics: never a lock. */
#ifndef DSE_BASE_COUNTERS_H
#define DSE_BASE_COUNTERS_H

#include <stdint.h>

/* X(enum name, metric name, help text). Counters only go up. */
#define DSE_COUNTERS(X)                                                                                                \
    X(PROMPT_TOKENS, "prompt_tokens_total", "Prompt tokens computed")                                                  \
    X(EXPANDED_TOKENS, "expanded_tokens_total", "Prompt tokens that attended in expanded form (--numerics fast)")      \
    X(GENERATED_TOKENS, "generated_tokens_total", "Tokens generated")                                                  \
    X(REQUESTS, "requests_total", "Requests accepted")                                                                 \
    X(REQUESTS_FINISHED, "requests_finished_total", "Requests that ended by themselves")                               \
    X(REQUESTS_CANCELLED, "requests_cancelled_total", "Requests whose client left")                                    \
    X(REQUESTS_FAILED, "requests_failed_total", "Requests that ended with an error")                                   \
    X(REQUESTS_REJECTED, "requests_rejected_total", "Requests refused by admission")                                   \
    X(PAUSES, "pauses_total", "Times that a request gave its place in the batch to one that goes before it")           \
    X(PREEMPTIONS, "preemptions_total", "Times that a request lost its KV blocks and went back to the queue")          \
    X(STEPS, "steps_total", "Forward passes")                                                                          \
    X(STEP_NS, "step_nanoseconds_total", "Time spent in forward passes")                                               \
    X(PREFIX_QUERY_TOKENS, "prefix_cache_query_tokens_total", "Prompt tokens looked up in the prefix cache")           \
    X(PREFIX_HIT_TOKENS, "prefix_cache_hit_tokens_total", "Prompt tokens found there and not computed")                \
    X(PREFIX_DISK_READS, "prefix_cache_disk_reads_total", "KV blocks read back from the prefix cache on disk")         \
    X(PREFIX_DISK_WRITES, "prefix_cache_disk_writes_total", "KV blocks written to it")                                 \
    X(PREFIX_DISK_EVICTIONS, "prefix_cache_disk_evictions_total", "Files it removed to make room")                     \
    X(PREFIX_EVICTIONS, "prefix_cache_evictions_total", "KV blocks that the prefix cache gave up")

/* Gauges are set to the present value. */
#define DSE_GAUGES(X)                                                                                                  \
    X(REQUESTS_RUNNING, "requests_running", "Requests in the batch")                                                   \
    X(REQUESTS_WAITING, "requests_waiting", "Requests in the queue")                                                   \
    X(KV_BLOCKS_USED, "kv_blocks_used", "KV blocks in use")                                                            \
    X(KV_BLOCKS_CACHED, "kv_blocks_cached", "KV blocks that only the prefix cache holds, free for any request")        \
    X(PREFIX_DISK_BYTES, "prefix_cache_disk_bytes", "Bytes of files of the prefix cache on disk")                      \
    X(KV_BLOCKS_TOTAL, "kv_blocks", "KV blocks in the pool")                                                           \
    X(WEIGHT_BYTES, "weight_bytes", "Bytes of the model's weights")                                                    \
    X(KV_BYTES, "kv_bytes", "Bytes of the KV pool")                                                                    \
    X(SCRATCH_BYTES, "scratch_bytes", "Bytes of step scratch")

/* Histograms in seconds with fixed buckets. */
#define DSE_HISTOGRAMS(X)                                                                                              \
    X(TTFT, "time_to_first_token_seconds", "From acceptance, time in the queue included, to the first token")          \
    X(ITL, "inter_token_latency_seconds", "Gap between two tokens of a request")                                       \
    X(E2E, "request_seconds", "From acceptance to the end")                                                            \
    X(QUEUE, "queue_seconds", "Time in the queue")

#define DSE_COUNTER_ENUM(name, metric, help) DSE_COUNTER_##name,
enum dse_counter { DSE_COUNTERS(DSE_COUNTER_ENUM) DSE_COUNTER_COUNT };
#define DSE_GAUGE_ENUM(name, metric, help) DSE_GAUGE_##name,
enum dse_gauge { DSE_GAUGES(DSE_GAUGE_ENUM) DSE_GAUGE_COUNT };
#define DSE_HISTOGRAM_ENUM(name, metric, help) DSE_HISTOGRAM_##name,
enum dse_histogram { DSE_HISTOGRAMS(DSE_HISTOGRAM_ENUM) DSE_HISTOGRAM_COUNT };

#define DSE_HISTOGRAM_BUCKETS 16
extern const double dse_histogram_bounds[DSE_HISTOGRAM_BUCKETS]; /* upper bounds, seconds; +Inf is implied */

struct dse_histogram_view {
    uint64_t buckets[DSE_HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last one is beyond all bounds */
    uint64_t count;
    double sum;
};

void dse_counter_add(enum dse_counter counter, uint64_t n);
uint64_t dse_counter_get(enum dse_counter counter);
void dse_gauge_set(enum dse_gauge gauge, int64_t value);
int64_t dse_gauge_get(enum dse_gauge gauge);
void dse_histogram_observe(enum dse_histogram histogram, double seconds);
struct dse_histogram_view dse_histogram_get(enum dse_histogram histogram);

#endif

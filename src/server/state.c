/* /debug/steps and /api/edge/state: what the engine did in its last steps, and what the whole server is doing now, as
 * JSON for `top` and for people. On the I/O thread: copies of atomics and of the ring of steps, waits for nobody. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"
#include "engine/kv_pool.h"
#include "engine/step_ring.h"
#include "server/errors.h"
#include "server/metrics.h"
#include "server/server_internal.h"

#define RATE_WINDOW_NS 5000000000u

/* An owned copy of the ring (dse_free), NULL without memory. */
static struct dse_step_record *copy_steps(const struct dse_served *served, int *count)
{
    struct dse_step_record *records = dse_calloc(DSE_MEM_SERVER, DSE_STEP_RING_LENGTH, sizeof *records);
    *count = 0;
    if (records && served)
        *count = dse_step_ring_read(dse_engine_steps(served->engine), 0, records, DSE_STEP_RING_LENGTH);
    return records;
}

static void put_step(struct dse_buffer *out, const struct dse_step_record *r)
{
    uint64_t duration = 0;
    for (int i = DSE_STEP_WAIT + 1; i < DSE_STEP_CAUSE_COUNT; i++)
        duration += r->cause_ns[i];
    dse_buffer_printf(out, "{\"step\":%llu,\"begin_ms\":%.3f,\"duration_ms\":%.3f,\"ms\":{",
                      (unsigned long long)r->number, (double)r->begin_ns * 1e-6, (double)duration * 1e-6);
    for (int i = 0; i < DSE_STEP_CAUSE_COUNT; i++)
        dse_buffer_printf(out, "%s\"%s\":%.3f", i ? "," : "", dse_step_cause_names[i], (double)r->cause_ns[i] * 1e-6);
    dse_buffer_printf(
        out,
        "},\"rows\":{\"prefill\":%llu,\"decode\":%llu,\"recompute\":%llu},\"chunk_tokens\":%llu,\"tokens\":%llu,"
        "\"running\":%llu,\"waiting\":%llu,\"kv_blocks_used\":%llu,\"preempted\":%llu,\"major_faults\":%llu}",
        (unsigned long long)r->prefill_rows, (unsigned long long)r->decode_rows, (unsigned long long)r->recompute_rows,
        (unsigned long long)r->chunk_tokens, (unsigned long long)r->n_tokens, (unsigned long long)r->n_running,
        (unsigned long long)r->n_waiting, (unsigned long long)r->kv_blocks_used, (unsigned long long)r->n_preempted,
        (unsigned long long)r->major_faults);
}

void dse_handle_steps(struct dse_server *server, struct dse_http_exchange *x)
{
    int count;
    struct dse_step_record *records = copy_steps(atomic_load(&server->served), &count);
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, 4u << 20);
    dse_buffer_printf(&out, "{\"now_ms\":%.3f,\"steps\":[", (double)dse_clock_ns() * 1e-6);
    for (int i = 0; i < count; i++) {
        if (i) dse_buffer_puts(&out, ",\n");
        put_step(&out, &records[i]);
    }
    dse_buffer_puts(&out, "]}");
    if (!records) out.failed = true;
    dse_free(records);
    dse_answer_buffer(server, x, 200, "application/json", &out);
}

/* ---- /api/edge/state ------------------------------------------------------------------------------------------- */

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

/* Tokens per second over the last few seconds, from the steps that ended in them. */
static json_t *token_rates(const struct dse_step_record *records, int count, uint64_t now)
{
    uint64_t prompt = 0, generated = 0, from = now > RATE_WINDOW_NS ? now - RATE_WINDOW_NS : 0;
    double seconds = RATE_WINDOW_NS * 1e-9;
    for (int i = count - 1; i >= 0; i--) {
        if (records[i].begin_ns < from) break;
        prompt += records[i].prefill_rows + records[i].recompute_rows;
        generated += records[i].n_tokens;
        /* More steps in the window than the ring holds: what it holds tells the rate. */
        if (i == 0 && records[0].number > 1) seconds = (double)(now - records[0].begin_ns) * 1e-9;
    }
    return json_pack("{s:o, s:o, s:f, s:f}", "prompt_total", integer(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS)),
                     "generated_total", integer(dse_counter_get(DSE_COUNTER_GENERATED_TOKENS)), "prompt_per_second",
                     (double)prompt / seconds, "generated_per_second", (double)generated / seconds);
}

static json_t *latency(enum dse_histogram histogram)
{
    struct dse_histogram_view view = dse_histogram_get(histogram);
    return json_pack("{s:f, s:o}", "sum", view.sum, "count", integer(view.count));
}

static json_t *sensor_object(const struct dse_sensor_list *list)
{
    json_t *object = json_object();
    bool ok = true;
    for (int i = 0; i < list->count && ok; i++)
        ok = json_object_set_new(object, list->items[i].label, json_real(list->items[i].value)) == 0;
    return dse_json_if(ok, object);
}

static json_t *sensors_object(struct dse_server *server)
{
    struct dse_sensors *sensors = dse_calloc(DSE_MEM_SERVER, 1, sizeof *sensors);
    if (!sensors) return NULL;
    dse_machine_watch_get(server->machine, sensors);
    json_t *object = json_pack("{s:o, s:o, s:o, s:o}", "temperature_celsius", sensor_object(&sensors->temperatures),
                               "cpu_frequency_hertz", sensor_object(&sensors->frequencies), "power_watts",
                               sensor_object(&sensors->powers), "throttled", sensor_object(&sensors->throttled));
    dse_free(sensors);
    return object;
}

static const char *slot_state(const struct dse_slot *slot)
{
    return !slot->running ? "waiting" : slot->n_processed < slot->n_prompt ? "prefill" : "decode";
}

static json_t *slot_list(const struct dse_server *server, const struct dse_served *served, uint64_t now)
{
    int n;
    struct dse_slot *slots;
    bool ok = dse_server_slots(server, &slots, &n);
    json_t *list = json_array();
    for (int i = 0; i < n && ok; i++) {
        const struct dse_slot *slot = &slots[i];
        double age = now > slot->submitted_ns ? (double)(now - slot->submitted_ns) * 1e-9 : 0;
        double decoding = slot->first_token_ns && now > slot->first_token_ns
                              ? (double)(now - slot->first_token_ns) * 1e-9
                              : 0;
        json_t *one = json_pack("{s:o, s:s, s:f, s:i, s:I, s:i, s:i, s:i, s:f}", "id", integer(slot->id), "state",
                                slot_state(slot), "age_seconds", age, "n_choices", slot->n_choices, "n_ctx",
                                (json_int_t)served->context_length, "n_prompt", slot->n_prompt, "n_processed",
                                slot->n_processed, "n_generated", slot->n_generated, "tokens_per_second",
                                decoding > 0 ? (double)slot->n_generated / decoding : 0.0);
        ok = json_array_append_new(list, one) == 0;
    }
    dse_free(slots);
    return dse_json_if(ok, list);
}

static json_t *step_seconds(void)
{
    json_t *object = json_object();
    bool ok = true;
    for (int i = 0; i < DSE_STEP_CAUSE_COUNT && ok; i++) {
        const uint64_t ns = dse_counter_get((enum dse_counter)(DSE_COUNTER_STEP_SWAP + i));
        ok = json_object_set_new(object, dse_step_cause_names[i], json_real((double)ns * 1e-9)) == 0;
    }
    return dse_json_if(ok, object);
}

static json_t *model_object(const struct dse_server *server, const struct dse_served *served)
{
    struct dse_memory_plan plan;
    char features[64];
    dse_engine_get_plan(served->engine, &plan);
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:s, s:s, s:s, s:i, s:I, s:i, s:o, s:o, s:o}", "name",
                     dse_server_model_name(server), "arch", served->info.arch, "quantization",
                     served->info.quantization, "n_params", (json_int_t)served->info.n_parameters, "n_layers",
                     served->info.n_layers, "device", served->info.device_name ? served->info.device_name : "", "cpu",
                     dse_cpu_model(), "cpu_features", features, "threads", served->info.n_threads, "context_length",
                     (json_int_t)plan.context_length, "max_concurrent", plan.max_concurrent, "weight_bytes",
                     integer(plan.weight_bytes), "kv_bytes", integer(plan.kv_bytes), "scratch_bytes",
                     integer(plan.scratch_bytes));
}

void dse_handle_state(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_served *served = atomic_load(&server->served);
    const uint64_t now = dse_clock_ns();
    int64_t running, waiting;
    int count;
    struct dse_step_record *records = copy_steps(served, &count);
    bool whole = dse_metrics_count_requests(server, &running, &waiting) && records;
    json_t *requests = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "running", (json_int_t)running, "waiting",
                                 (json_int_t)waiting, "total", integer(dse_counter_get(DSE_COUNTER_REQUESTS)),
                                 "finished", integer(dse_counter_get(DSE_COUNTER_REQUESTS_FINISHED)), "cancelled",
                                 integer(dse_counter_get(DSE_COUNTER_REQUESTS_CANCELLED)), "failed",
                                 integer(dse_counter_get(DSE_COUNTER_REQUESTS_FAILED)), "rejected",
                                 integer(dse_counter_get(DSE_COUNTER_REQUESTS_REJECTED)), "preempted",
                                 integer(dse_counter_get(DSE_COUNTER_PREEMPTIONS)));
    json_t *kv = json_pack("{s:I, s:I, s:i}", "blocks", (json_int_t)dse_gauge_get(DSE_GAUGE_KV_BLOCKS_TOTAL),
                           "blocks_used", (json_int_t)dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED), "block_tokens",
                           DSE_KV_BLOCK_TOKENS);
    json_t *state = json_pack("{s:s, s:s, s:s, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "status",
                              dse_server_state(server), "version", DSE_VERSION, "edge_node_id", server->node_id,
                              "uptime_seconds", (double)(now - server->start_ns) * 1e-9, "model",
                              served ? model_object(server, served) : json_null(), "requests", requests, "tokens",
                              token_rates(records, count, now), "kv", kv, "time_to_first_token_seconds",
                              latency(DSE_HISTOGRAM_TTFT), "inter_token_latency_seconds", latency(DSE_HISTOGRAM_ITL),
                              "step_seconds", step_seconds(), "sensors", sensors_object(server), "slots",
                              served ? slot_list(server, served, now) : json_array());
    dse_free(records);
    dse_answer_json(server, x, 200, dse_json_if(whole, state));
}

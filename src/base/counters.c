/* Process-wide counters, gauges and histograms: plain relaxed atomics; and the rows of the contract as data. */
#include "base/counters.h"

#include <stdatomic.h>
#include <stdbool.h>

static const double seconds_bounds[DSE_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                             0.5,   1,      2.5,   5,    10,    30,   60,  300};
static const double tokens_bounds[DSE_HISTOGRAM_BUCKETS] = {1,   2,    5,    10,   20,    50,    100,   200,
                                                            500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

#define ROW(id, name, unit, labels, help) {name, DSE_UNIT_##unit, labels, help},
const struct dse_metric_row dse_counter_rows[DSE_COUNTER_COUNT] = {DSE_COUNTERS(ROW)};
const struct dse_metric_row dse_gauge_rows[DSE_GAUGE_COUNT] = {DSE_GAUGES(ROW)};
const struct dse_metric_row dse_histogram_rows[DSE_HISTOGRAM_COUNT] = {DSE_HISTOGRAMS(ROW)};
const struct dse_metric_row dse_server_metric_rows[DSE_SERVER_METRIC_COUNT] = {DSE_SERVER_METRICS(ROW)};
const struct dse_metric_row dse_machine_metric_rows[DSE_MACHINE_METRIC_COUNT] = {DSE_MACHINE_METRICS(ROW)};
#undef ROW

const char *dse_unit_name(enum dse_unit unit)
{
    static const char *const names[DSE_UNIT_COUNT] = {"",      "seconds", "tokens", "requests", "choices", "answers",
                                                      "steps", "blocks",  "bytes",  "celsius",  "hertz",   "watts"};
    return names[unit];
}

struct histogram {
    _Atomic uint64_t buckets[DSE_HISTOGRAM_BUCKETS + 1];
    _Atomic uint64_t sum; /* nanoseconds or tokens */
};

static _Atomic uint64_t counters[DSE_COUNTER_COUNT];
static _Atomic int64_t gauges[DSE_GAUGE_COUNT];
static struct histogram histograms[DSE_HISTOGRAM_COUNT];

void dse_counter_add(enum dse_counter counter, uint64_t n)
{
    atomic_fetch_add_explicit(&counters[counter], n, memory_order_relaxed);
}

uint64_t dse_counter_get(enum dse_counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

void dse_gauge_set(enum dse_gauge gauge, int64_t value)
{
    atomic_store_explicit(&gauges[gauge], value, memory_order_relaxed);
}

int64_t dse_gauge_get(enum dse_gauge gauge)
{
    return atomic_load_explicit(&gauges[gauge], memory_order_relaxed);
}

static bool in_seconds(enum dse_histogram histogram)
{
    return dse_histogram_rows[histogram].unit == DSE_UNIT_SECONDS;
}

static const double *bounds_of(enum dse_histogram histogram)
{
    return in_seconds(histogram) ? seconds_bounds : tokens_bounds;
}

void dse_histogram_observe(enum dse_histogram histogram, double value)
{
    const double *bounds = bounds_of(histogram);
    int i = 0;
    while (i < DSE_HISTOGRAM_BUCKETS && value > bounds[i])
        i++;
    atomic_fetch_add_explicit(&histograms[histogram].buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histograms[histogram].sum, (uint64_t)(in_seconds(histogram) ? value * 1e9 : value),
                              memory_order_relaxed);
}

struct dse_histogram_view dse_histogram_get(enum dse_histogram histogram)
{
    struct dse_histogram_view view = {.bounds = bounds_of(histogram)};
    for (int i = 0; i <= DSE_HISTOGRAM_BUCKETS; i++) {
        view.buckets[i] = atomic_load_explicit(&histograms[histogram].buckets[i], memory_order_relaxed);
        view.count += view.buckets[i];
    }
    view.sum = (double)atomic_load_explicit(&histograms[histogram].sum, memory_order_relaxed);
    if (in_seconds(histogram)) view.sum *= 1e-9;
    return view;
}

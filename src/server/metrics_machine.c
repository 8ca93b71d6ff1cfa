/* The machine's sensors for /metrics and `top`: a thread reads them every few seconds, because that may take
 * milliseconds each; who asks gets a copy of the last reading at once. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "server/metrics.h"

#define INTERVAL_S 2

struct dse_machine_watch {
    pthread_t thread;
    pthread_mutex_t lock; /* held for copies only */
    pthread_cond_t stop;
    bool stopping;
    struct dse_sensors last, next; /* next: the thread's own */
};

static void *watch_main(void *argument)
{
    struct dse_machine_watch *watch = argument;
    bool stopping = false;
    while (!stopping) {
        struct timespec until;
        dse_sensors_read("", &watch->next);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += INTERVAL_S;
        pthread_mutex_lock(&watch->lock);
        watch->last = watch->next;
        while (!watch->stopping && pthread_cond_timedwait(&watch->stop, &watch->lock, &until) == 0) {
        }
        stopping = watch->stopping;
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

enum dse_status dse_machine_watch_start(struct dse_machine_watch **out, struct dse_error *err)
{
    struct dse_machine_watch *watch = dse_calloc(DSE_MEM_SERVER, 1, sizeof *watch);
    if (!watch) return dse_fail_memory(err, sizeof *watch, "sensors");
    dse_sensors_read("", &watch->last); /* so that the first to ask finds something */
    watch->next = watch->last;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->stop, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = pthread_create(&watch->thread, NULL, watch_main, watch);
    if (error == 0) {
        *out = watch;
        return DSE_OK;
    }
    pthread_cond_destroy(&watch->stop);
    pthread_mutex_destroy(&watch->lock);
    dse_free(watch);
    return dse_fail_errno(err, error, "", "start the thread of the sensors");
}

void dse_machine_watch_stop(struct dse_machine_watch *watch)
{
    if (!watch) return;
    pthread_mutex_lock(&watch->lock);
    watch->stopping = true;
    pthread_cond_signal(&watch->stop);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->stop);
    pthread_mutex_destroy(&watch->lock);
    dse_free(watch);
}

void dse_machine_watch_get(struct dse_machine_watch *watch, struct dse_sensors *out)
{
    pthread_mutex_lock(&watch->lock);
    *out = watch->last;
    pthread_mutex_unlock(&watch->lock);
}

void dse_metrics_put_machine(struct dse_buffer *out, const struct dse_sensors *sensors)
{
    const struct dse_sensor_list *lists[DSE_MACHINE_METRIC_COUNT] = {
        [DSE_MACHINE_METRIC_TEMPERATURE] = &sensors->temperatures,
        [DSE_MACHINE_METRIC_CPU_FREQUENCY] = &sensors->frequencies,
        [DSE_MACHINE_METRIC_POWER] = &sensors->powers,
        [DSE_MACHINE_METRIC_THROTTLED] = &sensors->throttled,
    };
    for (int i = 0; i < DSE_MACHINE_METRIC_COUNT; i++) {
        const struct dse_metric_row *row = &dse_machine_metric_rows[i];
        dse_metrics_put_head(out, "deepseek_edge_", row->name, row->help, "gauge");
        for (int k = 0; k < lists[i]->count; k++) {
            dse_buffer_printf(out, "deepseek_edge_%s{%s=\"", row->name, row->labels);
            dse_metrics_put_label(out, lists[i]->items[k].label);
            dse_buffer_printf(out, "\"} %.12g\n", lists[i]->items[k].value);
        }
    }
}

/* The worker threads of the server (see workers.h). */
#include "server/workers.h"

#include <pthread.h>

#include "base/alloc.h"

#define MAX_WORKERS 16

struct dse_workers {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct dse_job *first, **last;
    bool stopping;
    int n_running;
    int n_threads;
    pthread_t threads[MAX_WORKERS];
};

static void *worker_main(void *argument)
{
    struct dse_workers *workers = argument;
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        while (!workers->first && !workers->stopping)
            pthread_cond_wait(&workers->ready, &workers->lock);
        struct dse_job *job = workers->first;
        if (!job) break;
        workers->first = job->next;
        if (!workers->first) workers->last = &workers->first;
        workers->n_running++;
        pthread_mutex_unlock(&workers->lock);
        job->fn(job->argument); /* which may post the job again, or free it */
        pthread_mutex_lock(&workers->lock);
        workers->n_running--;
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

enum dse_status dse_workers_create(int n_threads, struct dse_workers **out, struct dse_error *err)
{
    struct dse_workers *workers = dse_calloc(DSE_MEM_SERVER, 1, sizeof *workers);
    if (!workers) return dse_fail_memory(err, sizeof *workers, "server workers");
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->ready, NULL);
    workers->last = &workers->first;
    if (n_threads < 1) n_threads = 1;
    if (n_threads > MAX_WORKERS) n_threads = MAX_WORKERS;
    for (; workers->n_threads < n_threads; workers->n_threads++) {
        int error = pthread_create(&workers->threads[workers->n_threads], NULL, worker_main, workers);
        if (error) {
            dse_workers_free(workers);
            return dse_fail_errno(err, error, "", "start a server worker thread");
        }
    }
    *out = workers;
    return DSE_OK;
}

bool dse_workers_post(struct dse_workers *workers, struct dse_job *job, dse_job_fn *fn, void *argument)
{
    pthread_mutex_lock(&workers->lock);
    bool accepted = !workers->stopping;
    if (accepted) {
        *job = (struct dse_job){.fn = fn, .argument = argument};
        *workers->last = job;
        workers->last = &job->next;
        pthread_cond_signal(&workers->ready);
    }
    pthread_mutex_unlock(&workers->lock);
    return accepted;
}

bool dse_workers_busy(struct dse_workers *workers)
{
    pthread_mutex_lock(&workers->lock);
    bool busy = workers->first || workers->n_running > 0;
    pthread_mutex_unlock(&workers->lock);
    return busy;
}

void dse_workers_stop(struct dse_workers *workers)
{
    pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    pthread_cond_broadcast(&workers->ready);
    pthread_mutex_unlock(&workers->lock);
    for (int i = 0; i < workers->n_threads; i++)
        pthread_join(workers->threads[i], NULL);
    workers->n_threads = 0;
}

void dse_workers_free(struct dse_workers *workers)
{
    if (!workers) return;
    dse_workers_stop(workers);
    pthread_cond_destroy(&workers->ready);
    pthread_mutex_destroy(&workers->lock);
    dse_free(workers);
}

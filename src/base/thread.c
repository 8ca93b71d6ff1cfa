/* The thread pool: workers wait for a generation number to change, run the function, and count themselves out.
 *
 * Waiting spins a little and then sleeps on the number with a futex. The caller waits for the last worker in the same
 * way.
 */
#include "base/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"

/* About 20 µs: longer than the usual gap between two ops, shorter than a time slice. */
#define SPIN_ROUNDS 4000

struct worker {
    struct dse_pool *pool;
    pthread_t thread;
    int index;
};

struct dse_pool {
    int n_threads;
    bool stop;
    dse_pool_fn *fn;
    void *context;
    _Alignas(64) _Atomic uint32_t generation; /* changes when there is work */
    _Alignas(64) _Atomic uint32_t running;    /* workers that have not finished it */
    _Alignas(64) _Atomic uint32_t arrived;    /* threads in the present barrier */
    _Atomic uint32_t phase;                   /* number of barriers passed */
    _Alignas(64) _Atomic uint32_t sleepers;   /* threads in a futex: nobody there, no system call */
    int n_started;
    struct worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when *word is no longer `value`. A sleeper announces itself before the kernel compares the word again, and a
 * waker changes the word before it looks for sleepers: one of the two always sees the other. */
static void wait_while(struct dse_pool *pool, _Atomic uint32_t *word, uint32_t value)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return;
        relax();
    }
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

/* To be called after the word was changed with sequentially consistent order. */
static void wake_all(struct dse_pool *pool, _Atomic uint32_t *word)
{
    if (atomic_load(&pool->sleepers) == 0) return;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct dse_pool *pool = worker->pool;
    uint32_t seen = 0;
    for (;;) {
        wait_while(pool, &pool->generation, seen);
        seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (pool->stop) return NULL;
        pool->fn(pool->context, worker->index, pool->n_threads);
        if (atomic_fetch_sub(&pool->running, 1) == 1) wake_all(pool, &pool->running);
    }
}

enum dse_status dse_pool_create(int n_threads, struct dse_pool **out, struct dse_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > 1024)
        return dse_fail(err, DSE_ERR_INVALID, "thread count must be 1 to 1024, not %d", n_threads);
    size_t bytes = sizeof(struct dse_pool) + (size_t)n_threads * sizeof(struct worker);
    struct dse_pool *pool = dse_alloc_aligned(DSE_MEM_MISC, 64, bytes);
    if (pool == NULL) return dse_fail_memory(err, bytes, "the thread pool");
    memset(pool, 0, bytes);
    pool->n_threads = n_threads;
    for (int i = 1; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .index = i};
        int e = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (e != 0) {
            dse_pool_free(pool);
            return dse_fail(err, DSE_ERR_IO, "cannot start thread %d of %d: %s", i + 1, n_threads, strerror(e));
        }
        pool->n_started++;
    }
    *out = pool;
    return DSE_OK;
}

void dse_pool_free(struct dse_pool *pool)
{
    if (pool == NULL) return;
    pool->stop = true;
    atomic_fetch_add(&pool->generation, 1);
    wake_all(pool, &pool->generation);
    for (int i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    dse_free(pool);
}

int dse_pool_threads(const struct dse_pool *pool)
{
    return pool->n_threads;
}

void dse_pool_run(struct dse_pool *pool, dse_pool_fn *fn, void *context)
{
    if (pool->n_threads > 1) {
        pool->fn = fn;
        pool->context = context;
        atomic_store_explicit(&pool->running, (uint32_t)pool->n_threads - 1, memory_order_relaxed);
        atomic_fetch_add(&pool->generation, 1);
        wake_all(pool, &pool->generation);
    }
    fn(context, 0, pool->n_threads);
    for (uint32_t left; (left = atomic_load_explicit(&pool->running, memory_order_acquire)) != 0;)
        wait_while(pool, &pool->running, left);
}

void dse_pool_barrier(struct dse_pool *pool)
{
    uint32_t phase = atomic_load_explicit(&pool->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)pool->n_threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&pool->phase, 1);
        wake_all(pool, &pool->phase);
    } else {
        wait_while(pool, &pool->phase, phase);
    }
}

void dse_split(size_t n, size_t multiple, int thread, int n_threads, size_t *begin, size_t *end)
{
    size_t units = n / multiple + (n % multiple != 0), share = units / (size_t)n_threads;
    size_t extra = units % (size_t)n_threads, t = (size_t)thread;
    size_t first = t * share + (t < extra ? t : extra);
    size_t count = share + (t < extra ? 1 : 0);
    *begin = first * multiple < n ? first * multiple : n;
    *end = (first + count) * multiple < n ? (first + count) * multiple : n;
}

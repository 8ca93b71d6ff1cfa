/* Files, threads, and the limits of the container read from a made-up file system root. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/counters.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/json.h"
#include "base/thread.h"
#include "temp_root.h"

static void put(const char *path, const char *text)
{
    char full[512], folder[512];
    struct dse_error err;
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(folder, sizeof folder, "%s", full);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(dse_make_directories(folder, &err), DSE_OK);
    assert_int_equal(dse_file_write_atomic(full, text, strlen(text), 0644, &err), DSE_OK);
}

static void quota_of_any_ancestor_limits_threads(void **state)
{
    put("/proc/self/cgroup", "0::/pod/app\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/pod/app/cpu.max", "800000 100000\n");
    struct dse_cpu_limit limit = dse_cgroup_cpu_limit(root);
    assert_int_equal(limit.threads, 1); /* 1.5 CPUs are rounded down */
    if (dse_cpu_physical_cores() > 1) assert_string_equal(limit.reason, "cgroup quota");
    put("/sys/fs/cgroup/pod/cpu.max", "10000 100000\n");
    assert_int_equal(dse_cgroup_cpu_limit(root).threads, 1); /* never less than one */
}

static void version_1_quota_limits_threads(void **state)
{
    put("/proc/self/cgroup", "3:memory:/m\n2:cpu,cpuacct:/c\n");
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
    assert_int_equal(dse_cgroup_cpu_limit(root).threads, 1);
    put("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
    assert_true(dse_cgroup_cpu_limit(root).threads >= 1);
}

static void memory_limit_is_the_tightest_group_without_file_pages(void **state)
{
    put("/proc/self/cgroup", "0::/pod/app\n");
    put("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n");
    struct dse_memory_limit limit = dse_cgroup_memory_limit(root);
    assert_int_equal(limit.available_bytes, 900000ull * 1024);
    assert_string_equal(limit.reason, "free memory");
    put("/sys/fs/cgroup/pod/memory.max", "104857600\n");
    put("/sys/fs/cgroup/pod/memory.current", "50000000\n");
    put("/sys/fs/cgroup/pod/memory.stat", "anon 10000000\nfile 40000000\nfile_mapped 7\n");
    put("/sys/fs/cgroup/pod/app/memory.max", "max\n");
    limit = dse_cgroup_memory_limit(root);
    assert_int_equal(limit.available_bytes, 104857600 - 10000000);
    assert_int_equal(limit.total_bytes, 104857600);
    assert_string_equal(limit.reason, "cgroup limit");
}

static void shared_memory_is_not_counted_as_free_file_pages(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/app\n");
    put("/sys/fs/cgroup/app/memory.max", "104857600\n");
    put("/sys/fs/cgroup/app/memory.current", "50000000\n");
    put("/sys/fs/cgroup/app/memory.stat", "anon 10000000\nfile 40000000\nshmem 30000000\nfile_mapped 7\n");
    assert_int_equal(dse_cgroup_memory_limit(root).available_bytes, 104857600 - 40000000);
    put("/proc/self/cgroup", "3:memory:/m\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "50000000\n");
    put("/sys/fs/cgroup/memory/m/memory.stat",
        "cache 1\nshmem 2\ntotal_cache 40000000\ntotal_rss 10000000\ntotal_shmem 30000000\n");
    assert_int_equal(dse_cgroup_memory_limit(root).available_bytes, 104857600 - 40000000);
}

static void only_regular_files_are_mapped(void **state)
{
    struct dse_map map;
    struct dse_error err;
    char path[128];
    assert_int_equal(dse_map_open(root, &map, &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "directory"));
    snprintf(path, sizeof path, "%s/fifo", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(dse_map_open(path, &map, &err), DSE_ERR_INVALID); /* and does not hang */
    snprintf(path, sizeof path, "%s/none", root);
    assert_int_equal(dse_map_open(path, &map, &err), DSE_ERR_NOT_FOUND);
    put("/empty", "");
    snprintf(path, sizeof path, "%s/empty", root);
    assert_int_equal(dse_map_open(path, &map, &err), DSE_OK);
    assert_int_equal(map.bytes, 0);
    dse_map_close(&map);
}

static void a_shrunk_file_is_noticed(void **state)
{
    struct dse_map map;
    struct dse_error err;
    char path[128];
    put("/data", "0123456789");
    snprintf(path, sizeof path, "%s/data", root);
    assert_int_equal(dse_map_open(path, &map, &err), DSE_OK);
    assert_memory_equal(map.data, "0123456789", 10);
    assert_true(dse_map_intact(&map));
    assert_int_equal(truncate(path, 5), 0);
    assert_false(dse_map_intact(&map));
    dse_map_close(&map);
}

static void reading_stops_at_the_limit(void **state)
{
    struct dse_error err;
    char *data, path[128];
    size_t bytes;
    put("/data", "0123456789");
    snprintf(path, sizeof path, "%s/data", root);
    assert_int_equal(dse_file_read(path, 9, &data, &bytes, &err), DSE_ERR_LIMIT);
    assert_int_equal(dse_file_read(path, 10, &data, &bytes, &err), DSE_OK);
    assert_string_equal(data, "0123456789");
    dse_free(data);
}

struct sums {
    struct dse_pool *pool;
    _Alignas(64) int a[8], b[8];
};

/* After the barrier every thread must see what all wrote before it. */
static void a_missing_path_is_an_argument_error(void **state)
{
    (void)state;
    struct dse_error err = {0};
    struct dse_map map;
    char *data = NULL;
    size_t bytes = 0;
    json_t *value = NULL;
    assert_int_equal(dse_map_open(NULL, &map, &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "no file is named"));
    dse_map_close(&map);
    assert_int_equal(dse_file_read(NULL, 100, &data, &bytes, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_file_write_atomic(NULL, "x", 1, 0600, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_make_directories(NULL, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_json_read(NULL, 100, &value, &err), DSE_ERR_INVALID);
    assert_null(data);
    assert_null(value);
    assert_false(dse_file_exists(NULL));
    assert_false(dse_file_is_directory(NULL));
    assert_int_equal(dse_fail_errno(&err, EIO, NULL, "open"), DSE_ERR_IO);
    assert_string_equal(err.message, "cannot open: Input/output error");
    dse_fail_errno(&err, EIO, "", "start a thread");
    assert_string_equal(err.message, "cannot start a thread: Input/output error");
    dse_fail_errno(&err, EIO, "model.gguf", "open");
    assert_string_equal(err.message, "cannot open model.gguf: Input/output error");
}

static void meet_twice(void *context, int thread, int n_threads)
{
    struct sums *s = context;
    for (int round = 1; round <= 2000; round++) {
        s->a[thread] = round;
        dse_pool_barrier(s->pool);
        int sum = 0;
        for (int t = 0; t < n_threads; t++)
            sum += s->a[t] == round;
        s->b[thread] += sum == n_threads;
        dse_pool_barrier(s->pool);
    }
}

static void pool_runs_all_threads_and_barriers_hold(void **state)
{
    for (int n = 1; n <= 4; n++) {
        struct dse_error err;
        struct sums s = {0};
        assert_int_equal(dse_pool_create(n, &s.pool, &err), DSE_OK);
        assert_int_equal(dse_pool_threads(s.pool), n);
        dse_pool_run(s.pool, meet_twice, &s);
        for (int t = 0; t < n; t++)
            assert_int_equal(s.b[t], 2000);
        if (n == 4) usleep(20000); /* let workers fall asleep, then wake them */
        dse_pool_run(s.pool, meet_twice, &s);
        for (int t = 0; t < n; t++)
            assert_int_equal(s.b[t], 4000);
        dse_pool_free(s.pool);
    }
    struct dse_pool *pool;
    struct dse_error err;
    assert_int_equal(dse_pool_create(0, &pool, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_pool_create(5000, &pool, &err), DSE_ERR_INVALID);
}

static void shares_cover_everything_once(void **state)
{
    for (size_t n = 0; n < 200; n++) {
        for (int threads = 1; threads <= 5; threads++) {
            size_t next = 0;
            for (int t = 0; t < threads; t++) {
                size_t begin, end;
                dse_split(n, 16, t, threads, &begin, &end);
                assert_int_equal(begin, next);
                assert_true(end >= begin && (begin % 16 == 0 || begin == n));
                next = end;
            }
            assert_int_equal(next, n);
        }
    }
}

static void histograms_count_by_bucket(void **state)
{
    dse_histogram_observe(DSE_HISTOGRAM_TTFT, 0.0005);
    dse_histogram_observe(DSE_HISTOGRAM_TTFT, 0.3);
    dse_histogram_observe(DSE_HISTOGRAM_TTFT, 1e4);
    struct dse_histogram_view view = dse_histogram_get(DSE_HISTOGRAM_TTFT);
    assert_int_equal(view.count, 3);
    assert_int_equal(view.buckets[0], 1);
    assert_int_equal(view.buckets[DSE_HISTOGRAM_BUCKETS], 1);
    assert_true(view.sum > 10000.3 && view.sum < 10000.31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quota_of_any_ancestor_limits_threads, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1_quota_limits_threads, make_root, remove_root),
        cmocka_unit_test_setup_teardown(memory_limit_is_the_tightest_group_without_file_pages, make_root, remove_root),
        cmocka_unit_test_setup_teardown(shared_memory_is_not_counted_as_free_file_pages, make_root, remove_root),
        cmocka_unit_test_setup_teardown(only_regular_files_are_mapped, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_shrunk_file_is_noticed, make_root, remove_root),
        cmocka_unit_test_setup_teardown(reading_stops_at_the_limit, make_root, remove_root),
        cmocka_unit_test(a_missing_path_is_an_argument_error),
        cmocka_unit_test(pool_runs_all_threads_and_barriers_hold),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(histograms_count_by_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

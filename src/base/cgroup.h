/* What the container allows: CPUs and memory, cgroup v2 along the whole ancestor chain, and v1.
 *
 * `root` is the file system root to read proc and sys below: "" in production, a fake tree in tests.
 */
#ifndef DSE_BASE_CGROUP_H
#define DSE_BASE_CGROUP_H

#include <stdint.h>

struct dse_cpu_limit {
    int threads;        /* default thread count: the smallest of the limits below, at least 1 */
    const char *reason; /* which one won: "physical cores", "affinity", "cgroup quota" */
};

struct dse_cpu_limit dse_cgroup_cpu_limit(const char *root);

struct dse_memory_limit {
    uint64_t available_bytes; /* what may still be taken: min(MemAvailable, limit - usage of each cgroup) */
    uint64_t total_bytes;     /* min(MemTotal, cgroup limits) */
    const char *reason;       /* "free memory" or "cgroup limit" */
};

struct dse_memory_limit dse_cgroup_memory_limit(const char *root);

#endif

/* CPU and memory limits of the container, from /proc and /sys. A limit that cannot be read does not exist. */
#include "base/cgroup.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"

#define PATH_BYTES 4096
/* cgroup v1 writes "no limit" as a number near 2^63. */
#define V1_UNLIMITED ((uint64_t)1 << 60)

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool ok = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (ok) line[strcspn(line, "\n")] = '\0';
    return ok;
}

static bool read_u64(const char *path, uint64_t *out)
{
    char line[128], *end;
    if (!read_line(path, line, sizeof line)) return false;
    *out = strtoull(line, &end, 10);
    return end != line;
}

/* Path of this process below the mount of a controller: "" names v2, "cpu" or "memory" v1. */
static bool own_group(const char *root, const char *controller, char *out, size_t bytes)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *group = list != NULL ? strchr(list + 1, ':') : NULL;
        if (group == NULL) continue;
        *list++ = '\0';
        *group++ = '\0';
        if (controller[0] == '\0') {
            found = strcmp(line, "0") == 0 && list[0] == '\0';
        } else {
            for (char *save = NULL, *name = strtok_r(list, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save))
                found = found || strcmp(name, controller) == 0;
        }
        if (found) snprintf(out, bytes, "%s", strcmp(group, "/") == 0 ? "" : group);
    }
    if (file != NULL) fclose(file);
    return found;
}

/* Calls visit(directory) for the process's own group and each of its ancestors up to the mount. */
static void walk_groups(const char *mount, const char *group, void (*visit)(const char *directory, void *context),
                        void *context)
{
    char relative[PATH_BYTES], directory[2 * PATH_BYTES];
    snprintf(relative, sizeof relative, "%s", group);
    for (;;) {
        snprintf(directory, sizeof directory, "%s%s", mount, relative);
        visit(directory, context);
        char *slash = strrchr(relative, '/');
        if (slash == NULL) break;
        *slash = '\0';
    }
}

struct quota {
    double cpus; /* smallest seen, 0: none */
};

static void add_quota(struct quota *quota, double limit, double period)
{
    if (limit <= 0 || period <= 0) return;
    double cpus = limit / period;
    if (quota->cpus == 0 || cpus < quota->cpus) quota->cpus = cpus;
}

static void visit_cpu_v2(const char *directory, void *context)
{
    char path[3 * PATH_BYTES], line[128];
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    long long limit, period;
    if (read_line(path, line, sizeof line) && sscanf(line, "%lld %lld", &limit, &period) == 2)
        add_quota(context, (double)limit, (double)period);
}

static void visit_cpu_v1(const char *directory, void *context)
{
    char path[3 * PATH_BYTES], line[64];
    uint64_t period;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    if (!read_line(path, line, sizeof line)) return;
    long long limit = strtoll(line, NULL, 10);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (read_u64(path, &period)) add_quota(context, (double)limit, (double)period);
}

static int affinity_count(void)
{
    /* Machines with more CPUs than the fixed set holds make the call fail; then affinity is no limit. */
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

struct dse_cpu_limit dse_cgroup_cpu_limit(const char *root)
{
    struct dse_cpu_limit result = {dse_cpu_physical_cores(), "physical cores"};
    int affine = affinity_count(); /* the mask already contains the cpuset */
    if (affine > 0 && affine < result.threads) result = (struct dse_cpu_limit){affine, "affinity"};

    struct quota quota = {0};
    char group[PATH_BYTES], mount[PATH_BYTES];
    if (own_group(root, "", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        walk_groups(mount, group, visit_cpu_v2, &quota);
    }
    if (own_group(root, "cpu", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
        walk_groups(mount, group, visit_cpu_v1, &quota);
    }
    if (quota.cpus > 0 && (int)quota.cpus < result.threads)
        result = (struct dse_cpu_limit){(int)quota.cpus, "cgroup quota"};
    if (result.threads < 1) result.threads = 1;
    return result;
}

/* A line `key number` of memory.stat; 0 if there is none. */
static uint64_t stat_value(const char *path, const char *key)
{
    char line[256];
    uint64_t value = 0;
    FILE *file = fopen(path, "re");
    size_t key_bytes = strlen(key);
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, key_bytes) == 0 && line[key_bytes] == ' ') value = strtoull(line + key_bytes, NULL, 10);
    if (file != NULL) fclose(file);
    return value;
}

static void visit_memory(const char *directory, struct dse_memory_limit *result, const char *limit_file,
                         const char *usage_file, const char *cache_key, const char *shared_key)
{
    char path[3 * PATH_BYTES];
    uint64_t limit, usage;
    snprintf(path, sizeof path, "%s/%s", directory, limit_file);
    if (!read_u64(path, &limit) || limit >= V1_UNLIMITED) return;
    snprintf(path, sizeof path, "%s/%s", directory, usage_file);
    if (!read_u64(path, &usage)) usage = 0;
    /* File pages count as usage but are given back under pressure; those of shared memory are among them and are
     * not. */
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    uint64_t cache = stat_value(path, cache_key), shared = stat_value(path, shared_key);
    cache = cache > shared ? cache - shared : 0;
    usage = usage > cache ? usage - cache : 0;
    uint64_t left = limit > usage ? limit - usage : 0;
    if (limit < result->total_bytes) result->total_bytes = limit;
    if (left < result->available_bytes) {
        result->available_bytes = left;
        result->reason = "cgroup limit";
    }
}

static void visit_memory_v2(const char *directory, void *context)
{
    visit_memory(directory, context, "memory.max", "memory.current", "file", "shmem");
}

static void visit_memory_v1(const char *directory, void *context)
{
    visit_memory(directory, context, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem");
}

struct dse_memory_limit dse_cgroup_memory_limit(const char *root)
{
    struct dse_memory_limit result = {UINT64_MAX, UINT64_MAX, "free memory"};
    char path[PATH_BYTES], line[256];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long kib;
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) result.total_bytes = kib * 1024;
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) result.available_bytes = kib * 1024;
    }
    if (file != NULL) fclose(file);

    char group[PATH_BYTES], mount[PATH_BYTES];
    if (own_group(root, "", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        walk_groups(mount, group, visit_memory_v2, &result);
    }
    if (own_group(root, "memory", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
        walk_groups(mount, group, visit_memory_v1, &result);
    }
    return result;
}

/* Chooses a device by name and lists what this machine offers. Called by the engine and the command line. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/cpu.h"
#include "device/backends.h"

/* Names that other builds or later versions know; here they only make the message say what is missing. */
static const struct {
    const char *name, *title;
} absent[] = {{"cuda", "CUDA"}, {"vulkan", "Vulkan"}, {"opencl", "OpenCL"}};
enum { N_ABSENT = sizeof absent / sizeof absent[0] };

enum dse_status dse_device_open(const char *name, int n_threads, struct dse_device **device, struct dse_error *err)
{
    if (name == NULL || strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0) {
        if (n_threads < 0) return dse_fail(err, DSE_ERR_INVALID, "threads: %d is negative", n_threads);
        if (n_threads == 0) n_threads = dse_cgroup_cpu_limit("").threads;
        return dse_device_cpu_open(n_threads, device, err);
    }
    for (int i = 0; i < N_ABSENT; i++)
        if (strcmp(name, absent[i].name) == 0)
            return dse_fail_at(err, DSE_ERR_DEVICE, "device", -1,
                               "device '%s': this build has no %s support; use --device cpu", name, absent[i].title);
    return dse_fail_at(err, DSE_ERR_DEVICE, "device", -1,
                       "device '%.64s' is unknown: this build has no CUDA, Vulkan or OpenCL support; use --device cpu",
                       name);
}

void dse_device_close(struct dse_device *device)
{
    if (device != NULL) dse_device_cpu_close(device);
}

int dse_device_list(struct dse_device_info *out, int max)
{
    int n = 0;
    if (n < max) {
        char features[64];
        dse_cpu_feature_names(dse_cpu_features(), features, (int)sizeof features);
        struct dse_device_info *info = &out[n++];
        *info = (struct dse_device_info){.name = "cpu", .usable = true};
        struct dse_cpu_limit limit = dse_cgroup_cpu_limit("");
        snprintf(info->description, sizeof info->description, "%.48s, %d thread%s, %.40s", dse_cpu_model(),
                 limit.threads, limit.threads == 1 ? "" : "s", features[0] != '\0' ? features : "no vector extensions");
        snprintf(info->reason, sizeof info->reason, "threads limited by %s", limit.reason);
        info->memory_bytes = dse_cgroup_memory_limit("").total_bytes;
    }
    for (int i = 0; i < N_ABSENT && n < max; i++) {
        struct dse_device_info *info = &out[n++];
        *info = (struct dse_device_info){.usable = false};
        snprintf(info->name, sizeof info->name, "%s", absent[i].name);
        snprintf(info->description, sizeof info->description, "%s", absent[i].title);
        snprintf(info->reason, sizeof info->reason, "this build has no %s support", absent[i].title);
    }
    return n;
}

struct dse_kv_layout dse_kv_layout_of(const struct dse_config *config, enum dse_kv_type type)
{
    struct dse_kv_layout layout = {.type = type,
                                   .n_layers = dse_layers_used(config),
                                   .n_kv_heads = config->n_kv_heads,
                                   .head_dim = config->head_dim,
                                   .latent = config->latent.kv_rank,
                                   .rope = config->latent.rope,
                                   .index_dim = config->indexer.n_heads > 0 ? config->indexer.head_dim : 0};
    dse_kv_layout_init(&layout);
    return layout;
}

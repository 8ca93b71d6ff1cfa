/* `devices` and `version`. */
#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/cpu.h"
#include "cli/json_out.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "device/device.h"

#include <dse/version.h>

#define MAX_DEVICES 16

enum dse_status dse_verb_devices(const struct dse_options *options, struct dse_error *err)
{
    struct dse_device_info devices[MAX_DEVICES];
    int count = dse_device_list(devices, MAX_DEVICES);
    struct dse_cpu_limit cpu = dse_cgroup_cpu_limit("");
    struct dse_memory_limit memory = dse_cgroup_memory_limit("");
    char a[32], b[32];
    if (dse_opt_flag(options, DSE_OPT_JSON)) {
        json_t *list = json_array();
        for (int i = 0; i < count; i++)
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:b, s:s, s:I}", "name", devices[i].name, "description",
                                            devices[i].description, "usable", devices[i].usable, "reason",
                                            devices[i].reason, "memory_bytes", (json_int_t)devices[i].memory_bytes));
        return dse_print_json(json_pack("{s:o, s:i, s:s, s:I, s:s}", "devices", list, "threads", cpu.threads,
                                        "threads_limited_by", cpu.reason, "available_bytes",
                                        (json_int_t)memory.available_bytes, "memory_limited_by", memory.reason),
                              err);
    }
    for (int i = 0; i < count; i++) {
        printf("%-8s %s  %s\n", devices[i].name, devices[i].usable ? "usable  " : "unusable", devices[i].description);
        if (devices[i].reason[0] != '\0') printf("         %s\n", devices[i].reason);
    }
    printf("threads  %d (%s)\nmemory   %s available of %s (%s)\n", cpu.threads, cpu.reason,
           dse_format_bytes(memory.available_bytes, a), dse_format_bytes(memory.total_bytes, b), memory.reason);
    return DSE_OK;
}

enum dse_status dse_verb_version(const struct dse_options *options, struct dse_error *err)
{
    char features[64];
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    if (dse_opt_flag(options, DSE_OPT_JSON))
        return dse_print_json(json_pack("{s:s, s:s, s:s, s:s, s:[s]}", "version", DSE_VERSION, "compiler", __VERSION__,
                                        "cpu", dse_cpu_model(), "cpu_features", features, "backends", "cpu"),
                              err);
    printf("deepseek-edge %s (compiler %s)\ncpu: %s (%s)\n", DSE_VERSION, __VERSION__, dse_cpu_model(), features);
    return DSE_OK;
}

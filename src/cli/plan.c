/* Engine options from flags, and the memory plan as people read it. */
#include "cli/plan.h"

#include <string.h>

#include "base/cgroup.h"
#include "base/cpu.h"
#include "cli/streams.h"
#include "cli/terminal.h"

void dse_cli_engine_options(const struct dse_options *options, int max_concurrent, int max_queue,
                            struct dse_engine_options *out)
{
    const bool serve = options->verb == DSE_VERB_SERVE; /* elsewhere there is one request at a time */
    *out = (struct dse_engine_options){
        .context_length = dse_opt_int(options, DSE_OPT_MAX_MODEL_LEN),
        .max_concurrent = max_concurrent,
        .max_queue = max_queue,
        .kv_bytes = (uint64_t)dse_opt_int(options, DSE_OPT_KV_MEMORY),
        .chunk_tokens = (int)dse_opt_int(options, DSE_OPT_CHUNK),
        .memory_fraction = dse_opt_real(options, DSE_OPT_MEMORY_FRACTION),
        .prefix_caching = dse_opt_flag(options, DSE_OPT_PREFIX_CACHING),
        .prefix_cache_bytes = (uint64_t)dse_opt_int(options, DSE_OPT_PREFIX_MEMORY),
        .prefix_cache_disk = dse_opt_text(options, DSE_OPT_PREFIX_DISK),
        .prefix_cache_disk_bytes = (uint64_t)dse_opt_int(options, DSE_OPT_PREFIX_SPACE),
        .priority_policy = serve && strcmp(dse_opt_text(options, DSE_OPT_PRIORITY_POLICY), "token") == 0
                               ? DSE_POLICY_TOKEN
                               : DSE_POLICY_REQUEST,
        .priority_quantum = serve ? (int)dse_opt_int(options, DSE_OPT_PRIORITY_QUANTUM) : 0,
        .priority_ageing_ns = serve ? (uint64_t)(dse_opt_real(options, DSE_OPT_PRIORITY_AGEING) * 1e9) : 0,
        .max_draft = (int)dse_opt_int(options, DSE_OPT_DRAFT_MAX),
        .warmup = dse_opt_flag(options, DSE_OPT_WARMUP),
    };
}

void dse_cli_print_plan(const struct dse_model *model, const struct dse_memory_plan *plan)
{
    struct dse_model_info info;
    struct dse_cpu_limit limit = dse_cgroup_cpu_limit("");
    char features[64], a[32], b[32], c[32], d[32], e[32];
    dse_model_get_info(model, &info);
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    dse_talk("model   %s  %s %s  %.1f M parameters\n", info.name, info.arch, info.quantization,
             (double)info.n_parameters * 1e-6);
    bool all = info.n_threads == limit.threads;
    dse_talk("device  %s: %s (%s)  %d threads%s%s%s\n", info.device_name, dse_cpu_model(), features, info.n_threads,
             all ? " (" : "", all ? limit.reason : "", all ? ")" : "");
    dse_talk("memory  weights %s %s | kv %s (%lld tokens) | scratch %s | total %s of %s available (%s)\n",
             dse_format_bytes(plan->weight_bytes, a), plan->resident_weight_bytes > 0 ? "in memory" : "mapped",
             dse_format_bytes(plan->kv_bytes, b), (long long)plan->kv_tokens, dse_format_bytes(plan->scratch_bytes, c),
             dse_format_bytes(plan->total_bytes, d), dse_format_bytes(plan->available_bytes, e),
             plan->available_reason);
    if (plan->adapter_bytes > 0)
        dse_talk("        adapters %s, ranks of a request up to %d together\n",
                 dse_format_bytes(plan->adapter_bytes, a), plan->adapter_rank);
    if (plan->mapped_weight_bytes > 0 && plan->total_bytes > plan->available_bytes)
        dse_talk("        the weights do not all fit beside it: parts of them are read from their file again\n");
    if (plan->locked_bytes > 0)
        dse_talk("        of them %s are locked in memory, and of %s of experts the chosen ones are read\n",
                 dse_format_bytes(plan->locked_bytes, a), dse_format_bytes(plan->expert_bytes, b));
    if (info.numerics == DSE_NUMERICS_FAST)
        dse_talk("numerics fast: results depend on how a prompt is cut into steps\n");
    dse_talk("context %lld tokens a request, %d at once\n", (long long)plan->context_length, plan->max_concurrent);
}

/* The CPU device: its op table, its thread pool, opening and closing. The ops live in cpu_*.c. */
#include "device/cpu.h"

#include "base/alloc.h"
#include "device/backends.h"

static const struct dse_device_ops cpu_ops = {
    .name = "cpu",
    .load = dse_cpu_load,
    .keep = dse_cpu_keep,
    .unload = dse_cpu_unload,
    .adapter_bytes = dse_cpu_adapter_bytes,
    .load_adapter = dse_cpu_load_adapter,
    .unload_adapter = dse_cpu_unload_adapter,
    .scratch_bytes = dse_cpu_scratch_bytes,
    .reserve = dse_cpu_reserve,
    .embed = dse_cpu_embed,
    .qkv = dse_cpu_qkv,
    .rope_store = dse_cpu_rope_store,
    .attention = dse_cpu_attention,
    .project_add = dse_cpu_project_add,
    .ffn_up = dse_cpu_ffn_up,
    .latent_qkv = dse_cpu_latent_qkv,
    .latent_store = dse_cpu_latent_store,
    .head_project = dse_cpu_head_project,
    .latent_attention = dse_cpu_latent_attention,
    .expanded_attention = dse_cpu_expanded_attention,
    .index_keys = dse_cpu_index_keys,
    .route = dse_cpu_route,
    .moe = dse_cpu_moe,
    .mtp_input = dse_cpu_mtp_input,
    .logits = dse_cpu_logits,
};

enum dse_status dse_device_cpu_open(int n_threads, struct dse_device **device, struct dse_error *err)
{
    struct dse_device *d = dse_calloc(DSE_MEM_MISC, 1, sizeof *d);
    struct cpu_state *state = dse_calloc(DSE_MEM_MISC, 1, sizeof *state);
    enum dse_status status = DSE_OK;
    if (d == NULL || state == NULL) status = dse_fail_memory(err, sizeof *d + sizeof *state, "the cpu device");
    if (status == DSE_OK) {
        d->ops = &cpu_ops;
        status = dse_pool_create(n_threads, &d->pool, err);
    }
    if (status != DSE_OK) {
        dse_free(state);
        dse_free(d);
        return status;
    }
    state->n_threads = dse_pool_threads(d->pool);
    dse_attention_ops_pick(&state->kernels);
    d->state = state;
    *device = d;
    return DSE_OK;
}

void dse_device_cpu_close(struct dse_device *device)
{
    struct cpu_state *state = device->state;
    dse_pool_free(device->pool);
    dse_free_pages(state->scratch);
    dse_free(state);
    dse_free(device);
}

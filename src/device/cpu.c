/* The CPU device: its op table, its thread pool, opening and closing. The ops live in cpu_*.c. */
#include "device/cpu.h"

#include "base/alloc.h"
#include "device/backends.h"

static const struct dse_device_ops cpu_ops = {
    .name = "cpu",
    .load = cpu_load,
    .unload = cpu_unload,
    .scratch_bytes = cpu_scratch_bytes,
    .reserve = cpu_reserve,
    .embed = cpu_embed,
    .qkv = cpu_qkv,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .project_add = cpu_project_add,
    .ffn_up = cpu_ffn_up,
    .logits = cpu_logits,
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

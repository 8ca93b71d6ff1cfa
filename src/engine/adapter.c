/* Adapters as generations: opened for a model, counted against its memory, referenced by whoever lists them and by
 * every request that uses them. Unloading or replacing one is dropping a reference: requests in flight keep what they
 * began with.
 */
#include "engine/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/counters.h"
#include "base/sha256.h"

#define DIGEST_BYTES 32
/* Of the memory that the system has left. */
#define MEMORY_SHARE 0.9

/* What one matrix gets, for the digest of the whole. */
struct site_record {
    int32_t layer, site, rank;
    float scale;
    uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];
};

static void digest_matrix(const struct dse_matrix *matrix, uint8_t digest[DIGEST_BYTES])
{
    const size_t panels = (matrix->rows + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
    dse_sha256(matrix->data, panels * matrix->panel_bytes, digest);
}

/* Equal digests compute equal results: packed factors, where they go, and their scales. */
static enum dse_status digest_adapter(struct dse_adapter *adapter, const struct dse_adapter_file *file,
                                      struct dse_error *err)
{
    struct site_record *records = dse_calloc(DSE_MEM_MODEL, file->n_modules, sizeof *records);
    if (records == NULL) return dse_fail_memory(err, file->n_modules * sizeof *records, "the digest of an adapter");
    for (size_t i = 0; i < file->n_modules; i++) {
        const struct dse_adapter_module *module = &file->modules[i];
        const struct dse_low_rank *low =
            &adapter->device.sites[(size_t)module->layer * DSE_SITE_COUNT + (size_t)module->site];
        records[i] = (struct site_record){module->layer, (int32_t)module->site, module->rank, module->scale, {0}, {0}};
        digest_matrix(&low->a, records[i].a);
        digest_matrix(&low->b, records[i].b);
    }
    dse_sha256(records, file->n_modules * sizeof *records, adapter->info.digest);
    dse_free(records);
    return DSE_OK;
}

static uint64_t file_bytes(const struct dse_adapter_file *file)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < file->n_modules; i++)
        bytes += file->modules[i].a->bytes + file->modules[i].b->bytes;
    return bytes;
}

static enum dse_status too_large(const char *path, uint64_t need, uint64_t have, const char *whose,
                                 struct dse_error *err)
{
    const double mib = 1024.0 * 1024.0;
    (void)dse_fail_at(err, DSE_ERR_NO_MEMORY, path, -1, "%s needs %.2f MiB, %.2f MiB are left %s", path,
                      (double)need / mib, (double)have / mib, whose);
    if (err != NULL) {
        err->need = (int64_t)need;
        err->have = (int64_t)have;
    }
    return DSE_ERR_NO_MEMORY;
}

/* Takes bytes of the model's allowance, for as long as a few loads and stores: requests that end give theirs back on the
 * engine's thread. */
static enum dse_status take(struct dse_model *model, uint64_t bytes, const char *path, struct dse_error *err)
{
    pthread_mutex_lock(&model->adapter_lock);
    const uint64_t left = model->adapter_limit - model->adapter_bytes;
    if (bytes <= left) model->adapter_bytes += bytes;
    dse_gauge_set(DSE_GAUGE_ADAPTER_BYTES, (int64_t)model->adapter_bytes);
    pthread_mutex_unlock(&model->adapter_lock);
    return bytes <= left ? DSE_OK : too_large(path, bytes, left, "for adapters", err);
}

static void give_back(struct dse_model *model, uint64_t bytes)
{
    pthread_mutex_lock(&model->adapter_lock);
    model->adapter_bytes -= bytes;
    dse_gauge_set(DSE_GAUGE_ADAPTER_BYTES, (int64_t)model->adapter_bytes);
    pthread_mutex_unlock(&model->adapter_lock);
}

/* Within the model's allowance, and what the system has left beside the copy of the file. */
static enum dse_status load(struct dse_adapter *adapter, const char *path, const struct dse_adapter_file *file,
                            struct dse_error *err)
{
    struct dse_model *model = adapter->model;
    const struct dse_device_ops *ops = model->device->ops;
    const uint64_t available = (uint64_t)((double)dse_cgroup_memory_limit("").available_bytes * MEMORY_SHARE);
    const uint64_t bytes = ops->adapter_bytes(model->device, &model->file->config, file), copy = file_bytes(file);
    if (copy > available || bytes > available - copy) return too_large(path, bytes, available, "in this system", err);
    enum dse_status status = take(model, bytes, path, err);
    if (status != DSE_OK) return status;
    status = ops->load_adapter(model->device, &model->file->config, file, &adapter->device, err);
    if (status != DSE_OK) give_back(model, bytes);
    return status;
}

enum dse_status dse_adapter_open(struct dse_model *model, const char *path, struct dse_adapter **out,
                                 struct dse_error *err)
{
    *out = NULL;
    struct dse_adapter *adapter = dse_calloc(DSE_MEM_MODEL, 1, sizeof *adapter);
    if (adapter == NULL) return dse_fail_memory(err, sizeof *adapter, "an adapter");
    atomic_init(&adapter->references, 1);
    adapter->model = dse_model_ref(model);
    const uint64_t available = dse_cgroup_memory_limit("").available_bytes;
    struct dse_adapter_file *file = NULL;
    enum dse_status status = dse_adapter_file_open(path, model->file, available < SIZE_MAX ? available : SIZE_MAX,
                                                   &file, err);
    if (status == DSE_OK) status = load(adapter, path, file, err);
    if (status == DSE_OK) status = digest_adapter(adapter, file, err);
    if (status == DSE_OK) {
        adapter->info.rank = file->max_rank;
        adapter->info.n_matrices = (int)file->n_modules;
        adapter->info.bytes = adapter->device.bytes;
        (void)snprintf(adapter->info.path, sizeof adapter->info.path, "%s", path);
    }
    dse_adapter_file_close(file);
    if (status != DSE_OK) {
        dse_adapter_unref(adapter);
        return status;
    }
    *out = adapter;
    return DSE_OK;
}

struct dse_adapter *dse_adapter_ref(struct dse_adapter *adapter)
{
    atomic_fetch_add_explicit(&adapter->references, 1, memory_order_relaxed);
    return adapter;
}

void dse_adapter_unref(struct dse_adapter *adapter)
{
    if (adapter == NULL || atomic_fetch_sub_explicit(&adapter->references, 1, memory_order_acq_rel) != 1) return;
    struct dse_model *model = adapter->model;
    const uint64_t bytes = adapter->device.bytes;
    model->device->ops->unload_adapter(model->device, &adapter->device);
    give_back(model, bytes); /* only now: whoever loads next may take them at once */
    dse_free(adapter);
    dse_model_unref(model);
}

void dse_adapter_get_info(const struct dse_adapter *adapter, struct dse_adapter_info *info)
{
    *info = adapter->info;
}

/* ---- of a request ---- */

static enum dse_status check_use(const struct dse_model *model, const struct dse_adapter_use *use, int i,
                                 struct dse_error *err)
{
    if (use->adapter == NULL || use->adapter->model != model)
        return dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1, "adapters[%d] is not one of this model", i);
    if (!isfinite(use->scale))
        return dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1, "the scale of adapters[%d] is not a finite number", i);
    return DSE_OK;
}

static void insert(struct dse_adapter_set *set, struct dse_adapter *adapter, float scale)
{
    int at = 0, order = 1;
    while (at < set->count && (order = memcmp(set->adapters[at]->info.digest, adapter->info.digest, DIGEST_BYTES)) < 0)
        at++;
    if (at < set->count && order == 0) {
        set->parts[at].scale += scale;
        return;
    }
    for (int i = set->count++; i > at; i--) {
        set->adapters[i] = set->adapters[i - 1];
        set->parts[i] = set->parts[i - 1];
    }
    set->adapters[at] = dse_adapter_ref(adapter);
    set->parts[at] = (struct dse_adapter_part){&adapter->device, scale};
}

static void drop_zeros(struct dse_adapter_set *set)
{
    int kept = 0;
    for (int i = 0; i < set->count; i++) {
        if (set->parts[i].scale == 0) {
            dse_adapter_unref(set->adapters[i]);
            continue;
        }
        set->adapters[kept] = set->adapters[i];
        set->parts[kept++] = set->parts[i];
    }
    set->count = kept;
}

enum dse_status dse_adapter_set_init(struct dse_adapter_set *set, const struct dse_model *model,
                                     const struct dse_adapter_use *uses, int count, int max_rank, struct dse_error *err)
{
    *set = (struct dse_adapter_set){0};
    if (count < 0 || count > DSE_MAX_ADAPTERS)
        return dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1, "a request may use %d adapters at most, not %d",
                           DSE_MAX_ADAPTERS, count);
    enum dse_status status = DSE_OK;
    for (int i = 0; i < count && status == DSE_OK; i++) {
        status = check_use(model, &uses[i], i, err);
        if (status == DSE_OK) insert(set, uses[i].adapter, uses[i].scale);
    }
    drop_zeros(set);
    for (int i = 0; i < set->count; i++) {
        set->rank += set->adapters[i]->info.rank;
        if (status == DSE_OK && !isfinite(set->parts[i].scale))
            status = dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1, "the scales of an adapter add up to infinity");
    }
    if (status == DSE_OK && set->rank > max_rank) {
        status = dse_fail_at(err, DSE_ERR_INVALID, "adapters", -1,
                             "the ranks of the request's adapters are %d together, there is room for %d: raise "
                             "--max-lora-rank",
                             set->rank, max_rank);
    }
    if (status != DSE_OK) dse_adapter_set_deinit(set);
    return status;
}

void dse_adapter_set_deinit(struct dse_adapter_set *set)
{
    for (int i = 0; i < set->count; i++)
        dse_adapter_unref(set->adapters[i]);
    *set = (struct dse_adapter_set){0};
}

uint64_t dse_adapter_set_identity(const struct dse_adapter_set *set)
{
    uint8_t text[DSE_MAX_ADAPTERS * (DIGEST_BYTES + sizeof(float))], digest[DIGEST_BYTES];
    size_t bytes = 0;
    uint64_t identity;
    if (set->count == 0) return 0;
    for (int i = 0; i < set->count; i++) {
        memcpy(text + bytes, set->adapters[i]->info.digest, DIGEST_BYTES);
        memcpy(text + bytes + DIGEST_BYTES, &set->parts[i].scale, sizeof(float));
        bytes += DIGEST_BYTES + sizeof(float);
    }
    dse_sha256(text, bytes, digest);
    memcpy(&identity, digest, sizeof identity);
    return identity != 0 ? identity : 1;
}

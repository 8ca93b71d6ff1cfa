/* Weights of a model on the CPU: matrices packed into anonymous pages or the pack cache, vectors decoded to f32.
 *
 * Called once per model before any op. Everything the pack cache cannot do is a warning and anonymous memory instead.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "device/cpu.h"
#include "device/pack_cache.h"

/* Matrices begin at a multiple of this. */
#define MATRIX_ALIGN 256
#define PACK_ROWS    256 /* of one unit of packing work */

/* What dse_device_weights.storage points to. */
struct storage {
    void *pages;
    struct pack_map map;
    float *vectors;
};

/* One matrix to pack and where its description goes. */
struct source {
    const struct dse_tensor *tensor;
    struct dse_matrix *matrix;
};

struct loader {
    const struct dse_model_file *file;
    bool f32;
    struct dse_device_weights *out;
    struct storage *storage;
    struct source *sources;     /* in the order of use */
    struct pack_entry *entries; /* [n] */
    size_t n, n_units;
    struct dse_pool *pool;
    uint8_t *data;
    atomic_size_t next;
};

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

static size_t tensor_elements(const struct dse_tensor *tensor)
{
    return tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
}

static enum dse_status check_decodable(const struct dse_tensor *tensor, struct dse_error *err)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)tensor->type);
    if (info != NULL && info->decodable) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, tensor->name, -1, "tensor %.100s has type %s, which cannot be decoded",
                       tensor->name, info != NULL ? info->name : "unknown");
}

/* Visits every vector of the model: with at NULL it counts floats, else it decodes into at. */
struct vector_walk {
    float *at;
    size_t count;
    enum dse_status status;
    struct dse_error *err;
};

static const float *take_vector(struct vector_walk *walk, const struct dse_tensor *tensor)
{
    if (tensor == NULL || walk->status != DSE_OK) return NULL;
    walk->status = check_decodable(tensor, walk->err);
    if (walk->status != DSE_OK) return NULL;
    size_t n = tensor_elements(tensor);
    float *out = walk->at != NULL ? walk->at + walk->count : NULL;
    if (out != NULL) dse_type_decode(tensor->type, tensor->data, out, n);
    walk->count += (n + 15) / 16 * 16;
    return out;
}

static const float *walk_vectors(const struct dse_model_file *file, struct dse_device_weights *out,
                                 struct vector_walk *walk)
{
    for (int i = 0; i < file->config.n_layers; i++) {
        const struct dse_layer_tensors *t = &file->layers[i];
        struct dse_layer *layer = &out->layers[i];
        layer->attn_norm = take_vector(walk, t->attn_norm);
        layer->ffn_norm = take_vector(walk, t->ffn_norm);
        layer->q_bias = take_vector(walk, t->q_bias);
        layer->k_bias = take_vector(walk, t->k_bias);
        layer->v_bias = take_vector(walk, t->v_bias);
        layer->q_norm = take_vector(walk, t->q_norm);
        layer->k_norm = take_vector(walk, t->k_norm);
    }
    out->output_norm = take_vector(walk, file->output_norm);
    return take_vector(walk, file->rope_divisors);
}

static enum dse_status load_vectors(struct loader *loader, struct dse_error *err)
{
    const struct dse_config *config = &loader->file->config;
    struct vector_walk walk = {.err = err};
    walk_vectors(loader->file, loader->out, &walk);
    if (walk.status != DSE_OK) return walk.status;
    size_t pairs = (size_t)config->rope.dimensions / 2, bytes;
    if (!dse_mul_size(walk.count + pairs, sizeof(float), &bytes))
        return dse_fail(err, DSE_ERR_LIMIT, "the vectors of the model overflow the address space");
    float *memory = dse_alloc_aligned(DSE_MEM_MODEL, 64, bytes);
    if (memory == NULL) return dse_fail_memory(err, bytes, "norms and biases");
    loader->storage->vectors = memory;
    walk = (struct vector_walk){.at = memory, .err = err};
    const float *divisors = walk_vectors(loader->file, loader->out, &walk);
    float *frequencies = memory + walk.count;
    dse_rope_frequencies(&config->rope, divisors, frequencies, &loader->out->rope_factor);
    loader->out->rope_frequencies = frequencies;
    return walk.status;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static enum dse_status plan_matrices(struct loader *loader, struct pack_plan *plan, struct dse_error *err)
{
    const struct dse_model_file *file = loader->file;
    loader->n = (size_t)file->config.n_layers * 7 + 1;
    loader->sources = dse_calloc(DSE_MEM_MODEL, loader->n, sizeof *loader->sources);
    loader->entries = dse_calloc(DSE_MEM_MODEL, loader->n, sizeof *loader->entries);
    if (loader->sources == NULL || loader->entries == NULL)
        return dse_fail_memory(err, loader->n * sizeof *loader->entries, "the table of matrices");
    size_t n = 0, bytes = 0;
    for (int i = 0; i < file->config.n_layers; i++) {
        const struct dse_layer_tensors *t = &file->layers[i];
        struct dse_layer *layer = &loader->out->layers[i];
        const struct source of_layer[7] = {{t->q, &layer->q},      {t->k, &layer->k},       {t->v, &layer->v},
                                           {t->o, &layer->o},      {t->gate, &layer->gate}, {t->up, &layer->up},
                                           {t->down, &layer->down}};
        memcpy(loader->sources + n, of_layer, sizeof of_layer);
        n += 7;
    }
    loader->sources[n++] = (struct source){file->output, &loader->out->output};
    for (size_t i = 0; i < n; i++) {
        const struct dse_tensor *tensor = loader->sources[i].tensor;
        enum dse_status status = check_decodable(tensor, err);
        if (status != DSE_OK) return status;
        enum dse_layout layout = dse_matrix_layout(tensor->type, tensor->shape[1], loader->f32);
        size_t size, offset;
        if (!dse_matrix_packed_bytes(layout, tensor->shape[0], tensor->shape[1], &size) ||
            !dse_align_size(bytes, MATRIX_ALIGN, &offset) || !dse_add_size(offset, size, &bytes))
            return dse_fail_at(err, DSE_ERR_UNSUPPORTED, tensor->name, -1, "tensor %.100s [%zu, %zu] cannot be packed",
                               tensor->name, tensor->shape[0], tensor->shape[1]);
        loader->entries[i] = (struct pack_entry){.layout = (uint32_t)layout,
                                                 .source_type = (uint32_t)tensor->type,
                                                 .rows = tensor->shape[0],
                                                 .cols = tensor->shape[1],
                                                 .offset = offset,
                                                 .bytes = size};
        loader->n_units += (tensor->shape[0] + PACK_ROWS - 1) / PACK_ROWS;
    }
    *plan = (struct pack_plan){loader->entries, loader->n, bytes};
    return DSE_OK;
}

static void run_pack(void *context, int thread, int n_threads)
{
    struct loader *loader = context;
    size_t entry = 0, first_unit = 0; /* units ascend, so the search goes on where it was */
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&loader->next, 1, memory_order_relaxed), units;
        if (unit >= loader->n_units) return;
        while (units = (loader->entries[entry].rows + PACK_ROWS - 1) / PACK_ROWS, unit >= first_unit + units) {
            first_unit += units;
            entry++;
        }
        const struct pack_entry *e = &loader->entries[entry];
        const struct dse_tensor *tensor = loader->sources[entry].tensor;
        size_t begin = (unit - first_unit) * PACK_ROWS;
        size_t end = e->rows - begin < PACK_ROWS ? e->rows : begin + PACK_ROWS;
        dse_matrix_pack(tensor->type, tensor->data, e->cols, begin, end, (enum dse_layout)e->layout,
                        loader->data + e->offset, begin);
    }
}

static void fill(void *context, uint8_t *data)
{
    struct loader *loader = context;
    loader->data = data;
    atomic_store(&loader->next, 0);
    dse_pool_run(loader->pool, run_pack, loader);
}

static enum dse_status load_matrices(struct loader *loader, const char *folder, struct dse_error *err)
{
    struct pack_plan plan;
    struct storage *storage = loader->storage;
    enum dse_status status = plan_matrices(loader, &plan, err);
    if (status != DSE_OK) return status;
    const uint8_t *data = NULL;
    if (folder != NULL) {
        struct dse_error why;
        bool built;
        struct pack_key key = dse_pack_key_of(loader->file, &plan);
        status = dse_pack_cache_open(folder, key, &plan, loader->pool, fill, loader, &storage->map, &built, &why);
        if (status == DSE_OK)
            data = storage->map.data;
        else
            dse_log(DSE_LOG_WARN, "device", "pack cache %s is not used, weights go into memory: %s", folder,
                    why.message);
    }
    if (data == NULL) {
        storage->pages = dse_alloc_pages(DSE_MEM_MODEL, plan.data_bytes);
        if (storage->pages == NULL) return dse_fail_memory(err, plan.data_bytes, "packed weights");
        fill(loader, storage->pages);
        data = storage->pages;
        loader->out->resident_bytes = plan.data_bytes;
    }
    loader->out->storage_bytes = plan.data_bytes;
    for (size_t i = 0; i < loader->n; i++) {
        const struct pack_entry *e = &loader->entries[i];
        size_t panels = (e->rows + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
        *loader->sources[i].matrix = (struct dse_matrix){.layout = (enum dse_layout)e->layout,
                                                         .source_type = (enum dse_type)e->source_type,
                                                         .rows = e->rows,
                                                         .cols = e->cols,
                                                         .data = data + e->offset,
                                                         .panel_bytes = e->bytes / panels};
    }
    return DSE_OK;
}

enum dse_status dse_cpu_load(struct dse_device *device, const struct dse_model_file *file, bool f32,
                             const char *pack_cache, struct dse_device_weights *out, struct dse_error *err)
{
    struct cpu_state *state = device->state;
    struct loader loader = {.file = file, .f32 = f32, .out = out, .pool = device->pool};
    *out = (struct dse_device_weights){.config = &file->config, .token_embd = file->token_embd};
    out->layers = dse_calloc(DSE_MEM_MODEL, (size_t)file->config.n_layers, sizeof *out->layers);
    loader.storage = dse_calloc(DSE_MEM_MODEL, 1, sizeof *loader.storage);
    out->storage = loader.storage;
    enum dse_status status = DSE_OK;
    if (out->layers == NULL || out->storage == NULL)
        status = dse_fail_memory(err, (size_t)file->config.n_layers * sizeof *out->layers, "the layers of the model");
    if (status == DSE_OK) status = check_decodable(file->token_embd, err);
    if (status == DSE_OK) status = load_vectors(&loader, err);
    if (status == DSE_OK) status = load_matrices(&loader, pack_cache, err);
    dse_free(loader.sources);
    dse_free(loader.entries);
    state->angle_frequencies = NULL; /* may be a reused address */
    if (status != DSE_OK) dse_cpu_unload(device, out);
    return status;
}

void dse_cpu_unload(struct dse_device *device, struct dse_device_weights *weights)
{
    struct storage *storage = weights->storage;
    if (storage != NULL) {
        dse_free_pages(storage->pages);
        dse_pack_map_close(&storage->map);
        dse_free(storage->vectors);
        dse_free(storage);
    }
    dse_free(weights->layers);
    *weights = (struct dse_device_weights){0};
}

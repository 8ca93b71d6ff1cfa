/* Weights of a model on the CPU: matrices packed into anonymous pages or the pack cache, vectors decoded to f32.
 *
 * Called once per model before any op. Everything the pack cache cannot do is a warning and anonymous memory instead.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/checked.h"
#include "base/log.h"
#include "device/cpu.h"
#include "device/cpu_pack.h"
#include "device/pack_cache.h"

/* Matrices begin at a multiple of this. */
#define MATRIX_ALIGN 256

/* What dse_device_weights.storage points to. */
struct storage {
    void *pages;
    struct pack_map map;
    float *vectors;
    struct dse_expert *experts; /* of all layers */
};

struct loader {
    const struct dse_model_file *file;
    bool f32;
    struct dse_device_weights *out;
    struct storage *storage;
    struct cpu_source *sources; /* [n] in the order of use; NULL while they are only counted */
    struct pack_entry *entries; /* [n] */
    size_t n, n_units, first_expert;
    struct dse_pool *pool;
    float *scratch; /* [n_threads][scratch_floats] */
    size_t scratch_floats;
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
    for (int i = 0; i < dse_layers_used(&file->config); i++) {
        const struct dse_layer_tensors *t = &file->layers[i];
        struct dse_layer *layer = &out->layers[i];
        layer->attn_norm = take_vector(walk, t->attn_norm);
        layer->ffn_norm = take_vector(walk, t->ffn_norm);
        layer->q_bias = take_vector(walk, t->q_bias);
        layer->k_bias = take_vector(walk, t->k_bias);
        layer->v_bias = take_vector(walk, t->v_bias);
        layer->q_norm = take_vector(walk, t->q_norm);
        layer->k_norm = take_vector(walk, t->k_norm);
        layer->q_a_norm = take_vector(walk, t->q_a_norm);
        layer->kv_a_norm = take_vector(walk, t->kv_a_norm);
        layer->index_k_norm = take_vector(walk, t->indexer.k_norm);
        layer->index_k_norm_bias = take_vector(walk, t->indexer.k_norm_bias);
        layer->router_bias = take_vector(walk, t->router_bias);
        layer->mtp_embd_norm = take_vector(walk, t->mtp.embd_norm);
        layer->mtp_hidden_norm = take_vector(walk, t->mtp.hidden_norm);
        layer->mtp_head_norm = take_vector(walk, t->mtp.head_norm);
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

static void add(struct loader *loader, struct cpu_source source, bool f32)
{
    if (source.tensor == NULL) return;
    if (loader->sources != NULL) {
        source.layout = dse_cpu_source_layout(&source, f32);
        loader->sources[loader->n] = source;
    }
    loader->n++;
}

static void add_matrix(struct loader *loader, const struct dse_tensor *tensor, struct dse_matrix *matrix)
{
    add(loader, (struct cpu_source){.tensor = tensor, .matrix = matrix}, loader->f32);
}

/* W_uk as the expanded form needs it, a row per value of a key; see struct dse_layer. */
static struct cpu_source expansion_source(const struct dse_model_file *file, const struct dse_kv_b_tensors *kv_b,
                                          struct dse_head_matrix *heads)
{
    const struct dse_latent_config *latent = &file->config.latent;
    const size_t nope = (size_t)latent->nope, rank = (size_t)latent->kv_rank, n_heads = (size_t)file->config.n_heads;
    struct cpu_source source = {.matrix = &heads->head, .head_bytes = &heads->head_bytes, .n_heads = n_heads};
    heads->n_heads = file->config.n_heads;
    if (kv_b->joined != NULL) {
        source.tensor = kv_b->joined;
        source.group_rows = nope + (size_t)latent->v;
        source.n_rows = nope;
    } else {
        source.tensor = kv_b->k_b;
        source.group_rows = source.n_rows = rank;
        source.transposed = source.to_blocks = true;
    }
    return source;
}

uint64_t dse_expansion_bytes(const struct dse_model_file *file, bool f32)
{
    uint64_t sum = 0;
    for (int i = 0; file->config.latent.kv_rank > 0 && i < dse_layers_used(&file->config); i++) {
        struct dse_head_matrix heads;
        struct cpu_packed_shape shape;
        struct cpu_source source = expansion_source(file, &file->layers[i].kv_b, &heads);
        /* as dse_cpu_source_layout, but for weights so large that they become f32: those are found by reading them */
        source.layout = dse_matrix_layout(source.tensor->type, source.tensor->shape[source.tensor->n_dims - 1], f32);
        if (source.transposed && dse_layout_uses_s8(source.layout))
            source.layout = source.n_rows % DSE_ACT_BLOCK == 0 ? DSE_LAYOUT_Q8 : DSE_LAYOUT_F16;
        if (dse_cpu_source_shape(&source, &shape)) sum += (uint64_t)shape.n_matrices * shape.matrix_bytes;
    }
    return sum;
}

/* One matrix per head out of `group_rows` rows a head. */
static void add_heads(struct loader *loader, const struct dse_tensor *tensor, struct dse_head_matrix *heads,
                      size_t group_rows, size_t first_row, size_t n_rows, bool transposed)
{
    heads->n_heads = loader->file->config.n_heads;
    add(loader,
        (struct cpu_source){.tensor = tensor,
                            .matrix = &heads->head,
                            .head_bytes = &heads->head_bytes,
                            .n_heads = (size_t)heads->n_heads,
                            .group_rows = group_rows,
                            .first_row = first_row,
                            .n_rows = n_rows,
                            .transposed = transposed},
        loader->f32);
}

static void add_latent(struct loader *loader, const struct dse_layer_tensors *t, struct dse_layer *layer)
{
    const struct dse_latent_config *latent = &loader->file->config.latent;
    const size_t nope = (size_t)latent->nope, v = (size_t)latent->v, rank = (size_t)latent->kv_rank;
    add_matrix(loader, t->q_a, &layer->q_a);
    add_matrix(loader, t->q_b, &layer->q_b);
    add_matrix(loader, t->kv_a, &layer->kv_a);
    if (t->kv_b.joined != NULL) {
        add_heads(loader, t->kv_b.joined, &layer->k_b, nope + v, 0, nope, true);
        add_heads(loader, t->kv_b.joined, &layer->v_b, nope + v, nope, v, false);
    } else {
        add_heads(loader, t->kv_b.k_b, &layer->k_b, rank, 0, rank, false);
        add_heads(loader, t->kv_b.v_b, &layer->v_b, v, 0, v, false);
    }
    if (latent->expand) add(loader, expansion_source(loader->file, &t->kv_b, &layer->k_up), loader->f32);
    add_matrix(loader, t->indexer.q_b, &layer->index_q);
    add_matrix(loader, t->indexer.k, &layer->index_k);
    add_matrix(loader, t->indexer.weights, &layer->index_weights);
}

static void add_experts(struct loader *loader, const struct dse_layer_tensors *t, struct dse_layer *layer)
{
    for (int e = 0; e < loader->file->config.moe.n_experts; e++) {
        add_matrix(loader, &t->experts[e].gate, &layer->experts[e].gate);
        add_matrix(loader, &t->experts[e].up, &layer->experts[e].up);
        add_matrix(loader, &t->experts[e].down, &layer->experts[e].down);
    }
}

/* Every matrix of the model; what a layer does not have is NULL. Experts come last: the others, which every token
 * needs, lie together. */
static void add_all(struct loader *loader)
{
    const struct dse_model_file *file = loader->file;
    loader->n = 0;
    for (int i = 0; i < dse_layers_used(&file->config); i++) {
        const struct dse_layer_tensors *t = &file->layers[i];
        struct dse_layer *layer = &loader->out->layers[i];
        add_matrix(loader, t->q, &layer->q);
        add_matrix(loader, t->k, &layer->k);
        add_matrix(loader, t->v, &layer->v);
        if (file->config.latent.kv_rank > 0) add_latent(loader, t, layer);
        add_matrix(loader, t->o, &layer->o);
        add_matrix(loader, t->gate, &layer->gate);
        add_matrix(loader, t->up, &layer->up);
        add_matrix(loader, t->down, &layer->down);
        /* routing decides which experts run: never quantized activations */
        add(loader, (struct cpu_source){.tensor = t->router, .matrix = &layer->router}, true);
        add_matrix(loader, t->shared_gate, &layer->shared.gate);
        add_matrix(loader, t->shared_up, &layer->shared.up);
        add_matrix(loader, t->shared_down, &layer->shared.down);
        add_matrix(loader, t->mtp.project, &layer->mtp_project);
    }
    add_matrix(loader, file->output, &loader->out->output);
    loader->first_expert = loader->n;
    for (int i = 0; i < dse_layers_used(&file->config); i++)
        if (file->layers[i].experts != NULL) add_experts(loader, &file->layers[i], &loader->out->layers[i]);
}

static enum dse_status allocate_experts(struct loader *loader, struct dse_error *err)
{
    const struct dse_config *config = &loader->file->config;
    const size_t experts = (size_t)config->moe.n_experts;
    size_t n = 0;
    for (int i = 0; i < dse_layers_used(config); i++)
        if (loader->file->layers[i].experts != NULL) n += experts;
    if (n == 0) return DSE_OK;
    loader->storage->experts = dse_calloc(DSE_MEM_MODEL, n, sizeof *loader->storage->experts);
    if (loader->storage->experts == NULL) return dse_fail_memory(err, n * sizeof(struct dse_expert), "the experts");
    struct dse_expert *next = loader->storage->experts;
    for (int i = 0; i < dse_layers_used(config); i++) {
        if (loader->file->layers[i].experts == NULL) continue;
        loader->out->layers[i].experts = next;
        next += experts;
    }
    return DSE_OK;
}

static enum dse_status plan_matrices(struct loader *loader, struct pack_plan *plan, struct dse_error *err)
{
    enum dse_status status = allocate_experts(loader, err);
    if (status != DSE_OK) return status;
    add_all(loader);
    loader->sources = dse_calloc(DSE_MEM_MODEL, loader->n, sizeof *loader->sources);
    loader->entries = dse_calloc(DSE_MEM_MODEL, loader->n, sizeof *loader->entries);
    if (loader->sources == NULL || loader->entries == NULL)
        return dse_fail_memory(err, loader->n * sizeof *loader->entries, "the table of matrices");
    add_all(loader);
    size_t bytes = 0;
    for (size_t i = 0; i < loader->n; i++) {
        const struct cpu_source *source = &loader->sources[i];
        const struct dse_tensor *tensor = source->tensor;
        status = check_decodable(tensor, err);
        if (status != DSE_OK) return status;
        struct cpu_packed_shape shape;
        size_t size, offset;
        if (!dse_cpu_source_shape(source, &shape) || !dse_mul_size(shape.matrix_bytes, shape.n_matrices, &size) ||
            !dse_align_size(bytes, i == loader->first_expert ? DSE_PACK_CHUNK_BYTES : MATRIX_ALIGN, &offset) ||
            !dse_add_size(offset, size, &bytes))
            return dse_fail_at(err, DSE_ERR_UNSUPPORTED, tensor->name, -1, "tensor %.100s [%zu, %zu] cannot be packed",
                               tensor->name, tensor->shape[0], tensor->shape[1]);
        loader->entries[i] = (struct pack_entry){.layout = (uint32_t)source->layout,
                                                 .source_type = (uint32_t)tensor->type,
                                                 .rows = shape.rows * shape.n_matrices,
                                                 .cols = shape.cols,
                                                 .offset = offset,
                                                 .bytes = size};
        loader->n_units += dse_cpu_source_units(source);
        size_t scratch = dse_cpu_source_scratch(source);
        if (scratch > loader->scratch_floats) loader->scratch_floats = scratch;
    }
    *plan = (struct pack_plan){
        .entries = loader->entries,
        .n_entries = loader->n,
        .data_bytes = bytes,
        .core_bytes = loader->first_expert < loader->n ? loader->entries[loader->first_expert].offset : bytes,
        .check_bytes = bytes};
    if (loader->scratch_floats == 0) return DSE_OK;
    size_t floats = 0;
    if (dse_mul_size(loader->scratch_floats, (size_t)dse_pool_threads(loader->pool), &floats) &&
        dse_mul_size(floats, sizeof(float), &floats))
        loader->scratch = dse_alloc_pages(DSE_MEM_MODEL, floats);
    return loader->scratch != NULL ? DSE_OK : dse_fail_memory(err, floats, "packing");
}

static void run_pack(void *context, int thread, int n_threads)
{
    (void)n_threads;
    struct loader *loader = context;
    float *scratch = loader->scratch != NULL ? loader->scratch + (size_t)thread * loader->scratch_floats : NULL;
    size_t i = 0, first_unit = 0; /* units ascend, so the search goes on where it was */
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&loader->next, 1, memory_order_relaxed), units;
        if (unit >= loader->n_units) return;
        while (units = dse_cpu_source_units(&loader->sources[i]), unit >= first_unit + units) {
            first_unit += units;
            i++;
        }
        dse_cpu_source_pack(&loader->sources[i], unit - first_unit, scratch, loader->data + loader->entries[i].offset);
    }
}

static void fill(void *context, uint8_t *data)
{
    struct loader *loader = context;
    loader->data = data;
    atomic_store(&loader->next, 0);
    dse_pool_run(loader->pool, run_pack, loader);
}

/* The system hands out pages that it does not have and kills who uses them: asked before, not found out. */
static enum dse_status check_memory(size_t bytes, const char *folder, struct dse_error *err)
{
    const struct dse_memory_limit limit = dse_cgroup_memory_limit("");
    const double mib = 1024.0 * 1024.0;
    if (bytes <= limit.available_bytes) return DSE_OK;
    (void)dse_fail(err, DSE_ERR_NO_MEMORY,
                   "the packed weights need %.1f MiB of memory, %.1f MiB are available (%s); %s", (double)bytes / mib,
                   (double)limit.available_bytes / mib, limit.reason,
                   folder != NULL ? "with a pack cache that can be written they would be mapped from disk"
                                  : "with --pack-cache they would be mapped from disk");
    if (err != NULL) {
        err->need = (int64_t)bytes;
        err->have = (int64_t)limit.available_bytes;
    }
    return DSE_ERR_NO_MEMORY;
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
        if (plan.data_bytes > dse_cgroup_memory_limit("").available_bytes) plan.check_bytes = plan.core_bytes;
        status = dse_pack_cache_open(folder, key, &plan, loader->pool, fill, loader, &storage->map, &built, &why);
        if (status == DSE_OK)
            data = storage->map.data;
        else
            dse_log(DSE_LOG_WARN, "device", "pack cache %s is not used, weights go into memory: %s", folder,
                    why.message);
    }
    if (data == NULL) {
        status = check_memory(plan.data_bytes, folder, err);
        if (status != DSE_OK) return status;
        storage->pages = dse_alloc_pages(DSE_MEM_MODEL, plan.data_bytes);
        if (storage->pages == NULL) return dse_fail_memory(err, plan.data_bytes, "packed weights");
        fill(loader, storage->pages);
        data = storage->pages;
        loader->out->resident_bytes = plan.data_bytes;
    }
    loader->out->storage_bytes = plan.data_bytes;
    loader->out->expert_bytes = plan.data_bytes - plan.core_bytes;
    for (size_t i = 0; i < loader->n; i++) {
        const struct cpu_source *source = &loader->sources[i];
        struct cpu_packed_shape shape;
        if (!dse_cpu_source_shape(source, &shape)) continue; /* it was planned: never */
        *source->matrix = (struct dse_matrix){.layout = source->layout,
                                              .source_type = source->tensor->type,
                                              .rows = shape.rows,
                                              .cols = shape.cols,
                                              .data = data + loader->entries[i].offset,
                                              .panel_bytes = dse_matrix_panel_bytes(source->layout, shape.cols)};
        if (source->head_bytes != NULL) *source->head_bytes = shape.matrix_bytes;
    }
    return DSE_OK;
}

enum dse_status dse_cpu_load(struct dse_device *device, const struct dse_model_file *file, bool f32,
                             const char *pack_cache, struct dse_device_weights *out, struct dse_error *err)
{
    struct cpu_state *state = device->state;
    struct loader loader = {.file = file, .f32 = f32, .out = out, .pool = device->pool};
    *out = (struct dse_device_weights){.config = &file->config, .token_embd = file->token_embd};
    const size_t n_layers = (size_t)dse_layers_used(&file->config);
    out->layers = dse_calloc(DSE_MEM_MODEL, n_layers, sizeof *out->layers);
    loader.storage = dse_calloc(DSE_MEM_MODEL, 1, sizeof *loader.storage);
    out->storage = loader.storage;
    enum dse_status status = DSE_OK;
    if (out->layers == NULL || out->storage == NULL)
        status = dse_fail_memory(err, n_layers * sizeof *out->layers, "the layers of the model");
    if (status == DSE_OK) status = check_decodable(file->token_embd, err);
    if (status == DSE_OK) status = load_vectors(&loader, err);
    if (status == DSE_OK) status = load_matrices(&loader, pack_cache, err);
    dse_free_pages(loader.scratch);
    dse_free(loader.sources);
    dse_free(loader.entries);
    state->angle_frequencies = NULL; /* may be a reused address */
    if (status != DSE_OK) dse_cpu_unload(device, out);
    return status;
}

bool dse_cpu_keep(struct dse_device *device, const struct dse_device_weights *weights)
{
    (void)device;
    const struct storage *storage = weights->storage;
    const size_t bytes = weights->storage_bytes - weights->expert_bytes;
    if (storage->map.data == NULL) return false;
    if (mlock(storage->map.data, bytes) == 0) return true;
    dse_log(DSE_LOG_WARN, "device",
            "the model is larger than the memory, and the %.1f MiB that every token needs cannot be locked in it (%s): "
            "raise the limit of locked memory (ulimit -l, LimitMEMLOCK)",
            (double)bytes / (1024.0 * 1024.0), strerror(errno));
    return false;
}

void dse_cpu_unload(struct dse_device *device, struct dse_device_weights *weights)
{
    struct storage *storage = weights->storage;
    if (storage != NULL) {
        dse_free_pages(storage->pages);
        dse_pack_map_close(&storage->map);
        dse_free(storage->experts);
        dse_free(storage->vectors);
        dse_free(storage);
    }
    dse_free(weights->layers);
    *weights = (struct dse_device_weights){0};
}

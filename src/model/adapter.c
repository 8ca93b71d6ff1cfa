/* Adapters against the model: which matrix a name means, whether its factors fit, the order of rows. The files
 * themselves are read by adapter_peft.c and adapter_gguf.c; nothing of the base model's data is touched.
 */
#include "model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/adapter_internal.h"
#include "model/weights_internal.h"

#define FIELD(name) offsetof(struct dse_layer_tensors, name)
static const size_t site_fields[DSE_SITE_COUNT] = {
    [DSE_SITE_Q] = FIELD(q),
    [DSE_SITE_K] = FIELD(k),
    [DSE_SITE_V] = FIELD(v),
    [DSE_SITE_O] = FIELD(o),
    [DSE_SITE_GATE] = FIELD(gate),
    [DSE_SITE_UP] = FIELD(up),
    [DSE_SITE_DOWN] = FIELD(down),
    [DSE_SITE_Q_A] = FIELD(q_a),
    [DSE_SITE_Q_B] = FIELD(q_b),
    [DSE_SITE_KV_A] = FIELD(kv_a),
    [DSE_SITE_SHARED_GATE] = FIELD(shared_gate),
    [DSE_SITE_SHARED_UP] = FIELD(shared_up),
    [DSE_SITE_SHARED_DOWN] = FIELD(shared_down),
};

static enum dse_status corrupt(const struct dse_adapter_builder *builder, const char *tensor, const char *what,
                               struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1, "%s: tensor '%.200s' %s", builder->path, tensor, what);
}

enum dse_status dse_adapter_refuse_name(const struct dse_adapter_builder *builder, const char *name,
                                        struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, builder->path, -1,
                       "%s: tensor '%.200s' is not the A or B of a matrix of a layer; adapters can add to the "
                       "projections of attention and of dense or shared feed-forward parts only, not to embeddings, "
                       "heads, routers or experts",
                       builder->path, name);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* "N." at *text: true, and *text behind it. No leading zeros; at most 9 digits, which an int64_t holds. */
static bool read_layer(const char **text, int64_t *layer)
{
    const char *p = *text;
    int64_t number = 0;
    int digits = 0;
    for (; *p >= '0' && *p <= '9' && digits < 9; p++, digits++)
        number = number * 10 + (*p - '0');
    if (digits == 0 || *p != '.' || (digits > 1 && **text == '0')) return false;
    *text = p + 1;
    *layer = number;
    return true;
}

/* The model's own tensor of that name and its site; NULL: the layer has none of that name. */
static const struct dse_tensor *find_matrix(const struct dse_adapter_builder *builder, int64_t layer,
                                            const char *module, size_t bytes, int *site)
{
    const struct dse_layer_tensors *tensors = &builder->base->layers[layer];
    size_t field;
    *site = DSE_SITE_COUNT;
    if (!dse_weights_layer_field(builder->gguf, module, bytes, &field)) return NULL;
    for (int s = 0; s < DSE_SITE_COUNT; s++)
        if (site_fields[s] == field) *site = s;
    return *(const struct dse_tensor *const *)(const void *)((const char *)tensors + field);
}

static enum dse_status check_factor(const struct dse_adapter_builder *builder, const struct dse_tensor *tensor,
                                    const struct dse_tensor *matrix, bool is_b, struct dse_error *err)
{
    const struct dse_type_info *info = dse_type_info(tensor->type);
    if (info == NULL || !info->decodable || tensor->type == DSE_TYPE_F8_E4M3)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, builder->path, -1,
                           "%s: tensor '%.200s' has a type that cannot be used here, expected F32, F16 or BF16",
                           builder->path, tensor->name);
    const size_t expected = matrix->shape[is_b ? 0 : 1];
    const size_t found = tensor->shape[is_b ? 0 : 1], rank = tensor->shape[is_b ? 1 : 0];
    if (tensor->n_dims != 2 || found != expected) {
        char shape[32];
        (void)snprintf(shape, sizeof shape, is_b ? "[%zu, rank]" : "[rank, %zu]", expected);
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' has %d dimensions, [%zu, %zu], this model asks for %s: is the adapter "
                           "for another model?",
                           builder->path, tensor->name, tensor->n_dims, tensor->shape[0], tensor->shape[1], shape);
    }
    if (rank == 0 || rank > DSE_MAX_ADAPTER_RANK)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' has the rank %zu, it must lie between 1 and %d", builder->path,
                           tensor->name, rank, DSE_MAX_ADAPTER_RANK);
    return DSE_OK;
}

static enum dse_status put(struct dse_adapter_builder *builder, const struct dse_tensor *tensor, int64_t layer,
                           const char *module, size_t module_bytes, bool is_b, struct dse_error *err)
{
    const struct dse_config *config = &builder->base->config;
    if (layer >= config->n_layers)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' is for layer %lld, the model has layers 0 to %d", builder->path,
                           tensor->name, (long long)layer, config->n_layers - 1);
    int site;
    const struct dse_tensor *matrix = find_matrix(builder, layer, module, module_bytes, &site);
    if (site == DSE_SITE_COUNT)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, builder->path, -1,
                           "%s: tensor '%.200s' is for '%.*s', which adapters cannot add to here", builder->path,
                           tensor->name, (int)(module_bytes < 64 ? module_bytes : 64), module);
    if (matrix == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' is for a matrix that layer %lld of this model (%s) does not have",
                           builder->path, tensor->name, (long long)layer, config->arch_name);
    enum dse_status status = check_factor(builder, tensor, matrix, is_b, err);
    if (status != DSE_OK) return status;
    struct dse_adapter_module *place = &builder->places[(size_t)layer * DSE_SITE_COUNT + (size_t)site];
    place->layer = (int)layer;
    place->site = (enum dse_adapter_site)site;
    const struct dse_tensor **factor = is_b ? &place->b : &place->a;
    if (*factor != NULL) return corrupt(builder, tensor->name, "is there twice", err);
    *factor = tensor;
    return DSE_OK;
}

enum dse_status dse_adapter_put(struct dse_adapter_builder *builder, const struct dse_tensor *tensor, const char *text,
                                const char *end_a, const char *end_b, struct dse_error *err)
{
    int64_t layer;
    if (!read_layer(&text, &layer)) return dse_adapter_refuse_name(builder, tensor->name, err);
    const bool is_a = ends_with(text, end_a), is_b = ends_with(text, end_b);
    const size_t bytes = strlen(text) - (is_a ? strlen(end_a) : is_b ? strlen(end_b) : 0);
    if ((!is_a && !is_b) || bytes == 0) return dse_adapter_refuse_name(builder, tensor->name, err);
    return put(builder, tensor, layer, text, bytes, is_b, err);
}

static enum dse_status check_pair(const struct dse_adapter_builder *builder, struct dse_adapter_module *place,
                                  struct dse_error *err)
{
    if (place->a == NULL)
        return corrupt(builder, place->b->name, "has no partner: the A of its matrix is missing", err);
    if (place->b == NULL)
        return corrupt(builder, place->a->name, "has no partner: the B of its matrix is missing", err);
    if (place->a->shape[0] != place->b->shape[1])
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' has the rank %zu, its partner '%.200s' %zu", builder->path,
                           place->a->name, place->a->shape[0], place->b->name, place->b->shape[1]);
    place->rank = (int)place->a->shape[0];
    return DSE_OK;
}

enum dse_status dse_adapter_pair(struct dse_adapter_builder *builder, struct dse_error *err)
{
    const size_t n_places = (size_t)builder->base->config.n_layers * DSE_SITE_COUNT;
    enum dse_status status = DSE_OK;
    for (size_t i = 0; i < n_places && status == DSE_OK; i++)
        if (builder->places[i].a != NULL || builder->places[i].b != NULL)
            status = check_pair(builder, &builder->places[i], err);
    return status;
}

enum dse_status dse_adapter_set_scale(const struct dse_adapter_builder *builder, struct dse_adapter_module *place,
                                      double alpha, double divisor, struct dse_error *err)
{
    place->scale = (float)(alpha / divisor);
    if (isfinite(place->scale)) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                       "%s: alpha %g makes the scale of tensor '%.200s' infinite or not a number", builder->path, alpha,
                       place->a->name);
}

static enum dse_status check_finite(const struct dse_adapter_builder *builder, const struct dse_tensor *tensor,
                                    struct dse_error *err)
{
    const size_t columns = tensor->shape[1], row_bytes = tensor->bytes / tensor->shape[0];
    enum dse_status status = DSE_OK;
    float *row = dse_calloc(DSE_MEM_MODEL, columns, sizeof *row);
    if (row == NULL) return dse_fail_memory(err, columns * sizeof *row, "a row of an adapter");
    for (size_t r = 0; r < tensor->shape[0] && status == DSE_OK; r++) {
        dse_type_decode(tensor->type, (const uint8_t *)tensor->data + r * row_bytes, row, columns);
        for (size_t c = 0; c < columns && status == DSE_OK; c++)
            if (!isfinite(row[c]))
                status = dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                                     "%s: tensor '%.200s' holds %g at [%zu, %zu], expected finite numbers",
                                     builder->path, tensor->name, (double)row[c], r, c);
    }
    dse_free(row);
    return status;
}

/* PEFT's files have halves of heads as Hugging Face does; GGUF's have pairs where the converter makes them. */
static void note_order(const struct dse_adapter_builder *builder, struct dse_adapter_module *place)
{
    const struct dse_config *config = &builder->base->config;
    const bool converted = config->arch == DSE_ARCH_LLAMA || config->arch == DSE_ARCH_DEEPSEEK;
    if (!converted || (place->site != DSE_SITE_Q && place->site != DSE_SITE_K)) return;
    const bool model_has_pairs = config->rope.pairs == DSE_ROPE_INTERLEAVED;
    if (model_has_pairs == builder->gguf) return;
    place->head_rows = (size_t)config->head_dim;
    place->to_pairs = model_has_pairs;
}

size_t dse_adapter_row(const struct dse_adapter_module *module, size_t row)
{
    const size_t d = module->head_rows;
    if (d == 0) return row;
    const size_t head = row / d * d, at = row % d;
    if (module->to_pairs) return head + (at < d / 2 ? 2 * at : 2 * (at - d / 2) + 1);
    return head + at / 2 + (at % 2 == 1 ? d / 2 : 0);
}

/* Places that were filled, checked, as the list of modules. */
static enum dse_status collect(struct dse_adapter_builder *builder, struct dse_error *err)
{
    struct dse_adapter_file *file = builder->file;
    const size_t n_places = (size_t)builder->base->config.n_layers * DSE_SITE_COUNT;
    size_t n = 0;
    for (size_t i = 0; i < n_places; i++) {
        struct dse_adapter_module *place = &builder->places[i];
        if (place->a == NULL || place->b == NULL) continue; /* both: pairs were checked */
        enum dse_status status = check_finite(builder, place->a, err);
        if (status == DSE_OK) status = check_finite(builder, place->b, err);
        if (status != DSE_OK) return status;
        note_order(builder, place);
        if (place->rank > file->max_rank) file->max_rank = place->rank;
        builder->places[n++] = *place;
    }
    if (n == 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1, "%s: the adapter holds no tensors", builder->path);
    file->modules = builder->places;
    file->n_modules = n;
    builder->places = NULL;
    return DSE_OK;
}

/* adapter_config.json of the folder that holds the file. */
static char *config_beside(const char *path)
{
    static const char name[] = "adapter_config.json";
    const char *slash = strrchr(path, '/');
    const size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    char *out = dse_alloc(DSE_MEM_MODEL, folder + sizeof name);
    if (out == NULL) return NULL;
    memcpy(out, path, folder);
    memcpy(out + folder, name, sizeof name);
    return out;
}

/* PEFT: the tensors' file and the configuration beside it; both owned. */
static enum dse_status peft_paths(const char *path, char **tensors, char **config, struct dse_error *err)
{
    const bool folder = dse_file_is_directory(path);
    *tensors = folder ? dse_path_join(path, "adapter_model.safetensors") : dse_strdup(DSE_MEM_MODEL, path);
    *config = folder ? dse_path_join(path, "adapter_config.json") : config_beside(path);
    if (*tensors == NULL || *config == NULL) return dse_fail_memory(err, strlen(path) + 32, "path");
    if (folder && !dse_file_exists(*tensors)) {
        char *pickle = dse_path_join(path, "adapter_model.bin");
        const bool has_pickle = pickle != NULL && dse_file_exists(pickle);
        dse_free(pickle);
        return dse_fail_at(err, has_pickle ? DSE_ERR_UNSUPPORTED : DSE_ERR_NOT_FOUND, path, -1,
                           has_pickle ? "%s: adapter_model.bin is a pickle, which could run code: save the adapter as "
                                        "safetensors"
                                      : "%s: adapter_model.safetensors is not in this folder",
                           path);
    }
    return DSE_OK;
}

static enum dse_status read_file(struct dse_adapter_builder *builder, const char *path, size_t max_bytes,
                                 struct dse_error *err)
{
    char *tensors = NULL, *config = NULL;
    enum dse_status status = DSE_OK;
    builder->gguf = !dse_file_is_directory(path) && !ends_with(path, ".safetensors");
    builder->path = path;
    if (!builder->gguf) {
        status = peft_paths(path, &tensors, &config, err);
        builder->path = tensors;
    }
    if (status == DSE_OK)
        status = builder->gguf ? dse_adapter_read_gguf(builder, max_bytes, err)
                               : dse_adapter_read_peft(builder, config, max_bytes, err);
    if (status == DSE_OK) status = collect(builder, err);
    dse_free(tensors);
    dse_free(config);
    return status;
}

enum dse_status dse_adapter_file_open(const char *path, const struct dse_model_file *base, size_t max_bytes,
                                      struct dse_adapter_file **out, struct dse_error *err)
{
    *out = NULL;
    if (path == NULL || path[0] == '\0') return dse_fail_at(err, DSE_ERR_INVALID, "path", -1, "no adapter is named");
    struct dse_adapter_builder builder = {.base = base};
    builder.file = dse_calloc(DSE_MEM_MODEL, 1, sizeof *builder.file);
    builder.places = dse_calloc(DSE_MEM_MODEL, (size_t)base->config.n_layers * DSE_SITE_COUNT, sizeof *builder.places);
    enum dse_status status = DSE_OK;
    if (builder.file == NULL || builder.places == NULL)
        status = dse_fail_memory(err, (size_t)base->config.n_layers * DSE_SITE_COUNT * sizeof *builder.places,
                                 "an adapter");
    if (status == DSE_OK) status = read_file(&builder, path, max_bytes, err);
    dse_free(builder.places);
    if (status != DSE_OK) {
        dse_adapter_file_close(builder.file);
        return status;
    }
    *out = builder.file;
    return DSE_OK;
}

void dse_adapter_file_close(struct dse_adapter_file *file)
{
    if (file == NULL) return;
    dse_gguf_close(file->gguf);
    dse_safetensors_close(file->safetensors);
    dse_free(file->modules);
    dse_free(file);
}

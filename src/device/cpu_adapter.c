/* Adapters on the CPU device: their factors packed like other matrices, in one block of memory. What is 16 bits wide
 * stays so, everything else becomes f32; either way the products are f32. Called through the op table by
 * engine/adapter.c, never while an op runs.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "device/cpu.h"

#define ALIGNMENT 64

static enum dse_layout layout_of(enum dse_type type)
{
    return type == DSE_TYPE_F16 ? DSE_LAYOUT_F16 : type == DSE_TYPE_BF16 ? DSE_LAYOUT_BF16 : DSE_LAYOUT_F32;
}

/* Adds the bytes of a factor; false on overflow. */
static bool count(const struct dse_tensor *tensor, size_t *bytes)
{
    size_t packed;
    return dse_matrix_packed_bytes(layout_of(tensor->type), tensor->shape[0], tensor->shape[1], &packed) &&
           dse_add_size(*bytes, packed, bytes) && dse_align_size(*bytes, ALIGNMENT, bytes);
}

/* Packs a factor at *at and moves on; rows of B go where the model has them. */
static void pack(const struct dse_adapter_module *module, const struct dse_tensor *tensor, uint8_t **at,
                 struct dse_matrix *matrix)
{
    const size_t rows = tensor->shape[0], cols = tensor->shape[1];
    const enum dse_layout layout = layout_of(tensor->type);
    size_t bytes = 0;
    *matrix = (struct dse_matrix){.layout = layout,
                                  .source_type = tensor->type,
                                  .rows = rows,
                                  .cols = cols,
                                  .data = *at,
                                  .panel_bytes = dse_matrix_panel_bytes(layout, cols)};
    if (tensor == module->b && module->head_rows > 0)
        for (size_t row = 0; row < rows; row++)
            dse_matrix_pack(tensor->type, tensor->data, cols, row, row + 1, layout, *at, dse_adapter_row(module, row));
    else
        dse_matrix_pack(tensor->type, tensor->data, cols, 0, rows, layout, *at, 0);
    (void)count(tensor, &bytes); /* it did not overflow before */
    *at += bytes;
}

/* Of the factors alone; false on overflow. */
static bool packed_bytes(const struct dse_adapter_file *file, size_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < file->n_modules; i++)
        if (!count(file->modules[i].a, bytes) || !count(file->modules[i].b, bytes)) return false;
    return true;
}

static size_t site_count(const struct dse_config *config)
{
    return (size_t)config->n_layers * DSE_SITE_COUNT;
}

uint64_t dse_cpu_adapter_bytes(const struct dse_device *device, const struct dse_config *config,
                               const struct dse_adapter_file *file)
{
    size_t bytes;
    (void)device;
    if (!packed_bytes(file, &bytes) || !dse_add_size(bytes, site_count(config) * sizeof(struct dse_low_rank), &bytes))
        return UINT64_MAX;
    return bytes;
}

enum dse_status dse_cpu_load_adapter(struct dse_device *device, const struct dse_config *config,
                                     const struct dse_adapter_file *file, struct dse_device_adapter *out,
                                     struct dse_error *err)
{
    const size_t n_sites = site_count(config);
    size_t packed;
    *out = (struct dse_device_adapter){0};
    if (!packed_bytes(file, &packed))
        return dse_fail(err, DSE_ERR_NO_MEMORY, "the adapter overflows the address space");
    out->sites = dse_calloc(DSE_MEM_MODEL, n_sites, sizeof *out->sites);
    out->storage = dse_alloc_pages(DSE_MEM_MODEL, packed);
    if (out->sites == NULL || out->storage == NULL) {
        dse_cpu_unload_adapter(device, out);
        return dse_fail_memory(err, packed, "an adapter");
    }
    uint8_t *at = out->storage;
    for (size_t i = 0; i < file->n_modules; i++) {
        const struct dse_adapter_module *module = &file->modules[i];
        struct dse_low_rank *site = &out->sites[(size_t)module->layer * DSE_SITE_COUNT + (size_t)module->site];
        site->scale = module->scale;
        pack(module, module->a, &at, &site->a);
        pack(module, module->b, &at, &site->b);
    }
    out->bytes = packed + n_sites * sizeof *out->sites;
    return DSE_OK;
}

void dse_cpu_unload_adapter(struct dse_device *device, struct dse_device_adapter *adapter)
{
    (void)device;
    dse_free(adapter->sites);
    if (adapter->storage != NULL) dse_free_pages(adapter->storage);
    *adapter = (struct dse_device_adapter){0};
}

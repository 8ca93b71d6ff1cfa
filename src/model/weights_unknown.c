/* GGUF tensors that nothing here reads. A runtime that ignores a bias, a scale or a router gives wrong text without a
 * word, so every tensor that opening did not take is refused by name. Called by weights.c, for every architecture
 * alike. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/weights_internal.h"

/* Ends of names. Inverse frequencies are computed from the configuration; prediction layers (nextn) come after the last
 * layer and do not take part in its result. */
static const char *const harmless[] = {"rope_freqs.weight", "rotary_emb.inv_freq", "attn_rot_embd.weight",
                                       "attn_rot_embd"};

static bool is_harmless(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        size_t tail = strlen(harmless[i]);
        if (length >= tail && strcmp(name + length - tail, harmless[i]) == 0) return true;
    }
    return strncmp(name, "blk.", 4) == 0 && strstr(name, ".nextn.") != NULL;
}

enum dse_status dse_weights_mark_none(struct dse_model_file *file, struct dse_error *err)
{
    size_t n = dse_gguf_tensor_count(file->gguf);
    file->is_taken = dse_calloc(DSE_MEM_MODEL, n + 1, sizeof *file->is_taken);
    return file->is_taken != NULL ? DSE_OK : dse_fail_memory(err, n + 1, "the tensor index");
}

void dse_weights_mark(struct dse_model_file *file, const struct dse_tensor *tensor)
{
    if (file->is_taken != NULL) file->is_taken[tensor - dse_gguf_tensor_at(file->gguf, 0)] = true;
}

enum dse_status dse_weights_refuse_unknown(const struct dse_model_file *file, struct dse_error *err)
{
    for (size_t i = 0; i < dse_gguf_tensor_count(file->gguf); i++) {
        const char *name = dse_gguf_tensor_at(file->gguf, i)->name;
        if (!file->is_taken[i] && !is_harmless(name))
            return dse_fail_at(
                err, DSE_ERR_UNSUPPORTED, file->path, -1,
                "%s: tensor '%s' is not part of architecture %s with %d layers as this version computes it", file->path,
                name, file->config.arch_name, file->config.n_layers);
    }
    return DSE_OK;
}

enum dse_status dse_model_file_status(enum dse_status status, struct dse_error *err)
{
    if (status != DSE_ERR_IO && status != DSE_ERR_INVALID) return status;
    if (err != NULL) err->status = DSE_ERR_UNSUPPORTED;
    return DSE_ERR_UNSUPPORTED;
}

bool dse_model_file_uses(const struct dse_model_file *file, const char *path)
{
    if (file->gguf != NULL) return dse_gguf_maps(file->gguf, path);
    if (dse_safetensors_maps(file->safetensors, path)) return true;
    /* Its configuration and tokenizer were read and closed, but they are not to be replaced either. */
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? dse_strdup(DSE_MEM_MISC, ".")
                                 : dse_strndup(DSE_MEM_MISC, path, (size_t)(slash - path) + 1);
    bool inside = folder != NULL && dse_file_exists(path) && dse_file_is_same(folder, file->path);
    dse_free(folder);
    return inside;
}

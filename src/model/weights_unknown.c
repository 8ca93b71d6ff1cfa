/* Tensors that nothing here reads. A runtime that ignores a bias, a scale, a router or a whole layer gives wrong text
 * without a word, so every tensor that opening did not take is refused by name. Called by weights.c, for every
 * architecture alike. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/config_internal.h"
#include "model/weights_internal.h"

static bool begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *name, const char *tail)
{
    size_t length = strlen(name), n = strlen(tail);
    return length >= n && strcmp(name + length - n, tail) == 0;
}

/* Inverse frequencies are computed from the configuration. */
static bool is_frequencies(const char *name)
{
    static const char *const tails[] = {"rope_freqs.weight", "rotary_emb.inv_freq", "attn_rot_embd.weight",
                                        "attn_rot_embd"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends(name, tails[i])) return true;
    return false;
}

/* Prediction layers come after the last layer and do not take part in its result. Any other layer there is one that the
 * configuration forgot. */
static bool is_prediction(const struct dse_model_file *file, const char *name)
{
    static const char prefix[] = "model.layers.";
    char *end;
    if (file->gguf != NULL) return begins(name, "blk.") && strstr(name, ".nextn.") != NULL;
    if (!begins(name, prefix)) return false;
    unsigned long layer = strtoul(name + sizeof prefix - 1, &end, 10);
    return *end == '.' && layer >= (unsigned long)file->config.n_layers && layer < DSE_MAX_LAYERS + DSE_MAX_MTP &&
           dse_weights_has_mtp(NULL, file->safetensors, (int)layer);
}

/* Of a folder: not in the language model; the copy of a head that is tied; scales, which were attached to their weight,
 * and that is known or refused itself. */
static bool is_beside(const char *name)
{
    static const char *const inside[] = {"model.layers.", "model.norm.", "model.embed_tokens.", "lm_head."};
    bool outside = true;
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        if (begins(name, inside[i])) outside = false;
    return outside || strcmp(name, "lm_head.weight") == 0 || ends(name, "_scale_inv");
}

static bool is_harmless(const struct dse_model_file *file, const char *name)
{
    return is_frequencies(name) || is_prediction(file, name) || (file->gguf == NULL && is_beside(name));
}

static size_t count(const struct dse_model_file *file)
{
    return file->gguf != NULL ? dse_gguf_tensor_count(file->gguf) : dse_safetensors_count(file->safetensors);
}

static const struct dse_tensor *tensor_at(const struct dse_model_file *file, size_t i)
{
    return file->gguf != NULL ? dse_gguf_tensor_at(file->gguf, i) : dse_safetensors_at(file->safetensors, i);
}

enum dse_status dse_weights_mark_none(struct dse_model_file *file, struct dse_error *err)
{
    size_t n = count(file);
    file->is_taken = dse_calloc(DSE_MEM_MODEL, n + 1, sizeof *file->is_taken);
    return file->is_taken != NULL ? DSE_OK : dse_fail_memory(err, n + 1, "the tensor index");
}

void dse_weights_mark(struct dse_model_file *file, const struct dse_tensor *tensor)
{
    file->is_taken[tensor - tensor_at(file, 0)] = true;
}

enum dse_status dse_weights_refuse_unknown(const struct dse_model_file *file, struct dse_error *err)
{
    for (size_t i = 0; i < count(file); i++) {
        const char *name = tensor_at(file, i)->name;
        if (!file->is_taken[i] && !is_harmless(file, name))
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

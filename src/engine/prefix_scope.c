/* Scopes of the prefix cache. Called by engine.c when it starts and when a request is submitted. */
#include "engine/prefix_scope.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sha256.h"
#include "device/pack_cache.h"
#include "device/pack_hash.h"

static void add(uint64_t identity[2], uint64_t word)
{
    identity[0] = pack_hash_step(identity[0], word);
    identity[1] = pack_hash_step(identity[1], word ^ 0xa5a5a5a5a5a5a5a5u);
}

/* Of a folder the weights are in the pack key; how they are used stands here. */
static void add_config(uint64_t identity[2], const char *folder)
{
    struct stat st;
    char *path = dse_path_join(folder, "config.json");
    if (path != NULL && stat(path, &st) == 0) {
        add(identity, (uint64_t)st.st_size);
        add(identity, (uint64_t)st.st_mtim.tv_sec);
        add(identity, (uint64_t)st.st_mtim.tv_nsec);
        add(identity, (uint64_t)st.st_ino);
    }
    dse_free(path);
}

void dse_prefix_model(const struct dse_model *model, uint64_t identity[2])
{
    const struct pack_plan nothing_packed = {0};
    const struct pack_key key = dse_pack_key_of(model->file, &nothing_packed);
    const struct dse_kv_layout *layout = &model->kv_layout;
    memcpy(identity, key.words, sizeof key.words);
    if (dse_file_is_directory(model->file->path)) add_config(identity, model->file->path);
    /* Another version may compute other last bits. */
    add(identity, pack_hash(DSE_VERSION, strlen(DSE_VERSION)));
    add(identity, model->f32);
    add(identity, model->file->config.latent.expand);
    add(identity, (uint64_t)layout->type);
    add(identity, (uint64_t)layout->n_layers);
    add(identity, layout->block_bytes);
}

void dse_prefix_salt(const void *cache_salt, size_t bytes, uint64_t salt[2])
{
    uint8_t digest[32];
    salt[0] = salt[1] = 0;
    if (bytes == 0) return;
    dse_sha256(cache_salt, bytes, digest);
    memcpy(salt, digest, 2 * sizeof *salt);
}

struct dse_prefix_scope dse_prefix_scope_of(const uint64_t model[2], const struct dse_request *request,
                                            const struct dse_adapter_set *adapters)
{
    struct dse_prefix_scope scope = {.model = {model[0], model[1]}, .adapter = dse_adapter_set_identity(adapters)};
    dse_prefix_salt(request->cache_salt, request->cache_salt_bytes, scope.salt);
    return scope;
}

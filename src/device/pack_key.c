/* The key of a pack cache file: which files a model was read from and what is packed from them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "device/pack_cache.h"
#include "device/pack_hash.h"

static void add(struct pack_key *key, uint64_t word)
{
    key->words[0] = pack_hash_step(key->words[0], word);
    key->words[1] = pack_hash_step(key->words[1], word ^ 0xa5a5a5a5a5a5a5a5u);
}

static void add_bytes(struct pack_key *key, const void *data, size_t bytes)
{
    add(key, pack_hash(data, bytes));
}

static void add_file(struct pack_key *key, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        add(key, 0);
        return;
    }
    add(key, (uint64_t)st.st_size);
    add(key, (uint64_t)st.st_mtim.tv_sec);
    add(key, (uint64_t)st.st_mtim.tv_nsec);
    add(key, (uint64_t)st.st_ino);
    add(key, (uint64_t)st.st_dev);
}

static int keep_weights(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name), m = strlen(".safetensors");
    return n > m && strcmp(entry->d_name + n - m, ".safetensors") == 0;
}

static void add_folder(struct pack_key *key, const char *folder)
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, keep_weights, alphasort);
    for (int i = 0; i < n; i++) {
        char *path = dse_path_join(folder, entries[i]->d_name);
        if (path != NULL) add_file(key, path);
        dse_free(path);
        (free)(entries[i]); /* scandir's own memory */
    }
    (free)(entries);
}

/* "…-00002-of-00005.gguf": all five; any other name: the file itself. */
static void add_shards(struct pack_key *key, const char *path)
{
    static const char pattern[] = "-00000-of-00000.gguf";
    size_t n = strlen(path), m = sizeof pattern - 1, count = 0;
    bool split = n > m;
    for (size_t i = 0; split && i < m; i++) {
        char c = path[n - m + i];
        split = pattern[i] == '0' ? c >= '0' && c <= '9' : c == pattern[i];
        if (split && i >= 10 && i < 15) count = count * 10 + (size_t)(c - '0');
    }
    char *shard = split ? dse_strdup(DSE_MEM_MISC, path) : NULL;
    if (shard == NULL) {
        add_file(key, path);
        return;
    }
    for (size_t i = 1; i <= count; i++) {
        char digits[24];
        snprintf(digits, sizeof digits, "%05zu", i);
        memcpy(shard + n - m + 1, digits, 5);
        add_file(key, shard);
    }
    dse_free(shard);
}

static void add_tensor(struct pack_key *key, const struct dse_tensor *tensor)
{
    if (tensor == NULL) return;
    /* both ends of the data, in case a file was rewritten in place with its time kept */
    size_t sample = tensor->bytes < 64 ? tensor->bytes : 64;
    add_bytes(key, tensor->name, strlen(tensor->name));
    add(key, (uint64_t)tensor->type);
    add(key, tensor->bytes);
    add_bytes(key, tensor->data, sample);
    add_bytes(key, (const uint8_t *)tensor->data + tensor->bytes - sample, sample);
    if (tensor->block_scales != NULL) add_bytes(key, tensor->block_scales, sizeof(float));
}

struct pack_key dse_pack_key_of(const struct dse_model_file *file, const struct pack_plan *plan)
{
    struct pack_key key = {{DSE_PACK_VERSION, ~(uint64_t)DSE_PACK_VERSION}};
    if (dse_file_is_directory(file->path))
        add_folder(&key, file->path);
    else
        add_shards(&key, file->path);
    for (int i = 0; i < dse_layers_used(&file->config); i++) {
        const struct dse_layer_tensors *layer = &file->layers[i];
        const struct dse_tensor *const used[] = {
            layer->q,           layer->k,           layer->v,         layer->o,
            layer->gate,        layer->up,          layer->down,      layer->q_a,
            layer->q_b,         layer->kv_a,        layer->kv_b.k_b,  layer->kv_b.v_b,
            layer->kv_b.joined, layer->indexer.q_b, layer->indexer.k, layer->indexer.weights,
            layer->router,      layer->shared_gate, layer->shared_up, layer->shared_down,
            layer->mtp.project};
        for (size_t t = 0; t < sizeof used / sizeof used[0]; t++)
            add_tensor(&key, used[t]);
        /* one expert stands for all: thousands of samples from a cold disk would cost seconds */
        if (layer->experts == NULL) continue;
        add_tensor(&key, &layer->experts[0].gate);
        add_tensor(&key, &layer->experts[0].up);
        add_tensor(&key, &layer->experts[0].down);
    }
    add_tensor(&key, file->output);
    add_bytes(&key, plan->entries, plan->n_entries * sizeof *plan->entries);
    add(&key, plan->data_bytes);
    return key;
}

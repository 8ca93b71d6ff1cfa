/* Opening and closing GGUF models: one file or the shards of a split one, merged into one sorted tensor index.
 *
 * The header of each file is read by gguf_parse.c. Shards are found by their name only, in the folder of the path that
 * was given; nothing inside a file can name another file.
 */
#include "model/gguf_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

const char *dse_printable(const char *data, size_t bytes, char out[64])
{
    size_t n = bytes < 63 ? bytes : 63;
    for (size_t i = 0; i < n; i++)
        out[i] = data[i] >= 0x20 && data[i] < 0x7F ? data[i] : '?';
    out[n] = '\0';
    return out;
}

static void close_shard(struct dse_gguf_shard *shard)
{
    dse_free(shard->tensors);
    dse_free(shard->by_key);
    dse_free(shard->values);
    dse_arena_deinit(&shard->names);
    dse_map_close(&shard->map);
    dse_free(shard->path);
    *shard = (struct dse_gguf_shard){.map = {.fd = -1}};
}

/* max_copy_bytes: read into memory, at most so large; 0: mapped */
static enum dse_status open_shard(const char *path, size_t max_copy_bytes, struct dse_gguf_shard *shard,
                                  struct dse_error *err)
{
    *shard = (struct dse_gguf_shard){.map = {.fd = -1}};
    shard->path = dse_strdup(DSE_MEM_MODEL, path);
    if (shard->path == NULL) return dse_fail_memory(err, strlen(path) + 1, "path");
    enum dse_status status = max_copy_bytes > 0 ? dse_map_read(path, max_copy_bytes, &shard->map, err)
                                                : dse_map_open(path, &shard->map, err);
    if (status == DSE_OK) status = dse_gguf_parse(shard, err);
    if (status != DSE_OK) close_shard(shard);
    return status;
}

/* An integer of this shard's own split.* keys; *out keeps its value if the key is absent. */
static enum dse_status split_number(const struct dse_gguf_shard *shard, const char *key, int64_t maximum, int64_t *out,
                                    struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_shard_value(shard, key);
    if (value == NULL) return DSE_OK;
    int64_t number = 0;
    if (!dse_gguf_value_i64(value, &number) || number < 0 || number > maximum)
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, value->data - shard->map.data,
                           "%s: key '%s' is not an integer from 0 to %lld", shard->path, key, (long long)maximum);
    *out = number;
    return DSE_OK;
}

/* Splits "…-00002-of-00003.gguf" into the length of what precedes the dash, 2 and 3. */
static bool shard_name(const char *path, size_t *prefix, int *number, int *count)
{
    static const char pattern[] = "-00000-of-00000.gguf";
    size_t length = strlen(path), tail = sizeof pattern - 1;
    if (length < tail) return false;
    const char *end = path + length - tail;
    for (size_t i = 0; i < tail; i++) {
        bool digit = end[i] >= '0' && end[i] <= '9';
        if (pattern[i] == '0' ? !digit : end[i] != pattern[i]) return false;
    }
    *prefix = length - tail;
    *number = (int)strtol(end + 1, NULL, 10);
    *count = (int)strtol(end + 10, NULL, 10);
    return true;
}

static enum dse_status check_split_keys(const struct dse_gguf_shard *shard, size_t number, size_t count,
                                        struct dse_error *err)
{
    int64_t no = -1, n = -1;
    enum dse_status status = split_number(shard, "split.no", DSE_GGUF_MAX_SHARDS, &no, err);
    if (status == DSE_OK) status = split_number(shard, "split.count", DSE_GGUF_MAX_SHARDS, &n, err);
    if (status != DSE_OK) return status;
    if (n != (int64_t)count)
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, -1,
                           "%s: split.count is %lld, but the first shard and the file names say %zu", shard->path,
                           (long long)n, count);
    if (no != (int64_t)number)
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, -1,
                           "%s: split.no is %lld, expected %zu: shards are renamed or reordered", shard->path,
                           (long long)no, number);
    return DSE_OK;
}

/* The metadata of the first shard counts. A later one rarely repeats the architecture; if it does, it must be the
 * same. */
static enum dse_status check_architecture(const struct dse_gguf_shard *first, const struct dse_gguf_shard *shard,
                                          struct dse_error *err)
{
    static const char key[] = "general.architecture";
    const struct dse_gguf_value *a = dse_gguf_shard_value(first, key), *b = dse_gguf_shard_value(shard, key);
    if (b == NULL ||
        (a != NULL && a->type == b->type && a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0))
        return DSE_OK;
    return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, b->data - shard->map.data,
                       "%s: %s is not that of the first shard: the shards are of different models", shard->path, key);
}

/* gguf->shards[0] holds the file that was given. Replaces it by all shards in order. */
static enum dse_status open_other_shards(struct dse_gguf *gguf, int64_t count, struct dse_error *err)
{
    size_t prefix = 0;
    int number = 0, named_count = 0;
    const char *path = gguf->shards[0].path;
    if (!shard_name(path, &prefix, &number, &named_count) || named_count != (int)count || number < 1 || number > count)
        return dse_fail_at(err, DSE_ERR_CORRUPT, path, -1,
                           "%s: split.count is %lld, so the file must be named like NAME-00001-of-%05lld.gguf", path,
                           (long long)count, (long long)count);
    char *name = dse_alloc(DSE_MEM_MODEL, strlen(path) + 1);
    struct dse_gguf_shard *shards = dse_calloc(DSE_MEM_MODEL, (size_t)count, sizeof *shards);
    enum dse_status status = DSE_OK;
    if (name == NULL || shards == NULL) {
        dse_free(shards);
        status = dse_fail_memory(err, (size_t)count * sizeof *shards, "shards");
        goto out;
    }
    struct dse_gguf_shard given = gguf->shards[0];
    dse_free(gguf->shards);
    gguf->shards = shards;
    gguf->n_shards = 0;
    for (int64_t i = 0; i < count && status == DSE_OK; i++) {
        if (i == number - 1) {
            shards[i] = given;
        } else {
            snprintf(name, strlen(given.path) + 1, "%.*s-%05lld-of-%05lld.gguf", (int)prefix, given.path,
                     (long long)i + 1, (long long)count);
            status = open_shard(name, 0, &shards[i], err);
            if (status == DSE_ERR_NOT_FOUND)
                dse_fail_at(err, status, name, -1, "%s: shard %lld of %lld is missing", name, (long long)i + 1,
                            (long long)count);
            if (status != DSE_OK) {
                /* The given file moves in when its turn comes; before that it is closed here. */
                if (i < number - 1) close_shard(&given);
                break;
            }
        }
        gguf->n_shards = (size_t)i + 1;
        status = check_split_keys(&shards[i], (size_t)i, (size_t)count, err);
        if (status != DSE_OK && i < number - 1) close_shard(&given);
    }
out:
    dse_free(name);
    return status;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct dse_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum dse_status index_tensors(struct dse_gguf *gguf, struct dse_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < gguf->n_shards; i++)
        n += gguf->shards[i].n_tensors;
    gguf->tensors = dse_calloc(DSE_MEM_MODEL, n + 1, sizeof *gguf->tensors);
    gguf->by_name = dse_calloc(DSE_MEM_MODEL, n + 1, sizeof *gguf->by_name);
    if (gguf->tensors == NULL || gguf->by_name == NULL)
        return dse_fail_memory(err, n * (sizeof *gguf->tensors + sizeof *gguf->by_name), "the tensor index");
    for (size_t i = 0; i < gguf->n_shards; i++) {
        struct dse_gguf_shard *shard = &gguf->shards[i];
        if (shard->n_tensors > 0)
            memcpy(gguf->tensors + gguf->n_tensors, shard->tensors, shard->n_tensors * sizeof *shard->tensors);
        gguf->n_tensors += shard->n_tensors;
        dse_free(shard->tensors);
        shard->tensors = NULL;
    }
    for (size_t i = 0; i < n; i++)
        gguf->by_name[i] = &gguf->tensors[i];
    qsort(gguf->by_name, n, sizeof *gguf->by_name, compare_tensors);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(gguf->by_name[i - 1]->name, gguf->by_name[i]->name) == 0)
            return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1, "%s: tensor '%s' appears twice",
                               dse_gguf_path(gguf), gguf->by_name[i]->name);
    }
    return DSE_OK;
}

static enum dse_status open_file(const char *path, size_t max_copy_bytes, struct dse_gguf **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_gguf *gguf = dse_calloc(DSE_MEM_MODEL, 1, sizeof *gguf);
    if (gguf == NULL) return dse_fail_memory(err, sizeof *gguf, "GGUF file");
    int64_t count = 1, total = -1;
    enum dse_status status;
    gguf->shards = dse_calloc(DSE_MEM_MODEL, 1, sizeof *gguf->shards);
    if (gguf->shards == NULL) {
        status = dse_fail_memory(err, sizeof *gguf->shards, "GGUF file");
        goto fail;
    }
    if ((status = open_shard(path, max_copy_bytes, &gguf->shards[0], err)) != DSE_OK) goto fail;
    gguf->n_shards = 1;
    if ((status = split_number(&gguf->shards[0], "split.count", DSE_GGUF_MAX_SHARDS, &count, err)) != DSE_OK) goto fail;
    if (count > 1 && max_copy_bytes > 0) {
        status = dse_fail_at(err, DSE_ERR_UNSUPPORTED, path, -1, "%s: split.count is %lld, expected one whole file",
                             path, (long long)count);
        goto fail;
    }
    if (count > 1 && (status = open_other_shards(gguf, count, err)) != DSE_OK) goto fail;
    for (size_t i = 1; i < gguf->n_shards; i++)
        if ((status = check_architecture(&gguf->shards[0], &gguf->shards[i], err)) != DSE_OK) goto fail;
    if ((status = index_tensors(gguf, err)) != DSE_OK) goto fail;
    status = split_number(&gguf->shards[0], "split.tensors.count", DSE_GGUF_MAX_TENSORS, &total, err);
    if (status != DSE_OK) goto fail;
    if (count > 1 && total >= 0 && (size_t)total != gguf->n_tensors) {
        status = dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1,
                             "%s: split.tensors.count is %lld, but the shards hold %zu tensors", dse_gguf_path(gguf),
                             (long long)total, gguf->n_tensors);
        goto fail;
    }
    *out = gguf;
    return DSE_OK;
fail:
    dse_gguf_close(gguf);
    return status;
}

enum dse_status dse_gguf_open(const char *path, struct dse_gguf **out, struct dse_error *err)
{
    return open_file(path, 0, out, err);
}

enum dse_status dse_gguf_read(const char *path, size_t max_bytes, struct dse_gguf **out, struct dse_error *err)
{
    return open_file(path, max_bytes, out, err);
}

void dse_gguf_close(struct dse_gguf *gguf)
{
    if (gguf == NULL) return;
    for (size_t i = 0; i < gguf->n_shards; i++)
        close_shard(&gguf->shards[i]);
    dse_free(gguf->shards);
    dse_free(gguf->by_name);
    dse_free(gguf->tensors);
    dse_free(gguf);
}

size_t dse_gguf_tensor_count(const struct dse_gguf *gguf)
{
    return gguf->n_tensors;
}

const struct dse_tensor *dse_gguf_tensor_at(const struct dse_gguf *gguf, size_t index)
{
    return index < gguf->n_tensors ? &gguf->tensors[index] : NULL;
}

const struct dse_tensor *dse_gguf_tensor(const struct dse_gguf *gguf, const char *name)
{
    const struct dse_tensor wanted = {.name = name}, *key = &wanted;
    const struct dse_tensor **found = bsearch(&key, gguf->by_name, gguf->n_tensors, sizeof *gguf->by_name,
                                              compare_tensors);
    return found != NULL ? *found : NULL;
}

size_t dse_gguf_value_count(const struct dse_gguf *gguf)
{
    return gguf->shards[0].n_values;
}

const struct dse_gguf_value *dse_gguf_value_at(const struct dse_gguf *gguf, size_t index)
{
    return index < gguf->shards[0].n_values ? &gguf->shards[0].values[index] : NULL;
}

const struct dse_gguf_value *dse_gguf_value(const struct dse_gguf *gguf, const char *key)
{
    return dse_gguf_shard_value(&gguf->shards[0], key);
}

const char *dse_gguf_path(const struct dse_gguf *gguf)
{
    return gguf->shards[0].path;
}

bool dse_gguf_intact(const struct dse_gguf *gguf)
{
    for (size_t i = 0; i < gguf->n_shards; i++) {
        if (!dse_map_intact(&gguf->shards[i].map)) return false;
    }
    return true;
}

bool dse_gguf_maps(const struct dse_gguf *gguf, const char *path)
{
    for (size_t i = 0; i < gguf->n_shards; i++) {
        if (dse_map_is_of(&gguf->shards[i].map, path)) return true;
    }
    return false;
}

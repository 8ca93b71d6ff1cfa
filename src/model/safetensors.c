/* Reader of safetensors: 8 bytes of header length, a JSON header, data. One file, or the shards that
 * model.safetensors.index.json lists.
 *
 * The header is untrusted: lengths, shapes and offsets are checked against the file, tensors must fill the data section
 * without gaps or overlap, and shard names must be plain file names of the same folder. Data is never touched.
 */
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "model/model_json.h"
#include "model/safetensors_internal.h"

/* The format's own limit. */
#define MAX_HEADER_BYTES (100u << 20)
#define MAX_INDEX_BYTES  (64u << 20)
#define MAX_SHARDS       4096
#define MAX_NAME_BYTES   255

const struct dse_safetensors_dtype dse_safetensors_dtypes[] = {
    {"F32", 4, DSE_TYPE_F32},
    {"F16", 2, DSE_TYPE_F16},
    {"BF16", 2, DSE_TYPE_BF16},
    {"F64", 8, DSE_TYPE_F64},
    {"I8", 1, DSE_TYPE_I8},
    {"I16", 2, DSE_TYPE_I16},
    {"I32", 4, DSE_TYPE_I32},
    {"I64", 8, DSE_TYPE_I64},
    {"U8", 1, DSE_TYPE_UNREADABLE},
    {"U16", 2, DSE_TYPE_UNREADABLE},
    {"U32", 4, DSE_TYPE_UNREADABLE},
    {"U64", 8, DSE_TYPE_UNREADABLE},
    {"BOOL", 1, DSE_TYPE_UNREADABLE},
    {"F8_E4M3", 1, DSE_TYPE_F8_E4M3},
    {"F8_E5M2", 1, DSE_TYPE_UNREADABLE},
    {"F8_E8M0", 1, DSE_TYPE_UNREADABLE},
    {"C64", 8, DSE_TYPE_UNREADABLE},
};
const int dse_safetensors_n_dtypes = sizeof dse_safetensors_dtypes / sizeof *dse_safetensors_dtypes;

struct shard {
    char *path;
    struct dse_map map;
    json_t *header; /* owns the tensor names and dtype texts */
};

struct dse_safetensors {
    struct shard *shards;
    size_t n_shards;
    struct dse_tensor *tensors;
    const char **dtypes; /* parallel to tensors */
    const struct dse_tensor **by_name;
    size_t n_tensors;
    json_t *index;         /* NULL for a single file */
    size_t max_copy_bytes; /* shards are read into memory, at most so large; 0: they are mapped */
};

static enum dse_status corrupt_tensor(struct dse_error *err, const struct shard *shard, const char *name,
                                      const char *what)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, -1, "%s: tensor '%.200s': %s", shard->path, name, what);
}

static bool read_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

static enum dse_status read_dtype(const struct shard *shard, const char *name, const json_t *entry,
                                  const struct dse_safetensors_dtype **out, struct dse_error *err)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    if (text == NULL) return corrupt_tensor(err, shard, name, "dtype is missing or not a string");
    for (int i = 0; i < dse_safetensors_n_dtypes; i++) {
        if (strcmp(text, dse_safetensors_dtypes[i].name) == 0) {
            *out = &dse_safetensors_dtypes[i];
            return DSE_OK;
        }
    }
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, shard->path, -1, "%s: tensor '%.200s' has the unknown dtype '%.32s'",
                       shard->path, name, text);
}

/* One member of the header; room is the size of the data section. begin and end are returned for the check of gaps. */
static enum dse_status read_tensor(const struct shard *shard, const char *name, const json_t *entry, size_t data_start,
                                   struct dse_tensor *tensor, const char **dtype_name, struct dse_error *err)
{
    const struct dse_safetensors_dtype *dtype = NULL;
    if (!json_is_object(entry)) return corrupt_tensor(err, shard, name, "its entry is not an object");
    if (strlen(name) == 0 || strlen(name) > MAX_NAME_BYTES)
        return corrupt_tensor(err, shard, name, "its name must have 1 to 255 bytes");
    enum dse_status status = read_dtype(shard, name, entry, &dtype, err);
    if (status != DSE_OK) return status;
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(shape)) return corrupt_tensor(err, shard, name, "shape is missing or not an array");
    if (json_array_size(shape) > DSE_TENSOR_MAX_DIMS)
        return corrupt_tensor(err, shard, name, "shape has more than 4 dimensions");
    *tensor = (struct dse_tensor){.name = name, .type = dtype->type, .n_dims = (int)json_array_size(shape)};
    size_t bytes = (size_t)dtype->bytes;
    for (int i = 0; i < DSE_TENSOR_MAX_DIMS; i++) {
        tensor->shape[i] = 1;
        if (i >= tensor->n_dims) continue;
        if (!read_size(json_array_get(shape, (size_t)i), &tensor->shape[i]))
            return corrupt_tensor(err, shard, name, "shape holds something other than non-negative integers");
        if (!dse_mul_size(bytes, tensor->shape[i], &bytes))
            return corrupt_tensor(err, shard, name, "the size of its shape overflows");
    }
    size_t begin, end;
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &begin) ||
        !read_size(json_array_get(offsets, 1), &end))
        return corrupt_tensor(err, shard, name, "data_offsets is not a pair of non-negative integers");
    size_t room = shard->map.bytes - data_start;
    if (begin > end) return corrupt_tensor(err, shard, name, "data_offsets are reversed");
    if (end > room) {
        status = dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, -1,
                             "%s: tensor '%.200s' ends at byte %zu of the data, but there are %zu: %zu bytes are "
                             "missing, the file is truncated or damaged",
                             shard->path, name, end, room, end - room);
        if (err != NULL) {
            err->need = (int64_t)(end - room);
            err->have = (int64_t)shard->map.bytes;
        }
        return status;
    }
    if (end - begin != bytes)
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, -1,
                           "%s: tensor '%.200s': data_offsets span %zu bytes, its shape and dtype need %zu",
                           shard->path, name, end - begin, bytes);
    tensor->bytes = bytes;
    tensor->data = shard->map.data + data_start + begin;
    *dtype_name = dtype->name;
    return DSE_OK;
}

static int compare_data(const void *a, const void *b)
{
    const struct dse_tensor *x = *(const struct dse_tensor *const *)a, *y = *(const struct dse_tensor *const *)b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return (p > q) - (p < q);
    /* Empty tensors share their offset with the next one. */
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The data section must be filled exactly: anything else hides bytes or shares them. */
static enum dse_status check_gaps(const struct shard *shard, const struct dse_tensor *tensors, size_t n,
                                  size_t data_start, struct dse_error *err)
{
    const struct dse_tensor **order = dse_calloc(DSE_MEM_MODEL, n + 1, sizeof *order);
    if (order == NULL) return dse_fail_memory(err, n * sizeof *order, "tensor order");
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, n, sizeof *order, compare_data);
    enum dse_status status = DSE_OK;
    size_t at = data_start;
    for (size_t i = 0; i < n && status == DSE_OK; i++) {
        size_t begin = (size_t)((const uint8_t *)order[i]->data - shard->map.data);
        if (begin < at)
            status = corrupt_tensor(err, shard, order[i]->name, "its data overlaps another tensor");
        else if (begin > at)
            status = corrupt_tensor(err, shard, order[i]->name, "there is a gap before its data");
        at = begin + order[i]->bytes;
    }
    if (status == DSE_OK && at != shard->map.bytes)
        status = dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, (int64_t)at,
                             "%s: %zu bytes follow the last tensor (at byte %zu)", shard->path, shard->map.bytes - at,
                             at);
    dse_free(order);
    return status;
}

static enum dse_status parse_header(struct shard *shard, size_t *data_start, struct dse_error *err)
{
    const uint8_t *data = shard->map.data;
    size_t bytes = shard->map.bytes;
    uint64_t length = 0;
    if (bytes < 8)
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, 0,
                           "%s: not a safetensors file: %zu bytes are too few for its header length", shard->path,
                           bytes);
    memcpy(&length, data, 8);
    if (length > bytes - 8) {
        const char *hint = data[0] == '<' ? "; it looks like a web page, download it again" : "";
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, 0,
                           "%s: the header length %llu is more than the file holds (%zu bytes)%s", shard->path,
                           (unsigned long long)length, bytes, hint);
    }
    if (length > MAX_HEADER_BYTES)
        return dse_fail_at(err, DSE_ERR_LIMIT, shard->path, 0, "%s: the header length %llu is above the limit of %u",
                           shard->path, (unsigned long long)length, MAX_HEADER_BYTES);
    if (length < 2 || data[8] != '{')
        return dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, 8,
                           "%s: not a safetensors file: its header (%llu bytes) is not a JSON object", shard->path,
                           (unsigned long long)length);
    *data_start = 8 + (size_t)length;
    enum dse_status status = dse_model_json_parse((const char *)data + 8, (size_t)length, shard->path, &shard->header,
                                                  err);
    if (status == DSE_OK && !json_is_object(shard->header))
        status = dse_fail_at(err, DSE_ERR_CORRUPT, shard->path, 8, "%s: the header is not a JSON object", shard->path);
    return status;
}

/* Appends the tensors of a shard to file. */
static enum dse_status read_shard(struct dse_safetensors *file, const char *path, struct dse_error *err)
{
    struct shard *shard = &file->shards[file->n_shards++];
    *shard = (struct shard){.map = {.fd = -1}};
    shard->path = dse_strdup(DSE_MEM_MODEL, path);
    if (shard->path == NULL) return dse_fail_memory(err, strlen(path) + 1, "path");
    size_t data_start = 0;
    enum dse_status status = file->max_copy_bytes > 0 ? dse_map_read(path, file->max_copy_bytes, &shard->map, err)
                                                      : dse_map_open(path, &shard->map, err);
    if (status == DSE_OK) status = parse_header(shard, &data_start, err);
    if (status != DSE_OK) return status;
    size_t n = file->n_tensors + json_object_size(shard->header);
    struct dse_tensor *tensors = dse_realloc(DSE_MEM_MODEL, file->tensors, (n + 1) * sizeof *tensors);
    if (tensors != NULL) file->tensors = tensors;
    const char **dtypes = dse_realloc(DSE_MEM_MODEL, file->dtypes, (n + 1) * sizeof *dtypes);
    if (dtypes != NULL) file->dtypes = dtypes;
    if (tensors == NULL || dtypes == NULL) return dse_fail_memory(err, n * sizeof *tensors, "the tensor table");
    size_t first = file->n_tensors;
    const char *name;
    json_t *entry;
    json_object_foreach(shard->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(entry))
                return dse_fail_at(err, DSE_ERR_CORRUPT, path, 8, "%s: __metadata__ is not an object", path);
            continue;
        }
        status = read_tensor(shard, name, entry, data_start, &tensors[file->n_tensors], &dtypes[file->n_tensors], err);
        if (status != DSE_OK) return status;
        file->n_tensors++;
    }
    return check_gaps(shard, tensors + first, file->n_tensors - first, data_start, err);
}

static int compare_names(const void *a, const void *b)
{
    const struct dse_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum dse_status build_index(struct dse_safetensors *file, struct dse_error *err)
{
    file->by_name = dse_calloc(DSE_MEM_MODEL, file->n_tensors + 1, sizeof *file->by_name);
    if (file->by_name == NULL) return dse_fail_memory(err, file->n_tensors * sizeof *file->by_name, "tensor index");
    for (size_t i = 0; i < file->n_tensors; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->n_tensors, sizeof *file->by_name, compare_names);
    for (size_t i = 1; i < file->n_tensors; i++) {
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0)
            return corrupt_tensor(err, &file->shards[0], file->by_name[i]->name, "it appears in two shards");
    }
    return DSE_OK;
}

/* A name from index.json may only mean a file of the same folder. */
static bool is_plain_file_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length <= 255 && name[0] != '.' && strpbrk(name, "/\\") == NULL;
}

static enum dse_status open_indexed(struct dse_safetensors *file, const char *folder, const char *index_path,
                                    struct dse_error *err)
{
    enum dse_status status = dse_model_json_read(index_path, MAX_INDEX_BYTES, &file->index, err);
    if (status != DSE_OK) return status;
    const json_t *map = json_object_get(file->index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, index_path, -1, "%s: weight_map is missing, empty or not an object",
                           index_path);
    json_t *opened = json_object();
    if (opened == NULL) return dse_fail_memory(err, 64, "shard names");
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || strlen(name) != json_string_length(value) || !is_plain_file_name(name)) {
            status = dse_fail_at(err, DSE_ERR_CORRUPT, index_path, -1,
                                 "%s: weight_map of tensor '%.100s' names '%.100s', which is not a plain file name",
                                 index_path, tensor, name != NULL ? name : "(no string)");
            break;
        }
        if (json_object_get(opened, name) != NULL) continue;
        if (file->n_shards == MAX_SHARDS) {
            status = dse_fail_at(err, DSE_ERR_LIMIT, index_path, -1, "%s: more than %d shards", index_path, MAX_SHARDS);
            break;
        }
        struct shard *shards = dse_realloc(DSE_MEM_MODEL, file->shards, (file->n_shards + 1) * sizeof *shards);
        if (shards != NULL) file->shards = shards;
        char *path = dse_path_join(folder, name);
        if (shards == NULL || path == NULL || json_object_set_new(opened, name, json_true()) != 0)
            status = dse_fail_memory(err, sizeof *shards, "shards");
        else
            status = read_shard(file, path, err);
        if (status == DSE_ERR_NOT_FOUND)
            dse_fail_at(err, status, path, -1, "%s: the shard is missing; %s names it for tensor '%.100s'", path,
                        index_path, tensor);
        dse_free(path);
        if (status != DSE_OK) break;
    }
    json_decref(opened);
    if (status != DSE_OK || (status = build_index(file, err)) != DSE_OK) return status;
    json_object_foreach((json_t *)map, tensor, value)
    {
        if (dse_safetensors_tensor(file, tensor) == NULL)
            return dse_fail_at(err, DSE_ERR_CORRUPT, index_path, -1, "%s: tensor '%.200s' is not in any shard (%s)",
                               index_path, tensor, json_string_value(value));
    }
    return DSE_OK;
}

static enum dse_status open_folder(struct dse_safetensors *file, const char *folder, struct dse_error *err)
{
    char *single = dse_path_join(folder, "model.safetensors");
    char *index = dse_path_join(folder, "model.safetensors.index.json");
    enum dse_status status;
    if (single == NULL || index == NULL) {
        status = dse_fail_memory(err, strlen(folder) + 32, "path");
    } else if (dse_file_exists(single) || !dse_file_exists(index)) {
        status = read_shard(file, single, err);
        if (status == DSE_ERR_NOT_FOUND)
            dse_fail_at(err, status, folder, -1,
                        "%s: neither model.safetensors nor model.safetensors.index.json is in this folder", folder);
        if (status == DSE_OK) status = build_index(file, err);
    } else {
        status = open_indexed(file, folder, index, err);
    }
    dse_free(single);
    dse_free(index);
    return status;
}

static enum dse_status open_file(const char *path, size_t max_copy_bytes, struct dse_safetensors **out,
                                 struct dse_error *err)
{
    *out = NULL;
    struct dse_safetensors *file = dse_calloc(DSE_MEM_MODEL, 1, sizeof *file);
    if (file == NULL) return dse_fail_memory(err, sizeof *file, "safetensors file");
    enum dse_status status;
    file->max_copy_bytes = max_copy_bytes;
    file->shards = dse_calloc(DSE_MEM_MODEL, 1, sizeof *file->shards);
    if (file->shards == NULL) {
        status = dse_fail_memory(err, sizeof *file->shards, "safetensors file");
    } else if (max_copy_bytes == 0 && dse_file_is_directory(path)) {
        status = open_folder(file, path, err);
    } else {
        status = read_shard(file, path, err);
        if (status == DSE_OK) status = build_index(file, err);
    }
    if (status != DSE_OK) {
        dse_safetensors_close(file);
        return status;
    }
    *out = file;
    return DSE_OK;
}

enum dse_status dse_safetensors_open(const char *path, struct dse_safetensors **out, struct dse_error *err)
{
    return open_file(path, 0, out, err);
}

enum dse_status dse_safetensors_read(const char *path, size_t max_bytes, struct dse_safetensors **out,
                                     struct dse_error *err)
{
    return open_file(path, max_bytes, out, err);
}

void dse_safetensors_close(struct dse_safetensors *file)
{
    if (file == NULL) return;
    for (size_t i = 0; i < file->n_shards; i++) {
        json_decref(file->shards[i].header);
        dse_map_close(&file->shards[i].map);
        dse_free(file->shards[i].path);
    }
    json_decref(file->index);
    dse_free(file->shards);
    dse_free(file->tensors);
    dse_free(file->dtypes);
    dse_free(file->by_name);
    dse_free(file);
}

size_t dse_safetensors_count(const struct dse_safetensors *file)
{
    return file->n_tensors;
}

const struct dse_tensor *dse_safetensors_at(const struct dse_safetensors *file, size_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

const struct dse_tensor *dse_safetensors_tensor(const struct dse_safetensors *file, const char *name)
{
    const struct dse_tensor wanted = {.name = name}, *key = &wanted;
    const struct dse_tensor **found = bsearch(&key, file->by_name, file->n_tensors, sizeof *file->by_name,
                                              compare_names);
    return found != NULL ? *found : NULL;
}

const char *dse_safetensors_dtype(const struct dse_safetensors *file, const struct dse_tensor *tensor)
{
    return file->dtypes[tensor - file->tensors];
}

void dse_safetensors_set_scales(struct dse_safetensors *file, size_t index, const void *scales)
{
    file->tensors[index].block_scales = scales;
}

bool dse_safetensors_intact(const struct dse_safetensors *file)
{
    for (size_t i = 0; i < file->n_shards; i++) {
        if (!dse_map_intact(&file->shards[i].map)) return false;
    }
    return true;
}

bool dse_safetensors_maps(const struct dse_safetensors *file, const char *path)
{
    for (size_t i = 0; i < file->n_shards; i++) {
        if (dse_map_is_of(&file->shards[i].map, path)) return true;
    }
    return false;
}

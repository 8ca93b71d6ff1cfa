/* The list of loaded adapters (see adapters.h). */
#include "server/adapters.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/adapter.h"
#include "server/params.h"

struct entry {
    char *name, *path; /* path: as it was given */
    struct dse_adapter *adapter;
    float scale;
    int64_t id, created;
};

struct dse_adapter_list {
    char *root; /* resolved; NULL: clients load nothing */
    pthread_mutex_t lock;
    int max_rank;                                  /* of a request's adapters together; 0: not known yet */
    struct entry entries[DSE_MAX_LOADED_ADAPTERS]; /* by id */
    int count;
    int64_t next_id;
};

static void entry_deinit(struct entry *entry)
{
    dse_free(entry->name);
    dse_free(entry->path);
    dse_adapter_unref(entry->adapter);
}

enum dse_status dse_adapter_list_create(const char *root, struct dse_adapter_list **out, struct dse_error *err)
{
    char resolved[PATH_MAX];
    *out = NULL;
    if (root && !realpath(root, resolved)) return dse_fail_errno(err, errno, root, "use the folder of adapters");
    if (root && !dse_file_is_directory(resolved))
        return dse_fail_at(err, DSE_ERR_INVALID, root, -1, "%s is not a folder, so no adapters can be loaded from it",
                           root);
    struct dse_adapter_list *list = dse_calloc(DSE_MEM_SERVER, 1, sizeof *list);
    if (!list) return dse_fail_memory(err, sizeof *list, "the list of adapters");
    list->root = root ? dse_strdup(DSE_MEM_SERVER, resolved) : NULL;
    if (root && !list->root) {
        dse_free(list);
        return dse_fail_memory(err, strlen(resolved), "the list of adapters");
    }
    pthread_mutex_init(&list->lock, NULL);
    *out = list;
    return DSE_OK;
}

void dse_adapter_list_free(struct dse_adapter_list *list)
{
    if (!list) return;
    for (int i = 0; i < list->count; i++)
        entry_deinit(&list->entries[i]);
    pthread_mutex_destroy(&list->lock);
    dse_free(list->root);
    dse_free(list);
}

bool dse_adapter_list_may_load(const struct dse_adapter_list *list)
{
    return list->root != NULL;
}

/* ---- names and paths ------------------------------------------------------------------------------------------ */

enum dse_status dse_adapter_check_name(const char *name, struct dse_error *err)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
    const size_t bytes = strlen(name);
    if (bytes > 0 && bytes <= DSE_MAX_ADAPTER_NAME_BYTES && strspn(name, allowed) == bytes) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, "lora_name", -1,
                       "the name of an adapter must have 1 to %d of A-Z a-z 0-9 . _ : / -, not \"%.128s\"",
                       DSE_MAX_ADAPTER_NAME_BYTES, name);
}

static bool below(const char *root, const char *path)
{
    const size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '/' || (n > 0 && root[n - 1] == '/'));
}

static bool climbs(const char *path)
{
    for (const char *p = path; *p;) {
        const size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') return true;
        p += n;
        p += strspn(p, "/");
    }
    return false;
}

/* A file beside or in the adapter leads nowhere else; one that is not there is told by whoever reads it. */
static bool stays_inside(const struct dse_adapter_list *list, const char *folder, const char *name)
{
    char resolved[PATH_MAX], *path = dse_path_join(folder, name);
    const bool ok = path && (!realpath(path, resolved) || below(list->root, resolved));
    dse_free(path);
    return ok;
}

enum dse_status dse_adapter_list_resolve(const struct dse_adapter_list *list, const char *path, char **out,
                                         struct dse_error *err)
{
    char resolved[PATH_MAX];
    *out = NULL;
    /* By its letters first: what lies elsewhere must not even be told from what does not exist. */
    if (path[0] == '\0' || climbs(path) || (path[0] == '/' && !below(list->root, path)))
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_path", -1,
                           "lora_path must be a path inside the folder that the server was started with (--lora-dir)");
    char *joined = path[0] == '/' ? dse_strdup(DSE_MEM_REQUEST, path) : dse_path_join(list->root, path);
    if (!joined) return dse_fail_memory(err, strlen(path), "lora_path");
    const bool found = realpath(joined, resolved) != NULL;
    const int error_number = errno;
    dse_free(joined);
    if (!found && (error_number == ENOENT || error_number == ENOTDIR))
        return dse_fail_at(err, DSE_ERR_NOT_FOUND, "lora_path", -1, "there is no adapter at \"%.200s\"", path);
    if (!found)
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_path", -1, "\"%.200s\" cannot be used: %s", path,
                           strerror(error_number));
    char folder[PATH_MAX];
    (void)snprintf(folder, sizeof folder, "%s", resolved);
    if (!dse_file_is_directory(resolved)) *strrchr(folder, '/') = '\0';
    if (!below(list->root, resolved) || !stays_inside(list, folder, "adapter_config.json") ||
        !stays_inside(list, folder, "adapter_model.safetensors"))
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_path", -1,
                           "\"%.200s\" leads out of the folder that adapters may be loaded from", path);
    *out = dse_strdup(DSE_MEM_REQUEST, resolved);
    return *out ? DSE_OK : dse_fail_memory(err, strlen(resolved), "lora_path");
}

void dse_adapter_list_hide_root(const struct dse_adapter_list *list, char *message)
{
    const size_t n = list->root ? strlen(list->root) : 0;
    char *at = message;
    while (n > 1 && (at = strstr(at, list->root)) != NULL)
        if (at[n] == '/')
            memmove(at, at + n + 1, strlen(at + n + 1) + 1);
        else
            at += n;
}

/* ---- changes -------------------------------------------------------------------------------------------------- */

/* With the lock held. */
static struct entry *find(struct dse_adapter_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].name, name) == 0) return &list->entries[i];
    return NULL;
}

static struct entry *find_id(struct dse_adapter_list *list, int64_t id)
{
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].id == id) return &list->entries[i];
    return NULL;
}

static enum dse_status check_locked(struct dse_adapter_list *list, const char *name, bool replace,
                                    struct dse_error *err)
{
    const struct entry *there = find(list, name);
    if (there && !replace)
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_name", -1,
                           "the adapter '%.128s' has already been loaded; load_inplace: true replaces it", name);
    if (!there && list->count == DSE_MAX_LOADED_ADAPTERS)
        return dse_fail_at(err, DSE_ERR_INVALID, "lora_name", -1,
                           "%d adapters are loaded, which is the most: unload one first", list->count);
    return DSE_OK;
}

/* Requests that name no adapter get all that have a scale: what no request could use must not become their default.
 * With the lock held. */
static enum dse_status check_everyone(const struct dse_adapter_list *list, const struct entry *entries, int count,
                                      const char *field, struct dse_error *err)
{
    struct dse_adapter_use uses[DSE_MAX_ADAPTERS];
    struct dse_adapter_set set;
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (entries[i].scale == 0) continue;
        if (n == DSE_MAX_ADAPTERS)
            return dse_fail_at(err, DSE_ERR_INVALID, field, -1,
                               "more than %d adapters would have a scale for everyone; a request may use no more",
                               DSE_MAX_ADAPTERS);
        uses[n++] = (struct dse_adapter_use){entries[i].adapter, entries[i].scale};
    }
    if (n == 0 || list->max_rank == 0) return DSE_OK;
    enum dse_status status = dse_adapter_set_init(&set, uses[0].adapter->model, uses, n, list->max_rank, err);
    if (status == DSE_OK)
        dse_adapter_set_deinit(&set);
    else
        (void)snprintf(err->file, sizeof err->file, "%s", field);
    return status;
}

enum dse_status dse_adapter_list_set_max_rank(struct dse_adapter_list *list, int max_rank, struct dse_error *err)
{
    pthread_mutex_lock(&list->lock);
    list->max_rank = max_rank;
    enum dse_status status = check_everyone(list, list->entries, list->count, "--lora", err);
    pthread_mutex_unlock(&list->lock);
    return status;
}

enum dse_status dse_adapter_list_check(struct dse_adapter_list *list, const char *name, bool replace,
                                       struct dse_error *err)
{
    pthread_mutex_lock(&list->lock);
    enum dse_status status = check_locked(list, name, replace, err);
    pthread_mutex_unlock(&list->lock);
    return status;
}

enum dse_status dse_adapter_list_put(struct dse_adapter_list *list, const char *name, const char *path,
                                     struct dse_adapter *adapter, float scale, bool replace, struct dse_error *err)
{
    struct entry fresh = {.name = dse_strdup(DSE_MEM_SERVER, name),
                          .path = dse_strdup(DSE_MEM_SERVER, path),
                          .adapter = dse_adapter_ref(adapter),
                          .scale = scale,
                          .created = dse_clock_unix_s()};
    struct entry old = {0};
    if (!fresh.name || !fresh.path) {
        entry_deinit(&fresh);
        return dse_fail_memory(err, strlen(path), "an adapter");
    }
    pthread_mutex_lock(&list->lock);
    enum dse_status status = check_locked(list, name, replace, err);
    struct entry *there = status == DSE_OK ? find(list, name) : NULL;
    if (there) {
        fresh.id = there->id;
        fresh.scale = there->scale;
        old = *there;
        *there = fresh;
        status = check_everyone(list, list->entries, list->count, "lora_path", err);
        if (status != DSE_OK) *there = old;
    } else if (status == DSE_OK) {
        fresh.id = list->next_id++;
        list->entries[list->count++] = fresh;
    }
    dse_gauge_set(DSE_GAUGE_ADAPTERS, list->count);
    pthread_mutex_unlock(&list->lock);
    entry_deinit(status == DSE_OK ? &old : &fresh); /* outside the lock: the last reference frees memory */
    return status;
}

enum dse_status dse_adapter_list_remove(struct dse_adapter_list *list, const char *name, struct dse_error *err)
{
    pthread_mutex_lock(&list->lock);
    struct entry *there = find(list, name), old = {0};
    if (there) {
        old = *there;
        const size_t behind = (size_t)(list->entries + list->count - (there + 1));
        memmove(there, there + 1, behind * sizeof *there);
        list->count--;
    }
    dse_gauge_set(DSE_GAUGE_ADAPTERS, list->count);
    pthread_mutex_unlock(&list->lock);
    if (!old.name) return dse_fail_at(err, DSE_ERR_NOT_FOUND, "lora_name", -1, "there is no adapter '%.128s'", name);
    entry_deinit(&old);
    return DSE_OK;
}

bool dse_adapter_list_has(struct dse_adapter_list *list, const char *name)
{
    pthread_mutex_lock(&list->lock);
    const bool found = find(list, name) != NULL;
    pthread_mutex_unlock(&list->lock);
    return found;
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

struct scale {
    int64_t id;
    double scale;
};

/* [{"id":…,"scale":…}], each id once. */
static enum dse_status parse_scales(const json_t *value, const char *field, struct scale *scales, int *count,
                                    struct dse_error *err)
{
    char path[48];
    *count = 0;
    if (!json_is_array(value))
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be an array of {id, scale}, not %s", field,
                           dse_json_type_name(value));
    if (json_array_size(value) > DSE_MAX_LOADED_ADAPTERS)
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s has %zu adapters; at most %d are possible", field,
                           json_array_size(value), DSE_MAX_LOADED_ADAPTERS);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        struct scale *out = &scales[*count];
        snprintf(path, sizeof path, "%s[%zu]", field, i);
        if (!json_is_object(item))
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be an object, not %s", path,
                               dse_json_type_name(item));
        snprintf(path, sizeof path, "%s[%zu].id", field, i);
        TRY(dse_param_int_value(json_object_get(item, "id"), path, 0, INT64_MAX, &out->id, err));
        for (int j = 0; j < *count; j++)
            if (scales[j].id == out->id)
                return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is %lld for the second time", path,
                                   (long long)out->id);
        snprintf(path, sizeof path, "%s[%zu].scale", field, i);
        TRY(dse_param_number_value(json_object_get(item, "scale"), path, -DSE_MAX_ADAPTER_SCALE, DSE_MAX_ADAPTER_SCALE,
                                   &out->scale, err));
        ++*count;
    }
    return DSE_OK;
}

static enum dse_status unknown_id(const char *field, int index, int64_t id, struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_INVALID, field, -1,
                       "%s[%d].id is %lld, and no adapter has this number; GET /lora-adapters lists them", field, index,
                       (long long)id);
}

static enum dse_status take(const struct entry *entry, float scale, struct dse_adapter_use uses[DSE_MAX_ADAPTERS],
                            int *n_uses, struct dse_error *err)
{
    if (scale == 0) return DSE_OK;
    if (*n_uses == DSE_MAX_ADAPTERS)
        return dse_fail_at(err, DSE_ERR_INVALID, "lora", -1, "a request may use %d adapters at most", DSE_MAX_ADAPTERS);
    uses[(*n_uses)++] = (struct dse_adapter_use){dse_adapter_ref(entry->adapter), scale};
    return DSE_OK;
}

/* With the lock held. */
static enum dse_status choose(struct dse_adapter_list *list, const char *model, bool given, const struct scale *scales,
                              int n_scales, struct dse_adapter_use uses[DSE_MAX_ADAPTERS], int *n_uses,
                              struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    const struct entry *named = model ? find(list, model) : NULL;
    if (named && given)
        return dse_fail_at(err, DSE_ERR_INVALID, "lora", -1,
                           "lora cannot be given together with a model that is an adapter, '%.128s'", model);
    if (named) return take(named, 1, uses, n_uses, err);
    for (int i = 0; given && i < n_scales && status == DSE_OK; i++) {
        const struct entry *entry = find_id(list, scales[i].id);
        status = entry ? take(entry, (float)scales[i].scale, uses, n_uses, err)
                       : unknown_id("lora", i, scales[i].id, err);
    }
    for (int i = 0; !given && i < list->count && status == DSE_OK; i++)
        status = take(&list->entries[i], list->entries[i].scale, uses, n_uses, err);
    return status;
}

enum dse_status dse_adapter_list_choose(struct dse_adapter_list *list, const char *model, const json_t *lora,
                                        struct dse_adapter_use uses[DSE_MAX_ADAPTERS], int *n_uses, bool *named,
                                        struct dse_error *err)
{
    struct scale scales[DSE_MAX_LOADED_ADAPTERS];
    int n_scales = 0;
    *n_uses = 0;
    if (lora) TRY(parse_scales(lora, "lora", scales, &n_scales, err));
    pthread_mutex_lock(&list->lock);
    *named = model && find(list, model);
    enum dse_status status = choose(list, model, lora != NULL, scales, n_scales, uses, n_uses, err);
    pthread_mutex_unlock(&list->lock);
    return status;
}

enum dse_status dse_adapter_list_set_scales(struct dse_adapter_list *list, const json_t *value, struct dse_error *err)
{
    struct scale scales[DSE_MAX_LOADED_ADAPTERS];
    int n_scales = 0;
    TRY(parse_scales(value, "scales", scales, &n_scales, err));
    enum dse_status status = DSE_OK;
    pthread_mutex_lock(&list->lock);
    struct entry entries[DSE_MAX_LOADED_ADAPTERS];
    const size_t bytes = (size_t)list->count * sizeof *entries;
    memcpy(entries, list->entries, bytes);
    for (int i = 0; i < list->count; i++)
        entries[i].scale = 0;
    for (int i = 0; i < n_scales && status == DSE_OK; i++) {
        const struct entry *entry = find_id(list, scales[i].id);
        if (entry)
            entries[entry - list->entries].scale = (float)scales[i].scale;
        else
            status = unknown_id("scales", i, scales[i].id, err);
    }
    if (status == DSE_OK) status = check_everyone(list, entries, list->count, "scales", err);
    if (status == DSE_OK) memcpy(list->entries, entries, bytes);
    pthread_mutex_unlock(&list->lock);
    return status;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static json_t *model_json(const struct entry *entry, const char *parent, int64_t context_length)
{
    json_t *object = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", "id", entry->name, "object", "model", "created",
                               (json_int_t)entry->created, "owned_by", "deepseek-edge", "root", entry->path, "parent",
                               parent);
    if (!object || context_length == 0) return object;
    return dse_json_if(json_object_set_new(object, "max_model_len", json_integer(context_length)) == 0, object);
}

json_t *dse_adapter_list_models(struct dse_adapter_list *list, const char *parent, int64_t context_length)
{
    json_t *array = json_array();
    bool whole = true;
    pthread_mutex_lock(&list->lock);
    for (int i = 0; i < list->count; i++)
        whole &= json_array_append_new(array, model_json(&list->entries[i], parent, context_length)) == 0;
    pthread_mutex_unlock(&list->lock);
    return dse_json_if(whole, array);
}

bool dse_adapter_list_model(struct dse_adapter_list *list, const char *name, const char *parent, int64_t context_length,
                            json_t **object)
{
    pthread_mutex_lock(&list->lock);
    const struct entry *entry = find(list, name);
    *object = entry ? model_json(entry, parent, context_length) : NULL;
    pthread_mutex_unlock(&list->lock);
    return entry != NULL;
}

json_t *dse_adapter_list_json(struct dse_adapter_list *list)
{
    json_t *array = json_array();
    bool whole = true;
    pthread_mutex_lock(&list->lock);
    for (int i = 0; i < list->count; i++) {
        const struct entry *entry = &list->entries[i];
        struct dse_adapter_info info;
        dse_adapter_get_info(entry->adapter, &info);
        json_t *object = json_pack("{s:I, s:s, s:s, s:f, s:i, s:i, s:I}", "id", (json_int_t)entry->id, "name",
                                   entry->name, "path", entry->path, "scale", (double)entry->scale, "rank", info.rank,
                                   "matrices", info.n_matrices, "bytes", (json_int_t)info.bytes);
        whole &= json_array_append_new(array, object) == 0;
    }
    pthread_mutex_unlock(&list->lock);
    return dse_json_if(whole, array);
}

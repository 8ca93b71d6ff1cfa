/* The text side of a model on disk: tokenizer.json, tokenizer_config.json, the chat template, the tokenizer keys of a
 * GGUF. Also opens models for text work alone. Files are parsed, never interpreted: text/ does that. */
#include <limits.h>
#include <stdlib.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
#include "model/config_internal.h"
#include "model/model_json.h"
#include "model/weights_internal.h"

#define MAX_TOKENIZER_BYTES ((size_t)256 << 20)
#define MAX_CONFIG_BYTES    ((size_t)32 << 20)
#define MAX_TEMPLATE_BYTES  ((size_t)4 << 20)

enum dse_status dse_model_resolve_path(const char *path, char **out, struct dse_error *err)
{
    char resolved[PATH_MAX];
    *out = NULL;
    const char *slash = strrchr(path, '/');
    if (dse_file_is_directory(path)) {
        if (realpath(path, resolved) == NULL) return dse_fail_errno(err, errno, path, "resolve");
        *out = dse_strdup(DSE_MEM_MODEL, resolved);
    } else if (slash == NULL) {
        *out = realpath(".", resolved) != NULL ? dse_path_join(resolved, path) : dse_strdup(DSE_MEM_MODEL, path);
    } else {
        char *folder = dse_strndup(DSE_MEM_MODEL, path, slash == path ? 1 : (size_t)(slash - path));
        if (folder == NULL) return dse_fail_memory(err, strlen(path), "path");
        bool found = realpath(folder, resolved) != NULL;
        int error_number = errno;
        dse_free(folder);
        if (!found) return dse_fail_errno(err, error_number, path, "resolve");
        *out = dse_path_join(resolved, slash + 1);
    }
    return *out != NULL ? DSE_OK : dse_fail_memory(err, strlen(path) + 1, "path");
}

static enum dse_status set_template(struct dse_model_file *file, const char *text, size_t bytes, const char *where,
                                    struct dse_error *err)
{
    if (bytes > MAX_TEMPLATE_BYTES)
        return dse_fail_at(err, DSE_ERR_LIMIT, where, -1, "%s: the chat template has %zu bytes, at most %zu are read",
                           where, bytes, MAX_TEMPLATE_BYTES);
    if (memchr(text, '\0', bytes) != NULL || !dse_utf8_valid(text, bytes))
        return dse_fail_at(err, DSE_ERR_CORRUPT, where, -1, "%s: the chat template is not UTF-8 text", where);
    dse_free(file->chat_template);
    file->chat_template = dse_strndup(DSE_MEM_MODEL, text, bytes);
    return file->chat_template != NULL ? DSE_OK : dse_fail_memory(err, bytes, "the chat template");
}

enum dse_status dse_model_text_from_gguf(struct dse_model_file *file, struct dse_error *err)
{
    static const char key[] = "tokenizer.chat_template";
    struct dse_gguf_string text = {0};
    enum dse_status status = dse_gguf_check_tokenizer(file->gguf, err);
    if (status == DSE_OK) status = dse_gguf_get_string(file->gguf, key, &text, err);
    if (status != DSE_OK || text.data == NULL) return status;
    return set_template(file, text.data, text.bytes, key, err);
}

/* tokenizer_config.json: a string, or a list of {"name", "template"} of which "default" counts. */
static enum dse_status template_from_config(struct dse_model_file *file, const char *path, struct dse_error *err)
{
    const json_t *value = json_object_get(file->tokenizer_config, "chat_template");
    if (value == NULL || json_is_null(value)) return DSE_OK;
    if (json_is_array(value)) {
        const json_t *list = value;
        value = NULL;
        for (size_t i = 0; i < json_array_size(list) && value == NULL; i++) {
            const char *name = json_string_value(json_object_get(json_array_get(list, i), "name"));
            if (name != NULL && strcmp(name, "default") == 0)
                value = json_object_get(json_array_get(list, i), "template");
        }
        if (value == NULL) return DSE_OK;
    }
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_CORRUPT, path, -1,
                           "%s: chat_template is neither a string nor a list of named templates", path);
    return set_template(file, json_string_value(value), json_string_length(value), path, err);
}

/* Reads folder/name if it exists; *out stays NULL otherwise. The file must hold an object. */
static enum dse_status read_object(const char *folder, const char *name, size_t max_bytes, json_t **out,
                                   struct dse_error *err)
{
    char *path = dse_path_join(folder, name);
    if (path == NULL) return dse_fail_memory(err, strlen(folder) + strlen(name), "path");
    enum dse_status status = DSE_OK;
    if (dse_file_exists(path)) {
        status = dse_model_json_read(path, max_bytes, out, err);
        if (status == DSE_OK && !json_is_object(*out))
            status = dse_fail_at(err, DSE_ERR_CORRUPT, path, -1, "%s is not a JSON object", path);
    }
    dse_free(path);
    return status;
}

static enum dse_status template_from_file(struct dse_model_file *file, const char *folder, bool *found,
                                          struct dse_error *err)
{
    char *path = dse_path_join(folder, "chat_template.jinja"), *text = NULL;
    size_t bytes = 0;
    *found = false;
    if (path == NULL) return dse_fail_memory(err, strlen(folder) + 24, "path");
    enum dse_status status = DSE_OK;
    if (dse_file_exists(path)) {
        *found = true;
        status = dse_file_read(path, MAX_TEMPLATE_BYTES, &text, &bytes, err);
        if (status == DSE_OK) status = set_template(file, text, bytes, path, err);
    }
    dse_free(text);
    dse_free(path);
    return status;
}

static enum dse_status read_config_and_template(struct dse_model_file *file, const char *folder, struct dse_error *err)
{
    bool found = false;
    enum dse_status status = read_object(folder, "tokenizer_config.json", MAX_CONFIG_BYTES, &file->tokenizer_config,
                                         err);
    if (status == DSE_OK) status = template_from_file(file, folder, &found, err);
    if (status == DSE_OK && !found) status = template_from_config(file, "tokenizer_config.json", err);
    return status;
}

enum dse_status dse_model_text_from_folder(struct dse_model_file *file, const char *folder, struct dse_error *err)
{
    enum dse_status status = read_object(folder, "tokenizer.json", MAX_TOKENIZER_BYTES, &file->tokenizer_json, err);
    return status == DSE_OK ? read_config_and_template(file, folder, err) : status;
}

static bool starts_like_gguf(const char *path)
{
    struct dse_map map;
    if (dse_map_open(path, &map, NULL) != DSE_OK) return false;
    bool gguf = map.bytes >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    dse_map_close(&map);
    return gguf;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* A tokenizer.json under any name, with what lies beside it. */
static enum dse_status open_tokenizer_json(struct dse_model_file *file, struct dse_error *err)
{
    enum dse_status status = dse_model_json_read(file->path, MAX_TOKENIZER_BYTES, &file->tokenizer_json, err);
    if (status != DSE_OK) return status;
    if (!json_is_object(file->tokenizer_json))
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1, "%s is not a JSON object", file->path);
    const char *slash = strrchr(file->path, '/');
    char *folder = slash == NULL ? dse_strdup(DSE_MEM_MODEL, ".")
                                 : dse_strndup(DSE_MEM_MODEL, file->path, (size_t)(slash - file->path) + 1);
    if (folder == NULL) return dse_fail_memory(err, strlen(file->path), "path");
    status = read_config_and_template(file, folder, err);
    dse_free(folder);
    return status;
}

/* The name alone, for what is chosen by it; a file without one is no error here. */
static void note_architecture(struct dse_model_file *file)
{
    struct dse_gguf_string name = {0};
    json_t *config = NULL;
    if (file->gguf != NULL) {
        if (dse_gguf_get_string(file->gguf, "general.architecture", &name, NULL) != DSE_OK) return;
    } else if (dse_file_is_directory(file->path)) {
        struct dse_error ignored;
        if (read_object(file->path, "config.json", MAX_CONFIG_BYTES, &config, &ignored) != DSE_OK) return;
        const json_t *type = json_object_get(config, "model_type");
        if (json_is_string(type)) name = (struct dse_gguf_string){json_string_value(type), json_string_length(type)};
    }
    if (name.data != NULL)
        dse_config_copy_text(file->config.arch_name, sizeof file->config.arch_name, name.data, name.bytes);
    json_decref(config);
}

static enum dse_status open_text(struct dse_model_file *file, struct dse_error *err)
{
    enum dse_status status;
    if (dse_file_is_directory(file->path)) {
        status = dse_model_text_from_folder(file, file->path, err);
        if (status == DSE_OK && file->tokenizer_json == NULL)
            status = dse_fail_at(err, DSE_ERR_NOT_FOUND, file->path, -1,
                                 "%s: there is no tokenizer.json in this folder", file->path);
        return status;
    }
    if (starts_like_gguf(file->path) || ends_with(file->path, ".gguf")) {
        status = dse_gguf_open(file->path, &file->gguf, err);
        return status == DSE_OK ? dse_model_text_from_gguf(file, err) : status;
    }
    return open_tokenizer_json(file, err);
}

enum dse_status dse_model_file_open_text(const char *path, struct dse_model_file **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_model_file *file = dse_calloc(DSE_MEM_MODEL, 1, sizeof *file);
    if (file == NULL) return dse_fail_memory(err, sizeof *file, "model file");
    enum dse_status status = dse_model_resolve_path(path, &file->path, err);
    if (status == DSE_OK) status = open_text(file, err);
    if (status == DSE_OK) note_architecture(file);
    if (status != DSE_OK) {
        dse_model_file_close(file);
        return dse_model_file_status(status, err);
    }
    *out = file;
    return DSE_OK;
}

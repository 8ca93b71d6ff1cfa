/* Flags that name adapters (see lora.h). Spellings are those of llama.cpp (--lora, --lora-scaled) and vLLM
 * (--lora-modules). */
#include "cli/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* What clients may call an adapter that came without a name: the last part of its path that says something. */
static void name_by_path(const char *path, char name[DSE_CLI_ADAPTER_NAME])
{
    static const char dull[] = "adapter_model.safetensors";
    size_t end = strlen(path), begin;
    for (;;) {
        while (end > 0 && path[end - 1] == '/')
            end--;
        begin = end;
        while (begin > 0 && path[begin - 1] != '/')
            begin--;
        const bool is_dull = end - begin == sizeof dull - 1 && memcmp(path + begin, dull, end - begin) == 0;
        if (!is_dull || begin == 0) break;
        end = begin;
    }
    static const char *const endings[] = {".gguf", ".safetensors"};
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(endings[i]);
        if (end - begin > n && strncmp(path + end - n, endings[i], n) == 0) end -= n;
    }
    size_t n = 0;
    for (size_t i = begin; i < end && n < 120; i++) {
        const char c = path[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           strchr("._-", c) != NULL;
        name[n++] = plain ? c : '-';
    }
    if (n == 0) name[n++] = '-';
    name[n] = '\0';
}

static bool is_taken(const struct dse_cli_adapters *adapters, const char *name)
{
    for (int i = 0; i < adapters->count; i++)
        if (strcmp(adapters->list[i].name, name) == 0) return true;
    return false;
}

/* name NULL: made from the path, with a number if another has it already. */
static enum dse_status add(struct dse_cli_adapters *adapters, const char *flag, const char *name, const char *path,
                           size_t path_bytes, float scale, struct dse_error *err)
{
    if (adapters->count == DSE_CLI_MAX_ADAPTERS)
        return dse_fail(err, DSE_ERR_INVALID, "--%s: more than %d adapters", flag, DSE_CLI_MAX_ADAPTERS);
    if (path_bytes == 0) return dse_fail(err, DSE_ERR_INVALID, "--%s: a path is missing", flag);
    struct dse_cli_adapter *adapter = &adapters->list[adapters->count];
    *adapter = (struct dse_cli_adapter){.path = dse_strndup(DSE_MEM_MISC, path, path_bytes), .scale = scale};
    if (adapter->path == NULL) return dse_fail_memory(err, path_bytes, "the path of an adapter");
    char plain[DSE_CLI_ADAPTER_NAME];
    if (name != NULL)
        (void)snprintf(plain, sizeof plain, "%s", name);
    else
        name_by_path(adapter->path, plain);
    (void)snprintf(adapter->name, sizeof adapter->name, "%s", plain);
    for (int i = 2; name == NULL && is_taken(adapters, adapter->name); i++)
        (void)snprintf(adapter->name, sizeof adapter->name, "%.120s-%d", plain, i);
    adapters->count++;
    return DSE_OK;
}

static bool read_scale(const char *text, size_t bytes, float *scale)
{
    char copy[32], *end;
    if (bytes == 0 || bytes >= sizeof copy) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    const double value = strtod(copy, &end);
    *scale = (float)value;
    return *end == '\0' && fabs(value) <= 100;
}

/* "PATH", "PATH=SCALE" or, with must, "PATH:SCALE"; several of them with commas between. */
static enum dse_status add_paths(struct dse_cli_adapters *adapters, const char *flag, const char *text, char separator,
                                 bool must, struct dse_error *err)
{
    for (const char *p = text;; p += strcspn(p, ",") + 1) {
        size_t bytes = strcspn(p, ",");
        size_t mark = bytes;
        float scale = 1;
        while (mark > 0 && p[mark - 1] != separator)
            mark--;
        const bool has_scale = mark > 0 && read_scale(p + mark, bytes - mark, &scale);
        if (must && !has_scale)
            return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not PATH%cSCALE with a scale from -100 to 100", flag,
                            text, separator);
        enum dse_status status = add(adapters, flag, NULL, p, has_scale ? mark - 1 : bytes, has_scale ? scale : 1, err);
        if (status != DSE_OK || p[bytes] == '\0') return status;
    }
}

static enum dse_status add_module(struct dse_cli_adapters *adapters, const char *text, struct dse_error *err)
{
    const char *equal = strchr(text, '=');
    char name[DSE_CLI_ADAPTER_NAME];
    if (equal == NULL || equal == text || (size_t)(equal - text) >= sizeof name)
        return dse_fail(err, DSE_ERR_INVALID, "--lora-modules: \"%s\" is not NAME=PATH with a name of 1 to 128 bytes",
                        text);
    (void)snprintf(name, sizeof name, "%.*s", (int)(equal - text), text);
    if (is_taken(adapters, name))
        return dse_fail(err, DSE_ERR_INVALID, "--lora-modules: the name \"%s\" is given twice", name);
    return add(adapters, "lora-modules", name, equal + 1, strlen(equal + 1), 0, err);
}

enum dse_status dse_cli_adapters_parse(const struct dse_options *options, struct dse_cli_adapters *adapters,
                                       struct dse_error *err)
{
    const struct dse_option_value *plain = &options->values[DSE_OPT_LORA];
    const struct dse_option_value *scaled = &options->values[DSE_OPT_LORA_SCALED];
    const struct dse_option_value *modules = &options->values[DSE_OPT_LORA_MODULES];
    enum dse_status status = DSE_OK;
    *adapters = (struct dse_cli_adapters){0};
    for (int i = 0; i < modules->count && status == DSE_OK; i++)
        status = add_module(adapters, modules->list[i], err);
    for (int i = 0; i < plain->count && status == DSE_OK; i++)
        status = add_paths(adapters, "lora", plain->list[i], '=', false, err);
    for (int i = 0; i < scaled->count && status == DSE_OK; i++)
        status = add_paths(adapters, "lora-scaled", scaled->list[i], ':', true, err);
    if (status != DSE_OK) dse_cli_adapters_close(adapters);
    return status;
}

enum dse_status dse_cli_adapters_open(struct dse_cli_adapters *adapters, struct dse_model *model, struct dse_error *err)
{
    for (int i = 0; i < adapters->count; i++) {
        struct dse_adapter_info info;
        enum dse_status status = dse_adapter_open(model, adapters->list[i].path, &adapters->list[i].adapter, err);
        if (status != DSE_OK) return status;
        dse_adapter_get_info(adapters->list[i].adapter, &info);
        adapters->rank += info.rank;
    }
    return DSE_OK;
}

void dse_cli_adapters_close(struct dse_cli_adapters *adapters)
{
    for (int i = 0; i < adapters->count; i++) {
        dse_adapter_unref(adapters->list[i].adapter);
        dse_free(adapters->list[i].path);
    }
    *adapters = (struct dse_cli_adapters){0};
}

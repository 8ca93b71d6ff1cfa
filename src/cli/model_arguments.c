/* Finding and opening the model that the flags name. */
#include "cli/model_arguments.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "cli/streams.h"
#include "device/device.h"
#include "model/weights.h"

/* Longer paths are cut and then simply do not exist. */
#define PATH_BYTES      8192
#define THREADS_PER_CPU 4
#define DEMO_FILE       "SmolLM2-135M-Instruct.Q4_1.gguf"

char *dse_cache_folder(const char *sub)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct dse_buffer path;
    dse_buffer_init(&path, DSE_MEM_MISC, 4096);
    if (xdg != NULL && xdg[0] == '/')
        dse_buffer_printf(&path, "%s/deepseek-edge/%s", xdg, sub);
    else if (home != NULL && home[0] == '/')
        dse_buffer_printf(&path, "%s/.cache/deepseek-edge/%s", home, sub);
    else
        return NULL;
    return dse_buffer_take(&path);
}

/* Folder of the Hugging Face hub cache. */
static void hub_folder(char *out, size_t bytes)
{
    const char *cache = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
    const char *xdg = getenv("XDG_CACHE_HOME");
    if (cache != NULL && cache[0] != '\0')
        snprintf(out, bytes, "%s", cache);
    else if (hf != NULL && hf[0] != '\0')
        snprintf(out, bytes, "%s/hub", hf);
    else if (xdg != NULL && xdg[0] == '/')
        snprintf(out, bytes, "%s/huggingface/hub", xdg);
    else
        snprintf(out, bytes, "%s/.cache/huggingface/hub", home != NULL ? home : "");
}

/* Newest snapshot of a cached repository: the one refs/main names, else the most recently changed folder. */
static bool find_snapshot(const char *repository, char *out, size_t bytes)
{
    char path[PATH_BYTES], revision[128] = "", *text = NULL;
    size_t text_bytes;
    snprintf(path, sizeof path, "%s/refs/main", repository);
    if (dse_file_read(path, sizeof revision - 1, &text, &text_bytes, NULL) == DSE_OK)
        snprintf(revision, sizeof revision, "%.*s", (int)strcspn(text, "\r\n"), text);
    dse_free(text);
    if (revision[0] != '\0' && strchr(revision, '/') == NULL && revision[0] != '.') {
        snprintf(out, bytes, "%s/snapshots/%s", repository, revision);
        if (dse_file_is_directory(out)) return true;
    }
    snprintf(path, sizeof path, "%s/snapshots", repository);
    DIR *folder = opendir(path);
    time_t newest = 0;
    bool found = false;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char candidate[PATH_BYTES + 257];
        struct stat st;
        if (entry->d_name[0] == '.') continue;
        snprintf(candidate, sizeof candidate, "%s/%s", path, entry->d_name);
        if (stat(candidate, &st) != 0 || !S_ISDIR(st.st_mode) || (found && st.st_mtime <= newest)) continue;
        newest = st.st_mtime;
        found = true;
        snprintf(out, bytes, "%s", candidate);
    }
    if (folder != NULL) closedir(folder);
    return found;
}

/* A snapshot holds safetensors (a folder model) or one GGUF file. */
static void narrow_to_gguf(char *path, size_t bytes)
{
    char probe[PATH_BYTES + 16], only[PATH_BYTES] = "";
    snprintf(probe, sizeof probe, "%s/config.json", path);
    if (dse_file_exists(probe)) return;
    DIR *folder = opendir(path);
    int count = 0;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        size_t n = strlen(entry->d_name);
        if (n < 5 || strcmp(entry->d_name + n - 5, ".gguf") != 0) continue;
        if (count++ == 0 || strcmp(entry->d_name, strrchr(only, '/') + 1) < 0)
            snprintf(only, sizeof only, "%s/%s", path, entry->d_name);
    }
    if (folder != NULL) closedir(folder);
    if (count > 0) snprintf(path, bytes, "%s", only);
}

/* "org/name" against folders "models--org--name", case ignored. */
static bool find_in_hub(const char *name, char *out, size_t bytes, char canonical[256])
{
    const char *slash = strchr(name, '/');
    if (slash == NULL || slash == name || strchr(slash + 1, '/') != NULL || slash[1] == '\0') return false;
    char hub[2048], wanted[512];
    hub_folder(hub, sizeof hub);
    snprintf(wanted, sizeof wanted, "models--%.*s--%s", (int)(slash - name), name, slash + 1);
    DIR *folder = opendir(hub);
    bool found = false;
    for (struct dirent *entry; folder != NULL && !found && (entry = readdir(folder)) != NULL;) {
        char repository[4096];
        if (strcasecmp(entry->d_name, wanted) != 0) continue;
        snprintf(repository, sizeof repository, "%s/%s", hub, entry->d_name);
        found = find_snapshot(repository, out, bytes);
        /* models--org--name -> org/name */
        const char *owner = entry->d_name + strlen("models--");
        const char *split = strstr(owner, "--");
        if (canonical != NULL && split != NULL)
            snprintf(canonical, 256, "%.*s/%.200s", (int)(split - owner > 50 ? 50 : split - owner), owner, split + 2);
    }
    if (folder != NULL) closedir(folder);
    if (found) narrow_to_gguf(out, bytes);
    return found;
}

enum dse_status dse_model_find(const char *name, char **path, char canonical[256], struct dse_error *err)
{
    char found[PATH_BYTES];
    *path = NULL;
    if (canonical != NULL) canonical[0] = '\0';
    if (name == NULL) {
        char *models = dse_cache_folder("models");
        snprintf(found, sizeof found, "%s/" DEMO_FILE, models != NULL ? models : "");
        dse_free(models);
        if (!dse_file_exists(found))
            return dse_fail(
                err, DSE_ERR_NOT_FOUND,
                "no model named, and the demo model is not in the cache; name a GGUF file or a model folder, "
                "or fetch the demo model with: make run");
    } else if (name[0] == '\0') {
        return dse_fail(err, DSE_ERR_INVALID, "the model's name is empty");
    } else if (dse_file_exists(name)) {
        snprintf(found, sizeof found, "%s", name);
    } else if (!find_in_hub(name, found, sizeof found, canonical)) {
        char hub[2048];
        hub_folder(hub, sizeof hub);
        bool is_id = strchr(name, '/') != NULL && name[0] != '/' && name[0] != '.';
        return is_id ? dse_fail_at(err, DSE_ERR_NOT_FOUND, name, -1,
                                   "model %.200s is neither a file or folder nor in the Hugging Face cache (%.200s); "
                                   "this version "
                                   "does not download: fetch it with `hf download %.200s` or name a file",
                                   name, hub, name)
                     : dse_fail_at(err, DSE_ERR_NOT_FOUND, name, -1, "model file %.300s does not exist", name);
    }
    *path = dse_strdup(DSE_MEM_MISC, found);
    return *path != NULL ? DSE_OK : dse_fail_memory(err, strlen(found), "a path");
}

const char *dse_cli_model_name(const struct dse_options *options)
{
    const char *named = dse_opt_text(options, DSE_OPT_MODEL);
    return named != NULL ? named : options->n_positional > 0 ? options->positional[0] : NULL;
}

const char *dse_cli_positional(const struct dse_options *options, int after_model)
{
    int index = after_model + (dse_opt_text(options, DSE_OPT_MODEL) == NULL ? 1 : 0);
    return index < options->n_positional ? options->positional[index] : NULL;
}

/* More threads than that only wait for each other at every barrier: an answer would take minutes a token. */
static int64_t most_threads(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)online;
    return THREADS_PER_CPU * (int64_t)(allowed > 0 ? allowed : 1);
}

enum dse_status dse_cli_check_flags(const struct dse_options *options, struct dse_error *err)
{
    const char *device = dse_opt_text(options, DSE_OPT_DEVICE);
    if (device != NULL && strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0)
        return dse_fail_at(err, DSE_ERR_DEVICE, "--device", -1,
                           "device %.100s is not available: this version computes on the CPU only; try --device cpu",
                           device);
    if (dse_opt_int(options, DSE_OPT_GPU_LAYERS) != 0)
        return dse_fail_at(err, DSE_ERR_DEVICE, "--gpu-layers", -1,
                           "--gpu-layers %lld: this version has no GPU support; leave it out or say 0",
                           (long long)dse_opt_int(options, DSE_OPT_GPU_LAYERS));
    const char *pack = dse_opt_text(options, DSE_OPT_PACK_CACHE);
    if (pack != NULL && pack[0] == '\0')
        return dse_fail_at(err, DSE_ERR_INVALID, "--pack-cache", -1,
                           "--pack-cache is empty: name a folder, or say off to keep nothing");
    int64_t threads = dse_opt_int(options, DSE_OPT_THREADS), most = most_threads();
    if (threads > most)
        return dse_fail_at(
            err, DSE_ERR_INVALID, "--threads", -1,
            "--threads %lld is more than %d for each CPU that this process may use; ask for at most %lld",
            (long long)threads, THREADS_PER_CPU, (long long)most);
    const char *kv = dse_opt_text(options, DSE_OPT_KV_DTYPE);
    if (kv != NULL && strcmp(kv, "q4_0") == 0)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, "--kv-cache-dtype", -1,
                           "--kv-cache-dtype %s: this version keeps the KV cache as f16 or q8_0", kv);
    return DSE_OK;
}

enum dse_status dse_cli_check_quantize(const struct dse_options *options, const char *path, struct dse_error *err)
{
    const char *wanted = dse_opt_text(options, DSE_OPT_QUANTIZE);
    if (wanted == NULL || strcmp(wanted, "auto") == 0 || strcmp(wanted, "none") == 0) return DSE_OK;
    struct dse_model_file *file;
    enum dse_status status = dse_model_file_open(path, &file, err);
    if (status != DSE_OK) return status;
    const char *held = dse_model_file_quantization(file); /* a constant */
    dse_model_file_close(file);
    if (strcmp(wanted, held) == 0 || (strcmp(wanted, "fp16") == 0 && strcmp(held, "f16") == 0)) return DSE_OK;
    if (!dse_file_is_directory(path))
        return dse_fail_at(err, DSE_ERR_INVALID, "--quantize", -1,
                           "--quantize %s contradicts the file, which holds %s weights; leave the flag out or name "
                           "another file",
                           wanted, held);
    return dse_fail_at(
        err, DSE_ERR_UNSUPPORTED, "--quantize", -1,
        "--quantize %s: this version does not convert weights, and the folder holds %s; leave the flag out "
        "or use a GGUF file of that type",
        wanted, held);
}

/* --numerics of whichever verb; bench times both ways on a model opened for the faster one. */
static enum dse_numerics numerics_asked(const struct dse_options *options)
{
    const bool bench = options->verb == DSE_VERB_BENCH;
    const char *asked = dse_opt_text(options, bench ? DSE_OPT_BENCH_NUMERICS : DSE_OPT_NUMERICS);
    return asked == NULL || strcmp(asked, "exact") == 0 ? DSE_NUMERICS_EXACT : DSE_NUMERICS_FAST;
}

/* A flag that changes nothing says so. */
static void tell_numerics(const struct dse_model *model, enum dse_numerics asked)
{
    struct dse_model_info info;
    dse_model_get_info(model, &info);
    if (asked == info.numerics) return;
    fprintf(stderr, "--numerics fast changes nothing here: it is for latent attention, which %s does not have\n",
            info.arch);
}

enum dse_status dse_cli_model_open(const struct dse_options *options, const char *name, struct dse_model **model,
                                   struct dse_error *err)
{
    char *path = NULL, *cache = NULL;
    char canonical[256];
    *model = NULL;
    enum dse_status status = dse_cli_check_flags(options, err);
    if (status == DSE_OK) status = dse_model_find(name, &path, canonical, err);
    if (status != DSE_OK) return status;
    if (canonical[0] != '\0') {
        struct dse_buffer safe;
        dse_buffer_init(&safe, DSE_MEM_MISC, 4096);
        dse_put_safely(&safe, canonical, strlen(canonical));
        dse_talk("model: %s\n", dse_buffer_text(&safe));
        dse_buffer_deinit(&safe);
    }

    const char *pack = dse_opt_text(options, DSE_OPT_PACK_CACHE);
    if (pack == NULL)
        pack = cache = dse_cache_folder("packed");
    else if (strcmp(pack, "off") == 0)
        pack = NULL;
    const char *compute = dse_opt_text(options, DSE_OPT_COMPUTE);
    const char *kv = dse_opt_text(options, DSE_OPT_KV_DTYPE);
    struct dse_model_options open = {
        .n_threads = (int)dse_opt_int(options, DSE_OPT_THREADS),
        .compute = compute != NULL && strcmp(compute, "f32") == 0 ? DSE_COMPUTE_F32 : DSE_COMPUTE_AUTO,
        .kv_cache = kv == NULL || strcmp(kv, "auto") == 0 ? DSE_KV_CACHE_AUTO
                    : strcmp(kv, "q8_0") == 0             ? DSE_KV_CACHE_Q8_0
                                                          : DSE_KV_CACHE_F16,
        .numerics = numerics_asked(options),
        .device = dse_opt_text(options, DSE_OPT_DEVICE),
        .pack_cache = pack,
        .mtp = dse_opt_flag(options, DSE_OPT_MTP),
    };
    status = dse_cli_check_quantize(options, path, err);
    if (status == DSE_OK) status = dse_model_open(path, &open, model, err);
    if (status == DSE_OK) tell_numerics(*model, open.numerics);
    dse_free(cache);
    dse_free(path);
    return status;
}

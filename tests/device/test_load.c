/* Opening devices and loading weights: names, the pack cache in every state a folder can be in, lack of memory, and what
 * every matrix of a latent model with experts holds afterwards. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/log.h"
#include "device/pack_cache.h"
#include "device_data.h"
#include "quant/fp8.h"

struct place {
    char folder[32], cache[64], model_path[64];
    struct fake_model model;
    struct dse_device *device;
};

static int setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    struct dse_error err;
    dse_log_configure(DSE_LOG_ERROR, false);
    snprintf(place->folder, sizeof place->folder, "/tmp/dse-test-pack-XXXXXX");
    if (mkdtemp(place->folder) == NULL) return -1;
    snprintf(place->cache, sizeof place->cache, "%s/a/cache", place->folder);
    snprintf(place->model_path, sizeof place->model_path, "%s/model.gguf", place->folder);
    FILE *f = fopen(place->model_path, "w");
    if (f == NULL || fclose(f) != 0) return -1;
    fake_model_init(&place->model, &small_shape, place->model_path);
    if (dse_device_open("cpu", 2, &place->device, &err) != DSE_OK) return -1;
    *state = place;
    return 0;
}

static int teardown(void **state)
{
    struct place *place = *state;
    char command[128];
    dse_device_close(place->device);
    fake_model_deinit(&place->model);
    snprintf(command, sizeof command, "chmod -R u+w %s; rm -rf %s", place->folder, place->folder);
    int rc = system(command);
    free(place);
    return rc;
}

static struct dse_device_weights load(struct place *place, const char *cache)
{
    struct dse_device_weights weights;
    struct dse_error err;
    if (place->device->ops->load(place->device, &place->model.file, false, cache, &weights, &err) != DSE_OK)
        fail_msg("%s", err.message);
    return weights;
}

static void unload(struct place *place, struct dse_device_weights *weights)
{
    place->device->ops->unload(place->device, weights);
}

/* The one .pack file of the cache folder; "" if there is none. */
static void find_pack(const struct place *place, char path[512])
{
    DIR *dir = opendir(place->cache);
    int found = 0;
    path[0] = '\0';
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, 512, "%s/%s", place->cache, e->d_name);
        found++;
    }
    if (dir != NULL) closedir(dir);
    assert_true(found <= 1); /* never a temporary file left behind */
}

static void assert_same_weights(const struct dse_device_weights *a, const struct dse_device_weights *b)
{
    const struct dse_matrix *x[] = {&a->output, &a->layers[0].q, &a->layers[1].down, &a->layers[1].gate};
    const struct dse_matrix *y[] = {&b->output, &b->layers[0].q, &b->layers[1].down, &b->layers[1].gate};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(x[i]->rows, y[i]->rows);
        assert_int_equal(x[i]->layout, y[i]->layout);
        assert_memory_equal(x[i]->data, y[i]->data, (x[i]->rows + 15) / 16 * x[i]->panel_bytes);
    }
}

static void device_names_other_than_cpu_are_refused_by_name(void **state)
{
    static const char *const names[] = {"cuda", "vulkan", "opencl", "CPU", "", "gpu0", "npu"};
    struct dse_device *device;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct dse_error err;
        assert_int_equal(dse_device_open(names[i], 1, &device, &err), DSE_ERR_DEVICE);
        assert_non_null(strstr(err.message, names[i]));
        assert_non_null(strstr(err.message, "support; use --device cpu"));
    }
    struct dse_error err;
    assert_int_equal(dse_device_open("cuda", 1, &device, &err), DSE_ERR_DEVICE);
    assert_non_null(strstr(err.message, "no CUDA support"));
    assert_int_equal(dse_device_open("cpu", -1, &device, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_device_open(NULL, 0, &device, &err), DSE_OK);
    assert_true(dse_pool_threads(device->pool) >= 1);
    dse_device_close(device);
}

static void device_list_names_the_cpu_first_and_says_why_others_are_missing(void **state)
{
    struct dse_device_info info[8];
    int n = dse_device_list(info, 8);
    assert_true(n >= 1);
    assert_string_equal(info[0].name, "cpu");
    assert_true(info[0].usable);
    assert_true(info[0].memory_bytes > 0);
    for (int i = 1; i < n; i++) {
        assert_false(info[i].usable);
        assert_true(strlen(info[i].reason) > 0);
    }
    assert_int_equal(dse_device_list(info, 1), 1);
    assert_int_equal(dse_device_list(info, 0), 0);
}

static void load_without_cache_counts_its_memory_and_gives_it_back(void **state)
{
    struct place *place = *state;
    size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    struct dse_device_weights weights = load(place, NULL);
    assert_true(weights.resident_bytes > 0);
    assert_true(dse_mem_live_bytes(DSE_MEM_MODEL) >= before + weights.resident_bytes);
    unload(place, &weights);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
}

static void load_with_compute_f32_packs_f32(void **state)
{
    struct place *place = *state;
    struct dse_device_weights weights;
    struct dse_error err;
    assert_int_equal(place->device->ops->load(place->device, &place->model.file, true, place->cache, &weights, &err),
                     DSE_OK);
    assert_int_equal(weights.output.layout, DSE_LAYOUT_F32);
    assert_int_equal(weights.resident_bytes, 0);
    unload(place, &weights);
    /* the same folder serves the other packing without confusion */
    weights = load(place, place->cache);
    assert_int_not_equal(weights.output.layout, DSE_LAYOUT_F32);
    unload(place, &weights);
}

static void load_reports_lack_of_memory_at_every_allocation(void **state)
{
    struct place *place = *state;
    size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    for (long n = 1;; n++) {
        struct dse_device_weights weights;
        struct dse_error err;
        dse_alloc_fail_after(n);
        enum dse_status status = place->device->ops->load(place->device, &place->model.file, false, NULL, &weights,
                                                          &err);
        dse_alloc_fail_after(0);
        if (status == DSE_OK) {
            unload(place, &weights);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(status, DSE_ERR_NO_MEMORY);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
    }
}

static void load_names_a_tensor_it_cannot_decode(void **state)
{
    struct place *place = *state;
    struct dse_device_weights weights;
    struct dse_error err;
    struct dse_tensor broken = *place->model.layers[1].up;
    broken.type = DSE_TYPE_I8;
    place->model.layers[1].up = &broken;
    assert_int_equal(place->device->ops->load(place->device, &place->model.file, false, NULL, &weights, &err),
                     DSE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "up"));
}

/* Pages of memory that is not there would be handed out, and the process killed while it fills them. */
static void load_without_cache_refuses_more_than_there_is_with_both_numbers(void **state)
{
    struct place *place = *state;
    struct dse_device_weights weights;
    struct dse_error err;
    struct dse_tensor huge = *place->model.file.output;
    huge.shape[0] = (size_t)1 << 40;
    place->model.file.output = &huge;
    assert_int_equal(place->device->ops->load(place->device, &place->model.file, false, NULL, &weights, &err),
                     DSE_ERR_NO_MEMORY);
    assert_true(err.need > err.have && err.have > 0);
    assert_non_null(strstr(err.message, "--pack-cache"));
    assert_null(weights.layers);
}

static void cache_is_built_once_and_then_reused_without_anonymous_memory(void **state)
{
    struct place *place = *state;
    char path[512];
    struct stat first, second;
    struct dse_device_weights memory = load(place, NULL), built = load(place, place->cache);
    find_pack(place, path);
    assert_int_equal(stat(path, &first), 0);
    struct dse_device_weights reused = load(place, place->cache);
    assert_int_equal(stat(path, &second), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    assert_int_equal(built.resident_bytes, 0);
    assert_int_equal(reused.resident_bytes, 0);
    assert_same_weights(&memory, &built);
    assert_same_weights(&memory, &reused);
    unload(place, &memory);
    unload(place, &built);
    unload(place, &reused);
}

/* Flips a byte at offset (negative: from the end) or cuts the file, then expects a new, right file. */
static void damage_and_reload(struct place *place, long offset, bool cut)
{
    char path[512];
    struct stat before, after;
    struct dse_device_weights memory = load(place, NULL), weights = load(place, place->cache);
    unload(place, &weights);
    find_pack(place, path);
    assert_int_equal(stat(path, &before), 0);
    long at = offset < 0 ? (long)before.st_size + offset : offset;
    if (cut) {
        assert_int_equal(truncate(path, at), 0);
    } else {
        int fd = open(path, O_RDWR);
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x40;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
    }
    weights = load(place, place->cache);
    assert_int_equal(weights.resident_bytes, 0);
    assert_same_weights(&memory, &weights);
    find_pack(place, path);
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_ino != before.st_ino);
    assert_int_equal(after.st_size, before.st_size);
    unload(place, &weights);
    unload(place, &memory);
}

static void cache_with_any_damage_is_built_again(void **state)
{
    /* magic, version, key, counts, checksum, table, padding before the data is not checked, data, last byte */
    static const long flips[] = {0, 8, 12, 16, 32, 40, 56, 64, 72, 100, 4096, 5000, -1};
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++)
        damage_and_reload(*state, flips[i], false);
}

static void cache_cut_short_is_built_again(void **state)
{
    static const long sizes[] = {0, 1, 7, 71, 4095, 4096, -1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        damage_and_reload(*state, sizes[i], true);
}

static void cache_of_a_changed_model_is_not_used(void **state)
{
    struct place *place = *state;
    struct dse_device_weights weights = load(place, place->cache);
    unload(place, &weights);
    /* same file, same shapes, other numbers */
    uint8_t *data = (uint8_t *)place->model.layers[0].q->data;
    data[5] ^= 1;
    struct dse_device_weights memory = load(place, NULL);
    weights = load(place, place->cache);
    assert_same_weights(&memory, &weights);
    unload(place, &weights);
    unload(place, &memory);
    /* same name, rewritten */
    FILE *f = fopen(place->model_path, "w");
    assert_non_null(f);
    fputs("longer", f);
    fclose(f);
    weights = load(place, place->cache);
    unload(place, &weights);
    DIR *dir = opendir(place->cache);
    int files = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        files += e->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(files, 3);
}

static void cache_folder_that_cannot_be_used_means_memory(void **state)
{
    struct place *place = *state;
    char path[128];
    /* a file where the folder should be */
    struct dse_device_weights weights = load(place, place->model_path);
    assert_true(weights.resident_bytes > 0);
    unload(place, &weights);
    weights = load(place, "/proc/dse-no-such-folder");
    assert_true(weights.resident_bytes > 0);
    unload(place, &weights);
    /* a file system without room for anything */
    weights = load(place, "/sys/kernel");
    assert_true(weights.resident_bytes > 0);
    unload(place, &weights);
    if (geteuid() != 0) { /* root writes anywhere */
        snprintf(path, sizeof path, "%s/read-only", place->folder);
        assert_int_equal(mkdir(path, 0500), 0);
        weights = load(place, path);
        assert_true(weights.resident_bytes > 0);
        unload(place, &weights);
    }
}

static void cache_left_half_built_by_a_killed_process_is_no_obstacle(void **state)
{
    struct place *place = *state;
    char path[512], temporary[512];
    struct dse_device_weights weights = load(place, place->cache);
    unload(place, &weights);
    find_pack(place, path);
    snprintf(temporary, sizeof temporary, "%.*s.tmp", (int)(strlen(path) - strlen(".pack")), path);
    assert_int_equal(rename(path, temporary), 0);
    assert_int_equal(truncate(temporary, 5000), 0);
    struct dse_device_weights memory = load(place, NULL);
    weights = load(place, place->cache);
    assert_int_equal(weights.resident_bytes, 0);
    assert_same_weights(&memory, &weights);
    find_pack(place, path);
    unload(place, &weights);
    unload(place, &memory);
}

static void cache_is_shared_by_processes_that_start_at_once(void **state)
{
    enum { PROCESSES = 4 };
    struct place *place = *state;
    pid_t child[PROCESSES];
    char path[512];
    for (int i = 0; i < PROCESSES; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] > 0) continue;
        struct dse_device *device;
        struct dse_device_weights weights;
        struct dse_error err;
        int rc = 1;
        if (dse_device_open("cpu", 2, &device, &err) == DSE_OK &&
            device->ops->load(device, &place->model.file, false, place->cache, &weights, &err) == DSE_OK) {
            rc = weights.resident_bytes == 0 ? 0 : 2;
            device->ops->unload(device, &weights);
            dse_device_close(device);
        }
        _exit(rc);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    find_pack(place, path);
    assert_true(path[0] != '\0');
}

/* ---- latent attention and experts: matrices per head, cut out of one tensor or transposed ------------------------ */

enum { HEADS = 5, EXPERTS = 3, ROPE = 8, VOCAB = 37 };

struct latent_case {
    enum dse_type type;
    bool joined; /* kv_b as one tensor */
    int cols;    /* n_embd, both ranks, n_ff: whole blocks of the type */
    int nope, v;
    float scale; /* of F8_E4M3 blocks, at most */
};

static const struct latent_case latent_cases[] = {
    {DSE_TYPE_F32, false, 44, 24, 20, 0},          {DSE_TYPE_F32, true, 44, 24, 20, 0},
    {DSE_TYPE_BF16, false, 33, 7, 9, 0},           {DSE_TYPE_BF16, true, 33, 24, 20, 0},
    {DSE_TYPE_F16, false, 40, 16, 32, 0},          {DSE_TYPE_F16, true, 40, 17, 15, 0},
    {DSE_TYPE_Q8_0, false, 64, 32, 20, 0},         {DSE_TYPE_Q8_0, true, 64, 24, 20, 0},
    {DSE_TYPE_Q4_K, false, 256, 256, 20, 0},       {DSE_TYPE_Q4_K, true, 256, 24, 20, 0},
    {DSE_TYPE_Q4_0, true, 96, 31, 33, 0},          {DSE_TYPE_F8_E4M3, true, 200, 24, 20, 0.01f},
    {DSE_TYPE_F8_E4M3, true, 128, 128, 128, 1.0f},
};
enum { N_LATENT_CASES = sizeof latent_cases / sizeof *latent_cases };

struct latent_model {
    struct dse_model_file file;
    struct dse_layer_tensors layers[2]; /* dense, experts */
    struct dse_expert_tensors experts[EXPERTS];
    struct dse_tensor tensors[48];
    void *owned[128];
    int n_tensors, n_owned;
    struct random random;
};

static void *own(struct latent_model *model, size_t bytes)
{
    void *data = calloc(1, bytes);
    assert_non_null(data);
    assert_true(model->n_owned < (int)(sizeof model->owned / sizeof *model->owned));
    return model->owned[model->n_owned++] = data;
}

static void fill_values(struct random *random, enum dse_type type, uint8_t *data, size_t bytes)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)type);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)random_u32(random);
        if (type == DSE_TYPE_F8_E4M3 && (data[i] & 0x7F) == 0x7F) data[i] = 0x81;
    }
    for (size_t at = 0; at < bytes && type != DSE_TYPE_F8_E4M3; at += (size_t)info->block_bytes) {
        const float value = random_float(random, -1, 1);
        const uint16_t half = dse_f32_to_f16(info->block_elements == 1 ? value : value * 0.02f);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        const uint16_t high = (uint16_t)(bits >> 16);
        if (type == DSE_TYPE_F32)
            memcpy(data + at, &value, sizeof value);
        else
            memcpy(data + at, type == DSE_TYPE_BF16 ? &high : &half, sizeof half);
        if (type == DSE_TYPE_Q4_K) memcpy(data + at + 2, &half, sizeof half);
    }
}

static struct dse_tensor latent_tensor(struct latent_model *model, const struct latent_case *c, enum dse_type type,
                                       const char *name, int heads, int rows, int cols)
{
    size_t row_bytes, r = (size_t)rows, n = (size_t)cols, all = r * (size_t)(heads > 0 ? heads : 1);
    assert_true(dse_type_row_bytes(type, n, &row_bytes));
    struct dse_tensor tensor = {
        .name = name, .type = type, .n_dims = 2, .shape = {r, n, 1, 1}, .bytes = all * row_bytes};
    if (heads > 0) {
        tensor.n_dims = 3;
        tensor.shape[0] = (size_t)heads, tensor.shape[1] = r, tensor.shape[2] = n;
    }
    uint8_t *data = own(model, tensor.bytes);
    fill_values(&model->random, type, data, tensor.bytes);
    tensor.data = data;
    if (type == DSE_TYPE_F8_E4M3) { /* at an odd address, as files may have them */
        const size_t n_scales = (all + 127) / 128 * ((n + 127) / 128);
        uint8_t *scales = own(model, n_scales * sizeof(float) + 1);
        for (size_t i = 0; i < n_scales; i++) {
            const float scale = i == 0 ? c->scale : c->scale * random_float(&model->random, 0.0625f, 1);
            memcpy(scales + 1 + i * sizeof scale, &scale, sizeof scale);
        }
        tensor.block_scales = scales + 1;
    }
    return tensor;
}

static const struct dse_tensor *latent_add(struct latent_model *model, const struct latent_case *c, const char *name,
                                           int heads, int rows, int cols)
{
    /* as in files: a tensor whose rows are no whole blocks has another type */
    const struct dse_type_info *info = dse_type_info((uint32_t)c->type);
    const enum dse_type type = cols % info->block_elements == 0 ? c->type : DSE_TYPE_F32;
    assert_true(model->n_tensors < (int)(sizeof model->tensors / sizeof *model->tensors));
    model->tensors[model->n_tensors] = latent_tensor(model, c, type, name, heads, rows, cols);
    return &model->tensors[model->n_tensors++];
}

static const struct dse_tensor *latent_vector(struct latent_model *model, const char *name, int n)
{
    const struct latent_case plain = {.type = DSE_TYPE_F32};
    return latent_add(model, &plain, name, 0, 1, n);
}

static void latent_init(struct latent_model *model, const struct latent_case *c, char *path)
{
    const struct latent_case plain = {.type = DSE_TYPE_F32};
    const int d = c->cols;
    memset(model, 0, sizeof *model);
    model->random.state = (uint64_t)c->type * 2 + c->joined; /* the pack cache tells models of one path apart by data */
    model->file = (struct dse_model_file){.path = path, .layers = model->layers};
    model->file.config = (struct dse_config){
        .n_layers = 2,
        .n_embd = d,
        .n_heads = HEADS,
        .n_kv_heads = 1,
        .head_dim = c->nope + ROPE,
        .n_ff = d,
        .n_vocab = VOCAB,
        .context_length = 512,
        .rms_eps = 1e-6f,
        .rope = {.theta = 10000, .dimensions = ROPE},
        .latent = {.kv_rank = d, .q_rank = d, .nope = c->nope, .rope = ROPE, .v = c->v},
        .moe = {.n_experts = EXPERTS, .n_used = 2, .n_shared = 1, .n_ff = d, .n_dense_layers = 1, .scale = 1}};
    for (int i = 0; i < 2; i++) {
        struct dse_layer_tensors *l = &model->layers[i];
        l->attn_norm = latent_vector(model, "attn_norm", d);
        l->ffn_norm = latent_vector(model, "ffn_norm", d);
        l->q_a_norm = latent_vector(model, "q_a_norm", d);
        l->kv_a_norm = latent_vector(model, "kv_a_norm", d);
        l->q_a = latent_add(model, c, "q_a", 0, d, d);
        l->q_b = latent_add(model, c, "q_b", 0, HEADS * (c->nope + ROPE), d);
        l->kv_a = latent_add(model, c, "kv_a", 0, d + ROPE, d);
        l->o = latent_add(model, c, "o", 0, d, HEADS * c->v);
        if (c->joined) {
            l->kv_b.joined = latent_add(model, c, "kv_b", 0, HEADS * (c->nope + c->v), d);
        } else {
            l->kv_b.k_b = latent_add(model, c, "k_b", HEADS, d, c->nope);
            l->kv_b.v_b = latent_add(model, c, "v_b", HEADS, c->v, d);
        }
    }
    struct dse_layer_tensors *dense = &model->layers[0], *moe = &model->layers[1];
    dense->gate = latent_add(model, c, "gate", 0, d, d);
    dense->up = latent_add(model, c, "up", 0, d, d);
    dense->down = latent_add(model, c, "down", 0, d, d);
    moe->router = latent_add(model, &plain, "router", 0, EXPERTS, d);
    moe->shared_gate = latent_add(model, c, "shared_gate", 0, d, d);
    moe->shared_up = latent_add(model, c, "shared_up", 0, d, d);
    moe->shared_down = latent_add(model, c, "shared_down", 0, d, d);
    moe->experts = model->experts;
    for (int e = 0; e < EXPERTS; e++) {
        model->experts[e].gate = latent_tensor(model, c, c->type, "expert gate", 0, d, d);
        model->experts[e].up = latent_tensor(model, c, c->type, "expert up", 0, d, d);
        model->experts[e].down = latent_tensor(model, c, c->type, "expert down", 0, d, d);
    }
    model->file.output_norm = latent_vector(model, "output_norm", d);
    model->file.token_embd = latent_add(model, &plain, "token_embd", 0, VOCAB, d);
    model->file.output = latent_add(model, c, "output", 0, VOCAB, d);
}

static void latent_deinit(struct latent_model *model)
{
    for (int i = 0; i < model->n_owned; i++)
        free(model->owned[i]);
}

/* [cols][rows]: the products with all unit vectors. The caller frees. */
static float *read_matrix(const struct dse_matrix *w)
{
    const size_t cols = w->cols, blocks = cols / DSE_ACT_BLOCK;
    const size_t bytes = (dse_activation_bytes(cols, cols) + 63) / 64 * 64;
    float *x = calloc(cols * cols, sizeof *x), *y = calloc(cols * w->rows, sizeof *y);
    void *memory = aligned_alloc(64, bytes);
    assert_true(x != NULL && y != NULL && memory != NULL);
    memset(memory, 0, bytes);
    struct dse_activation act = {.x = x, .stride = cols};
    if (dse_layout_uses_s8(w->layout)) {
        dse_activation_place(&act, memory, cols, cols);
        act.x = x;
    }
    for (size_t k = 0; k < cols; k++) {
        x[k * cols + k] = 1;
        if (!dse_layout_uses_s8(w->layout)) continue;
        act.values[k * cols + k] = 1;
        act.half_sums[k * 2 * blocks + k / 16] = 1;
        act.sums[k * blocks + k / DSE_ACT_BLOCK] = 1;
        for (size_t b = 0; b < blocks; b++)
            act.scales[k * blocks + b] = 1;
    }
    dse_matmul(w, &act, cols, 0, w->rows, NULL, false, y, w->rows);
    free(x);
    free(memory);
    return y;
}

/* w is the transpose, or not, of n rows of the tensor; f16 values are the nearest to the tensor's. */
static void check_part(const struct dse_matrix *w, const struct dse_tensor *tensor, size_t first, size_t n,
                       bool transposed)
{
    const size_t cols = tensor->shape[tensor->n_dims - 1];
    float *decoded = calloc(n * cols, sizeof *decoded), *got = read_matrix(w);
    size_t row_bytes;
    assert_non_null(decoded);
    assert_true(dse_type_row_bytes(tensor->type, cols, &row_bytes));
    if (tensor->type == DSE_TYPE_F8_E4M3)
        dse_fp8_decode_rows(tensor->data, tensor->block_scales, cols, first, n, decoded);
    else
        dse_type_decode(tensor->type, (const uint8_t *)tensor->data + first * row_bytes, decoded, n * cols);
    assert_int_equal(w->rows, transposed ? cols : n);
    assert_int_equal(w->cols, transposed ? n : cols);
    for (size_t r = 0; r < n; r++)
        for (size_t k = 0; k < cols; k++) {
            float expected = decoded[r * cols + k], value = got[transposed ? r * cols + k : k * n + r];
            if (w->layout == DSE_LAYOUT_F16) expected = dse_f16_to_f32(dse_f32_to_f16(expected));
            if (value != expected)
                fail_msg("%s of %s as %s, row %zu, column %zu: %a, not %a", tensor->name,
                         dse_type_info((uint32_t)tensor->type)->name, dse_layout_name(w->layout), first + r, k,
                         (double)value, (double)expected);
        }
    free(got);
    free(decoded);
}

/* K parts of split tensors, which are [rank, nope]: turned, and blocks in new blocks of 32 along the rank. */
static void check_turned_again(const struct dse_head_matrix *heads, const struct dse_tensor *tensor, bool f32)
{
    const size_t rank = tensor->shape[1], nope = tensor->shape[2], n = rank * nope;
    const bool blocks = heads->head.layout == DSE_LAYOUT_Q8;
    float *decoded = calloc(HEADS * n, sizeof *decoded);
    size_t row_bytes;
    assert_true(dse_type_row_bytes(tensor->type, nope, &row_bytes));
    dse_type_decode(tensor->type, tensor->data, decoded, HEADS * n);
    assert_int_equal(heads->n_heads, HEADS);
    assert_int_equal(blocks, !f32 && dse_type_info((uint32_t)tensor->type)->block_elements > 1);
    for (size_t h = 0; h < HEADS; h++) {
        struct dse_matrix w = heads->head;
        w.data = (const uint8_t *)w.data + h * heads->head_bytes;
        assert_int_equal(w.rows, nope);
        assert_int_equal(w.cols, rank);
        float *got = read_matrix(&w); /* [rank][nope] */
        for (size_t i = 0; i < n; i++) {
            const float *column = decoded + h * n + i % nope;
            float most = 0;
            for (size_t r = i / nope / 32 * 32; blocks && r < i / nope / 32 * 32 + 32; r++)
                most = fmaxf(most, fabsf(column[r * nope]));
            /* half a step, and the clamp where the scale was rounded down */
            if (!(fabsf(got[i] - decoded[h * n + i]) <= most * (0.5f / 127 + 0x1p-11f)))
                fail_msg("head %zu, rank %zu, value %zu: %a, not %a", h, i / nope, i % nope, (double)got[i],
                         (double)decoded[h * n + i]);
        }
        free(got);
    }
    free(decoded);
}

static void check_whole(const struct dse_matrix *w, const struct dse_tensor *tensor, bool f32)
{
    check_part(w, tensor, 0, tensor->shape[0], false);
    assert_int_equal(w->layout, dse_matrix_layout(tensor->type, tensor->shape[1], f32));
}

static void check_heads(const struct dse_head_matrix *heads, const struct dse_tensor *tensor, size_t group_rows,
                        size_t first_row, size_t n, bool transposed)
{
    assert_int_equal(heads->n_heads, HEADS);
    for (size_t h = 0; h < HEADS; h++) {
        struct dse_matrix w = heads->head;
        w.data = (const uint8_t *)w.data + h * heads->head_bytes;
        check_part(&w, tensor, h * group_rows + first_row, n, transposed);
    }
}

static void check_latent(const struct latent_model *model, const struct latent_case *c,
                         const struct dse_device_weights *weights, bool f32)
{
    const size_t nope = (size_t)c->nope, v = (size_t)c->v, rank = (size_t)c->cols;
    for (int i = 0; i < 2; i++) {
        const struct dse_layer *layer = &weights->layers[i];
        const struct dse_layer_tensors *t = &model->layers[i];
        check_whole(&layer->q_a, t->q_a, f32);
        check_whole(&layer->q_b, t->q_b, f32);
        check_whole(&layer->kv_a, t->kv_a, f32);
        check_whole(&layer->o, t->o, f32);
        if (c->joined) {
            check_heads(&layer->k_b, t->kv_b.joined, nope + v, 0, nope, true);
            check_heads(&layer->v_b, t->kv_b.joined, nope + v, nope, v, false);
        } else {
            check_heads(&layer->k_b, t->kv_b.k_b, rank, 0, rank, false);
            check_heads(&layer->v_b, t->kv_b.v_b, v, 0, v, false);
        }
        if (!model->file.config.latent.expand)
            assert_null(layer->k_up.head.data);
        else if (c->joined)
            check_heads(&layer->k_up, t->kv_b.joined, nope + v, 0, nope, false);
        else
            check_turned_again(&layer->k_up, t->kv_b.k_b, f32);
    }
    const struct dse_layer *dense = &weights->layers[0], *moe = &weights->layers[1];
    check_whole(&dense->gate, model->layers[0].gate, f32);
    check_whole(&dense->up, model->layers[0].up, f32);
    check_whole(&dense->down, model->layers[0].down, f32);
    check_whole(&moe->router, model->layers[1].router, true);
    check_whole(&moe->shared.gate, model->layers[1].shared_gate, f32);
    check_whole(&moe->shared.up, model->layers[1].shared_up, f32);
    check_whole(&moe->shared.down, model->layers[1].shared_down, f32);
    for (int e = 0; e < EXPERTS; e++) {
        check_whole(&moe->experts[e].gate, &model->experts[e].gate, f32);
        check_whole(&moe->experts[e].up, &model->experts[e].up, f32);
        check_whole(&moe->experts[e].down, &model->experts[e].down, f32);
    }
    check_whole(&weights->output, model->file.output, f32);
}

static struct dse_device_weights load_latent(struct dse_device *device, const struct latent_model *model, bool f32,
                                             const char *cache)
{
    struct dse_device_weights weights;
    struct dse_error err;
    if (device->ops->load(device, &model->file, f32, cache, &weights, &err) != DSE_OK) fail_msg("%s", err.message);
    return weights;
}

static void matrices_whole_per_head_and_transposed_hold_the_values_of_the_file(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < N_LATENT_CASES; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct latent_model model;
            latent_init(&model, &latent_cases[i], place->model_path);
            struct dse_device_weights weights = load_latent(place->device, &model, f32, NULL);
            check_latent(&model, &latent_cases[i], &weights, f32);
            unload(place, &weights);
            latent_deinit(&model);
        }
}

/* The matrix that fast numerics need beside the others: its values, and its size as `show` tells it. */
static void fast_numerics_load_the_way_from_latent_to_key(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < N_LATENT_CASES; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct latent_model model;
            latent_init(&model, &latent_cases[i], place->model_path);
            model.file.config.latent.expand = true;
            struct dse_device_weights weights = load_latent(place->device, &model, f32, NULL);
            check_latent(&model, &latent_cases[i], &weights, f32);
            assert_int_equal(dse_expansion_bytes(&model.file, f32),
                             HEADS * (weights.layers[0].k_up.head_bytes + weights.layers[1].k_up.head_bytes));
            unload(place, &weights);
            latent_deinit(&model);
        }
}

static void packs_with_and_without_fast_numerics_are_two_files(void **state)
{
    struct place *place = *state;
    struct latent_model model;
    int files = 0;
    latent_init(&model, &latent_cases[7], place->model_path);
    for (int round = 0; round < 2; round++)
        for (int fast = 0; fast < 2; fast++) {
            model.file.config.latent.expand = fast;
            struct dse_device_weights weights = load_latent(place->device, &model, false, place->cache);
            assert_int_equal(weights.resident_bytes, 0);
            check_latent(&model, &latent_cases[7], &weights, false);
            unload(place, &weights);
        }
    DIR *dir = opendir(place->cache);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        files += e->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(files, 2);
    latent_deinit(&model);
}

static void transposed_heads_become_16_bit_floats(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < N_LATENT_CASES; i++) {
        if (!latent_cases[i].joined) continue;
        struct latent_model model;
        latent_init(&model, &latent_cases[i], place->model_path);
        struct dse_device_weights weights = load_latent(place->device, &model, false, NULL);
        const enum dse_type type = latent_cases[i].type;
        assert_int_equal(weights.layers[0].k_b.head.layout, type == DSE_TYPE_F32    ? DSE_LAYOUT_F32
                                                            : type == DSE_TYPE_BF16 ? DSE_LAYOUT_BF16
                                                                                    : DSE_LAYOUT_F16);
        assert_int_equal(weights.layers[0].v_b.head.layout, dse_matrix_layout(type, 256, false));
        unload(place, &weights);
        latent_deinit(&model);
    }
}

/* The scale of one block decides: the last of the K part, or one of the V part, which keeps its blocks. */
static void blocks_beyond_half_precision_are_transposed_as_f32(void **state)
{
    static const struct {
        enum dse_type type;
        int cols, row;
        float scale;
        uint8_t quant; /* every byte behind the scale */
        enum dse_layout expected;
    } blocks[] = {
        {DSE_TYPE_Q8_0, 64, 44 * 4 + 23, 655.0f, 100, DSE_LAYOUT_F16},
        {DSE_TYPE_Q8_0, 64, 44 * 4 + 23, 656.0f, 100, DSE_LAYOUT_F32},
        {DSE_TYPE_Q8_0, 64, 44 * 4 + 23, -65504.0f, 0x81, DSE_LAYOUT_F32},
        {DSE_TYPE_Q8_0, 64, 44 * 4 + 24, 65504.0f, 100, DSE_LAYOUT_F16},
        {DSE_TYPE_Q8_0, 288, 44 * 4 + 23, 656.0f, 100, DSE_LAYOUT_F32},
        {DSE_TYPE_Q4_0, 96, 44 * 4 + 23, 9000.0f, 0, DSE_LAYOUT_F32},
        {DSE_TYPE_Q4_K, 256, 44 * 4 + 23, 1000.0f, 0x77, DSE_LAYOUT_F32},
        {DSE_TYPE_F16, 40, 44 * 4 + 23, 65504.0f, 0x77, DSE_LAYOUT_F16},
    };
    struct place *place = *state;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        struct latent_model model;
        const struct latent_case c = {blocks[i].type, true, blocks[i].cols, 24, 20, 0};
        latent_init(&model, &c, place->model_path);
        const struct dse_tensor *joined = model.layers[1].kv_b.joined;
        const size_t bytes = (size_t)dse_type_info((uint32_t)c.type)->block_bytes;
        const size_t end = joined->bytes / joined->shape[0] * (size_t)(blocks[i].row + 1);
        uint8_t *block = (uint8_t *)joined->data + end - bytes; /* the last one of its row */
        const uint16_t half = dse_f32_to_f16(blocks[i].scale);
        memcpy(block, &half, sizeof half);
        memset(block + 2, blocks[i].quant, bytes - 2);
        struct dse_device_weights weights = load_latent(place->device, &model, false, NULL);
        assert_int_equal(weights.layers[0].k_b.head.layout, DSE_LAYOUT_F16);
        assert_int_equal(weights.layers[1].k_b.head.layout, blocks[i].expected);
        assert_int_equal(weights.layers[1].v_b.head.layout, dse_matrix_layout(c.type, (size_t)c.cols, false));
        check_heads(&weights.layers[1].k_b, joined, 44, 0, 24, true);
        unload(place, &weights);
        latent_deinit(&model);
    }
}

/* Too large for f16, too small for it, too large for the FP8 layout. */
static void fp8_scales_that_a_layout_cannot_follow_mean_f32(void **state)
{
    static const struct {
        float scale;
        enum dse_layout transposed, plain;
    } scales[] = {
        {146.2f, DSE_LAYOUT_F16, DSE_LAYOUT_FP8},   {147.0f, DSE_LAYOUT_F32, DSE_LAYOUT_FP8},
        {2.2e-6f, DSE_LAYOUT_F16, DSE_LAYOUT_FP8},  {2.1e-6f, DSE_LAYOUT_F32, DSE_LAYOUT_FP8},
        {1e-30f, DSE_LAYOUT_F32, DSE_LAYOUT_FP8},   {0, DSE_LAYOUT_F32, DSE_LAYOUT_FP8},
        {0x1p118f, DSE_LAYOUT_F32, DSE_LAYOUT_FP8}, {0x1p119f, DSE_LAYOUT_F32, DSE_LAYOUT_F32},
    };
    struct place *place = *state;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        struct latent_model model;
        const struct latent_case c = {DSE_TYPE_F8_E4M3, true, 130, 24, 20, scales[i].scale};
        latent_init(&model, &c, place->model_path);
        struct dse_device_weights weights = load_latent(place->device, &model, false, NULL);
        const struct dse_layer *layer = &weights.layers[1];
        assert_int_equal(layer->k_b.head.layout, scales[i].transposed);
        assert_int_equal(layer->v_b.head.layout, scales[i].plain);
        assert_int_equal(layer->experts[2].down.layout, scales[i].plain);
        check_heads(&layer->k_b, model.layers[1].kv_b.joined, 44, 0, 24, true);
        check_heads(&layer->v_b, model.layers[1].kv_b.joined, 44, 24, 20, false);
        check_part(&layer->experts[2].down, &model.experts[2].down, 0, 130, false);
        unload(place, &weights);
        latent_deinit(&model);
    }
}

static void packed_bytes_do_not_depend_on_threads_or_the_cache(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < N_LATENT_CASES; i++) {
        struct latent_model model;
        latent_init(&model, &latent_cases[i], place->model_path);
        struct dse_device_weights first = load_latent(place->device, &model, false, NULL);
        const void *bytes = first.layers[0].q_a.data; /* the matrix that is used first lies first */
        for (int threads = 1; threads <= 3; threads++)
            for (int run = 0; run < 3; run++) { /* memory, cache built by the first, cache */
                struct dse_device *device;
                struct dse_error err;
                assert_int_equal(dse_device_open("cpu", threads, &device, &err), DSE_OK);
                struct dse_device_weights weights = load_latent(device, &model, false, run > 0 ? place->cache : NULL);
                assert_true((weights.resident_bytes == 0) == (run > 0));
                assert_int_equal(weights.storage_bytes, first.storage_bytes);
                assert_memory_equal(weights.layers[0].q_a.data, bytes, first.storage_bytes);
                device->ops->unload(device, &weights);
                dse_device_close(device);
            }
        unload(place, &first);
        latent_deinit(&model);
    }
}

/* With a cache folder, what the cache lacks memory for is packed into memory: the load may succeed, but leaks nothing. */
static void load_with_experts_reports_lack_of_memory_at_every_allocation(void **state)
{
    struct place *place = *state;
    struct latent_model model;
    latent_init(&model, &latent_cases[N_LATENT_CASES - 2], place->model_path);
    size_t before[DSE_MEM_COUNT];
    for (int tag = 0; tag < DSE_MEM_COUNT; tag++)
        before[tag] = dse_mem_live_bytes((enum dse_mem)tag);
    for (int cached = 0; cached < 2; cached++)
        for (long n = 1, failures = 0, successes = 0; successes < 40; n++) {
            struct dse_device_weights weights;
            struct dse_error err;
            dse_alloc_fail_after(n);
            const enum dse_status status = place->device->ops->load(place->device, &model.file, false,
                                                                    cached ? place->cache : NULL, &weights, &err);
            dse_alloc_fail_after(0);
            if (status == DSE_OK) {
                assert_int_equal(weights.layers[1].experts[2].down.layout, DSE_LAYOUT_FP8);
                unload(place, &weights);
                successes++;
            } else {
                assert_int_equal(status, DSE_ERR_NO_MEMORY);
                assert_true(strlen(err.message) > 0);
                assert_null(weights.layers);
                failures++;
            }
            for (int tag = 0; tag < DSE_MEM_COUNT; tag++)
                assert_int_equal(dse_mem_live_bytes((enum dse_mem)tag), before[tag]);
            if (!cached && status == DSE_OK) {
                assert_true(failures >= 7); /* layers, storage, vectors, experts, two tables, scratch, pages */
                break;
            }
        }
    latent_deinit(&model);
}

static void make_file(const struct place *place, const char *name, time_t used)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", place->cache, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("old", f);
    fclose(f);
    const struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool has_file(const struct place *place, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", place->cache, name);
    return access(path, F_OK) == 0;
}

static void cache_keeps_the_packs_used_last_and_no_leftovers(void **state)
{
    struct place *place = *state;
    char own[512], name[64];
    struct dse_device_weights weights = load(place, place->cache);
    unload(place, &weights);
    find_pack(place, own);
    const char *own_name = strrchr(own, '/') + 1;
    /* six other packs, the third and the fifth used longest ago; ours looks older than all of them */
    static const time_t used[6] = {600, 500, 10, 400, 20, 300};
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%032x.pack", i);
        make_file(place, name, used[i]);
    }
    make_file(place, own_name, 1);
    make_file(place, "00000000000000000000000000000001.tmp", 700);
    make_file(place, "00000000000000000000000000000002.tmp", 700);
    make_file(place, "notes.tmp", 1);
    make_file(place, "mine.pack", 1);
    snprintf(name, sizeof name, "%.64s", "00000000000000000000000000000002.tmp");
    char locked[512];
    snprintf(locked, sizeof locked, "%s/%s", place->cache, name);
    int fd = open(locked, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); /* another process is packing */

    weights = load(place, place->cache);
    assert_int_equal(weights.resident_bytes, 0);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%032x.pack", i);
        assert_int_equal(has_file(place, name), i != 2 && i != 4);
    }
    assert_true(has_file(place, own_name));
    assert_false(has_file(place, "00000000000000000000000000000001.tmp"));
    assert_true(has_file(place, "00000000000000000000000000000002.tmp"));
    assert_true(has_file(place, "notes.tmp"));
    assert_true(has_file(place, "mine.pack"));
    close(fd);
    unload(place, &weights);

    /* using a pack makes it the youngest */
    make_file(place, "0000000000000000000000000000000a.pack", 1);
    struct stat st;
    weights = load(place, place->cache);
    unload(place, &weights);
    assert_int_equal(stat(own, &st), 0);
    assert_true(st.st_mtim.tv_sec > 1000);
    assert_false(has_file(place, "0000000000000000000000000000000a.pack"));
    assert_false(has_file(place, "00000000000000000000000000000002.tmp"));
}

/* Names in the cache folder of which somebody made something else. */
static void cache_names_that_are_pipes_or_links_neither_hang_nor_reach_other_files(void **state)
{
    struct place *place = *state;
    char path[512], temporary[512], victim[128], content[8] = "";
    struct stat st;
    struct dse_device_weights memory = load(place, NULL), weights = load(place, place->cache);
    unload(place, &weights);
    find_pack(place, path);
    snprintf(temporary, sizeof temporary, "%.*s.tmp", (int)(strlen(path) - strlen(".pack")), path);
    snprintf(victim, sizeof victim, "%s/victim", place->folder);

    assert_int_equal(unlink(path), 0); /* a pipe is no pack: it is replaced */
    assert_int_equal(mkfifo(path, 0600), 0);
    weights = load(place, place->cache);
    assert_int_equal(weights.resident_bytes, 0);
    assert_same_weights(&memory, &weights);
    unload(place, &weights);

    assert_int_equal(unlink(path), 0); /* nor is it written to */
    assert_int_equal(mkfifo(temporary, 0600), 0);
    weights = load(place, place->cache);
    assert_true(weights.resident_bytes > 0);
    assert_same_weights(&memory, &weights);
    unload(place, &weights);
    assert_int_equal(lstat(temporary, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));

    assert_int_equal(unlink(temporary), 0); /* a second name of another file, locked, so that it is not tidied away */
    FILE *f = fopen(victim, "w");
    assert_non_null(f);
    fputs("mine", f);
    fclose(f);
    assert_int_equal(link(victim, temporary), 0);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(victim, O_RDONLY);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(ready[1], "x", 1) != 1) _exit(1);
        usleep(300000);
        _exit(0);
    }
    assert_int_equal(read(ready[0], content, 1), 1);
    weights = load(place, place->cache);
    assert_true(weights.resident_bytes > 0);
    unload(place, &weights);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    f = fopen(victim, "r");
    assert_non_null(f);
    assert_int_equal(fread(content, 1, sizeof content, f), 4);
    assert_memory_equal(content, "mine", 4);
    fclose(f);
    unload(place, &memory);
}

#define CORE_BYTES (2 * DSE_PACK_CHUNK_BYTES)
#define ALL_BYTES  (CORE_BYTES + 4096)

static void count_fill(void *context, uint8_t *data)
{
    memset(data, 7, ALL_BYTES);
    ++*(int *)context;
}

/* Flips a byte of the data in the one pack of the cache, opens it again and tells how often it has been built by then. */
static int fills_after_damage(struct place *place, size_t at, size_t check_bytes)
{
    const struct pack_entry entry = {.rows = 1, .cols = ALL_BYTES, .bytes = ALL_BYTES};
    const struct pack_plan plan = {&entry, 1, ALL_BYTES, CORE_BYTES, check_bytes};
    const struct pack_key key = {{1, 2}};
    int fills = 0;
    for (int i = 0; i < 2; i++) {
        struct pack_map map;
        struct dse_error err;
        bool built;
        char path[512];
        if (dse_pack_cache_open(place->cache, key, &plan, place->device->pool, count_fill, &fills, &map, &built,
                                &err) != DSE_OK)
            fail_msg("%s", err.message);
        size_t in_file = (size_t)(map.data - (const uint8_t *)map.map) + at;
        dse_pack_map_close(&map);
        find_pack(place, path);
        int fd = open(path, O_RDWR);
        assert_int_equal(pwrite(fd, "?", 1, (off_t)in_file), 1);
        close(fd);
    }
    return fills;
}

static void experts_of_a_model_beyond_the_memory_are_not_read_to_check_them(void **state)
{
    struct place *place = *state;
    assert_int_equal(fills_after_damage(place, CORE_BYTES + 5, CORE_BYTES), 1);
    assert_int_equal(fills_after_damage(place, CORE_BYTES - 1, CORE_BYTES), 1); /* good but for the damage above */
    assert_int_equal(fills_after_damage(place, CORE_BYTES + 5, ALL_BYTES), 2);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(device_names_other_than_cpu_are_refused_by_name),
        CASE(device_list_names_the_cpu_first_and_says_why_others_are_missing),
        CASE(load_without_cache_counts_its_memory_and_gives_it_back),
        CASE(load_with_compute_f32_packs_f32),
        CASE(load_reports_lack_of_memory_at_every_allocation),
        CASE(load_names_a_tensor_it_cannot_decode),
        CASE(load_without_cache_refuses_more_than_there_is_with_both_numbers),
        CASE(matrices_whole_per_head_and_transposed_hold_the_values_of_the_file),
        CASE(fast_numerics_load_the_way_from_latent_to_key),
        CASE(packs_with_and_without_fast_numerics_are_two_files),
        CASE(transposed_heads_become_16_bit_floats),
        CASE(blocks_beyond_half_precision_are_transposed_as_f32),
        CASE(fp8_scales_that_a_layout_cannot_follow_mean_f32),
        CASE(packed_bytes_do_not_depend_on_threads_or_the_cache),
        CASE(load_with_experts_reports_lack_of_memory_at_every_allocation),
        CASE(cache_is_built_once_and_then_reused_without_anonymous_memory),
        CASE(cache_with_any_damage_is_built_again),
        CASE(cache_cut_short_is_built_again),
        CASE(cache_of_a_changed_model_is_not_used),
        CASE(cache_folder_that_cannot_be_used_means_memory),
        CASE(cache_is_shared_by_processes_that_start_at_once),
        CASE(cache_left_half_built_by_a_killed_process_is_no_obstacle),
        CASE(cache_keeps_the_packs_used_last_and_no_leftovers),
        CASE(experts_of_a_model_beyond_the_memory_are_not_read_to_check_them),
        CASE(cache_names_that_are_pipes_or_links_neither_hang_nor_reach_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Opening devices and loading weights: names, the pack cache in every state a folder can be in, lack of memory. */
#include <dirent.h>
#include <fcntl.h>
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
#include "device_data.h"

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
        CASE(cache_is_built_once_and_then_reused_without_anonymous_memory),
        CASE(cache_with_any_damage_is_built_again),
        CASE(cache_cut_short_is_built_again),
        CASE(cache_of_a_changed_model_is_not_used),
        CASE(cache_folder_that_cannot_be_used_means_memory),
        CASE(cache_is_shared_by_processes_that_start_at_once),
        CASE(cache_left_half_built_by_a_killed_process_is_no_obstacle),
        CASE(cache_keeps_the_packs_used_last_and_no_leftovers),
        CASE(cache_names_that_are_pipes_or_links_neither_hang_nor_reach_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The disk tier of the prefix cache: files that come back, files that must not, and the folder around them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/engine_internal.h"
#include "engine/prefix_file.h"
#include "engine_support.h"

#define BLOCK_BYTES 1024

static char parent_folder[] = "/tmp/dse-prefix-disk-XXXXXX";
static char folder[64];
static int32_t prompt[300];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(parent_folder, sizeof parent_folder, "/tmp/dse-prefix-disk-XXXXXX");
    if (mkdtemp(parent_folder) == NULL) return -1;
    (void)snprintf(folder, sizeof folder, "%s/a/b", parent_folder);
    fill_prompt(prompt, 300, 512, 21);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", parent_folder);
    return system(command) == 0 ? 0 : -1;
}

/* ---- one file ---- */

static struct dse_prefix_file_header some_header(void)
{
    struct dse_prefix_file_header header = {.scope = {.model = {1, 2}, .adapter = 3, .salt = {4, 5}},
                                            .hash = 0xabcdef,
                                            .parent_hash = 7,
                                            .id = {8, 9},
                                            .parent = {10, 11},
                                            .block_bytes = BLOCK_BYTES,
                                            .depth = 2};
    for (int i = 0; i < DSE_KV_BLOCK_TOKENS; i++)
        header.tokens[i] = 100 + i;
    return header;
}

static int open_parent(void)
{
    int fd = open(parent_folder, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    return fd;
}

static enum dse_status read_back(int fd, const struct dse_prefix_file_header *want, uint8_t *data)
{
    struct dse_error error;
    struct dse_prefix_id id = {0};
    enum dse_status status = dse_prefix_file_read(fd, want, data, &id, &error);
    if (status == DSE_OK) assert_true(id.epoch == 8 && id.serial == 9);
    return status;
}

static void prefix_file_comes_back_as_it_was(void **state)
{
    (void)state;
    struct dse_prefix_file_header header = some_header();
    struct dse_error error;
    struct stat st;
    uint8_t data[BLOCK_BYTES], back[BLOCK_BYTES];
    int fd = open_parent();
    for (int i = 0; i < BLOCK_BYTES; i++)
        data[i] = (uint8_t)(i * 7);
    assert_int_equal(dse_prefix_file_write(fd, &header, data, &error), DSE_OK);
    assert_int_equal(read_back(fd, &header, back), DSE_OK);
    assert_memory_equal(data, back, BLOCK_BYTES);
    assert_int_equal(fstatat(fd, "0000000000000001-0000000000abcdef-00000002.kv", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    (void)close(fd);
}

static void prefix_file_of_another_beginning_is_not_found(void **state)
{
    (void)state;
    struct dse_prefix_file_header header = some_header();
    struct dse_error error;
    uint8_t data[BLOCK_BYTES] = {1};
    int fd = open_parent();
    assert_int_equal(dse_prefix_file_write(fd, &header, data, &error), DSE_OK);
    for (int i = 0; i < 7; i++) {
        struct dse_prefix_file_header want = some_header();
        if (i == 0) want.scope.model[1]++;
        if (i == 1) want.scope.adapter++;
        if (i == 2) want.scope.salt[0]++;
        if (i == 3) want.scope.salt[1]++;
        if (i == 4) want.parent.epoch++;
        if (i == 5) want.parent.serial++;
        if (i == 6) want.tokens[31]++;
        assert_int_equal(read_back(fd, &want, data), DSE_ERR_NOT_FOUND);
    }
    struct dse_prefix_file_header want = some_header();
    want.hash++; /* no such name */
    assert_int_equal(read_back(fd, &want, data), DSE_ERR_NOT_FOUND);
    (void)close(fd);
}

static void prefix_file_with_any_bit_changed_or_any_length_cut_is_corrupt(void **state)
{
    (void)state;
    static const char name[] = "0000000000000001-0000000000abcdef-00000002.kv";
    struct dse_prefix_file_header header = some_header();
    struct dse_error error;
    uint8_t data[BLOCK_BYTES] = {1}, whole[sizeof header + BLOCK_BYTES + 1];
    const size_t bytes = sizeof header + BLOCK_BYTES;
    int fd = open_parent();
    assert_int_equal(dse_prefix_file_write(fd, &header, data, &error), DSE_OK);
    int file = openat(fd, name, O_RDWR);
    assert_int_equal(pread(file, whole, bytes, 0), bytes);
    for (size_t at = 0; at < bytes; at++) {
        uint8_t changed = whole[at] ^ (uint8_t)(1u << at % 8);
        assert_int_equal(pwrite(file, &changed, 1, (off_t)at), 1);
        assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT);
        assert_int_equal(pwrite(file, &whole[at], 1, (off_t)at), 1);
    }
    assert_int_equal(read_back(fd, &header, data), DSE_OK);
    for (size_t length = 0; length < bytes; length += 13) {
        assert_int_equal(ftruncate(file, (off_t)length), 0);
        assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT);
    }
    assert_int_equal(pwrite(file, whole, bytes + 1, 0), bytes + 1);
    assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT); /* longer than it should be */
    (void)close(file);
    (void)unlinkat(fd, name, 0);
    assert_int_equal(mkdirat(fd, name, 0700), 0);
    assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT);
    (void)unlinkat(fd, name, AT_REMOVEDIR);
    assert_int_equal(mkfifoat(fd, name, 0600), 0);
    assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT);
    (void)unlinkat(fd, name, 0);
    assert_int_equal(symlinkat("/etc/passwd", fd, name), 0);
    assert_int_equal(read_back(fd, &header, data), DSE_ERR_CORRUPT);
    (void)close(fd);
}

static void prefix_names_are_taken_only_when_they_are_exactly_ours(void **state)
{
    (void)state;
    struct dse_prefix_name name;
    assert_true(dse_prefix_name_parse("0123456789abcdef-00000000000000ff-0000001a.kv", &name));
    assert_true(name.model == 0x0123456789abcdef && name.hash == 0xff && name.depth == 0x1a);
    assert_true(dse_prefix_name_is_temporary("0123456789abcdef-00000000000000ff-0000001a.kv.new"));
    static const char *const others[] = {"",
                                         "lock",
                                         "x.kv",
                                         "0123456789abcdeF-00000000000000ff-0000001a.kv",
                                         "0123456789abcdef-00000000000000ff-0000001a.kx",
                                         "0123456789abcdef_00000000000000ff-0000001a.kv",
                                         "0123456789abcdef-00000000000000ff-0000001a.kv.new",
                                         "../3456789abcdef-00000000000000ff-0000001a.kv"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(dse_prefix_name_parse(others[i], &name));
    assert_false(dse_prefix_name_is_temporary("0123456789abcdef-00000000000000ff-0000001a.kv"));
    assert_false(dse_prefix_name_is_temporary("notes.new"));
}

/* ---- engines ---- */

static struct dse_request request_of(int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 3;
    request.ignore_eos = true;
    return request;
}

static const struct dse_engine_options on_disk = {.context_length = 256,
                                                  .prefix_caching = true,
                                                  .adapter_rank = 8,
                                                  .adapter_bytes = 1 << 20,
                                                  .prefix_cache_disk = folder};
static const struct dse_engine_options without = {.context_length = 256, .adapter_rank = 8, .adapter_bytes = 1 << 20};

static int count_files(const char *ending)
{
    DIR *listing = opendir(folder);
    int count = 0;
    if (listing == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        size_t n = strlen(entry->d_name), m = strlen(ending);
        count += n >= m && strcmp(entry->d_name + n - m, ending) == 0;
    }
    (void)closedir(listing);
    return count;
}

static int cached_by(struct dse_model *model, struct dse_engine_options options, struct dse_request request)
{
    struct dse_engine *engine = create_engine(model, options), *plain = create_engine(model, without);
    struct run *run = run_request(engine, request), *expected = run_request(plain, request);
    assert_true(runs_equal(run, expected));
    int n = run->choice[0].timings.n_cached;
    run_free(run);
    run_free(expected);
    wait_until_empty();
    dse_engine_free(engine);
    dse_engine_free(plain);
    return n;
}

static void prefix_disk_survives_a_restart_on_every_layout(void **state)
{
    (void)state;
    static const char *const paths[] = {"llama_linear", "deepseek_v2", "deepseek_v32"};
    int files = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct dse_model *model = open_reference(paths[i], DSE_COMPUTE_AUTO, 1);
        fill_prompt(prompt, 300, model->info.n_vocab, 21);
        assert_int_equal(cached_by(model, on_disk, request_of(100, 40)), 0);
        files += 4; /* 100 and 39 tokens */
        assert_int_equal(count_files(".kv"), files);
        assert_int_equal(cached_by(model, on_disk, request_of(100, 40)), 96);
        assert_int_equal(cached_by(model, on_disk, request_of(200, 5)), 96);
        files += 3;
        assert_int_equal(cached_by(model, on_disk, request_of(250, 5)), 192);
        files += 1;
        assert_int_equal(count_files(".kv"), files);
        dse_model_unref(model);
    }
    struct stat st;
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void prefix_disk_keeps_salts_and_kv_types_apart(void **state)
{
    (void)state;
    const struct dse_model_options options = {.n_threads = 1, .kv_cache = DSE_KV_CACHE_Q8_0};
    struct dse_model *model = open_reference("deepseek_v2", DSE_COMPUTE_AUTO, 1);
    struct dse_model *small = open_reference_as("deepseek_v2", options);
    struct dse_request request = request_of(100, 2);
    assert_int_equal(cached_by(model, on_disk, request), 0);
    request.cache_salt = "s";
    request.cache_salt_bytes = 1;
    assert_int_equal(cached_by(model, on_disk, request), 0);
    assert_int_equal(cached_by(model, on_disk, request), 96);
    assert_int_equal(cached_by(small, on_disk, request), 0);
    struct dse_adapter_use use = {open_adapter(model, "deepseek_v2/a"), 1};
    request.adapters = &use;
    request.n_adapters = 1;
    assert_int_equal(cached_by(model, on_disk, request), 0);
    assert_int_equal(cached_by(model, on_disk, request), 96);
    dse_adapter_unref(use.adapter);
    use.adapter = open_adapter(model, "deepseek_v2/a"); /* loaded again: the same content */
    assert_int_equal(cached_by(model, on_disk, request), 96);
    use.scale = 0.5f;
    assert_int_equal(cached_by(model, on_disk, request), 0);
    dse_adapter_unref(use.adapter);
    dse_model_unref(model);
    dse_model_unref(small);
}

static uint64_t block_file_bytes(const struct dse_model *model)
{
    return model->kv_layout.block_bytes + sizeof(struct dse_prefix_file_header);
}

static void prefix_disk_stays_within_its_space_and_gives_up_ends_first(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = on_disk;
    options.prefix_cache_disk_bytes = 5 * block_file_bytes(model);
    struct dse_engine *engine = create_engine(model, options);
    run_free(run_request(engine, request_of(130, 1))); /* four blocks */
    prompt[0] ^= 1;
    run_free(run_request(engine, request_of(70, 1))); /* two more: one must go */
    wait_until_empty();
    dse_engine_free(engine);
    assert_int_equal(count_files(".kv"), 5);
    assert_int_equal(cached_by(model, options, request_of(70, 1)), 64);
    prompt[0] ^= 1;
    assert_int_equal(cached_by(model, options, request_of(130, 1)), 96);
    options.prefix_cache_disk_bytes = 2 * block_file_bytes(model); /* a smaller space from now on */
    assert_int_equal(cached_by(model, options, request_of(20, 1)), 0);
    assert_int_equal(count_files(".kv"), 2);
    dse_model_unref(model);
}

static void prefix_disk_refuses_what_it_cannot_use(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = on_disk;
    struct dse_engine *engine = NULL, *other = create_engine(model, on_disk);
    struct dse_error error;
    uint64_t n_files, bytes;
    assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_BUSY);
    assert_int_equal(dse_prefix_cache_wipe(folder, &n_files, &bytes, &error), DSE_ERR_BUSY);
    dse_engine_free(other);
    assert_int_equal(chmod(folder, 0750), 0);
    assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_INVALID);
    assert_non_null(strstr(error.message, "chmod 700"));
    assert_int_equal(chmod(folder, 0700), 0);
    options.prefix_cache_disk_bytes = block_file_bytes(model) - 1;
    assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "prefix_cache_disk_bytes");
    options = on_disk;
    options.prefix_caching = false;
    assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "prefix_cache_disk");
    options = on_disk;
    options.prefix_cache_disk = "/dev/null";
    assert_int_not_equal(dse_engine_create(model, &options, &engine, &error), DSE_OK);
    options.prefix_cache_disk = "";
    assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_INVALID);
    dse_model_unref(model);
}

static void touch(const char *name)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("x", file);
    (void)fclose(file);
}

static int n_warnings;

static void count_warnings(const char *line, size_t bytes)
{
    (void)line;
    (void)bytes;
    n_warnings++;
}

static void damage(size_t at, bool cut)
{
    DIR *listing = opendir(folder);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (strstr(entry->d_name, ".kv") == NULL) continue;
        int fd = openat(dirfd(listing), entry->d_name, O_RDWR);
        if (cut)
            assert_int_equal(ftruncate(fd, (off_t)at), 0);
        else
            assert_int_equal(pwrite(fd, "?", 1, (off_t)at), 1);
        (void)close(fd);
    }
    (void)closedir(listing);
}

static void prefix_disk_skips_damaged_files_with_one_warning(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    dse_log_to(count_warnings);
    for (int kind = 0; kind < 5; kind++) {
        assert_int_equal(cached_by(model, on_disk, request_of(130, 1)), 0);
        assert_int_equal(count_files(".kv"), 4);
        damage(kind == 0 ? 0 : kind == 1 ? 9 : kind == 2 ? 700 : kind == 3 ? 100 : 0, kind >= 3);
        touch("1111111111111111-00000000000000ff-00000000.kv.new");
        touch("notes");
        n_warnings = 0;
        assert_int_equal(cached_by(model, on_disk, request_of(130, 1)), 0);
        assert_int_equal(n_warnings, 1);
        assert_int_equal(count_files(".new"), 0);
        assert_int_equal(count_files("notes"), 1);
        uint64_t n_files, bytes;
        struct dse_error error;
        assert_int_equal(dse_prefix_cache_wipe(folder, &n_files, &bytes, &error), DSE_OK);
        assert_int_equal(n_files, 4);
        assert_int_equal(bytes, 4 * block_file_bytes(model));
        assert_int_equal(count_files(".kv"), 0);
        assert_int_equal(count_files("notes"), 1);
    }
    dse_log_to(NULL);
    dse_model_unref(model);
}

static void prefix_disk_holds_what_the_pool_had_to_give_up(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = on_disk;
    options.kv_bytes = 9 * model->kv_layout.block_bytes; /* one of the requests below */
    struct dse_engine *engine = create_engine(model, options), *plain = create_engine(model, without);
    uint64_t read = dse_counter_get(DSE_COUNTER_PREFIX_DISK_READS);
    uint64_t written = dse_counter_get(DSE_COUNTER_PREFIX_DISK_WRITES);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 3; i++) {
            prompt[5] = 10 + i;
            struct dse_request request = request_of(230, 20);
            struct run *run = run_request(engine, request), *expected = run_request(plain, request);
            assert_true(runs_equal(run, expected));
            assert_int_equal(run->choice[0].timings.n_cached, round == 0 ? 0 : 224);
            run_free(run);
            run_free(expected);
            if (round == 0) written += 7; /* until all of it is written, before its memory is wanted */
            for (int t = 0; t < 3000 && dse_counter_get(DSE_COUNTER_PREFIX_DISK_WRITES) < written; t++)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    assert_true(dse_counter_get(DSE_COUNTER_PREFIX_DISK_READS) > read);
    close_pair_of_engines(engine, plain, model);
}

/* Requests that come, are read for, and leave, in a pool that is too small for them. */
static void prefix_disk_loses_no_block_when_clients_leave(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = on_disk;
    options.max_concurrent = 4;
    options.max_queue = 64;
    options.kv_bytes = 20 * model->kv_layout.block_bytes;
    options.prefix_cache_disk_bytes = 40 * block_file_bytes(model);
    struct run *runs[30];
    for (int round = 0; round < 6; round++) {
        struct dse_engine *engine = create_engine(model, options);
        for (int i = 0; i < 30; i++) {
            uint64_t draw = (uint64_t)(round * 30 + i);
            prompt[32 * (i % 3) + 1] = 10 + (int)(dse_philox_uniform(2, 1, draw) * 3);
            struct dse_request request = request_of(100 + (int)(dse_philox_uniform(2, 2, draw) * 100), i % 4 ? 20 : -1);
            request.n_choices = i % 5 == 0 ? 2 : 1;
            runs[i] = run_create();
            run_submit(runs[i], engine, request);
            if (i % 2 == 0) dse_engine_cancel(engine, runs[(int)(dse_philox_uniform(2, 3, draw) * (i + 1))]->id);
        }
        if (round % 2 == 0) { /* in the other rounds the engine ends under them */
            for (int i = 0; i < 30; i++)
                run_wait(runs[i]);
            wait_until_empty();
            assert_int_equal(dse_kv_pool_available(&engine->scheduler.pool), 20);
        }
        dse_engine_free(engine);
        for (int i = 0; i < 30; i++) {
            run_wait(runs[i]);
            run_free(runs[i]);
        }
        assert_true(count_files(".kv") <= 40);
    }
    dse_model_unref(model);
}

/* Its pool holds one such request, whose blocks are in files only. */
static struct dse_engine *small_engine_that_finds_in_files(struct dse_model *model, struct dse_request request)
{
    struct dse_engine_options options = on_disk;
    options.kv_bytes = 8 * model->kv_layout.block_bytes;
    struct dse_engine *engine = create_engine(model, options);
    run_free(run_request(engine, request));
    dse_engine_free(engine); /* after it was written */
    return create_engine(model, options);
}

/* What is being read for a client that left holds memory for a moment: who comes next waits for it, and is not
 * refused. */
static void prefix_disk_reads_for_a_client_that_left_disturb_nobody(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_request request = request_of(230, 20), other = request;
    static int32_t other_prompt[230];
    memcpy(other_prompt, prompt, sizeof other_prompt);
    other_prompt[0] ^= 1;
    other.prompt = other_prompt;
    struct dse_engine *engine = small_engine_that_finds_in_files(model, request);
    for (int i = 0; i < 100; i++) {
        struct run *left = run_create(), *stays = run_create();
        run_submit(left, engine, request);
        dse_engine_cancel(engine, left->id);
        other_prompt[1] = 10 + i; /* fills the pool, so that the first is only in files again */
        run_submit(stays, engine, other);
        run_wait(left);
        run_wait(stays);
        assert_string_equal(stays->error.message, "");
        assert_int_equal(stays->choice[0].finish, DSE_FINISH_LENGTH);
        run_free(left);
        run_free(stays);
    }
    wait_until_empty();
    dse_engine_free(engine);
    dse_model_unref(model);
}

/* One that waits with what was read for it makes room for a more urgent one that came meanwhile. */
static void prefix_disk_reads_do_not_hold_up_the_urgent(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_request request = request_of(230, 20), other = request;
    static int32_t other_prompt[230];
    memcpy(other_prompt, prompt, sizeof other_prompt);
    other_prompt[0] ^= 1;
    other.prompt = other_prompt;
    struct dse_engine *engine = small_engine_that_finds_in_files(model, request);
    for (int i = 0; i < 60; i++) {
        struct run *patient = run_create(), *urgent = run_create();
        other.priority = 1;
        other_prompt[1] = 10 + i;
        run_submit(patient, engine, request);
        run_submit(urgent, engine, other);
        run_wait(patient);
        run_wait(urgent);
        assert_string_equal(patient->error.message, "");
        assert_string_equal(urgent->error.message, "");
        run_free(patient);
        run_free(urgent);
        other_prompt[1] = 100 + i; /* so that the first is only in files again */
        run_free(run_request(engine, other));
    }
    wait_until_empty();
    dse_engine_free(engine);
    dse_model_unref(model);
}

static uint64_t written_before;

/* Gives the thread that writes its time: a step offers it one block at most. */
static bool slowly(void *user, const struct dse_event *event)
{
    struct run *run = user;
    const uint64_t due = run->choice[0].n_tokens < 6 ? (uint64_t)run->choice[0].n_tokens : 6;
    for (int i = 0; i < 5000 && dse_counter_get(DSE_COUNTER_PREFIX_DISK_WRITES) < written_before + due; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return run_on_event(user, event);
}

/* A request loses its blocks to one that goes before it, in the middle of its answer. Returns the tokens that are
 * computed again; read: blocks that are read back. The answer is checked against an undisturbed one. */
static uint64_t set_back_by(struct dse_model *model, struct dse_engine_options options, int urgent_tokens,
                            uint64_t *read)
{
    options.kv_bytes = 9 * model->kv_layout.block_bytes; /* all but one of them are promised to the first */
    options.max_concurrent = 2;
    struct dse_engine *engine = create_engine(model, options), *plain = create_engine(model, without);
    const uint64_t preemptions = dse_counter_get(DSE_COUNTER_PREEMPTIONS);
    const uint64_t recomputed = dse_counter_get(DSE_COUNTER_RECOMPUTED_TOKENS);
    struct dse_request request = request_of(200, -1), urgent = request_of(20, urgent_tokens);
    struct dse_error error;
    static int32_t other_prompt[20];
    memcpy(other_prompt, prompt, sizeof other_prompt);
    other_prompt[0] ^= 1;
    urgent.prompt = other_prompt;
    urgent.priority = 1;
    request.sampling.temperature = 1;
    struct run *expected = run_request(plain, request), *run = run_create(), *other = run_create();
    *read = dse_counter_get(DSE_COUNTER_PREFIX_DISK_READS);
    run->hold = true;
    run->hold_at = DSE_EVENT_TOKEN;
    run_submit(run, engine, request);
    run_wait_held(run);
    urgent.on_event = options.prefix_cache_disk != NULL ? slowly : run_on_event;
    urgent.user = other;
    written_before = dse_counter_get(DSE_COUNTER_PREFIX_DISK_WRITES);
    assert_int_equal(dse_engine_submit(engine, &urgent, &other->id, &error), DSE_OK);
    run_release(run);
    run_wait(other);
    run_wait(run);
    assert_true(runs_equal(run, expected));
    assert_int_equal(run->choice[0].n_tokens, 56);
    assert_int_equal(dse_counter_get(DSE_COUNTER_PREEMPTIONS) - preemptions, 1);
    *read = dse_counter_get(DSE_COUNTER_PREFIX_DISK_READS) - *read;
    run_free(run);
    run_free(other);
    run_free(expected);
    wait_until_empty();
    dse_engine_free(engine);
    dse_engine_free(plain);
    return dse_counter_get(DSE_COUNTER_RECOMPUTED_TOKENS) - recomputed;
}

static void request_that_is_set_back_says_the_same_computed_again_found_or_read_back(void **state)
{
    (void)state;
    static const char *const paths[] = {"llama_linear", "deepseek_v2", "deepseek_v32"};
    const struct dse_engine_options in_memory = {.context_length = 256, .prefix_caching = true};
    uint64_t read;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct dse_model *model = open_reference(paths[i], DSE_COMPUTE_AUTO, 1);
        fill_prompt(prompt, 300, model->info.n_vocab, 21);
        assert_true(set_back_by(model, without, 230, &read) >= 200);   /* all of it, */
        assert_true(set_back_by(model, in_memory, 30, &read) < 64);    /* what two blocks had to be given up for, */
        assert_true(set_back_by(model, in_memory, 230, &read) >= 160); /* most of it, for the other filled the pool, */
        assert_int_equal(read, 0);
        assert_true(set_back_by(model, on_disk, 230, &read) < 64); /* unless it was written meanwhile */
        assert_true(read >= 5);
        dse_model_unref(model);
    }
}

static void prefix_disk_survives_every_failing_allocation_at_its_start(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    assert_int_equal(cached_by(model, on_disk, request_of(130, 1)), 0);
    enum dse_status status = DSE_ERR_NO_MEMORY;
    for (long n = 1; n < 20000 && status != DSE_OK; n++) {
        struct dse_engine *engine = NULL;
        struct dse_error error = {0};
        size_t before = dse_mem_live_bytes(DSE_MEM_KV);
        dse_alloc_fail_after(n);
        status = dse_engine_create(model, &on_disk, &engine, &error);
        dse_alloc_fail_after(0);
        assert_true(status == DSE_OK || status == DSE_ERR_NO_MEMORY);
        dse_engine_free(engine);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_KV), before);
        assert_int_equal(count_files(".kv"), 4);
    }
    assert_int_equal(status, DSE_OK);
    dse_model_unref(model);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(prefix_file_comes_back_as_it_was),
        CASE(prefix_file_of_another_beginning_is_not_found),
        CASE(prefix_file_with_any_bit_changed_or_any_length_cut_is_corrupt),
        CASE(prefix_names_are_taken_only_when_they_are_exactly_ours),
        CASE(prefix_disk_survives_a_restart_on_every_layout),
        CASE(prefix_disk_keeps_salts_and_kv_types_apart),
        CASE(prefix_disk_stays_within_its_space_and_gives_up_ends_first),
        CASE(prefix_disk_refuses_what_it_cannot_use),
        CASE(prefix_disk_skips_damaged_files_with_one_warning),
        CASE(prefix_disk_holds_what_the_pool_had_to_give_up),
        CASE(prefix_disk_loses_no_block_when_clients_leave),
        CASE(prefix_disk_reads_for_a_client_that_left_disturb_nobody),
        CASE(prefix_disk_reads_do_not_hold_up_the_urgent),
        CASE(request_that_is_set_back_says_the_same_computed_again_found_or_read_back),
        CASE(prefix_disk_survives_every_failing_allocation_at_its_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

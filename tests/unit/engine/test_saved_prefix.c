/* Saved beginnings of prompts: files that come back, files that must not, and an engine that goes on meanwhile. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "engine/engine_internal.h"
#include "engine/saved_prefix.h"
#include "engine_support.h"

#define BLOCK_BYTES 64
#define N_BLOCKS    5

static char parent_folder[] = "/tmp/dse-saved-XXXXXX";
static char path[64];
static int folder;
static int32_t prompt[300];

static int make_folder(void **state)
{
    (void)state;
    struct dse_error error;
    (void)snprintf(parent_folder, sizeof parent_folder, "/tmp/dse-saved-XXXXXX");
    if (mkdtemp(parent_folder) == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/a/b", parent_folder);
    fill_prompt(prompt, 300, 512, 21);
    return dse_saved_folder_open(path, &folder, &error) == DSE_OK ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    (void)close(folder);
    (void)snprintf(command, sizeof command, "rm -rf %s", parent_folder);
    return system(command) == 0 ? 0 : -1;
}

static int count_files(void)
{
    int count = 0;
    DIR *listing = opendir(path);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    (void)closedir(listing);
    return count;
}

/* ---- the file ---- */

static uint8_t memory[8 * BLOCK_BYTES];
static int32_t tokens[N_BLOCKS * DSE_KV_BLOCK_TOKENS];
static const int32_t blocks[N_BLOCKS] = {7, 0, 3, 2, 5};
static const struct dse_saved_expected wanted = {
    .model = {1, 2}, .salt = {4, 5}, .block_bytes = BLOCK_BYTES, .max_blocks = N_BLOCKS, .n_vocab = 1000};

static struct dse_saved_source some_source(int change)
{
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (uint8_t)(i * 7 + (size_t)change);
    for (int i = 0; i < N_BLOCKS * DSE_KV_BLOCK_TOKENS; i++)
        tokens[i] = 100 + i;
    return (struct dse_saved_source){.header = {.scope = {.model = {1, 2}, .adapter = 3, .salt = {4, 5}},
                                                .block_bytes = BLOCK_BYTES,
                                                .n_blocks = N_BLOCKS},
                                     .tokens = tokens,
                                     .memory = memory,
                                     .blocks = blocks};
}

static void write_some(const char *name, int change)
{
    struct dse_saved_source source = some_source(change);
    struct dse_error error;
    uint64_t bytes = 0;
    struct stat st;
    assert_int_equal(dse_saved_file_write(folder, name, &source, &bytes, &error), DSE_OK);
    assert_int_equal(fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, bytes);
}

/* The first failure, or that every block is the one that was written with this change. */
static enum dse_status read_back(const char *name, const struct dse_saved_expected *expected, int change)
{
    struct dse_saved_file file;
    struct dse_error error = {0};
    uint8_t block[BLOCK_BYTES];
    enum dse_status status = dse_saved_file_open(folder, name, expected, &file, &error);
    for (int i = 0; i < N_BLOCKS && status == DSE_OK; i++) {
        status = dse_saved_file_read(&file, i, block, &error);
        for (int b = 0; b < BLOCK_BYTES && status == DSE_OK; b++)
            assert_int_equal(block[b], (uint8_t)((blocks[i] * BLOCK_BYTES + b) * 7 + change));
    }
    if (status == DSE_OK) {
        assert_int_equal(file.header.n_blocks, N_BLOCKS);
        assert_int_equal(file.header.scope.adapter, 3);
        for (int i = 0; i < N_BLOCKS * DSE_KV_BLOCK_TOKENS; i++)
            assert_int_equal(file.tokens[i], 100 + i);
    } else {
        assert_string_equal(error.file, "filename");
        assert_true(error.message[0] != '\0');
    }
    dse_saved_file_close(&file);
    return status;
}

static void saved_file_comes_back_as_it_was(void **state)
{
    (void)state;
    write_some("x", 0);
    assert_int_equal(read_back("x", &wanted, 0), DSE_OK);
    write_some("x", 1);
    assert_int_equal(read_back("x", &wanted, 1), DSE_OK);
    assert_int_equal(count_files(), 1);
    assert_int_equal(read_back("y", &wanted, 0), DSE_ERR_NOT_FOUND);
}

static void saved_file_of_others_is_refused(void **state)
{
    (void)state;
    write_some("x", 0);
    for (int i = 0; i < 6; i++) {
        struct dse_saved_expected other = wanted;
        if (i == 0) other.model[0]++;
        if (i == 1) other.model[1]++;
        if (i == 2) other.salt[0]++;
        if (i == 3) other.salt[1]++;
        if (i == 4) other.block_bytes *= 2;
        if (i == 5) other.max_blocks--;
        assert_int_equal(read_back("x", &other, 0), DSE_ERR_UNSUPPORTED);
    }
    struct dse_saved_expected small = wanted;
    small.n_vocab = 100 + N_BLOCKS * DSE_KV_BLOCK_TOKENS - 1;
    assert_int_equal(read_back("x", &small, 0), DSE_ERR_CORRUPT);
}

static void saved_file_with_any_bit_changed_or_any_length_cut_is_refused(void **state)
{
    (void)state;
    uint8_t whole[4096];
    write_some("x", 0);
    int file = openat(folder, "x", O_RDWR);
    const ssize_t bytes = pread(file, whole, sizeof whole, 0);
    assert_int_equal(bytes, sizeof(struct dse_saved_header) + N_BLOCKS * (DSE_KV_BLOCK_TOKENS * 4 + 8 + BLOCK_BYTES));
    for (ssize_t at = 0; at < bytes; at++) {
        uint8_t changed = whole[at] ^ (uint8_t)(1u << at % 8);
        assert_int_equal(pwrite(file, &changed, 1, at), 1);
        enum dse_status status = read_back("x", &wanted, 0);
        assert_true(status == DSE_ERR_CORRUPT || (at < 16 && status == DSE_ERR_UNSUPPORTED)); /* 8…15: the version */
        assert_int_equal(pwrite(file, &whole[at], 1, at), 1);
    }
    /* blocks that changed places */
    const size_t data = (size_t)bytes - N_BLOCKS * BLOCK_BYTES;
    assert_int_equal(pwrite(file, whole + data + BLOCK_BYTES, BLOCK_BYTES, (off_t)data), BLOCK_BYTES);
    assert_int_equal(pwrite(file, whole + data, BLOCK_BYTES, (off_t)data + BLOCK_BYTES), BLOCK_BYTES);
    assert_int_equal(read_back("x", &wanted, 0), DSE_ERR_CORRUPT);
    assert_int_equal(pwrite(file, whole, (size_t)bytes, 0), bytes);
    assert_int_equal(read_back("x", &wanted, 0), DSE_OK);
    for (off_t length = 0; length < bytes; length += 7) {
        assert_int_equal(ftruncate(file, length), 0);
        assert_int_equal(read_back("x", &wanted, 0), DSE_ERR_CORRUPT);
    }
    assert_int_equal(pwrite(file, whole, (size_t)bytes + 1, 0), bytes + 1);
    assert_int_equal(read_back("x", &wanted, 0), DSE_ERR_CORRUPT); /* longer than it should be */
    (void)close(file);
}

static bool take_the_name(void *user)
{
    (void)user;
    write_some("y", 1);
    return false;
}

static void saved_file_is_never_read_or_written_through_a_link_pipe_or_folder(void **state)
{
    (void)state;
    struct stat st;
    write_some("real", 0);
    assert_int_equal(symlinkat("real", folder, "link"), 0);
    assert_int_equal(read_back("link", &wanted, 0), DSE_ERR_CORRUPT);
    assert_int_equal(symlinkat("/etc/passwd", folder, "out"), 0);
    assert_int_equal(read_back("out", &wanted, 0), DSE_ERR_CORRUPT);
    assert_int_equal(mkfifoat(folder, "pipe", 0600), 0);
    assert_int_equal(read_back("pipe", &wanted, 0), DSE_ERR_CORRUPT);
    assert_int_equal(mkdirat(folder, "folder", 0700), 0);
    assert_int_equal(read_back("folder", &wanted, 0), DSE_ERR_CORRUPT);
    write_some("link", 1); /* in place of the link, not of what it names */
    assert_int_equal(read_back("real", &wanted, 0), DSE_OK);
    assert_int_equal(read_back("link", &wanted, 1), DSE_OK);
    write_some("pipe", 1);
    struct dse_saved_source source = some_source(0);
    struct dse_error error;
    uint64_t bytes;
    assert_int_equal(dse_saved_file_write(folder, "folder", &source, &bytes, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "filename");
    assert_string_equal(error.message, "folder is a folder");
    assert_int_equal(fstatat(folder, "folder", &st, 0), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(count_files(), 5); /* nothing half written is left */
}

static void a_file_of_another_salt_is_not_replaced(void **state)
{
    (void)state;
    struct dse_saved_source source = some_source(1);
    struct dse_error error = {0};
    uint64_t bytes;
    write_some("x", 0);
    for (int i = 0; i < 2; i++) {
        source.header.scope.salt[0] = 4 + (i == 0);
        source.header.scope.salt[1] = 5 + (i == 1);
        assert_int_equal(dse_saved_file_write(folder, "x", &source, &bytes, &error), DSE_ERR_INVALID);
        assert_string_equal(error.file, "filename");
        assert_non_null(strstr(error.message, "the name x is taken"));
    }
    assert_int_equal(read_back("x", &wanted, 0), DSE_OK);
    /* nor is one of another version, which cannot be told whose it is */
    const uint32_t version = DSE_SAVED_VERSION + 1;
    int file = openat(folder, "x", O_RDWR);
    assert_int_equal(pwrite(file, &version, sizeof version, offsetof(struct dse_saved_header, version)),
                     sizeof version);
    source = some_source(1);
    assert_int_equal(dse_saved_file_write(folder, "x", &source, &bytes, &error), DSE_ERR_UNSUPPORTED);
    assert_string_equal(error.file, "filename");
    assert_int_equal(count_files(), 1);
    /* a damaged one is nobody's */
    assert_int_equal(pwrite(file, "x", 1, 0), 1);
    (void)close(file);
    write_some("x", 1);
    assert_int_equal(read_back("x", &wanted, 1), DSE_OK);
    /* and a name that another salt took meanwhile stays taken */
    source.header.scope.salt[0]++;
    source.stop = take_the_name;
    assert_int_equal(dse_saved_file_write(folder, "y", &source, &bytes, &error), DSE_ERR_INVALID);
    assert_int_equal(read_back("y", &wanted, 1), DSE_OK);
    assert_int_equal(count_files(), 2);
}

/* Puts /dev/full in place of the file that is being written. */
static bool fill_the_disk(void *user)
{
    const int *after = user;
    static int calls;
    if (++calls <= *after) return false;
    calls = 0;
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[256] = "";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) < 0 || strstr(target, "/.saving-") == NULL) continue;
        int full = open("/dev/full", O_RDWR);
        assert_int_equal(dup2(full, fd), fd);
        (void)close(full);
        return false;
    }
    return false;
}

static void without_space_nothing_is_saved_and_the_old_file_stays(void **state)
{
    (void)state;
    struct dse_saved_source source = some_source(1);
    struct dse_error error = {0};
    uint64_t bytes;
    write_some("x", 0);
    for (int after = 0; after < N_BLOCKS; after += N_BLOCKS - 1) {
        source.stop = fill_the_disk;
        source.user = &after;
        assert_int_equal(dse_saved_file_write(folder, "x", &source, &bytes, &error), DSE_ERR_UNAVAILABLE);
        assert_string_equal(error.message, "the folder of saved slots has no space left for x");
        assert_int_equal(read_back("x", &wanted, 0), DSE_OK);
        assert_int_equal(count_files(), 1);
    }
}

static void saved_names_are_plain_names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "chat 1.bin", "a..b", "x.new", "caf\xC3\xA9", "-", "~"};
    static const char *const bad[] = {".",
                                      "..",
                                      ".hidden",
                                      "a/b",
                                      "/etc/passwd",
                                      "../x",
                                      "a\\b",
                                      "a\nb",
                                      "a\x7f"
                                      "b",
                                      "\x1b[2J",
                                      ".saving-0000000000000000",
                                      "/",
                                      "a/"};
    char name[DSE_SAVED_NAME_BYTES + 1];
    struct dse_error error;
    memset(name, 'n', sizeof name);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(dse_saved_name_check(good[i], strlen(good[i]), &error), DSE_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dse_saved_name_check(bad[i], strlen(bad[i]), &error), DSE_ERR_INVALID);
        assert_string_equal(error.file, "filename");
    }
    assert_int_equal(dse_saved_name_check("", 0, &error), DSE_ERR_INVALID);
    assert_int_equal(dse_saved_name_check("a\0b", 3, &error), DSE_ERR_INVALID);
    assert_int_equal(dse_saved_name_check(name, sizeof name - 1, &error), DSE_OK);
    assert_int_equal(dse_saved_name_check(name, sizeof name, &error), DSE_ERR_INVALID);
}

static int kill_at;

static bool kill_when_counted(void *user)
{
    (void)user;
    if (kill_at-- == 0) (void)raise(SIGKILL);
    return false;
}

static void saving_that_is_killed_leaves_the_old_file_and_no_litter(void **state)
{
    (void)state;
    write_some("x", 0);
    for (int at = 0; at < N_BLOCKS; at++) {
        pid_t child = fork();
        if (child == 0) {
            struct dse_saved_source source = some_source(1);
            struct dse_error error;
            uint64_t bytes;
            kill_at = at;
            source.stop = kill_when_counted;
            _exit(dse_saved_file_write(folder, "x", &source, &bytes, &error));
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(read_back("x", &wanted, 0), DSE_OK);
        assert_int_equal(count_files(), 2); /* half a file, */
        struct dse_error error;
        int again;
        assert_int_equal(dse_saved_folder_open(path, &again, &error), DSE_OK); /* until the next start */
        (void)close(again);
        assert_int_equal(count_files(), 1);
    }
}

static bool open_the_folder_again(void *user)
{
    struct dse_error error;
    int again;
    (void)user;
    assert_int_equal(dse_saved_folder_open(path, &again, &error), DSE_OK);
    (void)close(again);
    return false;
}

static void another_process_does_not_remove_what_is_being_written(void **state)
{
    (void)state;
    struct dse_saved_source source = some_source(1);
    struct dse_error error;
    uint64_t bytes;
    source.stop = open_the_folder_again;
    assert_int_equal(dse_saved_file_write(folder, "x", &source, &bytes, &error), DSE_OK);
    assert_int_equal(read_back("x", &wanted, 1), DSE_OK);
}

static void saved_folder_is_private(void **state)
{
    (void)state;
    struct dse_error error;
    struct stat st;
    int again = 0;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(chmod(path, 0750), 0);
    assert_int_equal(dse_saved_folder_open(path, &again, &error), DSE_ERR_INVALID);
    assert_int_equal(again, -1);
    assert_non_null(strstr(error.message, "chmod 700"));
    assert_int_not_equal(dse_saved_folder_open("/dev/null", &again, &error), DSE_OK);
    assert_int_not_equal(dse_saved_folder_open("", &again, &error), DSE_OK);
}

/* ---- the engine ---- */

static const struct dse_engine_options cached = {.context_length = 256, .prefix_caching = true};
static const struct dse_engine_options uncached = {.context_length = 256};

static struct dse_request request_of(int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 5;
    request.sampling.top_logprobs = 5;
    request.ignore_eos = true;
    request.cache_salt = "k";
    request.cache_salt_bytes = 1;
    return request;
}

static struct dse_saved_prefix prefix_of(int n_tokens)
{
    return (struct dse_saved_prefix){.tokens = prompt, .n_tokens = n_tokens, .cache_salt = "k", .cache_salt_bytes = 1};
}

static int save(struct dse_engine *engine, int n_tokens, const char *name)
{
    struct dse_saved_prefix prefix = prefix_of(n_tokens);
    struct dse_error error;
    int n_saved = 0;
    uint64_t bytes = 0;
    if (dse_engine_save_prefix(engine, &prefix, folder, name, NULL, NULL, &n_saved, &bytes, &error) != DSE_OK)
        fail_msg("%s", error.message);
    assert_int_equal(bytes, sizeof(struct dse_saved_header) +
                                (size_t)n_saved / 32 * (32 * 4 + 8 + engine->scheduler.pool.layout.block_bytes));
    return n_saved;
}

static enum dse_status try_restore(struct dse_engine *engine, const char *name, int *n_tokens)
{
    struct dse_saved_prefix prefix = prefix_of(0);
    struct dse_restored_prefix restored;
    struct dse_error error = {0};
    enum dse_status status = dse_engine_restore_prefix(engine, &prefix, folder, name, NULL, NULL, &restored, &error);
    if (status == DSE_OK) assert_memory_equal(restored.tokens, prompt, (size_t)restored.n_tokens * sizeof *prompt);
    dse_free(restored.tokens);
    *n_tokens = restored.n_tokens;
    return status;
}

static int restore(struct dse_engine *engine, const char *name)
{
    int n_tokens;
    assert_int_equal(try_restore(engine, name, &n_tokens), DSE_OK);
    return n_tokens;
}

static int cached_by(struct dse_engine *engine, struct dse_request request)
{
    struct run *run = run_request(engine, request);
    int n_cached = run->choice[0].timings.n_cached;
    run_free(run);
    return n_cached;
}

/* A turn of a chat is computed, saved, and goes on in another engine as if nothing had been. */
static void check_model(const char *name, struct dse_model_options options)
{
    options.n_threads = 1;
    struct dse_model *model = open_reference_as(name, options);
    struct dse_engine *first = create_engine(model, cached);
    fill_prompt(prompt, 300, model->info.n_vocab, 21);
    struct run *turn = run_request(first, request_of(100, 40));
    memcpy(prompt + 100, turn->choice[0].tokens, 40 * sizeof *prompt);
    run_free(turn);
    assert_int_equal(save(first, 140, name), 128); /* 139 tokens were computed */
    wait_until_empty();
    dse_engine_free(first);

    struct dse_engine *second = create_engine(model, cached), *plain = create_engine(model, uncached);
    assert_int_equal(restore(second, name), 128);
    wait_until_empty(); /* they wait in the cache, in use by nobody */
    for (int n_prompt = 96; n_prompt < 170; n_prompt += 37) {
        struct run *run = run_request(second, request_of(n_prompt, 20));
        struct run *expected = run_request(plain, request_of(n_prompt, 20));
        assert_int_equal(run->choice[0].timings.n_cached, n_prompt == 96 ? 64 : 128);
        assert_true(runs_equal(run, expected));
        run_free(run);
        run_free(expected);
    }
    assert_int_equal(restore(second, name), 128); /* again: nothing is there twice */
    wait_until_empty();
    assert_int_equal(dse_kv_pool_available(&second->scheduler.pool), second->scheduler.pool.n_blocks);
    dse_engine_free(second);
    dse_engine_free(plain);
    dse_model_unref(model);
}

static void saved_prefix_goes_on_with_equal_bits_on_every_layout(void **state)
{
    (void)state;
    for (size_t i = 0; i < REFERENCE_ARCHITECTURES; i++)
        check_model(reference_architectures[i], (struct dse_model_options){0});
    check_model("llama_linear", (struct dse_model_options){.compute = DSE_COMPUTE_F32});
    check_model("deepseek_v2", (struct dse_model_options){.kv_cache = DSE_KV_CACHE_Q8_0});
    check_model("deepseek_v3", (struct dse_model_options){.kv_cache = DSE_KV_CACHE_Q8_0, .mtp = true});
    check_model("deepseek_v3", (struct dse_model_options){.mtp = true});
}

static void saved_prefix_of_another_model_kv_type_or_salt_is_refused(void **state)
{
    (void)state;
    const struct dse_model_options options = {.n_threads = 1, .kv_cache = DSE_KV_CACHE_Q8_0};
    struct dse_model *model = open_reference("deepseek_v2", DSE_COMPUTE_AUTO, 1);
    struct dse_model *small = open_reference_as("deepseek_v2", options);
    struct dse_model *other = open_reference("deepseek_v3", DSE_COMPUTE_AUTO, 1);
    struct dse_error error;
    int n;
    struct dse_engine *first = create_engine(model, cached);
    run_free(run_request(first, request_of(100, 2)));
    assert_int_equal(save(first, 100, "x"), 96);
    struct dse_engine *engines[] = {create_engine(small, cached), create_engine(other, cached)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(try_restore(engines[i], "x", &n), DSE_ERR_UNSUPPORTED);
        dse_engine_free(engines[i]);
    }
    struct dse_saved_prefix prefix = {.cache_salt = "other", .cache_salt_bytes = 5};
    struct dse_restored_prefix restored;
    assert_int_equal(dse_engine_restore_prefix(first, &prefix, folder, "x", NULL, NULL, &restored, &error),
                     DSE_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "cache_salt"));
    dse_engine_free(first);
    dse_model_unref(model);
    dse_model_unref(small);
    dse_model_unref(other);
}

struct one {
    struct dse_model *model;
    struct dse_engine *engine;
};

static struct one open_one(int pool_blocks)
{
    struct one one = {.model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1)};
    struct dse_engine_options options = cached;
    options.kv_bytes = (uint64_t)pool_blocks * one.model->kv_layout.block_bytes;
    options.adapter_rank = 8;
    options.adapter_bytes = 1 << 20;
    one.engine = create_engine(one.model, options);
    return one;
}

static void close_one(struct one *one)
{
    wait_until_empty();
    assert_int_equal(dse_kv_pool_available(&one->engine->scheduler.pool), one->engine->scheduler.pool.n_blocks);
    dse_engine_free(one->engine);
    dse_model_unref(one->model);
}

static void bad_file_takes_nothing_out_of_the_cache(void **state)
{
    (void)state;
    struct one one = open_one(8);
    int n;
    run_free(run_request(one.engine, request_of(250, 6)));
    assert_int_equal(save(one.engine, 250, "x"), 224);
    int file = openat(folder, "x", O_RDWR);
    struct stat st;
    assert_int_equal(fstat(file, &st), 0);
    assert_int_equal(pwrite(file, "?", 1, st.st_size - 1), 1); /* the last byte of the last block */
    prompt[0] ^= 1;                                            /* another prompt fills the pool */
    assert_int_equal(cached_by(one.engine, request_of(250, 6)), 0);
    prompt[0] ^= 1;
    assert_int_equal(try_restore(one.engine, "x", &n), DSE_ERR_CORRUPT);
    assert_int_equal(try_restore(one.engine, "y", &n), DSE_ERR_NOT_FOUND);
    assert_int_equal(try_restore(one.engine, "..", &n), DSE_ERR_INVALID);
    prompt[0] ^= 1;
    assert_int_equal(cached_by(one.engine, request_of(250, 6)), 224);
    (void)close(file);
    close_one(&one);
}

static void nothing_in_the_cache_is_nothing_to_save_and_keeps_the_old_file(void **state)
{
    (void)state;
    struct one one = open_one(8);
    struct dse_saved_prefix prefix = prefix_of(100);
    struct dse_error error;
    int n = 0;
    uint64_t bytes;
    run_free(run_request(one.engine, request_of(100, 2)));
    assert_int_equal(save(one.engine, 100, "x"), 96);
    prompt[0] ^= 1;
    assert_int_equal(dse_engine_save_prefix(one.engine, &prefix, folder, "x", NULL, NULL, &n, &bytes, &error),
                     DSE_ERR_INVALID);
    prefix.n_tokens = 31;
    assert_int_equal(dse_engine_save_prefix(one.engine, &prefix, folder, "x", NULL, NULL, &n, &bytes, &error),
                     DSE_ERR_INVALID);
    assert_int_equal(dse_engine_save_prefix(one.engine, &prefix, folder, "a/x", NULL, NULL, &n, &bytes, &error),
                     DSE_ERR_INVALID);
    prompt[0] ^= 1;
    assert_int_equal(count_files(), 1);
    assert_int_equal(restore(one.engine, "x"), 96);
    close_one(&one);
}

/* The thread that saves or restores waits between two blocks until it is let go. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_asked, pass_from; /* asked so often; from this one on it waits */
    bool open, refuse;
    struct dse_engine *engine;
    enum dse_status status;
    bool restores;
};

static bool wait_at_gate(void *user)
{
    struct gate *gate = user;
    pthread_mutex_lock(&gate->lock);
    gate->n_asked++;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->open && gate->n_asked > gate->pass_from)
        pthread_cond_wait(&gate->changed, &gate->lock);
    bool refuse = gate->refuse;
    pthread_mutex_unlock(&gate->lock);
    return refuse;
}

static void *transfer_main(void *argument)
{
    struct gate *gate = argument;
    struct dse_saved_prefix prefix = prefix_of(gate->restores ? 0 : 250);
    struct dse_restored_prefix restored = {0};
    struct dse_error error;
    int n;
    uint64_t bytes;
    gate->status = gate->restores ? dse_engine_restore_prefix(gate->engine, &prefix, folder, "x", wait_at_gate, gate,
                                                              &restored, &error)
                                  : dse_engine_save_prefix(gate->engine, &prefix, folder, "x", wait_at_gate, gate, &n,
                                                           &bytes, &error);
    dse_free(restored.tokens);
    return NULL;
}

static pthread_t begin_transfer(struct gate *gate, struct dse_engine *engine, bool restores, int pass_from)
{
    pthread_t thread;
    *gate = (struct gate){.engine = engine, .restores = restores, .pass_from = pass_from};
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->changed, NULL);
    assert_int_equal(pthread_create(&thread, NULL, transfer_main, gate), 0);
    pthread_mutex_lock(&gate->lock);
    while (gate->n_asked <= pass_from)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    return thread;
}

static void open_gate(struct gate *gate, bool refuse)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    gate->refuse = refuse;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static enum dse_status end_transfer(struct gate *gate, pthread_t thread)
{
    open_gate(gate, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_mutex_destroy(&gate->lock);
    pthread_cond_destroy(&gate->changed);
    return gate->status;
}

static void decoding_goes_on_while_a_slot_is_written_or_read(void **state)
{
    (void)state;
    struct one one = open_one(24);
    struct gate gate;
    run_free(run_request(one.engine, request_of(250, 6)));
    for (int restores = 0; restores < 2; restores++) {
        /* restoring asks seven times before it takes blocks: stands in the middle of filling them */
        pthread_t thread = begin_transfer(&gate, one.engine, restores, restores ? 9 : 2);
        prompt[0] ^= 1;
        for (int i = 0; i < 3; i++)
            assert_int_equal(cached_by(one.engine, request_of(200, 20)), i == 0 && !restores ? 0 : 192);
        prompt[0] ^= 1;
        assert_int_equal(end_transfer(&gate, thread), DSE_OK);
    }
    assert_int_equal(cached_by(one.engine, request_of(250, 6)), 224);
    close_one(&one);
}

/* What the engine sees next, or has seen, of what another thread asks of it. */
static bool is_asked(const struct dse_engine *engine)
{
    return engine->transfers != NULL;
}

static bool has_taken_all(const struct dse_engine *engine)
{
    return engine->inbox == NULL;
}

static bool is_stopping(const struct dse_engine *engine)
{
    return engine->stopping;
}

static void wait_until(struct dse_engine *engine, bool (*holds)(const struct dse_engine *engine))
{
    for (bool held = false; !held; nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL)) {
        pthread_mutex_lock(&engine->lock);
        held = holds(engine);
        pthread_mutex_unlock(&engine->lock);
    }
}

static void request_that_needs_the_whole_pool_waits_for_a_transfer_and_is_not_refused(void **state)
{
    (void)state;
    struct one one = open_one(8);
    struct gate gate;
    for (int restores = 0; restores < 2; restores++) {
        for (int unbounded = 0; unbounded < 2; unbounded++) {
            run_free(run_request(one.engine, request_of(250, 6))); /* fills the pool */
            pthread_t thread = begin_transfer(&gate, one.engine, restores, restores ? 9 : 2);
            struct run *run = run_create();
            prompt[0] ^= 1;
            run_submit(run, one.engine, request_of(250, unbounded ? -1 : 6));
            prompt[0] ^= 1;
            wait_until(one.engine, has_taken_all);
            assert_int_equal(end_transfer(&gate, thread), DSE_OK);
            run_wait(run);
            assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
            run_free(run);
        }
    }
    close_one(&one);
}

static void transfer_leaves_running_requests_what_they_were_promised(void **state)
{
    (void)state;
    struct one one = open_one(8);
    run_free(run_request(one.engine, request_of(100, 2)));
    assert_int_equal(save(one.engine, 100, "x"), 96);
    for (int restores = 0; restores < 2; restores++) {
        struct gate gate = {.engine = one.engine, .restores = restores, .open = true};
        struct run *run = run_create();
        pthread_t thread;
        pthread_mutex_init(&gate.lock, NULL);
        pthread_cond_init(&gate.changed, NULL);
        run_free(run_request(one.engine, request_of(100, 2)));
        run->hold = true;
        run->hold_at = DSE_EVENT_TOKEN;
        prompt[0] ^= 1;
        run_submit(run, one.engine, request_of(100, 120)); /* all but one of the eight blocks */
        prompt[0] ^= 1;
        run_wait_held(run);
        assert_int_equal(pthread_create(&thread, NULL, transfer_main, &gate), 0);
        wait_until(one.engine, is_asked);
        run_release(run);
        assert_int_equal(end_transfer(&gate, thread), DSE_ERR_UNAVAILABLE);
        run_wait(run);
        assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
        run_free(run);
    }
    assert_int_equal(restore(one.engine, "x"), 96);
    close_one(&one);
}

static void transfer_that_is_stopped_leaves_all_as_it_was(void **state)
{
    (void)state;
    struct one one = open_one(16);
    struct gate gate;
    run_free(run_request(one.engine, request_of(250, 6)));
    assert_int_equal(save(one.engine, 250, "x"), 224);
    for (int restores = 0; restores < 2; restores++) {
        pthread_t thread = begin_transfer(&gate, one.engine, restores, restores ? 9 : 2);
        open_gate(&gate, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(gate.status, DSE_ERR_UNAVAILABLE);
        assert_int_equal(count_files(), 1);
    }
    assert_int_equal(restore(one.engine, "x"), 224);
    close_one(&one);
}

static void *free_engine(void *engine)
{
    dse_engine_free(engine);
    return NULL;
}

static void engine_that_ends_waits_for_the_transfer(void **state)
{
    (void)state;
    for (int restores = 0; restores < 2; restores++) {
        struct one one = open_one(16);
        struct gate gate;
        pthread_t ending;
        run_free(run_request(one.engine, request_of(250, 6)));
        assert_int_equal(save(one.engine, 250, "x"), 224);
        pthread_t thread = begin_transfer(&gate, one.engine, restores, restores ? 9 : 2);
        assert_int_equal(pthread_create(&ending, NULL, free_engine, one.engine), 0);
        wait_until(one.engine, is_stopping);
        assert_int_equal(end_transfer(&gate, thread), restores ? DSE_ERR_UNAVAILABLE : DSE_OK);
        assert_int_equal(pthread_join(ending, NULL), 0);
        dse_model_unref(one.model);
    }
}

struct forgetting {
    struct dse_engine *engine;
    int n;
};

static void *forget(void *argument)
{
    struct forgetting *forgetting = argument;
    struct dse_saved_prefix prefix = prefix_of(250);
    struct dse_error error;
    assert_int_equal(dse_engine_forget_prefix(forgetting->engine, &prefix, &forgetting->n, &error), DSE_OK);
    return NULL;
}

static void forgetting_spares_what_others_stand_on_or_use(void **state)
{
    (void)state;
    struct one one = open_one(24);
    struct dse_saved_prefix prefix = prefix_of(250);
    struct dse_error error;
    int n = -1;
    run_free(run_request(one.engine, request_of(250, 2)));
    prompt[130] ^= 1; /* another conversation parts after four blocks */
    run_free(run_request(one.engine, request_of(200, 2)));
    prompt[130] ^= 1;
    assert_int_equal(dse_engine_forget_prefix(one.engine, &prefix, &n, &error), DSE_OK);
    assert_int_equal(n, 96);
    assert_int_equal(one.engine->scheduler.pool.cache.n_filled, 6);
    prompt[130] ^= 1;
    assert_int_equal(cached_by(one.engine, request_of(200, 2)), 192);
    assert_int_equal(dse_engine_forget_prefix(one.engine, &prefix, &n, &error), DSE_OK);
    assert_int_equal(n, 192);
    prompt[130] ^= 1;
    assert_int_equal(one.engine->scheduler.pool.cache.n_filled, 0);
    assert_int_equal(cached_by(one.engine, request_of(250, 2)), 0); /* and can be kept again */
    assert_int_equal(cached_by(one.engine, request_of(250, 2)), 224);
    /* It is done in the next turn of the engine, when the request below has tokens to come. */
    struct run *run = run_create();
    struct forgetting forgetting = {.engine = one.engine, .n = -1};
    pthread_t thread;
    run->hold = true;
    run->hold_at = DSE_EVENT_TOKEN;
    run_submit(run, one.engine, request_of(225, 30));
    run_wait_held(run);
    assert_int_equal(pthread_create(&thread, NULL, forget, &forgetting), 0);
    wait_until(one.engine, is_asked);
    run_release(run);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(forgetting.n, 0);
    run_wait(run);
    run_free(run);
    assert_int_equal(dse_engine_forget_prefix(one.engine, &prefix, &n, &error), DSE_OK);
    assert_int_equal(n, 224);
    close_one(&one);
}

static void adapters_are_apart_and_their_identity_comes_with_the_file(void **state)
{
    (void)state;
    struct one one = open_one(24);
    struct dse_request request = request_of(100, 2);
    struct dse_saved_prefix prefix = prefix_of(100), any = prefix_of(0);
    struct dse_restored_prefix restored;
    struct dse_error error;
    int n = 0;
    uint64_t bytes;
    const struct dse_adapter_use use = {open_adapter(one.model, "llama_linear/a"), 0.5f};
    request.adapters = &use;
    request.n_adapters = 1;
    struct run *run = run_request(one.engine, request);
    assert_int_not_equal(run->adapter_identity, 0);
    prefix.adapter_identity = run->adapter_identity;
    run_free(run);
    assert_int_equal(dse_engine_save_prefix(one.engine, &prefix, folder, "x", NULL, NULL, &n, &bytes, &error), DSE_OK);
    assert_int_equal(n, 96);
    assert_int_equal(dse_engine_forget_prefix(one.engine, &prefix, &n, &error), DSE_OK);
    assert_int_equal(n, 96);
    assert_int_equal(dse_engine_restore_prefix(one.engine, &any, folder, "x", NULL, NULL, &restored, &error), DSE_OK);
    assert_int_equal(restored.adapter_identity, prefix.adapter_identity);
    dse_free(restored.tokens);
    assert_int_equal(cached_by(one.engine, request_of(100, 2)), 0); /* without it */
    assert_int_equal(cached_by(one.engine, request), 96);
    dse_adapter_unref(use.adapter);
    close_one(&one);
}

static void bound_on_what_stays_is_told_by_what_was_restored(void **state)
{
    (void)state;
    struct one one = open_one(16);
    run_free(run_request(one.engine, request_of(250, 2)));
    assert_int_equal(save(one.engine, 250, "x"), 224);
    struct dse_engine_options options = cached;
    options.prefix_cache_bytes = 3 * one.model->kv_layout.block_bytes;
    struct dse_engine *small = create_engine(one.model, options);
    assert_int_equal(restore(small, "x"), 96);
    assert_int_equal(cached_by(small, request_of(250, 2)), 96);
    dse_engine_free(small);
    options = cached;
    options.context_length = 128;
    options.kv_bytes = 4 * one.model->kv_layout.block_bytes;
    small = create_engine(one.model, options);
    int n;
    assert_int_equal(try_restore(small, "x", &n), DSE_ERR_UNSUPPORTED); /* larger than the pool */
    dse_engine_free(small);
    dse_engine_free(one.engine);
    one.engine = create_engine(one.model, uncached);
    assert_int_equal(try_restore(one.engine, "x", &n), DSE_ERR_UNSUPPORTED); /* no cache at all */
    close_one(&one);
}

static void transfers_survive_every_failing_allocation(void **state)
{
    (void)state;
    struct one one = open_one(16);
    run_free(run_request(one.engine, request_of(100, 2)));
    assert_int_equal(save(one.engine, 100, "x"), 96);
    const size_t before = dse_mem_live_bytes(DSE_MEM_KV);
    for (int kind = 0; kind < 3; kind++) {
        enum dse_status status = DSE_ERR_NO_MEMORY;
        for (long i = 1; i < 100 && status != DSE_OK; i++) {
            struct dse_saved_prefix prefix = prefix_of(96);
            struct dse_error error;
            int n = 0;
            uint64_t bytes;
            dse_alloc_fail_after(i);
            if (kind == 0)
                status = dse_engine_save_prefix(one.engine, &prefix, folder, "x", NULL, NULL, &n, &bytes, &error);
            else if (kind == 1)
                status = try_restore(one.engine, "x", &n);
            else
                status = dse_engine_forget_prefix(one.engine, &prefix, &n, &error);
            dse_alloc_fail_after(0);
            assert_true(status == DSE_OK || status == DSE_ERR_NO_MEMORY);
            assert_int_equal(dse_mem_live_bytes(DSE_MEM_KV), before);
            assert_int_equal(count_files(), 1);
        }
        assert_int_equal(status, DSE_OK);
    }
    assert_int_equal(restore(one.engine, "x"), 96);
    close_one(&one);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(saved_file_comes_back_as_it_was),
        CASE(saved_file_of_others_is_refused),
        CASE(saved_file_with_any_bit_changed_or_any_length_cut_is_refused),
        CASE(saved_file_is_never_read_or_written_through_a_link_pipe_or_folder),
        CASE(a_file_of_another_salt_is_not_replaced),
        CASE(without_space_nothing_is_saved_and_the_old_file_stays),
        CASE(saved_names_are_plain_names),
        CASE(saving_that_is_killed_leaves_the_old_file_and_no_litter),
        CASE(another_process_does_not_remove_what_is_being_written),
        CASE(saved_folder_is_private),
        CASE(saved_prefix_goes_on_with_equal_bits_on_every_layout),
        CASE(saved_prefix_of_another_model_kv_type_or_salt_is_refused),
        CASE(bad_file_takes_nothing_out_of_the_cache),
        CASE(nothing_in_the_cache_is_nothing_to_save_and_keeps_the_old_file),
        CASE(decoding_goes_on_while_a_slot_is_written_or_read),
        CASE(request_that_needs_the_whole_pool_waits_for_a_transfer_and_is_not_refused),
        CASE(transfer_leaves_running_requests_what_they_were_promised),
        CASE(transfer_that_is_stopped_leaves_all_as_it_was),
        CASE(engine_that_ends_waits_for_the_transfer),
        CASE(forgetting_spares_what_others_stand_on_or_use),
        CASE(adapters_are_apart_and_their_identity_comes_with_the_file),
        CASE(bound_on_what_stays_is_told_by_what_was_restored),
        CASE(transfers_survive_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

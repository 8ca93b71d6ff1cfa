/* Every broken model of malformed.h is refused: at once, with a message that names what is wrong, without leaking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "malformed.h"
#include "model/weights.h"
#include "temp_dir.h"
#include "tiny_deepseek.h"
#include "tiny_model.h"

struct run {
    const char *folder;
    int cases, failures;
};

static void complain(struct run *run, const struct malformed_case *bad, const char *what, const struct dse_error *err)
{
    run->failures++;
    print_error("%s: %s (expected '%s', message '%s')\n", bad->name, what, bad->expected, err->message);
}

/* The name of a case may contain the word that its message must, so the case's folder is cut out of the text. */
static bool names(const char *text, const char *folder, const char *expected)
{
    char rest[1024];
    size_t length = 0, skip = strlen(folder);
    for (const char *p = text; *p != '\0' && length + 1 < sizeof rest;) {
        if (strncmp(p, folder, skip) == 0)
            p += skip;
        else
            rest[length++] = *p++;
    }
    rest[length] = '\0';
    return strstr(rest, expected) != NULL;
}

static void open_case(void *user, const struct malformed_case *bad)
{
    struct run *run = user;
    char path[1024];
    struct dse_error err = {.status = DSE_OK};
    struct dse_model_file *file = NULL;
    assert_true(malformed_write(run->folder, bad, path, sizeof path));
    run->cases++;
    size_t live = dse_mem_live_bytes(DSE_MEM_MODEL);
    uint64_t begin = dse_clock_ns();
    enum dse_status status = dse_model_file_open(path, &file, &err);
    uint64_t took = dse_clock_ns() - begin;
    if (status == DSE_OK) {
        complain(run, bad, "was accepted", &err);
        dse_model_file_close(file);
        return;
    }
    if (file != NULL) complain(run, bad, "a file was returned with an error", &err);
    if (status != DSE_ERR_CORRUPT && status != DSE_ERR_UNSUPPORTED && status != DSE_ERR_INVALID &&
        status != DSE_ERR_NOT_FOUND && status != DSE_ERR_LIMIT)
        complain(run, bad, dse_status_name(status), &err);
    if (err.status != status) complain(run, bad, "status of the error differs from the one returned", &err);
    char home[1024];
    snprintf(home, sizeof home, "%s/%s", run->folder, bad->name);
    if (err.message[0] == '\0' || (!names(err.message, home, bad->expected) && !names(err.file, home, bad->expected)))
        complain(run, bad, "the message does not name the fault", &err);
    if (took > 500000000) complain(run, bad, "took longer than half a second", &err);
    if (dse_mem_live_bytes(DSE_MEM_MODEL) != live) complain(run, bad, "leaked", &err);
}

static void gguf_files_that_are_broken_are_refused_by_name(void **state)
{
    struct run run = {.folder = temp_dir(*state)};
    malformed_gguf(open_case, &run);
    print_message("%d broken GGUF files\n", run.cases);
    assert_int_equal(run.failures, 0);
    assert_true(run.cases > 800);
}

static void hugging_face_folders_that_are_broken_are_refused_by_name(void **state)
{
    struct run run = {.folder = temp_dir(*state)};
    malformed_hugging_face(open_case, &run);
    print_message("%d broken folders\n", run.cases);
    assert_int_equal(run.failures, 0);
    assert_true(run.cases > 300);
}

static void deepseek_models_that_are_broken_are_refused_by_name(void **state)
{
    struct run run = {.folder = temp_dir(*state)};
    malformed_deepseek(open_case, &run);
    print_message("%d broken DeepSeek models\n", run.cases);
    assert_int_equal(run.failures, 0);
    assert_true(run.cases > 1500);
}

/* Reads all that an accepted file exposes, so that a wrong pointer shows. */
static uint64_t touch(const struct dse_model_file *file)
{
    uint64_t sum = (uint64_t)file->n_parameters;
    size_t n = file->gguf != NULL ? dse_gguf_tensor_count(file->gguf) : dse_safetensors_count(file->safetensors);
    for (size_t i = 0; i < n; i++) {
        const struct dse_tensor *t = file->gguf != NULL ? dse_gguf_tensor_at(file->gguf, i)
                                                        : dse_safetensors_at(file->safetensors, i);
        const uint8_t *data = t->data;
        if (t->bytes > 0) sum += data[0] + data[t->bytes - 1] + strlen(t->name);
    }
    for (size_t i = 0; file->gguf != NULL && i < dse_gguf_value_count(file->gguf); i++) {
        const struct dse_gguf_value *v = dse_gguf_value_at(file->gguf, i);
        size_t cursor = 0;
        struct dse_gguf_string text;
        while (dse_gguf_next_string(v, &cursor, &text))
            sum += text.bytes > 0 ? (uint8_t)text.data[text.bytes - 1] : 0;
        if (v->bytes > 0) sum += v->data[v->bytes - 1];
    }
    return sum;
}

static void flip(int fd, const char *open_path, size_t from, size_t to, size_t *accepted)
{
    static const uint8_t masks[] = {0xFF, 0x01, 0x80};
    uint64_t sum = 0;
    for (size_t at = from; at < to; at++) {
        uint8_t byte, changed;
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        for (size_t m = 0; m < sizeof masks; m++) {
            struct dse_model_file *file = NULL;
            struct dse_error err;
            changed = byte ^ masks[m];
            assert_int_equal(pwrite(fd, &changed, 1, (off_t)at), 1);
            if (dse_model_file_open(open_path, &file, &err) == DSE_OK) {
                sum += touch(file);
                ++*accepted;
                dse_model_file_close(file);
            } else {
                assert_true(err.message[0] != '\0');
            }
        }
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    assert_true(sum != 1); /* keeps the reads */
}

static void gguf_with_any_byte_of_its_header_flipped_never_crashes(void **state)
{
    char path[512];
    struct tiny_gguf g;
    struct bytes out = {0};
    size_t accepted = 0;
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &out);
    snprintf(path, sizeof path, "%s/flip.gguf", temp_dir(*state));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, out.data, out.length), (ssize_t)out.length);
    flip(fd, path, 0, g.data_at + 16, &accepted);
    print_message("%zu of %zu accepted\n", accepted, 3 * (g.data_at + 16));
    /* Changed names of tokens and the like are fine; most changes are not. */
    assert_true(accepted > 0 && accepted < 2 * g.data_at);
    close(fd);
    bytes_free(&out);
    tiny_gguf_free(&g);
}

static void safetensors_with_any_byte_of_its_header_flipped_never_crashes(void **state)
{
    char path[600], folder[512];
    struct bytes out = {0};
    size_t data_bytes, accepted = 0;
    json_t *header = tiny_header(&data_bytes), *config = tiny_config();
    tiny_safetensors_build(header, data_bytes, &out);
    snprintf(folder, sizeof folder, "%s/flip", temp_dir(*state));
    char *text = json_dumps(config, 0);
    struct malformed_case good = {
        "flip", "", "", {{"config.json", text, strlen(text)}, {"model.safetensors", out.data, out.length}}, 2};
    assert_true(malformed_write(temp_dir(*state), &good, path, sizeof path));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    flip(fd, folder, 0, out.length - data_bytes + 16, &accepted);
    close(fd);
    snprintf(path, sizeof path, "%s/config.json", folder);
    fd = open(path, O_RDWR);
    flip(fd, folder, 0, strlen(text), &accepted);
    close(fd);
    print_message("%zu accepted\n", accepted);
    assert_true(accepted > 0);
    dse_json_free_text(text);
    bytes_free(&out);
    json_decref(header);
    json_decref(config);
}

/* Opening with the n-th allocation failing leaves nothing behind, for every n until it succeeds. */
static void running_out_of_memory_while_opening_is_an_error_without_leaks(void **state)
{
    char gguf[600], folder[600];
    struct tiny_gguf g;
    struct bytes out = {0}, weights = {0};
    size_t data_bytes;
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &out);
    json_t *header = tiny_header(&data_bytes), *config = tiny_config();
    tiny_safetensors_build(header, data_bytes, &weights);
    char *text = json_dumps(config, 0);
    struct malformed_case a = {"memory_gguf", "", "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    struct malformed_case b = {
        "memory_folder",
        "",
        "",
        {{"config.json", text, strlen(text)}, {"model.safetensors", weights.data, weights.length}},
        2};
    assert_true(malformed_write(temp_dir(*state), &a, gguf, sizeof gguf));
    assert_true(malformed_write(temp_dir(*state), &b, folder, sizeof folder));
    static struct tiny_folder deep;
    struct tiny_gguf deep_gguf;
    struct bytes deep_out = {0}, deep_weights = {0};
    char paths[2][600];
    json_t *deep_config = tiny_deepseek_config();
    char *deep_text = json_dumps(deep_config, 0);
    tiny_deepseek_gguf(&deep_gguf, "deepseek32");
    tiny_gguf_build(&deep_gguf, &deep_out);
    tiny_deepseek_folder(&deep);
    tiny_folder_build(&deep, &deep_weights);
    struct malformed_case c = {"memory_deepseek", "", "m.gguf", {{"m.gguf", deep_out.data, deep_out.length}}, 1};
    struct malformed_case d = {
        "memory_deepseek_folder",
        "",
        "",
        {{"config.json", deep_text, strlen(deep_text)}, {"model.safetensors", deep_weights.data, deep_weights.length}},
        2};
    assert_true(malformed_write(temp_dir(*state), &c, paths[0], sizeof paths[0]));
    assert_true(malformed_write(temp_dir(*state), &d, paths[1], sizeof paths[1]));
    const char *const models[] = {gguf, folder, paths[0], paths[1]};
    for (int k = 0; k < 4; k++) {
        enum dse_status status = DSE_ERR_NO_MEMORY;
        size_t live = dse_mem_live_bytes(DSE_MEM_MODEL);
        for (long n = 1; status != DSE_OK; n++) {
            struct dse_model_file *file = NULL;
            struct dse_error err;
            assert_true(n < 20000);
            dse_alloc_fail_after(n);
            status = dse_model_file_open(models[k], &file, &err);
            dse_alloc_fail_after(0);
            if (status == DSE_OK)
                dse_model_file_close(file);
            else
                assert_true(err.message[0] != '\0');
            assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), live);
        }
    }
    dse_json_free_text(text);
    bytes_free(&out);
    bytes_free(&weights);
    json_decref(header);
    json_decref(config);
    tiny_gguf_free(&g);
    bytes_free(&deep_out);
    bytes_free(&deep_weights);
    dse_json_free_text(deep_text);
    json_decref(deep_config);
    tiny_gguf_free(&deep_gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_files_that_are_broken_are_refused_by_name),
        cmocka_unit_test(hugging_face_folders_that_are_broken_are_refused_by_name),
        cmocka_unit_test(deepseek_models_that_are_broken_are_refused_by_name),
        cmocka_unit_test(gguf_with_any_byte_of_its_header_flipped_never_crashes),
        cmocka_unit_test(safetensors_with_any_byte_of_its_header_flipped_never_crashes),
        cmocka_unit_test(running_out_of_memory_while_opening_is_an_error_without_leaks),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

/* UTF-8, JSON limits, errors, random numbers. */
#include <setjmp.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "base/utf8.h"

static void every_code_point_survives_encoding(void **state)
{
    for (uint32_t c = 0; c <= 0x110000; c++) {
        char text[4];
        size_t used, n = dse_utf8_encode(c, text);
        bool valid = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
        assert_int_equal(n > 0, valid);
        if (!valid) continue;
        assert_int_equal(dse_utf8_decode(text, n, &used), c);
        assert_int_equal(used, n);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(dse_utf8_incomplete_suffix(text, cut), cut);
        assert_int_equal(dse_utf8_incomplete_suffix(text, n), 0);
    }
}

/* Lengths of maximal invalid parts as in the Unicode standard, table 3-8. */
static void invalid_utf8_is_cut_at_maximal_subparts(void **state)
{
    static const char text[] = "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41";
    static const size_t lengths[] = {2, 1, 3, 2, 1};
    size_t at = 0;
    for (int i = 0; i < 5; i++) {
        size_t used;
        uint32_t c = dse_utf8_decode(text + at, sizeof text - 1 - at, &used);
        assert_int_equal(used, lengths[i]);
        assert_int_equal(c, i == 4 ? 0x41 : DSE_UTF8_INVALID);
        at += used;
    }
    static const char *const bad[] = {"\xC0\xAF",         "\xE0\x80\x80",     "\xED\xA0\x80",
                                      "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dse_utf8_valid(bad[i], strlen(bad[i])));
    assert_true(dse_utf8_valid("na\xC3\xAFve \xF0\x9F\xA7\xAA", 11));
    assert_int_equal(dse_utf8_incomplete_suffix("a\xFF", 2), 0);
    assert_int_equal(dse_utf8_incomplete_suffix("\xF0\x9F", 2), 2);
}

static enum dse_status parse(const char *text, struct dse_error *err)
{
    json_t *value;
    enum dse_status status = dse_json_parse(text, strlen(text), "body", &value, err);
    json_decref(value);
    return status;
}

static void json_rejects_nesting_past_limit(void **state)
{
    char text[2 * 4000 + 1];
    struct dse_error err;
    for (int depth = 1; depth <= 4000; depth += depth < 140 ? 1 : 500) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        assert_int_equal(parse(text, &err), depth <= DSE_JSON_MAX_DEPTH ? DSE_OK : DSE_ERR_LIMIT);
    }
    assert_int_equal(parse("{\"a\":\"[[[[\\\"[[[[\"}", &err), DSE_OK);
}

/* count times piece between the brackets */
static char *repeated(const char *piece, size_t count)
{
    size_t bytes = strlen(piece), at = 1;
    char *text = malloc(count * bytes + 3);
    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 0; i < count; i++, at += bytes)
        memcpy(text + at, piece, bytes);
    text[at - (count > 0)] = ']';
    text[at + (count == 0)] = '\0';
    return text;
}

static void json_limits_values_so_that_memory_is_known(void **state)
{
    (void)state;
    struct dse_error err;
    /* the longest list of numbers that is taken: the outer array counts as 8 */
    char *text = repeated("1,", DSE_JSON_MAX_VALUES - 8);
    assert_int_equal(parse(text, &err), DSE_OK);
    free(text);
    text = repeated("1,", DSE_JSON_MAX_VALUES - 7);
    assert_int_equal(parse(text, &err), DSE_ERR_LIMIT);
    assert_non_null(strstr(err.message, "more than 1048576 values"));
    free(text);
    static const char *const heavy[] = {"[],", "{},"};
    for (int i = 0; i < 2; i++) {
        text = repeated(heavy[i], 4000000);
        assert_int_equal(parse(text, &err), DSE_ERR_LIMIT);
        free(text);
    }
    text = repeated("\",[{\",", 500000); /* in strings nothing counts but the commas between them */
    assert_int_equal(parse(text, &err), DSE_OK);
    free(text);
    /* files of a model may have more: a tokenizer has hundreds of thousands of merges */
    text = repeated("[1,2],", 600000);
    json_t *value = NULL;
    assert_int_equal(dse_json_parse(text, strlen(text), "body", &value, &err), DSE_ERR_LIMIT);
    assert_int_equal(dse_json_parse_limited(text, strlen(text), DSE_JSON_MAX_FILE_VALUES, "file", &value, &err),
                     DSE_OK);
    json_decref(value);
    free(text);
}

/* Of each kind the longest text that is taken; the JSON of this program is nothing else. */
static void json_memory_stays_below_what_the_limit_promises(void **state)
{
    static const struct {
        char open, close;
        const char *piece; /* with a number that no other has */
        size_t values;
    } kinds[] = {{'[', ']', "%zu", 1},          {'[', ']', "\"%zu\"", 2},        {'[', ']', "[%zu]", 9},
                 {'[', ']', "{\"%zu\":1}", 11}, {'{', '}', "\"%zu\":1", 3},      {'{', '}', "\"%zu\":\"\"", 4},
                 {'{', '}', "\"%zu\":{}", 11},  {'[', ']', "{\"%zu\":\"\"}", 12}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const size_t n = (DSE_JSON_MAX_VALUES - 8) / kinds[k].values;
        char *text = malloc(n * 24 + 24);
        assert_non_null(text);
        size_t at = 1;
        text[0] = kinds[k].open;
        for (size_t i = 0; i < n; i++) {
            at += (size_t)snprintf(text + at, 24, kinds[k].piece, i);
            text[at++] = ',';
        }
        text[at - 1] = kinds[k].close;
        struct dse_error err;
        json_t *value;
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_JSON), 0);
        if (dse_json_parse(text, at, "body", &value, &err) != DSE_OK) fail_msg("%s: %s", kinds[k].piece, err.message);
        const size_t live = dse_mem_live_bytes(DSE_MEM_JSON);
        if (live > 64 * (size_t)DSE_JSON_MAX_VALUES || live < 16 * (size_t)DSE_JSON_MAX_VALUES)
            fail_msg("%s: %zu bytes", kinds[k].piece, live);
        json_decref(value);
        free(text);
    }
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_JSON), 0);
}

static void *free_value(void *value)
{
    json_decref(value);
    return NULL;
}

/* What a parse gave is on its own: a later one that fails leaves it, and any thread frees it. */
static void json_values_outlive_their_parse(void **state)
{
    const char text[] = "{\"a\":[1,2.5,\"three\"],\"b\":{\"c\":null}}", other[] = "[\"x\",{\"y\":[1,2,3]}]";
    struct dse_error err;
    json_t *first, *second, *third;
    pthread_t thread;
    (void)state;
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_JSON), 0);
    assert_int_equal(dse_json_parse(text, strlen(text), "body", &first, &err), DSE_OK);
    assert_int_equal(dse_json_parse(other, strlen(other), "body", &second, &err), DSE_OK);
    for (long n = 1; n < 8; n++) {
        dse_alloc_fail_after(n);
        assert_int_equal(dse_json_parse(other, strlen(other), "body", &third, &err), DSE_ERR_NO_MEMORY);
        dse_alloc_fail_after(0);
    }
    assert_int_equal(json_object_size(first), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(first, "a"), 2)), "three");
    assert_int_equal(pthread_create(&thread, NULL, free_value, first), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(json_array_size(json_object_get(json_array_get(second, 1), "y")), 3);
    json_decref(second);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_JSON), 0);
}

/* Whichever allocation it is: no crash, no leak (sanitizers), and never an answer that is about the text. */
static void json_says_when_there_is_no_memory(void **state)
{
    (void)state;
    char string[70000], member[70000];
    memset(string, 'a', sizeof string);
    string[0] = string[sizeof string - 2] = '"';
    string[sizeof string - 1] = '\0';
    memset(member, 'b', sizeof member);
    memcpy(member, "{\"x\":[1,2.5,null],\"", 20);
    memcpy(member + sizeof member - 5, "\":1}", 5);
    const char *const texts[] = {
        string,
        member,
        "[[],{},[1,[2,{\"a\":{\"b\":\"\\ud83d\\ude00\"}}]],true]",
        "\"\"",
        "123456789012345678",
        "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":10}",
        "[1,2,3,",
    };
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        struct dse_error err;
        const enum dse_status whole = parse(texts[t], &err);
        const size_t before = dse_mem_live_bytes(DSE_MEM_JSON);
        enum dse_status status = DSE_ERR_NO_MEMORY;
        long n = 0;
        while (status == DSE_ERR_NO_MEMORY) {
            assert_true(++n < 1000);
            dse_alloc_fail_after(n);
            status = parse(texts[t], &err);
            dse_alloc_fail_after(0);
            if (status == DSE_ERR_NO_MEMORY) assert_non_null(strstr(err.message, "body"));
        }
        assert_int_equal(status, whole);
        assert_true(n > 2);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_JSON), before);
    }
}

static void json_rejects_duplicates_bad_utf8_and_rest(void **state)
{
    static const char *const bad[] = {"",     "{",   "{\"a\":1,\"a\":2}", "\"\xFF\"", "{} x",
                                      "[1,]", "NaN", "\"\\ud800\"",       "1e999"};
    struct dse_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(bad[i], &err), DSE_ERR_INVALID);
        assert_non_null(strstr(err.message, "body"));
    }
    assert_int_equal(parse("\xEF\xBB\xBF{\"a\":9007199254740993}", &err), DSE_OK);
}

static void errors_keep_status_place_and_text(void **state)
{
    struct dse_error err;
    assert_int_equal(dse_fail_at(&err, DSE_ERR_CORRUPT, "x.gguf", 12, "bad %s", "magic"), DSE_ERR_CORRUPT);
    assert_string_equal(err.message, "bad magic");
    assert_string_equal(err.file, "x.gguf");
    assert_int_equal(err.offset, 12);
    assert_int_equal(dse_fail(&err, DSE_ERR_IO, "after: %s", err.message), DSE_ERR_IO); /* may quote itself */
    assert_string_equal(err.message, "after: bad magic");
    assert_int_equal(dse_fail(NULL, DSE_ERR_BUSY, "nobody listens"), DSE_ERR_BUSY);
    assert_int_equal(dse_status_exit_code(DSE_ERR_NO_MEMORY), 5);
    assert_int_equal(dse_status_http(DSE_ERR_BUSY), 429);
    for (int s = 0; s < DSE_STATUS_COUNT; s++)
        assert_true(strlen(dse_status_name((enum dse_status)s)) > 0);
}

/* Known answers published with the Random123 library (kat_vectors, philox4x32 10 rounds). */
static void philox_gives_the_published_numbers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        dse_philox((uint64_t)known[i].key[1] << 32 | known[i].key[0], known[i].counter, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    double u = dse_philox_uniform(1, 2, 3);
    assert_true(u >= 0 && u < 1);
    assert_true(u == dse_philox_uniform(1, 2, 3));
    assert_true(u != dse_philox_uniform(1, 2, 4));
}

static size_t first_random_bytes(bool forbidden, unsigned char out[64])
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (forbidden &&
            (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0))
            _exit(2);
        dse_random_bytes(out, 32);
        dse_random_bytes(out + 32, 32);
        _exit(write(pipes[1], out, 64) == 64 ? 0 : 1);
    }
    close(pipes[1]);
    ssize_t n = read(pipes[0], out, 64);
    close(pipes[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* 2: the filter was refused */
    return n > 0 ? (size_t)n : 0;
}

static void random_bytes_come_even_without_getrandom(void **state)
{
    (void)state;
    for (int forbidden = 0; forbidden < 2; forbidden++) {
        unsigned char bytes[64] = {0};
        assert_int_equal(first_random_bytes(forbidden, bytes), 64);
        for (int i = 0; i < 64; i += 16)
            for (int j = 0; j < i; j += 16)
                assert_memory_not_equal(bytes + i, bytes + j, 16);
    }
}

static char logged[16384];

static void keep_line(const char *line, size_t bytes)
{
    memcpy(logged, line, bytes);
    logged[bytes] = '\0';
}

static void log_goes_nowhere_until_a_sink_is_set(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    int real = dup(STDERR_FILENO);
    assert_non_null(file);
    dup2(fileno(file), STDERR_FILENO);
    dse_log(DSE_LOG_ERROR, "base", "nobody wants to know");
    fflush(stderr);
    off_t written = lseek(STDERR_FILENO, 0, SEEK_END);
    dup2(real, STDERR_FILENO);
    close(real);
    fclose(file);
    assert_int_equal(written, 0);

    dse_alloc_forbid_begin(); /* the engine logs where it must not allocate */
    dse_log_to(keep_line);
    dse_log(DSE_LOG_WARN, "base", "%d of %s", 3, "them");
    assert_string_equal(logged, "warn: base: 3 of them\n");
    logged[0] = '\0';
    dse_log(DSE_LOG_INFO, "base", "too quiet");
    assert_string_equal(logged, "");
    dse_log_configure(DSE_LOG_WARN, true);
    dse_log(DSE_LOG_ERROR, "base", "a\"b\xFF");
    assert_non_null(strstr(logged, "\"level\":\"error\",\"component\":\"base\",\"message\":\"a\\\"b\xEF\xBF\xBD\"}\n"));
    /* the longest there is: 2047 bytes that take six each */
    char text[4096];
    memset(text, 1, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    dse_log(DSE_LOG_ERROR, "base", "%s", text);
    dse_alloc_forbid_end();
    assert_true(strlen(logged) > 6 * 2047);
    assert_non_null(strstr(logged, "\\u0001\"}\n"));
    dse_log_to(NULL);
    dse_log_configure(DSE_LOG_WARN, false);
}

/* Whatever allocation fails, a copy or a text of JSON is whole or there is none. */
static void json_is_copied_and_written_whole_or_not_at_all(void **state)
{
    static const char text[] =
        "{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"a\":[1,2.5,{\"b\":{}},null,true]}}";
    struct dse_error err;
    json_t *value;
    int n_failed = 0, n_made = 0;
    (void)state;
    assert_int_equal(dse_json_parse(text, strlen(text), "text", &value, &err), DSE_OK);
    for (long n = 1; n < 60; n++) {
        struct dse_buffer out;
        dse_buffer_init(&out, DSE_MEM_MISC, SIZE_MAX);
        dse_alloc_fail_after(n);
        json_t *deep = dse_json_deep_copy(value);
        dse_alloc_fail_after(n);
        json_t *shallow = dse_json_copy(value);
        dse_alloc_fail_after(n);
        bool written = dse_json_write(&out, value, JSON_COMPACT);
        dse_alloc_fail_after(0);
        assert_true(deep == NULL || json_equal(deep, value));
        assert_true(shallow == NULL || json_equal(shallow, value));
        assert_int_equal(written, !out.failed);
        if (written) assert_string_equal(dse_buffer_text(&out), text);
        n_failed += (deep == NULL) + (shallow == NULL) + !written;
        n_made += (deep != NULL) + (shallow != NULL) + written;
        json_decref(deep);
        json_decref(shallow);
        dse_buffer_deinit(&out);
    }
    assert_true(n_failed > 10 && n_made > 10);
    json_decref(value);
}

/* Whatever is in the texts: one line, and no byte that who prints it for a terminal would replace. */
static void log_fields_are_members_of_the_object(void **state)
{
    (void)state;
    const struct dse_log_field fields[] = {
        {.name = "who", .kind = DSE_LOG_TEXT, .text = "a\n\"\xC2\x9B\x1b[31m"},
        {.name = "absent", .kind = DSE_LOG_TEXT},
        {.name = "count", .kind = DSE_LOG_NUMBER, .number = -3},
        {.name = "took_ms", .kind = DSE_LOG_MS, .number = 1234567},
        {.name = "whole", .kind = DSE_LOG_BOOL, .number = 1},
    };
    const int n = sizeof fields / sizeof *fields;
    dse_log_to(keep_line);
    dse_log_configure(DSE_LOG_INFO, true);
    dse_log_set_node("box-7");
    dse_log_fields(DSE_LOG_INFO, "test", "done", fields, n);
    assert_non_null(strstr(logged,
                           "\"message\":\"done\",\"edge_node_id\":\"box-7\",\"who\":\"a\\u000a\\\"\\u009b\\u001b[31m\","
                           "\"count\":-3,\"took_ms\":1.235,\"whole\":true}\n"));
    dse_log_configure(DSE_LOG_INFO, false);
    dse_log_fields(DSE_LOG_INFO, "test", "done", fields, n);
    assert_string_equal(logged,
                        "info: test: done who=\"a\\u000a\\\"\\u009b\\u001b[31m\" count=-3 took_ms=1.235 whole=true\n");

    /* Fields that have no room are left out whole. */
    char text[9000];
    memset(text, 2, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const struct dse_log_field large[] = {{.name = "first", .kind = DSE_LOG_NUMBER, .number = 1},
                                          {.name = "large", .kind = DSE_LOG_TEXT, .text = text},
                                          {.name = "last", .kind = DSE_LOG_NUMBER, .number = 2}};
    dse_log_configure(DSE_LOG_INFO, true);
    dse_log_fields(DSE_LOG_INFO, "test", "done", large, 3);
    assert_non_null(strstr(logged, "\"first\":1,\"last\":2}\n"));
    dse_log_configure(DSE_LOG_WARN, true);
    logged[0] = '\0';
    dse_log_fields(DSE_LOG_INFO, "test", "too quiet", fields, n);
    assert_string_equal(logged, "");
    dse_log_always("test", "heard all the same");
    assert_non_null(strstr(logged, "heard all the same"));
    dse_log_set_node("");
    dse_log_to(NULL);
    dse_log_configure(DSE_LOG_WARN, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_survives_encoding),
        cmocka_unit_test(invalid_utf8_is_cut_at_maximal_subparts),
        cmocka_unit_test(json_rejects_nesting_past_limit),
        cmocka_unit_test(json_limits_values_so_that_memory_is_known),
        cmocka_unit_test(json_memory_stays_below_what_the_limit_promises),
        cmocka_unit_test(json_values_outlive_their_parse),
        cmocka_unit_test(json_says_when_there_is_no_memory),
        cmocka_unit_test(json_rejects_duplicates_bad_utf8_and_rest),
        cmocka_unit_test(errors_keep_status_place_and_text),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(random_bytes_come_even_without_getrandom),
        cmocka_unit_test(log_fields_are_members_of_the_object),
        cmocka_unit_test(log_goes_nowhere_until_a_sink_is_set),
        cmocka_unit_test(json_is_copied_and_written_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

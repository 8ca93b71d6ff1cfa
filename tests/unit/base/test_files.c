/* Files: what a write may replace, what counts as absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "temp_root.h"

static const char *in_root(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static enum dse_status write_to(const char *path, struct dse_error *err)
{
    enum dse_status checked = dse_file_check_target(path, err),
                    written = dse_file_write_atomic(path, "x", 1, 0600, err);
    assert_int_equal(checked, written);
    return written;
}

static void only_regular_files_are_replaced(void **state)
{
    struct dse_error err;
    struct stat before, after;
    assert_int_equal(mkfifo(in_root("fifo"), 0600), 0);
    assert_int_equal(mkdir(in_root("folder"), 0700), 0);
    assert_int_equal(symlink(in_root("fifo"), in_root("to-fifo")), 0);
    assert_int_equal(symlink("nothing", in_root("to-nothing")), 0);
    assert_int_equal(symlink(in_root("loop"), in_root("loop")), 0);
    static const char *const names[] = {"fifo", "folder", "to-fifo", "to-nothing", "loop"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *path = in_root(names[i]);
        assert_int_equal(lstat(path, &before), 0);
        assert_int_not_equal(write_to(path, &err), DSE_OK);
        assert_non_null(strstr(err.message, names[i]));
        assert_int_equal(lstat(path, &after), 0);
        assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    }
}

static void a_link_is_written_through(void **state)
{
    struct dse_error err;
    struct stat st;
    char *text;
    size_t bytes;
    assert_int_equal(write_to(in_root("real"), &err), DSE_OK);
    assert_int_equal(symlink("real", in_root("link")), 0);
    assert_int_equal(dse_file_write_atomic(in_root("link"), "new", 3, 0600, &err), DSE_OK);
    assert_int_equal(lstat(in_root("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(dse_file_read(in_root("real"), 100, &text, &bytes, &err), DSE_OK);
    assert_string_equal(text, "new");
    dse_free(text);
    assert_true(dse_file_is_same(in_root("link"), in_root("real")));
    assert_false(dse_file_is_same(in_root("link"), in_root("other")));
    assert_false(dse_file_is_same(in_root("other"), in_root("other")));
}

static void a_folder_that_is_missing_is_a_failed_write(void **state)
{
    struct dse_error err;
    assert_int_equal(write_to(in_root("none/out"), &err), DSE_ERR_IO);
    assert_int_equal(write_to(in_root("out/"), &err), DSE_ERR_IO);
    assert_int_equal(write_to("", &err), DSE_ERR_INVALID);
}

static void only_what_is_not_there_is_absent(void **state)
{
    struct dse_error err;
    struct dse_map map;
    assert_false(dse_file_exists(in_root("none")));
    assert_false(dse_file_exists(in_root("none/none")));
    assert_int_equal(dse_map_open(in_root("none"), &map, &err), DSE_ERR_NOT_FOUND);
    assert_int_equal(symlink("nothing", in_root("broken")), 0);
    assert_true(dse_file_exists(in_root("broken")));
    assert_int_equal(dse_map_open(in_root("broken"), &map, &err), DSE_ERR_IO);
    assert_non_null(strstr(err.message, "leads nowhere"));
    assert_int_equal(symlink(in_root("loop"), in_root("loop")), 0);
    assert_true(dse_file_exists(in_root("loop")));
    assert_int_equal(dse_map_open(in_root("loop"), &map, &err), DSE_ERR_IO);
}

static void an_empty_path_is_an_argument_error(void **state)
{
    struct dse_error err;
    struct dse_map map;
    char *text;
    size_t bytes;
    assert_int_equal(dse_make_directories("", &err), DSE_ERR_INVALID);
    assert_int_equal(dse_map_open("", &map, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_file_read("", 9, &text, &bytes, &err), DSE_ERR_INVALID);
    assert_int_equal(dse_make_directories(in_root("a/b/c"), &err), DSE_OK);
    assert_true(dse_file_is_directory(in_root("a/b/c")));
    assert_int_equal(dse_make_directories("/", &err), DSE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_regular_files_are_replaced, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_link_is_written_through, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_folder_that_is_missing_is_a_failed_write, make_root, remove_root),
        cmocka_unit_test_setup_teardown(only_what_is_not_there_is_absent, make_root, remove_root),
        cmocka_unit_test_setup_teardown(an_empty_path_is_an_argument_error, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

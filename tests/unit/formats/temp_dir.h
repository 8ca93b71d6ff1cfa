/* A temporary folder per test program, removed at its end. For cmocka's group setup and teardown. */
#ifndef TESTS_TEMP_DIR_H
#define TESTS_TEMP_DIR_H

int temp_dir_setup(void **state);
int temp_dir_teardown(void **state);
const char *temp_dir(const void *state);
/* "<DSE_TEST_DATA>/<relative>", or below DSE_TEST_UNPACKED; four results stay valid at a time. */
const char *data_path(const char *relative);
const char *unpacked_path(const char *relative);

#endif

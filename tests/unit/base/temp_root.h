/* A temporary folder per test program, for cmocka's group setup and teardown. */
#ifndef DSE_TEST_TEMP_ROOT_H
#define DSE_TEST_TEMP_ROOT_H

#include <stdio.h>
#include <stdlib.h>

static char root[64];

static int make_root(void **state)
{
    snprintf(root, sizeof root, "/tmp/dse-test-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

#endif

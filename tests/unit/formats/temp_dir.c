/* See temp_dir.h. */
#include "temp_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/dse-formats-XXXXXX";

int temp_dir_setup(void **state)
{
    *state = mkdtemp(folder);
    return *state == NULL;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

int temp_dir_teardown(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temp_dir(const void *state)
{
    return state;
}

static const char *below(const char *variable, const char *relative)
{
    static char paths[4][1024];
    static int next;
    const char *root = getenv(variable);
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root != NULL ? root : ".", relative);
    return path;
}

const char *data_path(const char *relative)
{
    return below("DSE_TEST_DATA", relative);
}
const char *unpacked_path(const char *relative)
{
    return below("DSE_TEST_UNPACKED", relative);
}

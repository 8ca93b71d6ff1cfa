/* A file of the prefix cache: any bytes, and the same with a checksum that fits, which must then be what was wanted. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/prefix_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCK_BYTES 64

static char folder_name[] = "/tmp/dse-fuzz-prefix-XXXXXX";
static int folder = -1;
static char path[DSE_PREFIX_NAME_BYTES];

static void clean(void)
{
    (void)unlinkat(folder, path, 0);
    (void)rmdir(folder_name);
}

static void check(const struct dse_prefix_file_header *want, const uint8_t *data, size_t size)
{
    uint8_t block[BLOCK_BYTES];
    struct dse_prefix_id id = {0};
    struct dse_error err = {.status = DSE_OK};
    int fd = openat(folder, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    (void)close(fd);
    enum dse_status status = dse_prefix_file_read(folder, want, block, &id, &err);
    if (status == DSE_OK) {
        struct dse_prefix_file_header header;
        memcpy(&header, data, sizeof header);
        if (memcmp(&header.scope, &want->scope, sizeof header.scope) != 0 || id.epoch != header.id.epoch ||
            memcmp(header.tokens, want->tokens, sizeof header.tokens) != 0 || id.epoch == 0)
            abort();
    } else if (err.message[0] == '\0' || (status != DSE_ERR_CORRUPT && status != DSE_ERR_NOT_FOUND)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dse_prefix_file_header want = {.hash = 1, .block_bytes = BLOCK_BYTES};
    struct dse_prefix_name name = {.hash = 1}, parsed;
    uint8_t whole[sizeof want + BLOCK_BYTES];
    struct dse_error err;
    char text[128];
    if (folder < 0) {
        dse_prefix_name_print(&name, path);
        if (mkdtemp(folder_name) == NULL || (folder = open(folder_name, O_RDONLY | O_DIRECTORY)) < 0) abort();
        if (atexit(clean) != 0) abort();
    }
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    if (dse_prefix_name_parse(text, &parsed)) {
        char printed[DSE_PREFIX_NAME_BYTES];
        dse_prefix_name_print(&parsed, printed);
        if (strcmp(printed, text) != 0) abort();
    }
    check(&want, data, size < 4096 ? size : 4096);

    /* As if written by us: fields from the input, checksum right. */
    struct dse_prefix_file_header header = want;
    if (size > 0) memcpy(&header, data, size < sizeof header ? size : sizeof header);
    header.hash = want.hash;
    header.depth = 0;
    header.scope.model[0] = 0;
    header.block_bytes = BLOCK_BYTES;
    memset(whole, 0, sizeof whole);
    if (dse_prefix_file_write(folder, &header, whole, &err) != DSE_OK) abort();
    int fd = openat(folder, path, O_RDONLY);
    if (fd < 0 || read(fd, whole, sizeof whole) != (ssize_t)sizeof whole) abort();
    (void)close(fd);
    check(&want, whole, sizeof whole);
    return 0;
}

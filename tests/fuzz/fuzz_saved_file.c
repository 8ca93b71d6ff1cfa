/* A saved slot: any bytes, the same with checksums that fit, which must then be what was expected; and names. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/pack_hash.h"
#include "engine/saved_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCK_BYTES 16
#define MAX_BLOCKS  4
#define N_VOCAB     1000
#define MAX_BYTES   4096

static char folder_name[] = "/tmp/dse-fuzz-saved-XXXXXX";
static int folder = -1;
static const struct dse_saved_expected expected = {
    .block_bytes = BLOCK_BYTES, .max_blocks = MAX_BLOCKS, .n_vocab = N_VOCAB};

static void clean(void)
{
    (void)unlinkat(folder, "x", 0);
    (void)rmdir(folder_name);
}

static void check(const uint8_t *data, size_t size)
{
    struct dse_saved_file file;
    struct dse_error err = {.status = DSE_OK};
    uint8_t block[BLOCK_BYTES];
    int fd = openat(folder, "x", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    (void)close(fd);
    enum dse_status status = dse_saved_file_open(folder, "x", &expected, &file, &err);
    if (status == DSE_OK) {
        const struct dse_saved_header *header = &file.header;
        if (header->n_blocks < 1 || header->n_blocks > MAX_BLOCKS || header->scope.model[0] != 0 ||
            header->scope.salt[1] != 0 || file.bytes != size)
            abort();
        for (uint32_t i = 0; i < header->n_blocks * DSE_KV_BLOCK_TOKENS; i++)
            if (file.tokens[i] < 0 || file.tokens[i] >= N_VOCAB) abort();
    }
    for (int i = 0; status == DSE_OK && i < (int)file.header.n_blocks; i++)
        status = dse_saved_file_read(&file, i, block, &err);
    if (status != DSE_OK && (err.message[0] == '\0' || (status != DSE_ERR_CORRUPT && status != DSE_ERR_UNSUPPORTED)))
        abort();
    dse_saved_file_close(&file);
}

/* As if written by us: whatever tokens, counts and blocks there are, their checksums are right. */
static void fix(uint8_t *whole, size_t size)
{
    struct dse_saved_header header;
    if (size < sizeof header) return;
    memcpy(&header, whole, sizeof header);
    const size_t token_bytes = (size_t)header.n_blocks * DSE_KV_BLOCK_TOKENS * sizeof(int32_t);
    const size_t data = sizeof header + token_bytes + (size_t)header.n_blocks * sizeof(uint64_t);
    if (header.n_blocks <= MAX_BLOCKS && data <= size) {
        uint64_t checksums[MAX_BLOCKS] = {0};
        for (uint32_t i = 0; i < header.n_blocks && data + (i + 1) * BLOCK_BYTES <= size; i++)
            checksums[i] = pack_hash_step(pack_hash(whole + data + i * BLOCK_BYTES, BLOCK_BYTES), i);
        memcpy(whole + sizeof header + token_bytes, checksums, header.n_blocks * sizeof *checksums);
        header.table_checksum = pack_hash_step(pack_hash(whole + sizeof header, token_bytes),
                                               pack_hash(checksums, header.n_blocks * sizeof *checksums));
    }
    header.checksum = pack_hash(&header, offsetof(struct dse_saved_header, checksum));
    memcpy(whole, &header, sizeof header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t whole[MAX_BYTES];
    struct dse_error err;
    if (folder < 0) {
        if (mkdtemp(folder_name) == NULL || (folder = open(folder_name, O_RDONLY | O_DIRECTORY)) < 0) abort();
        if (atexit(clean) != 0) abort();
    }
    if (dse_saved_name_check((const char *)data, size, &err) == DSE_OK &&
        (size == 0 || data[0] == '.' || memchr(data, '/', size) != NULL || memchr(data, '\0', size) != NULL))
        abort();
    if (size > MAX_BYTES) size = MAX_BYTES;
    check(data, size);
    memcpy(whole, data, size);
    fix(whole, size);
    check(whole, size);
    return 0;
}

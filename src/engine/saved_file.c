/* Writing and reading saved beginnings (see saved_file.h). Called by saved_prefix.c, on the thread of whoever saves. */
#include "engine/saved_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/random.h"
#include "device/pack_hash.h"
#include "engine/private_folder.h"

#define FIELD          "filename"
#define TEMPORARY      ".saving-" /* no name of a saved file begins so */
#define TEMPORARY_NAME 32

enum dse_status dse_saved_name_check(const char *name, size_t bytes, struct dse_error *err)
{
    if (bytes == 0) return dse_fail_at(err, DSE_ERR_INVALID, FIELD, -1, "filename is empty");
    if (bytes > DSE_SAVED_NAME_BYTES)
        return dse_fail_at(err, DSE_ERR_INVALID, FIELD, -1, "filename has %zu bytes; at most %d are possible", bytes,
                           DSE_SAVED_NAME_BYTES);
    bool plain = name[0] != '.';
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)name[i];
        plain &= c >= 0x20 && c != 0x7f && c != '/' && c != '\\';
    }
    if (plain) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, FIELD, -1,
                       "filename must be a plain name: no '/', no '\\', no control character, no '.' in front");
}

/* Whoever writes one holds its lock, so what can be locked was left by a process that is gone. */
static void remove_leftover(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) (void)unlinkat(folder, name, 0);
    (void)close(fd);
}

static enum dse_status remove_leftovers(int folder, struct dse_error *err)
{
    DIR *listing;
    enum dse_status status = dse_private_folder_list(folder, "slot_save_path", "list the folder of saved slots",
                                                     &listing, err);
    if (status != DSE_OK) return status;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        if (strncmp(entry->d_name, TEMPORARY, sizeof TEMPORARY - 1) == 0) remove_leftover(folder, entry->d_name);
    (void)closedir(listing);
    return DSE_OK;
}

enum dse_status dse_saved_folder_open(const char *path, int *fd, struct dse_error *err)
{
    enum dse_status status = dse_private_folder_open(path, "saved slots", fd, err);
    if (status == DSE_OK) status = remove_leftovers(*fd, err);
    if (status == DSE_OK || *fd < 0) return status;
    (void)close(*fd);
    *fd = -1;
    return status;
}

/* ---- layout ---- */

/* With its place: blocks that changed places are damage too. */
static uint64_t block_checksum(const void *data, uint64_t block_bytes, int i)
{
    return pack_hash_step(pack_hash(data, block_bytes), (uint64_t)i);
}

static uint64_t header_checksum(const struct dse_saved_header *header)
{
    return pack_hash(header, offsetof(struct dse_saved_header, checksum));
}

static uint64_t table_checksum(const int32_t *tokens, const uint64_t *checksums, uint32_t n_blocks)
{
    return pack_hash_step(pack_hash(tokens, (size_t)n_blocks * DSE_KV_BLOCK_TOKENS * sizeof *tokens),
                          pack_hash(checksums, (size_t)n_blocks * sizeof *checksums));
}

#define TABLE_BYTES_PER_BLOCK (DSE_KV_BLOCK_TOKENS * sizeof(int32_t) + sizeof(uint64_t))

/* false: no file is that large. */
static bool file_bytes(const struct dse_saved_header *header, size_t *data, size_t *bytes)
{
    size_t table, blocks;
    return dse_mul_size(header->n_blocks, TABLE_BYTES_PER_BLOCK, &table) && dse_add_size(sizeof *header, table, data) &&
           dse_mul_size(header->n_blocks, header->block_bytes, &blocks) && dse_add_size(*data, blocks, bytes) &&
           *bytes <= INT64_MAX;
}

/* ---- what is there ---- */

/* At `filename`, with the name of the file. */
static enum dse_status fail_with(struct dse_error *err, int error_number, const char *name, const char *what)
{
    if (error_number == ENOSPC || error_number == EDQUOT)
        return dse_fail(err, DSE_ERR_UNAVAILABLE, "the folder of saved slots has no space left for %s", name);
    if (error_number == EISDIR) return dse_fail_at(err, DSE_ERR_INVALID, FIELD, -1, "%s is a folder", name);
    const enum dse_status status = dse_fail_errno(err, error_number, name, what);
    if (err != NULL) (void)snprintf(err->file, sizeof err->file, "%s", FIELD);
    return status;
}

static enum dse_status open_plain(int folder, const char *name, int *fd, uint64_t *bytes, struct dse_error *err)
{
    struct stat st;
    *fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* not to wait for a pipe */
    if (*fd < 0 && errno == ENOENT)
        return dse_fail_at(err, DSE_ERR_NOT_FOUND, FIELD, -1, "there is no saved slot of that name");
    if (*fd < 0 && (errno == ELOOP || errno == ENXIO))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, -1, "the file is a link or a socket, not a saved slot");
    if (*fd < 0) return fail_with(err, errno, name, "open");
    if (fstat(*fd, &st) != 0) return fail_with(err, errno, name, "look at");
    if (!S_ISREG(st.st_mode)) return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, -1, "the file is not a regular one");
    *bytes = (uint64_t)st.st_size;
    return DSE_OK;
}

static enum dse_status read_header(struct dse_saved_file *file, struct dse_error *err)
{
    struct dse_saved_header *header = &file->header;
    if (file->bytes < sizeof *header || !dse_read_at(file->fd, header, sizeof *header, 0))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, 0, "the file is not a saved slot: it has %llu bytes",
                           (unsigned long long)file->bytes);
    if (header->magic != DSE_SAVED_MAGIC)
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, 0, "the file is not a saved slot");
    if (header->version != DSE_SAVED_VERSION || header->header_bytes != sizeof *header)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, FIELD, 8,
                           "the file is of version %u of the format, this program reads version %d", header->version,
                           DSE_SAVED_VERSION);
    if (header->checksum != header_checksum(header))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, 0, "the file is damaged: the checksum of its header is wrong");
    return DSE_OK;
}

/* Whoever saves may replace what is of the same key, or of nobody: a damaged file, a link, a pipe. */
static enum dse_status check_replaceable(int folder, const char *name, const uint64_t salt[2], struct dse_error *err)
{
    struct dse_saved_file old = {.fd = -1};
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return fail_with(err, EISDIR, name, "replace");
    enum dse_status status = open_plain(folder, name, &old.fd, &old.bytes, err);
    if (status == DSE_OK) status = read_header(&old, err);
    if (status == DSE_OK && memcmp(old.header.scope.salt, salt, sizeof old.header.scope.salt) != 0)
        status = dse_fail_at(err, DSE_ERR_INVALID, FIELD, -1,
                             "the name %s is taken by a slot that was saved under another API key or cache_salt", name);
    dse_saved_file_close(&old);
    return status == DSE_ERR_NOT_FOUND || status == DSE_ERR_CORRUPT ? DSE_OK : status;
}

/* ---- writing ---- */

static enum dse_status write_blocks(int fd, const char *name, const struct dse_saved_source *source,
                                    uint64_t *checksums, size_t data, struct dse_error *err)
{
    const size_t bytes = source->header.block_bytes;
    for (uint32_t i = 0; i < source->header.n_blocks; i++) {
        const uint8_t *block = source->memory + (size_t)source->blocks[i] * bytes;
        if (source->stop != NULL && source->stop(source->user))
            return dse_fail(err, DSE_ERR_UNAVAILABLE, "the server is shutting down");
        checksums[i] = block_checksum(block, bytes, (int)i);
        if (!dse_write_at(fd, block, bytes, (off_t)(data + i * bytes))) return fail_with(err, errno, name, "write");
    }
    return DSE_OK;
}

static enum dse_status write_front(int fd, const char *name, struct dse_saved_header *header, const int32_t *tokens,
                                   const uint64_t *checksums, struct dse_error *err)
{
    const size_t token_bytes = (size_t)header->n_blocks * DSE_KV_BLOCK_TOKENS * sizeof *tokens;
    header->table_checksum = table_checksum(tokens, checksums, header->n_blocks);
    header->checksum = header_checksum(header);
    if (!dse_write_at(fd, header, sizeof *header, 0) || !dse_write_at(fd, tokens, token_bytes, sizeof *header) ||
        !dse_write_at(fd, checksums, header->n_blocks * sizeof *checksums, (off_t)(sizeof *header + token_bytes)))
        return fail_with(err, errno, name, "write");
    return fsync(fd) == 0 ? DSE_OK : fail_with(err, errno, name, "sync");
}

static enum dse_status create_temporary(int folder, const char *name, char temporary[TEMPORARY_NAME], int *fd,
                                        struct dse_error *err)
{
    uint64_t random;
    dse_random_bytes(&random, sizeof random);
    (void)snprintf(temporary, TEMPORARY_NAME, TEMPORARY "%016llx", (unsigned long long)random);
    *fd = openat(folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return fail_with(err, errno, name, "create");
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return DSE_OK;
    return fail_with(err, errno, name, "lock");
}

enum dse_status dse_saved_file_write(int folder, const char *name, const struct dse_saved_source *source,
                                     uint64_t *bytes, struct dse_error *err)
{
    struct dse_saved_header header = source->header;
    char temporary[TEMPORARY_NAME];
    size_t data, whole;
    int fd = -1;
    header.magic = DSE_SAVED_MAGIC;
    header.version = DSE_SAVED_VERSION;
    header.header_bytes = sizeof header;
    header.block_tokens = DSE_KV_BLOCK_TOKENS;
    if (!file_bytes(&header, &data, &whole))
        return dse_fail(err, DSE_ERR_LIMIT, "%u blocks are too many", header.n_blocks);
    uint64_t *checksums = dse_calloc(DSE_MEM_KV, header.n_blocks + 1u, sizeof *checksums);
    if (checksums == NULL) return dse_fail_memory(err, header.n_blocks * sizeof *checksums, "checksums of blocks");
    enum dse_status status = check_replaceable(folder, name, header.scope.salt, err);
    if (status == DSE_OK) status = create_temporary(folder, name, temporary, &fd, err);
    if (status == DSE_OK) status = write_blocks(fd, name, source, checksums, data, err);
    if (status == DSE_OK) status = write_front(fd, name, &header, source->tokens, checksums, err);
    if (status == DSE_OK) status = check_replaceable(folder, name, header.scope.salt, err); /* it took a while */
    if (status == DSE_OK && renameat(folder, temporary, folder, name) != 0)
        status = fail_with(err, errno, name, "replace");
    if (status != DSE_OK && fd >= 0) (void)unlinkat(folder, temporary, 0);
    if (fd >= 0) (void)close(fd);
    dse_free(checksums);
    if (status != DSE_OK) return status;
    (void)fsync(folder); /* or the old name stays after a loss of power, which is what rename promises */
    *bytes = whole;
    return DSE_OK;
}

/* ---- reading ---- */

static enum dse_status check_header(const struct dse_saved_file *file, const struct dse_saved_expected *expected,
                                    struct dse_error *err)
{
    const struct dse_saved_header *header = &file->header;
    size_t data, whole;
    if (memcmp(header->scope.model, expected->model, sizeof expected->model) != 0 ||
        header->block_tokens != DSE_KV_BLOCK_TOKENS || header->block_bytes != expected->block_bytes)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, FIELD, -1,
                           "the slot was saved by another model, another version of this program, or with other "
                           "settings (--kv-cache-dtype, --numerics, --compute)");
    if (memcmp(header->scope.salt, expected->salt, sizeof expected->salt) != 0)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, FIELD, -1,
                           "the slot was saved under another API key or cache_salt");
    if (!file_bytes(header, &data, &whole) || whole != file->bytes)
        return dse_fail_at(
            err, DSE_ERR_CORRUPT, FIELD, -1,
            "the file has %llu bytes, which is not what its %u blocks take: it was cut short or added to",
            (unsigned long long)file->bytes, header->n_blocks);
    if (header->n_blocks == 0) return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, -1, "the file holds no block");
    if ((uint64_t)header->n_blocks > (uint64_t)expected->max_blocks)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, FIELD, -1,
                           "the slot has %llu tokens, the KV pool holds %llu: give it more memory (--kv-cache-memory)",
                           (unsigned long long)header->n_blocks * DSE_KV_BLOCK_TOKENS,
                           (unsigned long long)expected->max_blocks * DSE_KV_BLOCK_TOKENS);
    return DSE_OK;
}

static enum dse_status read_table(struct dse_saved_file *file, int n_vocab, struct dse_error *err)
{
    const size_t n_blocks = file->header.n_blocks, n_tokens = n_blocks * DSE_KV_BLOCK_TOKENS;
    const size_t token_bytes = n_tokens * sizeof *file->tokens;
    file->tokens = dse_calloc(DSE_MEM_KV, n_tokens, sizeof *file->tokens);
    file->checksums = dse_calloc(DSE_MEM_KV, n_blocks, sizeof *file->checksums);
    if (file->tokens == NULL || file->checksums == NULL)
        return dse_fail_memory(err, n_blocks * TABLE_BYTES_PER_BLOCK, "the tokens of a saved slot");
    if (!dse_read_at(file->fd, file->tokens, token_bytes, sizeof file->header) ||
        !dse_read_at(file->fd, file->checksums, n_blocks * sizeof *file->checksums,
                     (off_t)(sizeof file->header + token_bytes)))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, -1, "the file was cut short while it was read");
    file->data = (off_t)(sizeof file->header + n_blocks * TABLE_BYTES_PER_BLOCK);
    if (file->header.table_checksum != table_checksum(file->tokens, file->checksums, file->header.n_blocks))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, sizeof file->header,
                           "the file is damaged: the checksum of its tokens is wrong");
    for (size_t i = 0; i < n_tokens; i++)
        if (file->tokens[i] < 0 || file->tokens[i] >= n_vocab)
            return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, (int64_t)(sizeof file->header + i * sizeof *file->tokens),
                               "token %zu of the file is %d, the vocabulary has 0…%d", i, file->tokens[i], n_vocab - 1);
    return DSE_OK;
}

enum dse_status dse_saved_file_open(int folder, const char *name, const struct dse_saved_expected *expected,
                                    struct dse_saved_file *file, struct dse_error *err)
{
    *file = (struct dse_saved_file){.fd = -1};
    enum dse_status status = open_plain(folder, name, &file->fd, &file->bytes, err);
    if (status == DSE_OK) status = read_header(file, err);
    if (status == DSE_OK) status = check_header(file, expected, err);
    return status == DSE_OK ? read_table(file, expected->n_vocab, err) : status;
}

enum dse_status dse_saved_file_read(const struct dse_saved_file *file, int i, uint8_t *data, struct dse_error *err)
{
    const size_t bytes = file->header.block_bytes;
    const off_t at = file->data + (off_t)((size_t)i * bytes);
    if (!dse_read_at(file->fd, data, bytes, at))
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, at, "the file was cut short while it was read");
    if (block_checksum(data, bytes, i) != file->checksums[i])
        return dse_fail_at(err, DSE_ERR_CORRUPT, FIELD, at, "the file is damaged: the checksum of block %d is wrong",
                           i);
    return DSE_OK;
}

void dse_saved_file_close(struct dse_saved_file *file)
{
    if (file->fd >= 0) (void)close(file->fd);
    dse_free(file->tokens);
    dse_free(file->checksums);
    *file = (struct dse_saved_file){.fd = -1};
}

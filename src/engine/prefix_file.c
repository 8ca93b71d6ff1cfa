/* The files of the prefix cache (see prefix_file.h). Called by the thread of prefix_disk.c, never by the engine's. */
#include "engine/prefix_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "device/pack_hash.h"

#define NAME_FORMAT "%016llx-%016llx-%08x.kv"
#define NAME_LENGTH (16 + 1 + 16 + 1 + 8 + 3)
#define TEMPORARY   ".new"

void dse_prefix_name_print(const struct dse_prefix_name *name, char text[DSE_PREFIX_NAME_BYTES])
{
    (void)snprintf(text, DSE_PREFIX_NAME_BYTES, NAME_FORMAT, (unsigned long long)name->model,
                   (unsigned long long)name->hash, name->depth);
}

static bool parse_hex(const char *text, int digits, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < digits; i++) {
        char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
        *value = *value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

bool dse_prefix_name_parse(const char *text, struct dse_prefix_name *name)
{
    uint64_t depth;
    if (strlen(text) != NAME_LENGTH || text[16] != '-' || text[33] != '-' || strcmp(text + 42, ".kv") != 0 ||
        !parse_hex(text, 16, &name->model) || !parse_hex(text + 17, 16, &name->hash) ||
        !parse_hex(text + 34, 8, &depth))
        return false;
    name->depth = (uint32_t)depth;
    return true;
}

bool dse_prefix_name_is_temporary(const char *text)
{
    char final[DSE_PREFIX_NAME_BYTES];
    struct dse_prefix_name name;
    if (strlen(text) != NAME_LENGTH + sizeof TEMPORARY - 1 || strcmp(text + NAME_LENGTH, TEMPORARY) != 0) return false;
    memcpy(final, text, NAME_LENGTH);
    final[NAME_LENGTH] = '\0';
    return dse_prefix_name_parse(final, &name);
}

static void names_of(const struct dse_prefix_file_header *header, char name[DSE_PREFIX_NAME_BYTES],
                     char temporary[DSE_PREFIX_NAME_BYTES + 8])
{
    struct dse_prefix_name parts = {.model = header->scope.model[0], .hash = header->hash, .depth = header->depth};
    dse_prefix_name_print(&parts, name);
    (void)snprintf(temporary, DSE_PREFIX_NAME_BYTES + 8, "%s" TEMPORARY, name);
}

static uint64_t checksum_of(const struct dse_prefix_file_header *header, const void *data, size_t bytes)
{
    return pack_hash_step(pack_hash(header, offsetof(struct dse_prefix_file_header, checksum)), pack_hash(data, bytes));
}

enum dse_status dse_prefix_file_write(int folder, struct dse_prefix_file_header *header, const void *data,
                                      struct dse_error *err)
{
    char name[DSE_PREFIX_NAME_BYTES], temporary[DSE_PREFIX_NAME_BYTES + 8];
    header->magic = DSE_PREFIX_FILE_MAGIC;
    header->version = DSE_PREFIX_FILE_VERSION;
    header->header_bytes = sizeof *header;
    header->reserved = 0;
    header->checksum = checksum_of(header, data, header->block_bytes);
    names_of(header, name, temporary);
    (void)unlinkat(folder, temporary, 0);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return dse_fail_errno(err, errno, temporary, "create");
    bool ok = dse_write_at(fd, header, sizeof *header, 0) &&
              dse_write_at(fd, data, header->block_bytes, sizeof *header);
    int error_number = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        error_number = errno;
    }
    if (ok && renameat(folder, temporary, folder, name) != 0) {
        ok = false;
        error_number = errno;
    }
    if (ok) return DSE_OK;
    (void)unlinkat(folder, temporary, 0);
    return dse_fail_errno(err, error_number, temporary, "write");
}

static bool same_id(const struct dse_prefix_id *a, const struct dse_prefix_id *b)
{
    return a->epoch == b->epoch && a->serial == b->serial;
}

static enum dse_status check(const struct dse_prefix_file_header *header, const struct dse_prefix_file_header *want,
                             const void *data, const char *name, struct dse_error *err)
{
    if (header->magic != DSE_PREFIX_FILE_MAGIC)
        return dse_fail_at(err, DSE_ERR_CORRUPT, name, 0, "%s is not a block of a prefix cache", name);
    if (header->version != DSE_PREFIX_FILE_VERSION || header->header_bytes != sizeof *header)
        return dse_fail_at(err, DSE_ERR_CORRUPT, name, 8, "%s is of version %u of the format, this is version %d", name,
                           header->version, DSE_PREFIX_FILE_VERSION);
    if (header->block_bytes != want->block_bytes)
        return dse_fail_at(err, DSE_ERR_CORRUPT, name, offsetof(struct dse_prefix_file_header, block_bytes),
                           "%s holds a block of %llu bytes, %llu are expected", name,
                           (unsigned long long)header->block_bytes, (unsigned long long)want->block_bytes);
    if (header->checksum != checksum_of(header, data, want->block_bytes))
        return dse_fail_at(err, DSE_ERR_CORRUPT, name, offsetof(struct dse_prefix_file_header, checksum),
                           "%s is damaged: its checksum does not fit", name);
    /* The id is compared, the hash only found it. */
    if (memcmp(&header->scope, &want->scope, sizeof want->scope) != 0 || !same_id(&header->parent, &want->parent) ||
        memcmp(header->tokens, want->tokens, sizeof want->tokens) != 0 || header->id.epoch == 0)
        return dse_fail_at(err, DSE_ERR_NOT_FOUND, name, -1, "%s belongs to another beginning", name);
    return DSE_OK;
}

enum dse_status dse_prefix_file_read(int folder, const struct dse_prefix_file_header *want, void *data,
                                     struct dse_prefix_id *id, struct dse_error *err)
{
    char name[DSE_PREFIX_NAME_BYTES], temporary[DSE_PREFIX_NAME_BYTES + 8];
    struct dse_prefix_file_header header;
    struct stat st;
    names_of(want, name, temporary);
    /* Without waiting, in case it is a pipe. */
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return dse_fail_at(err, DSE_ERR_NOT_FOUND, name, -1, "%s is gone", name);
    if (fd < 0 && errno == ELOOP) return dse_fail_at(err, DSE_ERR_CORRUPT, name, -1, "%s is a link", name);
    if (fd < 0) return dse_fail_errno(err, errno, name, "open");
    enum dse_status status = DSE_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != sizeof header + want->block_bytes ||
        !dse_read_at(fd, &header, sizeof header, 0) || !dse_read_at(fd, data, want->block_bytes, sizeof header))
        status = dse_fail_at(err, DSE_ERR_CORRUPT, name, -1, "%s is not a file of %llu bytes: cut short, or not ours",
                             name, (unsigned long long)(sizeof header + want->block_bytes));
    if (status == DSE_OK) status = check(&header, want, data, name, err);
    if (status == DSE_OK) {
        *id = header.id;
        (void)futimens(fd, NULL); /* used now: what a later start goes by */
    }
    (void)close(fd);
    return status;
}

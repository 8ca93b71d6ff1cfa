/* The computed beginning of a prompt as one file: its tokens, and the KV blocks that hold their keys and values.
 *
 *   header            struct dse_saved_header
 *   tokens            int32 [n_blocks * 32]
 *   block checksums   u64 [n_blocks]
 *   blocks            u8 [n_blocks][block_bytes]
 *
 * All in the byte order of the machine that wrote it; another order has another magic. A file is untrusted input:
 * nothing of it is believed before its checksum was compared, no count before it fits both the file's size and what is
 * expected. Written under a temporary name, synced and renamed: whoever kills the process finds the old file or the new
 * one. Called on threads that may wait for files, never on the engine's.
 */
#ifndef DSE_ENGINE_SAVED_FILE_H
#define DSE_ENGINE_SAVED_FILE_H

#include <sys/types.h>

#include "engine/prefix_cache.h"

/* Raised whenever the header or the meaning of the data changes. */
#define DSE_SAVED_VERSION    1
#define DSE_SAVED_MAGIC      0x6465766173657364u /* "dsesaved" */
#define DSE_SAVED_NAME_BYTES 200                 /* a name has at most so many */

struct dse_saved_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    struct dse_prefix_scope scope;
    uint64_t block_bytes;
    uint32_t block_tokens, n_blocks;
    uint64_t table_checksum; /* of tokens and block checksums */
    uint64_t checksum;       /* of all above */
};

/* Opens the folder, private to its user and made if missing, and removes what killed processes left half written. */
DSE_MUST_CHECK enum dse_status dse_saved_folder_open(const char *path, int *fd, struct dse_error *err);

/* A name for a file of that folder: no path, nothing hidden, no control characters. DSE_ERR_INVALID at `filename`. */
DSE_MUST_CHECK enum dse_status dse_saved_name_check(const char *name, size_t bytes, struct dse_error *err);

/* Asked before every block: true ends a transfer with DSE_ERR_UNAVAILABLE. */
typedef bool dse_saved_stop_fn(void *user);

/* What is written: scope, block_bytes and n_blocks of the header are the caller's, the rest is filled in. */
struct dse_saved_source {
    struct dse_saved_header header;
    const int32_t *tokens;   /* [n_blocks * 32] */
    const uint8_t *memory;   /* block i begins at memory + blocks[i] * block_bytes */
    const int32_t *blocks;   /* [n_blocks], not changed by anybody meanwhile */
    dse_saved_stop_fn *stop; /* NULL: never */
    void *user;
};
/* Replaces a file of that name, unless another salt saved it, another version of the format wrote it, or it is a
 * folder: DSE_ERR_INVALID or DSE_ERR_UNSUPPORTED at `filename`. No space is left: DSE_ERR_UNAVAILABLE. *bytes: of the
 * new one. */
DSE_MUST_CHECK enum dse_status dse_saved_file_write(int folder, const char *name, const struct dse_saved_source *source,
                                                    uint64_t *bytes, struct dse_error *err);

/* What a file must be to be of use. */
struct dse_saved_expected {
    uint64_t model[2], salt[2];
    uint64_t block_bytes;
    int max_blocks, n_vocab;
};

struct dse_saved_file {
    int fd;
    struct dse_saved_header header;
    int32_t *tokens;     /* [n_blocks * 32], owned */
    uint64_t *checksums; /* [n_blocks], owned */
    off_t data;          /* where the blocks begin */
    uint64_t bytes;      /* of the file */
};
/* Header, tokens and checksums of blocks, all checked. No such file: DSE_ERR_NOT_FOUND; malformed, cut short or
 * damaged: DSE_ERR_CORRUPT; of another model, key or KV type, or too large: DSE_ERR_UNSUPPORTED. Each at `filename`. */
DSE_MUST_CHECK enum dse_status dse_saved_file_open(int folder, const char *name,
                                                   const struct dse_saved_expected *expected,
                                                   struct dse_saved_file *file, struct dse_error *err);
/* Block i into data [block_bytes], which may be overwritten on failure: DSE_ERR_CORRUPT. */
DSE_MUST_CHECK enum dse_status dse_saved_file_read(const struct dse_saved_file *file, int i, uint8_t *data,
                                                   struct dse_error *err);
void dse_saved_file_close(struct dse_saved_file *file); /* also after a failed open */

#endif

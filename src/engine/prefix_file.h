/* One KV block of the prefix cache as a file: name, header, keys and values.
 *
 * Written beside its final name and renamed, so that a file of that name was complete once. It is not synced: what a
 * loss of power leaves of it is caught by the checksum, as is any other damage. Nothing of a file is believed before
 * the checksum was compared, and it is used only if scope, tokens and the block before it are those wanted. The bytes
 * are in the order of the machine that wrote them; another order has another magic.
 */
#ifndef DSE_ENGINE_PREFIX_FILE_H
#define DSE_ENGINE_PREFIX_FILE_H

#include "engine/prefix_cache.h"

/* Raised whenever the header or the meaning of the data changes. */
#define DSE_PREFIX_FILE_VERSION 1
#define DSE_PREFIX_FILE_MAGIC   0x6b6c62766b657364u /* "dsekvblk" */

struct dse_prefix_file_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    struct dse_prefix_scope scope;
    uint64_t hash, parent_hash;
    struct dse_prefix_id id, parent;
    uint64_t block_bytes;
    uint32_t depth; /* blocks before it */
    uint32_t reserved;
    int32_t tokens[DSE_KV_BLOCK_TOKENS];
    uint64_t checksum; /* of all above and the data */
};

/* "<model>-<hash>-<depth>.kv" */
#define DSE_PREFIX_NAME_BYTES 48
struct dse_prefix_name {
    uint64_t model, hash;
    uint32_t depth;
};
void dse_prefix_name_print(const struct dse_prefix_name *name, char text[DSE_PREFIX_NAME_BYTES]);
bool dse_prefix_name_parse(const char *text, struct dse_prefix_name *name);
/* A file that was being written when its process was killed. */
bool dse_prefix_name_is_temporary(const char *text);

/* Fills magic, version, size and checksum of *header; folder: descriptor of a directory. */
DSE_MUST_CHECK enum dse_status dse_prefix_file_write(int folder, struct dse_prefix_file_header *header,
                                                     const void *data, struct dse_error *err);
/* want: scope, hash, parent, depth, tokens and block_bytes of the block wanted. data: [block_bytes]; may be overwritten
 * on failure. *id: of the block. Missing, or of another beginning: DSE_ERR_NOT_FOUND. Damaged, cut short or no such
 * file at all: DSE_ERR_CORRUPT. The system will not open it now: DSE_ERR_IO. */
DSE_MUST_CHECK enum dse_status dse_prefix_file_read(int folder, const struct dse_prefix_file_header *want, void *data,
                                                    struct dse_prefix_id *id, struct dse_error *err);

#endif

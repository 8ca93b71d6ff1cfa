/* The disk tier of the prefix cache: which blocks are in files, and the one thread that writes and reads them.
 *
 * The engine thread asks, offers a copy of a block, and hands out memory to read into; it never waits for a file. What
 * has been read comes back by dse_prefix_disk_loaded, after a call of `notify` from the other thread. Files are kept up to
 * a number of bytes, those of other models in the folder counted; who has to go is who was used least recently, the end
 * of a prompt before its beginning. A file that is not what it should be is removed, with one warning in a life. When a
 * write fails there are no more of them, with one warning.
 */
#ifndef DSE_ENGINE_PREFIX_DISK_H
#define DSE_ENGINE_PREFIX_DISK_H

#include "engine/prefix_file.h"

/* Blocks of one load. */
#define DSE_PREFIX_LOAD_BLOCKS 8

struct dse_prefix_disk;
typedef void dse_prefix_notify_fn(void *user);

/* Consecutive blocks of one beginning, read in order until one is not there. */
struct dse_prefix_load {
    uint64_t task; /* who waits for it */
    int n, n_read;
    int32_t blocks[DSE_PREFIX_LOAD_BLOCKS];
    uint8_t *memory[DSE_PREFIX_LOAD_BLOCKS]; /* of those blocks: the thread's until it comes back */
    /* as for dse_prefix_file_read; parents of all but the first are filled in by the thread */
    struct dse_prefix_file_header want[DSE_PREFIX_LOAD_BLOCKS];
    struct dse_prefix_id ids[DSE_PREFIX_LOAD_BLOCKS];
};

/* Bytes of memory that it takes for copies of blocks. */
uint64_t dse_prefix_disk_memory(uint64_t block_bytes);
/* space_bytes: for all files; must hold at least one. */
DSE_MUST_CHECK enum dse_status dse_prefix_disk_open(const char *path, uint64_t space_bytes, uint64_t model,
                                                    uint64_t block_bytes, dse_prefix_notify_fn *notify, void *user,
                                                    struct dse_prefix_disk **disk, struct dse_error *err);
/* Writes what was offered, joins the thread. Loads under way come back to nobody. */
void dse_prefix_disk_close(struct dse_prefix_disk *disk);

/* Whether there is a file for the hash. use: it counts as used now, behind the block before it. */
bool dse_prefix_disk_has(struct dse_prefix_disk *disk, uint64_t hash);
void dse_prefix_disk_use(struct dse_prefix_disk *disk, uint64_t hash, uint64_t parent_hash);
/* Copies a block to be written. false: no room for a copy now; `notify` is called when there is. */
bool dse_prefix_disk_offer(struct dse_prefix_disk *disk, const struct dse_prefix_file_header *header, const void *data);
bool dse_prefix_disk_writes(const struct dse_prefix_disk *disk); /* false once a write has failed */
/* false: too many loads are under way. */
bool dse_prefix_disk_load(struct dse_prefix_disk *disk, const struct dse_prefix_load *load);
/* The next load that is done; false: none. */
bool dse_prefix_disk_loaded(struct dse_prefix_disk *disk, struct dse_prefix_load *load);

#endif

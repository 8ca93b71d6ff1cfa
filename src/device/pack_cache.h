/* Packed weights in a file: built once, then mapped read-only by every later start.
 *
 * One file per model, named by a key over what it was made from. A file that is not exactly what is expected (another
 * version, other matrices, cut short, damaged) is built again. Any failure here is reported through err and leaves the
 * caller to pack into anonymous memory instead; nothing in a cache file is trusted before it was checked, but for the
 * experts of a model larger than the memory.
 *
 * File, in the byte order of the machine: header, table of matrices, a checksum per chunk of 4 MiB of data; padded to
 * 4096; data. Written beside its final name and renamed when complete. The folder keeps the pack in use and the few
 * used last (pack_folder.h).
 */
#ifndef DSE_DEVICE_PACK_CACHE_H
#define DSE_DEVICE_PACK_CACHE_H

#include "base/error.h"
#include "base/thread.h"
#include "kernels/matrix.h"
#include "model/weights.h"

/* Raised whenever a packed layout or the file format changes. */
#define DSE_PACK_VERSION 2
/* A checksum covers so much. */
#define DSE_PACK_CHUNK_BYTES ((size_t)4 << 20)

/* Where one matrix lies in the packed data. */
struct pack_entry {
    uint32_t layout, source_type;
    uint64_t rows, cols;
    uint64_t offset, bytes;
};

struct pack_plan {
    const struct pack_entry *entries;
    size_t n_entries;
    size_t data_bytes;
    size_t core_bytes; /* what every token needs, in front; behind it experts, from the beginning of a chunk on */
    /* Compared with their checksums when a file is opened, whole chunks: all, or the core of a model that memory does
     * not hold, of which experts that nobody chooses are never to be read. */
    size_t check_bytes;
};

struct pack_key {
    uint64_t words[2];
};

/* The identity of a model's files (size, time, inode of each) and of what is packed from them. */
struct pack_key dse_pack_key_of(const struct dse_model_file *file, const struct pack_plan *plan);

struct pack_map {
    const uint8_t *data; /* the packed data; NULL: nothing mapped */
    void *map;
    size_t map_bytes;
};

/* Packs everything of the plan into data. */
typedef void pack_fill_fn(void *context, uint8_t *data);

/* Maps the cache file of key in folder (created if missing), building it with fill when there is none or it is not
 * good. pool checks the data. built: whether fill was called. */
DSE_MUST_CHECK enum dse_status dse_pack_cache_open(const char *folder, struct pack_key key,
                                                   const struct pack_plan *plan, struct dse_pool *pool,
                                                   pack_fill_fn *fill, void *context, struct pack_map *map, bool *built,
                                                   struct dse_error *err);
void dse_pack_map_close(struct pack_map *map);

#endif

/* The folder of the prefix cache's files: private to one user, used by one process at a time. */
#ifndef DSE_ENGINE_PREFIX_FOLDER_H
#define DSE_ENGINE_PREFIX_FOLDER_H

#include "engine/prefix_file.h"

struct dse_prefix_folder {
    int fd;   /* of the directory */
    int lock; /* of the file "lock" in it, held while open */
};

struct dse_prefix_found {
    struct dse_prefix_name name;
    uint64_t bytes;
    int64_t used_s; /* by the file's time */
};

/* Made if missing, for its user only; one that others may look into is refused, for prompts can be read out of it. One
 * that another process has open is DSE_ERR_BUSY. */
DSE_MUST_CHECK enum dse_status dse_prefix_folder_open(const char *path, struct dse_prefix_folder *folder,
                                                      struct dse_error *err);
void dse_prefix_folder_close(struct dse_prefix_folder *folder); /* after a failed open too */
/* Every block in it, least recently used first, of one age the ends of prompts before their beginnings. Files that were
 * never finished are removed, other names are none of its business. Returns owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_prefix_folder_scan(const struct dse_prefix_folder *folder,
                                                      struct dse_prefix_found **found, size_t *n_found,
                                                      struct dse_error *err);

#endif

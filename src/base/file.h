/* Files: read-only maps, bounded reads, atomic writes. A NULL or empty path is DSE_ERR_INVALID "no file is named". */
#ifndef DSE_BASE_FILE_H
#define DSE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct dse_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
    int fd; /* kept open so that a shrinking file can be noticed */
};

/* Only regular files; a directory, device or pipe is DSE_ERR_INVALID "not a regular file", a link to nothing
 * DSE_ERR_IO. */
DSE_MUST_CHECK enum dse_status dse_map_open(const char *path, struct dse_map *map, struct dse_error *err);
/* The same with a copy of the content in anonymous memory instead, for a file that others may write to while it is
 * looked at: where a map would be cut short under its reader, this is DSE_ERR_IO. Larger than max_bytes:
 * DSE_ERR_LIMIT. */
DSE_MUST_CHECK enum dse_status dse_map_read(const char *path, size_t max_bytes, struct dse_map *map,
                                            struct dse_error *err);
void dse_map_close(struct dse_map *map); /* safe on a zeroed struct */
/* True if the file still has at least map->bytes bytes. Touching pages beyond the end would be SIGBUS. */
bool dse_map_intact(const struct dse_map *map);
/* True if path names the file that is mapped. */
bool dse_map_is_of(const struct dse_map *map, const char *path);

/* Whole file, NUL-terminated (not counted). Larger than max_bytes: DSE_ERR_LIMIT. Returns owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes,
                                             struct dse_error *err);
/* Temporary file beside path, fsync, rename. Replaces regular files only (through links): anything else is
 * DSE_ERR_INVALID. */
DSE_MUST_CHECK enum dse_status dse_file_write_atomic(const char *path, const void *data, size_t bytes, unsigned mode,
                                                     struct dse_error *err);
/* All bytes at that place of an open file; false: errno tells why, and some may be written. */
bool dse_write_at(int fd, const void *data, size_t bytes, off_t at);
/* The same for reading; false also when the file ends before. */
bool dse_read_at(int fd, void *data, size_t bytes, off_t at);
/* DSE_OK if a write to path could begin: what is there is a regular file or nothing, and the folder exists. */
DSE_MUST_CHECK enum dse_status dse_file_check_target(const char *path, struct dse_error *err);
/* False only if there is nothing of that name; true for links to nothing and for what may not be looked at. */
bool dse_file_exists(const char *path);
bool dse_file_is_same(const char *path, const char *other); /* both exist and are one file */
bool dse_file_is_directory(const char *path);
DSE_MUST_CHECK enum dse_status dse_make_directories(const char *path, struct dse_error *err); /* like mkdir -p, 0755 */
/* directory + "/" + name, owned (dse_free), NULL without memory. */
char *dse_path_join(const char *directory, const char *name);

#endif

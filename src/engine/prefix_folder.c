/* Opening, scanning and wiping the folder of the prefix cache. Called by prefix_disk.c at start and by the verb that
 * wipes it. */
#include "engine/prefix_folder.h"

#include <dirent.h>
#include <dse/dse.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/private_folder.h"

/* Files of one minute count as used together. */
#define AGE_SECONDS 60
/* More files than any space holds: what lies beyond is left alone. */
#define MAX_FILES (1u << 21)

enum dse_status dse_prefix_folder_open(const char *path, struct dse_prefix_folder *folder, struct dse_error *err)
{
    *folder = (struct dse_prefix_folder){.fd = -1, .lock = -1};
    if (path[0] == '\0') return dse_fail_at(err, DSE_ERR_INVALID, "prefix_cache_disk", -1, "no folder is named");
    enum dse_status status = dse_private_folder_open(path, "a prefix cache", &folder->fd, err);
    if (status != DSE_OK) return status;
    folder->lock = openat(folder->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (folder->lock < 0) return dse_fail_errno(err, errno, path, "lock the prefix cache in");
    if (flock(folder->lock, LOCK_EX | LOCK_NB) != 0)
        return dse_fail_at(
            err, DSE_ERR_BUSY, path, -1,
            "the prefix cache in %s is in use by another process: choose another folder, or end that one", path);
    return DSE_OK;
}

void dse_prefix_folder_close(struct dse_prefix_folder *folder)
{
    if (folder->lock >= 0) (void)close(folder->lock);
    if (folder->fd >= 0) (void)close(folder->fd);
    folder->lock = folder->fd = -1;
}

static int by_use(const void *a, const void *b)
{
    const struct dse_prefix_found *x = a, *y = b;
    int64_t age_x = x->used_s / AGE_SECONDS, age_y = y->used_s / AGE_SECONDS;
    if (age_x != age_y) return age_x < age_y ? -1 : 1;
    if (x->name.depth != y->name.depth) return x->name.depth > y->name.depth ? -1 : 1;
    return x->name.hash < y->name.hash ? -1 : x->name.hash > y->name.hash;
}

static bool append(struct dse_prefix_found **found, size_t *n, size_t *capacity, struct dse_prefix_found one)
{
    if (*n == *capacity) {
        size_t wanted = *capacity == 0 ? 256 : *capacity * 2;
        struct dse_prefix_found *more = dse_realloc(DSE_MEM_KV, *found, wanted * sizeof **found);
        if (more == NULL) return false;
        *found = more;
        *capacity = wanted;
    }
    (*found)[(*n)++] = one;
    return true;
}

enum dse_status dse_prefix_folder_scan(const struct dse_prefix_folder *folder, struct dse_prefix_found **found,
                                       size_t *n_found, struct dse_error *err)
{
    size_t capacity = 0;
    *found = NULL;
    *n_found = 0;
    DIR *listing;
    if (dse_private_folder_list(folder->fd, "prefix_cache_disk", "list the prefix cache", &listing, err) != DSE_OK)
        return DSE_ERR_IO;
    enum dse_status status = DSE_OK;
    for (struct dirent *entry; status == DSE_OK && *n_found < MAX_FILES && (entry = readdir(listing)) != NULL;) {
        struct dse_prefix_found one;
        struct stat st;
        if (dse_prefix_name_is_temporary(entry->d_name)) (void)unlinkat(folder->fd, entry->d_name, 0);
        if (!dse_prefix_name_parse(entry->d_name, &one.name) ||
            fstatat(folder->fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        one.bytes = (uint64_t)st.st_size;
        one.used_s = (int64_t)st.st_mtim.tv_sec;
        if (!append(found, n_found, &capacity, one))
            status = dse_fail_memory(err, capacity * 2 * sizeof **found, "the list of a prefix cache");
    }
    (void)closedir(listing);
    if (status == DSE_OK && *n_found > 1) qsort(*found, *n_found, sizeof **found, by_use);
    if (status == DSE_OK) return DSE_OK;
    dse_free(*found);
    *found = NULL;
    *n_found = 0;
    return status;
}

enum dse_status dse_prefix_cache_wipe(const char *path, uint64_t *n_files, uint64_t *bytes, struct dse_error *err)
{
    struct dse_prefix_folder folder = {.fd = -1, .lock = -1};
    struct dse_prefix_found *found = NULL;
    size_t n_found = 0;
    *n_files = *bytes = 0;
    if (!dse_file_is_directory(path))
        return dse_fail_at(err, DSE_ERR_NOT_FOUND, path, -1, "there is no folder %s", path);
    enum dse_status status = dse_prefix_folder_open(path, &folder, err);
    if (status == DSE_OK) status = dse_prefix_folder_scan(&folder, &found, &n_found, err);
    for (size_t i = 0; i < n_found && status == DSE_OK; i++) {
        char name[DSE_PREFIX_NAME_BYTES];
        dse_prefix_name_print(&found[i].name, name);
        if (unlinkat(folder.fd, name, 0) != 0) {
            status = dse_fail_errno(err, errno, name, "remove");
            break;
        }
        ++*n_files;
        *bytes += found[i].bytes;
    }
    dse_free(found);
    dse_prefix_folder_close(&folder);
    return status;
}

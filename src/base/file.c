/* Files: read-only maps, bounded reads, atomic writes, small path helpers. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"

static enum dse_status check_path(const char *path, struct dse_error *err)
{
    return path != NULL && path[0] != '\0' ? DSE_OK : dse_fail(err, DSE_ERR_INVALID, "no file is named");
}

/* "cannot open" and its reason. A link to nothing is told apart from a name that is not there: it is no absent file,
 * but a broken one. */
static enum dse_status fail_open(const char *path, int error_number, struct dse_error *err)
{
    struct stat st;
    if (error_number == ENOENT && lstat(path, &st) == 0)
        return dse_fail_at(err, DSE_ERR_IO, path, -1, "cannot open %s: it is a symbolic link that leads nowhere", path);
    return dse_fail_errno(err, error_number, path, "open");
}

static enum dse_status open_regular(const char *path, int *fd, size_t *bytes, struct dse_error *err)
{
    enum dse_status status = check_path(path, err);
    if (status != DSE_OK) return status;
    /* O_NONBLOCK: opening a pipe must not wait for its writer. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return fail_open(path, errno, err);
    struct stat st;
    if (fstat(*fd, &st) != 0) {
        int e = errno;
        close(*fd);
        return dse_fail_errno(err, e, path, "stat");
    }
    if (!S_ISREG(st.st_mode)) {
        close(*fd);
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is %s, not a regular file", path,
                           S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    }
    *bytes = (size_t)st.st_size;
    return DSE_OK;
}

enum dse_status dse_map_open(const char *path, struct dse_map *map, struct dse_error *err)
{
    *map = (struct dse_map){.fd = -1};
    int fd;
    size_t bytes;
    enum dse_status status = open_regular(path, &fd, &bytes, err);
    if (status != DSE_OK) return status;
    void *data = NULL;
    if (bytes > 0) {
        data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            int e = errno;
            close(fd);
            return dse_fail_errno(err, e, path, "map");
        }
    }
    *map = (struct dse_map){data, bytes, fd};
    return DSE_OK;
}

static enum dse_status open_bounded(const char *path, size_t max_bytes, int *fd, size_t *bytes, struct dse_error *err)
{
    enum dse_status status = open_regular(path, fd, bytes, err);
    if (status != DSE_OK || *bytes <= max_bytes) return status;
    close(*fd);
    return dse_fail_at(err, DSE_ERR_LIMIT, path, -1, "%s has %zu bytes, at most %zu are accepted", path, *bytes,
                       max_bytes);
}

/* Up to the end of the file; false only for errors, which errno tells. */
static bool read_up_to(int fd, void *data, size_t bytes, off_t at, size_t *done)
{
    for (*done = 0; *done < bytes;) {
        ssize_t n = pread(fd, (char *)data + *done, bytes - *done, at + (off_t)*done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        if (n == 0) return true;
        *done += (size_t)n;
    }
    return true;
}

enum dse_status dse_map_read(const char *path, size_t max_bytes, struct dse_map *map, struct dse_error *err)
{
    *map = (struct dse_map){.fd = -1};
    int fd;
    size_t bytes, done = 0;
    enum dse_status status = open_bounded(path, max_bytes, &fd, &bytes, err);
    if (status != DSE_OK) return status;
    void *data = NULL;
    if (bytes > 0) {
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED)
            status = dse_fail_memory(err, bytes, path);
        else if (!read_up_to(fd, data, bytes, 0, &done))
            status = dse_fail_errno(err, errno, path, "read");
        else if (done < bytes)
            status = dse_fail_at(err, DSE_ERR_IO, path, -1, "%s became shorter while it was read: %zu of %zu bytes",
                                 path, done, bytes);
    }
    if (status != DSE_OK) {
        if (data != NULL && data != MAP_FAILED) munmap(data, bytes);
        close(fd);
        return status;
    }
    *map = (struct dse_map){data, bytes, fd};
    return DSE_OK;
}

void dse_map_close(struct dse_map *map)
{
    if (map->data != NULL) munmap((void *)map->data, map->bytes);
    /* A zeroed struct has fd 0 and no data; standard input is never ours. */
    if (map->fd > 0) close(map->fd);
    *map = (struct dse_map){.fd = -1};
}

bool dse_map_intact(const struct dse_map *map)
{
    struct stat st;
    return map->data == NULL || (fstat(map->fd, &st) == 0 && (size_t)st.st_size >= map->bytes);
}

enum dse_status dse_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, struct dse_error *err)
{
    int fd;
    size_t size, done;
    enum dse_status status = open_bounded(path, max_bytes, &fd, &size, err);
    if (status != DSE_OK) return status;
    char *buffer = dse_alloc(DSE_MEM_MISC, size + 1);
    if (buffer == NULL)
        status = dse_fail_memory(err, size + 1, path);
    else if (!read_up_to(fd, buffer, size, 0, &done))
        status = dse_fail_errno(err, errno, path, "read");
    close(fd);
    if (status != DSE_OK) {
        dse_free(buffer);
        return status;
    }
    buffer[done] = '\0'; /* where it shrank meanwhile, what is there is the content */
    *data = buffer;
    *bytes = done;
    return DSE_OK;
}

bool dse_map_is_of(const struct dse_map *map, const char *path)
{
    struct stat a, b;
    return map->fd > 0 && fstat(map->fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

bool dse_file_is_same(const char *path, const char *other)
{
    struct stat a, b;
    return path != NULL && other != NULL && stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* The file that a write to path would replace: path itself, or what it links to. Renaming over anything but a regular
 * file would destroy it. */
static enum dse_status find_target(const char *path, char target[PATH_MAX], struct dse_error *err)
{
    struct stat st;
    enum dse_status status = check_path(path, err);
    if (status != DSE_OK) return status;
    if (strlen(path) >= PATH_MAX) return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "path is too long: %s", path);
    snprintf(target, PATH_MAX, "%s", path);
    if (lstat(path, &st) != 0) {
        int e = errno;
        if (e == ENOENT && path[strlen(path) - 1] != '/') return DSE_OK;
        dse_fail_errno(err, e, path, "write");
        if (err != NULL) err->status = DSE_ERR_IO;
        return DSE_ERR_IO;
    }
    if (S_ISLNK(st.st_mode) && (realpath(path, target) == NULL || stat(target, &st) != 0))
        return dse_fail_at(err, DSE_ERR_IO, path, -1, "cannot write %s: it is a symbolic link that leads nowhere",
                           path);
    if (!S_ISREG(st.st_mode))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "cannot write %s: it is %s, not a regular file", path,
                           S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    return DSE_OK;
}

enum dse_status dse_file_check_target(const char *path, struct dse_error *err)
{
    char target[PATH_MAX];
    enum dse_status status = find_target(path, target, err);
    if (status != DSE_OK) return status;
    char *slash = strrchr(target, '/');
    if (slash != NULL) slash[slash == target] = '\0';
    struct stat st;
    if (slash == NULL || (stat(target, &st) == 0 && S_ISDIR(st.st_mode))) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_IO, path, -1, "cannot write %s: there is no folder %s", path, target);
}

enum dse_status dse_file_write_atomic(const char *path, const void *data, size_t bytes, unsigned mode,
                                      struct dse_error *err)
{
    char target[PATH_MAX], temporary[PATH_MAX + 8];
    enum dse_status status = find_target(path, target, err);
    if (status != DSE_OK) return status;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", target);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        dse_fail_errno(err, errno, path, "create a file beside");
        /* A folder that is missing here is no missing model. */
        if (err != NULL) err->status = DSE_ERR_IO;
        return DSE_ERR_IO;
    }
    if (!dse_write_at(fd, data, bytes, 0)) status = dse_fail_errno(err, errno, path, "write");
    if (status == DSE_OK && (fchmod(fd, mode) != 0 || fsync(fd) != 0))
        status = dse_fail_errno(err, errno, path, "write");
    if (close(fd) != 0 && status == DSE_OK) status = dse_fail_errno(err, errno, path, "write");
    if (status == DSE_OK && rename(temporary, target) != 0) status = dse_fail_errno(err, errno, path, "rename to");
    if (status != DSE_OK) unlink(temporary);
    return status;
}

bool dse_file_exists(const char *path)
{
    struct stat st;
    if (path == NULL) return false;
    /* What is there but cannot be looked at is not absent: opening it then says why. */
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

bool dse_file_is_directory(const char *path)
{
    struct stat st;
    return path != NULL && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool dse_write_at(int fd, const void *data, size_t bytes, off_t at)
{
    for (const uint8_t *p = data; bytes > 0;) {
        ssize_t n = pwrite(fd, p, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool dse_read_at(int fd, void *data, size_t bytes, off_t at)
{
    size_t done;
    return read_up_to(fd, data, bytes, at, &done) && done == bytes;
}

enum dse_status dse_make_directories(const char *path, struct dse_error *err)
{
    enum dse_status status = check_path(path, err);
    if (status != DSE_OK) return status;
    char *copy = dse_strdup(DSE_MEM_MISC, path);
    if (copy == NULL) return dse_fail_memory(err, strlen(path), "a path");
    for (char *p = copy + 1; status == DSE_OK; p++) {
        if (*p != '/' && *p != '\0') continue;
        char c = *p;
        *p = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST) status = dse_fail_errno(err, errno, copy, "create");
        if (c == '\0') break;
        *p = c;
    }
    if (status == DSE_OK && !dse_file_is_directory(path))
        status = dse_fail_at(err, DSE_ERR_IO, path, -1, "%s is not a directory", path);
    dse_free(copy);
    return status;
}

char *dse_path_join(const char *directory, const char *name)
{
    size_t a = strlen(directory), b = strlen(name), total;
    bool slash = a > 0 && directory[a - 1] != '/';
    if (!dse_add_size(a, b, &total) || !dse_add_size(total, 2, &total)) return NULL;
    char *path = dse_alloc(DSE_MEM_MISC, total);
    if (path != NULL) snprintf(path, total, "%s%s%s", directory, slash ? "/" : "", name);
    return path;
}

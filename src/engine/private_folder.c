/* Making and checking private folders (see private_folder.h). Called when an engine or a server starts, never by the
 * engine thread. */
#include "engine/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

static enum dse_status make_private(const char *path, struct dse_error *err)
{
    char *parent = dse_strdup(DSE_MEM_MISC, path);
    if (parent == NULL) return dse_fail_memory(err, strlen(path), "a path");
    size_t end = strlen(parent);
    while (end > 1 && parent[end - 1] == '/')
        end--;
    while (end > 0 && parent[end - 1] != '/')
        end--;
    parent[end] = '\0';
    enum dse_status status = end > 1 ? dse_make_directories(parent, err) : DSE_OK;
    dse_free(parent);
    if (status == DSE_OK && mkdir(path, 0700) != 0 && errno != EEXIST)
        status = dse_fail_errno(err, errno, path, "make the folder");
    return status;
}

static enum dse_status check_private(int fd, const char *path, const char *what, struct dse_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return dse_fail_errno(err, errno, path, "look at");
    if (st.st_uid != geteuid())
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1,
                           "%s belongs to another user: prompts can be read out of %s, choose a folder of your own",
                           path, what);
    if ((st.st_mode & 077) != 0)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1,
                           "%s is open to other users (mode %04o), and prompts can be read out of %s: chmod 700 it, or "
                           "choose a folder that does not exist yet",
                           path, (unsigned)(st.st_mode & 07777), what);
    return DSE_OK;
}

enum dse_status dse_private_folder_open(const char *path, const char *what, int *fd, struct dse_error *err)
{
    *fd = -1;
    enum dse_status status = make_private(path, err);
    if (status != DSE_OK) return status;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return dse_fail_errno(err, errno, path, "open the folder");
    status = check_private(folder, path, what, err);
    if (status != DSE_OK) {
        (void)close(folder);
        return status;
    }
    *fd = folder;
    return DSE_OK;
}

enum dse_status dse_private_folder_list(int folder, const char *field, const char *what, DIR **listing,
                                        struct dse_error *err)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (*listing != NULL) return DSE_OK;
    enum dse_status status = dse_fail_errno(err, errno, field, what);
    if (fd >= 0) (void)close(fd);
    return status;
}

/* Keeping the pack cache folder small (pack_folder.h). Called by pack_cache.c before it packs or maps. Never fails: an
 * untidy folder costs disk space, nothing else. Unlinking a pack that another process has mapped takes nothing from
 * it. */
#include "device/pack_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define KEY_DIGITS 32
#define NAME_BYTES 40

struct pack {
    char name[NAME_BYTES];
    struct timespec used;
};

void dse_pack_touch(int fd)
{
    (void)futimens(fd, NULL); /* not allowed on another's file: then it is as old as it looks */
}

static bool is_named(const char *name, const char *ending)
{
    return strspn(name, "0123456789abcdef") == KEY_DIGITS && strcmp(name + KEY_DIGITS, ending) == 0;
}

/* A builder that opened the file just before it went notices that the name is gone and makes a new one. */
static void remove_if_unlocked(int folder, const char *name)
{
    struct stat by_fd, by_name;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &by_fd) == 0 && S_ISREG(by_fd.st_mode) &&
        fstatat(folder, name, &by_name, AT_SYMLINK_NOFOLLOW) == 0 && by_fd.st_ino == by_name.st_ino &&
        by_fd.st_dev == by_name.st_dev && unlinkat(folder, name, 0) == 0)
        dse_log(DSE_LOG_INFO, "device", "pack cache: removed %s, which was never finished", name);
    close(fd);
}

static bool earlier(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* Puts a pack among the youngest; the oldest of one too many is removed. */
static void keep_or_remove(int folder, struct pack kept[DSE_PACKS_KEPT], int *n_kept, struct pack pack)
{
    if (*n_kept < DSE_PACKS_KEPT) {
        kept[(*n_kept)++] = pack;
        return;
    }
    struct pack *oldest = &pack;
    for (int i = 0; i < DSE_PACKS_KEPT; i++)
        if (earlier(kept[i].used, oldest->used)) oldest = &kept[i];
    if (unlinkat(folder, oldest->name, 0) == 0)
        dse_log(DSE_LOG_INFO, "device", "pack cache: removed %s, used longest ago", oldest->name);
    if (oldest != &pack) *oldest = pack;
}

void dse_pack_folder_tidy(const char *folder, const char *in_use)
{
    struct pack kept[DSE_PACKS_KEPT];
    int n_kept = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        struct stat st;
        struct pack pack;
        if (is_named(e->d_name, ".tmp")) remove_if_unlocked(dirfd(dir), e->d_name);
        if (!is_named(e->d_name, ".pack") || strcmp(e->d_name, in_use) == 0 ||
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        memcpy(pack.name, e->d_name, strlen(e->d_name) + 1);
        pack.used = st.st_mtim;
        keep_or_remove(dirfd(dir), kept, &n_kept, pack);
    }
    closedir(dir);
}

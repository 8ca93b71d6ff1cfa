/* Opening, checking and building pack cache files (pack_cache.h). Called by the CPU device while it loads. */
#include "device/pack_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "device/pack_folder.h"
#include "device/pack_hash.h"

#define HEADER_ALIGN  4096
#define ORDER_MARK    0x01020304u
#define BUILD_WAIT_MS 60000 /* for another process that is building the same file */

static const char magic[8] = "DSEPACK";

struct header {
    char magic[8];
    uint32_t order_mark, version;
    uint64_t key[2];
    uint64_t n_entries, n_chunks;
    uint64_t data_offset, data_bytes;
    uint64_t checksum; /* of header (this field 0), table and chunk checksums */
};

/* Sizes that follow from a plan. */
struct shape {
    size_t n_chunks, table_bytes, sums_bytes, head_bytes, data_offset, file_bytes;
};

static size_t chunks_of(size_t bytes)
{
    return bytes / DSE_PACK_CHUNK_BYTES + (bytes % DSE_PACK_CHUNK_BYTES != 0);
}

static bool shape_of(const struct pack_plan *plan, struct shape *s)
{
    s->n_chunks = chunks_of(plan->data_bytes);
    return dse_mul_size(plan->n_entries, sizeof(struct pack_entry), &s->table_bytes) &&
           dse_mul_size(s->n_chunks, sizeof(uint64_t), &s->sums_bytes) &&
           dse_add_size(sizeof(struct header), s->table_bytes, &s->head_bytes) &&
           dse_add_size(s->head_bytes, s->sums_bytes, &s->head_bytes) &&
           dse_align_size(s->head_bytes, HEADER_ALIGN, &s->data_offset) &&
           dse_add_size(s->data_offset, plan->data_bytes, &s->file_bytes);
}

struct sum_job {
    const uint8_t *data;
    size_t bytes, n_chunks;
    uint64_t *sums;           /* written, or */
    const uint64_t *expected; /* compared */
    atomic_size_t next;
    atomic_bool differs;
};

static void run_sums(void *context, int thread, int n_threads)
{
    struct sum_job *job = context;
    for (;;) {
        size_t chunk = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (chunk >= job->n_chunks || atomic_load_explicit(&job->differs, memory_order_relaxed)) return;
        size_t at = chunk * DSE_PACK_CHUNK_BYTES,
               bytes = job->bytes - at < DSE_PACK_CHUNK_BYTES ? job->bytes - at : DSE_PACK_CHUNK_BYTES;
#ifdef MADV_POPULATE_READ
        /* one call instead of a fault per page; where the kernel lacks it, the faults come */
        if (job->expected != NULL) (void)madvise((void *)(job->data + at), bytes, MADV_POPULATE_READ);
#endif
        uint64_t sum = pack_hash(job->data + at, bytes);
        if (job->expected == NULL)
            job->sums[chunk] = sum;
        else if (job->expected[chunk] != sum)
            atomic_store(&job->differs, true);
    }
}

static uint64_t head_checksum(const uint8_t *head, size_t head_bytes)
{
    struct header copy;
    memcpy(&copy, head, sizeof copy);
    copy.checksum = 0;
    return pack_hash_step(pack_hash(&copy, sizeof copy), pack_hash(head + sizeof copy, head_bytes - sizeof copy));
}

/* NULL if the mapped file is the wanted one, else what is wrong with it. */
static const char *find_fault(const uint8_t *map, size_t bytes, struct pack_key key, const struct pack_plan *plan,
                              const struct shape *shape, struct dse_pool *pool)
{
    struct header h;
    if (bytes != shape->file_bytes) return "its size is not what this model needs";
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return "it is not a pack cache file";
    if (h.order_mark != ORDER_MARK) return "it was written on a machine of other byte order";
    if (h.version != DSE_PACK_VERSION) return "it has another version";
    if (h.key[0] != key.words[0] || h.key[1] != key.words[1]) return "it belongs to another model";
    if (h.n_entries != plan->n_entries || h.n_chunks != shape->n_chunks || h.data_offset != shape->data_offset ||
        h.data_bytes != plan->data_bytes)
        return "its table does not fit this model";
    if (h.checksum != head_checksum(map, shape->head_bytes)) return "its header is damaged";
    if (memcmp(map + sizeof h, plan->entries, shape->table_bytes) != 0) return "its table does not fit this model";
    struct sum_job job = {.data = map + shape->data_offset,
                          .bytes = plan->check_bytes,
                          .n_chunks = chunks_of(plan->check_bytes),
                          .expected = (const uint64_t *)(map + sizeof h + shape->table_bytes)};
    dse_pool_run(pool, run_sums, &job);
    return atomic_load(&job.differs) ? "its data are damaged" : NULL;
}

/* Maps an existing file if it is good. Absent: DSE_ERR_NOT_FOUND; not good: DSE_ERR_CORRUPT. */
static enum dse_status open_existing(const char *path, struct pack_key key, const struct pack_plan *plan,
                                     const struct shape *shape, struct dse_pool *pool, struct pack_map *out,
                                     struct dse_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe must not wait for its writer */
    if (fd < 0) return dse_fail_errno(err, errno, path, "open the pack cache");
    enum dse_status status = DSE_OK;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) != 0)
        status = dse_fail_errno(err, errno, path, "read the pack cache");
    else if (!S_ISREG(st.st_mode))
        status = dse_fail_at(err, DSE_ERR_CORRUPT, path, -1, "pack cache: it is not a regular file");
    else if ((uint64_t)st.st_size != shape->file_bytes)
        status = dse_fail_at(err, DSE_ERR_CORRUPT, path, -1, "pack cache: its size is not what this model needs");
    else if ((map = mmap(NULL, shape->file_bytes, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        status = dse_fail_errno(err, errno, path, "map the pack cache");
    else
        dse_pack_touch(fd);
    close(fd);
    if (status != DSE_OK) return status;
#ifdef MADV_HUGEPAGE
    (void)madvise(map, shape->file_bytes, MADV_HUGEPAGE);
#endif
    const char *fault = find_fault(map, shape->file_bytes, key, plan, shape, pool);
    if (fault != NULL) {
        munmap(map, shape->file_bytes);
        return dse_fail_at(err, DSE_ERR_CORRUPT, path, -1, "pack cache: %s", fault);
    }
    *out = (struct pack_map){(const uint8_t *)map + shape->data_offset, map, shape->file_bytes};
    return DSE_OK;
}

/* In a folder that others may write to, the name may have been laid out as a trap: what is written to it must reach no
 * other name and nobody else's file. */
static enum dse_status check_temporary(const struct stat *st, const char *path, struct dse_error *err)
{
    const char *fault = !S_ISREG(st->st_mode)     ? "it is not a regular file"
                        : st->st_uid != geteuid() ? "it belongs to another user"
                        : st->st_nlink != 1       ? "it has a second name"
                                                  : NULL;
    if (fault == NULL) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "pack cache: %s is not written to: %s", path, fault);
}

/* The temporary file, locked for this process. A builder that finished renames it under our feet: then the lock is on
 * the finished file and the name has to be opened again. */
static enum dse_status lock_temporary(const char *path, int *out, struct dse_error *err)
{
    const struct timespec nap = {.tv_nsec = 20 * 1000 * 1000};
    for (int waited_ms = 0;; waited_ms += 20) {
        struct stat by_fd, by_name;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) return dse_fail_errno(err, errno, path, "create the pack cache");
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (fstat(fd, &by_fd) == 0 && lstat(path, &by_name) == 0 && by_fd.st_ino == by_name.st_ino &&
                by_fd.st_dev == by_name.st_dev) {
                enum dse_status status = check_temporary(&by_fd, path, err);
                if (status == DSE_OK)
                    *out = fd;
                else
                    close(fd);
                return status;
            }
        } else if (errno != EWOULDBLOCK && errno != EINTR) {
            int e = errno;
            close(fd);
            return dse_fail_errno(err, e, path, "lock the pack cache");
        }
        close(fd);
        if (waited_ms >= BUILD_WAIT_MS)
            return dse_fail_at(err, DSE_ERR_BUSY, path, -1, "pack cache: another process has been building it for %d s",
                               BUILD_WAIT_MS / 1000);
        if (waited_ms == 0)
            dse_log(DSE_LOG_WARN, "device", "pack cache: waiting up to %d s for another process that builds %s",
                    BUILD_WAIT_MS / 1000, path);
        nanosleep(&nap, NULL);
    }
}

/* Fills the open temporary file. */
static enum dse_status write_file(int fd, const char *path, struct pack_key key, const struct pack_plan *plan,
                                  const struct shape *shape, struct dse_pool *pool, pack_fill_fn *fill, void *context,
                                  struct dse_error *err)
{
    if (ftruncate(fd, 0) != 0) return dse_fail_errno(err, errno, path, "empty the pack cache");
    /* all blocks up front: a full disk must be an error here, not a signal while packing */
    int e = posix_fallocate(fd, 0, (off_t)shape->file_bytes);
    if (e != 0) return dse_fail_errno(err, e, path, "reserve space for the pack cache");
    uint8_t *map = mmap(NULL, shape->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return dse_fail_errno(err, errno, path, "map the pack cache");

    fill(context, map + shape->data_offset);
    memcpy(map + sizeof(struct header), plan->entries, shape->table_bytes);
    struct sum_job job = {.data = map + shape->data_offset,
                          .bytes = plan->data_bytes,
                          .n_chunks = shape->n_chunks,
                          .sums = (uint64_t *)(map + sizeof(struct header) + shape->table_bytes)};
    dse_pool_run(pool, run_sums, &job);
    struct header h = {.order_mark = ORDER_MARK,
                       .version = DSE_PACK_VERSION,
                       .key = {key.words[0], key.words[1]},
                       .n_entries = plan->n_entries,
                       .n_chunks = shape->n_chunks,
                       .data_offset = shape->data_offset,
                       .data_bytes = plan->data_bytes};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(map, &h, sizeof h);
    h.checksum = head_checksum(map, shape->head_bytes);
    memcpy(map, &h, sizeof h);

    enum dse_status status = DSE_OK;
    if (msync(map, shape->file_bytes, MS_SYNC) != 0 || fsync(fd) != 0)
        status = dse_fail_errno(err, errno, path, "write the pack cache");
    munmap(map, shape->file_bytes);
    return status;
}

static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd); /* without it the new name may be lost in a power cut, which only costs another build */
    close(fd);
}

enum dse_status dse_pack_cache_open(const char *folder, struct pack_key key, const struct pack_plan *plan,
                                    struct dse_pool *pool, pack_fill_fn *fill, void *context, struct pack_map *map,
                                    bool *built, struct dse_error *err)
{
    struct shape shape;
    char name[64];
    *built = false;
    if (!shape_of(plan, &shape)) return dse_fail(err, DSE_ERR_LIMIT, "pack cache: the size overflows");
    enum dse_status status = dse_make_directories(folder, err);
    if (status != DSE_OK) return status;
    snprintf(name, sizeof name, "%016" PRIx64 "%016" PRIx64 ".pack", key.words[0], key.words[1]);
    char *path = dse_path_join(folder, name);
    dse_pack_folder_tidy(folder, name); /* first, so that the disk has room for a new one */
    snprintf(name, sizeof name, "%016" PRIx64 "%016" PRIx64 ".tmp", key.words[0], key.words[1]);
    char *temporary = dse_path_join(folder, name);
    int fd = -1;
    if (path == NULL || temporary == NULL) {
        status = dse_fail_memory(err, sizeof name, "the name of the pack cache");
        goto done;
    }
    status = open_existing(path, key, plan, &shape, pool, map, err);
    if (status == DSE_OK) goto done;
    if (status == DSE_ERR_CORRUPT) dse_log(DSE_LOG_WARN, "device", "%s is built again: its content is not valid", path);

    status = lock_temporary(temporary, &fd, err);
    if (status != DSE_OK) goto done;
    /* whoever held the lock before may have finished it */
    status = open_existing(path, key, plan, &shape, pool, map, NULL);
    if (status != DSE_OK) {
        status = write_file(fd, temporary, key, plan, &shape, pool, fill, context, err);
        if (status == DSE_OK && rename(temporary, path) != 0)
            status = dse_fail_errno(err, errno, path, "rename the pack cache");
        if (status == DSE_OK) {
            *built = true;
            sync_folder(folder);
            status = open_existing(path, key, plan, &shape, pool, map, err);
        }
    }
    if (!*built) unlink(temporary);

done:
    if (fd >= 0) close(fd); /* releases the lock */
    dse_free(path);
    dse_free(temporary);
    return status;
}

void dse_pack_map_close(struct pack_map *map)
{
    if (map->map != NULL) munmap(map->map, map->map_bytes);
    *map = (struct pack_map){0};
}

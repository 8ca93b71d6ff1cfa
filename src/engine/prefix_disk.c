/* The index of the files, the copies that wait to be written, and the thread (see prefix_disk.h).
 *
 * The lock is held for a few loads and stores, never while a file is touched. The thread alone adds files to the index and
 * takes them out, so what it does between two looks needs no lock.
 */
#include "engine/prefix_disk.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "base/log.h"
#include "device/pack_hash.h"
#include "engine/prefix_folder.h"

#define N_COPIES 4
#define N_LOADS  16
/* The index takes memory, about 64 bytes a file. */
#define MAX_INDEXED (1u << 20)
/* Below everything that answers clients. */
#define NICENESS 10

struct file {
    struct dse_prefix_name name;
    uint64_t bytes;
    int32_t next; /* of a bucket, or of the unused ones */
    int32_t older, newer;
};

struct copy {
    struct dse_prefix_file_header header;
    void *data;
};

struct dse_prefix_disk {
    struct dse_prefix_folder folder;
    uint64_t space_bytes, model, file_bytes;
    dse_prefix_notify_fn *notify;
    void *user;
    pthread_t thread;
    bool started, warned; /* warned: the thread's own */
    atomic_bool write_failed;

    pthread_mutex_t lock; /* below */
    pthread_cond_t work;
    bool stopping;
    struct file *files;
    int32_t *buckets;
    uint32_t n_buckets;
    int32_t unused, oldest, newest;
    uint64_t total_bytes;
    struct copy copies[N_COPIES];
    unsigned copies_in, copies_out; /* ever; the difference waits or is being written */
    struct dse_prefix_load loads[N_LOADS];
    unsigned loads_in, loads_done, loads_out;
};

/* ---- index: under lock, or before the thread is there ---- */

static int32_t *bucket_of(const struct dse_prefix_disk *d, uint64_t model, uint64_t hash)
{
    return &d->buckets[pack_hash_step(model, hash) & (d->n_buckets - 1)];
}

static int32_t find(const struct dse_prefix_disk *d, uint64_t model, uint64_t hash)
{
    int32_t f = *bucket_of(d, model, hash);
    while (f >= 0 && (d->files[f].name.hash != hash || d->files[f].name.model != model))
        f = d->files[f].next;
    return f;
}

static void unlink_age(struct dse_prefix_disk *d, int32_t f)
{
    struct file *file = &d->files[f];
    *(file->older >= 0 ? &d->files[file->older].newer : &d->oldest) = file->newer;
    *(file->newer >= 0 ? &d->files[file->newer].older : &d->newest) = file->older;
}

/* Just older than `behind`; newest if there is no such file. */
static void link_age(struct dse_prefix_disk *d, int32_t f, int32_t behind)
{
    struct file *file = &d->files[f];
    file->newer = behind;
    file->older = behind >= 0 ? d->files[behind].older : d->newest;
    *(file->older >= 0 ? &d->files[file->older].newer : &d->oldest) = f;
    *(behind >= 0 ? &d->files[behind].older : &d->newest) = f;
}

static void forget(struct dse_prefix_disk *d, int32_t f)
{
    int32_t *link = bucket_of(d, d->files[f].name.model, d->files[f].name.hash);
    while (*link != f)
        link = &d->files[*link].next;
    *link = d->files[f].next;
    unlink_age(d, f);
    d->total_bytes -= d->files[f].bytes;
    d->files[f].next = d->unused;
    d->unused = f;
}

static void remember(struct dse_prefix_disk *d, const struct dse_prefix_name *name, uint64_t bytes, int32_t behind)
{
    int32_t f = d->unused, *bucket = bucket_of(d, name->model, name->hash);
    d->unused = d->files[f].next;
    d->files[f] = (struct file){.name = *name, .bytes = bytes, .next = *bucket};
    *bucket = f;
    d->total_bytes += bytes;
    link_age(d, f, behind);
}

/* ---- thread ---- */

static void publish_size(struct dse_prefix_disk *d)
{
    pthread_mutex_lock(&d->lock);
    dse_gauge_set(DSE_GAUGE_PREFIX_DISK_BYTES, (int64_t)d->total_bytes);
    pthread_mutex_unlock(&d->lock);
}

static void remove_file(struct dse_prefix_disk *d, const struct dse_prefix_name *name)
{
    char text[DSE_PREFIX_NAME_BYTES];
    dse_prefix_name_print(name, text);
    (void)unlinkat(d->folder.fd, text, 0);
}

/* Takes the file out of the index and away. The newest file of that hash may have another depth in its name. */
static void discard(struct dse_prefix_disk *d, uint64_t model, uint64_t hash)
{
    pthread_mutex_lock(&d->lock);
    int32_t f = find(d, model, hash);
    struct dse_prefix_name name = {0};
    if (f >= 0) {
        name = d->files[f].name;
        forget(d, f);
    }
    pthread_mutex_unlock(&d->lock);
    if (f >= 0) remove_file(d, &name);
}

/* Room for one more file, in bytes and in the index. */
static void make_room(struct dse_prefix_disk *d)
{
    for (;;) {
        pthread_mutex_lock(&d->lock);
        bool room = d->unused >= 0 && d->total_bytes <= d->space_bytes - d->file_bytes;
        struct dse_prefix_name name = {0};
        if (!room) {
            name = d->files[d->oldest].name;
            forget(d, d->oldest);
        }
        pthread_mutex_unlock(&d->lock);
        if (room) return;
        remove_file(d, &name);
        dse_counter_add(DSE_COUNTER_PREFIX_DISK_EVICTIONS, 1);
    }
}

static void write_copy(struct dse_prefix_disk *d, struct copy *copy)
{
    struct dse_prefix_file_header *header = &copy->header;
    struct dse_error error;
    if (atomic_load(&d->write_failed)) return;
    discard(d, d->model, header->hash); /* of a beginning with the same hash, or one that nothing leads to any more */
    make_room(d);
    if (dse_prefix_file_write(d->folder.fd, header, copy->data, &error) != DSE_OK) {
        atomic_store(&d->write_failed, true);
        dse_log(DSE_LOG_WARN, "prefix", "nothing more is written to the prefix cache: %s", error.message);
        return;
    }
    dse_counter_add(DSE_COUNTER_PREFIX_DISK_WRITES, 1);
    const struct dse_prefix_name name = {.model = d->model, .hash = header->hash, .depth = header->depth};
    pthread_mutex_lock(&d->lock);
    remember(d, &name, d->file_bytes, find(d, d->model, header->parent_hash));
    pthread_mutex_unlock(&d->lock);
    publish_size(d);
}

static void warn_once(struct dse_prefix_disk *d, const struct dse_error *error)
{
    if (!d->warned)
        dse_log(DSE_LOG_WARN, "prefix", "prefix cache: %s; removed, as others like it will be without a word",
                error->message);
    d->warned = true;
}

static void read_load(struct dse_prefix_disk *d, struct dse_prefix_load *load)
{
    for (int i = 0; i < load->n; i++) {
        struct dse_prefix_file_header *want = &load->want[i];
        struct dse_error error;
        if (i > 0) want->parent = load->ids[i - 1];
        enum dse_status status = dse_prefix_file_read(d->folder.fd, want, load->memory[i], &load->ids[i], &error);
        if (status != DSE_OK) {
            if (status == DSE_ERR_CORRUPT) warn_once(d, &error);
            if (status != DSE_ERR_IO) discard(d, d->model, want->hash);
            publish_size(d);
            return;
        }
        dse_prefix_disk_use(d, want->hash, want->parent_hash);
        dse_counter_add(DSE_COUNTER_PREFIX_DISK_READS, 1);
        load->n_read++;
    }
}

static void *disk_main(void *argument)
{
    struct dse_prefix_disk *d = argument;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS); /* of this thread */
    pthread_mutex_lock(&d->lock);
    for (;;) {
        bool loads = d->loads_done != d->loads_in && !d->stopping, copies = d->copies_out != d->copies_in;
        if (!loads && !copies) {
            if (d->stopping) break;
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        /* Somebody waits for a load, nobody for a write. */
        if (loads)
            read_load(d, &d->loads[d->loads_done % N_LOADS]);
        else
            write_copy(d, &d->copies[d->copies_out % N_COPIES]);
        pthread_mutex_lock(&d->lock);
        *(loads ? &d->loads_done : &d->copies_out) += 1;
        pthread_mutex_unlock(&d->lock);
        d->notify(d->user);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- start and end ---- */

uint64_t dse_prefix_disk_memory(uint64_t block_bytes)
{
    return N_COPIES * block_bytes;
}

/* A file of ours with the wrong length was cut short or is of another build: said once, like damage that shows later. */
static bool usable(struct dse_prefix_disk *d, const struct dse_prefix_found *found)
{
    if (found->name.model != d->model || found->bytes == d->file_bytes) return true;
    struct dse_error error;
    char name[DSE_PREFIX_NAME_BYTES];
    dse_prefix_name_print(&found->name, name);
    (void)dse_fail(&error, DSE_ERR_CORRUPT, "%s has %llu bytes, a block takes %llu", name,
                   (unsigned long long)found->bytes, (unsigned long long)d->file_bytes);
    warn_once(d, &error);
    return false;
}

static enum dse_status take_index(struct dse_prefix_disk *d, size_t n_found, struct dse_error *err)
{
    uint64_t room = d->space_bytes / d->file_bytes;
    size_t capacity = n_found + (size_t)(room < MAX_INDEXED ? room : MAX_INDEXED);
    d->n_buckets = 64;
    while (d->n_buckets < capacity)
        d->n_buckets *= 2;
    d->files = dse_calloc(DSE_MEM_KV, capacity, sizeof *d->files);
    d->buckets = dse_calloc(DSE_MEM_KV, d->n_buckets, sizeof *d->buckets);
    if (d->files == NULL || d->buckets == NULL)
        return dse_fail_memory(err, capacity * sizeof *d->files, "the index of the prefix cache on disk");
    memset(d->buckets, -1, d->n_buckets * sizeof *d->buckets);
    for (size_t i = 0; i < capacity; i++)
        d->files[i].next = i + 1 < capacity ? (int32_t)i + 1 : -1;
    d->unused = 0;
    d->oldest = d->newest = -1;
    return DSE_OK;
}

static enum dse_status fill_index(struct dse_prefix_disk *d, struct dse_error *err)
{
    struct dse_prefix_found *found = NULL;
    size_t n_found = 0;
    enum dse_status status = dse_prefix_folder_scan(&d->folder, &found, &n_found, err);
    if (status == DSE_OK) status = take_index(d, n_found, err);
    for (size_t i = 0; i < n_found && status == DSE_OK; i++) {
        bool keep = usable(d, &found[i]);
        if (keep && find(d, found[i].name.model, found[i].name.hash) < 0)
            remember(d, &found[i].name, found[i].bytes, -1);
        else
            remove_file(d, &found[i].name);
    }
    dse_free(found);
    while (status == DSE_OK && d->total_bytes > d->space_bytes) {
        remove_file(d, &d->files[d->oldest].name);
        forget(d, d->oldest);
    }
    return status;
}

enum dse_status dse_prefix_disk_open(const char *path, uint64_t space_bytes, uint64_t model, uint64_t block_bytes,
                                     dse_prefix_notify_fn *notify, void *user, struct dse_prefix_disk **disk,
                                     struct dse_error *err)
{
    const uint64_t file_bytes = block_bytes + sizeof(struct dse_prefix_file_header);
    *disk = NULL;
    if (space_bytes < file_bytes)
        return dse_fail_at(err, DSE_ERR_INVALID, "prefix_cache_disk_bytes", -1,
                           "the space of the prefix cache on disk (--prefix-cache-space) is %llu bytes, a single block "
                           "of this model takes %llu",
                           (unsigned long long)space_bytes, (unsigned long long)file_bytes);
    struct dse_prefix_disk *d = dse_calloc(DSE_MEM_KV, 1, sizeof *d);
    if (d == NULL) return dse_fail_memory(err, sizeof *d, "the prefix cache on disk");
    d->space_bytes = space_bytes;
    d->model = model;
    d->file_bytes = file_bytes;
    d->notify = notify;
    d->user = user;
    atomic_init(&d->write_failed, false);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    enum dse_status status = dse_prefix_folder_open(path, &d->folder, err);
    if (status == DSE_OK) status = fill_index(d, err);
    for (int i = 0; i < N_COPIES && status == DSE_OK; i++) {
        d->copies[i].data = dse_alloc(DSE_MEM_KV, block_bytes);
        if (d->copies[i].data == NULL) status = dse_fail_memory(err, block_bytes, "a copy of a block");
    }
    if (status == DSE_OK) {
        dse_gauge_set(DSE_GAUGE_PREFIX_DISK_BYTES, (int64_t)d->total_bytes);
        int error_number = pthread_create(&d->thread, NULL, disk_main, d);
        d->started = error_number == 0;
        if (!d->started) status = dse_fail_errno(err, error_number, "", "start the thread of the prefix cache");
    }
    if (status != DSE_OK) {
        dse_prefix_disk_close(d);
        return status;
    }
    *disk = d;
    return DSE_OK;
}

void dse_prefix_disk_close(struct dse_prefix_disk *d)
{
    if (d == NULL) return;
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->stopping = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    for (int i = 0; i < N_COPIES; i++)
        dse_free(d->copies[i].data);
    dse_free(d->files);
    dse_free(d->buckets);
    dse_prefix_folder_close(&d->folder);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    dse_free(d);
}

/* ---- engine thread ---- */

bool dse_prefix_disk_has(struct dse_prefix_disk *d, uint64_t hash)
{
    pthread_mutex_lock(&d->lock);
    bool has = find(d, d->model, hash) >= 0;
    pthread_mutex_unlock(&d->lock);
    return has;
}

void dse_prefix_disk_use(struct dse_prefix_disk *d, uint64_t hash, uint64_t parent_hash)
{
    pthread_mutex_lock(&d->lock);
    int32_t f = find(d, d->model, hash), parent = find(d, d->model, parent_hash);
    if (f >= 0 && f != parent) {
        unlink_age(d, f);
        link_age(d, f, parent);
    }
    pthread_mutex_unlock(&d->lock);
}

bool dse_prefix_disk_offer(struct dse_prefix_disk *d, const struct dse_prefix_file_header *header, const void *data)
{
    pthread_mutex_lock(&d->lock);
    bool full = d->copies_in - d->copies_out == N_COPIES;
    struct copy *copy = &d->copies[d->copies_in % N_COPIES];
    pthread_mutex_unlock(&d->lock);
    if (full) return false;
    copy->header = *header; /* nobody looks at it before it is counted in */
    memcpy(copy->data, data, header->block_bytes);
    pthread_mutex_lock(&d->lock);
    d->copies_in++;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return true;
}

bool dse_prefix_disk_writes(const struct dse_prefix_disk *d)
{
    return !atomic_load(&d->write_failed);
}

bool dse_prefix_disk_load(struct dse_prefix_disk *d, const struct dse_prefix_load *load)
{
    pthread_mutex_lock(&d->lock);
    bool room = d->loads_in - d->loads_out < N_LOADS;
    if (room) {
        d->loads[d->loads_in++ % N_LOADS] = *load;
        pthread_cond_signal(&d->work);
    }
    pthread_mutex_unlock(&d->lock);
    return room;
}

bool dse_prefix_disk_loaded(struct dse_prefix_disk *d, struct dse_prefix_load *load)
{
    pthread_mutex_lock(&d->lock);
    bool any = d->loads_out != d->loads_done;
    if (any) *load = d->loads[d->loads_out++ % N_LOADS];
    pthread_mutex_unlock(&d->lock);
    return any;
}

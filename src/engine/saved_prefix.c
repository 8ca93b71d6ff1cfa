/* Saving, restoring and forgetting beginnings (see saved_prefix.h). Called by the server for slots; engine.c lets
 * dse_engine_transfers have its turn. */
#include "engine/saved_prefix.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/counters.h"
#include "engine/engine_internal.h"
#include "engine/prefix_scope.h"

enum transfer_kind {
    TRANSFER_HOLD,      /* refer to the blocks of the tokens */
    TRANSFER_RELEASE,   /* no longer */
    TRANSFER_TAKE,      /* n_wanted blocks to be filled */
    TRANSFER_ADOPT,     /* they are: into the cache */
    TRANSFER_GIVE_BACK, /* they are not */
    TRANSFER_FORGET,
};

/* What a caller asks of the engine thread, and waits for. Blocks are those of the sequence, memory is the caller's. */
struct dse_transfer {
    struct dse_transfer *next;
    enum transfer_kind kind;
    const int32_t *tokens;
    int n_tokens, n_wanted;
    struct dse_kv_sequence kv;
    int n_done; /* blocks */
    bool ok, done;
};

/* ---- engine thread ---- */

/* Without touching what was promised to others. */
static bool hold(struct dse_kv_pool *pool, struct dse_transfer *t)
{
    dse_kv_attach(pool, &t->kv, t->tokens, t->n_tokens);
    if (dse_kv_pool_available(pool) >= 0) return true;
    dse_kv_release(pool, &t->kv);
    return false;
}

static bool take(struct dse_kv_pool *pool, struct dse_transfer *t)
{
    if (dse_kv_pool_available(pool) < t->n_wanted) return false;
    for (int i = 0; i < t->n_wanted; i++)
        t->kv.blocks[i] = dse_kv_take(pool);
    return true;
}

static void give_back(struct dse_kv_pool *pool, const struct dse_transfer *t, int first)
{
    for (int i = t->n_wanted; i-- > first;)
        dse_kv_give_back(pool, t->kv.blocks[i]);
}

/* Into the cache, where requests find them; a block that is there already is used instead. How many stay is counted at
 * the end: there may be a bound on what nobody refers to. */
static void adopt(struct dse_kv_pool *pool, struct dse_transfer *t)
{
    int i = 0;
    bool fits = true;
    for (; i < t->n_wanted && fits; i++) /* slot i of the table is read before adopt fills it, or one before it */
        fits = dse_kv_adopt(pool, &t->kv, t->tokens, t->kv.blocks[i], &t->kv.chain.last, NULL);
    give_back(pool, t, i);
    dse_kv_release(pool, &t->kv);
    for (int32_t block; t->n_done < t->n_wanted; t->n_done++) {
        block = dse_prefix_find(&pool->cache, &t->kv.chain, t->tokens + t->n_done * DSE_KV_BLOCK_TOKENS);
        if (block < 0) break;
        dse_prefix_advance(&pool->cache, &t->kv.chain, block);
    }
}

static void perform(struct dse_scheduler *s, struct dse_transfer *t)
{
    struct dse_kv_pool *pool = &s->pool;
    t->ok = true;
    switch (t->kind) {
    case TRANSFER_HOLD:
        t->ok = hold(pool, t);
        s->n_loads += t->ok;
        break;
    case TRANSFER_TAKE:
        t->ok = take(pool, t);
        s->n_loads += t->ok;
        break;
    case TRANSFER_RELEASE:
        dse_kv_release(pool, &t->kv);
        s->n_loads--;
        break;
    case TRANSFER_ADOPT:
        adopt(pool, t);
        s->n_loads--;
        break;
    case TRANSFER_GIVE_BACK:
        give_back(pool, t, 0);
        s->n_loads--;
        break;
    case TRANSFER_FORGET:
        dse_kv_attach(pool, &t->kv, t->tokens, t->n_tokens);
        t->n_done = dse_kv_forget(pool, &t->kv);
        break;
    }
}

void dse_engine_transfers(struct dse_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    struct dse_transfer *t = engine->transfers;
    engine->transfers = NULL;
    pthread_mutex_unlock(&engine->lock);
    while (t != NULL) {
        struct dse_transfer *next = t->next; /* t is gone once it is done */
        perform(&engine->scheduler, t);
        pthread_mutex_lock(&engine->lock);
        t->done = true;
        pthread_cond_broadcast(&engine->transferred);
        pthread_mutex_unlock(&engine->lock);
        t = next;
    }
}

/* ---- callers ---- */

/* false: the engine thread has ended, and with it all that it held. */
static bool ask(struct dse_engine *engine, struct dse_transfer *t, enum transfer_kind kind)
{
    pthread_mutex_lock(&engine->lock);
    t->kind = kind;
    t->done = t->ok = false;
    t->next = engine->transfers;
    engine->transfers = t;
    pthread_cond_signal(&engine->wake);
    while (!t->done && !engine->ended)
        pthread_cond_wait(&engine->transferred, &engine->lock);
    bool done = t->done;
    pthread_mutex_unlock(&engine->lock);
    return done;
}

static enum dse_status stopped(struct dse_error *err)
{
    return dse_fail(err, DSE_ERR_UNAVAILABLE, "the engine is shutting down");
}

/* Until end(), dse_engine_free waits. */
static enum dse_status begin(struct dse_engine *engine, struct dse_error *err)
{
    if (engine->scheduler.pool.cache.n_blocks == 0)
        return dse_fail(err, DSE_ERR_UNSUPPORTED,
                        "prefixes are saved out of the prefix cache, which is off (--no-enable-prefix-caching)");
    if (!dse_engine_usable(engine))
        return dse_fail_at(err, DSE_ERR_UNAVAILABLE, engine->model->info.path, -1,
                           "model file %s was truncated while in use", engine->model->info.path);
    pthread_mutex_lock(&engine->lock);
    bool stopping = engine->stopping;
    engine->n_transfers += !stopping;
    pthread_mutex_unlock(&engine->lock);
    return stopping ? stopped(err) : DSE_OK;
}

static void end(struct dse_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->n_transfers--;
    pthread_cond_broadcast(&engine->transferred);
    pthread_mutex_unlock(&engine->lock);
}

static struct dse_prefix_scope scope_of(const struct dse_engine *engine, const struct dse_saved_prefix *prefix)
{
    const uint64_t *model = engine->model_identity;
    struct dse_prefix_scope scope = {.model = {model[0], model[1]}, .adapter = prefix->adapter_identity};
    dse_prefix_salt(prefix->cache_salt, prefix->cache_salt_bytes, scope.salt);
    return scope;
}

static enum dse_status transfer_init(struct dse_transfer *t, const struct dse_prefix_scope *scope,
                                     const int32_t *tokens, int n_tokens, struct dse_error *err)
{
    const int n_blocks = n_tokens / DSE_KV_BLOCK_TOKENS;
    *t = (struct dse_transfer){.tokens = tokens, .n_tokens = n_tokens, .kv = {.max_blocks = n_blocks}};
    t->kv.chain.scope = *scope;
    t->kv.blocks = dse_calloc(DSE_MEM_KV, (size_t)n_blocks + 1, sizeof *t->kv.blocks);
    return t->kv.blocks != NULL ? DSE_OK : dse_fail_memory(err, (size_t)n_blocks * sizeof(int32_t), "a block table");
}

struct stop {
    struct dse_engine *engine;
    dse_saved_stop_fn *fn;
    void *user;
};

/* Blocks of an engine whose model was cut short are not to be trusted. */
static bool is_to_stop(void *user)
{
    const struct stop *stop = user;
    return !dse_engine_usable(stop->engine) || (stop->fn != NULL && stop->fn(stop->user));
}

static enum dse_status save_held(struct dse_engine *engine, const struct dse_transfer *t, int folder, const char *name,
                                 struct stop *stop, uint64_t *bytes, struct dse_error *err)
{
    const struct dse_kv_pool *pool = &engine->scheduler.pool;
    struct dse_saved_source source = {.header = {.scope = t->kv.chain.scope,
                                                 .block_bytes = pool->layout.block_bytes,
                                                 .n_blocks = (uint32_t)t->kv.n_blocks},
                                      .tokens = t->tokens,
                                      .memory = pool->memory,
                                      .blocks = t->kv.blocks,
                                      .stop = is_to_stop,
                                      .user = stop};
    if (t->kv.n_blocks == 0)
        return dse_fail(err, DSE_ERR_INVALID,
                        "there is nothing to save: of the %d tokens no block of %d is in the prefix cache", t->n_tokens,
                        DSE_KV_BLOCK_TOKENS);
    return dse_saved_file_write(folder, name, &source, bytes, err);
}

enum dse_status dse_engine_save_prefix(struct dse_engine *engine, const struct dse_saved_prefix *prefix, int folder,
                                       const char *name, dse_saved_stop_fn *stop, void *user, int *n_tokens,
                                       uint64_t *bytes, struct dse_error *err)
{
    struct stop asked = {engine, stop, user};
    struct dse_transfer t = {0};
    enum dse_status status = dse_saved_name_check(name, strlen(name), err);
    if (status == DSE_OK) status = begin(engine, err);
    if (status != DSE_OK) return status;
    const struct dse_prefix_scope scope = scope_of(engine, prefix);
    status = transfer_init(&t, &scope, prefix->tokens, prefix->n_tokens, err);
    if (status == DSE_OK && !ask(engine, &t, TRANSFER_HOLD)) status = stopped(err);
    if (status == DSE_OK && !t.ok)
        status = dse_fail(err, DSE_ERR_UNAVAILABLE,
                          "running requests need all of the KV pool: try again when there are fewer");
    if (status == DSE_OK) {
        *n_tokens = t.kv.length;
        status = save_held(engine, &t, folder, name, &asked, bytes, err);
        (void)ask(engine, &t, TRANSFER_RELEASE);
    }
    dse_free(t.kv.blocks);
    end(engine);
    if (status == DSE_OK) dse_counter_add(DSE_COUNTER_SLOTS_SAVED, 1);
    return status;
}

static enum dse_status read_blocks(struct dse_engine *engine, const struct dse_saved_file *file, uint8_t *scratch,
                                   const int32_t *blocks, struct stop *stop, struct dse_error *err)
{
    for (int i = 0; i < (int)file->header.n_blocks; i++) {
        uint8_t *data = blocks != NULL ? dse_kv_block(&engine->scheduler.pool, blocks[i]) : scratch;
        if (is_to_stop(stop)) return stopped(err);
        enum dse_status status = dse_saved_file_read(file, i, data, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}

/* Once without a place for it, so that a bad file takes nothing out of the cache; then again, checked again. */
static enum dse_status check_blocks(struct dse_engine *engine, const struct dse_saved_file *file, struct stop *stop,
                                    struct dse_error *err)
{
    uint8_t *scratch = dse_alloc(DSE_MEM_KV, file->header.block_bytes);
    if (scratch == NULL) return dse_fail_memory(err, file->header.block_bytes, "a block");
    enum dse_status status = read_blocks(engine, file, scratch, NULL, stop, err);
    dse_free(scratch);
    return status;
}

static enum dse_status restore_file(struct dse_engine *engine, struct dse_saved_file *file, struct stop *stop,
                                    struct dse_restored_prefix *restored, struct dse_error *err)
{
    const int n_blocks = (int)file->header.n_blocks;
    struct dse_transfer t = {0};
    enum dse_status status = check_blocks(engine, file, stop, err);
    if (status == DSE_OK)
        status = transfer_init(&t, &file->header.scope, file->tokens, n_blocks * DSE_KV_BLOCK_TOKENS, err);
    t.n_wanted = n_blocks;
    if (status == DSE_OK && !ask(engine, &t, TRANSFER_TAKE)) status = stopped(err);
    if (status == DSE_OK && !t.ok)
        status = dse_fail(err, DSE_ERR_UNAVAILABLE,
                          "running requests leave no room for %d KV blocks: try again when there are fewer", n_blocks);
    if (status == DSE_OK) {
        status = read_blocks(engine, file, NULL, t.kv.blocks, stop, err);
        if (!ask(engine, &t, status == DSE_OK ? TRANSFER_ADOPT : TRANSFER_GIVE_BACK) && status == DSE_OK)
            status = stopped(err);
    }
    dse_free(t.kv.blocks);
    if (status != DSE_OK) return status;
    *restored = (struct dse_restored_prefix){.tokens = file->tokens,
                                             .n_tokens = t.n_done * DSE_KV_BLOCK_TOKENS,
                                             .adapter_identity = file->header.scope.adapter,
                                             .bytes = file->bytes};
    file->tokens = NULL;
    return DSE_OK;
}

enum dse_status dse_engine_restore_prefix(struct dse_engine *engine, const struct dse_saved_prefix *prefix, int folder,
                                          const char *name, dse_saved_stop_fn *stop, void *user,
                                          struct dse_restored_prefix *restored, struct dse_error *err)
{
    struct stop asked = {engine, stop, user};
    struct dse_saved_file file = {.fd = -1};
    enum dse_status status = dse_saved_name_check(name, strlen(name), err);
    *restored = (struct dse_restored_prefix){0};
    if (status == DSE_OK) status = begin(engine, err);
    if (status != DSE_OK) return status;
    const struct dse_kv_pool *pool = &engine->scheduler.pool;
    const struct dse_prefix_scope scope = scope_of(engine, prefix);
    struct dse_saved_expected expected = {.block_bytes = pool->layout.block_bytes,
                                          .max_blocks = pool->n_blocks,
                                          .n_vocab = engine->model->file->config.n_vocab};
    memcpy(expected.model, scope.model, sizeof expected.model);
    memcpy(expected.salt, scope.salt, sizeof expected.salt);
    status = dse_saved_file_open(folder, name, &expected, &file, err);
    if (status == DSE_OK) status = restore_file(engine, &file, &asked, restored, err);
    dse_saved_file_close(&file);
    end(engine);
    if (status == DSE_OK) dse_counter_add(DSE_COUNTER_SLOTS_RESTORED, 1);
    return status;
}

enum dse_status dse_engine_forget_prefix(struct dse_engine *engine, const struct dse_saved_prefix *prefix,
                                         int *n_tokens, struct dse_error *err)
{
    struct dse_transfer t = {0};
    enum dse_status status = begin(engine, err);
    if (status != DSE_OK) return status;
    const struct dse_prefix_scope scope = scope_of(engine, prefix);
    status = transfer_init(&t, &scope, prefix->tokens, prefix->n_tokens, err);
    if (status == DSE_OK && !ask(engine, &t, TRANSFER_FORGET)) status = stopped(err);
    *n_tokens = t.n_done * DSE_KV_BLOCK_TOKENS;
    dse_free(t.kv.blocks);
    end(engine);
    return status;
}

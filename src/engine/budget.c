/* The memory plan. Called by dse_engine_plan and dse_engine_create; takes no memory and touches no weights.
 *
 * The pool is counted in full although the system hands out its pages as they are first used: what was planned must
 * still be there when the last sequence grows to its end. What a system reports as available includes the page cache
 * and so the weights that are mapped from the pack cache. Those that every step reads have to fit as well; experts need
 * not, but sizes that nobody asked for leave them where they are.
 */
#include "engine/budget.h"

#include <stdio.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/kv_pool.h"
#include "engine/prefix_disk.h"
#include "engine/speculate.h"

#define DEFAULT_MEMORY_FRACTION 0.9
/* By default the pool takes at most this part of the memory, unless a single context needs more. */
#define POOL_SHARE 4

struct budget {
    const struct dse_model *model;
    uint64_t block_bytes, scratch_bytes;
    uint64_t total; /* that may be used */
    uint64_t core;  /* mapped weights that every step reads */
    uint64_t bytes; /* beside them, for kv and scratch together */
    uint64_t spare; /* what is left of that beside experts, at least a part when those are larger than memory */
};

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t fraction_of(uint64_t bytes, double fraction)
{
    double product = (double)bytes * fraction;
    return product < 0x1p64 ? (uint64_t)product : UINT64_MAX;
}

/* 0 means the default where it is no value: least is 1 then. */
static enum dse_status check_range(int value, int least, int most, const char *field, struct dse_error *err)
{
    if (value >= 0 && value <= most) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s %d is outside %d…%d", field, value, least, most);
}

static enum dse_status check_options(const struct dse_model *model, const struct dse_engine_options *o,
                                     struct dse_error *err)
{
    int64_t trained = model->file->config.context_length;
    if (o->context_length < 0 || o->context_length > trained)
        return dse_fail_at(err, DSE_ERR_INVALID, "context_length", -1,
                           "context length %lld is outside 1…%lld, the context the model was trained for",
                           (long long)o->context_length, (long long)trained);
    enum dse_status status = check_range(o->max_concurrent, 1, DSE_MAX_CONCURRENT, "max_concurrent", err);
    if (status == DSE_OK) status = check_range(o->max_queue, 0, DSE_MAX_QUEUE, "max_queue", err);
    if (status == DSE_OK) status = check_range(o->chunk_tokens, 1, DSE_MAX_CHUNK_TOKENS, "chunk_tokens", err);
    if (status == DSE_OK) status = check_range(o->max_draft, 0, DSE_MAX_DRAFT, "max_draft", err);
    if (status == DSE_OK) status = check_range(o->adapter_rank, 0, DSE_MAX_ADAPTER_RANK, "adapter_rank", err);
    if (status != DSE_OK) return status;
    if (!(o->memory_fraction >= 0 && o->memory_fraction <= 1)) /* also refuses NaN */
        return dse_fail_at(err, DSE_ERR_INVALID, "memory_fraction", -1, "memory_fraction must lie between 0 and 1");
    return DSE_OK;
}

static bool context_fits(const struct budget *b, int64_t context, uint64_t bytes)
{
    uint64_t kv, total;
    return !__builtin_mul_overflow((uint64_t)dse_kv_blocks_for(context), b->block_bytes, &kv) &&
           !__builtin_add_overflow(kv, b->scratch_bytes, &total) && total <= bytes;
}

/* Largest context up to `limit` of which one fits; 0 if none does. Above a block in whole blocks. */
static int64_t largest_context(const struct budget *b, int64_t limit, uint64_t bytes)
{
    if (context_fits(b, limit, bytes)) return limit;
    int64_t low = 0, high = limit / DSE_KV_BLOCK_TOKENS; /* low fits, in blocks */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (context_fits(b, middle * DSE_KV_BLOCK_TOKENS, bytes))
            low = middle;
        else
            high = middle - 1;
    }
    return low * DSE_KV_BLOCK_TOKENS;
}

static enum dse_status too_large(const struct budget *b, int64_t context, uint64_t need, const char *reason,
                                 struct dse_error *err)
{
    int64_t fits = largest_context(b, context, b->bytes);
    const double mib = 1024.0 * 1024.0;
    const char *what = b->core > 0 ? "weights, KV cache and scratch" : "KV cache and scratch";
    enum dse_status status;
    need = sum(need, b->core);
    if (fits > 0)
        status = dse_fail(
            err, DSE_ERR_NO_MEMORY,
            "%s for a context of %lld tokens need %.1f MiB, %.1f MiB may be used (%s): use --ctx-size %lld", what,
            (long long)context, (double)need / mib, (double)b->total / mib, reason, (long long)fits);
    else
        status = dse_fail(err, DSE_ERR_NO_MEMORY,
                          "%s for a context of %lld tokens need %.1f MiB, %.1f MiB may be used (%s), "
                          "and no smaller context fits: lower --max-concurrent, free memory, or use a smaller model",
                          what, (long long)context, (double)need / mib, (double)b->total / mib, reason);
    if (err != NULL) {
        err->need = (int64_t)need;
        err->have = (int64_t)b->total;
    }
    return status;
}

/* Blocks of the pool for a context that fits once. */
static uint64_t pool_blocks(const struct budget *b, int64_t context, int max_concurrent)
{
    uint64_t one = (uint64_t)dse_kv_blocks_for(context);
    uint64_t all = one * (uint64_t)max_concurrent;
    uint64_t share = b->total / POOL_SHARE / b->block_bytes;
    uint64_t fits = b->spare > b->scratch_bytes ? (b->spare - b->scratch_bytes) / b->block_bytes : 0;
    uint64_t blocks = all < share ? all : share;
    if (blocks > fits) blocks = fits;
    if (blocks < one) blocks = one;
    return blocks > INT32_MAX ? INT32_MAX : blocks;
}

/* A pool of exactly kv_bytes. */
static enum dse_status explicit_pool(const struct budget *b, const struct dse_engine_options *o, int64_t *context,
                                     uint64_t *blocks, struct dse_error *err)
{
    *blocks = o->kv_bytes / b->block_bytes;
    if (*blocks > INT32_MAX) *blocks = INT32_MAX;
    int64_t tokens = (int64_t)*blocks * DSE_KV_BLOCK_TOKENS;
    if (o->context_length == 0 && tokens > 0 && *context > tokens) *context = tokens;
    if (*blocks >= (uint64_t)dse_kv_blocks_for(*context)) return DSE_OK;
    uint64_t need = (uint64_t)dse_kv_blocks_for(*context) * b->block_bytes;
    enum dse_status status = dse_fail_at(
        err, DSE_ERR_NO_MEMORY, "kv_bytes", -1,
        "a KV pool of %llu bytes holds %lld tokens, one context of %lld needs %llu bytes: use --ctx-size "
        "%lld or a larger pool",
        (unsigned long long)o->kv_bytes, (long long)tokens, (long long)*context, (unsigned long long)need,
        (long long)(tokens > 0 ? tokens : DSE_KV_BLOCK_TOKENS));
    if (err != NULL) {
        err->need = (int64_t)need;
        err->have = (int64_t)o->kv_bytes;
    }
    return status;
}

enum dse_status dse_budget_plan(const struct dse_model *model, const struct dse_engine_options *options,
                                struct dse_memory_limit limit, struct dse_engine_sizes *sizes, struct dse_error *err)
{
    static const struct dse_engine_options defaults = {0};
    const struct dse_engine_options *o = options != NULL ? options : &defaults;
    enum dse_status status = check_options(model, o, err);
    if (status != DSE_OK) return status;

    int concurrent = o->max_concurrent > 0 ? o->max_concurrent : DSE_DEFAULT_CONCURRENT;
    *sizes = (struct dse_engine_sizes){
        .chunk_tokens = o->chunk_tokens > 0 ? o->chunk_tokens : DSE_DEFAULT_CHUNK_TOKENS,
        .max_queue = o->max_queue,
        .max_sequences = concurrent > DSE_MAX_CHOICES ? concurrent : DSE_MAX_CHOICES,
    };
    sizes->max_rows = sizes->chunk_tokens + sizes->max_sequences;
    sizes->max_out = sizes->max_rows < DSE_LOGIT_ROWS ? sizes->max_rows : DSE_LOGIT_ROWS;

    double fraction = o->memory_fraction > 0 ? o->memory_fraction : DEFAULT_MEMORY_FRACTION;
    uint64_t mapped = model->info.resident_bytes == 0 ? model->weights.storage_bytes : 0;
    struct budget b = {.model = model,
                       .block_bytes = model->kv_layout.block_bytes,
                       .total = fraction_of(limit.available_bytes, fraction)};
    const uint64_t experts = mapped > 0 ? model->weights.expert_bytes : 0;
    b.core = mapped - experts;
    b.bytes = b.total > b.core ? b.total - b.core : 0;
    b.bytes = b.bytes > o->adapter_bytes ? b.bytes - o->adapter_bytes : 0;
    b.spare = b.bytes / POOL_SHARE;
    if (b.bytes > experts && b.bytes - experts > b.spare) b.spare = b.bytes - experts;
    status = dse_forward_plan(model, sizes->max_rows, sizes->max_out, &b.scratch_bytes, err);
    if (status != DSE_OK) return status;
    b.scratch_bytes = sum(b.scratch_bytes, dse_forward_adapter_bytes(sizes->max_rows, o->adapter_rank));
    if (o->prefix_cache_disk != NULL) b.scratch_bytes = sum(b.scratch_bytes, dse_prefix_disk_memory(b.block_bytes));
    int64_t context = o->context_length > 0 ? o->context_length : model->file->config.context_length;
    uint64_t blocks = 0;
    if (o->kv_bytes > 0) {
        status = explicit_pool(&b, o, &context, &blocks, err);
        if (status != DSE_OK) return status;
    } else if (o->context_length == 0) {
        int64_t fits = largest_context(&b, context, b.spare);
        if (fits == 0) fits = largest_context(&b, context, b.bytes);
        if (fits > 0) context = fits; /* else the check below refuses with numbers */
    }
    uint64_t one = (uint64_t)dse_kv_blocks_for(context) * b.block_bytes;
    if (!context_fits(&b, context, b.bytes)) return too_large(&b, context, one + b.scratch_bytes, limit.reason, err);
    if (blocks == 0) blocks = pool_blocks(&b, context, concurrent);
    uint64_t kv = blocks * b.block_bytes;
    if (kv > b.bytes - b.scratch_bytes) {
        if (err != NULL) {
            const double mib = 1024.0 * 1024.0;
            (void)dse_fail_at(err, DSE_ERR_NO_MEMORY, "kv_bytes", -1,
                              "a KV pool of %.1f MiB and scratch of %.1f MiB do not fit the %.1f MiB that may be used "
                              "beside the weights (%s): use --kv-cache-memory %llu or less",
                              (double)kv / mib, (double)b.scratch_bytes / mib, (double)b.bytes / mib, limit.reason,
                              (unsigned long long)(b.bytes - b.scratch_bytes));
            err->need = (int64_t)(kv + b.scratch_bytes);
            err->have = (int64_t)b.bytes;
        }
        return DSE_ERR_NO_MEMORY;
    }

    /* open ones are in memory already, like resident weights */
    const uint64_t open_adapters = dse_model_adapter_bytes((struct dse_model *)model); /* for the lock only */
    sizes->n_blocks = (int)blocks;
    sizes->plan = (struct dse_memory_plan){
        .weight_bytes = model->info.file_bytes,
        .resident_weight_bytes = model->info.resident_bytes,
        .kv_bytes = kv,
        .scratch_bytes = b.scratch_bytes,
        .adapter_bytes = sum(open_adapters, o->adapter_bytes),
        .adapter_rank = o->adapter_rank,
        .mapped_weight_bytes = mapped,
        .expert_bytes = model->weights.expert_bytes,
        .total_bytes = model->info.resident_bytes + mapped + kv + b.scratch_bytes +
                       sum(open_adapters, o->adapter_bytes),
        /* resident weights are in memory already and no longer part of what is available; mapped ones still are */
        .available_bytes = sum(b.total, model->info.resident_bytes + open_adapters),
        .available_reason = limit.reason,
        .context_length = context,
        .kv_tokens = (int64_t)blocks * DSE_KV_BLOCK_TOKENS,
        .max_concurrent = concurrent,
    };
    return DSE_OK;
}

enum dse_status dse_budget_check(const struct dse_model *model, int max_rows, int max_out, size_t n_blocks,
                                 struct dse_memory_limit limit, const char *what, struct dse_error *err)
{
    uint64_t scratch, kv, need;
    enum dse_status status = dse_forward_plan(model, max_rows, max_out, &scratch, err);
    if (status != DSE_OK) return status;
    if (n_blocks > INT32_MAX || __builtin_mul_overflow((uint64_t)n_blocks, model->kv_layout.block_bytes, &kv) ||
        __builtin_add_overflow(kv, scratch, &need))
        return dse_fail(err, DSE_ERR_NO_MEMORY, "the KV cache of %s overflows the address space", what);
    if (need <= limit.available_bytes) return DSE_OK;
    const double mib = 1024.0 * 1024.0;
    status = dse_fail(err, DSE_ERR_NO_MEMORY,
                      "KV cache and scratch of %s need %.1f + %.1f MiB, %.1f MiB are available (%s)", what,
                      (double)kv / mib, (double)scratch / mib, (double)limit.available_bytes / mib, limit.reason);
    if (err != NULL) {
        err->need = (int64_t)need;
        err->have = (int64_t)limit.available_bytes;
    }
    return status;
}

static enum dse_status check_bench(const struct dse_model *model, const struct dse_bench_spec *spec, int chunk_tokens,
                                   struct dse_memory_limit limit, struct dse_bench_sizes *sizes, struct dse_error *err)
{
    sizes->per_sequence = dse_kv_blocks_for((int64_t)spec->n_depth + spec->n_prompt + spec->n_gen);
    sizes->n_blocks = (size_t)sizes->per_sequence * (size_t)spec->n_seqs;
    sizes->max_rows = chunk_tokens > spec->n_seqs ? chunk_tokens : spec->n_seqs;
    return dse_budget_check(model, sizes->max_rows, DSE_LOGIT_ROWS, sizes->n_blocks, limit, "the benchmark", err);
}

/* Lowers one setting after the other as far as it goes until the row fits, then raises the last one to what still does.
 * Appends to the message what came of it. */
static void suggest_bench(const struct dse_model *model, struct dse_bench_spec spec, int chunk_tokens,
                          struct dse_memory_limit limit, struct dse_error *err)
{
    struct {
        const char *flag;
        int *value, least;
    } settings[] = {
        {"--n-seqs", &spec.n_seqs, 1},
        {"--n-depth", &spec.n_depth, 0},
        {spec.n_prompt > 0 ? "--n-prompt" : "--n-gen", spec.n_prompt > 0 ? &spec.n_prompt : &spec.n_gen, 1},
        {"--chunk-tokens", &chunk_tokens, 1},
    };
    char text[128] = "";
    struct dse_bench_sizes sizes;
    bool fits = false;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && !fits; i++) {
        int *value = settings[i].value, low = settings[i].least, high = *value;
        if (high <= low) continue;
        *value = low;
        fits = check_bench(model, &spec, chunk_tokens, limit, &sizes, NULL) == DSE_OK;
        while (fits && high - low > 1) { /* low fits, high does not */
            *value = low + (high - low) / 2;
            bool good = check_bench(model, &spec, chunk_tokens, limit, &sizes, NULL) == DSE_OK;
            *(good ? &low : &high) = *value;
        }
        *value = low;
        size_t length = strlen(text);
        (void)snprintf(text + length, sizeof text - length, " %s %d", settings[i].flag, low);
    }
    size_t length = strlen(err->message);
    if (fits)
        (void)snprintf(err->message + length, sizeof err->message - length, ": use%s", text);
    else
        (void)snprintf(err->message + length, sizeof err->message - length,
                       ", and no smaller one fits: free memory or use a smaller model");
}

enum dse_status dse_budget_bench(const struct dse_model *model, const struct dse_bench_spec *spec, int chunk_tokens,
                                 struct dse_memory_limit limit, struct dse_bench_sizes *sizes, struct dse_error *err)
{
    int chunk = chunk_tokens > 0 ? chunk_tokens : DSE_DEFAULT_CHUNK_TOKENS;
    enum dse_status status = check_bench(model, spec, chunk, limit, sizes, err);
    if (status == DSE_ERR_NO_MEMORY && err != NULL) suggest_bench(model, *spec, chunk, limit, err);
    return status;
}

enum dse_status dse_engine_plan(const struct dse_model *model, const struct dse_engine_options *options,
                                struct dse_memory_plan *plan, struct dse_error *err)
{
    struct dse_engine_sizes sizes;
    enum dse_status status = dse_budget_plan(model, options, dse_cgroup_memory_limit(""), &sizes, err);
    if (status == DSE_OK) *plan = sizes.plan;
    return status;
}

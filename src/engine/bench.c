/* dse_bench_run: how long prefill or decode takes at a depth, with several sequences in the batch.
 *
 * Times the forward passes and the head, nothing else. The context below the depth holds made-up keys and values: how
 * long attention takes does not depend on what they are, only that their memory is real.
 */
#include <dse/dse.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/bench.h"
#include "engine/budget.h"
#include "engine/forward.h"
#include "engine/kv_pool.h"

#define MAX_SEQUENCES 1024

struct bench {
    struct dse_model *model;
    const struct dse_bench_spec *spec;
    struct dse_kv_pool pool;
    struct dse_forward forward;
    struct dse_kv_sequence *sequences;
    int32_t *tables; /* block tables of all sequences */
    int32_t *out_rows;
    int chunk;
};

static enum dse_status check_spec(const struct dse_model *model, const struct dse_bench_spec *spec, int chunk_tokens,
                                  struct dse_error *err)
{
    int64_t context = model->file->config.context_length;
    if (spec->n_seqs < 1 || spec->n_seqs > MAX_SEQUENCES)
        return dse_fail_at(err, DSE_ERR_INVALID, "n_seqs", -1, "n_seqs %d is outside 1…%d", spec->n_seqs,
                           MAX_SEQUENCES);
    if (chunk_tokens < 0 || chunk_tokens > DSE_MAX_CHUNK_TOKENS)
        return dse_fail_at(err, DSE_ERR_INVALID, "chunk_tokens", -1, "chunk_tokens %d is outside 1…%d", chunk_tokens,
                           DSE_MAX_CHUNK_TOKENS);
    if (spec->n_prompt < 0 || spec->n_gen < 0 || spec->n_depth < 0 || (spec->n_prompt == 0 && spec->n_gen == 0))
        return dse_fail_at(err, DSE_ERR_INVALID, "n_prompt", -1, "a benchmark needs prompt or output tokens");
    if (spec->numerics == DSE_NUMERICS_FAST && !model->file->config.latent.expand)
        return dse_fail_at(err, DSE_ERR_INVALID, "numerics", -1,
                           "fast numerics were asked for, and %s was not opened with them or has no latent attention",
                           model->info.path);
    int64_t length = (int64_t)spec->n_depth + spec->n_prompt + spec->n_gen;
    if (length <= context) return DSE_OK;
    enum dse_status status = dse_fail_at(err, DSE_ERR_TOO_LONG, "n_depth", -1,
                                         "depth, prompt and output are %lld tokens, the context %lld",
                                         (long long)length, (long long)context);
    if (err != NULL) {
        err->need = length;
        err->have = context;
    }
    return status;
}

/* Two halves a word, or one f32. What is random in them is the sign and the mantissa. */
static const struct {
    uint32_t fixed, random;
} patterns[] = {
    [DSE_KV_F16] = {0x28002800u, 0x83FF83FFu}, /* magnitude 0.03 */
    [DSE_KV_F32] = {0x3D800000u, 0x807FFFFFu}, /* 0.06 */
    /* 0.001, for scales, rope part and the indexer's keys; its bytes are values of a block too, and never -128 */
    [DSE_KV_Q8_0] = {0x14001400u, 0x837F837Fu},
};

void dse_bench_fill_pool(struct dse_kv_pool *pool)
{
    uint32_t *words = (uint32_t *)(void *)pool->memory;
    const uint32_t fixed = patterns[pool->layout.type].fixed, random = patterns[pool->layout.type].random;
    uint32_t state = 0x9E3779B9u;
    for (size_t i = 0; i < pool->memory_bytes / sizeof *words; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        words[i] = fixed | (state & random);
    }
}

static enum dse_status prepare(struct bench *b, struct dse_error *err)
{
    const struct dse_bench_spec *spec = b->spec;
    struct dse_bench_sizes sizes;
    enum dse_status status = dse_budget_bench(b->model, spec, b->chunk, dse_cgroup_memory_limit(""), &sizes, err);
    if (status != DSE_OK) return status;
    const int per_sequence = sizes.per_sequence, max_rows = sizes.max_rows;
    const size_t n_blocks = sizes.n_blocks;
    b->sequences = dse_calloc(DSE_MEM_SCRATCH, (size_t)spec->n_seqs, sizeof *b->sequences);
    b->tables = dse_calloc(DSE_MEM_SCRATCH, n_blocks, sizeof *b->tables);
    b->out_rows = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_rows, sizeof *b->out_rows);
    if (b->sequences == NULL || b->tables == NULL || b->out_rows == NULL)
        return dse_fail_memory(err, n_blocks * sizeof *b->tables, "the benchmark");
    status = dse_kv_pool_init(&b->pool, &b->model->kv_layout, (int)n_blocks, err);
    if (status == DSE_OK) status = dse_forward_init(&b->forward, b->model, max_rows, DSE_LOGIT_ROWS, err);
    if (status != DSE_OK) return status;
    b->forward.expand = spec->numerics == DSE_NUMERICS_FAST;
    dse_bench_fill_pool(&b->pool);
    for (int i = 0; i < spec->n_seqs; i++) {
        struct dse_kv_sequence *sequence = &b->sequences[i];
        sequence->blocks = b->tables + (size_t)i * (size_t)per_sequence;
        sequence->max_blocks = per_sequence;
        if (!dse_kv_extend(&b->pool, sequence, (int64_t)per_sequence * DSE_KV_BLOCK_TOKENS))
            return dse_fail(err, DSE_ERR_INTERNAL, "KV pool of the benchmark is too small");
        sequence->length = spec->n_depth;
    }
    return DSE_OK;
}

static int32_t random_token(const struct bench *b, int sequence, int position)
{
    double u = dse_philox_uniform(1, (uint64_t)sequence, (uint64_t)position);
    return (int32_t)(u * b->model->n_samplable);
}

static void push_row(struct bench *b, int index)
{
    struct dse_kv_sequence *sequence = &b->sequences[index];
    dse_forward_push(&b->forward, random_token(b, index, sequence->length), sequence->length,
                     dse_kv_view(&b->pool, sequence));
    sequence->length++;
}

static void run_step(struct bench *b, int n_out)
{
    dse_forward_run(&b->forward, &b->pool.layout);
    for (int i = 0; i < n_out; i += DSE_LOGIT_ROWS)
        dse_forward_logits(&b->forward, b->out_rows + i, n_out - i < DSE_LOGIT_ROWS ? n_out - i : DSE_LOGIT_ROWS,
                           b->forward.logits);
    dse_forward_clear(&b->forward);
}

/* Prompts follow one another through steps of `chunk` rows; the last row of each pays for the head. */
static void prefill(struct bench *b)
{
    int n_out = 0;
    dse_forward_clear(&b->forward);
    for (int s = 0; s < b->spec->n_seqs; s++) {
        for (int i = 0; i < b->spec->n_prompt; i++) {
            if (i + 1 == b->spec->n_prompt) b->out_rows[n_out++] = b->forward.rows.n_rows;
            push_row(b, s);
            if (b->forward.rows.n_rows < b->chunk) continue;
            run_step(b, n_out);
            n_out = 0;
        }
    }
    if (b->forward.rows.n_rows > 0) run_step(b, n_out);
}

static void decode(struct bench *b)
{
    dse_forward_clear(&b->forward);
    for (int i = 0; i < b->spec->n_gen; i++) {
        for (int s = 0; s < b->spec->n_seqs; s++) {
            b->out_rows[s] = s;
            push_row(b, s);
        }
        run_step(b, b->spec->n_seqs);
    }
}

/* One untimed row brings in the pages of the weights; it is written again by the first timed one. */
static void warm_up(struct bench *b)
{
    dse_forward_clear(&b->forward);
    b->out_rows[0] = 0;
    push_row(b, 0);
    run_step(b, 1);
    b->sequences[0].length--;
}

enum dse_status dse_bench_check(const struct dse_model *model, const struct dse_bench_spec *spec, int chunk_tokens,
                                struct dse_error *err)
{
    struct dse_bench_sizes sizes;
    enum dse_status status = check_spec(model, spec, chunk_tokens, err);
    if (status != DSE_OK) return status;
    return dse_budget_bench(model, spec, chunk_tokens, dse_cgroup_memory_limit(""), &sizes, err);
}

enum dse_status dse_bench_run(struct dse_model *model, const struct dse_bench_spec *spec, int chunk_tokens,
                              double *seconds, struct dse_error *err)
{
    enum dse_status status = check_spec(model, spec, chunk_tokens, err);
    if (status != DSE_OK) return status;
    struct bench b = {
        .model = model, .spec = spec, .chunk = chunk_tokens > 0 ? chunk_tokens : DSE_DEFAULT_CHUNK_TOKENS};
    status = prepare(&b, err);
    if (status == DSE_OK) {
        warm_up(&b);
        uint64_t begin = dse_clock_ns();
        if (spec->n_prompt > 0) prefill(&b);
        if (spec->n_gen > 0) decode(&b);
        *seconds = (double)(dse_clock_ns() - begin) * 1e-9;
    }
    dse_forward_deinit(&b.forward);
    dse_kv_pool_deinit(&b.pool);
    dse_free(b.sequences);
    dse_free(b.tables);
    dse_free(b.out_rows);
    return status;
}

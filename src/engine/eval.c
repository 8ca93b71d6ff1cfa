/* dse_eval_logits and dse_eval_mtp_logits: logits of every position of a token list. For `eval`, perplexity and the
 * fidelity tests.
 *
 * Runs on the caller's thread with KV memory of its own, over the same forward pass as the engine.
 */
#include <dse/dse.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "engine/adapter.h"
#include "engine/budget.h"
#include "engine/forward.h"
#include "engine/kv_pool.h"

static enum dse_status check_ids(const struct dse_model *model, const int32_t *ids, int n_ids, struct dse_error *err)
{
    if (ids == NULL || n_ids < 1) return dse_fail_at(err, DSE_ERR_INVALID, "ids", -1, "no token ids given");
    int64_t context = model->file->config.context_length;
    if (n_ids > context) {
        enum dse_status status = dse_fail_at(err, DSE_ERR_TOO_LONG, "ids", -1,
                                             "%d tokens do not fit the model's context of %lld", n_ids,
                                             (long long)context);
        if (err != NULL) {
            err->need = n_ids;
            err->have = context;
        }
        return status;
    }
    for (int i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= model->file->config.n_vocab)
            return dse_fail_at(err, DSE_ERR_INVALID, "ids", -1, "token id %d at position %d is outside 0…%d", ids[i], i,
                               model->file->config.n_vocab - 1);
    return DSE_OK;
}

/* mtp_out: of the prediction layer, which has no row for the last token. Either may be NULL. */
static enum dse_status evaluate(struct dse_model *model, const struct dse_adapter_set *adapters, const int32_t *ids,
                                int n_ids, int chunk_tokens, float *out, float *mtp_out, struct dse_error *err)
{
    enum dse_status status = check_ids(model, ids, n_ids, err);
    if (status != DSE_OK) return status;
    if (chunk_tokens < 0 || chunk_tokens > DSE_MAX_CHUNK_TOKENS)
        return dse_fail_at(err, DSE_ERR_INVALID, "chunk_tokens", -1, "chunk_tokens %d is outside 1…%d", chunk_tokens,
                           DSE_MAX_CHUNK_TOKENS);
    int chunk = chunk_tokens == 0 ? DSE_DEFAULT_CHUNK_TOKENS : chunk_tokens;
    if (chunk > n_ids) chunk = n_ids;

    struct dse_kv_pool pool = {0};
    struct dse_forward forward = {0};
    struct dse_kv_sequence sequence = {.max_blocks = dse_kv_blocks_for(n_ids)};
    int32_t *row_index = dse_calloc(DSE_MEM_REQUEST, (size_t)chunk, sizeof *row_index);
    sequence.blocks = dse_calloc(DSE_MEM_REQUEST, (size_t)sequence.max_blocks, sizeof *sequence.blocks);
    if (row_index == NULL || sequence.blocks == NULL) {
        status = dse_fail_memory(err, (size_t)n_ids * sizeof(int32_t), "evaluation");
        goto done;
    }
    status = dse_budget_check(model, chunk, 0, (size_t)sequence.max_blocks, dse_cgroup_memory_limit(""),
                              "the evaluation", err);
    if (status == DSE_OK) status = dse_kv_pool_init(&pool, &model->kv_layout, sequence.max_blocks, err);
    if (status == DSE_OK) status = dse_forward_init(&forward, model, chunk, 0, err);
    if (status == DSE_OK) status = dse_forward_take_adapters(&forward, adapters->rank, err);
    if (status != DSE_OK) goto done;

    const size_t n_vocab = (size_t)model->file->config.n_vocab;
    for (int done = 0; done < n_ids; done += chunk) {
        int n = n_ids - done < chunk ? n_ids - done : chunk;
        if (!dse_model_intact(model)) {
            status = dse_fail_at(err, DSE_ERR_UNAVAILABLE, model->info.path, -1, "the model file was truncated");
            goto done;
        }
        if (!dse_kv_extend(&pool, &sequence, done + n)) {
            status = dse_fail(err, DSE_ERR_INTERNAL, "KV pool of the evaluation is too small");
            goto done;
        }
        dse_forward_clear(&forward);
        for (int i = 0; i < n; i++) {
            dse_forward_push(&forward, ids[done + i], done + i, dse_kv_view(&pool, &sequence));
            row_index[i] = i;
        }
        dse_forward_adapt(&forward, 0, adapters->parts, adapters->count);
        dse_forward_run(&forward, &pool.layout);
        sequence.length += n;
        if (out != NULL) dse_forward_logits(&forward, row_index, n, out + (size_t)done * n_vocab);
        if (mtp_out == NULL) continue;
        if (done + n == n_ids) forward.rows.n_rows = --n; /* after the logits: the layer works in their rows */
        if (n == 0) break;
        dse_forward_mtp(&forward, &pool.layout, ids + done + 1);
        dse_forward_mtp_logits(&forward, row_index, n, mtp_out + (size_t)done * n_vocab);
    }

done:
    dse_forward_deinit(&forward);
    dse_kv_pool_deinit(&pool);
    dse_free(sequence.blocks);
    dse_free(row_index);
    return status;
}

enum dse_status dse_eval_logits(struct dse_model *model, const int32_t *ids, int n_ids, int chunk_tokens, float *out,
                                struct dse_error *err)
{
    static const struct dse_adapter_set none = {0};
    return evaluate(model, &none, ids, n_ids, chunk_tokens, out, NULL, err);
}

enum dse_status dse_eval_adapted_logits(struct dse_model *model, const struct dse_adapter_use *uses, int n_adapters,
                                        const int32_t *ids, int n_ids, int chunk_tokens, float *out,
                                        struct dse_error *err)
{
    struct dse_adapter_set adapters;
    enum dse_status status = dse_adapter_set_init(&adapters, model, uses, n_adapters, INT32_MAX, err);
    if (status != DSE_OK) return status;
    status = evaluate(model, &adapters, ids, n_ids, chunk_tokens, out, NULL, err);
    dse_adapter_set_deinit(&adapters);
    return status;
}

enum dse_status dse_eval_mtp_logits(struct dse_model *model, const int32_t *ids, int n_ids, int chunk_tokens,
                                    float *out, float *mtp_out, struct dse_error *err)
{
    if (model->file->config.n_mtp_used == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "mtp", -1, "%s was opened without its prediction layer",
                           model->info.path);
    if (n_ids < 2)
        return dse_fail_at(err, DSE_ERR_INVALID, "ids", -1, "multi-token prediction needs at least 2 token ids");
    static const struct dse_adapter_set none = {0};
    return evaluate(model, &none, ids, n_ids, chunk_tokens, out, mtp_out, err);
}

/* Hyper-parameters of the DeepSeek family: what must hold between the fields of latent attention, of the experts and of
 * the indexer. Both readers come here through dse_config_check; nothing here knows a file format. */
#include "model/config_internal.h"

enum dse_status dse_config_check_latent(struct dse_config *config, const struct dse_config_names *names,
                                        struct dse_error *err)
{
    const struct dse_latent_config *latent = &config->latent;
    /* Rotation works on pairs. */
    if (latent->rope % 2 != 0) return dse_config_wrong(names, names->latent_rope, latent->rope, "an even number", err);
    if (latent->nope < 1)
        return dse_config_wrong(names, names->latent_nope, latent->nope, "at least one dimension that is not rotated",
                                err);
    if (latent->nope + latent->rope > DSE_MAX_HEAD)
        return dse_config_wrong(names, names->latent_nope, latent->nope, "a head of at most 1024 with its rotated part",
                                err);
    config->head_dim = latent->nope + latent->rope;
    config->n_kv_heads = 1;
    config->rope.dimensions = latent->rope;
    if (config->arch != DSE_ARCH_DEEPSEEK32) return DSE_OK;
    if (latent->q_rank == 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                           "%s: %s%s is missing; the indexer of %s works on the query's latent", names->file,
                           names->prefix, names->latent_q_rank, config->arch_name);
    if (config->indexer.head_dim < latent->rope || config->indexer.head_dim % 2 != 0)
        return dse_config_wrong(names, names->index_dim, config->indexer.head_dim,
                                "an even number that holds the rotated part", err);
    /* lists of chosen keys are sized by it, and no query sees more keys than the context has */
    if (config->indexer.top_k > config->context_length) config->indexer.top_k = (int)config->context_length;
    return DSE_OK;
}

static enum dse_status check_groups(struct dse_moe_config *moe, const struct dse_config_names *names,
                                    struct dse_error *err)
{
    if (moe->n_groups == 0) moe->n_groups = moe->n_groups_used = 1;
    if (moe->n_experts % moe->n_groups != 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                           "%s: %s%s is %d, which does not divide the %d experts of %s%s", names->file, names->prefix,
                           names->n_groups, moe->n_groups, moe->n_experts, names->prefix, names->n_experts);
    int size = moe->n_experts / moe->n_groups;
    if (moe->n_groups_used > moe->n_groups)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1, "%s: %s%s is %d, more than the %d groups of %s%s",
                           names->file, names->prefix, names->n_groups_used, moe->n_groups_used, moe->n_groups,
                           names->prefix, names->n_groups);
    if (moe->n_groups_used * size < moe->n_used)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                           "%s: %s%s is %d: so many groups of %d experts hold fewer than the %d that %s%s uses",
                           names->file, names->prefix, names->n_groups_used, moe->n_groups_used, size, moe->n_used,
                           names->prefix, names->n_used);
    if (moe->n_groups == moe->n_groups_used) {
        moe->grouping = DSE_GROUPS_NONE;
    } else if (moe->grouping == DSE_GROUPS_BEST_TWO && size < 2) {
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                           "%s: %s%s is %d: groups of one expert cannot be ranked by their best two", names->file,
                           names->prefix, names->n_groups, moe->n_groups);
    }
    return DSE_OK;
}

enum dse_status dse_config_check_experts(struct dse_config *config, const struct dse_config_names *names,
                                         struct dse_error *err)
{
    struct dse_moe_config *moe = &config->moe;
    if (moe->n_experts == 0) return DSE_OK;
    if (moe->n_used > moe->n_experts)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1, "%s: %s%s is %d, more than the %d experts of %s%s",
                           names->file, names->prefix, names->n_used, moe->n_used, moe->n_experts, names->prefix,
                           names->n_experts);
    if (moe->n_dense_layers > config->n_layers)
        return dse_config_wrong(names, names->n_dense_layers, moe->n_dense_layers, "no more than there are layers",
                                err);
    if ((int64_t)moe->n_shared * moe->n_ff > DSE_MAX_FF)
        return dse_config_wrong(names, names->n_shared, moe->n_shared, "shared experts of a possible width", err);
    if (!(moe->scale > 0 && moe->scale <= 1e6f))
        return dse_config_wrong(names, names->expert_scale, (double)moe->scale, "above 0, at most 1e6", err);
    return check_groups(moe, names, err);
}

/* Keys of the DeepSeek family in GGUF: latent attention, experts, prediction layers. Called by config_gguf.c; what must
 * hold between the fields is checked later, for both formats, in config_deepseek.c. */
#include <stdio.h>

#include "model/config_gguf.h"
#include "model/weights_internal.h"

/* Only 0.1 * mscale_all_dim is stored, and mscale is taken to be the same: cos and sin keep their magnitude and the
 * whole effect is in the scale of the scores. */
static void read_log_multiplier(struct dse_gguf_keys *r, struct dse_rope_config *rope)
{
    if (rope->scaling == DSE_ROPE_NONE) return;
    rope->mscale = rope->mscale_all_dim = dse_gguf_keys_number(r, "rope.scaling.yarn_log_multiplier", 0) / 0.1;
    if (rope->mscale == 0) rope->attention_factor = 1;
}

/* New files name the sizes of a head with _mla and describe the cache in key_length; files from before the split of
 * kv_b have the sizes of a head there. */
static void read_latent(struct dse_gguf_keys *r, struct dse_config *config)
{
    struct dse_latent_config *latent = &config->latent;
    char key[96];
    latent->kv_rank = dse_gguf_keys_require(r, "attention.kv_lora_rank", DSE_MAX_LATENT);
    latent->q_rank = dse_gguf_keys_int(r, "attention.q_lora_rank", 1, DSE_MAX_LATENT, 0);
    latent->rope = dse_gguf_keys_require(r, "rope.dimension_count", DSE_MAX_HEAD);
    bool new_keys = dse_gguf_keys_have(r, "attention.key_length_mla") ||
                    dse_gguf_keys_have(r, "attention.value_length_mla");
    if (new_keys) {
        latent->nope = dse_gguf_keys_require(r, "attention.key_length_mla", DSE_MAX_HEAD) - latent->rope;
        latent->v = dse_gguf_keys_require(r, "attention.value_length_mla", DSE_MAX_HEAD);
        /* Either is redundant; if given it must agree. */
        int row = latent->kv_rank + latent->rope;
        const struct {
            const char *name;
            int expected;
        } cache[] = {{"attention.key_length", row}, {"attention.value_length", latent->kv_rank}};
        for (size_t i = 0; i < 2 && r->status == DSE_OK; i++) {
            int found = dse_gguf_keys_int(r, cache[i].name, 1, INT32_MAX, cache[i].expected);
            if (r->status == DSE_OK && found != cache[i].expected)
                r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                        "%s: %s is %d, expected %d from the latent rank and the rotated part",
                                        dse_gguf_path(r->gguf), dse_gguf_keys_name(r, cache[i].name, key), found,
                                        cache[i].expected);
        }
    } else {
        latent->nope = dse_gguf_keys_require(r, "attention.key_length", DSE_MAX_HEAD) - latent->rope;
        latent->v = dse_gguf_keys_require(r, "attention.value_length", DSE_MAX_HEAD);
    }
    int kv_heads = dse_gguf_keys_int(r, "attention.head_count_kv", 1, DSE_MAX_HEADS, 1);
    if (r->status == DSE_OK && kv_heads != 1 && kv_heads != config->n_heads)
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, expected 1 or (old files) the number of heads, %d",
                                dse_gguf_path(r->gguf), dse_gguf_keys_name(r, "attention.head_count_kv", key), kv_heads,
                                config->n_heads);
    config->rope.pairs = DSE_ROPE_INTERLEAVED;
    read_log_multiplier(r, &config->rope);
    if (config->arch != DSE_ARCH_DEEPSEEK32) return;
    config->indexer.n_heads = dse_gguf_keys_require(r, "attention.indexer.head_count", DSE_MAX_HEADS);
    config->indexer.head_dim = dse_gguf_keys_require(r, "attention.indexer.key_length", DSE_MAX_HEAD);
    config->indexer.top_k = dse_gguf_keys_require(r, "attention.indexer.top_k", DSE_MAX_CONTEXT);
}

static void read_gating(struct dse_gguf_keys *r, struct dse_config *config)
{
    enum { NOT_GIVEN, SOFTMAX, SIGMOID };
    struct dse_moe_config *moe = &config->moe;
    char key[96];
    int gating = dse_gguf_keys_int(r, "expert_gating_func", 0, INT32_MAX, NOT_GIVEN);
    if (r->status != DSE_OK) return;
    dse_gguf_keys_name(r, "expert_gating_func", key);
    bool sigmoid_only = config->arch == DSE_ARCH_DEEPSEEK32;
    /* Old files of V1 and V2 lack it; files of V3 always have it. */
    if (gating == NOT_GIVEN && !sigmoid_only) gating = SOFTMAX;
    if (gating == NOT_GIVEN) {
        r->status = dse_gguf_keys_missing(r, key);
    } else if (gating != (sigmoid_only ? SIGMOID : SOFTMAX) &&
               !(gating == SIGMOID && config->arch == DSE_ARCH_DEEPSEEK2)) {
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d; %s is computed with %s only", dse_gguf_path(r->gguf), key, gating,
                                r->arch,
                                sigmoid_only                         ? "2 (sigmoid)"
                                : config->arch == DSE_ARCH_DEEPSEEK2 ? "1 (softmax) and 2 (sigmoid)"
                                                                     : "1 (softmax)");
    }
    moe->score = gating == SIGMOID ? DSE_SCORE_SIGMOID : DSE_SCORE_SOFTMAX;
    moe->has_bias = gating == SIGMOID;
}

/* Groups of experts: DeepSeek's rules, whatever the key says to other runtimes. */
static void read_groups(struct dse_gguf_keys *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    if (config->arch == DSE_ARCH_DEEPSEEK) return;
    bool sigmoid = moe->score == DSE_SCORE_SIGMOID;
    moe->grouping = sigmoid ? DSE_GROUPS_BEST_TWO : DSE_GROUPS_BEST;
    if (dse_gguf_keys_have(r, "expert_group_count")) {
        moe->n_groups = dse_gguf_keys_int(r, "expert_group_count", 0, DSE_MAX_EXPERTS, 0);
        if (moe->n_groups > 0)
            moe->n_groups_used = dse_gguf_keys_require(r, "expert_group_used_count", DSE_MAX_EXPERTS);
    } else if (!sigmoid && moe->n_experts == 160 && moe->n_used == 6) {
        /* Conversions from before the keys existed: the numbers of V2 and of V3. */
        moe->n_groups = 8;
        moe->n_groups_used = 3;
    } else if (sigmoid && moe->n_experts == 256 && moe->n_used == 8) {
        moe->n_groups = 8;
        moe->n_groups_used = 4;
    }
}

static void read_experts(struct dse_gguf_keys *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    char key[96];
    moe->n_experts = dse_gguf_keys_int(r, "expert_count", 0, DSE_MAX_EXPERTS, 0);
    if (r->status != DSE_OK || moe->n_experts == 0) return;
    moe->n_used = dse_gguf_keys_require(r, "expert_used_count", DSE_MAX_EXPERTS_USED);
    moe->n_ff = dse_gguf_keys_require(r, "expert_feed_forward_length", DSE_MAX_FF);
    moe->n_shared = dse_gguf_keys_int(r, "expert_shared_count", 0, DSE_MAX_EXPERTS, 0);
    moe->n_dense_layers = dse_gguf_keys_int(r, "leading_dense_block_count", 0, DSE_MAX_LAYERS, 0);
    moe->scale = (float)dse_gguf_keys_number(r, "expert_weights_scale", 1);
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_bool(r->gguf, dse_gguf_keys_name(r, "expert_weights_norm", key), &moe->normalize,
                                      r->err);
    read_gating(r, config);
    if (r->status == DSE_OK && config->arch == DSE_ARCH_DEEPSEEK2 && moe->normalize && !moe->has_bias)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is true, only false is supported with softmax scores", dse_gguf_path(r->gguf),
                                dse_gguf_keys_name(r, "expert_weights_norm", key));
    read_groups(r, config);
}

/* block_count includes the prediction layers; only their tensors tell whether they were kept. */
static void read_mtp(struct dse_gguf_keys *r, struct dse_config *config)
{
    char key[96];
    int n = dse_gguf_keys_int(r, "nextn_predict_layers", 0, DSE_MAX_MTP, 0), all = config->n_layers;
    if (r->status != DSE_OK || n == 0) return;
    if (n >= all) {
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, but there are %d layers in all", dse_gguf_path(r->gguf),
                                dse_gguf_keys_name(r, "nextn_predict_layers", key), n, all);
        return;
    }
    /* A converter that did not count them is understood as well, whether it kept their tensors or not: an uncounted
     * last layer is an ordinary one. */
    char last[64];
    snprintf(last, sizeof last, "blk.%d.attn_norm.weight", all - 1);
    bool ordinary = dse_gguf_tensor(r->gguf, last) != NULL;
    for (int i = all - n; i < all; i++)
        if (dse_weights_has_mtp(r->gguf, NULL, i)) ordinary = false;
    if (!dse_weights_has_mtp(r->gguf, NULL, all) && !ordinary) config->n_layers = all - n;
    if (dse_weights_has_mtp(r->gguf, NULL, config->n_layers)) config->n_mtp_layers = n;
}

void dse_config_gguf_deepseek(struct dse_gguf_keys *r, struct dse_config *config)
{
    if (dse_arch_is_latent(config->arch)) {
        read_latent(r, config);
        read_mtp(r, config);
    }
    read_experts(r, config);
}

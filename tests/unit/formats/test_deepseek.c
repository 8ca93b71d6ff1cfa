/* Models of the DeepSeek family: configurations and tensors of every fixture, twins that must agree, old and new keys, what
 * the generations choose their experts by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "malformed.h"
#include "model/weights.h"
#include "quant/fp8.h"
#include "temp_dir.h"
#include "tiny_deepseek.h"

static struct dse_model_file *open_ok(const char *path)
{
    struct dse_model_file *file;
    struct dse_error err;
    if (dse_model_file_open(path, &file, &err) != DSE_OK) fail_msg("%s", err.message);
    return file;
}

static struct dse_model_file *open_gguf(void **state, struct tiny_gguf *g)
{
    char path[600];
    struct bytes out = {0};
    tiny_gguf_build(g, &out);
    struct malformed_case c = {"deepseek", "", "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    bytes_free(&out);
    tiny_gguf_free(g);
    return open_ok(path);
}

static struct dse_config config_of(void **state, struct tiny_gguf *g)
{
    struct dse_model_file *file = open_gguf(state, g);
    struct dse_config config = file->config;
    dse_model_file_close(file);
    return config;
}

static enum dse_status read_config(const char *changes, struct dse_config *out, struct dse_error *err)
{
    json_t *config = tiny_deepseek_config(), *update = json_loads(changes, 0, NULL);
    assert_non_null(update);
    json_object_update(config, update);
    enum dse_status status = dse_config_from_json(config, NULL, out, err);
    json_decref(config);
    json_decref(update);
    return status;
}

static struct dse_config from_text(const char *changes)
{
    struct dse_config config;
    struct dse_error err;
    if (read_config(changes, &config, &err) != DSE_OK) fail_msg("%s", err.message);
    return config;
}

struct fixture {
    const char *path;
    enum dse_arch arch;
    int layers, mtp, embd, heads, kv_heads, head_dim, ff;
    struct dse_latent_config latent;
    struct dse_moe_config moe;
    struct dse_indexer_config indexer;
    enum dse_rope_pairs pairs;
    double scale; /* of the scores: HF's own formula, computed apart */
    long long parameters, active;
    const char *quantization;
};

/* Numbers of the folders' config.json; parameters counted from the tensor headers. */
static const struct fixture fixtures[] = {
    {"reference/deepseek_v1_moe",
     DSE_ARCH_DEEPSEEK,
     3,
     0,
     96,
     6,
     6,
     16,
     256,
     {0},
     {16, 4, 2, 40, 1, DSE_SCORE_SOFTMAX, DSE_GROUPS_NONE, 1, 1, false, false, 1},
     {0},
     DSE_ROPE_HALF,
     0.25,
     701088,
     375552,
     "bf16"},
    {"reference/gguf/deepseek_v1_moe.gguf",
     DSE_ARCH_DEEPSEEK,
     3,
     0,
     96,
     6,
     6,
     16,
     256,
     {0},
     {16, 4, 2, 40, 1, DSE_SCORE_SOFTMAX, DSE_GROUPS_NONE, 1, 1, false, false, 1},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.25,
     701088,
     375552,
     "bf16"},
    {"reference/deepseek_v2",
     DSE_ARCH_DEEPSEEK2,
     4,
     0,
     128,
     4,
     1,
     48,
     288,
     {64, 0, 32, 16, 24},
     {16, 4, 2, 48, 1, DSE_SCORE_SOFTMAX, DSE_GROUPS_BEST, 4, 2, false, false, 1.7f},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.18989723,
     1490304,
     761344,
     "bf16"},
    {"reference/gguf/deepseek_v2.gguf",
     DSE_ARCH_DEEPSEEK2,
     4,
     0,
     128,
     4,
     1,
     48,
     288,
     {64, 0, 32, 16, 24},
     {16, 4, 2, 48, 1, DSE_SCORE_SOFTMAX, DSE_GROUPS_BEST, 4, 2, false, false, 1.7f},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.18989723,
     1490304,
     761344,
     "bf16"},
    {"reference/deepseek_v3",
     DSE_ARCH_DEEPSEEK2,
     4,
     1,
     128,
     4,
     1,
     48,
     256,
     {64, 48, 32, 16, 32},
     {16, 4, 1, 48, 1, DSE_SCORE_SIGMOID, DSE_GROUPS_BEST_TWO, 4, 2, true, true, 2.5f},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.27046756,
     1410672,
     681712,
     "bf16"},
    {"reference/gguf/deepseek_v3.gguf",
     DSE_ARCH_DEEPSEEK2,
     4,
     0,
     128,
     4,
     1,
     48,
     256,
     {64, 48, 32, 16, 32},
     {16, 4, 1, 48, 1, DSE_SCORE_SIGMOID, DSE_GROUPS_BEST_TWO, 4, 2, true, true, 2.5f},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.27046756,
     1410672,
     681712,
     "bf16"},
    {"reference/deepseek_v3_fp8",
     DSE_ARCH_DEEPSEEK2,
     3,
     0,
     256,
     4,
     1,
     48,
     352,
     {128, 96, 32, 16, 32},
     {8, 2, 1, 144, 1, DSE_SCORE_SIGMOID, DSE_GROUPS_BEST_TWO, 4, 2, true, true, 2.5f},
     {0},
     DSE_ROPE_INTERLEAVED,
     0.27046756,
     2965936,
     1508016,
     "f8_e4m3"},
    {"reference/deepseek_v32",
     DSE_ARCH_DEEPSEEK32,
     3,
     0,
     128,
     4,
     1,
     48,
     256,
     {64, 48, 32, 16, 32},
     {16, 4, 1, 48, 1, DSE_SCORE_SIGMOID, DSE_GROUPS_BEST_TWO, 4, 2, true, true, 2.5f},
     {8, 32, 24},
     DSE_ROPE_INTERLEAVED,
     0.27046756,
     1088944,
     581168,
     "bf16"}};

static void check_layer(const struct dse_model_file *file, int l)
{
    const struct dse_config *c = &file->config;
    const struct dse_layer_tensors *t = &file->layers[l];
    bool latent = c->latent.kv_rank > 0, moe = dse_layer_is_moe(c, l), folder = file->gguf == NULL;
    assert_true(t->attn_norm != NULL && t->ffn_norm != NULL && t->o != NULL);
    assert_int_equal(t->q != NULL, c->latent.q_rank == 0);
    assert_int_equal(t->q_a != NULL && t->q_a_norm != NULL && t->q_b != NULL, c->latent.q_rank > 0);
    assert_int_equal(t->k != NULL && t->v != NULL, !latent);
    assert_int_equal(t->kv_a != NULL && t->kv_a_norm != NULL, latent);
    assert_int_equal(t->kv_b.joined != NULL, latent && folder);
    assert_int_equal(t->kv_b.k_b != NULL && t->kv_b.v_b != NULL, latent && !folder);
    assert_int_equal(t->indexer.q_b != NULL && t->indexer.k_norm_bias != NULL, c->indexer.n_heads > 0);
    assert_int_equal(t->gate != NULL && t->up != NULL && t->down != NULL, !moe);
    assert_int_equal(t->router != NULL && t->experts != NULL && t->shared_down != NULL, moe);
    assert_int_equal(t->router_bias != NULL, moe && c->moe.has_bias);
    assert_int_equal(t->mtp.project != NULL && t->mtp.head_norm != NULL, l >= c->n_layers);
    for (int e = 0; moe && e < c->moe.n_experts; e++) {
        const struct dse_expert_tensors *x = &t->experts[e];
        const struct dse_tensor *const parts[] = {&x->gate, &x->up, &x->down};
        for (int i = 0; i < 3; i++) {
            int rows = i == 2 ? c->n_embd : c->moe.n_ff, columns = i == 2 ? c->moe.n_ff : c->n_embd;
            assert_int_equal(parts[i]->n_dims, 2);
            assert_int_equal(parts[i]->shape[0], rows);
            assert_int_equal(parts[i]->shape[1], columns);
            assert_int_equal(parts[i]->bytes, rows * columns * (c->fp8_blocks ? 1 : 2));
            assert_int_equal(parts[i]->block_scales != NULL, c->fp8_blocks);
        }
    }
}

static void every_fixture_of_the_family_opens_with_all_its_tensors(void **state)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        const struct fixture *f = &fixtures[i];
        struct dse_model_file *file = open_ok(data_path(f->path));
        const struct dse_config *c = &file->config;
        assert_int_equal(c->arch, f->arch);
        assert_int_equal(c->n_layers, f->layers);
        assert_int_equal(c->n_mtp_layers, f->mtp);
        assert_int_equal(c->n_embd, f->embd);
        assert_int_equal(c->n_heads, f->heads);
        assert_int_equal(c->n_kv_heads, f->kv_heads);
        assert_int_equal(c->head_dim, f->head_dim);
        assert_int_equal(c->n_ff, f->ff);
        assert_int_equal(c->n_vocab, 512);
        assert_memory_equal(&c->latent, &f->latent, sizeof c->latent);
        assert_memory_equal(&c->indexer, &f->indexer, sizeof c->indexer);
        assert_int_equal(c->moe.n_experts, f->moe.n_experts);
        assert_int_equal(c->moe.n_used, f->moe.n_used);
        assert_int_equal(c->moe.n_shared, f->moe.n_shared);
        assert_int_equal(c->moe.n_ff, f->moe.n_ff);
        assert_int_equal(c->moe.n_dense_layers, f->moe.n_dense_layers);
        assert_int_equal(c->moe.score, f->moe.score);
        assert_int_equal(c->moe.grouping, f->moe.grouping);
        assert_int_equal(c->moe.n_groups, f->moe.n_groups);
        assert_int_equal(c->moe.n_groups_used, f->moe.n_groups_used);
        assert_int_equal(c->moe.has_bias, f->moe.has_bias);
        assert_int_equal(c->moe.normalize, f->moe.normalize);
        assert_true(c->moe.scale == f->moe.scale);
        assert_int_equal(c->rope.pairs, f->pairs);
        assert_int_equal(c->rope.dimensions, f->latent.kv_rank > 0 ? 16 : f->head_dim);
        float factor, frequencies[512];
        dse_rope_frequencies(&c->rope, NULL, frequencies, &factor);
        assert_true(factor == 1); /* equal magnitudes cancel */
        assert_true(fabs((double)dse_attention_scale(c) - f->scale) < 1e-7);
        assert_int_equal(file->n_parameters, f->parameters);
        assert_int_equal(file->n_active_parameters, f->active);
        assert_int_equal(file->mtp_bytes > 0, f->mtp > 0);
        assert_string_equal(dse_model_file_quantization(file), f->quantization);
        for (int l = 0; l < c->n_layers + c->n_mtp_layers; l++)
            check_layer(file, l);
        dse_model_file_close(file);
    }
}

static void assert_same_bytes(const struct dse_tensor *a, const struct dse_tensor *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
}

/* Experts stacked or one by one, kv_b split or joined: the same numbers. */
static void tensors_of_the_latent_twins_hold_the_same_numbers(void **state)
{
    static const char *const names[][2] = {{"reference/deepseek_v2", "reference/gguf/deepseek_v2.gguf"},
                                           {"reference/deepseek_v3", "reference/gguf/deepseek_v3.gguf"}};
    for (int i = 0; i < 2; i++) {
        struct dse_model_file *a = open_ok(data_path(names[i][0])), *b = open_ok(data_path(names[i][1]));
        const struct dse_latent_config *c = &a->config.latent;
        for (int l = 1; l < 4; l++) {
            const struct dse_layer_tensors *x = &a->layers[l], *y = &b->layers[l];
            assert_same_bytes(x->kv_a, y->kv_a);
            assert_same_bytes(x->o, y->o);
            if (c->q_rank > 0) assert_same_bytes(x->q_b, y->q_b);
            assert_same_bytes(x->shared_up, y->shared_up);
            for (int e = 0; e < a->config.moe.n_experts; e++) {
                assert_same_bytes(&x->experts[e].gate, &y->experts[e].gate);
                assert_same_bytes(&x->experts[e].up, &y->experts[e].up);
                assert_same_bytes(&x->experts[e].down, &y->experts[e].down);
            }
            size_t rank = (size_t)c->kv_rank, nope = (size_t)c->nope, v = (size_t)c->v;
            const uint16_t *joined = x->kv_b.joined->data, *k_b = y->kv_b.k_b->data, *v_b = y->kv_b.v_b->data;
            for (size_t h = 0; h < (size_t)a->config.n_heads; h++) {
                const uint16_t *head = joined + h * (nope + v) * rank;
                for (size_t r = 0; r < rank; r++)
                    for (size_t d = 0; d < nope; d++)
                        assert_int_equal(head[d * rank + r], k_b[(h * rank + r) * nope + d]);
                assert_memory_equal(head + nope * rank, v_b + h * v * rank, v * rank * 2);
            }
        }
        dse_model_file_close(a);
        dse_model_file_close(b);
    }
}

/* The converter orders rows of V1's q and k in pairs, as for llama. */
static void rows_of_v1_queries_are_in_pair_order_in_its_gguf(void **state)
{
    struct dse_model_file *a = open_ok(data_path("reference/deepseek_v1_moe"));
    struct dse_model_file *b = open_ok(data_path("reference/gguf/deepseek_v1_moe.gguf"));
    const struct dse_layer_tensors *x = &a->layers[2], *y = &b->layers[2];
    size_t row = 96 * 2, d = 16;
    for (size_t head = 0; head < 6; head++) {
        for (size_t r = 0; r < d; r++) {
            size_t half = head * d + (r % 2) * (d / 2) + r / 2;
            assert_memory_equal((const char *)y->q->data + (head * d + r) * row, (const char *)x->q->data + half * row,
                                row);
            assert_memory_equal((const char *)y->k->data + (head * d + r) * row, (const char *)x->k->data + half * row,
                                row);
        }
    }
    assert_same_bytes(x->v, y->v);
    assert_same_bytes(&x->experts[15].down, &y->experts[15].down);
    dse_model_file_close(a);
    dse_model_file_close(b);
}

/* Partial blocks on the edge: 144 rows need two, the second one with its own scale. */
static void fp8_matrices_carry_the_scale_of_every_block(void **state)
{
    struct dse_model_file *file = open_ok(data_path("reference/deepseek_v3_fp8"));
    const struct dse_tensor *scales = dse_safetensors_tensor(file->safetensors,
                                                             "model.layers.1.mlp.experts.5.gate_proj.weight_scale_inv");
    const struct dse_tensor *gate = &file->layers[1].experts[5].gate;
    assert_int_equal(gate->type, DSE_TYPE_F8_E4M3);
    assert_ptr_equal(gate->block_scales, scales->data);
    float row[256];
    for (size_t r = 0; r < gate->shape[0]; r += 13) {
        dse_fp8_decode_rows(gate->data, gate->block_scales, gate->shape[1], r, 1, row);
        for (size_t c = 0; c < 256; c++) {
            float scale;
            memcpy(&scale, (const char *)scales->data + 4 * (r / 128 * 2 + c / 128), 4);
            assert_true(row[c] == dse_f8_e4m3_to_f32(((const uint8_t *)gate->data)[r * 256 + c]) * scale);
        }
    }
    assert_null(file->token_embd->block_scales);
    assert_null(file->layers[1].router->block_scales);
    dse_model_file_close(file);
}

static void the_tiny_model_opens_in_both_formats(void **state)
{
    static struct tiny_folder folder;
    struct tiny_gguf g;
    tiny_deepseek_gguf(&g, "deepseek32");
    struct dse_model_file *a = open_gguf(state, &g);
    tiny_deepseek_folder(&folder);
    struct bytes weights = {0};
    tiny_folder_build(&folder, &weights);
    json_t *config = tiny_deepseek_config();
    char *text = json_dumps(config, 0), path[600];
    struct malformed_case c = {
        "tiny_folder",
        "",
        "",
        {{"config.json", text, strlen(text)}, {"model.safetensors", weights.data, weights.length}},
        2};
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    struct dse_model_file *b = open_ok(path);
    assert_int_equal(a->config.n_layers, 2);
    assert_int_equal(a->config.n_mtp_layers, 1);
    assert_int_equal(b->config.n_mtp_layers, 1);
    assert_int_equal(a->n_parameters, b->n_parameters);
    assert_int_equal(a->n_active_parameters, b->n_active_parameters);
    assert_memory_equal(&a->config.latent, &b->config.latent, sizeof a->config.latent);
    assert_memory_equal(&a->config.indexer, &b->config.indexer, sizeof a->config.indexer);
    assert_true(a->config.moe.scale == b->config.moe.scale);
    assert_int_equal(a->config.moe.grouping, b->config.moe.grouping);
    for (int l = 0; l < 3; l++) {
        assert_non_null(a->layers[l].kv_b.k_b);
        assert_non_null(b->layers[l].kv_b.joined);
        assert_non_null(b->layers[l].kv_b.joined->block_scales);
        assert_int_equal(a->layers[l].mtp.embd_norm != NULL, l == 2);
        assert_int_equal(b->layers[l].mtp.embd_norm != NULL, l == 2);
    }
    dse_model_file_close(a);
    dse_model_file_close(b);
    dse_json_free_text(text);
    json_decref(config);
    bytes_free(&weights);
}

static void what_lies_beside_the_language_model_in_a_folder_is_passed_over(void **state)
{
    static const char *const beside[] = {"model.layers.0.self_attn.rotary_emb.inv_freq", "vision_model.blocks.0.weight",
                                         "score.weight", "model.layers.2.embed_tokens.weight",
                                         "model.layers.2.shared_head.head.weight"};
    static struct tiny_folder folder;
    struct bytes weights = {0};
    tiny_deepseek_folder(&folder);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        struct tiny_part *part = &folder.parts[folder.n_parts++];
        *part = (struct tiny_part){.dtype = "BF16", .n_dims = 1, .shape = {32}};
        snprintf(part->name, sizeof part->name, "%s", beside[i]);
    }
    tiny_folder_build(&folder, &weights);
    for (int mtp = 0; mtp < 2; mtp++) { /* the prediction layer may be there without being counted */
        json_t *config = tiny_deepseek_config();
        json_object_set_new(config, "num_nextn_predict_layers", json_integer(mtp));
        json_object_set_new(config, "tie_word_embeddings", json_true()); /* lm_head is a copy */
        char *text = json_dumps(config, 0), path[600];
        struct malformed_case c = {
            mtp ? "beside_counted" : "beside",
            "",
            "",
            {{"config.json", text, strlen(text)}, {"model.safetensors", weights.data, weights.length}},
            2};
        assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
        struct dse_model_file *file = open_ok(path);
        assert_int_equal(file->config.n_mtp_layers, mtp);
        assert_ptr_equal(file->output, file->token_embd);
        dse_model_file_close(file);
        dse_json_free_text(text);
        json_decref(config);
    }
    bytes_free(&weights);
}

static void fused_and_joined_tensors_of_a_gguf_are_read(void **state)
{
    struct tiny_gguf g;
    tiny_deepseek_gguf(&g, "deepseek2");
    for (int l = 0; l < 3; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", l);
        tiny_remove_tensor(&g, name);
        snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", l);
        tiny_remove_tensor(&g, name);
        snprintf(name, sizeof name, "blk.%d.attn_kv_b.weight", l);
        tiny_add_tensor(&g, name, 8, 32, 128);
        if (l == 0) continue;
        snprintf(name, sizeof name, "blk.%d.ffn_gate_exps.weight", l);
        tiny_remove_tensor(&g, name);
        snprintf(name, sizeof name, "blk.%d.ffn_up_exps.weight", l);
        tiny_remove_tensor(&g, name);
        snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", l);
        struct tiny_tensor *t = tiny_add_tensor(&g, name, 8, 32, 64);
        t->n_dims = 3;
        t->dims[2] = 4;
        t->data_bytes *= 4;
    }
    struct dse_model_file *file = open_gguf(state, &g);
    const struct dse_layer_tensors *t = &file->layers[1];
    assert_null(t->kv_b.k_b);
    assert_int_equal(t->kv_b.joined->shape[0], 128);
    const char *stack = dse_gguf_tensor(file->gguf, "blk.1.ffn_gate_up_exps.weight")->data;
    for (int e = 0; e < 4; e++) {
        assert_ptr_equal(t->experts[e].gate.data, stack + e * 64 * 34);
        assert_ptr_equal(t->experts[e].up.data, stack + e * 64 * 34 + 32 * 34);
        assert_int_equal(t->experts[e].up.bytes, 32 * 34);
    }
    dse_model_file_close(file);
}

static void keys_from_before_the_split_give_the_same_configuration(void **state)
{
    struct tiny_gguf g;
    tiny_deepseek_gguf(&g, "deepseek2");
    struct dse_config new = config_of(state, &g);
    tiny_deepseek_gguf(&g, "deepseek2");
    tiny_remove(&g, "deepseek2.attention.key_length_mla");
    tiny_remove(&g, "deepseek2.attention.value_length_mla");
    tiny_set_u32(&g, "deepseek2.attention.key_length", 40);
    tiny_set_u32(&g, "deepseek2.attention.value_length", 32);
    tiny_set_u32(&g, "deepseek2.attention.head_count_kv", 2);
    struct dse_config old = config_of(state, &g);
    assert_memory_equal(&new.latent, &old.latent, sizeof new.latent);
    assert_int_equal(old.n_kv_heads, 1);
    assert_int_equal(old.head_dim, 40);
    assert_true(fabs(new.rope.mscale_all_dim - 1) < 1e-6 && new.rope.mscale == new.rope.mscale_all_dim);
    /* Without the multiplier neither cos and sin nor the scores are changed. */
    tiny_deepseek_gguf(&g, "deepseek2");
    tiny_remove(&g, "deepseek2.rope.scaling.yarn_log_multiplier");
    struct dse_config plain = config_of(state, &g);
    float factor, frequencies[4];
    dse_rope_frequencies(&plain.rope, NULL, frequencies, &factor);
    assert_true(factor == 1);
    assert_true(fabsf(dse_attention_scale(&plain) * sqrtf(40) - 1) < 1e-6f);
}

static void prediction_layers_are_found_by_their_tensors(void **state)
{
    struct tiny_gguf g;
    tiny_deepseek_gguf(&g, "deepseek2"); /* a converter that did not count them */
    tiny_set_u32(&g, "deepseek2.block_count", 2);
    struct dse_config c = config_of(state, &g);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.n_mtp_layers, 1);
    tiny_deepseek_gguf(&g, "deepseek2"); /* dropped after the conversion */
    for (int i = g.n_tensors - 1; i >= 0; i--)
        if (strncmp(g.tensors[i].name, "blk.2.", 6) == 0) tiny_remove_tensor(&g, g.tensors[i].name);
    c = config_of(state, &g);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.n_mtp_layers, 0);
}

static void groups_follow_the_generation(void **state)
{
    struct dse_config c = from_text("{\"n_group\": 1, \"topk_group\": 1}");
    assert_int_equal(c.moe.grouping, DSE_GROUPS_NONE);
    c = from_text("{\"topk_group\": 2}"); /* every group: no choice */
    assert_int_equal(c.moe.grouping, DSE_GROUPS_NONE);
    c = from_text("{\"model_type\": \"deepseek_v2\", \"topk_method\": \"group_limited_greedy\", \"scoring_func\": "
                  "\"softmax\", \"norm_topk_prob\": false, \"routed_scaling_factor\": null}");
    assert_int_equal(c.moe.grouping, DSE_GROUPS_BEST);
    assert_int_equal(c.moe.score, DSE_SCORE_SOFTMAX);
    assert_false(c.moe.has_bias || c.moe.normalize);
    assert_true(c.moe.scale == 1);
    c = from_text("{\"model_type\": \"deepseek_v2\", \"topk_method\": \"greedy\", \"scoring_func\": \"softmax\", "
                  "\"norm_topk_prob\": null}");
    assert_int_equal(c.moe.grouping, DSE_GROUPS_NONE);
    c = from_text("{\"topk_method\": null, \"scoring_func\": null, \"norm_topk_prob\": null, \"moe_layer_freq\": null, "
                  "\"routed_scaling_factor\": null}");
    assert_true(c.moe.has_bias && c.moe.normalize && c.moe.scale == 2.5f);
    assert_int_equal(c.moe.score, DSE_SCORE_SIGMOID);
    c = from_text("{\"norm_topk_prob\": false}");
    assert_false(c.moe.normalize);
}

/* Only the configuration: a file with the sizes of V2 and V3 would be large. */
static struct dse_moe_config routing(void **state, int experts, int used, int gating)
{
    char path[600];
    struct tiny_gguf g;
    struct bytes out = {0};
    struct dse_gguf *gguf;
    struct dse_config config;
    struct dse_error err;
    tiny_deepseek_gguf(&g, "deepseek2");
    tiny_remove(&g, "deepseek2.expert_group_count");
    tiny_remove(&g, "deepseek2.expert_group_used_count");
    if (gating != 2) tiny_remove(&g, "deepseek2.expert_weights_norm");
    tiny_set_u32(&g, "deepseek2.expert_count", (uint32_t)experts);
    tiny_set_u32(&g, "deepseek2.expert_used_count", (uint32_t)used);
    if (gating < 0)
        tiny_remove(&g, "deepseek2.expert_gating_func");
    else
        tiny_set_u32(&g, "deepseek2.expert_gating_func", (uint32_t)gating);
    tiny_gguf_build(&g, &out);
    struct malformed_case c = {"routing", "", "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    bytes_free(&out);
    tiny_gguf_free(&g);
    if (dse_gguf_open(path, &gguf, &err) != DSE_OK) fail_msg("%s", err.message);
    if (dse_config_from_gguf(gguf, &config, &err) != DSE_OK) fail_msg("%s", err.message);
    dse_gguf_close(gguf);
    return config.moe;
}

static void old_gguf_files_get_the_groups_that_they_were_trained_with(void **state)
{
    static const int unsaid[] = {-1, 0, 1};
    for (int i = 0; i < 3; i++) { /* V2: softmax, said or not */
        struct dse_moe_config v2 = routing(state, 160, 6, unsaid[i]);
        assert_int_equal(v2.score, DSE_SCORE_SOFTMAX);
        assert_int_equal(v2.grouping, DSE_GROUPS_BEST);
        assert_int_equal(v2.n_groups, 8);
        assert_int_equal(v2.n_groups_used, 3);
        assert_false(v2.has_bias);
    }
    struct dse_moe_config v3 = routing(state, 256, 8, 2);
    assert_int_equal(v3.grouping, DSE_GROUPS_BEST_TWO);
    assert_int_equal(v3.n_groups, 8);
    assert_int_equal(v3.n_groups_used, 4);
    struct dse_moe_config lite = routing(state, 64, 6, 1);
    assert_int_equal(lite.grouping, DSE_GROUPS_NONE);
    assert_int_equal(routing(state, 160, 6, 2).grouping, DSE_GROUPS_NONE);
    assert_int_equal(routing(state, 384, 8, 2).grouping, DSE_GROUPS_NONE);
}

static void what_a_newer_config_adds_does_not_disturb(void **state)
{
    /* transformers 5 writes head_dim as the rotated part, and its own style of rope. */
    struct dse_config c = from_text(
        "{\"head_dim\": 8, \"qk_head_dim\": 40, \"rope_interleave\": true, \"rope_scaling\": "
        "null, \"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 10000.0, "
        "\"rope_type\": \"yarn\", \"type\": \"yarn\", \"factor\": 4.0, \"mscale\": 1.0, "
        "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 64}, "
        "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
        "\"scale_fmt\": \"ue8m0\", \"weight_block_size\": [128, 128]}}");
    assert_int_equal(c.head_dim, 40);
    assert_int_equal(c.rope.scaling, DSE_ROPE_YARN);
    assert_true(c.rope.mscale_all_dim == 1);
    assert_true(c.fp8_blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_of_the_family_opens_with_all_its_tensors),
        cmocka_unit_test(tensors_of_the_latent_twins_hold_the_same_numbers),
        cmocka_unit_test(rows_of_v1_queries_are_in_pair_order_in_its_gguf),
        cmocka_unit_test(fp8_matrices_carry_the_scale_of_every_block),
        cmocka_unit_test(the_tiny_model_opens_in_both_formats),
        cmocka_unit_test(what_lies_beside_the_language_model_in_a_folder_is_passed_over),
        cmocka_unit_test(fused_and_joined_tensors_of_a_gguf_are_read),
        cmocka_unit_test(keys_from_before_the_split_give_the_same_configuration),
        cmocka_unit_test(prediction_layers_are_found_by_their_tensors),
        cmocka_unit_test(groups_follow_the_generation),
        cmocka_unit_test(old_gguf_files_get_the_groups_that_they_were_trained_with),
        cmocka_unit_test(what_a_newer_config_adds_does_not_disturb),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

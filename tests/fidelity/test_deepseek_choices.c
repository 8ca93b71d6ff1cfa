/* Which experts a row is routed to and which keys the indexer chooses, layer by layer, against Hugging Face. Logits that are
 * close do not show a wrong pick that happened to matter little; these do.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/kv_pool.h"
#include "engine_support.h"
#include "reference.h"

#define CHUNK 100 /* not more than DSE_LATENT_ROWS, so that the choice of all rows is still there to look at */

static const struct {
    const char *model, *reference;
} models[] = {
    {"deepseek_v1_moe", "deepseek_v1_moe/reference.safetensors"},
    {"deepseek_v2", "deepseek_v2/reference.safetensors"},
    {"deepseek_v3", "deepseek_v3/reference.safetensors"},
    {"deepseek_v3_fp8", "deepseek_v3_fp8/reference.safetensors"},
    {"deepseek_v32", "deepseek_v32/reference.safetensors"},
    {"gguf/deepseek_v1_moe.gguf", "deepseek_v1_moe/reference.safetensors"},
    {"gguf/deepseek_v2.gguf", "deepseek_v2/reference.safetensors"},
    {"gguf/deepseek_v3.gguf", "deepseek_v3/reference.safetensors"},
};

static void check_routes(const struct reference *reference, const char *model, int prompt, int moe_layer, int first,
                         int n, const struct dse_routes *routes)
{
    char name[64];
    int count;
    (void)snprintf(name, sizeof name, "route.%d.experts", moe_layer);
    const int32_t *experts = reference_i32(reference, prompt, name, &count) + first * routes->n_used;
    (void)snprintf(name, sizeof name, "route.%d.weights", moe_layer);
    const float *weights = reference_f32(reference, prompt, name, &count) + first * routes->n_used;
    for (int i = 0; i < n * routes->n_used; i++) {
        if (routes->experts[i] != experts[i])
            fail_msg("%s prompt %d, MoE layer %d, row %d: expert %d, Hugging Face chose %d", model, prompt, moe_layer,
                     first + i / routes->n_used, routes->experts[i], experts[i]);
        if (!(fabsf(routes->weights[i] - weights[i]) <= 1e-4f))
            fail_msg("%s prompt %d, MoE layer %d, row %d: weight %g instead of %g", model, prompt, moe_layer,
                     first + i / routes->n_used, (double)routes->weights[i], (double)weights[i]);
    }
}

static bool listed(const int32_t *keys, int n, int32_t key)
{
    for (int i = 0; i < n; i++)
        if (keys[i] == key) return true;
    return false;
}

static void check_keys(const struct reference *reference, const char *model, int layer, int n_rows, int first, int n,
                       const struct dse_key_choice *choice)
{
    char name[64];
    int count;
    (void)snprintf(name, sizeof name, "indexer.%d.selected", layer);
    const int32_t *selected = reference_i32(reference, 2, name, &count);
    const int width = count / n_rows; /* top_k, but no more than the prompt has tokens */
    for (int m = 0; m < n; m++) {
        const int row = first + m, n_keys = row + 1 < choice->top_k ? row + 1 : choice->top_k;
        const int32_t *keys = choice->keys + (size_t)m * (size_t)choice->top_k;
        for (int i = 0; i < n_keys; i++) {
            if (i > 0 && keys[i] <= keys[i - 1]) fail_msg("%s row %d: keys do not ascend", model, row);
            if (!listed(selected + row * width, width, keys[i]))
                fail_msg("%s layer %d row %d: key %d was not chosen by Hugging Face", model, layer, row, keys[i]);
        }
    }
}

static void walk_layers(struct dse_model *model, const struct reference *reference, const char *name, int prompt)
{
    struct dse_error error = {0};
    struct dse_kv_pool pool = {0};
    struct dse_forward forward = {0};
    int32_t blocks[16];
    struct dse_kv_sequence sequence = {.blocks = blocks, .max_blocks = 16};
    const struct dse_config *config = model->weights.config;
    int n_ids;
    const int32_t *ids = reference_i32(reference, prompt, "ids", &n_ids);
    assert_int_equal(dse_kv_pool_init(&pool, &model->kv_layout, 16, &error), DSE_OK);
    assert_int_equal(dse_forward_init(&forward, model, CHUNK, 0, &error), DSE_OK);
    for (int first = 0; first < n_ids; first += CHUNK) {
        const int n = n_ids - first < CHUNK ? n_ids - first : CHUNK;
        assert_true(dse_kv_extend(&pool, &sequence, first + n));
        dse_forward_clear(&forward);
        for (int i = 0; i < n; i++)
            dse_forward_push(&forward, ids[first + i], first + i, dse_kv_view(&pool, &sequence));
        for (int l = 0; l < config->n_layers; l++) {
            dse_forward_deepseek(&forward, &pool.layout, l, l + 1);
            if (dse_layer_is_moe(config, l))
                check_routes(reference, name, prompt, l - config->moe.n_dense_layers, first, n, &forward.routes);
            if (config->indexer.n_heads > 0 && prompt == 2)
                check_keys(reference, name, l, n_ids, first, n, &forward.choice);
        }
        sequence.length += n;
    }
    dse_forward_deinit(&forward);
    dse_kv_pool_deinit(&pool);
}

static void check_choices(const char *name, const char *reference_name)
{
    struct dse_model *model = open_reference(name, DSE_COMPUTE_F32, 2);
    struct reference *reference = reference_open(reference_name);
    for (int prompt = 1; prompt < 3; prompt++)
        walk_layers(model, reference, name, prompt);
    reference_close(reference);
    dse_model_unref(model);
}

static void experts_and_keys_are_those_of_hugging_face(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_choices(models[i].model, models[i].reference);
}

static void experts_and_keys_of_unusual_shapes_are_those_of_hugging_face(void **state)
{
    (void)state;
    char path[64];
    for (int i = 0; i < reference_n_variants; i++) {
        (void)snprintf(path, sizeof path, "%s/reference.safetensors", reference_variants[i]);
        check_choices(reference_variants[i], path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_and_keys_are_those_of_hugging_face),
        cmocka_unit_test(experts_and_keys_of_unusual_shapes_are_those_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

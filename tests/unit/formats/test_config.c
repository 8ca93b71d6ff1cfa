/* Hyper-parameters: both formats agree, both styles of config.json, old and new GGUF keys, defaults, warnings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/weights.h"
#include "temp_dir.h"
#include "tiny_model.h"

static struct dse_model_file *open_ok(const char *path)
{
    struct dse_model_file *file;
    struct dse_error err;
    if (dse_model_file_open(path, &file, &err) != DSE_OK) fail_msg("%s", err.message);
    return file;
}

static struct dse_config from_text(const char *fields, const char *generation)
{
    struct dse_config config;
    struct dse_error err;
    json_t *object = tiny_config(), *changes = json_loads(fields, 0, NULL);
    assert_non_null(changes);
    json_object_update(object, changes);
    json_t *second = generation != NULL ? json_loads(generation, 0, NULL) : NULL;
    if (dse_config_from_json(object, second, &config, &err) != DSE_OK) fail_msg("%s", err.message);
    json_decref(object);
    json_decref(changes);
    json_decref(second);
    return config;
}

/* Opens the tiny GGUF and gives its configuration. */
static struct dse_config from_gguf(void **state, struct tiny_gguf *g)
{
    char path[512];
    struct bytes out = {0};
    struct dse_gguf *gguf;
    struct dse_config config;
    struct dse_error err;
    tiny_gguf_build(g, &out);
    snprintf(path, sizeof path, "%s/config.gguf", temp_dir(*state));
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(out.data, 1, out.length, f), out.length);
    fclose(f);
    if (dse_gguf_open(path, &gguf, &err) != DSE_OK) fail_msg("%s", err.message);
    if (dse_config_from_gguf(gguf, &config, &err) != DSE_OK) fail_msg("%s", err.message);
    dse_gguf_close(gguf);
    bytes_free(&out);
    tiny_gguf_free(g);
    return config;
}

static bool same_rope(const struct dse_rope_config *a, const struct dse_rope_config *b)
{
    return a->theta == b->theta && a->dimensions == b->dimensions && a->pairs == b->pairs && a->scaling == b->scaling &&
           a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original_context == b->original_context &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor &&
           a->mscale == b->mscale && a->mscale_all_dim == b->mscale_all_dim;
}

static void gguf_and_its_hugging_face_twin_give_the_same_configuration(void **state)
{
    struct dse_model_file *a = open_ok(data_path("reference/llama_linear"));
    struct dse_model_file *b = open_ok(data_path("reference/gguf/llama_linear.gguf"));
    const struct dse_config *x = &a->config, *y = &b->config;
    assert_int_equal(x->arch, y->arch);
    assert_string_equal(x->arch_name, y->arch_name);
    assert_int_equal(x->n_layers, y->n_layers);
    assert_int_equal(x->n_embd, y->n_embd);
    assert_int_equal(x->n_heads, y->n_heads);
    assert_int_equal(x->n_kv_heads, y->n_kv_heads);
    assert_int_equal(x->head_dim, y->head_dim);
    assert_int_equal(x->n_ff, y->n_ff);
    assert_int_equal(x->n_vocab, y->n_vocab);
    assert_int_equal(x->context_length, y->context_length);
    assert_true(x->rms_eps == y->rms_eps);
    assert_int_equal(x->tied_embeddings, y->tied_embeddings);
    assert_int_equal(x->qkv_bias, y->qkv_bias);
    assert_int_equal(x->qk_norm, y->qk_norm);
    assert_int_equal(x->n_stop_tokens, 1);
    assert_int_equal(y->n_stop_tokens, 1);
    assert_int_equal(x->stop_tokens[0], y->stop_tokens[0]);
    assert_string_equal(x->name, "llama_linear");
    assert_string_equal(y->name, "llama_linear");
    assert_string_equal(x->basename, y->basename);
    assert_true(x->rope.theta == y->rope.theta && x->rope.theta == 100000);
    assert_int_equal(x->rope.dimensions, y->rope.dimensions);
    assert_int_equal(x->rope.scaling, DSE_ROPE_LINEAR);
    assert_int_equal(y->rope.scaling, DSE_ROPE_LINEAR);
    assert_true(x->rope.factor == 4 && y->rope.factor == 4);
    assert_int_equal(x->rope.original_context, y->rope.original_context);
    assert_int_equal(x->rope.pairs, DSE_ROPE_HALF);
    assert_int_equal(y->rope.pairs, DSE_ROPE_INTERLEAVED);
    assert_int_equal(a->n_parameters, b->n_parameters);
    dse_model_file_close(a);
    dse_model_file_close(b);
}

static void both_styles_of_config_json_are_read(void **state)
{
    struct dse_config old = from_text("{\"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", "
                                      "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                                      "\"original_max_position_embeddings\": 32}}",
                                      NULL);
    struct dse_config new = from_text("{\"rope_theta\": null, \"rope_scaling\": null, \"rope_parameters\": "
                                      "{\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 8, "
                                      "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                                      "\"original_max_position_embeddings\": 32}}",
                                      NULL);
    assert_true(same_rope(&old.rope, &new.rope));
    assert_int_equal(old.rope.scaling, DSE_ROPE_LLAMA3);
    assert_int_equal(old.rope.original_context, 32);
    assert_int_equal(old.context_length, 64);
    new = from_text("{\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}}", NULL);
    assert_int_equal(new.rope.scaling, DSE_ROPE_NONE);
    assert_true(new.rope.theta == 1e6);
    new = from_text("{\"rope_theta\": 2000, \"rope_parameters\": {\"rope_type\": \"default\"}}", NULL);
    assert_true(new.rope.theta == 2000);
    /* Both at once, as some tools write them, and one of the two empty. */
    new = from_text("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": null}, \"rope_parameters\": "
                    "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"rope_theta\": 3000, \"beta_fast\": 16}}",
                    NULL);
    assert_int_equal(new.rope.scaling, DSE_ROPE_YARN);
    assert_true(new.rope.theta == 3000 && new.rope.beta_fast == 16);
    new = from_text("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": {}}", NULL);
    assert_int_equal(new.rope.scaling, DSE_ROPE_YARN);
    new = from_text("{\"rope_scaling\": {}, \"rope_parameters\": {\"type\": \"yarn\", \"factor\": 4}}", NULL);
    assert_int_equal(new.rope.scaling, DSE_ROPE_YARN);
}

static void absent_fields_of_config_json_take_the_defaults_of_the_class(void **state)
{
    struct dse_config c = from_text("{\"rms_norm_eps\": null, \"rope_theta\": null, \"num_key_value_heads\": null, "
                                    "\"head_dim\": null, \"tie_word_embeddings\": null, \"hidden_act\": null, "
                                    "\"eos_token_id\": null, \"auto_map\": {\"AutoConfig\": \"evil.Evil\"}, "
                                    "\"sliding_window\": 4096, \"layer_types\": [\"full_attention\"]}",
                                    NULL);
    assert_true(c.rms_eps == 1e-6f && c.rope.theta == 10000);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.rope.dimensions, 8);
    assert_false(c.tied_embeddings);
    assert_int_equal(c.n_stop_tokens, 0);
    assert_string_equal(c.basename, "");
    c = from_text("{\"head_dim\": 16, \"_name_or_path\": \"deepseek-ai/Base\"}", NULL);
    assert_int_equal(c.head_dim, 16);
    assert_string_equal(c.basename, "deepseek-ai/Base");
}

static void stop_tokens_are_the_union_of_both_files(void **state)
{
    struct dse_config c = from_text("{\"eos_token_id\": 2}", "{\"eos_token_id\": [7, 2, 31]}");
    assert_int_equal(c.n_stop_tokens, 3);
    assert_int_equal(c.stop_tokens[0], 2);
    assert_int_equal(c.stop_tokens[1], 7);
    assert_int_equal(c.stop_tokens[2], 31);
    c = from_text("{\"eos_token_id\": [3, 4]}", "{\"eos_token_id\": null, \"temperature\": 0.6}");
    assert_int_equal(c.n_stop_tokens, 2);
}

static void yarn_keys_are_read_and_attn_factor_is_not(void **state)
{
    struct dse_config c = from_text("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"attn_factor\": 0.8782, "
                                    "\"original_max_position_embeddings\": 16, \"beta_fast\": 16, \"beta_slow\": 2, "
                                    "\"mscale\": 0.707, \"mscale_all_dim\": 0.7}}",
                                    NULL);
    assert_int_equal(c.rope.scaling, DSE_ROPE_YARN);
    assert_true(c.rope.attention_factor == 0 && c.rope.beta_fast == 16 && c.rope.beta_slow == 2);
    assert_true(c.rope.mscale == 0.707 && c.rope.mscale_all_dim == 0.7);
    assert_int_equal(c.context_length, 64);
    /* A context stated before the scaling is extended by it. */
    c = from_text("{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"attention_factor\": 1.5}}", NULL);
    assert_int_equal(c.rope.original_context, 64);
    assert_int_equal(c.context_length, 256);
    assert_true(c.rope.attention_factor == 1.5 && c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
}

static void gguf_old_and_new_scaling_keys_mean_the_same(void **state)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_set_f32(&g, "llama.rope.scale_linear", 4);
    struct dse_config old = from_gguf(state, &g);
    tiny_gguf_init(&g);
    tiny_set_string(&g, "llama.rope.scaling.type", "linear");
    tiny_set_f32(&g, "llama.rope.scaling.factor", 4);
    struct dse_config new = from_gguf(state, &g);
    assert_int_equal(old.rope.scaling, DSE_ROPE_LINEAR);
    assert_true(old.rope.factor == 4);
    assert_true(same_rope(&old.rope, &new.rope));
    tiny_gguf_init(&g);
    tiny_set_string(&g, "llama.rope.scaling.type", "none");
    tiny_set_f32(&g, "llama.rope.scaling.factor", 4);
    assert_int_equal(from_gguf(state, &g).rope.scaling, DSE_ROPE_NONE);
    tiny_gguf_init(&g);
    tiny_set_f32(&g, "llama.rope.scale_linear", 0);
    assert_int_equal(from_gguf(state, &g).rope.scaling, DSE_ROPE_NONE);
}

static void gguf_yarn_honours_betas_and_ignores_the_attention_factor(void **state)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_set_string(&g, "llama.rope.scaling.type", "yarn");
    tiny_set_f32(&g, "llama.rope.scaling.factor", 4);
    tiny_set_u32(&g, "llama.rope.scaling.original_context_length", 16);
    tiny_set_f32(&g, "llama.rope.scaling.yarn_attn_factor", 0.5f);
    tiny_set_f32(&g, "llama.rope.scaling.yarn_beta_fast", 16);
    struct dse_config c = from_gguf(state, &g);
    assert_int_equal(c.rope.scaling, DSE_ROPE_YARN);
    assert_int_equal(c.rope.original_context, 16);
    assert_true(c.rope.beta_fast == 16 && c.rope.beta_slow == 1 && c.rope.attention_factor == 0);
    assert_int_equal(c.context_length, 64);
}

static void gguf_vocabulary_comes_from_the_tokens_without_its_key(void **state)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_remove(&g, "llama.vocab_size");
    tiny_remove(&g, "llama.attention.head_count_kv");
    tiny_remove(&g, "llama.attention.key_length");
    tiny_remove(&g, "llama.attention.value_length");
    tiny_remove(&g, "llama.rope.dimension_count");
    tiny_remove(&g, "llama.rope.freq_base");
    tiny_set_u32(&g, "tokenizer.ggml.eot_token_id", 5);
    tiny_set_string(&g, "general.base_model.0.name", "Parent");
    tiny_set_string(&g, "general.name", "A\x01 name \xC3\xA9 \xFF!");
    struct dse_config c = from_gguf(state, &g);
    assert_int_equal(c.n_vocab, 32);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.rope.dimensions, 8);
    assert_true(c.rope.theta == 10000);
    assert_int_equal(c.n_stop_tokens, 2);
    assert_int_equal(c.stop_tokens[1], 5);
    assert_string_equal(c.basename, "Parent");
    assert_string_equal(c.name, "A name \xC3\xA9 !");
    tiny_gguf_init(&g);
    tiny_set_string(&g, "general.base_model.0.name", "Parent");
    tiny_set_string(&g, "general.basename", "Line");
    assert_string_equal(from_gguf(state, &g).basename, "Parent");
    tiny_gguf_init(&g);
    tiny_set_string(&g, "general.basename", "Line");
    assert_string_equal(from_gguf(state, &g).basename, "Line");
}

static char logged[2048];

static void keep_line(const char *line, size_t bytes)
{
    snprintf(logged, sizeof logged, "%.*s", (int)bytes, line);
}

/* Whether the warning comes. */
static bool warns(void **state, uint32_t context, float theta, bool scaled)
{
    struct tiny_gguf g;
    logged[0] = '\0';
    dse_log_to(keep_line);
    tiny_gguf_init(&g);
    tiny_set_u32(&g, "llama.context_length", context);
    tiny_set_f32(&g, "llama.rope.freq_base", theta);
    if (scaled) tiny_set_f32(&g, "llama.rope.scale_linear", 4);
    from_gguf(state, &g);
    dse_log_to(NULL);
    return strstr(logged, "DeepSeek-Coder") != NULL;
}

static void very_old_coder_conversions_are_warned_about(void **state)
{
    assert_true(warns(state, 16384, 100000, false));
    assert_false(warns(state, 16384, 100000, true));
    assert_false(warns(state, 4096, 100000, false));
    assert_false(warns(state, 16384, 10000, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_and_its_hugging_face_twin_give_the_same_configuration),
        cmocka_unit_test(both_styles_of_config_json_are_read),
        cmocka_unit_test(absent_fields_of_config_json_take_the_defaults_of_the_class),
        cmocka_unit_test(stop_tokens_are_the_union_of_both_files),
        cmocka_unit_test(yarn_keys_are_read_and_attn_factor_is_not),
        cmocka_unit_test(gguf_old_and_new_scaling_keys_mean_the_same),
        cmocka_unit_test(gguf_yarn_honours_betas_and_ignores_the_attention_factor),
        cmocka_unit_test(gguf_vocabulary_comes_from_the_tokens_without_its_key),
        cmocka_unit_test(very_old_coder_conversions_are_warned_about),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

/* Opening whole models: every fixture in both formats, tensors under their fields, templates, text-only opening. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "malformed.h"
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

static struct dse_model_file *open_text_ok(const char *path)
{
    struct dse_model_file *file;
    struct dse_error err;
    if (dse_model_file_open_text(path, &file, &err) != DSE_OK) fail_msg("%s", err.message);
    return file;
}

static void every_fixture_opens_with_all_its_tensors(void **state)
{
    static const struct {
        const char *path;
        enum dse_arch arch;
        int layers, embd, heads, kv_heads, head_dim, ff, vocab;
        bool tied;
        long long parameters;
    } fixtures[] = {
        {"reference/llama_linear", DSE_ARCH_LLAMA, 3, 128, 8, 8, 16, 352, 512, false, 734080},
        {"reference/gguf/llama_linear.gguf", DSE_ARCH_LLAMA, 3, 128, 8, 8, 16, 352, 512, false, 734080},
        {"reference/llama_llama3", DSE_ARCH_LLAMA, 3, 256, 4, 2, 64, 512, 256, false, 1902336},
        {"reference/gguf/llama_llama3.q4_k_m.gguf", DSE_ARCH_LLAMA, 3, 256, 4, 2, 64, 512, 256, false, 1902336},
        {"reference/qwen2_bias", DSE_ARCH_QWEN2, 4, 128, 4, 2, 32, 320, 768, true, 788608},
        {"reference/qwen3_yarn", DSE_ARCH_QWEN3, 3, 128, 4, 2, 64, 320, 512, false, 795904}};
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        struct dse_model_file *file = open_ok(data_path(fixtures[i].path));
        const struct dse_config *c = &file->config;
        assert_int_equal(c->arch, fixtures[i].arch);
        assert_int_equal(c->n_layers, fixtures[i].layers);
        assert_int_equal(c->n_embd, fixtures[i].embd);
        assert_int_equal(c->n_heads, fixtures[i].heads);
        assert_int_equal(c->n_kv_heads, fixtures[i].kv_heads);
        assert_int_equal(c->head_dim, fixtures[i].head_dim);
        assert_int_equal(c->n_ff, fixtures[i].ff);
        assert_int_equal(c->n_vocab, fixtures[i].vocab);
        assert_int_equal(c->tied_embeddings, fixtures[i].tied);
        assert_int_equal(file->output == file->token_embd, fixtures[i].tied);
        assert_int_equal(file->n_parameters, fixtures[i].parameters);
        assert_true(dse_model_file_intact(file));
        for (int layer = 0; layer < c->n_layers; layer++) {
            const struct dse_layer_tensors *t = &file->layers[layer];
            assert_non_null(t->attn_norm);
            assert_non_null(t->down);
            assert_int_equal(t->down->shape[0], c->n_embd);
            assert_int_equal(t->down->shape[1], c->n_ff);
            assert_int_equal(t->q->shape[0], c->n_heads * c->head_dim);
            assert_int_equal(t->v->shape[0], c->n_kv_heads * c->head_dim);
            assert_int_equal(t->k_bias != NULL, c->arch == DSE_ARCH_QWEN2);
            assert_int_equal(t->q_norm != NULL, c->arch == DSE_ARCH_QWEN3);
        }
        dse_model_file_close(file);
    }
}

/* The converter stores rows of q and k in pair order, everything else as it is: the twins' bytes say so. */
static void tensors_of_the_twins_hold_the_same_numbers(void **state)
{
    struct dse_model_file *a = open_ok(data_path("reference/llama_linear"));
    struct dse_model_file *b = open_ok(data_path("reference/gguf/llama_linear.gguf"));
    const struct dse_layer_tensors *x = &a->layers[2], *y = &b->layers[2];
    assert_memory_equal(a->token_embd->data, b->token_embd->data, a->token_embd->bytes);
    assert_memory_equal(a->output->data, b->output->data, a->output->bytes);
    assert_memory_equal(x->v->data, y->v->data, x->v->bytes);
    assert_memory_equal(x->o->data, y->o->data, x->o->bytes);
    assert_memory_equal(x->gate->data, y->gate->data, x->gate->bytes);
    assert_memory_equal(x->up->data, y->up->data, x->up->bytes);
    assert_memory_equal(x->down->data, y->down->data, x->down->bytes);
    size_t row = 128 * 2, d = 16;
    for (size_t head = 0; head < 8; head++) {
        for (size_t r = 0; r < d; r++) {
            size_t half = head * d + (r % 2) * (d / 2) + r / 2;
            assert_memory_equal((const char *)y->q->data + (head * d + r) * row, (const char *)x->q->data + half * row,
                                row);
            assert_memory_equal((const char *)y->k->data + (head * d + r) * row, (const char *)x->k->data + half * row,
                                row);
        }
    }
    float norm_a[128], norm_b[128];
    dse_type_decode(x->ffn_norm->type, x->ffn_norm->data, norm_a, 128);
    dse_type_decode(y->ffn_norm->type, y->ffn_norm->data, norm_b, 128);
    assert_memory_equal(norm_a, norm_b, sizeof norm_a);
    dse_model_file_close(a);
    dse_model_file_close(b);
}

static void gguf_without_an_output_head_is_tied(void **state)
{
    char path[600];
    struct tiny_gguf g;
    struct bytes out = {0};
    for (int with = 0; with < 2; with++) {
        tiny_gguf_init(&g);
        if (!with) tiny_remove_tensor(&g, "output.weight");
        out.length = 0;
        tiny_gguf_build(&g, &out);
        struct malformed_case c = {"tied", "", "tied.gguf", {{"tied.gguf", out.data, out.length}}, 1};
        assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
        struct dse_model_file *file = open_ok(path);
        assert_int_equal(file->config.tied_embeddings, !with);
        assert_int_equal(file->output == file->token_embd, !with);
        assert_string_equal(file->chat_template, "{{ messages[0].content }}");
        size_t sum = 0;
        for (int i = 0; i < g.n_tensors; i++)
            sum += g.tensors[i].data_bytes;
        assert_int_equal(file->weight_bytes, sum);
        dse_model_file_close(file);
        tiny_gguf_free(&g);
    }
    bytes_free(&out);
}

/* The tiny folder without a head; what its configuration says of tying. Gives its path. */
static const char *write_folder(void **state, json_t *tied, const char *side_file, const char *text, const char *second,
                                const char *second_text)
{
    static char path[600];
    size_t data_bytes;
    struct bytes weights = {0};
    json_t *header = tiny_header(&data_bytes), *config = tiny_config();
    json_object_del(header, "lm_head.weight");
    if (tied != NULL)
        json_object_set_new(config, "tie_word_embeddings", tied);
    else
        json_object_del(config, "tie_word_embeddings");
    json_object_set_new(
        header, "model.layers.0.self_attn.rotary_emb.inv_freq",
        json_pack("{s:s, s:[i], s:[i, i]}", "dtype", "BF16", "shape", 1024, "data_offsets", 2112, 4160));
    tiny_safetensors_build(header, data_bytes, &weights);
    char *config_text = json_dumps(config, 0);
    struct malformed_case c = {side_file,
                               "",
                               "",
                               {{"config.json", config_text, strlen(config_text)},
                                {"model.safetensors", weights.data, weights.length},
                                {side_file, text, strlen(text)},
                                {second, second_text, second_text != NULL ? strlen(second_text) : 0}},
                               second != NULL ? 4 : 3};
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    dse_json_free_text(config_text);
    bytes_free(&weights);
    json_decref(header);
    json_decref(config);
    return path;
}

static struct dse_model_file *open_folder(void **state, const char *side_file, const char *text, const char *second,
                                          const char *second_text)
{
    struct dse_model_file *file = open_ok(write_folder(state, json_true(), side_file, text, second, second_text));
    assert_true(file->config.tied_embeddings); /* lm_head is not there */
    assert_string_equal(file->config.name, side_file);
    return file;
}

static void chat_template_is_found_where_folders_keep_it(void **state)
{
    struct dse_model_file *file = open_folder(state, "tokenizer_config.json", "{\"chat_template\": \"one\"}", NULL,
                                              NULL);
    assert_string_equal(file->chat_template, "one");
    assert_non_null(file->tokenizer_config);
    assert_null(file->tokenizer_json);
    dse_model_file_close(file);
    file = open_folder(state, "tokenizer_config.json",
                       "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"no\"}, {\"name\": \"default\", "
                       "\"template\": \"yes\"}]}",
                       NULL, NULL);
    assert_string_equal(file->chat_template, "yes");
    dse_model_file_close(file);
    file = open_folder(state, "tokenizer_config.json", "{\"chat_template\": null}", NULL, NULL);
    assert_null(file->chat_template);
    dse_model_file_close(file);
    file = open_folder(state, "chat_template.jinja", "from the file", "tokenizer_config.json",
                       "{\"chat_template\": \"from the config\"}");
    assert_string_equal(file->chat_template, "from the file");
    dse_model_file_close(file);
    file = open_folder(state, "tokenizer.json", "{\"model\": {}}", NULL, NULL);
    assert_non_null(file->tokenizer_json);
    dse_model_file_close(file);
}

static void text_opening_needs_no_weights(void **state)
{
    struct dse_model_file *file = open_text_ok(unpacked_path("gguf/r1-distill-qwen-7b.vocab.gguf"));
    assert_non_null(file->gguf);
    assert_non_null(file->chat_template);
    assert_null(file->token_embd);
    dse_model_file_close(file);
    file = open_text_ok(unpacked_path("tokenizers/deepseek_coder/vocab.gguf"));
    assert_null(file->chat_template);
    dse_model_file_close(file);
    file = open_text_ok(unpacked_path("tokenizers/qwen3"));
    assert_non_null(file->tokenizer_json);
    assert_non_null(file->tokenizer_config);
    assert_non_null(file->chat_template);
    dse_model_file_close(file);
    file = open_text_ok(unpacked_path("tokenizers/qwen3/tokenizer.json"));
    assert_non_null(file->tokenizer_json);
    assert_non_null(file->tokenizer_config);
    assert_non_null(file->chat_template);
    assert_true(dse_model_file_intact(file));
    dse_model_file_close(file);
}

static void refusal(const char *path, bool text, enum dse_status expected, const char *word)
{
    struct dse_model_file *file;
    struct dse_error err;
    enum dse_status status = text ? dse_model_file_open_text(path, &file, &err)
                                  : dse_model_file_open(path, &file, &err);
    if (status != expected) fail_msg("%s: %s: %s", path, dse_status_name(status), status ? err.message : "");
    assert_null(file);
    if (strstr(err.message, word) == NULL) fail_msg("%s does not contain %s", err.message, word);
}

static void what_cannot_be_opened_says_what_is_missing(void **state)
{
    refusal("/nonexistent/model.gguf", false, DSE_ERR_NOT_FOUND, "/nonexistent/model.gguf");
    refusal("/nonexistent", false, DSE_ERR_NOT_FOUND, "nonexistent");
    refusal(data_path("reference"), false, DSE_ERR_NOT_FOUND, "config.json");
    refusal(data_path("reference/llama_linear/model.safetensors"), false, DSE_ERR_INVALID, "folder");
    refusal(data_path("reference/llama_linear/config.json"), false, DSE_ERR_CORRUPT, "GGUF");
    refusal(data_path("reference/llama_linear"), true, DSE_ERR_NOT_FOUND, "tokenizer.json");
    refusal("/dev/null", false, DSE_ERR_UNSUPPORTED, "not a regular file");
    refusal("/dev/null", true, DSE_ERR_CORRUPT, "not a regular file");
    refusal("", false, DSE_ERR_NOT_FOUND, "");
    refusal("", true, DSE_ERR_NOT_FOUND, "");
    refusal(unpacked_path("gguf/r1-distill-qwen-7b.vocab.gguf"), false, DSE_ERR_CORRUPT, "token_embd.weight");
}

static void a_file_that_shrinks_while_open_is_noticed(void **state)
{
    char path[600];
    struct tiny_gguf g;
    struct bytes out = {0};
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &out);
    struct malformed_case c = {"shrinks", "", "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    struct dse_model_file *file = open_ok(path);
    assert_true(dse_model_file_intact(file));
    assert_int_equal(truncate(path, 4096), 0);
    assert_false(dse_model_file_intact(file));
    dse_model_file_close(file);
    bytes_free(&out);
    tiny_gguf_free(&g);
}

static void a_folder_without_a_head_opens_only_if_it_is_tied(void **state)
{
    dse_model_file_close(open_ok(write_folder(state, json_true(), "tied", "", NULL, NULL)));
    refusal(write_folder(state, json_false(), "untied", "", NULL, NULL), false, DSE_ERR_CORRUPT, "lm_head.weight");
    refusal(write_folder(state, NULL, "unsaid", "", NULL, NULL), false, DSE_ERR_CORRUPT, "lm_head.weight");
}

static void what_is_no_file_is_no_model(void **state)
{
    static const char *const names[] = {"fifo.gguf", "loop.gguf", "broken.gguf", "locked.gguf"};
    static const char *const words[] = {"not a regular file", "symbolic links", "leads nowhere", "denied"};
    char path[600];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", temp_dir(*state), names[i]);
        if (i == 0) assert_int_equal(mkfifo(path, 0600), 0);
        if (i == 1) assert_int_equal(symlink(path, path), 0);
        if (i == 2) assert_int_equal(symlink("/nonexistent/model", path), 0);
        if (i == 3) {
            if (geteuid() == 0) continue; /* may read everything */
            fclose(fopen(path, "w"));
            chmod(path, 0);
        }
        refusal(path, false, DSE_ERR_UNSUPPORTED, words[i]);
        refusal(path, true, DSE_ERR_UNSUPPORTED, words[i]);
    }
    /* A side file that may be absent is not absent when its link leads nowhere. */
    static const char *const side_files[] = {"tokenizer_config.json", "tokenizer.json", "chat_template.jinja",
                                             "generation_config.json"};
    for (int i = 0; i < 4; i++) {
        char link[700];
        snprintf(path, sizeof path, "%s", write_folder(state, json_true(), side_files[i], "{}", NULL, NULL));
        snprintf(link, sizeof link, "%s/%s", path, side_files[i]);
        unlink(link);
        assert_int_equal(symlink("/nonexistent/blob", link), 0);
        refusal(path, false, DSE_ERR_UNSUPPORTED, side_files[i]);
        unlink(link);
    }
}

static void tensors_and_keys_without_effect_are_accepted(void **state)
{
    static const char *const tensors[] = {"blk.0.attn.rotary_emb.inv_freq", "blk.1.nextn.eh_proj.weight",
                                          "blk.0.attn_rot_embd.weight"};
    struct tiny_gguf g;
    struct bytes out = {0};
    tiny_gguf_init(&g);
    for (int i = 0; i < 3; i++)
        tiny_add_tensor(&g, tensors[i], 0, 32, 0);
    tiny_set_f32(&g, "llama.logit_scale", 1);
    tiny_set_f32(&g, "llama.final_logit_softcapping", 0);
    uint8_t yes = 1;
    tiny_set(&g, "llama.attention.causal", T_BOOL, &yes, 1);
    tiny_gguf_build(&g, &out);
    struct malformed_case c = {"harmless", "", "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    char path[600], other[600];
    assert_true(malformed_write(temp_dir(*state), &c, path, sizeof path));
    struct dse_model_file *file = open_ok(path);
    assert_true(dse_model_file_uses(file, path));
    snprintf(other, sizeof other, "%s/another-name", temp_dir(*state));
    assert_int_equal(symlink(path, other), 0);
    assert_true(dse_model_file_uses(file, other));
    assert_false(dse_model_file_uses(file, "/dev/null"));
    assert_false(dse_model_file_uses(file, "/nonexistent"));
    dse_model_file_close(file);
    bytes_free(&out);
    tiny_gguf_free(&g);
}

static void a_folder_model_uses_every_file_in_it(void **state)
{
    char path[700];
    const char *folder = write_folder(state, json_true(), "side.json", "{}", NULL, NULL);
    struct dse_model_file *file = open_ok(folder);
    static const char *const names[] = {"model.safetensors", "config.json", "side.json", "new.safetensors"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(dse_model_file_uses(file, path), i < 3);
    }
    dse_model_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_opens_with_all_its_tensors),
        cmocka_unit_test(tensors_of_the_twins_hold_the_same_numbers),
        cmocka_unit_test(gguf_without_an_output_head_is_tied),
        cmocka_unit_test(chat_template_is_found_where_folders_keep_it),
        cmocka_unit_test(text_opening_needs_no_weights),
        cmocka_unit_test(what_cannot_be_opened_says_what_is_missing),
        cmocka_unit_test(a_folder_without_a_head_opens_only_if_it_is_tied),
        cmocka_unit_test(what_is_no_file_is_no_model),
        cmocka_unit_test(tensors_and_keys_without_effect_are_accepted),
        cmocka_unit_test(a_folder_model_uses_every_file_in_it),
        cmocka_unit_test(a_file_that_shrinks_while_open_is_noticed),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

/* The GGUF reader on files that are right: types, widths, versions, splits, and files that change while open. Broken
 * ones are in test_malformed.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"
#include "temp_dir.h"
#include "tiny_model.h"

static const char *write_bytes(void *state, const char *name, const struct bytes *bytes)
{
    static char path[4][600];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", temp_dir(state), name);
    FILE *f = fopen(p, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes->data, 1, bytes->length, f), bytes->length);
    fclose(f);
    return p;
}

static struct dse_gguf *open_ok(const char *path)
{
    struct dse_gguf *gguf;
    struct dse_error err;
    if (dse_gguf_open(path, &gguf, &err) != DSE_OK) fail_msg("%s", err.message);
    return gguf;
}

static struct dse_gguf *open_tiny(void **state, struct tiny_gguf *g, const char *name)
{
    struct bytes out = {0};
    tiny_gguf_build(g, &out);
    struct dse_gguf *gguf = open_ok(write_bytes(*state, name, &out));
    bytes_free(&out);
    return gguf;
}

static void gguf_reads_every_tensor_of_a_real_conversion(void **state)
{
    struct dse_gguf *gguf = open_ok(data_path("reference/gguf/llama_llama3.q4_k_m.gguf"));
    assert_int_equal(dse_gguf_tensor_count(gguf), 31);
    assert_int_equal(dse_gguf_value_count(gguf), 26);
    const struct dse_tensor *t = dse_gguf_tensor(gguf, "blk.0.attn_k.weight");
    assert_non_null(t);
    assert_int_equal(t->type, DSE_TYPE_Q4_K);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 128);
    assert_int_equal(t->shape[1], 256);
    assert_int_equal(t->shape[2], 1);
    assert_int_equal(t->bytes, 128 * 144);
    assert_null(dse_gguf_tensor(gguf, "blk.0.attn_k.weigh"));
    assert_null(dse_gguf_tensor(gguf, ""));
    for (size_t i = 0; i < dse_gguf_tensor_count(gguf); i++) {
        t = dse_gguf_tensor_at(gguf, i);
        assert_ptr_equal(dse_gguf_tensor(gguf, t->name), t);
    }
    assert_null(dse_gguf_tensor_at(gguf, 31));
    assert_null(dse_gguf_value_at(gguf, 26));
    dse_gguf_close(gguf);
}

static void gguf_walks_the_strings_of_a_large_vocabulary(void **state)
{
    struct dse_gguf *gguf = open_ok(unpacked_path("gguf/r1-distill-qwen-7b.vocab.gguf"));
    const struct dse_gguf_value *tokens = dse_gguf_value(gguf, "tokenizer.ggml.tokens");
    assert_non_null(tokens);
    assert_int_equal(tokens->count, 152064);
    size_t cursor = 0, n = 0;
    struct dse_gguf_string text;
    while (dse_gguf_next_string(tokens, &cursor, &text)) {
        if (n == 2) assert_true(text.bytes == 1 && text.data[0] == '#');
        n++;
    }
    assert_int_equal(n, 152064);
    assert_int_equal(dse_gguf_tensor_count(gguf), 0);
    dse_gguf_close(gguf);
}

static void gguf_accepts_integers_of_any_width_for_each_other(void **state)
{
    static const uint32_t types[] = {T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_U64, T_I64};
    struct tiny_gguf g;
    struct dse_error err;
    tiny_gguf_init(&g);
    char key[32];
    for (size_t i = 0; i < 8; i++) {
        int64_t v = types[i] == T_I8 || types[i] == T_I16 || types[i] == T_I32 || types[i] == T_I64 ? -5 : 200;
        snprintf(key, sizeof key, "test.%u", types[i]);
        static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8};
        tiny_set(&g, key, types[i], &v, sizes[i]);
    }
    tiny_set_array(&g, "test.array", T_U16, 3, 3);
    struct dse_gguf *gguf = open_tiny(state, &g, "widths.gguf");
    for (size_t i = 0; i < 8; i++) {
        int64_t out = 0;
        double real = 0;
        snprintf(key, sizeof key, "test.%u", types[i]);
        assert_int_equal(dse_gguf_get_i64(gguf, key, -10, 1000, &out, &err), DSE_OK);
        assert_int_equal(out, i % 2 == 1 ? -5 : 200);
        assert_int_equal(dse_gguf_get_f64(gguf, key, &real, &err), DSE_OK);
        assert_true(real == (double)out);
        assert_int_equal(dse_gguf_get_i64(gguf, key, 0, 100, &out, &err), DSE_ERR_CORRUPT);
        assert_non_null(strstr(err.message, key));
    }
    int64_t out = 77;
    assert_int_equal(dse_gguf_get_i64(gguf, "absent", 0, 1, &out, &err), DSE_OK);
    assert_int_equal(out, 77);
    const struct dse_gguf_value *array = dse_gguf_value(gguf, "test.array");
    assert_true(dse_gguf_array_i64(array, 2, &out) && out == 1);
    assert_false(dse_gguf_array_i64(array, 3, &out));
    assert_false(dse_gguf_array_i64(dse_gguf_value(gguf, "tokenizer.ggml.tokens"), 0, &out));
    size_t cursor = 0;
    struct dse_gguf_string text;
    assert_false(dse_gguf_next_string(array, &cursor, &text));
    dse_gguf_close(gguf);
    tiny_gguf_free(&g);
}

static void gguf_accepts_version_2_and_other_alignments(void **state)
{
    static const uint32_t alignments[] = {8, 64, 4096, 65536};
    for (size_t i = 0; i < 4; i++) {
        struct tiny_gguf g;
        tiny_gguf_init(&g);
        g.version = 2;
        g.alignment = alignments[i];
        tiny_set_u32(&g, "general.alignment", alignments[i]);
        struct dse_gguf *gguf = open_tiny(state, &g, "aligned.gguf");
        const struct dse_tensor *t = dse_gguf_tensor(gguf, "blk.0.ffn_down.weight");
        const struct dse_tensor *first = dse_gguf_tensor(gguf, "token_embd.weight");
        size_t apart = (size_t)((const char *)t->data - (const char *)first->data);
        assert_int_equal(apart, tiny_tensor(&g, t->name)->data_at - tiny_tensor(&g, first->name)->data_at);
        assert_int_equal(apart % alignments[i], 0);
        dse_gguf_close(gguf);
        tiny_gguf_free(&g);
    }
}

static void gguf_with_metadata_only_needs_no_data_section(void **state)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    while (g.n_tensors > 0)
        tiny_remove_tensor(&g, g.tensors[0].name);
    struct dse_gguf *gguf = open_tiny(state, &g, "vocab.gguf");
    assert_int_equal(dse_gguf_tensor_count(gguf), 0);
    assert_non_null(dse_gguf_value(gguf, "tokenizer.ggml.merges"));
    dse_gguf_close(gguf);
    tiny_gguf_free(&g);
}

/* The tiny model over three shards, laid out as gguf-split does: metadata in the first one only. */
static void gguf_opens_a_split_model_by_any_of_its_shards(void **state)
{
    const int count = 3;
    char paths[3][600];
    for (int s = 0; s < count; s++) {
        struct tiny_gguf g;
        struct bytes out = {0};
        char name[64];
        tiny_gguf_init(&g);
        for (int i = g.n_tensors - 1; i >= 0; i--) {
            struct tiny_tensor *t = &g.tensors[i];
            if (i % count != s) {
                tiny_remove_tensor(&g, t->name);
                continue;
            }
            for (size_t k = 0; k < t->data_bytes; k++)
                bytes_put(&t->content, &(uint8_t){(uint8_t)(i * 16 + s)}, 1);
        }
        while (s > 0 && g.n_values > 0)
            tiny_remove(&g, g.values[0].key);
        uint16_t no = (uint16_t)s, n = (uint16_t)count;
        int32_t total = 12;
        tiny_set(&g, "split.no", T_U16, &no, 2);
        tiny_set(&g, "split.count", T_U16, &n, 2);
        tiny_set(&g, "split.tensors.count", T_I32, &total, 4);
        tiny_gguf_build(&g, &out);
        snprintf(name, sizeof name, "tiny-%05d-of-%05d.gguf", s + 1, count);
        snprintf(paths[s], sizeof paths[s], "%s", write_bytes(*state, name, &out));
        bytes_free(&out);
        tiny_gguf_free(&g);
    }
    struct dse_gguf *gguf = NULL;
    for (int s = 0; s < count; s++) {
        dse_gguf_close(gguf);
        gguf = open_ok(paths[s]);
        assert_int_equal(dse_gguf_tensor_count(gguf), 12);
        assert_string_equal(dse_gguf_path(gguf), paths[0]);
        assert_non_null(dse_gguf_value(gguf, "general.architecture"));
        const struct dse_tensor *t = dse_gguf_tensor(gguf, "blk.0.attn_k.weight"); /* number 5: third shard */
        assert_int_equal(*(const uint8_t *)t->data, 5 * 16 + 2);
        assert_int_equal(((const uint8_t *)t->data)[t->bytes - 1], 5 * 16 + 2);
    }
    assert_true(dse_gguf_intact(gguf));
    assert_int_equal(truncate(paths[2], 100), 0);
    assert_false(dse_gguf_intact(gguf));
    dse_gguf_close(gguf);
    struct dse_error err;
    assert_int_equal(dse_gguf_open(paths[1], &gguf, &err), DSE_ERR_CORRUPT);
    assert_null(gguf);
    assert_int_equal(unlink(paths[2]), 0);
    assert_int_equal(dse_gguf_open(paths[1], &gguf, &err), DSE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "tiny-00003-of-00003.gguf"));
}

static void gguf_notices_that_its_file_shrank(void **state)
{
    struct tiny_gguf g;
    struct bytes out = {0};
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &out);
    const char *path = write_bytes(*state, "shrinking.gguf", &out);
    struct dse_gguf *gguf = open_ok(path);
    assert_true(dse_gguf_intact(gguf));
    assert_int_equal(truncate(path, (off_t)out.length - 1), 0);
    assert_false(dse_gguf_intact(gguf));
    dse_gguf_close(gguf);
    bytes_free(&out);
    tiny_gguf_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_reads_every_tensor_of_a_real_conversion),
        cmocka_unit_test(gguf_walks_the_strings_of_a_large_vocabulary),
        cmocka_unit_test(gguf_accepts_integers_of_any_width_for_each_other),
        cmocka_unit_test(gguf_accepts_version_2_and_other_alignments),
        cmocka_unit_test(gguf_with_metadata_only_needs_no_data_section),
        cmocka_unit_test(gguf_opens_a_split_model_by_any_of_its_shards),
        cmocka_unit_test(gguf_notices_that_its_file_shrank),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

/* safetensors that are right: fixtures, shards, scalars, empty tensors, and what the writer makes. */
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

#include "model/safetensors.h"
#include "temp_dir.h"
#include "tiny_model.h"

static struct dse_safetensors *open_ok(const char *path)
{
    struct dse_safetensors *file;
    struct dse_error err;
    if (dse_safetensors_open(path, &file, &err) != DSE_OK) fail_msg("%s", err.message);
    return file;
}

static void safetensors_lists_types_that_cannot_be_computed_with(void **state)
{
    struct dse_safetensors *file = open_ok(data_path("reference/quant_blocks.safetensors"));
    const struct dse_tensor *t = dse_safetensors_tensor(file, "fp8block.weight");
    assert_non_null(t);
    assert_int_equal(t->type, DSE_TYPE_UNREADABLE);
    assert_string_equal(dse_safetensors_dtype(file, t), "U8");
    assert_int_equal(t->bytes, 144 * 200);
    t = dse_safetensors_tensor(file, "awq.qweight");
    assert_int_equal(t->type, DSE_TYPE_I32);
    assert_null(dse_safetensors_tensor(file, "__metadata__"));
    assert_null(dse_safetensors_tensor(file, "awq.qweigh"));
    for (size_t i = 0; i < dse_safetensors_count(file); i++) {
        t = dse_safetensors_at(file, i);
        assert_ptr_equal(dse_safetensors_tensor(file, t->name), t);
    }
    assert_null(dse_safetensors_at(file, dse_safetensors_count(file)));
    dse_safetensors_close(file);
}

static void safetensors_opens_a_folder_or_its_file_alike(void **state)
{
    struct dse_safetensors *folder = open_ok(data_path("reference/llama_linear"));
    struct dse_safetensors *file = open_ok(data_path("reference/llama_linear/model.safetensors"));
    assert_int_equal(dse_safetensors_count(folder), dse_safetensors_count(file));
    const struct dse_tensor *a = dse_safetensors_tensor(folder, "model.norm.weight");
    const struct dse_tensor *b = dse_safetensors_tensor(file, "model.norm.weight");
    assert_int_equal(a->type, DSE_TYPE_BF16);
    assert_int_equal(a->n_dims, 1);
    assert_int_equal(a->shape[0], 128);
    assert_memory_equal(a->data, b->data, a->bytes);
    dse_safetensors_close(folder);
    dse_safetensors_close(file);
}

static void safetensors_written_here_read_back_the_same(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s/out.safetensors", temp_dir(*state));
    static const float f[6] = {1, 2, 3, 4, 5, 6.5f};
    static const int32_t n[1] = {-7};
    static const int64_t big[2] = {1ll << 60, -1};
    static const uint16_t half[3] = {0x3C00, 0, 0xC000};
    static const int8_t small[3] = {1, -2, 3};
    const struct dse_tensor tensors[] = {{"small", DSE_TYPE_I8, 1, {3, 1, 1, 1}, small, 3},
                                         {"logits", DSE_TYPE_F32, 2, {2, 3, 1, 1}, f, 24},
                                         {"half", DSE_TYPE_F16, 1, {3, 1, 1, 1}, half, 6},
                                         {"scalar", DSE_TYPE_I32, 0, {1, 1, 1, 1}, n, 4},
                                         {"ids \"quoted\" \xC3\xA9", DSE_TYPE_I64, 1, {2, 1, 1, 1}, big, 16},
                                         {"empty", DSE_TYPE_F32, 2, {0, 5, 1, 1}, NULL, 0}};
    struct dse_error err;
    if (dse_safetensors_write(path, tensors, 6, &err) != DSE_OK) fail_msg("%s", err.message);
    struct dse_safetensors *file = open_ok(path);
    assert_int_equal(dse_safetensors_count(file), 6);
    for (int i = 0; i < 6; i++) {
        const struct dse_tensor *t = dse_safetensors_tensor(file, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->type, tensors[i].type);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_memory_equal(t->shape, tensors[i].shape, sizeof t->shape);
        assert_int_equal(t->bytes, tensors[i].bytes);
        if (t->bytes > 0) assert_memory_equal(t->data, tensors[i].data, t->bytes);
        /* Every tensor lies on a multiple of its element size. */
        assert_int_equal((uintptr_t)t->data % (uintptr_t)dse_type_info(t->type)->block_bytes, 0);
    }
    dse_safetensors_close(file);
    assert_int_equal(dse_safetensors_write(path, NULL, 0, &err), DSE_OK);
    file = open_ok(path);
    assert_int_equal(dse_safetensors_count(file), 0);
    dse_safetensors_close(file);
}

static void writer_refuses_what_the_format_cannot_hold(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s/never.safetensors", temp_dir(*state));
    struct dse_error err;
    struct dse_tensor t = {"q", DSE_TYPE_Q4_0, 1, {32, 1, 1, 1}, path, 18};
    assert_int_equal(dse_safetensors_write(path, &t, 1, &err), DSE_ERR_UNSUPPORTED);
    t = (struct dse_tensor){"f", DSE_TYPE_F32, 1, {32, 1, 1, 1}, path, 127};
    assert_int_equal(dse_safetensors_write(path, &t, 1, &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "'f'"));
    assert_int_not_equal(access(path, F_OK), 0);
}

static void write_shard(const char *folder, const char *name, const json_t *all, int part)
{
    struct bytes out = {0};
    char path[700];
    json_t *header = json_object(), *entry;
    const char *tensor;
    long long at = 0;
    int i = 0;
    json_object_foreach((json_t *)all, tensor, entry)
    {
        if (strcmp(tensor, "__metadata__") == 0 || i++ % 2 != part) continue;
        json_t *copy = json_deep_copy(entry), *offsets = json_object_get(copy, "data_offsets");
        long long bytes = json_integer_value(json_array_get(offsets, 1)) -
                          json_integer_value(json_array_get(offsets, 0));
        json_array_set_new(offsets, 0, json_integer(at));
        json_array_set_new(offsets, 1, json_integer(at += bytes));
        json_object_set_new(header, tensor, copy);
    }
    tiny_safetensors_build(header, (size_t)at, &out);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(out.data, 1, out.length, f), out.length);
    fclose(f);
    bytes_free(&out);
    json_decref(header);
}

static void safetensors_joins_the_shards_of_an_index(void **state)
{
    char folder[512], path[600];
    size_t data_bytes;
    json_t *all = tiny_header(&data_bytes), *map = json_object(), *entry;
    snprintf(folder, sizeof folder, "%s/sharded", temp_dir(*state));
    mkdir(folder, 0755);
    static const char *const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    write_shard(folder, names[0], all, 0);
    write_shard(folder, names[1], all, 1);
    const char *tensor;
    int i = 0;
    json_object_foreach(all, tensor, entry)
    {
        if (strcmp(tensor, "__metadata__") != 0) json_object_set_new(map, tensor, json_string(names[i++ % 2]));
    }
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    struct dse_safetensors *file = open_ok(folder);
    assert_int_equal(dse_safetensors_count(file), 12);
    assert_non_null(dse_safetensors_tensor(file, "lm_head.weight"));
    assert_true(dse_safetensors_intact(file));
    snprintf(path, sizeof path, "%s/%s", folder, names[1]);
    assert_int_equal(truncate(path, 64), 0);
    assert_false(dse_safetensors_intact(file));
    dse_safetensors_close(file);
    json_decref(index);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_lists_types_that_cannot_be_computed_with),
        cmocka_unit_test(safetensors_opens_a_folder_or_its_file_alike),
        cmocka_unit_test(safetensors_written_here_read_back_the_same),
        cmocka_unit_test(writer_refuses_what_the_format_cannot_hold),
        cmocka_unit_test(safetensors_joins_the_shards_of_an_index),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}

/* See quantized.h. Names and keys are those of the converters; values are random blocks with scales near 1/sqrt(columns). */
#include "quantized.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny_model.h"

enum {
    LAYERS = 3,
    EMBD = 256,
    HEADS = 4,
    RANK = 64,
    NOPE = 32,
    ROPE = 16,
    V_HEAD = 32,
    FF = 288,
    EXPERTS = 6,
    EXPERT_FF = 256,
    VOCAB = 320
};

struct writer {
    struct tiny_gguf gguf;
    uint64_t random;
    enum dse_type gate_up, down;
};

static uint64_t next_random(struct writer *w)
{
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return w->random >> 32;
}

/* The scale of a block whose values have a deviation of about 1/sqrt(columns). */
static float scale_for(enum dse_type type, int columns)
{
    const float deviation = 1 / sqrtf((float)columns);
    switch (type) {
    case DSE_TYPE_Q4_K: return deviation / 250;  /* 6-bit scales times 0…15, around a minimum */
    case DSE_TYPE_Q6_K: return deviation / 1300; /* 8-bit scales times -32…31 */
    case DSE_TYPE_Q4_0: return deviation / 4.6f;
    default: return deviation / 73;
    }
}

static void fill_blocks(struct writer *w, enum dse_type type, int columns, uint8_t *data, size_t bytes)
{
    const size_t block = (size_t)dse_type_info((uint32_t)type)->block_bytes;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)next_random(w);
    for (size_t at = 0; at < bytes; at += block) {
        const float scale = scale_for(type, columns);
        const uint16_t half = dse_f32_to_f16(scale), minimum = dse_f32_to_f16(7.5f * scale);
        memcpy(data + at + (type == DSE_TYPE_Q6_K ? block - 2 : 0), &half, sizeof half);
        if (type == DSE_TYPE_Q4_K) memcpy(data + at + 2, &minimum, sizeof minimum);
    }
}

/* heads 0: a matrix; rows 0: a vector near 1 */
static void add(struct writer *w, const char *name, enum dse_type type, int heads, int rows, int columns)
{
    const int all = (rows > 0 ? rows : 1) * (heads > 0 ? heads : 1);
    struct tiny_tensor *t = tiny_add_tensor(&w->gguf, name, (uint32_t)type, (uint64_t)columns, (uint64_t)rows);
    size_t row_bytes;
    assert_true(dse_type_row_bytes(type, (size_t)columns, &row_bytes));
    t->data_bytes = row_bytes * (size_t)all;
    if (heads > 0) {
        t->n_dims = 3;
        t->dims[2] = (uint64_t)heads;
    }
    uint8_t *data = malloc(t->data_bytes);
    assert_non_null(data);
    if (type == DSE_TYPE_F32) {
        for (int i = 0; i < all * columns; i++) {
            const float unit = (float)next_random(w) / 2147483648.0f - 1; /* [-1, 1) */
            const float value = rows == 0 ? 1 + unit / 8 : unit / sqrtf((float)columns) * 1.7f;
            memcpy(data + (size_t)i * sizeof value, &value, sizeof value);
        }
    } else {
        fill_blocks(w, type, columns, data, t->data_bytes);
    }
    bytes_put(&t->content, data, t->data_bytes);
    free(data);
}

static void add_keys(struct tiny_gguf *g)
{
    static const struct {
        const char *name;
        uint32_t value;
    } values[] = {
        {"block_count", LAYERS},
        {"context_length", 512},
        {"embedding_length", EMBD},
        {"feed_forward_length", FF},
        {"vocab_size", VOCAB},
        {"attention.head_count", HEADS},
        {"attention.head_count_kv", 1},
        {"attention.key_length", RANK + ROPE},
        {"attention.value_length", RANK},
        {"attention.key_length_mla", NOPE + ROPE},
        {"attention.value_length_mla", V_HEAD},
        {"attention.kv_lora_rank", RANK},
        {"rope.dimension_count", ROPE},
        {"expert_count", EXPERTS},
        {"expert_used_count", 2},
        {"expert_shared_count", 1},
        {"expert_feed_forward_length", EXPERT_FF},
        {"leading_dense_block_count", 1},
        {"expert_gating_func", 1},
    };
    char key[96];
    *g = (struct tiny_gguf){
        .version = 3, .claimed_tensors = TINY_ACTUAL, .claimed_values = TINY_ACTUAL, .alignment = 32};
    memcpy(g->magic, "GGUF", 4);
    tiny_set_string(g, "general.architecture", "deepseek2");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        (void)snprintf(key, sizeof key, "deepseek2.%s", values[i].name);
        tiny_set_u32(g, key, values[i].value);
    }
    tiny_set_f32(g, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
}

static void add_layer(struct writer *w, int layer)
{
    const enum dse_type f32 = DSE_TYPE_F32, q8 = DSE_TYPE_Q8_0;
    const struct {
        const char *name;
        enum dse_type type;
        int heads, rows, columns;
        int kind; /* 0: every layer, 1: dense, 2: experts */
    } tensors[] = {
        {"attn_norm", f32, 0, 0, EMBD, 0},
        {"attn_q", q8, 0, HEADS * (NOPE + ROPE), EMBD, 0},
        {"attn_kv_a_mqa", q8, 0, RANK + ROPE, EMBD, 0},
        {"attn_kv_a_norm", f32, 0, 0, RANK, 0},
        {"attn_k_b", q8, HEADS, RANK, NOPE, 0},
        {"attn_v_b", q8, HEADS, V_HEAD, RANK, 0},
        {"attn_output", q8, 0, EMBD, HEADS * V_HEAD, 0},
        {"ffn_norm", f32, 0, 0, EMBD, 0},
        {"ffn_gate", q8, 0, FF, EMBD, 1},
        {"ffn_up", q8, 0, FF, EMBD, 1},
        {"ffn_down", q8, 0, EMBD, FF, 1},
        {"ffn_gate_inp", f32, 0, EXPERTS, EMBD, 2},
        {"ffn_gate_exps", w->gate_up, EXPERTS, EXPERT_FF, EMBD, 2},
        {"ffn_up_exps", w->gate_up, EXPERTS, EXPERT_FF, EMBD, 2},
        {"ffn_down_exps", w->down, EXPERTS, EMBD, EXPERT_FF, 2},
        {"ffn_gate_shexp", w->gate_up, 0, EXPERT_FF, EMBD, 2},
        {"ffn_up_shexp", w->gate_up, 0, EXPERT_FF, EMBD, 2},
        {"ffn_down_shexp", w->down, 0, EMBD, EXPERT_FF, 2},
    };
    char name[64];
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (tensors[i].kind == (layer == 0 ? 2 : 1)) continue;
        (void)snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].name);
        add(w, name, tensors[i].type, tensors[i].heads, tensors[i].rows, tensors[i].columns);
    }
}

char *quantized_model_write(const char *folder, enum dse_type gate_up, enum dse_type down)
{
    struct writer *w = calloc(1, sizeof *w);
    struct bytes file = {0};
    char path[512];
    assert_non_null(w);
    *w = (struct writer){.random = (uint64_t)gate_up * 100 + (uint64_t)down, .gate_up = gate_up, .down = down};
    add_keys(&w->gguf);
    add(w, "token_embd.weight", DSE_TYPE_Q8_0, 0, VOCAB, EMBD);
    add(w, "output_norm.weight", DSE_TYPE_F32, 0, 0, EMBD);
    add(w, "output.weight", DSE_TYPE_Q8_0, 0, VOCAB, EMBD);
    for (int layer = 0; layer < LAYERS; layer++)
        add_layer(w, layer);
    tiny_gguf_build(&w->gguf, &file);
    (void)snprintf(path, sizeof path, "%s/%s-%s.gguf", folder, dse_type_info((uint32_t)gate_up)->name,
                   dse_type_info((uint32_t)down)->name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file.data, 1, file.length, out), file.length);
    assert_int_equal(fclose(out), 0);
    bytes_free(&file);
    tiny_gguf_free(&w->gguf);
    free(w);
    char *copy = strdup(path);
    assert_non_null(copy);
    return copy;
}

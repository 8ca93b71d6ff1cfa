/* See tiny_deepseek.h. */
#include "tiny_deepseek.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DENSE = 1, MOE = 2, PREDICTION = 4, ANY = 7 };

/* Shapes as a folder has them. */
static const struct {
    const char *gguf, *hugging_face;
    int rows, columns; /* columns 0: a vector */
    int stacked;       /* GGUF: first extent of a third dimension */
    int layers;
    bool plain; /* BF16 in the folder, F32 in the GGUF */
} tensors[] = {{"attn_norm.weight", "input_layernorm.weight", 32, 0, 0, ANY, true},
               {"attn_q_a.weight", "self_attn.q_a_proj.weight", 32, 32, 0, ANY, false},
               {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", 32, 0, 0, ANY, true},
               {"attn_q_b.weight", "self_attn.q_b_proj.weight", 80, 32, 0, ANY, false},
               {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", 40, 32, 0, ANY, false},
               {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", 32, 0, 0, ANY, true},
               {"attn_k_b.weight", NULL, 32, 32, 2, ANY, false},
               {"attn_v_b.weight", NULL, 32, 32, 2, ANY, false},
               {NULL, "self_attn.kv_b_proj.weight", 128, 32, 0, ANY, false},
               {"attn_output.weight", "self_attn.o_proj.weight", 32, 64, 0, ANY, false},
               {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight", 32, 32, 0, ANY, false},
               {"indexer.attn_k.weight", "self_attn.indexer.wk.weight", 16, 32, 0, ANY, false},
               {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight", 16, 0, 0, ANY, true},
               {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", 16, 0, 0, ANY, true},
               {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight", 2, 32, 0, ANY, true},
               {"ffn_norm.weight", "post_attention_layernorm.weight", 32, 0, 0, ANY, true},
               {"ffn_gate.weight", "mlp.gate_proj.weight", 160, 32, 0, DENSE, false},
               {"ffn_up.weight", "mlp.up_proj.weight", 160, 32, 0, DENSE, false},
               {"ffn_down.weight", "mlp.down_proj.weight", 32, 160, 0, DENSE, false},
               {"ffn_gate_inp.weight", "mlp.gate.weight", 4, 32, 0, MOE, true},
               {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", 4, 0, 0, MOE, true},
               {"ffn_gate_exps.weight", "mlp.experts.%d.gate_proj.weight", 32, 32, 4, MOE, false},
               {"ffn_up_exps.weight", "mlp.experts.%d.up_proj.weight", 32, 32, 4, MOE, false},
               {"ffn_down_exps.weight", "mlp.experts.%d.down_proj.weight", 32, 32, 4, MOE, false},
               {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", 32, 32, 0, MOE, false},
               {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", 32, 32, 0, MOE, false},
               {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", 32, 32, 0, MOE, false},
               {"nextn.enorm.weight", "enorm.weight", 32, 0, 0, PREDICTION, true},
               {"nextn.hnorm.weight", "hnorm.weight", 32, 0, 0, PREDICTION, true},
               {"nextn.eh_proj.weight", "eh_proj.weight", 32, 64, 0, PREDICTION, true},
               {"nextn.shared_head_norm.weight", "shared_head.norm.weight", 32, 0, 0, PREDICTION, true}};
#define N_TENSORS (sizeof tensors / sizeof *tensors)

static const int kinds[3] = {DENSE, MOE, MOE | PREDICTION};

static void set_u32(struct tiny_gguf *g, const char *architecture, const char *name, uint32_t value)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    tiny_set_u32(g, key, value);
}

static void set_f32(struct tiny_gguf *g, const char *architecture, const char *name, float value)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    tiny_set_f32(g, key, value);
}

void tiny_deepseek_gguf(struct tiny_gguf *g, const char *architecture)
{
    static const struct {
        const char *name;
        uint32_t value;
    } values[] = {{"block_count", 3},
                  {"nextn_predict_layers", 1},
                  {"context_length", 256},
                  {"embedding_length", 32},
                  {"feed_forward_length", 160},
                  {"vocab_size", 32},
                  {"attention.head_count", 2},
                  {"attention.head_count_kv", 1},
                  {"attention.key_length", 40},
                  {"attention.value_length", 32},
                  {"attention.key_length_mla", 40},
                  {"attention.value_length_mla", 32},
                  {"attention.q_lora_rank", 32},
                  {"attention.kv_lora_rank", 32},
                  {"rope.dimension_count", 8},
                  {"rope.scaling.original_context_length", 64},
                  {"expert_count", 4},
                  {"expert_used_count", 2},
                  {"expert_shared_count", 1},
                  {"expert_feed_forward_length", 32},
                  {"leading_dense_block_count", 1},
                  {"expert_gating_func", 2},
                  {"expert_group_count", 2},
                  {"expert_group_used_count", 1},
                  {"attention.indexer.head_count", 2},
                  {"attention.indexer.key_length", 16},
                  {"attention.indexer.top_k", 4}};
    char key[128], name[128];
    bool v32 = strcmp(architecture, "deepseek32") == 0;
    *g = (struct tiny_gguf){
        .version = 3, .claimed_tensors = TINY_ACTUAL, .claimed_values = TINY_ACTUAL, .alignment = 32};
    memcpy(g->magic, "GGUF", 4);
    tiny_set_string(g, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (v32 || strstr(values[i].name, "indexer") == NULL) set_u32(g, architecture, values[i].name, values[i].value);
    }
    set_f32(g, architecture, "attention.layer_norm_rms_epsilon", 1e-6f);
    set_f32(g, architecture, "expert_weights_scale", 2.5f);
    set_f32(g, architecture, "rope.scaling.factor", 4);
    set_f32(g, architecture, "rope.scaling.yarn_log_multiplier", 0.1f);
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    tiny_set_string(g, key, "yarn");
    snprintf(key, sizeof key, "%s.expert_weights_norm", architecture);
    tiny_set_of_type(g, key, T_BOOL);
    tiny_set_string(g, "tokenizer.ggml.model", "gpt2");
    tiny_set_string(g, "tokenizer.ggml.pre", "deepseek-v3");
    tiny_set_array(g, "tokenizer.ggml.tokens", T_STRING, 32, 32);
    tiny_add_tensor(g, "token_embd.weight", 8, 32, 32);
    tiny_add_tensor(g, "output_norm.weight", 0, 32, 0);
    tiny_add_tensor(g, "output.weight", 8, 32, 32);
    for (int layer = 0; layer < 3; layer++) {
        for (size_t i = 0; i < N_TENSORS; i++) {
            if ((tensors[i].layers & kinds[layer]) == 0 || tensors[i].gguf == NULL) continue;
            if (!v32 && strstr(tensors[i].gguf, "indexer") != NULL) continue;
            snprintf(name, sizeof name, "blk.%d.%s", layer, tensors[i].gguf);
            bool vector = tensors[i].columns == 0;
            struct tiny_tensor *t = tiny_add_tensor(g, name, tensors[i].plain ? 0 : 8,
                                                    (uint64_t)(vector ? tensors[i].rows : tensors[i].columns),
                                                    vector ? 0 : (uint64_t)tensors[i].rows);
            if (tensors[i].stacked == 0) continue;
            t->n_dims = 3;
            t->dims[2] = (uint64_t)tensors[i].stacked;
            t->data_bytes *= (size_t)tensors[i].stacked;
        }
    }
}

json_t *tiny_deepseek_config(void)
{
    static const char text[] =
        "{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\", \"num_hidden_layers\": 2,"
        " \"num_nextn_predict_layers\": 1, \"max_position_embeddings\": 256, \"hidden_size\": 32,"
        " \"intermediate_size\": 160, \"vocab_size\": 32, \"num_attention_heads\": 2, \"num_key_value_heads\": 2,"
        " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false,"
        " \"kv_lora_rank\": 32, \"q_lora_rank\": 32, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 8,"
        " \"v_head_dim\": 32, \"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 4,"
        " \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"moe_intermediate_size\": 32,"
        " \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"n_group\": 2, \"topk_group\": 1,"
        " \"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\", \"norm_topk_prob\": true,"
        " \"routed_scaling_factor\": 2.5, \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\","
        " \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]},"
        " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64,"
        " \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}";
    json_t *config = json_loads(text, 0, NULL);
    if (config == NULL) abort();
    return config;
}

static void add_part(struct tiny_folder *folder, const char *name, const char *dtype, int rows, int columns)
{
    if (folder->n_parts == (int)(sizeof folder->parts / sizeof *folder->parts)) abort();
    struct tiny_part *part = &folder->parts[folder->n_parts++];
    *part = (struct tiny_part){.dtype = dtype, .n_dims = columns == 0 ? 1 : 2, .shape = {rows, columns}, .fill = 0.5f};
    snprintf(part->name, sizeof part->name, "%s", name);
}

static void add_weight(struct tiny_folder *folder, int layer, const char *tail, int rows, int columns, bool plain)
{
    char name[96], scales[112];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, tail);
    add_part(folder, name, plain ? "BF16" : "F8_E4M3", rows, columns);
    if (plain) return;
    snprintf(scales, sizeof scales, "%s_scale_inv", name);
    add_part(folder, scales, "F32", (rows + 127) / 128, (columns + 127) / 128);
}

void tiny_deepseek_folder(struct tiny_folder *folder)
{
    folder->n_parts = 0;
    add_part(folder, "model.embed_tokens.weight", "BF16", 32, 32);
    add_part(folder, "model.norm.weight", "BF16", 32, 0);
    add_part(folder, "lm_head.weight", "BF16", 32, 32);
    for (int layer = 0; layer < 3; layer++) {
        for (size_t i = 0; i < N_TENSORS; i++) {
            const char *tail = tensors[i].hugging_face;
            if ((tensors[i].layers & kinds[layer]) == 0 || tail == NULL) continue;
            const char *number = strstr(tail, "%d");
            for (int e = 0; e < (number != NULL ? tensors[i].stacked : 1); e++) {
                char one[64];
                if (number != NULL)
                    snprintf(one, sizeof one, "%.*s%d%s", (int)(number - tail), tail, e, number + 2);
                else
                    snprintf(one, sizeof one, "%s", tail);
                add_weight(folder, layer, one, tensors[i].rows, tensors[i].columns, tensors[i].plain);
            }
        }
    }
}

struct tiny_part *tiny_part(struct tiny_folder *folder, const char *name)
{
    for (int i = 0; i < folder->n_parts; i++) {
        if (strcmp(folder->parts[i].name, name) == 0) return &folder->parts[i];
    }
    return NULL;
}

void tiny_part_remove(struct tiny_folder *folder, const char *name)
{
    struct tiny_part *part = tiny_part(folder, name);
    if (part == NULL) return;
    memmove(part, part + 1, (size_t)(folder->parts + folder->n_parts - part - 1) * sizeof *part);
    folder->n_parts--;
}

static size_t elements_of(const struct tiny_part *part)
{
    return (size_t)part->shape[0] * (part->n_dims == 2 ? (size_t)part->shape[1] : 1);
}

static size_t bytes_of(const struct tiny_part *part)
{
    size_t bytes = part->dtype[0] == 'B'                                                ? 2
                   : strcmp(part->dtype, "F32") == 0 || strcmp(part->dtype, "I32") == 0 ? 4
                                                                                        : 1;
    return elements_of(part) * bytes;
}

void tiny_folder_build(const struct tiny_folder *folder, struct bytes *out)
{
    json_t *header = json_object();
    size_t at = 0;
    for (int i = 0; i < folder->n_parts; i++) {
        const struct tiny_part *part = &folder->parts[i];
        json_t *shape = part->n_dims == 1 ? json_pack("[i]", part->shape[0])
                                          : json_pack("[i, i]", part->shape[0], part->shape[1]);
        json_object_set_new(header, part->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", part->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + bytes_of(part))));
        at += bytes_of(part);
    }
    tiny_safetensors_build(header, 0, out);
    for (int i = 0; i < folder->n_parts; i++) {
        const struct tiny_part *part = &folder->parts[i];
        bool floats = strcmp(part->dtype, "F32") == 0;
        for (size_t k = 0; floats && k < elements_of(part); k++)
            bytes_put(out, &part->fill, sizeof part->fill);
        if (!floats) bytes_zero(out, bytes_of(part));
    }
    json_decref(header);
}

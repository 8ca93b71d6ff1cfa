/* Broken models of the DeepSeek family in both formats. One change per case to the tiny model of tiny_deepseek.c. */
#include "malformed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tiny_deepseek.h"

struct emitter {
    malformed_fn *fn;
    void *user;
    struct tiny_folder folder; /* scratch */
    struct bytes good;         /* the valid model.safetensors */
    char *config;              /* the valid config.json */
};

static void take_name(char name[160], const char *format, va_list arguments)
{
    vsnprintf(name, 160, format, arguments);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '/') *p = '_';
}

/* Builds g, hands it out, frees it. */
static __attribute__((format(printf, 4, 5))) void emit_gguf(const struct emitter *e, struct tiny_gguf *g,
                                                            const char *expected, const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    take_name(name, format, arguments);
    va_end(arguments);
    struct bytes out = {0};
    tiny_gguf_build(g, &out);
    struct malformed_case bad = {name, expected, "m.gguf", {{"m.gguf", out.data, out.length}}, 1};
    e->fn(e->user, &bad);
    bytes_free(&out);
    tiny_gguf_free(g);
}

static void emit_pair(const struct emitter *e, const char *name, const char *expected, const char *config,
                      const struct bytes *weights)
{
    struct malformed_case bad = {
        name,
        expected,
        "",
        {{"config.json", config, strlen(config)}, {"model.safetensors", weights->data, weights->length}},
        2};
    e->fn(e->user, &bad);
}

/* The folder as it stands in the scratch. */
static __attribute__((format(printf, 3, 4))) void emit_folder(const struct emitter *e, const char *expected,
                                                              const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    take_name(name, format, arguments);
    va_end(arguments);
    struct bytes out = {0};
    tiny_folder_build(&e->folder, &out);
    emit_pair(e, name, expected, e->config, &out);
    bytes_free(&out);
}

/* Fields changed as the object `changes` says (null stays null); "-" in front of a name removes it. */
static void emit_config(const struct emitter *e, const char *changes, const char *expected, const char *name)
{
    json_t *config = tiny_deepseek_config(), *update = json_loads(changes, 0, NULL);
    if (update == NULL) abort();
    const char *field;
    json_t *value;
    json_object_foreach(update, field, value)
    {
        if (field[0] == '-')
            json_object_del(config, field + 1);
        else
            json_object_set(config, field, value);
    }
    char *text = json_dumps(config, 0);
    emit_pair(e, name, expected, text, &e->good);
    dse_json_free_text(text);
    json_decref(update);
    json_decref(config);
}

static void config_fields(const struct emitter *e)
{
    static const struct {
        const char *name;
        bool required, zero; /* zero is allowed */
    } integers[] = {{"kv_lora_rank", true, false},
                    {"q_lora_rank", true, false},
                    {"qk_nope_head_dim", true, false},
                    {"qk_rope_head_dim", true, false},
                    {"v_head_dim", true, false},
                    {"index_n_heads", true, false},
                    {"index_head_dim", true, false},
                    {"index_topk", true, false},
                    {"n_routed_experts", false, false},
                    {"num_experts_per_tok", true, false},
                    {"moe_intermediate_size", true, false},
                    {"n_shared_experts", false, true},
                    {"first_k_dense_replace", false, true},
                    {"moe_layer_freq", false, false},
                    {"n_group", true, false},
                    {"topk_group", true, false},
                    {"num_nextn_predict_layers", false, true}};
    static const char *const bad[] = {"-1", "2147483648", "9223372036854775807", "-9223372036854775808", "\"4\"", "2.0",
                                      "[]", "true"};
    char changes[128], name[128];
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const char *field = integers[i].name;
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            snprintf(changes, sizeof changes, "{\"%s\": %s}", field, bad[k]);
            snprintf(name, sizeof name, "deepseek_%s_bad_%zu", field, k);
            emit_config(e, changes, field, name);
        }
        snprintf(changes, sizeof changes, "{\"%s\": 0}", field);
        snprintf(name, sizeof name, "deepseek_%s_zero", field);
        if (!integers[i].zero) emit_config(e, changes, field, name);
        snprintf(changes, sizeof changes, "{\"-%s\": 0}", field);
        snprintf(name, sizeof name, "deepseek_%s_missing", field);
        if (integers[i].required) emit_config(e, changes, field, name);
    }
}

static void config_values(const struct emitter *e)
{
    static const struct {
        const char *changes, *expected;
    } values[] = {
        /* latent attention */
        {"{\"kv_lora_rank\": 64}", "kv_a_proj_with_mqa.weight"},
        {"{\"kv_lora_rank\": 16385}", "kv_lora_rank"},
        {"{\"q_lora_rank\": null}", "q_lora_rank"},
        {"{\"q_lora_rank\": 64}", "q_a_proj.weight"},
        {"{\"model_type\": \"deepseek_v3\", \"q_lora_rank\": null}", "q_proj.weight"},
        {"{\"qk_rope_head_dim\": 7}", "qk_rope_head_dim"},
        {"{\"qk_rope_head_dim\": 16}", "q_b_proj.weight"},
        {"{\"qk_rope_head_dim\": 32}", "index_head_dim"},
        {"{\"qk_nope_head_dim\": 1020}", "qk_nope_head_dim"},
        {"{\"qk_nope_head_dim\": 16}", "q_b_proj.weight"},
        {"{\"v_head_dim\": 16}", "o_proj.weight"},
        {"{\"num_key_value_heads\": 1}", "num_key_value_heads"},
        {"{\"num_key_value_heads\": 3}", "num_key_value_heads"},
        {"{\"num_attention_heads\": 4, \"num_key_value_heads\": 4}", "o_proj.weight"},
        {"{\"use_mla\": false}", "use_mla"},
        {"{\"rope_interleave\": false}", "rope_interleave"},
        {"{\"attention_bias\": true}", "attention_bias"},
        {"{\"index_head_dim\": 4}", "index_head_dim"},
        {"{\"index_head_dim\": 17}", "index_head_dim"},
        {"{\"index_head_dim\": 32}", "indexer.wq_b.weight"},
        {"{\"index_n_heads\": 4}", "indexer.wq_b.weight"},
        {"{\"model_type\": \"deepseek_v3\"}", "indexer.wq_b.weight"},
        /* experts */
        {"{\"num_experts_per_tok\": 5}", "num_experts_per_tok"},
        {"{\"num_experts_per_tok\": 33}", "num_experts_per_tok"},
        {"{\"n_routed_experts\": 1025}", "n_routed_experts"},
        {"{\"n_routed_experts\": 8}", "mlp.gate.weight"},
        {"{\"n_routed_experts\": null}", "mlp.gate_proj.weight"},
        {"{\"n_group\": 3}", "n_group"},
        {"{\"n_group\": 8}", "n_group"},
        {"{\"n_group\": 4, \"topk_group\": 2}", "n_group"},
        {"{\"topk_group\": 3}", "topk_group"},
        {"{\"num_experts_per_tok\": 3}", "topk_group"},
        {"{\"first_k_dense_replace\": 3}", "first_k_dense_replace"},
        {"{\"first_k_dense_replace\": 0}", "model.layers.0.mlp."},
        {"{\"first_k_dense_replace\": 2}", "model.layers.1.mlp."},
        {"{\"moe_layer_freq\": 2}", "moe_layer_freq"},
        {"{\"n_shared_experts\": 2}", "shared_experts.gate_proj.weight"},
        {"{\"n_shared_experts\": 0}", "shared_experts.gate_proj.weight"},
        {"{\"n_shared_experts\": 1024, \"moe_intermediate_size\": 4194304}", "n_shared_experts"},
        {"{\"moe_intermediate_size\": 64}", "shared_experts.gate_proj.weight"},
        {"{\"topk_method\": \"greedy\"}", "topk_method"},
        {"{\"topk_method\": \"softmax_tc\"}", "topk_method"},
        {"{\"topk_method\": 3}", "topk_method"},
        {"{\"scoring_func\": \"softmax\"}", "scoring_func"},
        {"{\"scoring_func\": \"sqrtsoftplus\"}", "scoring_func"},
        {"{\"scoring_func\": []}", "scoring_func"},
        {"{\"norm_topk_prob\": 1}", "norm_topk_prob"},
        {"{\"routed_scaling_factor\": 0}", "routed_scaling_factor"},
        {"{\"routed_scaling_factor\": -2.5}", "routed_scaling_factor"},
        {"{\"routed_scaling_factor\": 1e300}", "routed_scaling_factor"},
        {"{\"routed_scaling_factor\": \"2.5\"}", "routed_scaling_factor"},
        {"{\"num_nextn_predict_layers\": 17}", "num_nextn_predict_layers"},
        {"{\"num_nextn_predict_layers\": 2}", "model.layers.3."},
        {"{\"num_hidden_layers\": 3, \"num_nextn_predict_layers\": 0}", "model.layers.2.enorm.weight"},
        {"{\"num_hidden_layers\": 1}", "model.layers.1."},
        {"{\"num_hidden_layers\": 1, \"num_nextn_predict_layers\": 0}", "model.layers.1."},
        /* V2 and V1: other rules under the same tensors */
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"noaux_tc\", \"scoring_func\": \"softmax\"}",
         "topk_method"},
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"greedy\", \"scoring_func\": \"sigmoid\"}",
         "scoring_func"},
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"group_limited_greedy\", \"scoring_func\": \"softmax\"}",
         "norm_topk_prob"},
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"group_limited_greedy\", \"scoring_func\": \"softmax\", "
         "\"norm_topk_prob\": false, \"-n_group\": 0}",
         "n_group"},
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"greedy\", \"scoring_func\": \"softmax\", "
         "\"norm_topk_prob\": false}",
         "indexer"},
        {"{\"model_type\": \"deepseek\", \"topk_method\": \"greedy\", \"scoring_func\": \"softmax\"}", "kv_lora_rank"},
        {"{\"model_type\": \"deepseek\", \"-kv_lora_rank\": 0, \"scoring_func\": \"softmax\"}", "topk_method"},
        {"{\"model_type\": \"deepseek\", \"-kv_lora_rank\": 0, \"topk_method\": \"greedy\"}", "scoring_func"},
        {"{\"model_type\": \"deepseek\", \"-kv_lora_rank\": 0, \"topk_method\": \"greedy\", \"scoring_func\": "
         "\"softmax\"}",
         "routed_scaling_factor"},
        {"{\"model_type\": \"deepseek_v4\"}", "deepseek_v4"},
        {"{\"model_type\": \"deepseek2\"}", "deepseek2"},
        /* FP8 */
        {"{\"quantization_config\": {}}", "quantization_config"},
        {"{\"quantization_config\": 8}", "quantization_config"},
        {"{\"quantization_config\": {\"quant_method\": \"awq\"}}", "quantization_config"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\"}}", "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null}}",
         "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}}",
         "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}",
         "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": 128}}",
         "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, \"128\"]}}",
         "quantization_config.weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\", \"weight_block_size\": [128, 128]}}",
         "quantization_config.fmt"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"static\", "
         "\"weight_block_size\": [128, 128]}}",
         "quantization_config.activation_scheme"},
        {"{\"-quantization_config\": 0}", "o_proj.weight"},
        /* yarn's magnitudes */
        {"{\"rope_parameters\": {\"rope_type\": \"default\"}}", "rope_scaling"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}}", "rope_scaling"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}, \"rope_scaling\": {\"type\": \"yarn\", "
         "\"factor\": 5}}",
         "rope_scaling"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}, \"rope_scaling\": 4}", "rope_scaling"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": -1}}", "rope_scaling.mscale"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale_all_dim\": -1}}",
         "rope_scaling.mscale_all_dim"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale_all_dim\": 1e9}}",
         "rope_scaling.mscale_all_dim"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale_all_dim\": \"1\"}}",
         "rope_scaling.mscale_all_dim"}};
    char name[64];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(name, sizeof name, "deepseek_config_%zu", i);
        emit_config(e, values[i].changes, values[i].expected, name);
    }
}

/* Every tensor of the folder: gone, of another shape, of a type that is no weight. */
static void folder_tensors(struct emitter *e)
{
    struct tiny_folder whole;
    tiny_deepseek_folder(&whole);
    for (int i = 0; i < whole.n_parts; i++) {
        const char *tensor = whole.parts[i].name;
        if (strcmp(tensor, "lm_head.weight") != 0) { /* without it the model is tied */
            e->folder = whole;
            tiny_part_remove(&e->folder, tensor);
            emit_folder(e, tensor, "ds_missing_%s", tensor);
        }
        for (int k = 0; k < 3; k++) {
            e->folder = whole;
            struct tiny_part *part = &e->folder.parts[i];
            if (k == 0) part->shape[0] += 128;
            if (k == 1 && part->n_dims == 2) part->shape[1] += 128;
            if (k == 1 && part->n_dims == 1) part->shape[0] -= 1;
            if (k == 2) {
                part->n_dims = 3 - part->n_dims;
                part->shape[1] = 1;
            }
            emit_folder(e, tensor, "ds_shape_%d_%s", k, tensor);
        }
        e->folder = whole;
        e->folder.parts[i].dtype = "I32";
        emit_folder(e, tensor, "ds_type_%s", tensor);
    }
    /* Everything inside the language model that no table names, and a layer that the configuration does not count. */
    static const char *const extra[] = {"layers.1.self_attn.o_proj.bias",
                                        "layers.1.self_attn.q_a_proj.bias",
                                        "layers.1.self_attn.kv_a_proj_with_mqa.bias",
                                        "layers.1.self_attn.q_proj.weight",
                                        "layers.1.self_attn.k_proj.weight",
                                        "layers.1.mlp.up_proj.weight",
                                        "layers.1.self_attn.q_b_proj.bias",
                                        "layers.1.self_attn.kv_b_proj.bias",
                                        "layers.1.self_attn.sinks",
                                        "layers.0.self_attn.q_norm.weight",
                                        "layers.0.input_layernorm.bias",
                                        "layers.0.mlp.gate_proj.bias",
                                        "layers.1.mlp.gate.bias",
                                        "layers.1.mlp.gate.tid2eid",
                                        "layers.1.mlp.experts.0.gate_proj.bias",
                                        "layers.1.mlp.experts.4.gate_proj.weight",
                                        "layers.1.mlp.shared_expert_gate.weight",
                                        "layers.1.self_attn.o_proj.input_scale",
                                        "layers.1.self_attn.o_proj.lora_A.weight",
                                        "layers.3.input_layernorm.weight",
                                        "layers.99999999999999999999.input_layernorm.weight",
                                        "layers.-1.input_layernorm.weight",
                                        "layers.01.input_layernorm.weight",
                                        "layers.x",
                                        "norm.bias",
                                        "embed_tokens.scale"};
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        e->folder = whole;
        struct tiny_part *part = &e->folder.parts[e->folder.n_parts++];
        *part = (struct tiny_part){.dtype = "BF16", .n_dims = 1, .shape = {32}};
        snprintf(part->name, sizeof part->name, "model.%s", extra[i]);
        emit_folder(e, part->name, "ds_extra_%zu", i);
    }
}

static void scales(struct emitter *e)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1e-30f, -1};
    static const char *const dtypes[] = {"BF16", "F8_E8M0", "F8_E4M3", "U8"};
    static const char *const weights[] = {"model.layers.0.mlp.gate_proj.weight",
                                          "model.layers.1.mlp.experts.3.down_proj.weight",
                                          "model.layers.2.self_attn.kv_b_proj.weight"};
    char name[112];
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        snprintf(name, sizeof name, "%s_scale_inv", weights[w]);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            tiny_deepseek_folder(&e->folder);
            tiny_part(&e->folder, name)->fill = bad[i];
            emit_folder(e, name, "ds_scale_value_%zu_%zu", w, i);
        }
        for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
            tiny_deepseek_folder(&e->folder);
            tiny_part(&e->folder, name)->dtype = dtypes[i];
            emit_folder(e, name, "ds_scale_type_%zu_%zu", w, i);
        }
        /* Scales left behind by a conversion that dropped FP8. */
        tiny_deepseek_folder(&e->folder);
        tiny_part(&e->folder, weights[w])->dtype = "BF16";
        emit_folder(e, name, "ds_scale_without_fp8_%zu", w);
    }
    tiny_deepseek_folder(&e->folder);
    struct tiny_part *gate = tiny_part(&e->folder, "model.layers.0.mlp.gate_proj.weight_scale_inv");
    gate->shape[0] = 1; /* transposed */
    gate->shape[1] = 2;
    emit_folder(e, gate->name, "ds_scale_transposed");
    static const char *const plain[] = {"model.embed_tokens.weight", "lm_head.weight"};
    for (int i = 0; i < 2; i++) {
        tiny_deepseek_folder(&e->folder);
        tiny_part(&e->folder, plain[i])->dtype = "F8_E4M3";
        struct tiny_part *part = &e->folder.parts[e->folder.n_parts++];
        *part = (struct tiny_part){.dtype = "F32", .n_dims = 2, .shape = {1, 1}, .fill = 1};
        snprintf(part->name, sizeof part->name, "%s_scale_inv", plain[i]);
        emit_folder(e, plain[i], "ds_fp8_end_%d", i);
    }
    static const float biases[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        tiny_deepseek_folder(&e->folder);
        struct tiny_part *bias = tiny_part(&e->folder, "model.layers.1.mlp.gate.e_score_correction_bias");
        bias->dtype = "F32";
        bias->fill = biases[i];
        emit_folder(e, bias->name, "ds_router_bias_%d", i);
    }
}

static void gguf_keys(const struct emitter *e)
{
    static const struct {
        const char *name;
        bool required, zero;
    } keys[] = {{"attention.kv_lora_rank", true, false},
                {"attention.q_lora_rank", true, false},
                {"attention.key_length", false, false},
                {"attention.value_length", false, false},
                {"attention.key_length_mla", true, false},
                {"attention.value_length_mla", true, false},
                {"attention.head_count_kv", false, false},
                {"attention.indexer.head_count", true, false},
                {"attention.indexer.key_length", true, false},
                {"attention.indexer.top_k", true, false},
                {"rope.dimension_count", true, false},
                {"expert_count", false, true},
                {"expert_used_count", true, false},
                {"expert_feed_forward_length", true, false},
                {"expert_shared_count", false, true},
                {"leading_dense_block_count", false, true},
                {"expert_gating_func", true, false},
                {"expert_group_count", false, true},
                {"expert_group_used_count", true, false},
                {"nextn_predict_layers", false, true}};
    static const int64_t bad[] = {-1, 1ll << 31, 1ll << 40, INT64_MAX, INT64_MIN};
    struct tiny_gguf g;
    char key[128];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "deepseek32.%s", keys[i].name);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            tiny_deepseek_gguf(&g, "deepseek32");
            tiny_set(&g, key, T_I64, &bad[k], 8);
            emit_gguf(e, &g, key, "dsg_%s_bad_%zu", keys[i].name, k);
        }
        static const uint32_t types[] = {T_F32, T_STRING, T_ARRAY, T_BOOL};
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            tiny_deepseek_gguf(&g, "deepseek32");
            tiny_set_of_type(&g, key, types[k]);
            emit_gguf(e, &g, key, "dsg_%s_type_%zu", keys[i].name, k);
        }
        if (!keys[i].zero) {
            tiny_deepseek_gguf(&g, "deepseek32");
            tiny_set_u32(&g, key, 0);
            emit_gguf(e, &g, key, "dsg_%s_zero", keys[i].name);
        }
        if (keys[i].required) {
            tiny_deepseek_gguf(&g, "deepseek32");
            tiny_remove(&g, key);
            emit_gguf(e, &g, key, "dsg_%s_missing", keys[i].name);
        }
    }
}

static void gguf_values(const struct emitter *e)
{
    static const struct {
        const char *key;
        uint32_t value;
        const char *expected;
    } values[] = {{"attention.kv_lora_rank", 64, "attention.key_length"},
                  {"attention.q_lora_rank", 64, "attn_q_a.weight"},
                  {"attention.key_length", 72, "attention.key_length"},
                  {"attention.value_length", 64, "attention.value_length"},
                  {"attention.key_length_mla", 8, "attention.key_length_mla"},
                  {"attention.key_length_mla", 7, "attention.key_length_mla"},
                  {"attention.key_length_mla", 72, "attn_q_b.weight"},
                  {"attention.value_length_mla", 64, "attn_output.weight"},
                  {"attention.head_count_kv", 3, "attention.head_count_kv"},
                  {"attention.head_count", 4, "attn_output.weight"},
                  {"rope.dimension_count", 7, "attention.key_length"},
                  {"rope.dimension_count", 40, "attention.key_length"},
                  {"attention.indexer.key_length", 6, "attention.indexer.key_length"},
                  {"attention.indexer.key_length", 32, "indexer.attn_q_b.weight"},
                  {"attention.indexer.head_count", 4, "indexer.attn_q_b.weight"},
                  {"expert_count", 0, "ffn_gate.weight"},
                  {"expert_count", 1025, "expert_count"},
                  {"expert_count", 8, "ffn_gate_inp.weight"},
                  {"expert_used_count", 5, "expert_used_count"},
                  {"expert_used_count", 33, "expert_used_count"},
                  {"expert_used_count", 3, "expert_group_used_count"},
                  {"expert_group_count", 3, "expert_group_count"},
                  {"expert_group_count", 4, "expert_group_used_count"},
                  {"expert_group_used_count", 3, "expert_group_used_count"},
                  {"expert_shared_count", 0, "ffn_gate_shexp.weight"},
                  {"expert_shared_count", 2, "ffn_gate_shexp.weight"},
                  {"expert_feed_forward_length", 64, "ffn_gate_shexp.weight"},
                  {"leading_dense_block_count", 3, "leading_dense_block_count"},
                  {"leading_dense_block_count", 0, "blk.0.ffn_"},
                  {"leading_dense_block_count", 2, "blk.1.ffn_"},
                  {"expert_gating_func", 1, "expert_gating_func"},
                  {"expert_gating_func", 3, "expert_gating_func"},
                  {"expert_gating_func", 4, "expert_gating_func"},
                  {"nextn_predict_layers", 3, "nextn_predict_layers"},
                  {"nextn_predict_layers", 17, "nextn_predict_layers"},
                  {"nextn_predict_layers", 0, "blk.2.nextn."},
                  {"nextn_predict_layers", 2, "blk.1.attn_norm.weight"},
                  {"block_count", 4, "blk.2.nextn."}};
    struct tiny_gguf g;
    char key[128];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        tiny_deepseek_gguf(&g, "deepseek32");
        snprintf(key, sizeof key, "deepseek32.%s", values[i].key);
        tiny_set_u32(&g, key, values[i].value);
        emit_gguf(e, &g, values[i].expected, "dsg_value_%zu", i);
    }
    static const float scale_values[] = {0, -1, 1e30f, INFINITY, NAN}, multipliers[] = {-0.1f, 1e9f, NAN};
    for (size_t i = 0; i < sizeof scale_values / sizeof *scale_values; i++) {
        tiny_deepseek_gguf(&g, "deepseek32");
        tiny_set_f32(&g, "deepseek32.expert_weights_scale", scale_values[i]);
        emit_gguf(e, &g, "expert_weights_scale", "dsg_scale_%zu", i);
    }
    for (size_t i = 0; i < sizeof multipliers / sizeof *multipliers; i++) {
        tiny_deepseek_gguf(&g, "deepseek32");
        tiny_set_f32(&g, "deepseek32.rope.scaling.yarn_log_multiplier", multipliers[i]);
        emit_gguf(e, &g, "yarn_log_multiplier", "dsg_multiplier_%zu", i);
    }
    tiny_deepseek_gguf(&g, "deepseek32");
    tiny_set_u32(&g, "deepseek32.expert_weights_norm", 1);
    emit_gguf(e, &g, "expert_weights_norm", "dsg_norm_type");
    tiny_deepseek_gguf(&g, "deepseek2"); /* V2 scores, normalized */
    tiny_set_u32(&g, "deepseek2.expert_gating_func", 1);
    emit_gguf(e, &g, "expert_weights_norm", "dsg_v2_norm");
    tiny_deepseek_gguf(&g, "deepseek2"); /* V2 scores with V3's bias */
    tiny_set_u32(&g, "deepseek2.expert_gating_func", 1);
    tiny_remove(&g, "deepseek2.expert_weights_norm");
    emit_gguf(e, &g, "exp_probs_b.bias", "dsg_v2_bias");
    for (int i = 3; i < 5; i++) {
        tiny_deepseek_gguf(&g, "deepseek2");
        tiny_set_u32(&g, "deepseek2.expert_gating_func", (uint32_t)i);
        emit_gguf(e, &g, "expert_gating_func", "dsg_gating_%d", i);
    }
    tiny_deepseek_gguf(&g, "deepseek2"); /* an expert a group, ranked by two */
    tiny_set_u32(&g, "deepseek2.expert_group_count", 4);
    tiny_set_u32(&g, "deepseek2.expert_group_used_count", 2);
    emit_gguf(e, &g, "expert_group_count", "dsg_groups_of_one");
    tiny_deepseek_gguf(&g, "deepseek4");
    emit_gguf(e, &g, "deepseek4", "dsg_v4");
    tiny_deepseek_gguf(&g, "deepseek_v3");
    emit_gguf(e, &g, "deepseek_v3", "dsg_other_name");
}

static void gguf_tensors(const struct emitter *e)
{
    struct tiny_gguf whole, g;
    tiny_deepseek_gguf(&whole, "deepseek32");
    for (int i = 0; i < whole.n_tensors; i++) {
        const char *tensor = whole.tensors[i].name;
        if (strcmp(tensor, "output.weight") != 0) {
            tiny_deepseek_gguf(&g, "deepseek32");
            tiny_remove_tensor(&g, tensor);
            emit_gguf(e, &g, tensor, "dsg_missing_%s", tensor);
        }
        for (uint32_t d = 0; d < whole.tensors[i].n_dims; d++) {
            tiny_deepseek_gguf(&g, "deepseek32");
            g.tensors[i].dims[d] *= 2;
            g.tensors[i].data_bytes *= 2;
            emit_gguf(e, &g, tensor, "dsg_shape_%u_%s", d, tensor);
        }
        for (int k = 0; k < 2; k++) { /* no weight; FP8's own number, which no GGUF may use */
            tiny_deepseek_gguf(&g, "deepseek32");
            struct tiny_tensor *t = &g.tensors[i];
            t->type = k == 0 ? 26 : 0x108;
            t->data_bytes = k == 0 ? 4 : 1;
            for (uint32_t d = 0; d < t->n_dims; d++)
                t->data_bytes *= (size_t)t->dims[d];
            emit_gguf(e, &g, tensor, "dsg_type_%d_%s", k, tensor);
        }
    }
    tiny_gguf_free(&whole);
    static const char *const extra[] = {"blk.0.attn_output.bias",    "blk.0.attn_q_a.bias", "blk.0.attn_q.weight",
                                        "blk.0.attn_k.weight",       "blk.1.ffn_up.weight", "blk.0.ffn_gate_inp.weight",
                                        "blk.0.nextn.eh_proj.weight"};
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        tiny_deepseek_gguf(&g, "deepseek32");
        tiny_add_tensor(&g, extra[i], 0, 32, 0);
        emit_gguf(e, &g, extra[i], "dsg_extra_%zu", i);
    }
    tiny_deepseek_gguf(&g, "deepseek32"); /* fused: the right name, the wrong number of rows */
    struct tiny_tensor *t = tiny_add_tensor(&g, "blk.1.ffn_gate_up_exps.weight", 8, 32, 32);
    t->n_dims = 3;
    t->dims[2] = 4;
    t->data_bytes *= 4;
    emit_gguf(e, &g, "blk.1.ffn_gate_up_exps.weight", "dsg_fused_rows");
    tiny_deepseek_gguf(&g, "deepseek32"); /* neither form of kv_b */
    tiny_remove_tensor(&g, "blk.1.attn_k_b.weight");
    tiny_remove_tensor(&g, "blk.1.attn_v_b.weight");
    emit_gguf(e, &g, "blk.1.attn_kv_b.weight", "dsg_no_kv_b");
    static const uint32_t not_numbers[] = {0x7FC00000, 0x7F800000, 0xFF800000};
    for (int i = 0; i < 3; i++) {
        tiny_deepseek_gguf(&g, "deepseek32");
        t = tiny_tensor(&g, "blk.1.exp_probs_b.bias");
        bytes_put(&t->content, &not_numbers[i], 4);
        emit_gguf(e, &g, "blk.1.exp_probs_b.bias", "dsg_router_bias_%d", i);
    }
}

void malformed_deepseek(malformed_fn *fn, void *user)
{
    struct emitter e = {.fn = fn, .user = user};
    json_t *config = tiny_deepseek_config();
    e.config = json_dumps(config, 0);
    json_decref(config);
    tiny_deepseek_folder(&e.folder);
    tiny_folder_build(&e.folder, &e.good);
    config_fields(&e);
    config_values(&e);
    folder_tensors(&e);
    scales(&e);
    gguf_keys(&e);
    gguf_values(&e);
    gguf_tensors(&e);
    bytes_free(&e.good);
    dse_json_free_text(e.config);
}

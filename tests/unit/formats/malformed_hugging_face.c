/* Broken Hugging Face folders: safetensors headers, shard indexes, config.json and the files beside it. */
#include "malformed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tiny_model.h"

struct emitter {
    malformed_fn *fn;
    void *user;
    struct bytes good; /* the valid model.safetensors */
    char *config;      /* the valid config.json */
};

static void hand_out(const struct emitter *e, const char *name, const char *expected,
                     const struct malformed_file *files, int n_files)
{
    struct malformed_case bad = {name, expected, "", {{0}}, n_files};
    memcpy(bad.files, files, (size_t)n_files * sizeof *files);
    e->fn(e->user, &bad);
}

/* A folder with the valid config and this model.safetensors. */
static void emit_weights(const struct emitter *e, const char *name, const char *expected, const struct bytes *weights)
{
    const struct malformed_file files[] = {{"config.json", e->config, strlen(e->config)},
                                           {"model.safetensors", weights->data, weights->length}};
    hand_out(e, name, expected, files, 2);
}

static void emit_header(const struct emitter *e, const char *name, const char *expected, const char *header,
                        uint64_t claim)
{
    struct bytes out = {0};
    tiny_safetensors_raw(header, strlen(header), claim, e->good.length, &out);
    emit_weights(e, name, expected, &out);
    bytes_free(&out);
}

static void emit_text(const struct emitter *e, const char *file, const char *name, const char *expected,
                      const char *text, size_t bytes)
{
    bool config = strcmp(file, "config.json") == 0;
    const struct malformed_file files[] = {{file, text, bytes},
                                           {"model.safetensors", e->good.data, e->good.length},
                                           {"config.json", e->config, strlen(e->config)}};
    hand_out(e, name, expected, files, config ? 2 : 3);
}

/* config.json with one field replaced; value is taken. NULL removes the field. */
static __attribute__((format(printf, 5, 6))) void emit_config(const struct emitter *e, const char *field, json_t *value,
                                                              const char *expected, const char *format, ...)
{
    char name[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    json_t *config = tiny_config();
    if (value == NULL)
        json_object_del(config, field);
    else
        json_object_set_new(config, field, value);
    char *text = json_dumps(config, 0);
    emit_text(e, "config.json", name, expected, text, strlen(text));
    dse_json_free_text(text);
    json_decref(config);
}

static void header_lengths(const struct emitter *e)
{
    static const uint64_t lengths[] = {
        0, 1, 1ull << 31, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX - 1, UINT64_MAX - 7, UINT64_MAX - 8};
    char name[64];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths + 5; i++) {
        struct bytes out = {0};
        bytes_put(&out, e->good.data, e->good.length);
        uint64_t length;
        memcpy(&length, out.data, 8);
        const uint64_t near[] = {length - 1, length + 1, length / 2, out.length - 7, out.length};
        uint64_t claim = i < 9 ? lengths[i] : near[i - 9];
        memcpy(out.data, &claim, 8);
        snprintf(name, sizeof name, "st_length_%zu", i);
        emit_weights(e, name, "model.safetensors", &out);
        bytes_free(&out);
    }
    uint64_t length;
    memcpy(&length, e->good.data, 8);
    for (size_t at = 0; at < e->good.length; at += at < 10 ? 1 : at < 8 + length ? 97 : 4001) {
        struct bytes out = {0};
        bytes_put(&out, e->good.data, at);
        snprintf(name, sizeof name, "st_cut_%zu", at);
        emit_weights(e, name, "model.safetensors", &out);
        bytes_free(&out);
    }
    struct bytes out = {0};
    bytes_put(&out, e->good.data, e->good.length - 1);
    emit_weights(e, "st_cut_last", "model.layers.0.mlp.down_proj.weight", &out);
    bytes_put(&out, "xy", 2);
    emit_weights(e, "st_trailing_byte", "follow", &out);
    out.length = 0;
    bytes_text(&out, "<!DOCTYPE html><html><body>Not found</body></html>");
    emit_weights(e, "st_html", "web page", &out);
    bytes_free(&out);
}

static void header_texts(const struct emitter *e)
{
    static const char *const texts[] = {
        "[]",
        "{",
        "{}",
        "null",
        "{\"a\":1}",
        "{\"a\":null}",
        "{\"a\":[]}",
        "{\"a\":{}} x",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"F32\",\"shape\":[0],"
        "\"data_offsets\":[0,0]}}",
        "{\"__metadata__\":[]}",
        "{\"__metadata__\":\"x\"}",
        "{\"\":{\"dtype\":\"F32\",\"shape\":[0],"
        "\"data_offsets\":[0,0]}}",
        "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[NaN],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}"};
    char name[64];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        snprintf(name, sizeof name, "st_text_%zu", i);
        emit_header(e, name, "model.safetensors", texts[i], TINY_ACTUAL);
    }
    struct bytes deep = {0};
    bytes_text(&deep, "{\"a\":");
    for (int i = 0; i < 20000; i++)
        bytes_text(&deep, "[");
    bytes_put(&deep, "", 1);
    emit_header(e, "st_deep", "deeper", (const char *)deep.data, TINY_ACTUAL);
    bytes_free(&deep);
}

/* Each change to one tensor's entry, given as text of the member. */
static void entries(const struct emitter *e)
{
    static const struct {
        const char *member, *json;
    } changes[] = {{"dtype", NULL},
                   {"dtype", "\"Q4_0\""},
                   {"dtype", "\"\""},
                   {"dtype", "\"bf16\""},
                   {"dtype", "4"},
                   {"dtype", "null"},
                   {"dtype", "\"F32\""},
                   {"dtype", "\"F64\""},
                   {"dtype", "\"I8\""},
                   {"dtype", "\"I16\""},
                   {"dtype", "\"U16\""},
                   {"dtype", "\"F8_E4M3\""},
                   {"shape", NULL},
                   {"shape", "\"32\""},
                   {"shape", "32"},
                   {"shape", "[-1, 32]"},
                   {"shape", "[32.0, 32]"},
                   {"shape", "[\"32\", 32]"},
                   {"shape", "[1,1,1,32,32]"},
                   {"shape", "[9223372036854775807, 2]"},
                   {"shape", "[4611686018427387904, 4]"},
                   {"shape", "[4294967296, 4294967296, 4294967296]"},
                   {"shape", "[0, 32]"},
                   {"shape", "[31, 32]"},
                   {"shape", "[]"},
                   {"shape", "{}"},
                   {"shape", "[16, 64]"},
                   {"shape", "[1024]"},
                   {"data_offsets", NULL},
                   {"data_offsets", "[]"},
                   {"data_offsets", "[0]"},
                   {"data_offsets", "[0, 1, 2]"},
                   {"data_offsets", "[-2, 2046]"},
                   {"data_offsets", "[\"0\", \"2048\"]"},
                   {"data_offsets", "[2048, 0]"},
                   {"data_offsets", "[0, 9223372036854775807]"},
                   {"data_offsets", "[9223372036854773759, 9223372036854775807]"},
                   {"data_offsets", "[1, 2049]"},
                   {"data_offsets", "[64, 2112]"},
                   {"data_offsets", "[0, 2046]"},
                   {"data_offsets", "[0, 2050]"},
                   {"data_offsets", "[1e3, 2e3]"},
                   {"data_offsets", "{\"0\": 0}"}};
    static const char *const names[] = {"lm_head.weight", "model.layers.0.self_attn.q_proj.weight"};
    char name[64];
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
            size_t data_bytes;
            json_t *header = tiny_header(&data_bytes), *entry = json_object_get(header, names[t]);
            if (changes[i].json == NULL)
                json_object_del(entry, changes[i].member);
            else
                json_object_set_new(entry, changes[i].member, json_loads(changes[i].json, JSON_DECODE_ANY, NULL));
            struct bytes out = {0};
            tiny_safetensors_build(header, data_bytes, &out);
            snprintf(name, sizeof name, "st_entry_%d_%zu", t, i);
            /* With moved offsets the neighbour may be the one that is named. */
            bool moved = strcmp(changes[i].member, "data_offsets") == 0;
            emit_weights(e, name, moved ? "tensor '" : names[t], &out);
            bytes_free(&out);
            json_decref(header);
        }
    }
}

static void tensors(const struct emitter *e)
{
    size_t data_bytes;
    json_t *all = tiny_header(&data_bytes);
    const char *tensor;
    json_t *entry;
    char name[128];
    json_object_foreach(all, tensor, entry)
    {
        if (strcmp(tensor, "__metadata__") == 0 || strcmp(tensor, "lm_head.weight") == 0) continue;
        json_t *header = tiny_header(&data_bytes);
        json_t *moved = json_incref(json_object_get(header, tensor));
        json_object_del(header, tensor);
        json_object_set_new(header, "something.else", moved);
        struct bytes out = {0};
        tiny_safetensors_build(header, data_bytes, &out);
        snprintf(name, sizeof name, "st_missing_%s", tensor);
        emit_weights(e, name, tensor, &out);
        bytes_free(&out);
        json_decref(header);
    }
    json_decref(all);
    static const char *const extra[] = {"model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.down_proj.bias"};
    for (int i = 0; i < 2; i++) {
        json_t *header = tiny_header(&data_bytes);
        json_object_set_new(header, extra[i],
                            json_pack("{s:s, s:[i], s:[i, i]}", "dtype", "BF16", "shape", 32, "data_offsets",
                                      (int)data_bytes, (int)data_bytes + 64));
        struct bytes out = {0};
        tiny_safetensors_build(header, data_bytes + 64, &out);
        snprintf(name, sizeof name, "st_extra_%d", i);
        emit_weights(e, name, extra[i], &out);
        bytes_free(&out);
        json_decref(header);
    }
}

static void indexes(const struct emitter *e)
{
    static const char *const shards[] = {"\"../../etc/passwd\"",
                                         "\"/etc/passwd\"",
                                         "\"sub/a.safetensors\"",
                                         "\"..\"",
                                         "\".\"",
                                         "\".hidden.safetensors\"",
                                         "\"\"",
                                         "3",
                                         "null",
                                         "[]",
                                         "\"a\\\\b.safetensors\"",
                                         "\"a.safetensors\\u0000.txt\"",
                                         "\"./a.safetensors\"",
                                         "\"../a.safetensors\""};
    char text[512], name[64];
    const struct malformed_file config = {"config.json", e->config, strlen(e->config)};
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        int n = snprintf(text, sizeof text, "{\"weight_map\":{\"lm_head.weight\":%s}}", shards[i]);
        const struct malformed_file files[] = {
            config, {"model.safetensors.index.json", text, (size_t)n}, {"a.safetensors", e->good.data, e->good.length}};
        snprintf(name, sizeof name, "index_name_%zu", i);
        hand_out(e, name, "weight_map", files, 3);
    }
    static const struct {
        const char *text, *expected;
    } others[] = {{"{\"weight_map\":{\"lm_head.weight\":\"b.safetensors\"}}", "b.safetensors"},
                  {"{\"weight_map\":{\"nowhere.weight\":\"a.safetensors\"}}", "nowhere.weight"},
                  {"{\"weight_map\":{}}", "weight_map"},
                  {"{\"weight_map\":[]}", "weight_map"},
                  {"{}", "weight_map"},
                  {"[]", "weight_map"},
                  {"{\"weight_map\":", "index.json"},
                  {"", "index.json"},
                  {"{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"a.safetensors\"}}", "index.json"},
                  {"{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\",\"x\":\"config.json\"}}", "config.json"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct malformed_file files[] = {config,
                                               {"model.safetensors.index.json", others[i].text, strlen(others[i].text)},
                                               {"a.safetensors", e->good.data, e->good.length}};
        snprintf(name, sizeof name, "index_%zu", i);
        hand_out(e, name, others[i].expected, files, 3);
    }
    static const char both[] = "{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\","
                               "\"model.norm.weight\":\"b.safetensors\"}}";
    const struct malformed_file files[] = {config,
                                           {"model.safetensors.index.json", both, sizeof both - 1},
                                           {"a.safetensors", e->good.data, e->good.length},
                                           {"b.safetensors", e->good.data, e->good.length}};
    hand_out(e, "index_duplicate_tensors", "two shards", files, 4);
    hand_out(e, "no_weights", "model.safetensors", &config, 1);
    const struct malformed_file bare = {"model.safetensors", e->good.data, e->good.length};
    hand_out(e, "no_config", "config.json", &bare, 1);
}

static void config_types(const struct emitter *e)
{
    enum { INTEGER, NUMBER, FLAG, TEXT, RANGE };
    static const struct {
        const char *field;
        int kind;
        bool required;
    } fields[] = {{"model_type", TEXT, true},
                  {"num_hidden_layers", INTEGER, true},
                  {"max_position_embeddings", INTEGER, true},
                  {"hidden_size", INTEGER, true},
                  {"intermediate_size", INTEGER, true},
                  {"vocab_size", INTEGER, true},
                  {"num_attention_heads", INTEGER, true},
                  {"num_key_value_heads", INTEGER, false},
                  {"head_dim", INTEGER, false},
                  {"rms_norm_eps", NUMBER, false},
                  {"rope_theta", NUMBER, false},
                  {"hidden_act", TEXT, false},
                  {"tie_word_embeddings", FLAG, false},
                  {"use_sliding_window", FLAG, false},
                  {"mlp_bias", FLAG, false},
                  {"attention_bias", FLAG, false},
                  {"partial_rotary_factor", NUMBER, false}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *f = fields[i].field;
        json_t *const values[] = {json_integer(1),     json_real(1.5), json_true(),
                                  json_string("text"), json_array(),   json_object()};
        static const int fitting[] = {INTEGER, NUMBER, FLAG, TEXT, RANGE, RANGE};
        for (int k = 0; k < 6; k++) {
            bool fits = fitting[k] == fields[i].kind || (fields[i].kind == NUMBER && k == 0);
            if (fits)
                json_decref(values[k]);
            else
                emit_config(e, f, values[k], f, "config_%s_type_%d", f, k);
        }
        if (fields[i].required) {
            emit_config(e, f, NULL, f, "config_%s_missing", f);
            emit_config(e, f, json_null(), f, "config_%s_null", f);
        }
        if (fields[i].kind == INTEGER) {
            static const int64_t bad[] = {0, -1, 1ll << 31, 1ll << 40, INT64_MAX, INT64_MIN};
            for (int k = 0; k < 6; k++)
                emit_config(e, f, json_integer(bad[k]), f, "config_%s_value_%d", f, k);
        }
        if (fields[i].kind == NUMBER) {
            static const double bad[] = {0, -1, 1e300};
            for (int k = 0; k < 3; k++)
                emit_config(e, f, json_real(bad[k]), f, "config_%s_value_%d", f, k);
        }
    }
}

static void config_values(const struct emitter *e)
{
    static const struct {
        const char *field, *json, *expected;
    } values[] = {
        {"num_hidden_layers", "1000000000", "num_hidden_layers"},
        {"num_hidden_layers", "2", "model.layers.1."},
        {"hidden_size", "64", "model.embed_tokens.weight"},
        {"hidden_size", "30", "hidden_size"},
        {"intermediate_size", "32", "gate_proj.weight"},
        {"vocab_size", "33", "model.embed_tokens.weight"},
        {"vocab_size", "31", "model.embed_tokens.weight"},
        {"num_attention_heads", "3", "num_key_value_heads"},
        {"num_key_value_heads", "3", "num_key_value_heads"},
        {"num_key_value_heads", "8", "num_key_value_heads"},
        {"num_key_value_heads", "4", "k_proj.weight"},
        {"head_dim", "7", "head_dim"},
        {"head_dim", "16", "q_proj.weight"},
        {"rms_norm_eps", "1", "rms_norm_eps"},
        {"rope_theta", "1", "rope_theta"},
        {"model_type", "\"mamba\"", "mamba"},
        {"model_type", "\"deepseek_v4\"", "deepseek_v4"},
        {"model_type", "\"deepseek_v3\"", "kv_lora_rank"},
        {"n_routed_experts", "4", "n_routed_experts"},
        {"num_experts", "4", "num_experts"},
        {"num_local_experts", "4", "num_local_experts"},
        {"moe_intermediate_size", "64", "moe_intermediate_size"},
        {"kv_lora_rank", "64", "kv_lora_rank"},
        {"quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", "quantization_config"},
        {"model_type", "\"qwen3_moe\"", "qwen3_moe"},
        {"model_type", "\"\"", "model_type"},
        {"model_type", "\"qwen2\"", "q_proj.bias"},
        {"model_type", "\"qwen3\"", "q_norm.weight"},
        {"hidden_act", "\"gelu\"", "hidden_act"},
        {"hidden_act", "\"relu2\"", "hidden_act"},
        {"use_sliding_window", "true", "use_sliding_window"},
        {"mlp_bias", "true", "mlp_bias"},
        {"attention_bias", "true", "q_proj.bias"},
        {"layer_types", "[\"sliding_attention\"]", "layer_types"},
        {"layer_types", "[3]", "layer_types"},
        {"layer_types", "\"full_attention\"", "layer_types"},
        {"architectures", "[\"LlamaForSequenceClassification\"]", "architectures"},
        {"architectures", "[\"LlamaModel\"]", "architectures"},
        {"quantization_config", "{\"quant_method\":\"awq\"}", "quantization_config"},
        {"quantization_config", "{}", "quantization_config"},
        {"partial_rotary_factor", "0.5", "partial_rotary_factor"},
        {"eos_token_id", "32", "eos_token_id"},
        {"eos_token_id", "-1", "eos_token_id"},
        {"eos_token_id", "\"2\"", "eos_token_id"},
        {"eos_token_id", "2.5", "eos_token_id"},
        {"eos_token_id", "[1, \"2\"]", "eos_token_id"},
        {"eos_token_id", "[1, 4294967298]", "eos_token_id"},
        {"eos_token_id", "{}", "eos_token_id"},
        {"eos_token_id", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "eos_token_id"},
        {"_name_or_path", "7", "_name_or_path"},
        {"rope_scaling", "4", "rope_scaling"},
        {"rope_scaling", "[]", "rope_scaling"},
        {"rope_scaling", "{\"type\":\"dynamic\",\"factor\":2.0}", "rope_scaling.rope_type"},
        {"rope_scaling", "{\"rope_type\":\"longrope\",\"factor\":2.0}", "rope_scaling.rope_type"},
        {"rope_scaling", "{\"rope_type\":5,\"factor\":2.0}", "rope_scaling.rope_type"},
        {"rope_scaling", "{\"factor\":2.0}", "rope_scaling.rope_type"},
        {"rope_scaling", "{\"type\":\"linear\"}", "rope_scaling.factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":0}", "rope_scaling.factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":-2}", "rope_scaling.factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":\"4\"}", "rope_scaling.factor"},
        {"rope_scaling", "{\"type\":\"linear\",\"factor\":1e300}", "rope_scaling.factor"},
        {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}", "rope_scaling.low_freq_factor"},
        {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}",
         "rope_scaling.high_freq_factor"},
        {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}",
         "rope_scaling.original_max_position_embeddings"},
        {"rope_scaling",
         "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":32}",
         "rope_scaling.high_freq_factor"},
        {"rope_scaling",
         "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":0,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":32}",
         "rope_scaling.low_freq_factor"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}",
         "rope_scaling.original_max_position_embeddings"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16.5}",
         "rope_scaling.original_max_position_embeddings"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":32}",
         "rope_scaling.beta_fast"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_slow\":0}", "rope_scaling.beta_slow"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":-1}",
         "rope_scaling.attention_factor"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":0}",
         "rope_scaling.attention_factor"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":-1}", "rope_scaling.mscale"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1e300}", "rope_scaling.mscale"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"mscale_all_dim\":-1}", "rope_scaling.mscale_all_dim"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1,\"mscale_all_dim\":1e300}",
         "rope_scaling.mscale_all_dim"},
        {"rope_scaling", "{\"rope_type\":\"linear\",\"factor\":4,\"mscale_all_dim\":-1}",
         "rope_scaling.mscale_all_dim"},
        {"rope_scaling", "{\"rope_type\":\"linear\",\"factor\":4,\"mscale_all_dim\":\"1\"}",
         "rope_scaling.mscale_all_dim"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":false}", "rope_scaling.truncate"},
        {"rope_parameters", "{\"rope_theta\":\"x\"}", "rope_parameters.rope_theta"},
        {"rope_parameters", "{\"rope_theta\":0,\"rope_type\":\"default\"}", "rope_theta"},
        {"rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}", "full_attention"},
        {"rope_parameters", "{\"rope_type\":\"mrope\"}", "rope_parameters.rope_type"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        emit_config(e, values[i].field, json_loads(values[i].json, JSON_DECODE_ANY, NULL), values[i].expected,
                    "config_value_%zu", i);
}

static void side_files(const struct emitter *e)
{
    static const struct {
        const char *file, *text, *expected;
    } files[] = {
        {"config.json", "", "config.json"},
        {"config.json", "{", "config.json"},
        {"config.json", "[]", "config.json"},
        {"config.json", "null", "config.json"},
        {"config.json", "{\"model_type\":\"llama\",\"rope_theta\":NaN}", "config.json"},
        {"config.json", "{\"model_type\":\"llama\",\"rope_theta\":Infinity}", "config.json"},
        {"config.json", "{\"model_type\":\"llama\",\"rope_theta\":1e999}", "config.json"},
        {"config.json", "{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "config.json"},
        {"config.json", "{\"model_type\":\"llama\"} trailing", "config.json"},
        {"config.json", "<html></html>", "config.json"},
        {"config.json", "{\"model_type\":\"ll\xff\"}", "config.json"},
        {"config.json", "{\"model_type\":\"llama\",\"vocab_size\":99999999999999999999}", "config.json"},
        {"generation_config.json", "[]", "generation_config.json"},
        {"generation_config.json", "{", "generation_config.json"},
        {"generation_config.json", "{\"eos_token_id\":\"x\"}", "generation_config.json"},
        {"generation_config.json", "{\"eos_token_id\":[32]}", "generation_config.json"},
        {"generation_config.json", "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}",
         "generation_config.json"},
        {"tokenizer_config.json", "[]", "tokenizer_config.json"},
        {"tokenizer_config.json", "{\"chat_template\":", "tokenizer_config.json"},
        {"tokenizer_config.json", "{\"chat_template\":5}", "chat_template"},
        {"tokenizer_config.json", "{\"chat_template\":{}}", "chat_template"},
        {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"default\",\"template\":5}]}", "chat_template"},
        {"tokenizer_config.json", "{\"chat_template\":\"a\\u0000b\"}", "chat template"},
        {"tokenizer.json", "[]", "tokenizer.json"},
        {"tokenizer.json", "{\"model\":", "tokenizer.json"},
        {"tokenizer.json", "<!DOCTYPE html>", "tokenizer.json"},
        {"chat_template.jinja", "{{ \xff }}", "chat_template.jinja"}};
    char name[64];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "side_file_%zu", i);
        emit_text(e, files[i].file, name, files[i].expected, files[i].text, strlen(files[i].text));
    }
    struct bytes deep = {0};
    bytes_text(&deep, "{\"model_type\":");
    for (int i = 0; i < 50000; i++)
        bytes_text(&deep, "{\"a\":");
    emit_text(e, "config.json", "config_deep", "deeper", (const char *)deep.data, deep.length);
    bytes_free(&deep);
    for (size_t at = 1; at + 1 < strlen(e->config); at += 23) {
        snprintf(name, sizeof name, "config_cut_%zu", at);
        emit_text(e, "config.json", name, "config.json", e->config, at);
    }
}

void malformed_hugging_face(malformed_fn *fn, void *user)
{
    struct emitter e = {.fn = fn, .user = user};
    size_t data_bytes;
    json_t *header = tiny_header(&data_bytes), *config = tiny_config();
    tiny_safetensors_build(header, data_bytes, &e.good);
    e.config = json_dumps(config, 0);
    header_lengths(&e);
    header_texts(&e);
    entries(&e);
    tensors(&e);
    indexes(&e);
    config_types(&e);
    config_values(&e);
    side_files(&e);
    bytes_free(&e.good);
    dse_json_free_text(e.config);
    json_decref(header);
    json_decref(config);
}

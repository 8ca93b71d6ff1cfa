/* Broken GGUF files. One change per case to the tiny model of tiny_model.c. */
#include "malformed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny_model.h"

struct emitter {
    malformed_fn *fn;
    void *user;
};

static void emit_bytes(const struct emitter *e, const char *name, const char *expected, const void *data, size_t n)
{
    struct malformed_case bad = {name, expected, "model.gguf", {{"model.gguf", data, n}}, 1};
    e->fn(e->user, &bad);
}

/* Builds g, hands it out, frees it. */
static __attribute__((format(printf, 4, 5))) void emit(const struct emitter *e, struct tiny_gguf *g,
                                                       const char *expected, const char *format, ...)
{
    char name[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    struct bytes out = {0};
    tiny_gguf_build(g, &out);
    emit_bytes(e, name, expected, out.data, out.length);
    bytes_free(&out);
    tiny_gguf_free(g);
}

static const uint64_t claims[] = {1ull << 31, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX - 1, UINT64_MAX - 7};
#define N_CLAIMS (sizeof claims / sizeof *claims)

static void starts(const struct emitter *e)
{
    struct tiny_gguf g;
    static const char *const magics[] = {"GGUX", "FUGG", "ggml", "gguf", "PK\3\4"};
    static const uint32_t versions[] = {0, 1, 4, 0x02000000, 0x03000000, UINT32_MAX};
    static const char html[] = "<!DOCTYPE html>\n<html><head><title>Not found</title></head></html>\n";
    static const char spaced[] = "\n\n  <html></html>";
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        tiny_gguf_init(&g);
        memcpy(g.magic, magics[i], 4);
        emit(e, &g, "not a GGUF file", "magic_%zu", i);
    }
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        tiny_gguf_init(&g);
        g.version = versions[i];
        emit(e, &g, i == 3 || i == 4 ? "big-endian" : "version", "version_%u", versions[i]);
    }
    emit_bytes(e, "empty", "empty", "", 0);
    emit_bytes(e, "html", "web page", html, sizeof html - 1);
    emit_bytes(e, "html_after_spaces", "web page", spaced, sizeof spaced - 1);
    struct bytes zeros = {0};
    bytes_zero(&zeros, 4096);
    emit_bytes(e, "zeros", "not a GGUF file", zeros.data, zeros.length);
    bytes_free(&zeros);
    struct malformed_case directory = {
        "directory", "not a regular file", "directory.gguf", {{"directory.gguf/inside", "x", 1}}, 1};
    /* A folder without config.json: refused as a model folder. */
    directory.expected = "config.json";
    e->fn(e->user, &directory);
}

static void counts(const struct emitter *e)
{
    struct tiny_gguf g;
    struct bytes whole = {0};
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &whole);
    size_t length = whole.length;
    int n_values = g.n_values, n_tensors = g.n_tensors;
    bytes_free(&whole);
    tiny_gguf_free(&g);
    for (size_t i = 0; i < N_CLAIMS; i++) {
        tiny_gguf_init(&g);
        g.claimed_values = claims[i];
        emit(e, &g, "key count", "key_count_%llx", (unsigned long long)claims[i]);
        tiny_gguf_init(&g);
        g.claimed_tensors = claims[i];
        emit(e, &g, "tensor count", "tensor_count_%llx", (unsigned long long)claims[i]);
    }
    const uint64_t near[] = {length, length / 14, 65537, (uint64_t)n_values + 1, (uint64_t)n_values - 1, 0};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        tiny_gguf_init(&g);
        g.claimed_values = near[i];
        emit(e, &g, "", "key_count_near_%zu", i);
    }
    const uint64_t near_tensors[] = {length, length / 33, (uint64_t)n_tensors + 1, (uint64_t)n_tensors - 1, 0};
    for (size_t i = 0; i < sizeof near_tensors / sizeof *near_tensors; i++) {
        tiny_gguf_init(&g);
        g.claimed_tensors = near_tensors[i];
        emit(e, &g, "", "tensor_count_near_%zu", i);
    }
}

static void strings(const struct emitter *e)
{
    struct tiny_gguf g;
    static const uint64_t lengths[] = {0,          1u << 16,   1ull << 31,     1ull << 32,
                                       1ull << 62, 1ull << 63, UINT64_MAX - 1, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned long long n = lengths[i];
        tiny_gguf_init(&g);
        g.values[4].key_claim = lengths[i];
        emit(e, &g, "key", "key_length_%llx", n);
        tiny_gguf_init(&g);
        g.tensors[2].name_claim = lengths[i];
        emit(e, &g, "tensor name", "tensor_name_length_%llx", n);
        if (i == 0) continue;
        static const char *const keys[] = {"general.architecture", "general.name", "tokenizer.chat_template"};
        for (int k = 0; k < 3; k++) {
            tiny_gguf_init(&g);
            memcpy(tiny_value(&g, keys[k])->payload.data, &lengths[i], 8);
            emit(e, &g, keys[k], "string_length_%llx_%d", n, k);
        }
        tiny_gguf_init(&g); /* a string inside an array: behind the element type, the count and a token */
        memcpy(tiny_value(&g, "tokenizer.ggml.tokens")->payload.data + 12 + 10, &lengths[i], 8);
        emit(e, &g, "tokenizer.ggml.tokens", "array_string_length_%llx", n);
    }
    tiny_gguf_init(&g);
    tiny_value(&g, "general.name")->key[3] = '\0'; /* key_bytes still counts it */
    emit(e, &g, "control", "key_with_nul");
    tiny_gguf_init(&g);
    tiny_value(&g, "general.name")->key[3] = '\n';
    emit(e, &g, "control", "key_with_newline");
    tiny_gguf_init(&g);
    tiny_value(&g, "general.name")->key[3] = (char)0xFF;
    emit(e, &g, "UTF-8", "key_not_utf8");
    tiny_gguf_init(&g);
    tiny_tensor(&g, "output.weight")->name[2] = '\x1b';
    emit(e, &g, "control", "tensor_name_with_escape");
    tiny_gguf_init(&g);
    tiny_tensor(&g, "output.weight")->name[2] = (char)0xC3;
    emit(e, &g, "UTF-8", "tensor_name_not_utf8");
    tiny_gguf_init(&g);
    memset(tiny_tensor(&g, "output.weight")->name, 'n', 300);
    emit(e, &g, "nnn", "tensor_name_of_300");
    tiny_gguf_init(&g);
    tiny_set_string(&g, "tokenizer.chat_template", "{{ \xC3\x28 }}");
    emit(e, &g, "tokenizer.chat_template", "template_not_utf8");
}

static void shapes(const struct emitter *e)
{
    struct tiny_gguf g;
    static const uint32_t n_dims[] = {0, 3, 5, 9, 255, 1u << 31, UINT32_MAX};
    static const uint64_t dims[][2] = {{1ull << 62, 4},
                                       {4, 1ull << 62},
                                       {UINT64_MAX, 2},
                                       {2, UINT64_MAX},
                                       {UINT64_MAX / 4, 1},
                                       {1ull << 32, 1ull << 32},
                                       {1ull << 33, 1ull << 33},
                                       {1ull << 63, 1},
                                       {UINT64_MAX - 31, 32},
                                       {0, 32},
                                       {32, 0},
                                       {1ull << 40, 32},
                                       {1ull << 59, 17},
                                       {1ull << 58, 32},
                                       {1ull << 61, 8}};
    static const uint32_t types[] = {4,  5,  9,  15, 16, 17, 18,         19,         21,
                                     22, 29, 31, 39, 40, 99, 0x7FFFFFFF, UINT32_MAX, 0xFFFF};
    static const uint64_t offsets[] = {
        1, 16, 1ull << 20, 1ull << 31, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX - 31, UINT64_MAX - 32 * 34 - 31};
    static const char *const names[] = {"token_embd.weight", "output_norm.weight", "blk.0.ffn_down.weight"};
    for (int t = 0; t < 3; t++) {
        for (size_t i = 0; i < sizeof n_dims / sizeof *n_dims; i++) {
            tiny_gguf_init(&g);
            tiny_tensor(&g, names[t])->n_dims = n_dims[i];
            emit(e, &g, names[t], "n_dims_%d_%u", t, n_dims[i]);
        }
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            tiny_gguf_init(&g);
            struct tiny_tensor *tensor = tiny_tensor(&g, names[t]);
            tensor->n_dims = 2;
            tensor->dims[0] = dims[i][0];
            tensor->dims[1] = dims[i][1];
            emit(e, &g, names[t], "dims_%d_%zu", t, i);
            tiny_gguf_init(&g);
            tensor = tiny_tensor(&g, names[t]);
            tensor->n_dims = 4;
            tensor->dims[0] = 32;
            tensor->dims[1] = dims[i][0];
            tensor->dims[2] = dims[i][1];
            tensor->dims[3] = 3;
            emit(e, &g, names[t], "dims4_%d_%zu", t, i);
        }
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            tiny_gguf_init(&g);
            tiny_tensor(&g, names[t])->type = types[i];
            emit(e, &g, names[t], "type_%d_%u", t, types[i]);
        }
        for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
            tiny_gguf_init(&g);
            tiny_tensor(&g, names[t])->offset = offsets[i];
            emit(e, &g, names[t], "offset_%d_%zu", t, i);
        }
    }
    static const uint64_t rows[] = {1, 31, 33, 48, 16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tiny_gguf_init(&g);
        tiny_tensor(&g, "blk.0.attn_q.weight")->dims[0] = rows[i];
        emit(e, &g, "blk.0.attn_q.weight", "row_not_whole_blocks_%zu", i);
    }
    static const uint32_t wrong_types[] = {24, 25, 26, 27};
    for (size_t i = 0; i < 4; i++) {
        tiny_gguf_init(&g);
        tiny_tensor(&g, "blk.0.attn_q.weight")->type = wrong_types[i];
        emit(e, &g, "blk.0.attn_q.weight", "integer_weight_%u", wrong_types[i]);
    }
    tiny_gguf_init(&g);
    tiny_tensor(&g, "output_norm.weight")->type = 8;
    emit(e, &g, "output_norm.weight", "quantized_norm");
}

static void alignment(const struct emitter *e)
{
    struct tiny_gguf g;
    static const uint32_t values[] = {0, 1, 3, 4, 7, 31, 33, 48, 1u << 17, 1u << 30, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        tiny_gguf_init(&g);
        tiny_set_u32(&g, "general.alignment", values[i]);
        emit(e, &g, "general.alignment", "alignment_%u", values[i]);
    }
    static const uint32_t types[] = {T_F32, T_F64, T_BOOL, T_STRING, T_ARRAY};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        tiny_gguf_init(&g);
        tiny_set_of_type(&g, "general.alignment", types[i]);
        emit(e, &g, "general.alignment", "alignment_type_%u", types[i]);
    }
    uint64_t huge = 1ull << 63;
    tiny_gguf_init(&g);
    tiny_set(&g, "general.alignment", T_U64, &huge, 8);
    emit(e, &g, "general.alignment", "alignment_u64");
    int32_t negative = -32;
    tiny_gguf_init(&g);
    tiny_set(&g, "general.alignment", T_I32, &negative, 4);
    emit(e, &g, "general.alignment", "alignment_negative");
    tiny_gguf_init(&g); /* says 64, laid out by 32 */
    tiny_set_u32(&g, "general.alignment", 4096);
    emit(e, &g, "", "alignment_not_kept");
}

static void arrays(const struct emitter *e)
{
    struct tiny_gguf g;
    static const char *const keys[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
                                       "tokenizer.ggml.merges"};
    static const uint32_t elements[] = {T_STRING, T_F32, T_I32, T_STRING};
    static const uint64_t sizes[] = {1000000000, 1ull << 31, 1ull << 32,    1ull << 61,
                                     1ull << 62, 1ull << 63, UINT64_MAX - 1};
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            tiny_gguf_init(&g);
            tiny_set_array(&g, keys[k], elements[k], sizes[i], 4);
            emit(e, &g, keys[k], "array_count_%d_%zu", k, i);
        }
        static const uint32_t unknown[] = {13, 14, 255, 1u << 31, UINT32_MAX};
        for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
            tiny_gguf_init(&g);
            tiny_set_array(&g, keys[k], unknown[i], 32, 32);
            emit(e, &g, keys[k], "array_type_%d_%zu", k, i);
        }
        tiny_gguf_init(&g);
        tiny_set_array(&g, keys[k], T_ARRAY, 32, 32);
        emit(e, &g, keys[k], "array_of_arrays_%d", k);
        tiny_gguf_init(&g);
        struct bytes deep = {0}; /* arrays of one array, ten thousand deep */
        for (int i = 0; i < 10000; i++) {
            bytes_u32(&deep, T_ARRAY);
            bytes_u64(&deep, 1);
        }
        tiny_set(&g, keys[k], T_ARRAY, deep.data, deep.length);
        bytes_free(&deep);
        emit(e, &g, keys[k], "array_depth_%d", k);
        static const uint64_t others[] = {31, 33, 0, 1};
        for (size_t i = 0; i < 4 && k < 3; i++) {
            if (k == 0 && (others[i] == 31 || others[i] == 1)) continue; /* fewer tokens alone are fine */
            tiny_gguf_init(&g);
            tiny_set_array(&g, keys[k], elements[k], others[i], others[i]);
            emit(e, &g, keys[k], "array_length_%d_%zu", k, i);
        }
        for (uint32_t type = 0; type <= T_F64; type++) {
            bool integer = type <= T_I32 || type == T_U64 || type == T_I64;
            if (type == elements[k] || type == T_ARRAY || (k == 2 && integer)) continue;
            tiny_gguf_init(&g);
            tiny_set_array(&g, keys[k], type, 32, 32);
            emit(e, &g, keys[k], "array_element_%d_%u", k, type);
        }
    }
    tiny_gguf_init(&g);
    int32_t bad_type = 7;
    memcpy(tiny_value(&g, "tokenizer.ggml.token_type")->payload.data + 12 + 4 * 9, &bad_type, 4);
    emit(e, &g, "tokenizer.ggml.token_type", "token_type_7");
    tiny_gguf_init(&g);
    bad_type = -1;
    memcpy(tiny_value(&g, "tokenizer.ggml.token_type")->payload.data + 12, &bad_type, 4);
    emit(e, &g, "tokenizer.ggml.token_type", "token_type_negative");
}

/* What a key must be: which value types are fine is decided by its kind. */
static void wrong_types(const struct emitter *e)
{
    enum { INTEGER, NUMBER, TEXT, FLAG, LIST };
    static const struct {
        const char *key;
        int kind;
    } keys[] = {{"general.architecture", TEXT},
                {"general.name", TEXT},
                {"general.basename", TEXT},
                {"llama.block_count", INTEGER},
                {"llama.context_length", INTEGER},
                {"llama.embedding_length", INTEGER},
                {"llama.feed_forward_length", INTEGER},
                {"llama.attention.head_count", INTEGER},
                {"llama.attention.head_count_kv", INTEGER},
                {"llama.attention.key_length", INTEGER},
                {"llama.attention.value_length", INTEGER},
                {"llama.attention.layer_norm_rms_epsilon", NUMBER},
                {"llama.rope.freq_base", NUMBER},
                {"llama.rope.dimension_count", INTEGER},
                {"llama.rope.scaling.type", TEXT},
                {"llama.rope.scaling.factor", NUMBER},
                {"llama.rope.scaling.finetuned", FLAG},
                {"llama.rope.scale_linear", NUMBER},
                {"llama.vocab_size", INTEGER},
                {"llama.expert_count", INTEGER},
                {"split.count", INTEGER},
                {"split.tensors.count", INTEGER},
                {"tokenizer.ggml.model", TEXT},
                {"tokenizer.ggml.pre", TEXT},
                {"tokenizer.ggml.tokens", LIST},
                {"tokenizer.ggml.scores", LIST},
                {"tokenizer.ggml.token_type", LIST},
                {"tokenizer.ggml.merges", LIST},
                {"tokenizer.ggml.bos_token_id", INTEGER},
                {"tokenizer.ggml.eos_token_id", INTEGER},
                {"tokenizer.ggml.eot_token_id", INTEGER},
                {"tokenizer.ggml.padding_token_id", INTEGER},
                {"tokenizer.ggml.add_bos_token", FLAG},
                {"tokenizer.ggml.add_eos_token", FLAG},
                {"tokenizer.chat_template", TEXT}};
    struct tiny_gguf g;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (uint32_t type = 0; type <= 13; type++) {
            bool integer = type <= T_I32 || type == T_U64 || type == T_I64;
            bool number = integer || type == T_F32 || type == T_F64;
            int kind = keys[i].kind;
            if ((kind == INTEGER && integer) || (kind == NUMBER && number) || (kind == TEXT && type == T_STRING) ||
                (kind == FLAG && type == T_BOOL) || (kind == LIST && type == T_ARRAY))
                continue;
            tiny_gguf_init(&g);
            tiny_set_of_type(&g, keys[i].key, type);
            emit(e, &g, keys[i].key, "key_%zu_type_%u", i, type);
        }
        if (keys[i].kind == FLAG) {
            uint8_t two = 2;
            tiny_gguf_init(&g);
            tiny_set(&g, keys[i].key, T_BOOL, &two, 1);
            emit(e, &g, keys[i].key, "key_%zu_bool_2", i);
        }
        if (keys[i].kind == NUMBER) {
            static const float bad[] = {NAN, INFINITY, -INFINITY, -1};
            for (int k = 0; k < 4; k++) {
                tiny_gguf_init(&g);
                tiny_set_f32(&g, keys[i].key, bad[k]);
                emit(e, &g, strstr(keys[i].key, "scale_linear") && k == 3 ? "factor" : keys[i].key, "key_%zu_float_%d",
                     i, k);
            }
        }
    }
}

static void set_pair(const struct emitter *e, const char *key, int64_t value, const char *expected)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_set(&g, key, T_I64, &value, 8);
    emit(e, &g, expected, "value_%s_%lld", key, (long long)value);
}

static void hyper_parameters(const struct emitter *e)
{
    static const struct {
        const char *key;
        int64_t limit; /* a value above it is out of every range */
    } required[] = {{"llama.block_count", 1000000000},
                    {"llama.context_length", 1ll << 31},
                    {"llama.embedding_length", 1ll << 30},
                    {"llama.feed_forward_length", 1ll << 30},
                    {"llama.attention.head_count", 100000}};
    struct tiny_gguf g;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        const char *key = required[i].key;
        set_pair(e, key, 0, key);
        set_pair(e, key, -1, key);
        set_pair(e, key, required[i].limit, key);
        set_pair(e, key, INT64_MAX, key);
        set_pair(e, key, INT64_MIN, key);
        uint64_t huge = UINT64_MAX;
        tiny_gguf_init(&g);
        tiny_set(&g, key, T_U64, &huge, 8);
        emit(e, &g, key, "value_%s_u64_max", key);
        tiny_gguf_init(&g);
        tiny_remove(&g, key);
        emit(e, &g, key, "missing_%s", key);
    }
    static const struct {
        const char *key;
        int64_t value;
        const char *expected;
    } values[] = {{"llama.block_count", 2, "blk.1."},
                  {"llama.embedding_length", 64, "token_embd.weight"},
                  {"llama.feed_forward_length", 32, "ffn_gate.weight"},
                  {"llama.feed_forward_length", 65, "ffn_gate.weight"},
                  {"llama.attention.head_count", 3, "head_count_kv"},
                  {"llama.attention.head_count", 8, "attn_q.weight"},
                  {"llama.attention.head_count_kv", 0, "head_count_kv"},
                  {"llama.attention.head_count_kv", 3, "head_count_kv"},
                  {"llama.attention.head_count_kv", 8, "head_count_kv"},
                  {"llama.attention.head_count_kv", -2, "head_count_kv"},
                  {"llama.attention.head_count_kv", 1, "attn_k.weight"},
                  {"llama.attention.head_count_kv", 1ll << 40, "head_count_kv"},
                  {"llama.attention.key_length", 0, "key_length"},
                  {"llama.attention.key_length", 7, "key_length"},
                  {"llama.attention.key_length", 16, "key_length"},
                  {"llama.attention.key_length", 1ll << 32, "key_length"},
                  {"llama.attention.value_length", 0, "value_length"},
                  {"llama.attention.value_length", 16, "value_length"},
                  {"llama.rope.dimension_count", 0, "dimension_count"},
                  {"llama.rope.dimension_count", 3, "dimension_count"},
                  {"llama.rope.dimension_count", 10, "dimension_count"},
                  {"llama.rope.dimension_count", 1ll << 31, "dimension_count"},
                  {"llama.rope.freq_base", 0, "freq_base"},
                  {"llama.rope.freq_base", 1, "freq_base"},
                  {"llama.vocab_size", 0, "vocab_size"},
                  {"llama.vocab_size", 31, "tokenizer.ggml.tokens"},
                  {"llama.vocab_size", 33, "token_embd.weight"},
                  {"llama.vocab_size", 1ll << 31, "vocab_size"},
                  {"llama.expert_count", 4, "expert_count"},
                  {"llama.expert_count", -1, "expert_count"},
                  {"tokenizer.ggml.bos_token_id", 32, "bos_token_id"},
                  {"tokenizer.ggml.bos_token_id", -1, "bos_token_id"},
                  {"tokenizer.ggml.eos_token_id", 32, "eos_token_id"},
                  {"tokenizer.ggml.eos_token_id", 1ll << 31, "eos_token_id"},
                  {"tokenizer.ggml.eos_token_id", (1ll << 32) + 2, "eos_token_id"},
                  {"tokenizer.ggml.eot_token_id", 99, "eot_token_id"},
                  {"tokenizer.ggml.eom_token_id", -5, "eom_token_id"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (values[i].value == 16 && strstr(values[i].key, "key_length") != NULL) {
            /* Only with a rope of the same size does the shape decide. */
            set_pair(e, values[i].key, 16, "value_length");
            continue;
        }
        set_pair(e, values[i].key, values[i].value, values[i].expected);
    }
    static const float epsilons[] = {0, 1, 2, 1e30f};
    for (int i = 0; i < 4; i++) {
        tiny_gguf_init(&g);
        tiny_set_f32(&g, "llama.attention.layer_norm_rms_epsilon", epsilons[i]);
        emit(e, &g, "layer_norm_rms_epsilon", "epsilon_%d", i);
    }
    tiny_gguf_init(&g);
    tiny_remove(&g, "llama.attention.layer_norm_rms_epsilon");
    emit(e, &g, "layer_norm_rms_epsilon", "missing_epsilon");
    tiny_gguf_init(&g);
    tiny_remove(&g, "general.architecture");
    emit(e, &g, "general.architecture", "missing_architecture");
    static const char *const architectures[] = {"", "mamba", "deepseek2", "deepseek4", "llama4", "LLAMA", "qwen2moe"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        tiny_gguf_init(&g);
        tiny_set_string(&g, "general.architecture", architectures[i]);
        emit(e, &g, architectures[i][0] != '\0' ? architectures[i] : "general.architecture", "architecture_%zu", i);
    }
    tiny_gguf_init(&g);
    tiny_remove(&g, "llama.vocab_size");
    tiny_remove(&g, "tokenizer.ggml.tokens");
    tiny_remove(&g, "tokenizer.ggml.eos_token_id");
    emit(e, &g, "vocab_size", "no_vocabulary");
    tiny_gguf_init(&g);
    tiny_remove(&g, "llama.attention.key_length");
    tiny_set_u32(&g, "llama.embedding_length", 30);
    emit(e, &g, "embedding_length", "embedding_not_divisible");
}

static void rope(const struct emitter *e)
{
    static const struct {
        const char *type;
        float factor;
        int64_t original;
        float fast, slow;
        const char *expected;
    } scalings[] = {{"longrope", 4, 32, 32, 1, "rope.scaling.type"},
                    {"dynamic", 4, 32, 32, 1, "rope.scaling.type"},
                    {"", 4, 32, 32, 1, "rope.scaling.type"},
                    {"linear", 0, 32, 32, 1, "rope.scaling.factor"},
                    {"linear", 0.5f, 32, 32, 1, "rope.scaling.factor"},
                    {"linear", 1e9f, 32, 32, 1, "rope.scaling.factor"},
                    {"yarn", 0, 32, 32, 1, "rope.scaling.factor"},
                    {"yarn", -4, 32, 32, 1, "rope.scaling.factor"},
                    {"yarn", 4, 0, 32, 1, "original_context_length"},
                    {"yarn", 4, -1, 32, 1, "original_context_length"},
                    {"yarn", 4, 1ll << 31, 32, 1, "original_context_length"},
                    {"yarn", 4, 32, 1, 32, "yarn_beta_fast"},
                    {"yarn", 4, 32, 32, 0, "yarn_beta_slow"},
                    {"yarn", 4, 32, NAN, 1, "yarn_beta_fast"}};
    struct tiny_gguf g;
    for (size_t i = 0; i < sizeof scalings / sizeof *scalings; i++) {
        tiny_gguf_init(&g);
        tiny_set_string(&g, "llama.rope.scaling.type", scalings[i].type);
        tiny_set_f32(&g, "llama.rope.scaling.factor", scalings[i].factor);
        tiny_set(&g, "llama.rope.scaling.original_context_length", T_I64, &scalings[i].original, 8);
        tiny_set_f32(&g, "llama.rope.scaling.yarn_beta_fast", scalings[i].fast);
        tiny_set_f32(&g, "llama.rope.scaling.yarn_beta_slow", scalings[i].slow);
        emit(e, &g, scalings[i].expected, "rope_%zu", i);
    }
    static const char *const types[] = {"linear", "yarn"};
    for (int i = 0; i < 2; i++) {
        tiny_gguf_init(&g);
        tiny_set_string(&g, "llama.rope.scaling.type", types[i]);
        emit(e, &g, "rope.scaling.factor", "rope_no_factor_%s", types[i]);
    }
    static const float divisors[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 6; i++) {
        tiny_gguf_init(&g);
        struct tiny_tensor *t = tiny_add_tensor(&g, "rope_freqs.weight", i == 4 ? 1 : 0, i == 5 ? 8 : 4, 0);
        float all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        if (i < 4) all[2] = divisors[i];
        bytes_put(&t->content, all, t->data_bytes);
        emit(e, &g, "rope_freqs.weight", "rope_freqs_%d", i);
    }
}

static void duplicates(const struct emitter *e)
{
    struct tiny_gguf g;
    for (int i = 0; i < 24; i += 3) {
        tiny_gguf_init(&g);
        struct tiny_value *copy = &g.values[g.n_values++];
        *copy = g.values[i];
        copy->payload = (struct bytes){0};
        bytes_put(&copy->payload, g.values[i].payload.data, g.values[i].payload.length);
        emit(e, &g, g.values[i].key, "duplicate_key_%d", i);
    }
    for (int i = 0; i < 12; i += 2) {
        tiny_gguf_init(&g);
        struct tiny_tensor *copy = &g.tensors[g.n_tensors++];
        *copy = g.tensors[i];
        emit(e, &g, g.tensors[i].name, "duplicate_tensor_%d", i);
        tiny_gguf_init(&g); /* two tensors of the same bytes */
        g.tensors[i + 1].offset = 0;
        g.tensors[i].offset = 0;
        emit(e, &g, "overlap", "overlap_same_%d", i);
        tiny_gguf_init(&g); /* a tensor that begins inside the one before */
        g.tensors[3].offset = 32;
        emit(e, &g, "overlap", "overlap_inside_%d", i);
    }
}

static void tensors(const struct emitter *e)
{
    struct tiny_gguf g;
    tiny_gguf_init(&g);
    char names[12][64];
    int n = g.n_tensors;
    for (int i = 0; i < n; i++)
        snprintf(names[i], sizeof names[i], "%.63s", g.tensors[i].name);
    tiny_gguf_free(&g);
    for (int i = 0; i < n; i++) {
        bool head = strcmp(names[i], "output.weight") == 0;
        if (!head) { /* without it the model is tied */
            tiny_gguf_init(&g);
            tiny_remove_tensor(&g, names[i]);
            emit(e, &g, names[i], "missing_%s", names[i]);
        }
        static const uint64_t other[][2] = {{32, 8}, {64, 64}, {96, 32}};
        for (int k = 0; k < 3; k++) {
            tiny_gguf_init(&g);
            tiny_remove_tensor(&g, names[i]);
            tiny_add_tensor(&g, names[i], 8, other[k][0], other[k][1]);
            emit(e, &g, names[i], "shape_%d_%s", k, names[i]);
        }
        tiny_gguf_init(&g); /* a vector of the right number of elements, or a matrix of one row */
        struct tiny_tensor *t = tiny_tensor(&g, names[i]);
        t->dims[0] *= t->n_dims == 2 ? t->dims[1] : 1;
        t->dims[1] = 1;
        t->n_dims = 3 - t->n_dims;
        emit(e, &g, names[i], "rank_%s", names[i]);
    }
    static const char *const extra[] = {"blk.0.attn_output.bias",
                                        "blk.0.ffn_up.bias",
                                        "blk.0.attn_qkv.weight",
                                        "blk.0.ffn_gate_inp.weight",
                                        "blk.0.attn_q.bias",
                                        "blk.1.attn_norm.weight",
                                        "blk.0.attn_sinks.weight",
                                        "blk.0.attn_q.scale",
                                        "blk.0.no_such_thing",
                                        "blk.0.post_ffw_norm.weight",
                                        "output.bias",
                                        "token_embd_norm.weight",
                                        "output_norm.bias",
                                        "rope_factors_long.weight",
                                        "no_such_thing",
                                        "blk.00.attn_q.weight",
                                        "blk.0.attn_q.weight.lora_a"};
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        tiny_gguf_init(&g);
        tiny_add_tensor(&g, extra[i], 0, 32, 0);
        /* A query bias alone is incomplete: the message names the one that is missing. */
        emit(e, &g, i == 4 ? "blk.0.attn_k.bias" : extra[i], "extra_%zu", i);
    }
    static const char *const kinds[] = {"qwen2", "qwen3"};
    for (int i = 0; i < 2; i++) { /* the same tensors under an architecture that needs more */
        tiny_gguf_init(&g);
        tiny_set_string(&g, "general.architecture", kinds[i]);
        for (int k = 0; k < g.n_values; k++) {
            char rest[128];
            if (strncmp(g.values[k].key, "llama.", 6) != 0) continue;
            snprintf(rest, sizeof rest, "%s", g.values[k].key + 5);
            snprintf(g.values[k].key, sizeof g.values[k].key, "%.16s%.100s", kinds[i], rest);
            g.values[k].key_bytes = strlen(g.values[k].key);
        }
        emit(e, &g, i == 0 ? "blk.0.attn_q.bias" : "blk.0.attn_q_norm.weight", "needs_more_%s", kinds[i]);
    }
}

/* Keys by which another runtime computes something else. */
static void changed_results(const struct emitter *e)
{
    static const char *const numbers[] = {"llama.logit_scale",
                                          "llama.residual_scale",
                                          "llama.embedding_scale",
                                          "llama.attention.scale",
                                          "llama.attention.clamp_kqv",
                                          "llama.attention.max_alibi_bias",
                                          "llama.attn_logit_softcapping",
                                          "llama.rope.scaling.attn_factor",
                                          "llama.final_logit_softcapping"};
    static const float values[] = {0.5f, -1, 30};
    struct tiny_gguf g;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            tiny_gguf_init(&g);
            tiny_set_f32(&g, numbers[i], values[k]);
            emit(e, &g, numbers[i], "changes_%zu_%zu", i, k);
        }
        tiny_gguf_init(&g);
        tiny_set_string(&g, numbers[i], "1");
        emit(e, &g, numbers[i], "changes_%zu_text", i);
    }
    tiny_gguf_init(&g);
    tiny_set_u32(&g, "llama.attention.sliding_window", 2);
    emit(e, &g, "llama.attention.sliding_window", "changes_window");
    static const struct {
        const char *key;
        uint8_t value;
    } flags[] = {{"llama.attention.causal", 0}, {"llama.use_parallel_residual", 1}};
    for (size_t i = 0; i < 2; i++) {
        tiny_gguf_init(&g);
        tiny_set(&g, flags[i].key, T_BOOL, &flags[i].value, 1);
        emit(e, &g, flags[i].key, "changes_flag_%zu", i);
    }
}

static void truncations(const struct emitter *e)
{
    struct tiny_gguf g;
    struct bytes whole = {0};
    tiny_gguf_init(&g);
    tiny_gguf_build(&g, &whole);
    char name[64];
    for (size_t at = 0; at <= 26; at++) {
        snprintf(name, sizeof name, "cut_start_%zu", at);
        emit_bytes(e, name, "", whole.data, at);
    }
    for (int i = 0; i < g.n_values; i++) {
        const struct tiny_value *v = &g.values[i];
        const size_t cuts[] = {v->at,
                               v->at + 7,
                               v->at + 8,
                               v->at + 9,
                               v->payload_at - 4,
                               v->payload_at,
                               (v->payload_at + v->end_at) / 2,
                               v->end_at - 1};
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            snprintf(name, sizeof name, "cut_key_%d_%zu", i, k);
            emit_bytes(e, name, "", whole.data, cuts[k]);
        }
    }
    for (int i = 0; i < g.n_tensors; i++) {
        const struct tiny_tensor *t = &g.tensors[i];
        const size_t header_cuts[] = {t->at,          t->at + 5,      t->at + 10,    t->dims_at,
                                      t->dims_at + 7, t->type_at + 3, t->end_at - 1, t->end_at};
        for (size_t k = 0; k < sizeof header_cuts / sizeof *header_cuts; k++) {
            snprintf(name, sizeof name, "cut_table_%d_%zu", i, k);
            emit_bytes(e, name, "", whole.data, header_cuts[k]);
        }
        /* Once the table is whole, the first tensor that does not fit is named. */
        const size_t data_cuts[] = {t->data_at, t->data_at + 1, t->data_at + t->data_bytes / 2,
                                    t->data_at + t->data_bytes - 1};
        for (size_t k = 0; k < sizeof data_cuts / sizeof *data_cuts; k++) {
            snprintf(name, sizeof name, "cut_data_%d_%zu", i, k);
            emit_bytes(e, name, t->name, whole.data, data_cuts[k]);
        }
    }
    bytes_free(&whole);
    tiny_gguf_free(&g);
}

/* The tiny model over three shards; `change` selects what is wrong. */
static void split(const struct emitter *e, int change, const char *expected)
{
    struct bytes out[3] = {{0}};
    struct malformed_file files[3];
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    int n_files = 0;
    char name[32];
    for (int i = 0; i < 3; i++) {
        struct tiny_gguf g;
        tiny_gguf_init(&g);
        if (i > 0) {
            while (g.n_values > 0)
                tiny_remove(&g, g.values[0].key);
        }
        for (int k = g.n_tensors - 1; k >= 0; k--) {
            if (k / 4 != i && !(change == 6 && i == 2 && k == 0)) tiny_remove_tensor(&g, g.tensors[k].name);
        }
        tiny_set_u32(&g, "split.no", (uint32_t)(change == 1 && i > 0 ? 3 - i : i));
        tiny_set_u32(&g, "split.count", (uint32_t)(change == 2 && i == 1 ? 4 : change == 3 ? 2 : 3));
        tiny_set_u32(&g, "split.tensors.count", change == 4 ? 13 : 12);
        if (change == 5 && i == 2) g.claimed_values = 1ull << 40;
        if (change == 7 && i == 1) tiny_remove(&g, "split.no");
        if (change == 8 && i == 1) tiny_set_string(&g, "split.no", "1");
        if (change == 9 && i == 1) tiny_remove_tensor(&g, g.tensors[3].name);
        if (change == 16 && i == 1) tiny_set_string(&g, "general.architecture", "qwen2");
        if (change == 10) tiny_set_u32(&g, "split.count", 70000);
        tiny_gguf_build(&g, &out[i]);
        tiny_gguf_free(&g);
        if (change == 11 + i) continue; /* missing */
        size_t length = out[i].length - (change == 14 && i == 2 ? 1 : 0);
        files[n_files++] = (struct malformed_file){names[i], out[i].data, length};
    }
    snprintf(name, sizeof name, "split_%d", change);
    /* Opened by the first shard that is there. */
    struct malformed_case bad = {name, expected, files[0].name, {{0}}, n_files};
    memcpy(bad.files, files, (size_t)n_files * sizeof *files);
    if (change == 15) { /* the name gives no place in the sequence */
        bad.files[0].name = "renamed.gguf";
        bad.open = "renamed.gguf";
    }
    e->fn(e->user, &bad);
    for (int i = 0; i < 3; i++)
        bytes_free(&out[i]);
}

void malformed_gguf(malformed_fn *fn, void *user)
{
    const struct emitter e = {fn, user};
    starts(&e);
    counts(&e);
    strings(&e);
    shapes(&e);
    alignment(&e);
    arrays(&e);
    wrong_types(&e);
    hyper_parameters(&e);
    rope(&e);
    duplicates(&e);
    tensors(&e);
    changed_results(&e);
    truncations(&e);
    static const char *const expected[] = {"split.no",
                                           "split.count",
                                           "split.count",
                                           "split.tensors.count",
                                           "key count",
                                           "token_embd.weight",
                                           "split.no",
                                           "split.no",
                                           "split.tensors.count",
                                           "split.count",
                                           "m-00001-of-00003",
                                           "m-00002-of-00003",
                                           "m-00003-of-00003",
                                           "blk.0.ffn_down.weight",
                                           "split.count",
                                           "general.architecture"};
    for (int change = 1; change <= 16; change++)
        split(&e, change, expected[change - 1]);
}

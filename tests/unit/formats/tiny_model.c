/* See tiny_model.h. */
#include "tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

void bytes_put(struct bytes *b, const void *data, size_t n)
{
    if (b->length + n > b->capacity) {
        b->capacity = (b->length + n) * 2 + 64;
        b->data = realloc(b->data, b->capacity);
        if (b->data == NULL) abort();
    }
    if (n > 0) memcpy(b->data + b->length, data, n);
    b->length += n;
}

void bytes_text(struct bytes *b, const char *text)
{
    bytes_put(b, text, strlen(text));
}
void bytes_u32(struct bytes *b, uint32_t v)
{
    bytes_put(b, &v, 4);
}
void bytes_u64(struct bytes *b, uint64_t v)
{
    bytes_put(b, &v, 8);
}

void bytes_zero(struct bytes *b, size_t n)
{
    static const uint8_t zeros[256];
    for (; n > sizeof zeros; n -= sizeof zeros)
        bytes_put(b, zeros, sizeof zeros);
    bytes_put(b, zeros, n);
}

void bytes_free(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

struct tiny_value *tiny_value(struct tiny_gguf *g, const char *key)
{
    for (int i = 0; i < g->n_values; i++) {
        if (strcmp(g->values[i].key, key) == 0) return &g->values[i];
    }
    return NULL;
}

struct tiny_value *tiny_set(struct tiny_gguf *g, const char *key, uint32_t type, const void *payload, size_t n)
{
    struct tiny_value *value = tiny_value(g, key);
    if (value == NULL) {
        if (g->n_values == TINY_MAX_VALUES) abort();
        value = &g->values[g->n_values++];
        *value = (struct tiny_value){.key_bytes = strlen(key), .key_claim = TINY_ACTUAL};
        snprintf(value->key, sizeof value->key, "%s", key);
    }
    value->type = type;
    value->payload.length = 0;
    bytes_put(&value->payload, payload, n);
    return value;
}

void tiny_remove(struct tiny_gguf *g, const char *key)
{
    struct tiny_value *value = tiny_value(g, key);
    if (value == NULL) return;
    bytes_free(&value->payload);
    size_t behind = (size_t)(g->values + g->n_values - value - 1);
    memmove(value, value + 1, behind * sizeof *value);
    g->n_values--;
}

void tiny_set_u32(struct tiny_gguf *g, const char *key, uint32_t v)
{
    tiny_set(g, key, T_U32, &v, 4);
}
void tiny_set_f32(struct tiny_gguf *g, const char *key, float v)
{
    tiny_set(g, key, T_F32, &v, 4);
}

void tiny_set_string(struct tiny_gguf *g, const char *key, const char *text)
{
    struct bytes b = {0};
    bytes_u64(&b, strlen(text));
    bytes_text(&b, text);
    tiny_set(g, key, T_STRING, b.data, b.length);
    bytes_free(&b);
}

void tiny_set_array(struct tiny_gguf *g, const char *key, uint32_t element, uint64_t claim, uint64_t count)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    struct bytes b = {0};
    bytes_u32(&b, element);
    bytes_u64(&b, claim);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t one = 1;
        if (element == T_STRING) {
            char text[24];
            snprintf(text, sizeof text, "t%llu", (unsigned long long)i);
            bytes_u64(&b, strlen(text));
            bytes_text(&b, text);
        } else if (element == T_ARRAY) {
            bytes_u32(&b, T_U8);
            bytes_u64(&b, 1);
            bytes_put(&b, &one, 1);
        } else {
            bytes_put(&b, &one, element <= T_F64 ? sizes[element] : 4);
        }
    }
    tiny_set(g, key, T_ARRAY, b.data, b.length);
    bytes_free(&b);
}

void tiny_set_of_type(struct tiny_gguf *g, const char *key, uint32_t type)
{
    uint64_t one = 1;
    float f = 1;
    double d = 1;
    switch (type) {
    case T_STRING: tiny_set_string(g, key, "text"); break;
    case T_ARRAY: tiny_set_array(g, key, T_U32, 1, 1); break;
    case T_F32: tiny_set(g, key, type, &f, 4); break;
    case T_F64: tiny_set(g, key, type, &d, 8); break;
    case T_U8:
    case T_I8:
    case T_BOOL: tiny_set(g, key, type, &one, 1); break;
    case T_U16:
    case T_I16: tiny_set(g, key, type, &one, 2); break;
    case T_U64:
    case T_I64: tiny_set(g, key, type, &one, 8); break;
    default: tiny_set(g, key, type, &one, 4); break;
    }
}

struct tiny_tensor *tiny_tensor(struct tiny_gguf *g, const char *name)
{
    for (int i = 0; i < g->n_tensors; i++) {
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    }
    return NULL;
}

struct tiny_tensor *tiny_add_tensor(struct tiny_gguf *g, const char *name, uint32_t type, uint64_t columns,
                                    uint64_t rows)
{
    if (g->n_tensors == TINY_MAX_TENSORS) abort();
    struct tiny_tensor *t = &g->tensors[g->n_tensors++];
    *t = (struct tiny_tensor){.name_claim = TINY_ACTUAL, .type = type, .offset = TINY_ACTUAL};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = rows == 0 ? 1 : 2;
    t->dims[0] = columns;
    t->dims[1] = rows;
    size_t elements = (size_t)(columns * (rows == 0 ? 1 : rows));
    t->data_bytes = type == 8 ? elements / 32 * 34 : type == 1 || type == 30 ? elements * 2 : elements * 4;
    return t;
}

void tiny_remove_tensor(struct tiny_gguf *g, const char *name)
{
    struct tiny_tensor *t = tiny_tensor(g, name);
    if (t == NULL) return;
    bytes_free(&t->content);
    memmove(t, t + 1, (size_t)(g->tensors + g->n_tensors - t - 1) * sizeof *t);
    g->n_tensors--;
}

void tiny_gguf_init(struct tiny_gguf *g)
{
    *g = (struct tiny_gguf){
        .version = 3, .claimed_tensors = TINY_ACTUAL, .claimed_values = TINY_ACTUAL, .alignment = 32};
    memcpy(g->magic, "GGUF", 4);
    tiny_set_string(g, "general.architecture", "llama");
    tiny_set_string(g, "general.name", "tiny");
    tiny_set_u32(g, "general.alignment", 32);
    tiny_set_u32(g, "llama.block_count", 1);
    tiny_set_u32(g, "llama.context_length", 64);
    tiny_set_u32(g, "llama.embedding_length", 32);
    tiny_set_u32(g, "llama.feed_forward_length", 64);
    tiny_set_u32(g, "llama.attention.head_count", 4);
    tiny_set_u32(g, "llama.attention.head_count_kv", 2);
    tiny_set_u32(g, "llama.attention.key_length", 8);
    tiny_set_u32(g, "llama.attention.value_length", 8);
    tiny_set_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    tiny_set_f32(g, "llama.rope.freq_base", 10000);
    tiny_set_u32(g, "llama.rope.dimension_count", 8);
    tiny_set_u32(g, "llama.vocab_size", 32);
    tiny_set_string(g, "tokenizer.ggml.model", "gpt2");
    tiny_set_string(g, "tokenizer.ggml.pre", "llama-bpe");
    tiny_set_array(g, "tokenizer.ggml.tokens", T_STRING, 32, 32);
    tiny_set_array(g, "tokenizer.ggml.scores", T_F32, 32, 32);
    tiny_set_array(g, "tokenizer.ggml.token_type", T_I32, 32, 32);
    tiny_set_array(g, "tokenizer.ggml.merges", T_STRING, 2, 2);
    tiny_set_u32(g, "tokenizer.ggml.bos_token_id", 1);
    tiny_set_u32(g, "tokenizer.ggml.eos_token_id", 2);
    tiny_set_of_type(g, "tokenizer.ggml.add_bos_token", T_BOOL);
    tiny_set_string(g, "tokenizer.chat_template", "{{ messages[0].content }}");
    tiny_add_tensor(g, "token_embd.weight", 8, 32, 32);
    tiny_add_tensor(g, "output_norm.weight", 0, 32, 0);
    tiny_add_tensor(g, "output.weight", 8, 32, 32);
    tiny_add_tensor(g, "blk.0.attn_norm.weight", 0, 32, 0);
    tiny_add_tensor(g, "blk.0.attn_q.weight", 8, 32, 32);
    tiny_add_tensor(g, "blk.0.attn_k.weight", 8, 32, 16);
    tiny_add_tensor(g, "blk.0.attn_v.weight", 8, 32, 16);
    tiny_add_tensor(g, "blk.0.attn_output.weight", 8, 32, 32);
    tiny_add_tensor(g, "blk.0.ffn_norm.weight", 0, 32, 0);
    tiny_add_tensor(g, "blk.0.ffn_gate.weight", 8, 32, 64);
    tiny_add_tensor(g, "blk.0.ffn_up.weight", 8, 32, 64);
    tiny_add_tensor(g, "blk.0.ffn_down.weight", 8, 64, 32);
}

void tiny_gguf_free(struct tiny_gguf *g)
{
    for (int i = 0; i < g->n_values; i++)
        bytes_free(&g->values[i].payload);
    for (int i = 0; i < g->n_tensors; i++)
        bytes_free(&g->tensors[i].content);
    g->n_values = g->n_tensors = 0;
}

static size_t align(size_t at, size_t alignment)
{
    return (at + alignment - 1) / alignment * alignment;
}

void tiny_gguf_build(struct tiny_gguf *g, struct bytes *out)
{
    bytes_put(out, g->magic, 4);
    bytes_u32(out, g->version);
    bytes_u64(out, g->claimed_tensors == TINY_ACTUAL ? (uint64_t)g->n_tensors : g->claimed_tensors);
    bytes_u64(out, g->claimed_values == TINY_ACTUAL ? (uint64_t)g->n_values : g->claimed_values);
    for (int i = 0; i < g->n_values; i++) {
        struct tiny_value *v = &g->values[i];
        v->at = out->length;
        bytes_u64(out, v->key_claim == TINY_ACTUAL ? v->key_bytes : v->key_claim);
        bytes_put(out, v->key, v->key_bytes);
        bytes_u32(out, v->type);
        v->payload_at = out->length;
        bytes_put(out, v->payload.data, v->payload.length);
        v->end_at = out->length;
    }
    size_t offset = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        struct tiny_tensor *t = &g->tensors[i];
        t->at = out->length;
        bytes_u64(out, t->name_claim == TINY_ACTUAL ? strlen(t->name) : t->name_claim);
        bytes_text(out, t->name);
        t->dims_at = out->length;
        bytes_u32(out, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims && d < 8; d++)
            bytes_u64(out, t->dims[d]);
        t->type_at = out->length;
        bytes_u32(out, t->type);
        bytes_u64(out, t->offset == TINY_ACTUAL ? offset : t->offset);
        t->end_at = out->length;
        offset = align(offset + t->data_bytes, g->alignment);
    }
    if (g->n_tensors > 0) bytes_zero(out, align(out->length, g->alignment) - out->length);
    g->data_at = out->length;
    for (int i = 0; i < g->n_tensors; i++) {
        struct tiny_tensor *t = &g->tensors[i];
        bytes_zero(out, align(out->length - g->data_at, g->alignment) - (out->length - g->data_at));
        t->data_at = out->length;
        if (t->content.length > 0) bytes_put(out, t->content.data, t->content.length);
        if (t->data_bytes > t->content.length) bytes_zero(out, t->data_bytes - t->content.length);
    }
}

json_t *tiny_config(void)
{
    json_t *config = json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:b, s:i, s:n}",
                               "architectures", "LlamaForCausalLM", "model_type", "llama", "num_hidden_layers", 1,
                               "max_position_embeddings", 64, "hidden_size", 32, "intermediate_size", 64, "vocab_size",
                               32, "num_attention_heads", 4, "num_key_value_heads", 2, "rms_norm_eps", 1e-6,
                               "rope_theta", 10000.0, "hidden_act", "silu", "tie_word_embeddings", 0, "eos_token_id", 2,
                               "rope_scaling");
    if (config == NULL) abort();
    return config;
}

json_t *tiny_header(size_t *data_bytes)
{
    static const struct {
        const char *name;
        int rows, columns;
    } tensors[] = {{"model.embed_tokens.weight", 32, 32},
                   {"model.norm.weight", 32, 0},
                   {"lm_head.weight", 32, 32},
                   {"model.layers.0.input_layernorm.weight", 32, 0},
                   {"model.layers.0.self_attn.q_proj.weight", 32, 32},
                   {"model.layers.0.self_attn.k_proj.weight", 16, 32},
                   {"model.layers.0.self_attn.v_proj.weight", 16, 32},
                   {"model.layers.0.self_attn.o_proj.weight", 32, 32},
                   {"model.layers.0.post_attention_layernorm.weight", 32, 0},
                   {"model.layers.0.mlp.gate_proj.weight", 64, 32},
                   {"model.layers.0.mlp.up_proj.weight", 64, 32},
                   {"model.layers.0.mlp.down_proj.weight", 32, 64}};
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int at = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        int elements = tensors[i].rows * (tensors[i].columns == 0 ? 1 : tensors[i].columns);
        json_t *shape = tensors[i].columns == 0 ? json_pack("[i]", tensors[i].rows)
                                                : json_pack("[i, i]", tensors[i].rows, tensors[i].columns);
        json_object_set_new(
            header, tensors[i].name,
            json_pack("{s:s, s:o, s:[i, i]}", "dtype", "BF16", "shape", shape, "data_offsets", at, at + 2 * elements));
        at += 2 * elements;
    }
    *data_bytes = (size_t)at;
    return header;
}

void tiny_safetensors_raw(const char *header, size_t header_bytes, uint64_t claim, size_t data_bytes, struct bytes *out)
{
    bytes_u64(out, claim == TINY_ACTUAL ? header_bytes : claim);
    bytes_put(out, header, header_bytes);
    bytes_zero(out, data_bytes);
}

void tiny_safetensors_build(const json_t *header, size_t data_bytes, struct bytes *out)
{
    char *text = json_dumps(header, JSON_COMPACT);
    if (text == NULL) abort();
    tiny_safetensors_raw(text, strlen(text), TINY_ACTUAL, data_bytes, out);
    dse_json_free_text(text);
}

/* Reads the tokenizer of a GGUF: tokenizer.ggml.*. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/tokenizer_source_internal.h"
#include "text/pretokenizer.h"

#define KEY(name)     "tokenizer.ggml." name
#define MAX_PRE_BYTES 64

/* token_type of a GGUF */
enum { TYPE_UNDEFINED, TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

static enum dse_status wrong(struct dse_error *err, const char *key, const char *what)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, key, -1, "GGUF metadata %s: %s", key, what);
}

/* An array of strings; required says whether its absence is an error. */
static enum dse_status string_array(const struct dse_gguf *gguf, const char *key, size_t maximum, bool required,
                                    const struct dse_gguf_value **out, struct dse_error *err)
{
    *out = dse_gguf_value(gguf, key);
    if (!*out) return required ? wrong(err, key, "is missing, the file has no usable tokenizer") : DSE_OK;
    if ((*out)->type != DSE_GGUF_ARRAY || (*out)->element_type != DSE_GGUF_STRING)
        return wrong(err, key, "is not an array of strings");
    if ((*out)->count > maximum) return wrong(err, key, "has too many elements");
    return DSE_OK;
}

static bool equals(struct dse_gguf_string string, const char *text)
{
    return string.bytes == strlen(text) && memcmp(string.data, text, string.bytes) == 0;
}

/* Rows that only fill the matrix up: "[PAD123]". Old converters gave them the type of added tokens. */
static bool is_padding(struct dse_slice token)
{
    if (token.bytes < 6 || memcmp(token.data, "[PAD", 4) != 0 || token.data[token.bytes - 1] != ']') return false;
    for (size_t i = 4; i + 1 < token.bytes; i++)
        if (token.data[i] < '0' || token.data[i] > '9') return false;
    return true;
}

static enum dse_status read_kinds(const struct dse_gguf *gguf, struct dse_tokenizer_parts *parts, struct dse_error *err)
{
    const char *key = KEY("token_type");
    const struct dse_gguf_value *types = dse_gguf_value(gguf, key);
    memset(parts->kinds, DSE_TOKEN_NORMAL, parts->def.n_tokens);
    if (!types) return DSE_OK;
    if (types->type != DSE_GGUF_ARRAY || types->count != parts->def.n_tokens)
        return wrong(err, key, "is not an array with one element per token");
    for (size_t i = 0; i < types->count; i++) {
        int64_t type;
        if (!dse_gguf_array_i64(types, i, &type)) return wrong(err, key, "is not an array of integers");
        struct dse_slice token = parts->tokens[i];
        switch (type) {
        case TYPE_UNDEFINED:
        case TYPE_NORMAL:
        case TYPE_BYTE: break;
        case TYPE_UNKNOWN:
        case TYPE_CONTROL: parts->kinds[i] = DSE_TOKEN_CONTROL; break;
        case TYPE_USER:
            parts->kinds[i] = is_padding(token)                                     ? DSE_TOKEN_UNUSED
                              : dse_tokenizer_is_byte_char(token.data, token.bytes) ? DSE_TOKEN_BYTE_CHAR
                                                                                    : DSE_TOKEN_USER;
            break;
        case TYPE_UNUSED: parts->kinds[i] = DSE_TOKEN_UNUSED; break;
        default:
            return dse_fail_at(err, DSE_ERR_CORRUPT, key, -1, "GGUF metadata %s: token %zu has the unknown type %lld",
                               key, i, (long long)type);
        }
    }
    return DSE_OK;
}

static enum dse_status read_merges(const struct dse_gguf_value *merges, struct dse_tokenizer_parts *parts,
                                   struct dse_error *err)
{
    struct dse_gguf_string merge;
    size_t cursor = 0;
    for (size_t i = 0; i < parts->def.n_merges; i++) {
        if (!dse_gguf_next_string(merges, &cursor, &merge) ||
            !dse_tokenizer_split_merge(merge.data, merge.bytes, &parts->merges[2 * i]))
            return dse_fail_at(err, DSE_ERR_CORRUPT, KEY("merges"), -1,
                               "GGUF metadata " KEY("merges") ": element %zu is not two tokens with a blank between",
                               i);
    }
    return DSE_OK;
}

static bool has_token(const struct dse_tokenizer_parts *parts, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = parts->def.n_tokens; i-- > 0;)
        if (parts->tokens[i].bytes == bytes && memcmp(parts->tokens[i].data, text, bytes) == 0) return true;
    return false;
}

/* Files from before tokenizer.ggml.pre existed. Each family has texts that no other has; the sizes tell DeepSeek's
 * vocabularies apart (32k Coder, 100k LLM and V2, 128k V3). Nothing known: GPT-2's pattern
 * with single digits. */
static const char *guess_pre(const struct dse_tokenizer_parts *parts)
{
    size_t n = parts->def.n_tokens;
    bool is_deepseek = has_token(parts, "<｜begin▁of▁sentence｜>");
    if (is_deepseek && n > 150000) return "deepseek-r1-qwen";
    if (has_token(parts, "<|begin_of_text|>") || (is_deepseek && has_token(parts, "<|start_header_id|>")))
        return "llama-bpe";
    if (is_deepseek) return n < 50000 ? "deepseek-coder" : n < 120000 ? "deepseek-llm" : "deepseek-v3";
    if (has_token(parts, "<|im_start|>") && n > 150000) return "qwen2";
    return "smollm";
}

static enum dse_status read_pre(const struct dse_gguf *gguf, struct dse_tokenizer_parts *parts,
                                char name[MAX_PRE_BYTES], struct dse_error *err)
{
    struct dse_gguf_string pre = {NULL, 0};
    enum dse_status status = dse_gguf_get_string(gguf, KEY("pre"), &pre, err);
    if (status != DSE_OK) return status;
    if (pre.bytes >= MAX_PRE_BYTES) return wrong(err, KEY("pre"), "is longer than any known name");
    if (pre.bytes == 0 || equals(pre, "default")) {
        const char *guess = guess_pre(parts);
        dse_log(DSE_LOG_WARN, "tokenizer", "%s does not name its pre-tokenizer; guessed %s from the vocabulary",
                dse_gguf_path(gguf), guess);
        pre = (struct dse_gguf_string){guess, strlen(guess)};
    }
    memcpy(name, pre.data, pre.bytes);
    name[pre.bytes] = '\0';
    return DSE_OK;
}

static enum dse_status read_id(const struct dse_gguf *gguf, const char *key, size_t n_tokens, int32_t *id,
                               struct dse_error *err)
{
    int64_t value = -1;
    enum dse_status status = dse_gguf_get_i64(gguf, key, 0, (int64_t)n_tokens - 1, &value, err);
    *id = (int32_t)value;
    return status;
}

static enum dse_status read_specials(const struct dse_gguf *gguf, struct dse_tokenizer_def *def, struct dse_error *err)
{
    enum dse_status status = read_id(gguf, KEY("bos_token_id"), def->n_tokens, &def->bos, err);
    if (status == DSE_OK) status = read_id(gguf, KEY("eos_token_id"), def->n_tokens, &def->eos, err);
    if (status == DSE_OK) status = read_id(gguf, KEY("eot_token_id"), def->n_tokens, &def->eot, err);
    /* Old conversions wrote padding ids behind the end; nothing depends on it. */
    int64_t pad = -1;
    if (status == DSE_OK) status = dse_gguf_get_i64(gguf, KEY("padding_token_id"), INT64_MIN, INT64_MAX, &pad, err);
    def->pad = pad >= 0 && pad < (int64_t)def->n_tokens ? (int32_t)pad : -1;
    if (status == DSE_OK) status = dse_gguf_get_bool(gguf, KEY("add_bos_token"), &def->add_bos, err);
    return status;
}

static enum dse_status read_tokens(const struct dse_gguf *gguf, struct dse_tokenizer_parts *parts,
                                   struct dse_error *err)
{
    const struct dse_gguf_value *tokens, *merges;
    enum dse_status status = string_array(gguf, KEY("tokens"), DSE_TOKENIZER_MAX_TOKENS, true, &tokens, err);
    if (status == DSE_OK) status = string_array(gguf, KEY("merges"), DSE_TOKENIZER_MAX_MERGES, false, &merges, err);
    if (status == DSE_OK) status = dse_tokenizer_parts_allocate(parts, tokens->count, merges ? merges->count : 0, err);
    if (status != DSE_OK) return status;
    struct dse_gguf_string text;
    size_t cursor = 0;
    for (size_t i = 0; i < parts->def.n_tokens; i++) {
        if (!dse_gguf_next_string(tokens, &cursor, &text)) return wrong(err, KEY("tokens"), "ends early");
        parts->tokens[i] = (struct dse_slice){text.data, text.bytes};
    }
    status = read_kinds(gguf, parts, err);
    if (status == DSE_OK && merges) status = read_merges(merges, parts, err);
    return status;
}

enum dse_status dse_tokenizer_parts_from_gguf(const struct dse_gguf *gguf, struct dse_tokenizer_parts *parts,
                                              struct dse_error *err)
{
    struct dse_gguf_string model = {NULL, 0};
    enum dse_status status = dse_gguf_get_string(gguf, KEY("model"), &model, err);
    if (status != DSE_OK) return status;
    if (model.bytes == 0) return wrong(err, KEY("model"), "is missing, the file has no usable tokenizer");
    if (!equals(model, "gpt2"))
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, KEY("model"), -1,
                           "tokenizer model \"%.*s\" is not supported (only byte-level BPE, \"gpt2\")",
                           (int)(model.bytes < 60 ? model.bytes : 60), model.data);
    char name[MAX_PRE_BYTES];
    struct dse_pretokenizer_traits traits = {0};
    status = read_tokens(gguf, parts, err);
    if (status == DSE_OK) status = read_pre(gguf, parts, name, err);
    if (status != DSE_OK) return status;
    if (!dse_pretokenizer_traits(name, &traits))
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, KEY("pre"), -1, "pre-tokenizer \"%s\" is not supported", name);
    parts->def.pre = traits.name;
    parts->def.nfc = traits.nfc;
    parts->def.ignore_merges = traits.ignore_merges;
    parts->def.add_bos = traits.adds_bos;
    return read_specials(gguf, &parts->def, err);
}

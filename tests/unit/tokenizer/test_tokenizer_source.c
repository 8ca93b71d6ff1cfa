/* Tokenizer definitions in files: what tokenizer.json and GGUF metadata may say, and how wrong ones are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"
#include "base/log.h"
#include "model/tokenizer_source.h"
#include "tiny_vocab.h"

/* ---- tokenizer.json ---- */

/* The tiny vocabulary as tokenizer.json, with the structure of Llama 3's. */
static json_t *tiny_json(void)
{
    struct tiny_vocab tiny;
    tiny_vocab_init(&tiny);
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
    for (size_t i = 0; i < tiny.def.n_tokens; i++) {
        json_t *text = json_stringn(tiny.tokens[i].data, tiny.tokens[i].bytes);
        if (tiny.kinds[i] == DSE_TOKEN_NORMAL)
            json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)i));
        else if (tiny.kinds[i] != DSE_TOKEN_UNUSED)
            json_array_append_new(added, json_pack("{s:i,s:O,s:b}", "id", (int)i, "content", text, "special",
                                                   tiny.kinds[i] == DSE_TOKEN_CONTROL));
        json_decref(text);
    }
    for (size_t i = 0; i < tiny.def.n_merges; i++)
        json_array_append_new(merges, json_sprintf("%s %s", tiny.merges[2 * i].data, tiny.merges[2 * i + 1].data));
    static const char regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    json_t *root = json_pack(
        "{s:o,s:n,s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:{s:s,s:[{s:{s:s}}]},s:{s:s,s:b,s:o,s:o}}",
        "added_tokens", added, "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
        "pattern", "Regex", regex, "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
        "use_regex", 0, "post_processor", "type", "TemplateProcessing", "single", "SpecialToken", "id", "<bos>",
        "model", "type", "BPE", "ignore_merges", 1, "vocab", vocab, "merges", merges);
    assert_non_null(root);
    return root;
}

/* Puts value (JSON text; NULL deletes) at a dotted path of object keys and array indices. */
static void set_at(json_t *root, const char *path, const char *value)
{
    char key[64];
    for (;;) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof key);
        memcpy(key, path, n);
        key[n] = '\0';
        if (path[n] == '\0') break;
        root = json_is_array(root) ? json_array_get(root, (size_t)strtoul(key, NULL, 10)) : json_object_get(root, key);
        assert_non_null(root);
        path += n + 1;
    }
    json_t *new_value = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(value == NULL || new_value != NULL);
    if (json_is_array(root))
        json_array_set_new(root, (size_t)strtoul(key, NULL, 10), new_value);
    else if (new_value)
        json_object_set_new(root, key, new_value);
    else
        json_object_del(root, key);
}

static enum dse_status from_json(json_t *tokenizer, const char *config, struct dse_tokenizer **out,
                                 struct dse_error *err)
{
    struct dse_model_file file = {.tokenizer_json = tokenizer};
    if (config) file.tokenizer_config = json_loads(config, JSON_DECODE_ANY, NULL);
    enum dse_status status = dse_tokenizer_from_model(&file, out, err);
    json_decref(file.tokenizer_config);
    json_decref(tokenizer);
    return status;
}

static void expect_json_refused(const char *path, const char *value, const char *config, enum dse_status status,
                                const char *words)
{
    json_t *root = tiny_json();
    if (path) set_at(root, path, value);
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_error err = {0};
    enum dse_status got = from_json(root, config, &tokenizer, &err);
    if (got != status || !strstr(err.message, words))
        fail_msg("%s = %s: status %d, \"%s\" (expected %d, \"%s\")", path ? path : "config", value ? value : config,
                 got, got == DSE_OK ? "" : err.message, status, words);
}

static void json_definition_is_read_whole(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_error err = {0};
    if (from_json(tiny_json(), "{\"eos_token\": {\"content\": \"<eos>\"}, \"pad_token\": null}", &tokenizer, &err) !=
        DSE_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dse_tokenizer_bos(tokenizer), TINY_BOS); /* from the post-processor */
    assert_true(dse_tokenizer_adds_bos(tokenizer));
    assert_int_equal(dse_tokenizer_eos(tokenizer), TINY_EOS);
    assert_int_equal(dse_tokenizer_count(tokenizer), TINY_COUNT);
    assert_int_equal(dse_tokenizer_kind(tokenizer, TINY_USER), DSE_TOKEN_USER);
    assert_int_equal(dse_tokenizer_kind(tokenizer, TINY_UNUSED), DSE_TOKEN_UNUSED); /* a hole */
    struct dse_tokens tokens = {0};
    assert_int_equal(dse_tokenizer_encode(tokenizer, "hello", 5, DSE_ENCODE_ADD_BOS, &tokens, NULL), DSE_OK);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[1], TINY_HELLO);
    dse_tokens_deinit(&tokens);
    dse_tokenizer_free(tokenizer);
}

static void config_overrules_the_post_processor_on_bos(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = NULL;
    assert_int_equal(from_json(tiny_json(), "{\"bos_token\": \"<bos>\", \"add_bos_token\": false}", &tokenizer, NULL),
                     DSE_OK);
    assert_false(dse_tokenizer_adds_bos(tokenizer));
    assert_int_equal(dse_tokenizer_bos(tokenizer), TINY_BOS);
    dse_tokenizer_free(tokenizer);
}

static void merges_may_be_pairs(void **state)
{
    (void)state;
    json_t *root = tiny_json();
    set_at(root, "model.merges.0", "[\"h\", \"e\"]");
    struct dse_tokenizer *tokenizer = NULL;
    assert_int_equal(from_json(root, NULL, &tokenizer, NULL), DSE_OK);
    dse_tokenizer_free(tokenizer);
}

static void malformed_json_is_refused_by_field(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        enum dse_status status;
        const char *words;
    } rows[] = {
        {"model", NULL, DSE_ERR_CORRUPT, "\"model\""},
        {"model", "[]", DSE_ERR_CORRUPT, "\"model\""},
        {"model.type", "\"Unigram\"", DSE_ERR_UNSUPPORTED, "Unigram"},
        {"model.byte_fallback", "true", DSE_ERR_UNSUPPORTED, "byte_fallback"},
        {"model.dropout", "0.5", DSE_ERR_UNSUPPORTED, "dropout"},
        {"model.end_of_word_suffix", "\"</w>\"", DSE_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"model.vocab", "[]", DSE_ERR_CORRUPT, "vocab"},
        {"model.vocab", "{}", DSE_ERR_CORRUPT, "not in the vocabulary"},
        {"model.vocab.hello", "-1", DSE_ERR_CORRUPT, "hello"},
        {"model.vocab.hello", "\"7\"", DSE_ERR_CORRUPT, "hello"},
        {"model.vocab.hello", "1.5", DSE_ERR_CORRUPT, "hello"},
        {"model.vocab.hello", "9223372036854775807", DSE_ERR_CORRUPT, "hello"},
        {"model.vocab.hello", "16000000", DSE_ERR_CORRUPT, "larger"},
        {"model.vocab.hello", "104", DSE_ERR_CORRUPT, "same id"},
        {"model.merges", "{}", DSE_ERR_CORRUPT, "merges"},
        {"model.merges.0", "\"he\"", DSE_ERR_CORRUPT, "merges"},
        {"model.merges.0", "\"h e l\"", DSE_ERR_CORRUPT, "merges"},
        {"model.merges.0", "[\"h\"]", DSE_ERR_CORRUPT, "merges"},
        {"model.merges.0", "[\"h\", 5]", DSE_ERR_CORRUPT, "merges"},
        {"model.merges.0", "\"h nowhere\"", DSE_ERR_CORRUPT, "nowhere"},
        {"added_tokens", "5", DSE_ERR_CORRUPT, "added_tokens"},
        {"added_tokens.0", "\"x\"", DSE_ERR_CORRUPT, "added_tokens"},
        {"added_tokens.0.id", "-5", DSE_ERR_CORRUPT, "added_tokens"},
        {"added_tokens.0.id", "3", DSE_ERR_CORRUPT, "another token"},
        {"added_tokens.0.content", "\"\"", DSE_ERR_CORRUPT, "content"},
        {"added_tokens.0.content", "17", DSE_ERR_CORRUPT, "content"},
        {"added_tokens.0.lstrip", "true", DSE_ERR_UNSUPPORTED, "lstrip"},
        {"normalizer", "{\"type\": \"Lowercase\"}", DSE_ERR_UNSUPPORTED, "Lowercase"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}]}", DSE_ERR_UNSUPPORTED,
         "NFKC"},
        {"pre_tokenizer", "null", DSE_ERR_CORRUPT, "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", DSE_ERR_UNSUPPORTED, "Metaspace"},
        {"pre_tokenizer.pretokenizers", "[]", DSE_ERR_UNSUPPORTED, "pre-tokenizer"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(a+)+$\"", DSE_ERR_UNSUPPORTED, "(a+)+$"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", DSE_ERR_UNSUPPORTED, "Removed"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", DSE_ERR_UNSUPPORTED, "add_prefix_space"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_json_refused(rows[i].path, rows[i].value, NULL, rows[i].status, rows[i].words);
    expect_json_refused(NULL, NULL, "{\"eos_token\": 5}", DSE_ERR_CORRUPT, "eos_token");
    expect_json_refused(NULL, NULL, "{\"bos_token\": \"<nowhere>\"}", DSE_ERR_CORRUPT, "<nowhere>");
    expect_json_refused(NULL, NULL, "{\"add_bos_token\": \"yes\"}", DSE_ERR_CORRUPT, "add_bos_token");
    expect_json_refused(NULL, NULL, "[]", DSE_ERR_CORRUPT, "tokenizer_config.json");
}

static void a_model_without_tokenizer_is_refused(void **state)
{
    (void)state;
    struct dse_model_file file = {.path = (char *)"folder"};
    struct dse_tokenizer *tokenizer;
    struct dse_error err = {0};
    assert_int_equal(dse_tokenizer_from_model(&file, &tokenizer, &err), DSE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "tokenizer.json"));
}

/* ---- GGUF ---- */

static void put_u32(struct dse_buffer *out, uint32_t value)
{
    dse_buffer_append(out, &value, 4);
}
static void put_u64(struct dse_buffer *out, uint64_t value)
{
    dse_buffer_append(out, &value, 8);
}
static void put_string(struct dse_buffer *out, const char *text, size_t bytes)
{
    put_u64(out, bytes);
    dse_buffer_append(out, text, bytes);
}

/* What a case changes in the tiny vocabulary's metadata. */
struct gguf_case {
    const char *model, *pre; /* NULL: absent */
    bool pre_is_number, types_are_strings, merges_are_numbers, eos_is_string, no_tokens;
    size_t n_types;     /* 0: one per token */
    int32_t first_type; /* 0: normal */
    const char *first_merge;
    int64_t eos, pad; /* -1: absent */
};
static const struct gguf_case gguf_case_good = {.model = "gpt2", .pre = "smollm", .eos = TINY_EOS, .pad = -1};

enum { VALUE_U32 = 4, VALUE_I32 = 5, VALUE_STRING = 8, VALUE_ARRAY = 9 };

static void put_key(struct dse_buffer *out, const char *key, uint32_t type, uint64_t *count)
{
    put_string(out, key, strlen(key));
    put_u32(out, type);
    ++*count;
}

static void put_tokenizer(struct dse_buffer *out, const struct gguf_case *c, uint64_t *count)
{
    static const int32_t types_of_kinds[] = {1, 3, 4, 5, 4};
    struct tiny_vocab tiny;
    tiny_vocab_init(&tiny);
    if (!c->no_tokens) {
        put_key(out, "tokenizer.ggml.tokens", VALUE_ARRAY, count);
        put_u32(out, VALUE_STRING), put_u64(out, tiny.def.n_tokens);
        for (size_t i = 0; i < tiny.def.n_tokens; i++)
            put_string(out, tiny.tokens[i].data, tiny.tokens[i].bytes);
    }
    size_t n_types = c->n_types ? c->n_types : tiny.def.n_tokens;
    put_key(out, "tokenizer.ggml.token_type", VALUE_ARRAY, count);
    put_u32(out, c->types_are_strings ? VALUE_STRING : VALUE_I32), put_u64(out, n_types);
    for (size_t i = 0; i < n_types; i++) {
        if (c->types_are_strings)
            put_string(out, "1", 1);
        else
            put_u32(out, (uint32_t)(i == 0 && c->first_type ? c->first_type : types_of_kinds[tiny.kinds[i]]));
    }
    put_key(out, "tokenizer.ggml.merges", VALUE_ARRAY, count);
    put_u32(out, c->merges_are_numbers ? VALUE_U32 : VALUE_STRING), put_u64(out, tiny.def.n_merges);
    for (size_t i = 0; i < tiny.def.n_merges; i++) {
        char text[64];
        int bytes = snprintf(text, sizeof text, "%s %s", tiny.merges[2 * i].data, tiny.merges[2 * i + 1].data);
        if (c->merges_are_numbers)
            put_u32(out, 1);
        else if (i == 0 && c->first_merge)
            put_string(out, c->first_merge, strlen(c->first_merge));
        else
            put_string(out, text, (size_t)bytes);
    }
}

static enum dse_status from_gguf(const struct gguf_case *c, struct dse_tokenizer **out, struct dse_error *err)
{
    struct dse_buffer body, whole;
    uint64_t count = 0;
    dse_buffer_init(&body, DSE_MEM_MISC, 1 << 20);
    dse_buffer_init(&whole, DSE_MEM_MISC, 1 << 20);
    if (c->model)
        put_key(&body, "tokenizer.ggml.model", VALUE_STRING, &count), put_string(&body, c->model, strlen(c->model));
    if (c->pre_is_number)
        put_key(&body, "tokenizer.ggml.pre", VALUE_U32, &count), put_u32(&body, 7);
    else if (c->pre)
        put_key(&body, "tokenizer.ggml.pre", VALUE_STRING, &count), put_string(&body, c->pre, strlen(c->pre));
    put_tokenizer(&body, c, &count);
    if (c->eos_is_string)
        put_key(&body, "tokenizer.ggml.eos_token_id", VALUE_STRING, &count), put_string(&body, "1", 1);
    else if (c->eos >= 0)
        put_key(&body, "tokenizer.ggml.eos_token_id", VALUE_U32, &count), put_u32(&body, (uint32_t)c->eos);
    if (c->pad >= 0)
        put_key(&body, "tokenizer.ggml.padding_token_id", VALUE_U32, &count), put_u32(&body, (uint32_t)c->pad);
    dse_buffer_append(&whole, "GGUF\3\0\0\0", 8);
    put_u64(&whole, 0), put_u64(&whole, count);
    dse_buffer_append(&whole, dse_buffer_text(&body), body.length);
    char path[] = "/tmp/dse-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, whole.data, whole.length), (ssize_t)whole.length);
    close(fd);
    struct dse_model_file file = {0};
    enum dse_status status = dse_gguf_open(path, &file.gguf, err);
    if (status == DSE_OK) status = dse_tokenizer_from_model(&file, out, err);
    dse_gguf_close(file.gguf);
    unlink(path);
    dse_buffer_deinit(&body);
    dse_buffer_deinit(&whole);
    return status;
}

static void expect_gguf_refused(struct gguf_case c, enum dse_status status, const char *words)
{
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_error err = {0};
    enum dse_status got = from_gguf(&c, &tokenizer, &err);
    if (got != status || !strstr(err.message, words))
        fail_msg("status %d, \"%s\" (expected %d, \"%s\")", got, got == DSE_OK ? "" : err.message, status, words);
}

static void malformed_gguf_is_refused_by_key(void **state)
{
    (void)state;
    struct gguf_case c;
#define REFUSED(change, status, words) (c = gguf_case_good, c.change, expect_gguf_refused(c, status, words))
    REFUSED(model = NULL, DSE_ERR_CORRUPT, "tokenizer.ggml.model");
    REFUSED(model = "llama", DSE_ERR_UNSUPPORTED, "llama");
    REFUSED(pre = "mystery-bpe", DSE_ERR_UNSUPPORTED, "mystery-bpe");
    REFUSED(pre_is_number = true, DSE_ERR_CORRUPT, "tokenizer.ggml.pre");
    REFUSED(no_tokens = true, DSE_ERR_CORRUPT, "tokenizer.ggml.tokens");
    REFUSED(types_are_strings = true, DSE_ERR_CORRUPT, "tokenizer.ggml.token_type");
    REFUSED(n_types = 5, DSE_ERR_CORRUPT, "tokenizer.ggml.token_type");
    REFUSED(first_type = 99, DSE_ERR_CORRUPT, "99");
    REFUSED(merges_are_numbers = true, DSE_ERR_CORRUPT, "tokenizer.ggml.merges");
    REFUSED(first_merge = "he", DSE_ERR_CORRUPT, "tokenizer.ggml.merges");
    REFUSED(first_merge = "h nowhere", DSE_ERR_CORRUPT, "nowhere");
    REFUSED(eos = TINY_COUNT, DSE_ERR_CORRUPT, "tokenizer.ggml.eos_token_id");
    REFUSED(eos_is_string = true, DSE_ERR_CORRUPT, "tokenizer.ggml.eos_token_id");
#undef REFUSED
}

static void good_gguf_is_read_and_a_missing_pre_guessed(void **state)
{
    (void)state;
    struct gguf_case c = gguf_case_good;
    c.pad = 1 << 30; /* some converters write ids behind the end */
    dse_log_configure(DSE_LOG_ERROR, false);
    for (int round = 0; round < 2; round++) {
        struct dse_tokenizer *tokenizer = NULL;
        struct dse_error err = {0};
        if (from_gguf(&c, &tokenizer, &err) != DSE_OK) fail_msg("%s", err.message);
        struct dse_tokens tokens = {0};
        assert_int_equal(dse_tokenizer_encode(tokenizer, "hello<tool>", 11, DSE_ENCODE_PARSE_SPECIAL, &tokens, NULL),
                         DSE_OK);
        assert_int_equal(tokens.count, 2);
        assert_int_equal(tokens.ids[0], TINY_HELLO);
        assert_int_equal(tokens.ids[1], TINY_USER);
        assert_int_equal(dse_tokenizer_eos(tokenizer), TINY_EOS);
        assert_int_equal(dse_tokenizer_kind(tokenizer, TINY_UNUSED), DSE_TOKEN_UNUSED);
        dse_tokens_deinit(&tokens);
        dse_tokenizer_free(tokenizer);
        c.pre = NULL;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_definition_is_read_whole),
        cmocka_unit_test(config_overrules_the_post_processor_on_bos),
        cmocka_unit_test(merges_may_be_pairs),
        cmocka_unit_test(malformed_json_is_refused_by_field),
        cmocka_unit_test(a_model_without_tokenizer_is_refused),
        cmocka_unit_test(malformed_gguf_is_refused_by_key),
        cmocka_unit_test(good_gguf_is_read_and_a_missing_pre_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The schema compiler where a program around it is needed: limits, want of memory, tool calls with control tokens,
 * masks and grammars that are kept. What texts a schema takes is compared with others in
 * tests/api/test_json_schema.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"
#include "text/grammar_cache.h"
#include "text/grammar_internal.h"
#include "text/json_schema.h"
#include "text/tool_grammar.h"

enum { CONTROL = 256, STOP, N_TOKENS, N_MASK = (N_TOKENS + 63) / 64 };

static struct dse_token_trie *trie;

static int make_trie(void **state)
{
    static char bytes[256];
    struct dse_slice texts[N_TOKENS] = {[CONTROL] = {"<mark>", 6}, [STOP] = {"", 0}};
    uint8_t uses[N_TOKENS] = {[CONTROL] = GRAMMAR_TOKEN_CONTROL, [STOP] = GRAMMAR_TOKEN_STOP};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct dse_slice){&bytes[i], 1};
    }
    return dse_token_trie_create_from(texts, uses, N_TOKENS, &trie, NULL) == DSE_OK ? 0 : -1;
}

static int free_trie(void **state)
{
    dse_token_trie_free(trie);
    return 0;
}

static json_t *parse(const char *text)
{
    json_t *value = NULL;
    assert_int_equal(dse_json_parse(text, strlen(text), "the schema", &value, NULL), DSE_OK);
    return value;
}

/* Compiles and frees; the message of a refusal. */
static enum dse_status try_schema(const char *text, struct dse_error *err)
{
    json_t *schema = parse(text);
    struct dse_grammar *grammar = NULL;
    enum dse_status status = dse_json_schema_compile(schema, "schema", 0, &grammar, err);
    assert_true((status == DSE_OK) == (grammar != NULL));
    dse_grammar_unref(grammar);
    json_decref(schema);
    return status;
}

static const char RICH[] =
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":700},\"b\":{\"type\":"
    "\"number\",\"exclusiveMinimum\":0.25},\"c\":{\"enum\":[\"x\",\"xy\",1,{\"k\":[1]}]},\"d\":{\"type\":\"array\","
    "\"items\":"
    "{\"$ref\":\"#\"},\"prefixItems\":[{\"type\":\"null\"}],\"maxItems\":3},\"e\":{\"type\":\"string\",\"format\":"
    "\"date\"},"
    "\"f\":{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"maxLength\":9},{\"type\":\"boolean\"}]},\"g\":{"
    "\"allOf\":"
    "[{\"minLength\":2},{\"type\":\"string\"}]},\"h\":true},\"required\":[\"c\",\"zz\"],\"additionalProperties\":{"
    "\"anyOf\":"
    "[{\"type\":\"null\"},{\"type\":\"integer\"}]}}";

static void lack_of_memory_is_reported_everywhere(void **state)
{
    json_t *schema = parse(RICH);
    size_t live = dse_mem_live_bytes(DSE_MEM_TEXT);
    bool succeeded = false;
    for (long n = 1; n < 400 && !succeeded; n++) {
        struct dse_grammar *grammar = NULL;
        struct dse_grammar_state *s = NULL;
        struct dse_error err;
        dse_alloc_fail_after(n);
        enum dse_status status = dse_json_schema_compile(schema, "schema", 0, &grammar, &err);
        if (status == DSE_OK) status = dse_grammar_state_create(grammar, trie, &s, &err);
        dse_alloc_fail_after(0);
        succeeded = status == DSE_OK && n > 3;
        if (status != DSE_OK) assert_int_equal(status, DSE_ERR_NO_MEMORY);
        dse_grammar_state_free(s);
        dse_grammar_unref(grammar);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), live);
    }
    assert_true(succeeded);
    json_decref(schema);
}

static void repeated(struct dse_buffer *out, const char *before, const char *one, int count, const char *after)
{
    dse_buffer_init(out, DSE_MEM_MISC, 64u << 20);
    dse_buffer_puts(out, before);
    for (int i = 0; i < count; i++)
        dse_buffer_puts(out, one);
    dse_buffer_puts(out, after);
}

static void limits_are_named(void **state)
{
    static const char *const refused[][2] = {
        {"{\"type\":\"string\",\"maxLength\":65537}", "DSE_SCHEMA_MAX_COUNT"},
        {"{\"type\":\"array\",\"minItems\":1e18}", "DSE_SCHEMA_MAX_COUNT"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "DSE_SCHEMA_MAX_DEPTH"},
        {"{\"$ref\":\"#\"}", "DSE_SCHEMA_MAX_DEPTH"},
        {"{\"type\":\"string\",\"pattern\":\"a{9000}\"}", "DSE_REGEX_MAX_REPEAT"},
        {"{\"type\":\"string\",\"pattern\":\"((a{8000}b){8000}c){8000}((d{8000}b){8000}c){8000}\",\"title\":"
         "\"nested\"}",
         NULL},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct dse_error err = {0};
        enum dse_status status = try_schema(refused[i][0], &err);
        if (!refused[i][1]) continue; /* repetitions add up: may be taken, must not take long */
        assert_int_not_equal(status, DSE_OK);
        assert_non_null(strstr(err.message, refused[i][1]));
    }
}

static void wide_and_multiplied_schemas_are_bounded(void **state)
{
    struct dse_error err = {0};
    struct dse_buffer text;
    repeated(&text, "{\"allOf\":[true", ",{\"anyOf\":[{\"minLength\":1},{\"maxLength\":9}]}", 40, "]}");
    assert_int_equal(try_schema(dse_buffer_text(&text), &err), DSE_ERR_LIMIT);
    assert_non_null(strstr(err.message, "DSE_SCHEMA_MAX_"));
    dse_buffer_deinit(&text);
    repeated(&text, "{\"type\":\"string\",\"enum\":[\"\"", ",\"abcdefgh\"", 17000, "]}");
    assert_int_equal(try_schema(dse_buffer_text(&text), &err), DSE_ERR_LIMIT);
    assert_non_null(strstr(err.message, "DSE_SCHEMA_MAX_VALUES"));
    dse_buffer_deinit(&text);
    repeated(&text, "{\"type\":\"string\",\"pattern\":\"", "(", 65, "\"}");
    assert_int_equal(try_schema(dse_buffer_text(&text), &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "DSE_REGEX_MAX_GROUPS"));
    dse_buffer_deinit(&text);
    repeated(&text, "{\"type\":\"array\",\"prefixItems\":[true", ",true", 256, "]}");
    assert_int_equal(try_schema(dse_buffer_text(&text), &err), DSE_ERR_LIMIT);
    assert_non_null(strstr(err.message, "DSE_SCHEMA_MAX_PREFIX"));
    dse_buffer_deinit(&text);
}

static void names_with_a_common_beginning_are_bounded(void **state)
{
    struct dse_error err = {0};
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_MISC, 1u << 20);
    dse_buffer_puts(&text, "{\"type\":\"string\",\"enum\":[\"a\"");
    for (int n = 2; n < 600; n++)
        dse_buffer_printf(
            &text, ",\"%.*s\"", n,
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    dse_buffer_puts(&text, "]}");
    assert_int_equal(try_schema(dse_buffer_text(&text), &err), DSE_ERR_LIMIT);
    assert_non_null(strstr(err.message, "DSE_JSON_TEXT_MAX_FORKS"));
    dse_buffer_deinit(&text);
}

/* ---- tool calls ------------------------------------------------------------------------------------------------ */

static void control_tokens_come_only_where_a_grammar_has_a_mark(void **state)
{
    struct dse_grammar *grammar = NULL;
    struct dse_grammar_state *s = NULL;
    uint64_t mask[N_MASK];
    json_t *any = json_true();
    assert_int_equal(dse_json_schema_compile(any, "schema", 0, &grammar, NULL), DSE_OK);
    assert_int_equal(dse_grammar_state_create(grammar, trie, &s, NULL), DSE_OK);
    assert_true(dse_grammar_accept_bytes(s, "\"", 1));
    dse_grammar_mask(s, mask);
    assert_false(mask[CONTROL / 64] >> (CONTROL % 64) & 1);
    assert_true(mask['<' / 64] >> ('<' % 64) & 1);
    assert_false(mask[0xFF / 64] >> (0xFF % 64) & 1);
    dse_grammar_state_free(s);
    dse_grammar_unref(grammar);
}

static bool takes(struct dse_grammar *grammar, const char *text)
{
    struct dse_grammar_state *s = NULL;
    assert_int_equal(dse_grammar_state_create(grammar, trie, &s, NULL), DSE_OK);
    bool good = dse_grammar_accept_bytes(s, text, strlen(text)) && dse_grammar_may_end(s);
    dse_grammar_state_free(s);
    return good;
}

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"s\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static void calls_have_the_shape_of_their_format(void **state)
{
    static const struct {
        enum dse_tool_format format;
        bool older, must, parallel;
        const char *text;
        bool good;
    } rows[] = {
        {DSE_TOOLS_QWEN, false, true, true,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>", true},
        {DSE_TOOLS_QWEN, false, true, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", false},
        {DSE_TOOLS_QWEN, false, true, true, "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>", false},
        {DSE_TOOLS_QWEN, false, true, true, "Hi", false},
        {DSE_TOOLS_QWEN, false, false, true, "Hi <tool_cal", true},
        {DSE_TOOLS_QWEN, false, false, true, "Hi <tool_call>", false},
        {DSE_TOOLS_QWEN, false, false, true, "<<tool_call>\n{\"name\": \"g\", \"arguments\": {\"z\":1}}\n</tool_call>",
         true},
        {DSE_TOOLS_QWEN, false, true, true, "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"z\":1}}\n</tool_call>",
         false},
        {DSE_TOOLS_QWEN, false, true, false,
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
         "\"arguments\": "
         "{}}\n</tool_call>",
         false},
        {DSE_TOOLS_QWEN, false, true, true,
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
         "\"arguments\": "
         "{}}\n</tool_call>",
         true},
        {DSE_TOOLS_DEEPSEEK, false, true, true,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", true},
        {DSE_TOOLS_DEEPSEEK, true, true, true,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         true},
        {DSE_TOOLS_DSML, true, true, true,
         "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">a </b>\n"
         "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
         "string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
         "</｜DSML｜function_calls>",
         true},
        {DSE_TOOLS_DSML, false, true, true,
         "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", false},
        {DSE_TOOLS_DSML, false, true, true,
         "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", true},
    };
    json_t *tools = parse(TOOLS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dse_tool_grammar wanted = {.format = rows[i].format,
                                          .older_layout = rows[i].older,
                                          .tools = tools,
                                          .must_call = rows[i].must,
                                          .parallel = rows[i].parallel};
        struct dse_grammar *grammar = NULL;
        assert_int_equal(dse_tool_grammar_compile(&wanted, &grammar, NULL), DSE_OK);
        if (takes(grammar, rows[i].text) != rows[i].good) fail_msg("row %zu: %s", i, rows[i].text);
        dse_grammar_unref(grammar);
    }
    json_decref(tools);
}

static void thoughts_are_free_up_to_their_end(void **state)
{
    struct dse_grammar *grammar = NULL;
    json_t *schema = parse("{\"type\":\"integer\"}");
    assert_int_equal(dse_json_schema_compile(schema, "schema", DSE_SCHEMA_AFTER_THINKING, &grammar, NULL), DSE_OK);
    assert_true(takes(grammar, "</think>7"));
    assert_true(takes(grammar, "hm </thin </</think>\n\n12"));
    assert_false(takes(grammar, "7"));
    assert_false(takes(grammar, "hm</think>7</think>7"));
    assert_false(takes(grammar, "hm</think>\n\n\n7"));
    dse_grammar_unref(grammar);
    json_decref(schema);
}

static void lack_of_memory_is_reported_for_tools(void **state)
{
    json_t *tools = parse(TOOLS);
    size_t live = dse_mem_live_bytes(DSE_MEM_TEXT);
    bool succeeded = false;
    for (long n = 1; n < 400 && !succeeded; n++) {
        struct dse_tool_grammar wanted = {.format = DSE_TOOLS_DSML, .tools = tools, .parallel = true};
        struct dse_grammar *grammar = NULL;
        struct dse_error err;
        dse_alloc_fail_after(n);
        enum dse_status status = dse_tool_grammar_compile(&wanted, &grammar, &err);
        dse_alloc_fail_after(0);
        succeeded = status == DSE_OK;
        if (!succeeded) assert_int_equal(status, DSE_ERR_NO_MEMORY);
        dse_grammar_unref(grammar);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), live);
    }
    assert_true(succeeded);
    json_decref(tools);
}

/* ---- what is kept ---------------------------------------------------------------------------------------------- */

static void masks_of_one_sequence_serve_the_next(void **state)
{
    static const char text[] = "{\"c\":\"xy\",\"e\":\"2024-02-29\",\"zz\":12,\"q\":null}";
    json_t *schema = parse(RICH);
    struct dse_grammar *shared = NULL;
    assert_int_equal(dse_json_schema_compile(schema, "schema", 0, &shared, NULL), DSE_OK);
    for (int round = 0; round < 3; round++) {
        struct dse_grammar_state *s = NULL;
        assert_int_equal(dse_grammar_state_create(shared, trie, &s, NULL), DSE_OK);
        for (size_t i = 0; i < sizeof text; i++) {
            struct dse_grammar *fresh = NULL;
            struct dse_grammar_state *other = NULL;
            uint64_t mask[N_MASK], expected[N_MASK];
            assert_int_equal(dse_json_schema_compile(schema, "schema", 0, &fresh, NULL), DSE_OK);
            assert_int_equal(dse_grammar_state_create(fresh, trie, &other, NULL), DSE_OK);
            assert_true(dse_grammar_accept_bytes(other, text, i));
            dse_grammar_mask(other, expected);
            dse_alloc_forbid_begin();
            dse_grammar_mask(s, mask);
            dse_alloc_forbid_end();
            assert_memory_equal(mask, expected, sizeof mask);
            if (i + 1 < sizeof text) assert_true(dse_grammar_accept_bytes(s, text + i, 1));
            dse_grammar_state_free(other);
            dse_grammar_unref(fresh);
        }
        dse_grammar_state_free(s);
    }
    dse_grammar_unref(shared);
    json_decref(schema);
}

static void the_cache_keeps_what_was_used_last(void **state)
{
    struct dse_grammar_cache *cache = NULL;
    struct dse_grammar *grammar = NULL;
    size_t live = dse_mem_live_bytes(DSE_MEM_TEXT);
    assert_int_equal(dse_grammar_cache_create(&cache, NULL), DSE_OK);
    assert_null(dse_grammar_cache_find(cache, "a", 1));
    assert_int_equal(dse_grammar_compile("root ::= \"x\"", 12, &grammar, NULL), DSE_OK);
    dse_grammar_cache_put(cache, "a", 1, grammar);
    dse_grammar_cache_put(cache, "a", 1, grammar);
    assert_int_equal(dse_grammar_cache_count(cache), 1);
    struct dse_grammar *found = dse_grammar_cache_find(cache, "a", 1);
    assert_ptr_equal(found, grammar);
    dse_grammar_unref(found);
    for (int i = 0; i < 2 * DSE_GRAMMAR_CACHE_ENTRIES; i++) {
        char source[16];
        int n = snprintf(source, sizeof source, "s%d", i);
        dse_grammar_cache_put(cache, source, (size_t)n, grammar);
        found = dse_grammar_cache_find(cache, "a", 1); /* used all the time */
        assert_ptr_equal(found, grammar);
        dse_grammar_unref(found);
        size_t count = dse_grammar_cache_count(cache);
        assert_true(count <= DSE_GRAMMAR_CACHE_ENTRIES &&
                    count * DSE_GRAMMAR_MASK_CACHE_BYTES <= DSE_GRAMMAR_CACHE_BYTES);
    }
    assert_null(dse_grammar_cache_find(cache, "s0", 2));
    dse_grammar_unref(grammar);
    dse_grammar_cache_free(cache);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lack_of_memory_is_reported_everywhere),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(wide_and_multiplied_schemas_are_bounded),
        cmocka_unit_test(names_with_a_common_beginning_are_bounded),
        cmocka_unit_test(control_tokens_come_only_where_a_grammar_has_a_mark),
        cmocka_unit_test(calls_have_the_shape_of_their_format),
        cmocka_unit_test(thoughts_are_free_up_to_their_end),
        cmocka_unit_test(lack_of_memory_is_reported_for_tools),
        cmocka_unit_test(masks_of_one_sequence_serve_the_next),
        cmocka_unit_test(the_cache_keeps_what_was_used_last),
    };
    return cmocka_run_group_tests(tests, make_trie, free_trie);
}

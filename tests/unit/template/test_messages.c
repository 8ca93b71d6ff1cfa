/* Probing templates, and messages brought into the form that they take. */
#include "template_common.h"

static const char *const names[] = {
    "deepseek_v3",  "qwen3",       "deepseek_coder",        "deepseek_v2", "deepseek_v31", "deepseek_r1_distill_llama",
    "deepseek_v32", "deepseek_v4", "deepseek_v31_official", "qwen25",      "smollm2"};
#define N_NAMES (sizeof(names) / sizeof(*names))

static struct dse_template_traits traits_of(const char *name)
{
    struct dse_template *tmpl = load_template(name);
    struct dse_template_traits traits;
    dse_template_probe(tmpl, DS_BOS, DS_EOS, &traits);
    dse_template_free(tmpl);
    return traits;
}

static void argument_form_is_found_by_trial(void **state)
{
    assert_false(traits_of("deepseek_v31_official").arguments_as_object);
    assert_true(traits_of("deepseek_v31").arguments_as_object);
    assert_true(traits_of("qwen25").arguments_as_object);
    assert_true(traits_of("qwen3").arguments_as_object);
    assert_true(traits_of("deepseek_v32").arguments_as_object);
    assert_false(traits_of("deepseek_v3").arguments_as_object);
    assert_false(traits_of("deepseek_r1_distill_llama").arguments_as_object);
}

static void thinking_is_found_by_trial(void **state)
{
    assert_true(traits_of("deepseek_r1_distill_llama").prompt_opens_thinking);
    assert_true(traits_of("deepseek_r1_distill_llama").has_thinking);
    assert_false(traits_of("deepseek_v31_official").prompt_opens_thinking);
    assert_true(traits_of("deepseek_v31_official").has_thinking);
    assert_true(traits_of("qwen3").has_thinking);
    assert_false(traits_of("qwen3").prompt_opens_thinking);
    assert_false(traits_of("smollm2").has_thinking);
    assert_false(traits_of("deepseek_v3").has_thinking);
}

static void tools_null_content_and_system_are_found_by_trial(void **state)
{
    assert_true(traits_of("qwen3").has_tools);
    assert_true(traits_of("deepseek_v32").has_tools);
    assert_false(traits_of("deepseek_v3").has_tools);
    assert_true(traits_of("qwen3").null_content_fails);
    assert_true(traits_of("smollm2").null_content_fails);
    assert_false(traits_of("deepseek_v3").null_content_fails);
    assert_false(traits_of("deepseek_v31").null_content_fails);
    for (size_t i = 0; i < N_NAMES; i++)
        assert_true(traits_of(names[i]).renders_system);
}

/* Owned text of a conversation through a template, the way the server does it. */
static char *converse(const char *name, const char *messages)
{
    struct dse_template *tmpl = load_template(name);
    struct dse_template_traits traits;
    struct dse_error err;
    dse_template_probe(tmpl, DS_BOS, DS_EOS, &traits);
    json_t *given = parse_json(messages), *normal;
    if (dse_messages_normalize(given, &traits, &normal, &err) != DSE_OK) fail_msg("%s: %s", name, err.message);
    struct dse_template_inputs inputs = {
        .messages = normal, .add_generation_prompt = true, .bos_token = DS_BOS, .eos_token = DS_EOS};
    char *text;
    size_t bytes;
    if (dse_template_render(tmpl, &inputs, &text, &bytes, &err) != DSE_OK) fail_msg("%s: %s", name, err.message);
    json_decref(given);
    json_decref(normal);
    dse_template_free(tmpl);
    return text;
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

static void tool_history_renders_with_null_missing_and_empty_content_in_every_template(void **state)
{
    static const char *const contents[] = {"\"content\":null,", "", "\"content\":\"\","};
    static const char *const arguments[] = {"\"{\\\"room\\\": \\\"attic\\\"}\"", "{\"room\":\"attic\"}"};
    for (size_t i = 0; i < N_NAMES; i++) {
        char *first = NULL;
        for (int form = 0; form < 6; form++) {
            char messages[1024];
            snprintf(messages, sizeof(messages),
                     "[{\"role\":\"user\",\"content\":\"How warm?\"},{\"role\":\"assistant\",%s\"tool_calls\":[{\"id\":"
                     "\"c9\",\"type\":\"function\",\"function\":{\"name\":\"read_meter\",\"arguments\":%s}}]},"
                     "{\"role\":\"tool\",\"tool_call_id\":\"c9\",\"content\":\"21.5\"},"
                     "{\"role\":\"user\",\"content\":\"And now?\"}]",
                     contents[form % 3], arguments[form / 3]);
            char *text = converse(names[i], messages);
            if (strcmp(names[i], "deepseek_v2") != 0) assert_int_equal(count(text, "21.5"), 1);
            assert_int_equal(count(text, "None") + count(text, "null") + count(text, "ndefined"), 0);
            bool shows_calls = !strstr("deepseek_coder deepseek_v2 smollm2", names[i]);
            assert_int_equal(count(text, "read_meter"), shows_calls);
            assert_int_equal(count(text, "attic"), shows_calls);
            assert_int_equal(count(text, "\\\""), 0);
            if (!first)
                first = text;
            else {
                assert_string_equal(text, first);
                dse_free(text);
            }
        }
        dse_free(first);
    }
}

static void earlier_thinking_is_dropped_as_the_template_says(void **state)
{
    char *text = converse("deepseek_r1_distill_llama",
                          "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"secret"
                          "</think>\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"}]");
    assert_int_equal(count(text, "secret"), 0);
    assert_int_equal(count(text, "<think>"), 1);
    assert_string_equal(text + strlen(text) - 8, "<think>\n");
    dse_free(text);
}

static json_t *normalized(const char *messages, struct dse_template_traits traits)
{
    struct dse_error err;
    json_t *given = parse_json(messages), *copy = json_deep_copy(given), *out;
    if (dse_messages_normalize(given, &traits, &out, &err) != DSE_OK) fail_msg("%s", err.message);
    assert_true(json_equal(given, copy)); /* the input is never changed */
    json_decref(given);
    json_decref(copy);
    return out;
}

static void expect(const char *messages, struct dse_template_traits traits, const char *wanted)
{
    json_t *out = normalized(messages, traits), *want = parse_json(wanted);
    if (!json_equal(out, want)) fail_msg("%s -> %s", messages, json_dumps(out, 0));
    json_decref(out);
    json_decref(want);
}

static void roles_and_parts_are_brought_into_one_form(void **state)
{
    struct dse_template_traits traits = {.renders_system = true, .arguments_as_object = true};
    expect("[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},"
           "{\"role\":\"system\",\"content\":\"c\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"d\"},"
           "{\"type\":\"text\",\"text\":\"e\"}]}]",
           traits, "[{\"role\":\"system\",\"content\":\"a\\n\\nc\"},{\"role\":\"user\",\"content\":\"b\\n\\nde\"}]");
    expect("[{\"role\":\"user\",\"content\":\"b\",\"name\":\"x\"},{\"role\":\"assistant\",\"content\":null,"
           "\"reasoning\":\"r\"},{\"role\":\"function\",\"name\":\"f\",\"content\":null}]",
           traits,
           "[{\"role\":\"user\",\"content\":\"b\",\"name\":\"x\"},{\"role\":\"assistant\",\"content\":\"\","
           "\"reasoning_content\":\"r\"},{\"role\":\"tool\",\"name\":\"f\",\"content\":\"\"}]");
    traits.renders_system = false;
    expect("[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]", traits,
           "[{\"role\":\"user\",\"content\":\"a\\n\\nb\"}]");
}

/* Joined one by one, the text would be copied and checked a quarter of a million times: hours, not a second. */
static void many_messages_of_one_role_are_joined_in_linear_time(void **state)
{
    enum { MESSAGES = 250000 };
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        struct dse_template_traits traits = {.renders_system = true};
        struct dse_error err;
        json_t *given = json_array(), *out;
        for (int i = 0; i < MESSAGES; i++)
            json_array_append_new(given, json_pack("{s:s,s:s}", "role", roles[r], "content", "abcdef"));
        if (dse_messages_normalize(given, &traits, &out, &err) != DSE_OK) fail_msg("%s", err.message);
        assert_int_equal(json_array_size(out), 1);
        const json_t *text = json_object_get(json_array_get(out, 0), "content");
        assert_int_equal(json_string_length(text), MESSAGES * 8 - 2);
        assert_memory_equal(json_string_value(text), "abcdef\n\nabcdef\n\n", 16);
        json_decref(given);
        json_decref(out);
    }
}

static void arguments_take_the_form_of_the_template(void **state)
{
    struct dse_template_traits object = {.renders_system = true, .arguments_as_object = true}, string = object;
    string.arguments_as_object = false;
#define CALL(content, arguments)                                                                                       \
    "[{\"role\":\"assistant\",\"content\":" content                                                                    \
    ",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","                                            \
    "\"arguments\":" arguments "}}]}]"
    expect(CALL("\"\"", "\"{\\\"a\\\": [1, 0.1]}\""), object, CALL("null", "{\"a\":[1,0.1]}"));
    expect(CALL("\"\"", "{\"a\":[1,0.1,\"é\"]}"), string, CALL("null", "\"{\\\"a\\\": [1, 0.1, \\\"é\\\"]}\""));
    expect(CALL("\"x\"", "\"{broken\""), object, CALL("\"x\"", "\"{broken\""));
    expect(CALL("\"x\"", "\"\""), object, CALL("\"x\"", "{}"));
    object.null_content_fails = true;
    expect(CALL("null", "{}"), object, CALL("\"\"", "{}"));
}

static void wrong_fields_are_named_by_path(void **state)
{
    static const struct {
        const char *messages, *field;
        enum dse_status status;
    } cases[] = {
        {"{}", "messages", DSE_ERR_INVALID},
        {"[]", "messages", DSE_ERR_INVALID},
        {"[1]", "messages[0]", DSE_ERR_INVALID},
        {"[{\"content\":\"a\"}]", "messages[0].role", DSE_ERR_INVALID},
        {"[{\"role\":\"robot\",\"content\":\"a\"}]", "messages[0].role", DSE_ERR_INVALID},
        {"[{\"role\":7,\"content\":\"a\"}]", "messages[0].role", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\"}]", "messages[1].content", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"x\"}]}]", "messages[0].content[0]",
         DSE_ERR_UNSUPPORTED},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":[{}]}]", "messages[0].content[0]", DSE_ERR_INVALID},
        {"[{\"role\":\"user\",\"content\":\"a\",\"name\":1}]", "messages[0].name", DSE_ERR_INVALID},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", DSE_ERR_INVALID},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls[0]", DSE_ERR_INVALID},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0].function", DSE_ERR_INVALID},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", "messages[0].tool_calls[0].function.name",
         DSE_ERR_INVALID},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":3}}]}]",
         "messages[0].tool_calls[0].function.arguments", DSE_ERR_INVALID},
        {"[{\"role\":\"tool\",\"tool_call_id\":4,\"content\":\"a\"}]", "messages[0].tool_call_id", DSE_ERR_INVALID},
    };
    struct dse_template_traits traits = {.renders_system = true};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct dse_error err;
        json_t *given = parse_json(cases[i].messages), *out;
        assert_int_equal(dse_messages_normalize(given, &traits, &out, &err), cases[i].status);
        assert_null(out);
        assert_string_equal(err.file, cases[i].field);
        assert_non_null(strstr(err.message, cases[i].field));
        json_decref(given);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argument_form_is_found_by_trial),
        cmocka_unit_test(thinking_is_found_by_trial),
        cmocka_unit_test(tools_null_content_and_system_are_found_by_trial),
        cmocka_unit_test(tool_history_renders_with_null_missing_and_empty_content_in_every_template),
        cmocka_unit_test(earlier_thinking_is_dropped_as_the_template_says),
        cmocka_unit_test(roles_and_parts_are_brought_into_one_form),
        cmocka_unit_test(many_messages_of_one_role_are_joined_in_linear_time),
        cmocka_unit_test(arguments_take_the_form_of_the_template),
        cmocka_unit_test(wrong_fields_are_named_by_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

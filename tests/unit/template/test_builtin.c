/* The compiled-in renderings against DeepSeek's own encoders (V3.2, V4) and official templates (older models). */
#include "template_common.h"

#include "text/chat_builtin.h"

static struct dse_template *builtin(const char *name)
{
    struct dse_error err;
    struct dse_template *tmpl;
    const char *source = dse_chat_builtin_find(name);
    assert_non_null(source);
    if (dse_template_parse(source, strlen(source), NULL, &tmpl, &err) != DSE_OK) fail_msg("%s: %s", name, err.message);
    return tmpl;
}

/* NULL when the rendering fails; err tells. */
static char *render(const struct dse_template *tmpl, const json_t *messages, const json_t *tools, bool prompt,
                    const json_t *extra, struct dse_error *err)
{
    struct dse_template_inputs inputs = {.messages = messages,
                                         .tools = tools,
                                         .add_generation_prompt = prompt,
                                         .bos_token = DS_BOS,
                                         .eos_token = DS_EOS,
                                         .extra = extra};
    char *text;
    size_t bytes;
    return dse_template_render(tmpl, &inputs, &text, &bytes, err) == DSE_OK ? text : NULL;
}

/* The messages of a row as a client would send them: the encoders' rows carry the tools in the first one. */
static char *render_as_a_server_does(const struct dse_template *tmpl, const json_t *row, const json_t *extra,
                                     struct dse_error *err)
{
    struct dse_template_traits traits;
    dse_template_probe(tmpl, DS_BOS, DS_EOS, &traits);
    json_t *messages = json_deep_copy(json_object_get(row, "messages")), *normal = NULL;
    json_t *first = json_array_get(messages, 0), *tools = json_incref(json_object_get(first, "tools"));
    json_object_del(first, "tools");
    if (tools && json_string_length(json_object_get(first, "content")) == 0) json_array_remove(messages, 0);
    char *text = NULL;
    if (dse_messages_normalize(messages, &traits, &normal, err) == DSE_OK)
        text = render(tmpl, normal, tools, true, extra, err);
    json_decref(messages);
    json_decref(normal);
    json_decref(tools);
    return text;
}

static bool same(const json_t *row, const char *way, char *got, const char *problem)
{
    const char *want = json_string_value(json_object_get(row, "rendered"));
    bool equal = want ? got && strcmp(got, want) == 0 : !got;
    if (!equal) {
        size_t at = 0;
        while (want && got && want[at] && got[at] == want[at])
            at++;
        print_error("%s %s %s, %s, from byte %zu\n  got  %.300s\n  want %.300s\n",
                    json_string_value(json_object_get(row, "encoder")), json_string_value(json_object_get(row, "name")),
                    json_string_value(json_object_get(row, "thinking_mode")), way, at, got ? got + at : problem,
                    want ? want + at : "(failure)");
    }
    dse_free(got);
    return equal;
}

static void every_encoder_row_is_rendered_exactly_or_refused_where_it_must_be(void **state)
{
    size_t bytes;
    char *text = read_data("chat/encoder_cases.jsonl", &bytes), *rest = text, *line;
    int rows = 0, wrong = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *row = parse_json(line);
        if (strcmp(json_string_value(json_object_get(row, "kind")), "encode") == 0) {
            struct dse_template *tmpl = builtin(json_string_value(json_object_get(row, "encoder")));
            bool thinking = strcmp(json_string_value(json_object_get(row, "thinking_mode")), "thinking") == 0;
            json_t *mode = json_pack("{s:O,s:O}", "thinking_mode", json_object_get(row, "thinking_mode"),
                                     "reasoning_effort", json_object_get(row, "reasoning_effort"));
            json_t *flag = json_pack("{s:b}", "thinking", thinking);
            struct dse_error err = {0};
            char *got = render(tmpl, json_object_get(row, "messages"), NULL, true, mode, &err);
            wrong += !same(row, "as it stands", got, err.message);
            got = render_as_a_server_does(tmpl, row, flag, &err);
            wrong += !same(row, "as a server does", got, err.message);
            rows++;
            json_decref(mode);
            json_decref(flag);
            dse_template_free(tmpl);
        }
        json_decref(row);
    }
    dse_free(text);
    assert_int_equal(wrong, 0);
    assert_int_equal(rows, 120);
}

/* What the encoders make of several messages of one speaker: V3.2 announces an answer after each, V4 joins those of the
 * user, empty ones too. (Rows above have none; these were made with the encoders as well.) */
static void neighbours_of_one_speaker_are_rendered_as_the_encoders_do(void **state)
{
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"\"}, "
        "{\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"c\"}, "
        "{\"role\": \"assistant\", \"content\": \"d\"}, {\"role\": \"user\", \"content\": \"e\"}, "
        "{\"role\": \"user\", \"content\": \"f\"}]";
    static const char *const rows[][3] = {
        {"deepseek_v32", "chat",
         DS_BOS
         "<｜User｜>a<｜Assistant｜></think><｜User｜><｜Assistant｜></think><｜User｜>b<｜Assistant｜></think>c" DS_EOS
         "d" DS_EOS "<｜User｜>e<｜Assistant｜></think><｜User｜>f<｜Assistant｜></think>"},
        {"deepseek_v32", "thinking",
         DS_BOS
         "<｜User｜>a<｜Assistant｜></think><｜User｜><｜Assistant｜></think><｜User｜>b<｜Assistant｜></think>c" DS_EOS
         "d" DS_EOS "<｜User｜>e<｜Assistant｜></think><｜User｜>f<｜Assistant｜><think>"},
        {"deepseek_v4", "chat",
         DS_BOS "<｜User｜>a\n\n\n\nb<｜Assistant｜></think>c" DS_EOS "d" DS_EOS
                "<｜User｜>e\n\nf<｜Assistant｜></think>"},
        {"deepseek_v4", "thinking",
         DS_BOS "<｜User｜>a\n\n\n\nb<｜Assistant｜></think>c" DS_EOS "d" DS_EOS
                "<｜User｜>e\n\nf<｜Assistant｜><think>"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dse_template *tmpl = builtin(rows[i][0]);
        struct dse_error err = {0};
        json_t *row = json_pack("{s:s, s:s, s:s, s:o, s:s}", "encoder", rows[i][0], "name", "neighbours",
                                "thinking_mode", rows[i][1], "messages", parse_json(messages), "rendered", rows[i][2]);
        json_t *mode = json_pack("{s:s}", "thinking_mode", rows[i][1]);
        assert_true(same(row, "as a server does", render_as_a_server_does(tmpl, row, mode, &err), err.message));
        json_decref(row);
        json_decref(mode);
        dse_template_free(tmpl);
    }
}

static void v4_examples_that_came_with_the_model_are_rendered_exactly(void **state)
{
    struct dse_template *tmpl = builtin("deepseek_v4");
    for (int i = 1; i <= 3; i++) { /* the fourth has a task token that no API can ask for */
        char name[96];
        size_t bytes, want_bytes;
        snprintf(name, sizeof name, "chat/deepseek_v4_encoding_tests/test_input_%d.json", i);
        char *input = read_data(name, &bytes);
        snprintf(name, sizeof name, "chat/deepseek_v4_encoding_tests/test_output_%d.txt", i);
        char *want = read_data(name, &want_bytes);
        json_t *root = parse_json(input);
        struct dse_error err = {0};
        const json_t *messages = json_is_array(root) ? root : json_object_get(root, "messages");
        char *got = render(tmpl, messages, json_object_get(root, "tools"), true, NULL, &err);
        if (!got) fail_msg("%d: %s", i, err.message);
        want[want_bytes] = 0;
        assert_string_equal(got, want);
        dse_free(got);
        dse_free(want);
        dse_free(input);
        json_decref(root);
    }
    dse_template_free(tmpl);
}

/* Rows of the official templates; those with calls only where the official text is not broken. */
static void older_models_are_rendered_as_their_official_templates_do(void **state)
{
    static const char *const names[][2] = {
        {"deepseek_v2", "deepseek_v2"}, {"deepseek_v3", "deepseek_v3"}, {"deepseek_v31_official", "deepseek_v31"}};
    size_t bytes;
    char *text = read_data("chat/cases.jsonl", &bytes), *rest = text, *line;
    int rows = 0, wrong = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *row = parse_json(line);
        const char *official = json_string_value(json_object_get(row, "template"));
        const char *name = json_string_value(json_object_get(row, "name"));
        for (size_t i = 0; i < 3; i++) {
            bool calls = strstr(name, "call") || strncmp(name, "tool", 4) == 0;
            if (strcmp(official, names[i][0]) != 0 || !json_is_string(json_object_get(row, "rendered"))) continue;
            if (calls && (i != 2 || strstr(name, "dict"))) continue;
            struct dse_template *tmpl = builtin(names[i][1]);
            struct dse_error err = {0};
            char *got = render(tmpl, json_object_get(row, "messages"), NULL,
                               json_is_true(json_object_get(row, "add_generation_prompt")),
                               json_object_get(row, "vars"), &err);
            json_object_set_new(row, "encoder", json_string(official));
            json_object_set_new(row, "thinking_mode", json_string(""));
            wrong += !same(row, "as it stands", got, err.message);
            rows++;
            dse_template_free(tmpl);
        }
        json_decref(row);
    }
    dse_free(text);
    assert_int_equal(wrong, 0);
    assert_true(rows > 60);
}

static char *render_json(const char *name, const char *messages, const char *tools, const char *extra, bool prompt)
{
    struct dse_template *tmpl = builtin(name);
    struct dse_error err = {0};
    json_t *list = parse_json(messages), *tool_list = tools ? parse_json(tools) : NULL;
    json_t *variables = extra ? parse_json(extra) : NULL;
    char *text = render(tmpl, list, tool_list, prompt, variables, &err);
    if (!text) fail_msg("%s", err.message);
    json_decref(list);
    json_decref(tool_list);
    json_decref(variables);
    dse_template_free(tmpl);
    return text;
}

static void check_text(char *got, const char *want)
{
    assert_string_equal(got, want);
    dse_free(got);
}

static void v4_results_follow_the_order_of_their_calls_and_join_the_next_user_message(void **state)
{
    check_text(render_json("deepseek_v4",
                           "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":["
                           "{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5}}},"
                           "{\"id\":\"b\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},"
                           "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},"
                           "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"A\"},"
                           "{\"role\":\"user\",\"content\":\"more\"}]",
                           NULL, "{\"enable_thinking\":false}", true),
               DS_BOS "<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                      "<｜DSML｜parameter name=\"x\" string=\"false\">1.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
                      "<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" DS_EOS
                      "<｜User｜><tool_result>A</tool_result>\n\n<tool_result>B</tool_result>\n\nmore"
                      "<｜Assistant｜></think>");
}

static void v4_greatest_effort_stands_before_everything_when_thinking(void **state)
{
    const char *hi = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    char *text = render_json("deepseek_v4", hi, NULL, "{\"reasoning_effort\":\"max\"}", true);
    assert_non_null(strstr(text, DS_BOS "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST"));
    assert_non_null(strstr(text, "is left unchecked.\n\n<｜User｜>Hi<｜Assistant｜><think>"));
    dse_free(text);
    check_text(render_json("deepseek_v4", hi, NULL, "{\"reasoning_effort\":\"max\",\"thinking\":false}", true),
               DS_BOS "<｜User｜>Hi<｜Assistant｜></think>");
    check_text(render_json("deepseek_v4", hi, NULL, "{\"reasoning_effort\":\"high\"}", true),
               DS_BOS "<｜User｜>Hi<｜Assistant｜><think>");
}

static void an_answer_can_be_continued_in_thinking_mode(void **state)
{
    const char *list = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"Roses\"}]";
    check_text(render_json("deepseek_v32", list, NULL, NULL, false),
               DS_BOS "<｜User｜>q<｜Assistant｜><think></think>Roses" DS_EOS);
    check_text(render_json("deepseek_v4", list, NULL, NULL, false),
               DS_BOS "<｜User｜>q<｜Assistant｜><think></think>Roses" DS_EOS);
    check_text(render_json("deepseek_v4", "[{\"role\":\"user\",\"content\":\"q\"}]", NULL, NULL, false),
               DS_BOS "<｜User｜>q");
}

static void calls_of_v3_and_v31_are_written_whole(void **state)
{
    const char *list =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
        "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},"
        "{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"A\"},{\"role\":\"tool\",\"content\":\"B\"}]";
    check_text(render_json("deepseek_v3", list, NULL, NULL, true), DS_BOS
               "<｜User｜>q<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
               "{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>" DS_EOS
               "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>A<｜tool▁output▁end｜><｜tool▁output▁begin｜>B"
               "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>");
    check_text(render_json("deepseek_v31", list, NULL, NULL, true), DS_BOS
               "<｜User｜>q<｜Assistant｜></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}"
               "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>" DS_EOS
               "<｜tool▁output▁begin｜>A<｜tool▁output▁end｜><｜tool▁output▁begin｜>B<｜tool▁output▁end｜>");
}

static void arguments_of_a_history_that_are_no_object_do_not_fail_the_request(void **state)
{
    struct dse_template *tmpl = builtin("deepseek_v32");
    json_t *row = parse_json(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":["
        "{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{broken\"}}]},"
        "{\"role\":\"tool\",\"content\":\"A\"}]}");
    struct dse_error err = {0};
    char *text = render_as_a_server_does(tmpl, row, NULL, &err);
    if (!text) fail_msg("%s", err.message);
    assert_non_null(strstr(text, "name=\"arguments\" string=\"true\">{broken</"));
    dse_free(text);
    json_decref(row);
    dse_template_free(tmpl);
}

static void built_ins_are_probed_like_any_template(void **state)
{
    struct dse_template_traits traits;
    struct dse_template *tmpl = builtin("deepseek_v4");
    dse_template_probe(tmpl, DS_BOS, DS_EOS, &traits);
    assert_true(traits.has_tools && traits.arguments_as_object && !traits.null_content_fails && traits.has_thinking);
    assert_true(traits.prompt_opens_thinking && traits.renders_system && traits.encoder_rules);
    dse_template_free(tmpl);
    tmpl = builtin("deepseek_v3");
    dse_template_probe(tmpl, DS_BOS, DS_EOS, &traits);
    assert_true(!traits.has_tools && !traits.null_content_fails && traits.renders_system && !traits.encoder_rules);
    dse_template_free(tmpl);
    assert_null(dse_chat_builtin_find("deepseek"));
    assert_null(dse_chat_builtin_for("deepseek2"));
    assert_ptr_equal(dse_chat_builtin_for("deepseek32"), dse_chat_builtin_find("deepseek_v32"));
    assert_ptr_equal(dse_chat_builtin_for("deepseek4"), dse_chat_builtin_find("deepseek_v4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoder_row_is_rendered_exactly_or_refused_where_it_must_be),
        cmocka_unit_test(neighbours_of_one_speaker_are_rendered_as_the_encoders_do),
        cmocka_unit_test(v4_examples_that_came_with_the_model_are_rendered_exactly),
        cmocka_unit_test(older_models_are_rendered_as_their_official_templates_do),
        cmocka_unit_test(v4_results_follow_the_order_of_their_calls_and_join_the_next_user_message),
        cmocka_unit_test(v4_greatest_effort_stands_before_everything_when_thinking),
        cmocka_unit_test(an_answer_can_be_continued_in_thinking_mode),
        cmocka_unit_test(calls_of_v3_and_v31_are_written_whole),
        cmocka_unit_test(arguments_of_a_history_that_are_no_object_do_not_fail_the_request),
        cmocka_unit_test(built_ins_are_probed_like_any_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

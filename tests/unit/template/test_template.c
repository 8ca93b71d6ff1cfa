/* Templates against what Jinja2 made of them, and the limits on hostile ones. */
#include "template_common.h"

#include <time.h>

/* Renders each row of a file of cases and compares. Rows without `template` text name a template file. */
static void check_cases(const char *file, bool inline_source, int expected_rows)
{
    size_t bytes;
    char *text = read_data(file, &bytes), name[64] = "";
    struct dse_template *tmpl = NULL;
    json_t *vars = NULL;
    int rows = 0, wrong = 0;
    for (char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        *end++ = 0;
        json_t *row = parse_json(line);
        if (!json_object_get(row, "template")) {
            vars = json_incref(json_object_get(row, "vars"));
            json_decref(row);
            continue;
        }
        const json_t *source = json_object_get(row, "template"), *rendered = json_object_get(row, "rendered");
        struct dse_error err = {0};
        if (inline_source) {
            dse_template_free(tmpl);
            if (dse_template_parse(json_string_value(source), json_string_length(source), NULL, &tmpl, &err) != DSE_OK)
                tmpl = NULL;
        } else if (strcmp(name, json_string_value(source)) != 0) {
            dse_template_free(tmpl);
            snprintf(name, sizeof(name), "%s", json_string_value(source));
            tmpl = load_template(name);
        }
        const json_t *tools = json_object_get(row, "tools");
        json_t *empty = json_array();
        struct dse_template_inputs inputs = {
            .messages = inline_source ? empty : json_object_get(row, "messages"),
            .tools = json_is_array(tools) ? tools : NULL,
            .add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt")),
            .bos_token = json_string_value(json_object_get(row, "bos_token")),
            .eos_token = json_string_value(json_object_get(row, "eos_token")),
            .extra = inline_source ? vars : json_object_get(row, "vars"),
        };
        char *got = NULL;
        size_t got_bytes = 0;
        bool ok = tmpl && dse_template_render(tmpl, &inputs, &got, &got_bytes, &err) == DSE_OK;
        bool same = ok ? json_is_string(rendered) && got_bytes == json_string_length(rendered) &&
                             memcmp(got, json_string_value(rendered), got_bytes) == 0
                       : json_is_null(rendered);
        if (!ok) assert_true(err.message[0] != 0);
        if (!same && wrong++ < 40)
            print_error("%s %s\n  got  %s\n  want %s\n", json_string_value(source),
                        inline_source ? "" : json_string_value(json_object_get(row, "name")), ok ? got : err.message,
                        json_is_string(rendered) ? json_string_value(rendered) : "(failure)");
        rows++;
        dse_free(got);
        json_decref(empty);
        json_decref(row);
    }
    dse_template_free(tmpl);
    json_decref(vars);
    dse_free(text);
    assert_int_equal(wrong, 0);
    assert_true(rows >= expected_rows);
}

static void every_chat_case_renders_exactly_or_fails_where_it_must(void **state)
{
    check_cases("chat/cases.jsonl", false, 330);
}

static void every_construct_matches_jinja2(void **state)
{
    check_cases("chat/jinja_cases.jsonl", true, 500);
}

static enum dse_status render_text(const char *source, size_t bytes, const char *extra, char **out,
                                   struct dse_error *err)
{
    struct dse_template *tmpl;
    *out = NULL;
    enum dse_status status = dse_template_parse(source, bytes, NULL, &tmpl, err);
    if (status != DSE_OK) return status;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    json_t *variables = extra ? parse_json(extra) : NULL;
    struct dse_template_inputs inputs = {.messages = messages, .bos_token = "<s>", .extra = variables};
    size_t size;
    status = messages ? dse_template_render(tmpl, &inputs, out, &size, err) : dse_fail_memory(err, 64, "messages");
    json_decref(messages);
    json_decref(variables);
    dse_template_free(tmpl);
    return status;
}

/* Must be refused with a message that has `word`, long before the time limit: a step limit that does not work would be
 * found by it otherwise. Processor time, since tests run beside others and under sanitizers. */
static void refused(const char *source, size_t bytes, enum dse_status status, const char *word)
{
    char *text;
    struct dse_error err = {0};
    clock_t start = clock();
    enum dse_status got = render_text(source, bytes, NULL, &text, &err);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    dse_free(text);
    if (got != status || !strstr(err.message, word))
        fail_msg("%.80s: status %s, %s", source, dse_status_name(got), err.message);
    if (getenv("DSE_TEST_TIMES")) print_message("%.2f s  %.70s\n", seconds, source);
    if (seconds > 4) fail_msg("%.80s: took %.1f s", source, seconds);
}

static void refused_text(const char *source, enum dse_status status, const char *word)
{
    refused(source, strlen(source), status, word);
}

static void loops_and_growth_without_end_are_refused(void **state)
{
    refused_text("{% for x in range(10**9) %}{% endfor %}", DSE_ERR_LIMIT, "range");
    refused_text("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", DSE_ERR_LIMIT,
                 "steps");
    refused_text("{{ 'a' * 10**9 }}", DSE_ERR_LIMIT, "bytes");
    refused_text("{{ [1] * 10**9 }}", DSE_ERR_LIMIT, "than");
    refused_text("{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 DSE_ERR_LIMIT, "bytes");
    refused_text(
        "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        DSE_ERR_LIMIT, "than");
    refused_text("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", DSE_ERR_LIMIT, "nested deeper");
    refused_text("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", DSE_ERR_LIMIT, "deeply");
    refused_text("{{ 2 ** 100 }}", DSE_ERR_LIMIT, "too large");
    refused_text("{{ 'x' | indent(10**12) }}", DSE_ERR_LIMIT, "bytes");
    refused_text(
        "{% set s = 'ab' * 10000000 %}{% for i in range(99999) %}{% set x = s.replace('a', 'c') %}{% endfor %}",
        DSE_ERR_LIMIT, "than");
}

static void nothing_outside_the_variables_can_be_reached(void **state)
{
    refused_text("{{ ''.__class__.__mro__[1].__subclasses__() }}", DSE_ERR_INVALID, "__class__");
    refused_text("{{ messages.__class__.__base__ }}", DSE_ERR_INVALID, "__class__");
    refused_text("{{ raise_exception.__globals__['os'] }}", DSE_ERR_INVALID, "__globals__");
    refused_text("{{ messages['__class__']['__init__'] }}", DSE_ERR_INVALID, "__class__");
    refused_text("{% include 'etc/passwd' %}", DSE_ERR_UNSUPPORTED, "include");
    refused_text("{% import 'os' as os %}", DSE_ERR_UNSUPPORTED, "import");
    refused_text("\n\n{% extends 'x' %}", DSE_ERR_UNSUPPORTED, "line 3");
    refused_text("{{ x | attr('y') }}", DSE_ERR_UNSUPPORTED, "attr");
}

static char *repeated(const char *part, size_t times, const char *tail)
{
    size_t bytes = strlen(part);
    char *text = malloc(bytes * times + strlen(tail) + 1);
    assert_non_null(text);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * bytes, part, bytes);
    memcpy(text + bytes * times, tail, strlen(tail) + 1);
    return text;
}

static void deep_and_huge_sources_are_refused(void **state)
{
    static const struct {
        const char *part, *tail, *word;
        size_t times;
        const char *close;
    } cases[] = {
        {"(", "1", "nested deeper", 60000, ")"},
        {"[", "1", "nested deeper", 60000, "]"},
        {"{1:", "1", "nested deeper", 60000, "}"},
        {"-", "1", "nested deeper", 60000},
        {"not ", "1", "nested deeper", 60000},
        {"1+", "1", "operators", 60000},
        {"a.", "b", "operators", 60000},
        {"1 if 1 else ", "1", "nested deeper", 60000},
        {"1|e is eq 1 and ", "1", "operators", 60000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *inner = repeated(cases[i].part, cases[i].times, cases[i].tail);
        char *closers = repeated(cases[i].close ? cases[i].close : "", cases[i].times, "");
        size_t bytes = strlen(inner) + strlen(closers) + 8;
        char *source = malloc(bytes);
        assert_non_null(source);
        snprintf(source, bytes, "{{ %s%s }}", inner, closers);
        refused(source, strlen(source), DSE_ERR_LIMIT, cases[i].word);
        free(source);
        free(inner);
        free(closers);
    }
    char *blocks = repeated("{% if 1 %}", 60000, "");
    refused(blocks, strlen(blocks), DSE_ERR_LIMIT, "nested deeper");
    free(blocks);
    char *large = repeated("{{ a }}", (1u << 20) / 7 + 1, "");
    refused(large, strlen(large), DSE_ERR_LIMIT, "at most");
    large[1u << 20] = 0;
    struct dse_error err;
    char *text;
    large[(1u << 20) - ((1u << 20) % 7)] = 0;
    assert_int_equal(render_text(large, strlen(large), NULL, &text, &err), DSE_OK);
    dse_free(text);
    free(large);
}

static void malformed_bytes_are_refused(void **state)
{
    refused("{{ '\xff' }}", 9, DSE_ERR_CORRUPT, "UTF-8");
    refused("{{ '\\ud800' }}", 14, DSE_ERR_CORRUPT, "escape");
    refused("a\0{% if", 7, DSE_ERR_CORRUPT, "without");
}

static void extra_variables_cannot_replace_ours(void **state)
{
    char *text;
    struct dse_error err;
    const char *source = "{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}{{ x }}";
    const char *extra = "{\"bos_token\":\"evil\",\"messages\":[],\"tools\":[1],\"add_generation_prompt\":1,"
                        "\"eos_token\":\"evil\",\"tokenize\":true,\"x\":\"fine\",\"range\":5}";
    assert_int_equal(render_text(source, strlen(source), extra, &text, &err), DSE_OK);
    assert_string_equal(text, "<s>hiFalseNonefine");
    dse_free(text);
}

static void raise_exception_gives_its_own_message(void **state)
{
    refused_text("{{ raise_exception('Roles must alternate') }}", DSE_ERR_INVALID, "Roles must alternate");
}

static void errors_name_the_line(void **state)
{
    refused_text("a\nb\n{{ 'x' + none }}", DSE_ERR_INVALID, "line 3");
    refused_text("a\n{% if %}", DSE_ERR_CORRUPT, "line 2");
}

static void lists_can_be_appended_to(void **state)
{
    char *text;
    struct dse_error err;
    const char *source =
        "{% set l = [] %}{% for i in range(3) %}{% set _ = l.append(i) %}{% endfor %}{{ l }}{{ l.pop() }}"
        "{% generation %}g{% endgeneration %}";
    assert_int_equal(render_text(source, strlen(source), NULL, &text, &err), DSE_OK);
    assert_string_equal(text, "[0, 1, 2]2g");
    dse_free(text);
    assert_int_equal(render_text("{{ strftime_now('%Y') }}", 24, NULL, &text, &err), DSE_OK);
    assert_int_equal(strlen(text), 4);
    assert_true(strtol(text, NULL, 10) >= 2024);
    dse_free(text);
}

static void failed_allocations_are_reported(void **state)
{
    const char *source = "{% for i in range(20) %}{{ ('a' ~ i) | upper }}{{ [i, {'k': i}] | tojson }}{% endfor %}";
    for (long n = 1; n < 60; n++) {
        char *text;
        struct dse_error err = {0};
        dse_alloc_fail_after(n);
        enum dse_status status = render_text(source, strlen(source), NULL, &text, &err);
        dse_alloc_fail_after(0);
        assert_true(status == DSE_OK ? text != NULL : err.message[0] != 0);
        dse_free(text);
    }
}

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC; /* of this process: the machine may be busy with others */
}

/* Each does little in the count of nodes and much in bytes; without a charge for bytes they would take minutes. */
static void long_strings_are_charged_for(void **state)
{
    static const char *const bodies[] = {"s.isspace()",
                                         "s.isdigit()",
                                         "s.startswith(s)",
                                         "s.endswith(s)",
                                         "s.strip('b' * 999999 + 'a')",
                                         "s.rfind(s[:1000000] + 'b')",
                                         "s.rsplit(s[:1000000] + 'b', 1)",
                                         "s|wordcount",
                                         "s|escape",
                                         "s|tojson",
                                         "[s]|string",
                                         "s.format()",
                                         "s.count('ab')",
                                         "s|upper",
                                         "s|indent(s|length, true)",
                                         "s.replace('', s)",
                                         "s.join([s] * 99)",
                                         "([s] * 99)|join(s)",
                                         "s * 99",
                                         "s.splitlines()",
                                         "s in s ~ 'b'",
                                         "s[::-1]",
                                         "s == s ~ 'b'"};
    struct dse_template_limits limits = dse_template_limits_default;
    struct dse_template_inputs inputs = {.messages = json_array()};
    limits.max_steps = 2000000;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        char source[400], *text;
        size_t bytes;
        struct dse_error err;
        struct dse_template *tmpl;
        snprintf(source, sizeof(source),
                 "{%% set s = '%s' * 4000000 %%}{%% for i in range(99999) %%}{%% set x = %s %%}{%% endfor %%}",
                 i == 0   ? " "
                 : i == 1 ? "1"
                          : "a",
                 bodies[i]);
        double before = cpu_seconds();
        assert_int_equal(dse_template_parse(source, strlen(source), &limits, &tmpl, &err), DSE_OK);
        enum dse_status status = dse_template_render(tmpl, &inputs, &text, &bytes, &err);
        double spent = cpu_seconds() - before;
        dse_template_free(tmpl);
        dse_free(text);
        if (status != DSE_ERR_LIMIT || spent > 3)
            fail_msg("%s: %s after %.1f s", bodies[i], dse_status_name(status), spent);
    }
    json_decref((json_t *)inputs.messages);
}

/* A probe is many renderings, which share steps and time, and fill less memory than a rendering may. */
static void a_probe_has_the_limits_of_one_rendering(void **state)
{
    static const char *const sources[] = {
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set s = 'ab' * 9000000 %}{% for i in range(99) %}{{ s }}{% endfor %}",
        "{% set ns = namespace(l=[1, 2]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof(sources) / sizeof(*sources); i++) {
        struct dse_template *tmpl;
        struct dse_template_traits traits;
        struct dse_template_inputs inputs = {0};
        struct dse_error err;
        char *text;
        size_t bytes;
        assert_int_equal(dse_template_parse(sources[i], strlen(sources[i]), NULL, &tmpl, &err), DSE_OK);
        json_t *messages = json_array();
        inputs.messages = messages;
        double start = cpu_seconds();
        assert_int_equal(dse_template_render(tmpl, &inputs, &text, &bytes, &err), DSE_ERR_LIMIT);
        double one = cpu_seconds() - start;
        start = cpu_seconds();
        dse_template_probe(tmpl, "", "", &traits);
        double all = cpu_seconds() - start;
        if (all > (i == 0 ? 2.5 * one + 0.05 : 0.5))
            fail_msg("%s: one rendering took %.2f s, a probe %.2f s", sources[i], one, all);
        json_decref(messages);
        dse_template_free(tmpl);
    }
}

/* As R1's, with something in a call that is beyond what a rendering may do. */
static void a_limit_met_in_one_probe_leaves_the_others_their_answers(void **state)
{
    static const char *const causes[] = {
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ m | tojson(indent=65) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set s = 'ab' * 500000000 %}",
    };
    json_t *calls = json_pack("[{s:s,s:n,s:[{s:s,s:s,s:{s:s,s:{}}}]}]", "role", "assistant", "content", "tool_calls",
                              "id", "c", "type", "function", "function", "name", "f", "arguments");
    assert_non_null(calls);
    (void)state;
    for (size_t i = 0; i < sizeof(causes) / sizeof(*causes); i++) {
        struct dse_template *tmpl;
        struct dse_template_traits traits;
        struct dse_template_inputs inputs = {.messages = calls};
        struct dse_error err;
        char source[500], *text;
        size_t bytes;
        snprintf(source, sizeof(source),
                 "{%% for m in messages %%}{%% if m.tool_calls %%}%s{%% endif %%}<{{ m.role }}>{{ m.content }}"
                 "{%% endfor %%}{%% if tools %%}{{ tools | tojson }}{%% endif %%}"
                 "{%% if add_generation_prompt %%}<assistant><think>\n{%% endif %%}",
                 causes[i]);
        assert_int_equal(dse_template_parse(source, strlen(source), NULL, &tmpl, &err), DSE_OK);
        assert_int_equal(dse_template_render(tmpl, &inputs, &text, &bytes, &err), DSE_ERR_LIMIT);
        dse_template_probe(tmpl, "", "", &traits);
        if (!traits.prompt_opens_thinking || !traits.renders_system || !traits.has_tools)
            fail_msg("%s: thinking %d, system %d, tools %d", causes[i], traits.prompt_opens_thinking,
                     traits.renders_system, traits.has_tools);
        dse_template_free(tmpl);
    }
    json_decref(calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chat_case_renders_exactly_or_fails_where_it_must),
        cmocka_unit_test(every_construct_matches_jinja2),
        cmocka_unit_test(loops_and_growth_without_end_are_refused),
        cmocka_unit_test(nothing_outside_the_variables_can_be_reached),
        cmocka_unit_test(deep_and_huge_sources_are_refused),
        cmocka_unit_test(malformed_bytes_are_refused),
        cmocka_unit_test(extra_variables_cannot_replace_ours),
        cmocka_unit_test(raise_exception_gives_its_own_message),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(lists_can_be_appended_to),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(long_strings_are_charged_for),
        cmocka_unit_test(a_probe_has_the_limits_of_one_rendering),
        cmocka_unit_test(a_limit_met_in_one_probe_leaves_the_others_their_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

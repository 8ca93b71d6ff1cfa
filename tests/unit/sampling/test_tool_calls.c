/* Tool calls in every format of the family: the same events whatever way the text is cut, nothing leaked, nothing lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/output.h"

#define EOS "<｜end▁of▁sentence｜>"

struct call {
    char name[300], arguments[1024];
    size_t bytes;
    bool ended;
};

struct sink {
    char text[2][1024];
    size_t bytes[2];
    struct call calls[4];
    int n_calls;
};

static void collect(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct sink *sink = user;
    assert_true(bytes > 0 && dse_utf8_valid(text, bytes));
    assert_true(sink->bytes[channel] + bytes < sizeof sink->text[channel]);
    memcpy(sink->text[channel] + sink->bytes[channel], text, bytes);
    sink->bytes[channel] += bytes;
    sink->text[channel][sink->bytes[channel]] = 0;
}

static void collect_tool(void *user, const struct dse_tool_event *event)
{
    struct sink *sink = user;
    if (event->kind == DSE_TOOL_EVENT_BEGIN) {
        assert_int_equal(event->index, sink->n_calls);
        assert_true(sink->n_calls == 0 || sink->calls[sink->n_calls - 1].ended);
        struct call *call = &sink->calls[sink->n_calls++];
        snprintf(call->name, sizeof call->name, "%.*s", (int)event->bytes, event->text);
        return;
    }
    assert_int_equal(event->index, sink->n_calls - 1);
    struct call *call = &sink->calls[event->index];
    assert_false(call->ended);
    if (event->kind == DSE_TOOL_EVENT_END) {
        call->ended = true;
        return;
    }
    assert_true(event->bytes > 0 && dse_utf8_valid(event->text, event->bytes));
    assert_true(call->bytes + event->bytes < sizeof call->arguments);
    memcpy(call->arguments + call->bytes, event->text, event->bytes);
    call->bytes += event->bytes;
}

struct setup {
    enum dse_tool_format format;
    bool thinks, inside;
    const char *stop;
};

static struct dse_output *open_output(const struct setup *setup, struct sink *sink)
{
    size_t stop_bytes = setup->stop ? strlen(setup->stop) : 0;
    struct dse_output_options options = {.stops = &setup->stop,
                                         .stop_bytes = &stop_bytes,
                                         .n_stops = setup->stop != NULL,
                                         .reasoning = DSE_REASONING_DEEPSEEK,
                                         .starts_in_reasoning = setup->inside,
                                         .think_open = setup->thinks ? "<think>" : NULL,
                                         .think_close = setup->thinks ? "</think>" : NULL,
                                         .emit = collect,
                                         .tools = setup->format,
                                         .emit_tool = collect_tool,
                                         .user = sink};
    struct dse_output *output = NULL;
    struct dse_error err;
    memset(sink, 0, sizeof *sink);
    if (dse_output_create(&options, &output, &err) != DSE_OK) fail_msg("%s", err.message);
    return output;
}

/* Pieces: up to cut1, up to cut2, the rest; step 0: as told, else pieces of `step` bytes. */
static void run(const struct setup *setup, const char *text, size_t bytes, size_t cut1, size_t cut2, size_t step,
                struct sink *sink)
{
    struct dse_output *output = open_output(setup, sink);
    bool more = true;
    dse_alloc_forbid_begin();
    if (step == 0) {
        more = dse_output_feed(output, text, cut1, NULL);
        if (more) more = dse_output_feed(output, text + cut1, cut2 - cut1, NULL);
        if (more) dse_output_feed(output, text + cut2, bytes - cut2, NULL);
    }
    for (size_t i = 0; step > 0 && more && i < bytes; i += step)
        more = dse_output_feed(output, text + i, bytes - i < step ? bytes - i : step, NULL);
    dse_output_finish(output);
    dse_alloc_forbid_end();
    assert_int_equal(dse_output_tool_calls(output), sink->n_calls);
    dse_output_free(output);
}

/* Calls as `name{arguments}` lines after the content, a call that was never ended without its bar. */
static void describe(const struct sink *sink, char *out, size_t capacity)
{
    size_t n = (size_t)snprintf(out, capacity, "%s", sink->text[DSE_CHANNEL_CONTENT]);
    if (sink->bytes[DSE_CHANNEL_REASONING])
        n += (size_t)snprintf(out + n, capacity - n, "\n?%s", sink->text[DSE_CHANNEL_REASONING]);
    for (int i = 0; i < sink->n_calls; i++)
        n += (size_t)snprintf(out + n, capacity - n, "\n@%s %s%s", sink->calls[i].name, sink->calls[i].arguments,
                              sink->calls[i].ended ? "" : " (open)");
    assert_true(n < capacity);
}

/* want: content, then "\n?reasoning", then "\n@name arguments" for each call. */
static void check(const struct setup *setup, const char *text, size_t bytes, const char *want)
{
    static struct sink whole, sink;
    static char got[16384];
    run(setup, text, bytes, bytes, bytes, 0, &whole);
    describe(&whole, got, sizeof got);
    if (strcmp(got, want) != 0) fail_msg("%s\n  got  %s\n  want %s", text, got, want);
    size_t stride = bytes <= 150 ? 1 : bytes <= 300 ? 5 : 29; /* every pair of cuts for the short ones */
    for (size_t i = 0; i <= bytes; i++) {
        for (size_t j = i; j <= bytes; j += j == i || j + stride > bytes ? 1 : stride) {
            run(setup, text, bytes, i, j, 0, &sink);
            if (memcmp(&whole, &sink, sizeof sink) != 0) fail_msg("cut at %zu and %zu: %s", i, j, text);
        }
    }
    for (size_t step = 1; step <= 5; step++) {
        run(setup, text, bytes, 0, 0, step, &sink);
        if (memcmp(&whole, &sink, sizeof sink) != 0) fail_msg("pieces of %zu: %s", step, text);
    }
}

static void check_format(enum dse_tool_format format, const char *text, const char *want)
{
    check(&(struct setup){.format = format}, text, strlen(text), want);
}

/* ---- DeepSeek V3, R1, V3.1 ------------------------------------------------------------------------------------ */

#define BEGIN "<｜tool▁calls▁begin｜>"
#define CALL  "<｜tool▁call▁begin｜>"
#define SEP   "<｜tool▁sep｜>"
#define CLOSE "<｜tool▁call▁end｜>"
#define END   "<｜tool▁calls▁end｜>"
#define METER "read_meter {\"room\":\"attic\",\"n\":3}"

static void deepseek(const char *text, const char *want)
{
    check_format(DSE_TOOLS_DEEPSEEK, text, want);
}

static void both_deepseek_layouts_give_the_same_call(void **state)
{
    deepseek(BEGIN CALL "function" SEP "read_meter\n```json\n{\"room\":\"attic\",\"n\":3}\n```" CLOSE END, "\n@" METER);
    deepseek(BEGIN CALL "read_meter" SEP "{\"room\":\"attic\",\"n\":3}" CLOSE END, "\n@" METER);
    deepseek("I look." BEGIN CALL "read_meter" SEP "{\"room\":\"attic\",\"n\":3}" CLOSE CALL "f" SEP "{}" CLOSE END,
             "I look.\n@" METER "\n@f {}");
    deepseek("\n\n" BEGIN CALL "function" SEP "a\n```json\n{\"x\": \"``\"}\n```" CLOSE "\n" CALL "function" SEP
             "b\n```json\n{\n  \"y\": [1]\n}\n```" CLOSE END,
             "\n@a {\"x\": \"``\"}\n@b {\n  \"y\": [1]\n}");
}

static void deepseek_calls_are_read_leniently(void **state)
{
    /* V3's own template writes a single call without, three calls with three ends of the block. */
    deepseek(BEGIN CALL "function" SEP "a\n```json\n{}\n```" CLOSE, "\n@a {}");
    deepseek(BEGIN CALL "a" SEP "{}" CLOSE END "\n" CALL "b" SEP "{}" CLOSE END END "\n", "\n@a {}\n@b {}");
    deepseek(CALL "a" SEP "{}" CLOSE, "\n@a {}");                                       /* no block */
    deepseek(BEGIN CALL "function" SEP "{\"x\":1}" CLOSE END, "\n@function {\"x\":1}"); /* a tool of that name */
    deepseek(BEGIN CALL "function" SEP "a\n{\"x\":1}" CLOSE END, "\n@a {\"x\":1}");     /* no fence */
    deepseek(BEGIN CALL "a" SEP "```json\n{\"x\":1}\n```" CLOSE END, "\n@a {\"x\":1}");
    deepseek(BEGIN CALL "a" SEP CLOSE END, "\n@a {}");
    deepseek(BEGIN CALL "a" SEP "{\"x\":1}" END, "\n@a {\"x\":1}"); /* no end of the call */
    deepseek(BEGIN CALL "a" SEP "{\"x\":1}", "\n@a {\"x\":1}");     /* no end at all */
    deepseek(BEGIN CALL "function" SEP "a\n```json\n{\"x\":1}\n``", "\n@a {\"x\":1}");
    deepseek(BEGIN CALL "a" SEP "{\"x\":1", "\n@a {\"x\":1");
    deepseek(BEGIN CALL "a" SEP "{}" CLOSE "<｜tool▁calls▁e",
             "\n@a {}"); /* end mark cut off, even inside a character */
    deepseek(BEGIN CALL "a" SEP "{}" CLOSE "\n<｜tool▁calls\xE2\x96", "\n@a {}");
    deepseek(BEGIN CALL "a" SEP "{}" CLOSE "\n" CALL "b", "\n" CALL "b\n@a {}");
    deepseek(BEGIN CALL "a" SEP "{x: <b>, 'y'}" CLOSE END " ok", " ok\n@a {x: <b>, 'y'}"); /* as the model wrote it */
}

static void what_is_no_deepseek_call_stays_text(void **state)
{
    static const char *const texts[] = {
        BEGIN,
        BEGIN END,
        BEGIN CALL "a",
        BEGIN CALL SEP "{}",
        BEGIN CALL "a" SEP,
        "<" CALL "a\nb" SEP "{}",
        "a < b <｜tool▁",
        "\n\n\n",
        BEGIN CALL "function" SEP "name",
        "```json\n{}\n```",
        "",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        deepseek(texts[i], texts[i]);
    deepseek("<" BEGIN BEGIN CALL "a" SEP "{}" CLOSE, "<" BEGIN "\n@a {}");
}

/* ---- DSML ----------------------------------------------------------------------------------------------------- */

#define INVOKE(name)  "<｜DSML｜invoke name=\"" name "\">\n"
#define TEXT(name, v) "<｜DSML｜parameter name=\"" name "\" string=\"true\">" v "</｜DSML｜parameter>\n"
#define JSON(name, v) "<｜DSML｜parameter name=\"" name "\" string=\"false\">" v "</｜DSML｜parameter>\n"
#define DONE          "</｜DSML｜invoke>\n"
#define V4(calls)     "\n\n<｜DSML｜tool_calls>\n" calls "</｜DSML｜tool_calls>"

static void dsml(const char *text, const char *want)
{
    check_format(DSE_TOOLS_DSML, text, want);
}

static void dsml_strings_are_escaped_and_values_stay_json(void **state)
{
    dsml(
        V4(INVOKE("f") TEXT("q", "a \"b\"\\\n\t\x01 é🙂</x>") JSON("n", "-1.5e3") JSON("o", "{\"k\": [null]}") DONE),
        "\n@f {\"q\": \"a \\\"b\\\"\\\\\\n\\t\\u0001 é🙂</x>\", \"n\": -1.5e3, \"o\": {\"k\": [null]}}");
    dsml(V4(INVOKE("f") TEXT("q", "") DONE INVOKE("g") "\n" DONE), "\n@f {\"q\": \"\"}\n@g {}");
    dsml(V4(INVOKE("f") JSON("q", "not json") DONE), "\n@f {\"q\": not json}");
    dsml(INVOKE("f") TEXT("q", "x") DONE, "\n@f {\"q\": \"x\"}"); /* no block */
    dsml(V4("<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"q\">x</｜DSML｜parameter>" DONE),
         "\n@f {\"q\": \"x\"}"); /* no kind */
}

static void a_dsml_call_that_breaks_off_gives_what_it_has(void **state)
{
    const char *head = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"x\">";
    dsml(head, head);
    dsml(V4(INVOKE("f") TEXT("q", "x") "oops" DONE),
         "\noops</｜DSML｜invoke>\n</｜DSML｜tool_calls>\n@f {\"q\": \"x\"}");
    dsml("\n\n<｜DSML｜tool_calls>\n" INVOKE("f") "<｜DSML｜parameter name=\"q\" string=\"true\">cut he",
         "\n@f {\"q\": \"cut he");
    dsml("\n\n<｜DSML｜tool_calls>\n" INVOKE("f") TEXT("q", "x"), "\n@f {\"q\": \"x\"");
    dsml("\n\n<｜DSML｜tool_calls>\n" INVOKE("f") TEXT("q", "x") "</｜DSML｜inv", "\n@f {\"q\": \"x\"");
    dsml("\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>", "\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>");
    dsml("a｜DSML｜b <｜DSML｜", "a｜DSML｜b <｜DSML｜");
}

/* ---- Qwen ----------------------------------------------------------------------------------------------------- */

static void qwen(const char *text, const char *want)
{
    check_format(DSE_TOOLS_QWEN, text, want);
}

static void qwen_calls_are_objects_between_tags(void **state)
{
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": \"}\"}}}\n</tool_call>",
         "\n@f {\"a\": {\"b\": \"}\"}}");
    qwen("Both.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\":\"g\","
         "\"arguments\":{\"x\":[1, 2]}\n}</tool_call>\n",
         "Both.\n@f {}\n@g {\"x\":[1, 2]}");
    qwen("<tool_call>{\"name\": \"ping\"}</tool_call>", "\n@ping {}");
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "\n@f {\"a\": 1}");
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "\n@f {\"a\": 1");
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": \"{}\"}\n</tool_call>", "\n@f \"{}\"");
    /* A file that is about such calls, and a quote that is missing. */
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"{x}</tool_call> "
         "\\\"}</tool_call>\\n\"}}\n</tool_call>\n"
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": \"} </tool_call>\"}}</tool_call>",
         "\n@f {\"a\": \"{x}</tool_call> \\\"}</tool_call>\\n\"}\n@g {\"a\": \"} </tool_call>\"}");
    qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b}}\n</tool_call>\n"
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
         "\n@f {\"a\": \"b}\n@g {}");
    const char *const texts[] = {"<tool_call>", "<tool_call>\n{\"name\": 3}", "<tool_call>x</tool_call>", "a <b> }",
                                 "<tool_call>\n{\"arguments\": {}, \"name\": \"f\"}\n</tool_call>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        qwen(texts[i], texts[i]);
}

/* ---- beside the rest of the output stage ---------------------------------------------------------------------- */

static void calls_in_the_reasoning_are_text_and_behind_it_calls(void **state)
{
    const char *text = "plan " CALL "a" SEP "{}" CLOSE "\n</think>\n\nOk." BEGIN CALL "a" SEP "{}" CLOSE END;
    check(&(struct setup){.format = DSE_TOOLS_DEEPSEEK, .thinks = true, .inside = true}, text, strlen(text),
          "Ok.\n?plan " CALL "a" SEP "{}" CLOSE "\n@a {}");
    check(&(struct setup){.format = DSE_TOOLS_NONE, .thinks = true, .inside = true}, text, strlen(text),
          "Ok." BEGIN CALL "a" SEP "{}" CLOSE END "\n?plan " CALL "a" SEP "{}" CLOSE);
}

static void a_stop_string_inside_a_call_ends_it(void **state)
{
    const char *text = BEGIN CALL "a" SEP "{\"x\": \"STOP\"}" CLOSE END;
    check(&(struct setup){.format = DSE_TOOLS_DEEPSEEK, .stop = "STOP"}, text, strlen(text), "\n@a {\"x\": \"");
}

static void broken_characters_in_arguments_become_replacements(void **state)
{
    const char text[] = BEGIN CALL "a" SEP "{\"x\": \"\xE6\xB8\"}" CLOSE;
    check(&(struct setup){.format = DSE_TOOLS_DEEPSEEK}, text, strlen(text), "\n@a {\"x\": \"\xEF\xBF\xBD\"}");
    const char name[] = BEGIN CALL "a\xFF" SEP "{}" CLOSE;
    check(&(struct setup){.format = DSE_TOOLS_DEEPSEEK}, name, strlen(name), BEGIN CALL "a\xEF\xBF\xBD" SEP "{}" CLOSE);
}

static void count_bytes(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    ((size_t *)user)[0] += bytes;
}

static void count_argument_bytes(void *user, const struct dse_tool_event *event)
{
    if (event->kind == DSE_TOOL_EVENT_ARGUMENTS) ((size_t *)user)[1] += event->bytes;
}

static void held_bytes_and_arguments_are_limited(void **state)
{
    size_t counts[2] = {0};
    struct dse_output_options options = {
        .emit = count_bytes, .tools = DSE_TOOLS_DSML, .emit_tool = count_argument_bytes, .user = counts};
    struct dse_output *output;
    struct dse_error err;
    assert_int_equal(dse_output_create(&options, &output, &err), DSE_OK);
    static const char head[] = "<｜DSML｜tool_calls>",
                      call[] = INVOKE("f") "<｜DSML｜parameter name=\"q\" string=\"true\">";
    static char block[65536];
    memset(block, ' ', sizeof block);
    dse_output_feed(output, head, sizeof head - 1, NULL);
    dse_output_feed(output, block, sizeof block, NULL);
    assert_true(counts[0] >= sizeof head - 1 + sizeof block - DSE_TOOL_MAX_HELD_BYTES);
    dse_output_feed(output, call, sizeof call - 1, NULL);
    memset(block, 'x', sizeof block);
    for (size_t i = 0; i < DSE_TOOL_MAX_ARGUMENT_BYTES / sizeof block + 1; i++)
        dse_output_feed(output, block, sizeof block, NULL);
    dse_output_finish(output);
    assert_in_range(counts[1], DSE_TOOL_MAX_ARGUMENT_BYTES, DSE_TOOL_MAX_ARGUMENT_BYTES + 16);
    assert_true(counts[0] > sizeof head - 1 + sizeof block);
    dse_output_free(output);
}

/* ---- DeepSeek's own parsers ----------------------------------------------------------------------------------- */

/* What the official parsers refuse, by name: what we make of it. %s is the name of the block. */
static const char *salvaged(const char *name)
{
    static const char *const rows[][2] = {
        {"think_missing_close", "\n?never closed"},
        {"no_eos", "cut off"},
        {"text_after_call", " trailing\n@get_weather {\"city\": \"Paris\"}"},
        {"broken_call", "\n\n<｜DSML｜%s>\n<｜DSML｜invoke name=\"x\">"},
        {"duplicate_param",
         "\n<｜DSML｜parameter name=\"a\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
         "</｜DSML｜%s>\n@f {\"a\": 1}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i][0], name) == 0) return rows[i][1];
    fail_msg("%s", name);
    return NULL;
}

static void parse_rows_of_the_official_encoders_are_equal_or_salvaged(void **state)
{
    char path[1024], *text, want[8192];
    size_t bytes, rows = 0;
    struct dse_error err;
    snprintf(path, sizeof path, "%s/chat/encoder_cases.jsonl", getenv("DSE_TEST_DATA"));
    if (dse_file_read(path, 16u << 20, &text, &bytes, &err) != DSE_OK) fail_msg("%s", err.message);
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *row;
        assert_int_equal(dse_json_parse(line, strlen(line), "row", &row, &err), DSE_OK);
        if (strcmp(json_string_value(json_object_get(row, "kind")), "parse") == 0) {
            const json_t *message = json_object_get(row, "message"), *call;
            const char *output = json_string_value(json_object_get(row, "text")), *end = strstr(output, EOS);
            bool thinking = strcmp(json_string_value(json_object_get(row, "thinking_mode")), "thinking") == 0;
            bool v4 = strcmp(json_string_value(json_object_get(row, "encoder")), "deepseek_v4") == 0;
            size_t n = 0, i;
            if (json_is_object(message)) {
                const char *reasoning = json_string_value(json_object_get(message, "reasoning_content"));
                n = (size_t)snprintf(want, sizeof want, "%s", json_string_value(json_object_get(message, "content")));
                if (*reasoning) n += (size_t)snprintf(want + n, sizeof want - n, "\n?%s", reasoning);
            } else {
                const char *format = salvaged(json_string_value(json_object_get(row, "name"))),
                           *at = strstr(format, "%s");
                snprintf(want, sizeof want, "%.*s%s%s", at ? (int)(at - format) : (int)strlen(format), format,
                         !at  ? ""
                         : v4 ? "tool_calls"
                              : "function_calls",
                         at ? at + 2 : "");
            }
            json_array_foreach(json_object_get(message, "tool_calls"), i, call)
            {
                const json_t *function = json_object_get(call, "function");
                n += (size_t)snprintf(want + n, sizeof want - n, "\n@%s %s",
                                      json_string_value(json_object_get(function, "name")),
                                      json_string_value(json_object_get(function, "arguments")));
            }
            check(&(struct setup){.format = DSE_TOOLS_DSML, .thinks = true, .inside = thinking}, output,
                  end ? (size_t)(end - output) : strlen(output), want);
            rows++;
        }
        json_decref(row);
    }
    dse_free(text);
    assert_int_equal(rows, 30);
}

static void the_format_is_read_off_the_template(void **state)
{
    assert_int_equal(dse_tool_format_of("…<｜tool▁call▁begin｜>…"), DSE_TOOLS_DEEPSEEK);
    assert_int_equal(dse_tool_format_of("'<' + '｜DSML｜' + …"), DSE_TOOLS_DSML);
    assert_int_equal(dse_tool_format_of("<tool_call>\n{\"name\": "), DSE_TOOLS_QWEN);
    assert_int_equal(dse_tool_format_of("<tool_call>\n<function=…"), DSE_TOOLS_NONE);
    assert_int_equal(dse_tool_format_of("<|im_start|>"), DSE_TOOLS_NONE);
    assert_true(dse_tool_format_has(DSE_TOOLS_DSML, "｜DSML｜", strlen("｜DSML｜")));
    assert_true(dse_tool_format_has(DSE_TOOLS_DEEPSEEK, SEP, strlen(SEP)));
    assert_false(dse_tool_format_has(DSE_TOOLS_DEEPSEEK, EOS, strlen(EOS)));
    assert_false(dse_tool_format_has(DSE_TOOLS_NONE, SEP, strlen(SEP)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_deepseek_layouts_give_the_same_call),
        cmocka_unit_test(deepseek_calls_are_read_leniently),
        cmocka_unit_test(what_is_no_deepseek_call_stays_text),
        cmocka_unit_test(dsml_strings_are_escaped_and_values_stay_json),
        cmocka_unit_test(a_dsml_call_that_breaks_off_gives_what_it_has),
        cmocka_unit_test(qwen_calls_are_objects_between_tags),
        cmocka_unit_test(calls_in_the_reasoning_are_text_and_behind_it_calls),
        cmocka_unit_test(a_stop_string_inside_a_call_ends_it),
        cmocka_unit_test(broken_characters_in_arguments_become_replacements),
        cmocka_unit_test(held_bytes_and_arguments_are_limited),
        cmocka_unit_test(parse_rows_of_the_official_encoders_are_equal_or_salvaged),
        cmocka_unit_test(the_format_is_read_off_the_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

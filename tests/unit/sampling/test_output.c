/* Output stage: whatever way a text is cut into tokens, the same characters reach the same channels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/output.h"

#define REPLACEMENT "\xEF\xBF\xBD"

struct sink {
    char text[2][4096];
    size_t bytes[2];
};

static void collect(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct sink *sink = user;
    assert_true(bytes > 0);
    assert_true(dse_utf8_valid(text, bytes));
    assert_true(sink->bytes[channel] + bytes < sizeof sink->text[channel]);
    memcpy(sink->text[channel] + sink->bytes[channel], text, bytes);
    sink->bytes[channel] += bytes;
    sink->text[channel][sink->bytes[channel]] = 0;
}

struct setup {
    const char *stops[4]; /* up to the first NULL */
    enum dse_reasoning_format format;
    bool inside; /* the prompt ended in an open tag */
};

static struct dse_output *open_output(const struct setup *setup, struct sink *sink)
{
    size_t stop_bytes[4];
    int n = 0;
    for (; n < 4 && setup->stops[n]; n++)
        stop_bytes[n] = strlen(setup->stops[n]);
    struct dse_output_options options = {.stops = setup->stops,
                                         .stop_bytes = stop_bytes,
                                         .n_stops = n,
                                         .reasoning = setup->format,
                                         .starts_in_reasoning = setup->inside,
                                         .think_open = "<think>",
                                         .think_close = "</think>",
                                         .emit = collect,
                                         .user = sink};
    struct dse_output *output = NULL;
    struct dse_error err;
    if (dse_output_create(&options, &output, &err) != DSE_OK) fail_msg("%s", err.message);
    return output;
}

/* Feeds text cut at two places; returns the stop that ended it, or -1. */
static int run(const struct setup *setup, const char *text, size_t bytes, size_t cut1, size_t cut2, struct sink *sink)
{
    memset(sink->bytes, 0, sizeof sink->bytes);
    sink->text[0][0] = sink->text[1][0] = 0;
    struct dse_output *output = open_output(setup, sink);
    int stop = -1;
    dse_alloc_forbid_begin();
    bool more = dse_output_feed(output, text, cut1, &stop);
    if (more) more = dse_output_feed(output, text + cut1, cut2 - cut1, &stop);
    if (more) more = dse_output_feed(output, text + cut2, bytes - cut2, &stop);
    assert_int_equal(more, stop < 0);
    dse_output_finish(output);
    dse_alloc_forbid_end();
    dse_output_free(output);
    return stop;
}

/* Every pair of cuts, and byte by byte. */
static void check(const struct setup *setup, const char *text, size_t bytes, const char *reasoning, const char *content,
                  int stop)
{
    static struct sink sink;
    for (size_t a = 0; a <= bytes; a++)
        for (size_t b = a; b <= bytes; b++) {
            int found = run(setup, text, bytes, a, b, &sink);
            if (found != stop || strcmp(sink.text[DSE_CHANNEL_REASONING], reasoning) != 0 ||
                strcmp(sink.text[DSE_CHANNEL_CONTENT], content) != 0)
                fail_msg("'%s' cut at %zu and %zu: stop %d, reasoning '%s', content '%s'", text, a, b, found,
                         sink.text[DSE_CHANNEL_REASONING], sink.text[DSE_CHANNEL_CONTENT]);
        }
    memset(&sink, 0, sizeof sink);
    struct dse_output *output = open_output(setup, &sink);
    int found = -1;
    for (size_t i = 0; i < bytes && dse_output_feed(output, text + i, 1, &found); i++)
        continue;
    dse_output_finish(output);
    dse_output_free(output);
    assert_int_equal(found, stop);
    assert_string_equal(sink.text[DSE_CHANNEL_REASONING], reasoning);
    assert_string_equal(sink.text[DSE_CHANNEL_CONTENT], content);
}

#define CHECK(setup, text, reasoning, content, stop) check(setup, text, sizeof(text) - 1, reasoning, content, stop)

static const struct setup PLAIN = {.format = DSE_REASONING_NONE};
static const struct setup INSIDE = {.format = DSE_REASONING_DEEPSEEK, .inside = true};
static const struct setup INSIDE_NONE = {.format = DSE_REASONING_NONE, .inside = true};
static const struct setup OUTSIDE = {.format = DSE_REASONING_DEEPSEEK};

static void opened_by_the_prompt_splits_or_stays_verbatim(void **state)
{
    CHECK(&INSIDE, "two plus two is four</think>\n\nIt is 4.", "two plus two is four", "It is 4.", -1);
    CHECK(&INSIDE_NONE, "two plus two is four</think>\n\nIt is 4.", "",
          "<think>two plus two is four</think>\n\nIt is 4.", -1);
    CHECK(&INSIDE, "\n\na\n\nb\n\n</think>\n\n c\n", "a\n\nb", " c\n", -1);
    CHECK(&INSIDE, "", "", "", -1);
    CHECK(&INSIDE_NONE, "", "", "<think>", -1);
}

static void opened_by_the_model_splits(void **state)
{
    CHECK(&OUTSIDE, "<think>\nhm\n</think>\n\nyes", "hm", "yes", -1);
    CHECK(&OUTSIDE, " \n<think>hm</think>yes", "hm", "yes", -1);
    CHECK(&OUTSIDE, "<think>\n\n</think>\n\nyes", "", "yes", -1);
    CHECK(&OUTSIDE, "<think>never closed", "never closed", "", -1);
    CHECK(&OUTSIDE, "<think>cut\n</thi", "cut\n</thi", "", -1);
    CHECK(&OUTSIDE, "<think>", "", "", -1);
    /* A model that repeats the tag of the prompt. */
    CHECK(&INSIDE, "<think>\nhm</think>yes", "hm", "yes", -1);
    CHECK(&INSIDE, "  <thinking", "  <thinking", "", -1);
    CHECK(&PLAIN, "<think>\nhm\n</think>\n\nyes", "", "<think>\nhm\n</think>\n\nyes", -1);
}

static void tags_elsewhere_are_text(void **state)
{
    CHECK(&OUTSIDE, "say <think>x</think>", "", "say <think>x</think>", -1);
    CHECK(&OUTSIDE, "x</think>y", "", "x</think>y", -1);
    CHECK(&OUTSIDE, "<<think>x", "", "<<think>x", -1);
    CHECK(&OUTSIDE, "<thin", "", "<thin", -1);
    CHECK(&OUTSIDE, " \n\t ", "", " \n\t ", -1);
    CHECK(&OUTSIDE, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d", -1);
    CHECK(&INSIDE, "a<think>b</</think>c", "a<think>b</", "c", -1);
    CHECK(&INSIDE, "a</think</think>b", "a</think", "b", -1);
    CHECK(&INSIDE, "a\n</thin\n</think>b", "a\n</thin", "b", -1);
}

static void long_white_space_never_overflows(void **state)
{
    char text[1200];
    static struct sink sink;
    memset(text, ' ', sizeof text);
    memcpy(text + 600, "<think>x</think>", 16);
    for (size_t cut = 0; cut < sizeof text; cut += 37) {
        run(&OUTSIDE, text, sizeof text, cut, cut, &sink);
        assert_int_equal(sink.bytes[DSE_CHANNEL_CONTENT], sizeof text);
        assert_memory_equal(sink.text[DSE_CHANNEL_CONTENT], text, sizeof text);
    }
    memset(text, '\n', sizeof text);
    memcpy(text, "<think>a", 8);
    memcpy(text + 900, "b", 1);
    run(&OUTSIDE, text, sizeof text, 0, 77, &sink);
    assert_int_equal(sink.bytes[DSE_CHANNEL_REASONING], 900 - 7 + 1);
}

static void stop_strings_end_the_text_before_them(void **state)
{
    static const struct setup ONE = {.stops = {"STOP"}};
    CHECK(&ONE, "a STOP b", "", "a ", 0);
    CHECK(&ONE, "STOP", "", "", 0);
    CHECK(&ONE, "a STO", "", "a STO", -1);
    CHECK(&ONE, "a STSTOPx", "", "a ST", 0);
    CHECK(&ONE, "SSTOSTSTOST", "", "SSTOSTSTOST", -1);
    static const struct setup AAB = {.stops = {"aab"}};
    CHECK(&AAB, "aaaab", "", "aa", 0);
    static const struct setup ABAB = {.stops = {"ababac"}};
    CHECK(&ABAB, "abababac", "", "ab", 0);
}

static void the_stop_that_is_complete_first_wins(void **state)
{
    static const struct setup NESTED = {.stops = {"abcdef", "cd"}};
    CHECK(&NESTED, "xabcdef", "", "xab", 1);
    static const struct setup SAME_END = {.stops = {"d", "cd", "bcd"}};
    CHECK(&SAME_END, "abcd", "", "a", 2); /* the longest, so that nothing of a stop string is left */
    static const struct setup ORDER = {.stops = {"late", "er", "later"}};
    CHECK(&ORDER, "see you later", "", "see you ", 0);
    static const struct setup TWICE = {.stops = {"x", "x"}};
    CHECK(&TWICE, "axb", "", "a", 0);
}

static void stops_see_the_raw_text_of_reasoning_and_tags(void **state)
{
    static const struct setup IN_REASONING = {.stops = {"wait"}, .format = DSE_REASONING_DEEPSEEK, .inside = true};
    CHECK(&IN_REASONING, "hm\n\nwait</think>x", "hm", "", 0);
    CHECK(&IN_REASONING, "hm</think>no wait", "hm", "no ", 0);
    static const struct setup TAG = {.stops = {"</think>"}, .format = DSE_REASONING_DEEPSEEK, .inside = true};
    CHECK(&TAG, "hm</think>x", "hm", "", 0);
    static const struct setup ACROSS = {.stops = {"m</think>\n\nx"}, .format = DSE_REASONING_DEEPSEEK, .inside = true};
    CHECK(&ACROSS, "hm</think>\n\nxyz", "h", "", 0);
    CHECK(&ACROSS, "hm</think>\n\nyz", "hm", "yz", -1);
    static const struct setup PREFIX = {.stops = {"<think>"}, .format = DSE_REASONING_NONE, .inside = true};
    CHECK(&PREFIX, "a</think>b", "", "<think>a</think>b", -1); /* what the prompt supplied is not output */
}

static void characters_are_never_cut(void **state)
{
    CHECK(&PLAIN,
          "\xF0\x9F\xA7\xAA na\xC3\xAFve \xE6\xB8\xA9\xE5\xBA\xA6 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 ok", "",
          "\xF0\x9F\xA7\xAA na\xC3\xAFve \xE6\xB8\xA9\xE5\xBA\xA6 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 ok", -1);
    static const struct setup STOP = {.stops = {"\xE5\xBA\xA6"}, .format = DSE_REASONING_NONE};
    CHECK(&STOP, "\xE6\xB8\xA9\xE5\xBA\xA7\xE5\xBA\xA6x", "", "\xE6\xB8\xA9\xE5\xBA\xA7", 0);
}

/* Whatever length the output is cut at: strictly decodable, a prefix, at most one replacement character. */
static void every_length_is_a_prefix_with_one_replacement(void **state)
{
    static const char TEXT[] = "\xF0\x9F\xA7\xAA na\xC3\xAFve \xE6\xB8\xA9\xE5\xBA\xA6 \xF0\x9F\x91\xA9\xE2\x80\x8D ok";
    static struct sink sink;
    for (size_t n = 0; n < sizeof TEXT; n++) {
        size_t whole = n - dse_utf8_incomplete_suffix(TEXT, n);
        run(&PLAIN, TEXT, n, n / 2, n, &sink);
        assert_memory_equal(sink.text[0], TEXT, whole);
        assert_string_equal(sink.text[0] + whole, whole < n ? REPLACEMENT : "");
    }
}

/* Expected values follow the Unicode standard, section 3.9, "U+FFFD substitution of maximal subparts", table 3-8. */
static void invalid_bytes_become_replacement_characters(void **state)
{
    CHECK(&PLAIN, "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "",
          REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT "A", -1);
    CHECK(&PLAIN, "\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "",
          REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT "A" REPLACEMENT REPLACEMENT "B", -1);
    CHECK(&PLAIN, "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "", REPLACEMENT REPLACEMENT REPLACEMENT REPLACEMENT "A", -1);
    /* A cut character before a tag belongs to its own channel. */
    CHECK(&INSIDE, "a\xE6\xB8</think>b\xF0\x9F", "a" REPLACEMENT, "b" REPLACEMENT, -1);
    static const struct setup STOP = {.stops = {"x"}};
    CHECK(&STOP, "a\xE6\xB8x", "", "a" REPLACEMENT, 0);
}

static void reasoning_tokens_are_counted(void **state)
{
    static struct sink sink;
    static const char *const TOKENS[] = {"hm", "m", "\n", "</", "think>", "\n\n", "It", " is"};
    struct dse_output *output = open_output(&INSIDE, &sink);
    assert_true(dse_output_in_reasoning(output));
    for (int i = 0; i < 8; i++)
        assert_true(dse_output_feed(output, TOKENS[i], strlen(TOKENS[i]), NULL));
    assert_false(dse_output_in_reasoning(output));
    assert_int_equal(dse_output_reasoning_tokens(output), 5);
    dse_output_free(output);
    output = open_output(&OUTSIDE, &sink);
    assert_false(dse_output_in_reasoning(output));
    assert_true(dse_output_feed(output, "<think>", 7, NULL));
    assert_true(dse_output_in_reasoning(output));
    assert_true(dse_output_feed(output, "x", 1, NULL));
    assert_int_equal(dse_output_reasoning_tokens(output), 1);
    dse_output_free(output);
}

static void after_the_end_nothing_comes(void **state)
{
    static const struct setup ONE = {.stops = {"."}};
    static struct sink sink;
    struct dse_output *output = open_output(&ONE, &sink);
    int stop = -1;
    assert_false(dse_output_feed(output, "a.b", 3, &stop));
    assert_int_equal(stop, 0);
    assert_true(dse_output_feed(output, "c.", 2, &stop));
    dse_output_finish(output);
    dse_output_finish(output);
    assert_string_equal(sink.text[0], "a");
    dse_output_free(output);
    dse_output_free(NULL);
}

static void no_tags_means_no_split(void **state)
{
    static struct sink sink;
    struct dse_output_options options = {
        .reasoning = DSE_REASONING_DEEPSEEK, .starts_in_reasoning = true, .emit = collect, .user = &sink};
    struct dse_output *output = NULL;
    struct dse_error err;
    assert_int_equal(dse_output_create(&options, &output, &err), DSE_OK);
    assert_true(dse_output_feed(output, "<think>a</think>", 16, NULL));
    dse_output_finish(output);
    assert_string_equal(sink.text[DSE_CHANNEL_CONTENT], "<think>a</think>");
    assert_int_equal(sink.bytes[DSE_CHANNEL_REASONING], 0);
    dse_output_free(output);
}

static void bad_options_are_refused(void **state)
{
    static char text[1000];
    memset(text, 'x', sizeof text - 1);
    const char *stops[20];
    size_t bytes[20];
    for (int i = 0; i < 20; i++)
        stops[i] = text, bytes[i] = 1;
    struct dse_output_options options = {.stops = stops, .stop_bytes = bytes, .emit = collect};
    struct dse_output *output = NULL;
    struct dse_error err;
    static const struct {
        int n;
        size_t bytes;
        enum dse_status status;
    } CASES[] = {{16, 512, DSE_OK},
                 {17, 1, DSE_ERR_INVALID},
                 {-1, 1, DSE_ERR_INVALID},
                 {3, 0, DSE_ERR_INVALID},
                 {3, 513, DSE_ERR_INVALID}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        bytes[2] = CASES[i].bytes;
        options.n_stops = CASES[i].n;
        assert_int_equal(dse_output_create(&options, &output, &err), CASES[i].status);
        if (CASES[i].status != DSE_OK) {
            assert_null(output);
            assert_string_equal(err.file, "stop");
        }
        dse_output_free(output);
        output = NULL;
    }
    options.n_stops = 0;
    options.think_open = "";
    options.think_close = "</t>";
    assert_int_equal(dse_output_create(&options, &output, &err), DSE_ERR_INVALID);
    options.think_open = text;
    assert_int_equal(dse_output_create(&options, &output, &err), DSE_ERR_INVALID);
    options.think_open = "<t>";
    dse_alloc_fail_after(1);
    assert_int_equal(dse_output_create(&options, &output, &err), DSE_ERR_NO_MEMORY);
    dse_alloc_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened_by_the_prompt_splits_or_stays_verbatim),
        cmocka_unit_test(opened_by_the_model_splits),
        cmocka_unit_test(tags_elsewhere_are_text),
        cmocka_unit_test(long_white_space_never_overflows),
        cmocka_unit_test(stop_strings_end_the_text_before_them),
        cmocka_unit_test(the_stop_that_is_complete_first_wins),
        cmocka_unit_test(stops_see_the_raw_text_of_reasoning_and_tags),
        cmocka_unit_test(characters_are_never_cut),
        cmocka_unit_test(every_length_is_a_prefix_with_one_replacement),
        cmocka_unit_test(invalid_bytes_become_replacement_characters),
        cmocka_unit_test(reasoning_tokens_are_counted),
        cmocka_unit_test(after_the_end_nothing_comes),
        cmocka_unit_test(no_tags_means_no_split),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* traceparent headers: the examples and rules of https://www.w3.org/TR/trace-context/ section 3.2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/trace_context.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void valid_headers_are_continued(void **state)
{
    static const struct {
        const char *header;
        unsigned flags;
    } cases[] = {
        {"00-" TRACE "-" PARENT "-01", 1},
        {"00-" TRACE "-" PARENT "-00", 0},
        {"00-" TRACE "-" PARENT "-ff", 1}, /* flags that version 00 does not know are ignored */
        {"00-" TRACE "-" PARENT "-02", 0},
        {"cc-" TRACE "-" PARENT "-01", 1}, /* a later version */
        {"cc-" TRACE "-" PARENT "-01-what-the-future-will-be-like", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dse_trace_context context;
        char out[DSE_TRACEPARENT_BYTES], wanted[DSE_TRACEPARENT_BYTES];
        assert_true(dse_trace_context_begin(cases[i].header, &context));
        assert_string_equal(context.trace_id, TRACE);
        assert_string_equal(context.parent_id, PARENT);
        assert_string_not_equal(context.span_id, PARENT);
        dse_trace_context_put(&context, out);
        snprintf(wanted, sizeof wanted, "00-" TRACE "-%s-%02x", context.span_id, cases[i].flags);
        assert_string_equal(out, wanted);
        assert_true(dse_trace_context_parse(out, &context));
    }
}

static void other_headers_begin_a_new_trace(void **state)
{
    static const char *const cases[] = {
        "",
        "garbage",
        "00-" TRACE "-" PARENT,
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-01-", /* version 00 ends there */
        "00-" TRACE "-" PARENT "-01-x",
        "00-" TRACE "-" PARENT "-011",
        "cc-" TRACE "-" PARENT "-01.x", /* what follows begins with a dash */
        "ff-" TRACE "-" PARENT "-01",
        "0-" TRACE "-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-" TRACE "-00F067AA0BA902B7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-" PARENT "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-" PARENT "-01",
        "00-" TRACE "-00f067aa0ba902b-01",
        "00-" TRACE "-" PARENT "-0x",
        "00_" TRACE "-" PARENT "-01",
        " 00-" TRACE "-" PARENT "-01",
        "00-" TRACE "-" PARENT "-01 ",
        "00-" TRACE "-" PARENT "-01,00-" TRACE "-" PARENT "-01",
    };
    char seen[sizeof cases / sizeof *cases][33];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dse_trace_context context;
        char out[DSE_TRACEPARENT_BYTES];
        if (dse_trace_context_begin(cases[i], &context)) fail_msg("taken: \"%s\"", cases[i]);
        assert_string_equal(context.parent_id, "");
        assert_string_not_equal(context.trace_id, TRACE);
        memcpy(seen[i], context.trace_id, 33);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(seen[i], seen[k]);
        dse_trace_context_put(&context, out);
        struct dse_trace_context again;
        assert_true(dse_trace_context_parse(out, &again)); /* what we send is valid */
    }
    struct dse_trace_context context;
    assert_false(dse_trace_context_begin(NULL, &context));
    assert_int_equal(strlen(context.trace_id), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_headers_are_continued),
        cmocka_unit_test(other_headers_begin_a_new_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

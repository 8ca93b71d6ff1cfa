/* Tagged heap, arena, bounded buffer, checked arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/buffer.h"
#include "base/checked.h"

static void sizes_that_overflow_are_refused(void **state)
{
    size_t out = 7;
    assert_false(dse_add_size(SIZE_MAX, 1, &out));
    assert_false(dse_mul_size(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(dse_align_size(SIZE_MAX, 32, &out));
    assert_int_equal(out, 7);
    assert_true(dse_align_size(33, 32, &out));
    assert_int_equal(out, 64);
    assert_true(dse_range_fits(10, 0, 10));
    assert_false(dse_range_fits(11, 0, 10));
    assert_false(dse_range_fits(8, SIZE_MAX, 10));
}

static void heap_counts_live_bytes_per_tag(void **state)
{
    size_t before = dse_mem_live_bytes(DSE_MEM_TEXT);
    char *a = dse_alloc(DSE_MEM_TEXT, 100);
    a = dse_realloc(DSE_MEM_TEXT, a, 250);
    void *b = dse_alloc_aligned(DSE_MEM_TEXT, 512, 1000);
    assert_int_equal((uintptr_t)b % 512, 0);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), before + 1250);
    dse_free(a);
    dse_free(b);
    dse_free(NULL);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), before);
    assert_null(dse_calloc(DSE_MEM_TEXT, SIZE_MAX / 2, 3));
    assert_null(dse_alloc(DSE_MEM_TEXT, SIZE_MAX - 4));
}

static void pages_lie_on_huge_page_borders_and_are_zero(void **state)
{
    size_t bytes = (5u << 20) + 17;
    char *p = dse_alloc_pages(DSE_MEM_KV, bytes);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2u << 20), 0);
    assert_int_equal(p[0], 0);
    p[bytes - 1] = 1;
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_KV), bytes);
    dse_free_pages(p);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_KV), 0);
}

/* Machines with pages of 16 and 64 KiB refuse an munmap at any other border. */
static void pages_of_every_size_end_on_their_borders(void **state)
{
    static const size_t page_sizes[] = {4096, 16384, 65536};
    static const size_t sizes[] = {0, 1, 4095, 4096, 70000, (2u << 20) + 1, (5u << 20) + 17};
    for (size_t p = 0; p < 3; p++) {
        const size_t page = page_sizes[p];
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (uintptr_t map = 0x7f0000000000; map < 0x7f0000000000 + (2u << 20); map += page * 7) {
                struct dse_page_span span = dse_page_span(map, sizes[i], page);
                assert_int_equal(span.start % page, 0);
                assert_int_equal(span.end % page, 0);
                assert_int_equal(span.user % (2u << 20), 0);
                assert_true(span.start >= map && span.user - span.start == page);
                assert_true(span.end >= span.user + sizes[i] && span.end < span.user + sizes[i] + page);
                assert_true(span.end <= map + sizes[i] + (4u << 20));
            }
        }
    }
}

static void the_chosen_allocation_fails(void **state)
{
    dse_alloc_fail_after(2);
    void *a = dse_alloc(DSE_MEM_MISC, 8), *b = dse_alloc(DSE_MEM_MISC, 8), *c = dse_alloc(DSE_MEM_MISC, 8);
    dse_alloc_fail_after(0);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    dse_free(a);
    dse_free(c);
}

static void arena_keeps_its_maximum_and_frees_everything(void **state)
{
    struct dse_arena arena;
    size_t before = dse_mem_live_bytes(DSE_MEM_REQUEST);
    dse_arena_init(&arena, DSE_MEM_REQUEST, 200000);
    for (int i = 0; i < 100; i++) {
        char *p = dse_arena_alloc(&arena, 1000);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_int_equal(p[999], 0);
        memset(p, 1, 1000);
    }
    assert_null(dse_arena_alloc(&arena, 150000));
    dse_arena_reset(&arena);
    assert_string_equal(dse_arena_strndup(&arena, "abcdef", 3), "abc");
    dse_arena_deinit(&arena);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_REQUEST), before);
}

static void buffer_never_grows_beyond_its_maximum(void **state)
{
    struct dse_buffer b;
    dse_buffer_init(&b, DSE_MEM_MISC, 10);
    assert_string_equal(dse_buffer_text(&b), "");
    assert_true(dse_buffer_puts(&b, "12345678"));
    assert_true(dse_buffer_printf(&b, "%d", 90));
    assert_false(dse_buffer_putc(&b, 'x'));
    assert_true(b.failed);
    assert_string_equal(dse_buffer_text(&b), "1234567890");
    assert_null(dse_buffer_take(&b));
    dse_buffer_clear(&b);
    assert_true(dse_buffer_putc(&b, 'y'));
    char *taken = dse_buffer_take(&b);
    assert_string_equal(taken, "y");
    dse_free(taken);
    dse_buffer_deinit(&b);
}

static void json_strings_are_escaped_and_made_valid(void **state)
{
    struct dse_buffer b;
    dse_buffer_init(&b, DSE_MEM_MISC, 1000);
    static const char text[] = "a\"\\\n\x01\x7f\xC3\xA9\xFF\xE2\x82";
    dse_buffer_put_json_string(&b, text, sizeof text - 1);
    assert_string_equal(dse_buffer_text(&b), "\"a\\\"\\\\\\n\\u0001\\u007f\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\"");
    dse_buffer_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(heap_counts_live_bytes_per_tag),
        cmocka_unit_test(pages_lie_on_huge_page_borders_and_are_zero),
        cmocka_unit_test(pages_of_every_size_end_on_their_borders),
        cmocka_unit_test(the_chosen_allocation_fails),
        cmocka_unit_test(arena_keeps_its_maximum_and_frees_everything),
        cmocka_unit_test(buffer_never_grows_beyond_its_maximum),
        cmocka_unit_test(json_strings_are_escaped_and_made_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The KV pool alone: promises, growth, forks, reference counts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "engine/kv_pool.h"

#define TABLE 16

static struct dse_kv_layout small_layout(void)
{
    struct dse_kv_layout layout = {.type = DSE_KV_F16, .n_layers = 2, .n_kv_heads = 1, .head_dim = 8};
    dse_kv_layout_init(&layout);
    return layout;
}

struct fixture {
    struct dse_kv_pool pool;
    int32_t tables[4][TABLE];
    struct dse_kv_sequence sequences[4];
};

static void setup_pool(struct fixture *f, int n_blocks)
{
    struct dse_kv_layout layout = small_layout();
    struct dse_error error;
    memset(f, 0, sizeof *f);
    assert_int_equal(dse_kv_pool_init(&f->pool, &layout, n_blocks, &error), DSE_OK);
    for (int i = 0; i < 4; i++) {
        f->sequences[i].blocks = f->tables[i];
        f->sequences[i].max_blocks = TABLE;
    }
}

static uint8_t *block_bytes_of(struct fixture *f, int sequence, int index)
{
    return f->pool.memory + (size_t)f->sequences[sequence].blocks[index] * f->pool.layout.block_bytes;
}

static void kv_pool_blocks_are_aligned_to_512_bytes(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 3);
    assert_int_equal(f.pool.layout.block_bytes % DSE_KV_ALIGNMENT, 0);
    assert_int_equal((uintptr_t)f.pool.memory % DSE_KV_ALIGNMENT, 0);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_grows_a_sequence_block_by_block_and_gives_all_back(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 4);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 1));
    assert_int_equal(dse_kv_pool_used(&f.pool), 1);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 32));
    assert_int_equal(dse_kv_pool_used(&f.pool), 1);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 33));
    assert_int_equal(dse_kv_pool_used(&f.pool), 2);
    assert_false(dse_kv_extend(&f.pool, &f.sequences[0], 32 * 5));
    assert_int_equal(dse_kv_pool_used(&f.pool), 4);
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 0);
    assert_int_equal(dse_kv_pool_available(&f.pool), 4);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_keeps_promised_blocks_from_others(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 4);
    assert_true(dse_kv_promise(&f.pool, &f.sequences[0], 3));
    assert_false(dse_kv_promise(&f.pool, &f.sequences[1], 2));
    assert_true(dse_kv_extend(&f.pool, &f.sequences[1], 10));
    assert_false(dse_kv_extend(&f.pool, &f.sequences[1], 40));
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 96));
    assert_int_equal(f.sequences[0].promised, 0);
    dse_kv_release(&f.pool, &f.sequences[1]);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 97)); /* beyond the promise, from what is free */
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_available(&f.pool), 4);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_release_returns_an_unused_promise(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 4);
    assert_true(dse_kv_promise(&f.pool, &f.sequences[0], 4));
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 5));
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_available(&f.pool), 4);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_fork_shares_full_blocks_and_copies_the_last(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 8);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 70));
    f.sequences[0].length = 70;
    memset(block_bytes_of(&f, 0, 2), 0x5A, f.pool.layout.block_bytes);
    assert_true(dse_kv_fork(&f.pool, &f.sequences[0], &f.sequences[1]));
    assert_int_equal(f.sequences[1].length, 70);
    assert_int_equal(f.tables[0][0], f.tables[1][0]);
    assert_int_equal(f.tables[0][1], f.tables[1][1]);
    assert_int_not_equal(f.tables[0][2], f.tables[1][2]);
    assert_memory_equal(block_bytes_of(&f, 0, 2), block_bytes_of(&f, 1, 2), f.pool.layout.block_bytes);
    assert_int_equal(dse_kv_pool_used(&f.pool), 4);
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 3); /* the shared ones live on */
    dse_kv_release(&f.pool, &f.sequences[1]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 0);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_fork_at_a_block_boundary_copies_nothing(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 2);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 64));
    f.sequences[0].length = 64;
    assert_true(dse_kv_fork(&f.pool, &f.sequences[0], &f.sequences[1])); /* no block is left, none is needed */
    assert_int_equal(dse_kv_pool_used(&f.pool), 2);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_failed_fork_leaves_no_references(void **state)
{
    (void)state;
    struct fixture f;
    setup_pool(&f, 2);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[0], 40));
    f.sequences[0].length = 40;
    assert_false(dse_kv_fork(&f.pool, &f.sequences[0], &f.sequences[1]));
    assert_int_equal(f.sequences[1].n_blocks, 0);
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 0);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_refuses_a_size_that_overflows(void **state)
{
    (void)state;
    struct dse_kv_pool pool;
    struct dse_kv_layout layout = small_layout();
    struct dse_error error;
    layout.block_bytes = SIZE_MAX / 2;
    assert_int_equal(dse_kv_pool_init(&pool, &layout, 3, &error), DSE_ERR_NO_MEMORY);
    assert_int_equal(dse_kv_pool_init(&pool, &layout, 0, &error), DSE_ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_pool_blocks_are_aligned_to_512_bytes),
        cmocka_unit_test(kv_pool_grows_a_sequence_block_by_block_and_gives_all_back),
        cmocka_unit_test(kv_pool_keeps_promised_blocks_from_others),
        cmocka_unit_test(kv_pool_release_returns_an_unused_promise),
        cmocka_unit_test(kv_pool_fork_shares_full_blocks_and_copies_the_last),
        cmocka_unit_test(kv_pool_fork_at_a_block_boundary_copies_nothing),
        cmocka_unit_test(kv_pool_failed_fork_leaves_no_references),
        cmocka_unit_test(kv_pool_refuses_a_size_that_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which rows attend in expanded form. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/expansion.h"

/* V2-Lite's and V3's heads. Deep in a context it is worth it from 512 * 256 / 768 query rows on, 171. */
static const struct dse_latent_config deepseek = {.kv_rank = 512, .nope = 128, .rope = 64, .v = 128, .expand = true};

static void deep_in_a_context_171_rows_pay(void **state)
{
    (void)state;
    assert_false(dse_expansion_pays(&deepseek, 1 << 27, 170));
    assert_true(dse_expansion_pays(&deepseek, 1 << 27, 171));
}

/* The first rows of a prompt need no key that is not theirs: as many are projected one way as the other. */
static void at_the_beginning_a_tile_of_rows_pays(void **state)
{
    (void)state;
    assert_true(dse_expansion_pays(&deepseek, 0, 32));
    assert_false(dse_expansion_pays(&deepseek, 0, 31));
    assert_false(dse_expansion_pays(&deepseek, 0, 1));
    assert_false(dse_expansion_pays(&deepseek, 4096, 1));
    assert_false(dse_expansion_pays(&deepseek, 512, 64));
    assert_true(dse_expansion_pays(&deepseek, 4096, 512));
}

/* A latent no wider than what it expands to: only the way there and back could pay. */
static void a_narrow_latent_does_not_pay(void **state)
{
    (void)state;
    const struct dse_latent_config narrow = {.kv_rank = 16, .nope = 32, .rope = 8, .v = 32, .expand = true};
    assert_false(dse_expansion_pays(&narrow, 0, 512));
    assert_false(dse_expansion_pays(&narrow, 4096, 512));
}

struct batch {
    int32_t positions[256], blocks[4][8];
    struct dse_kv_view views[256];
    struct dse_rows rows;
};

static void push(struct batch *batch, int sequence, int position, int n)
{
    for (int i = 0; i < n; i++) {
        batch->positions[batch->rows.n_rows] = position + i;
        batch->views[batch->rows.n_rows++] = (struct dse_kv_view){NULL, batch->blocks[sequence]};
    }
    batch->rows.positions = batch->positions;
    batch->rows.kv = batch->views;
}

static void expect(const struct dse_config *config, const struct batch *batch, int first, int n_rows, bool expanded)
{
    const struct dse_row_run run = dse_expansion_run(config, &batch->rows, first);
    assert_int_equal(run.n_rows, n_rows);
    assert_int_equal(run.expanded, expanded);
}

static void a_step_is_cut_where_the_form_changes(void **state)
{
    (void)state;
    const struct dse_config config = {.latent = deepseek};
    struct batch batch = {0};
    push(&batch, 0, 700, 1); /* two that decode, a short prompt */
    push(&batch, 1, 90, 1);
    push(&batch, 2, 0, 20);
    push(&batch, 3, 0, 40); /* two prompts that pay */
    push(&batch, 0, 10, 60);
    push(&batch, 1, 0, 3);
    expect(&config, &batch, 0, 22, false);
    expect(&config, &batch, 22, 40, true);
    expect(&config, &batch, 62, 60, true);
    expect(&config, &batch, 122, 3, false);
}

static void rows_that_choose_their_keys_stay_absorbed(void **state)
{
    (void)state;
    struct dse_config config = {.latent = deepseek, .indexer = {.n_heads = 2, .head_dim = 8, .top_k = 50}};
    struct batch batch = {0};
    push(&batch, 0, 0, 200);
    expect(&config, &batch, 0, 50, true);
    expect(&config, &batch, 50, 150, false);
    config.indexer.top_k = 31; /* too few rows before it begins to choose */
    expect(&config, &batch, 0, 200, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_in_a_context_171_rows_pay),
        cmocka_unit_test(at_the_beginning_a_tile_of_rows_pays),
        cmocka_unit_test(a_narrow_latent_does_not_pay),
        cmocka_unit_test(a_step_is_cut_where_the_form_changes),
        cmocka_unit_test(rows_that_choose_their_keys_stay_absorbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

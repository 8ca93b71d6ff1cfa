/* Prompt tokens of a step follow what steps cost, on a machine of known speed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/chunk.h"

#define MS 1000000.0

/* A step here: the pass over the weights, and so much for each row. */
struct machine {
    double pass_ns, row_ns;
};

static uint64_t step(const struct machine *machine, int prefill, int decode)
{
    return (uint64_t)(machine->pass_ns + machine->row_ns * (prefill + decode));
}

static void settle(struct dse_chunk *chunk, const struct machine *machine, int decode, int steps)
{
    for (int i = 0; i < steps; i++) {
        int tokens = dse_chunk_tokens(chunk, decode);
        dse_chunk_note(chunk, tokens, decode, step(machine, tokens, decode));
    }
}

static void decoding(struct dse_chunk *chunk, const struct machine *machine, int decode)
{
    for (int i = 0; i < 8; i++)
        dse_chunk_note(chunk, 0, decode, step(machine, 0, decode));
}

static void alone_a_prompt_gets_steps_that_a_cancelled_request_can_wait_for(void **state)
{
    static const struct machine fast = {5 * MS, 0.05 * MS}, slow = {100 * MS, 20 * MS};
    struct dse_chunk chunk;
    (void)state;
    dse_chunk_init(&chunk, 512);
    settle(&chunk, &fast, 0, 20);
    assert_int_equal(dse_chunk_tokens(&chunk, 0), 512);
    settle(&chunk, &slow, 0, 20);
    assert_int_equal(dse_chunk_tokens(&chunk, 0), 16);
}

/* Gaps of the others stay below four times what they are without the prompt, from its first step on, and it keeps most of
 * its speed. */
static void beside_others_a_step_takes_less_than_four_times_theirs(void **state)
{
    static const struct machine machines[] = {
        {6 * MS, 1 * MS}, {30 * MS, 2 * MS}, {60 * MS, 10 * MS}, {90 * MS, 12 * MS}, {3 * MS, 0.2 * MS}};
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        const struct machine *machine = &machines[m];
        const double theirs = (double)step(machine, 0, 1);
        struct dse_chunk chunk;
        dse_chunk_init(&chunk, 512);
        settle(&chunk, machine, 0, 20); /* a prompt before, with large steps */
        decoding(&chunk, machine, 1);
        for (int i = 0; i < 30; i++) {
            int tokens = dse_chunk_tokens(&chunk, 1);
            uint64_t elapsed = step(machine, tokens, 1);
            assert_true((double)elapsed <= 4 * theirs);
            dse_chunk_note(&chunk, tokens, 1, elapsed);
        }
        int tokens = dse_chunk_tokens(&chunk, 1);
        assert_true((double)step(machine, tokens, 1) >= 2.2 * theirs);
    }
}

/* While a prompt is read and tokenized, decoding steps are slow; the step that it gets must not be measured by those. */
static void a_few_slow_steps_before_a_prompt_do_not_lengthen_its_steps(void **state)
{
    static const struct machine machine = {8 * MS, 1 * MS};
    const double theirs = (double)step(&machine, 0, 1);
    struct dse_chunk chunk;
    (void)state;
    dse_chunk_init(&chunk, 512);
    decoding(&chunk, &machine, 1);
    settle(&chunk, &machine, 1, 20);
    for (int i = 0; i < 5; i++)
        dse_chunk_note(&chunk, 0, 1, (uint64_t)(2.5 * theirs));
    assert_true((double)step(&machine, dse_chunk_tokens(&chunk, 1), 1) <= 4 * theirs);
}

static void beside_others_whose_steps_are_slow_a_prompt_goes_on_slowly(void **state)
{
    static const struct machine slow = {400 * MS, 5 * MS};
    struct dse_chunk chunk;
    (void)state;
    dse_chunk_init(&chunk, 512);
    decoding(&chunk, &slow, 1);
    settle(&chunk, &slow, 1, 20);
    assert_int_equal(dse_chunk_tokens(&chunk, 1), 4);
}

static void the_limit_holds(void **state)
{
    static const struct machine fast = {50 * MS, 0.001 * MS};
    struct dse_chunk chunk;
    (void)state;
    dse_chunk_init(&chunk, 3);
    assert_int_equal(dse_chunk_tokens(&chunk, 0), 3);
    assert_int_equal(dse_chunk_tokens(&chunk, 1), 3);
    decoding(&chunk, &fast, 3);
    settle(&chunk, &fast, 3, 20);
    settle(&chunk, &fast, 0, 20);
    assert_int_equal(dse_chunk_tokens(&chunk, 0), 3);
    assert_int_equal(dse_chunk_tokens(&chunk, 3), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_a_prompt_gets_steps_that_a_cancelled_request_can_wait_for),
        cmocka_unit_test(beside_others_a_step_takes_less_than_four_times_theirs),
        cmocka_unit_test(a_few_slow_steps_before_a_prompt_do_not_lengthen_its_steps),
        cmocka_unit_test(beside_others_whose_steps_are_slow_a_prompt_goes_on_slowly),
        cmocka_unit_test(the_limit_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

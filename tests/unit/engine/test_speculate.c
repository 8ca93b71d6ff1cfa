/* Drafting: what is found, how much of it is worth computing, and that no answer depends on it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/counters.h"
#include "engine/engine_internal.h"
#include "engine/speculate.h"
#include "engine_support.h"

#define MS 1000000

static void found(const int32_t *text, int n_text, int max, const int32_t *expected, int n_expected)
{
    int32_t tokens[64] = {0};
    memcpy(tokens, text, (size_t)n_text * sizeof *tokens);
    assert_int_equal(dse_speculate_find(tokens, n_text, max), n_expected);
    if (n_expected > 0) assert_memory_equal(tokens + n_text, expected, (size_t)n_expected * sizeof *tokens);
    assert_memory_equal(tokens, text, (size_t)n_text * sizeof *tokens);
}

#define FOUND(max, text, ...) found(text, sizeof text / sizeof *text, max, (const int32_t[]){__VA_ARGS__}, max)
#define NOTHING(text)         found(text, sizeof text / sizeof *text, 4, NULL, 0)

static void drafts_what_followed_the_same_three_tokens(void **state)
{
    (void)state;
    FOUND(3, ((const int32_t[]){5, 1, 2, 3, 7, 8, 9, 1, 2, 3}), 7, 8, 9);
    NOTHING(((const int32_t[]){5, 0, 2, 3, 7, 8, 9, 1, 2, 3}));
    NOTHING(((const int32_t[]){3, 3}));
    NOTHING(((const int32_t[]){1}));
    NOTHING(((const int32_t[]){2, 3, 7, 1, 2, 3}));
}

static void of_two_places_the_one_that_agrees_longer_is_taken_else_the_later(void **state)
{
    (void)state;
    FOUND(1, ((const int32_t[]){4, 1, 2, 3, 7, 9, 1, 2, 3, 8, 4, 1, 2, 3}), 7);
    FOUND(1, ((const int32_t[]){6, 1, 2, 3, 7, 9, 1, 2, 3, 8, 4, 1, 2, 3}), 8);
}

static void a_repetition_goes_on_repeating(void **state)
{
    (void)state;
    FOUND(5, ((const int32_t[]){1, 2, 1, 2, 1, 2}), 1, 2, 1, 2, 1);
    FOUND(4, ((const int32_t[]){3, 3, 3, 3}), 3, 3, 3, 3);
}

/* Tokens drafted in 200 steps for a sequence whose drafts are right for `taken` tokens, where a row costs row_ns. */
static int drafted(int taken, int n_decoding, uint64_t row_ns)
{
    struct dse_speculation speculation = {.max_draft = DSE_MAX_DRAFT};
    struct dse_draft_record record = {0};
    int sum = 0;
    for (int i = 0; i < 200; i++) {
        int n = dse_speculate_length(&speculation, &record, n_decoding, DSE_MAX_DRAFT);
        if (n > 0) dse_speculate_note_draft(&record, n, n < taken ? n : taken);
        sum += n;
        dse_speculate_note_step(&speculation, n_decoding, n, 10 * MS + (uint64_t)n * row_ns);
    }
    return sum;
}

static void drafts_grow_where_they_are_right_and_cheap_and_shrink_where_they_are_not(void **state)
{
    (void)state;
    assert_in_range(drafted(DSE_MAX_DRAFT, 1, MS / 2), 180 * DSE_MAX_DRAFT, 200 * DSE_MAX_DRAFT);
    assert_in_range(drafted(2, 1, MS / 2), 200 * 3 / 2, 200 * 5);
    assert_in_range(drafted(2, 1, 4 * MS), 200 / 2, 200 * 3);
    assert_in_range(drafted(DSE_MAX_DRAFT, 1, 11 * MS), 0, 2 * DSE_MAX_DRAFT); /* a row costs more than a step */
}

static void drafts_that_fail_are_rare(void **state)
{
    (void)state;
    struct dse_speculation speculation = {.max_draft = 8};
    struct dse_draft_record record = {0};
    int tries = 0;
    for (int i = 0; i < 2000; i++) {
        int n = dse_speculate_length(&speculation, &record, 1, 8);
        if (n > 0) dse_speculate_note_draft(&record, n, 0);
        dse_speculate_note_step(&speculation, 1, n, (10 + (uint64_t)n) * MS);
        tries += n > 0;
    }
    assert_in_range(tries, 4, 16);
}

static void a_step_that_is_full_of_others_drafts_nothing(void **state)
{
    (void)state;
    struct dse_speculation speculation = {.max_draft = 8};
    struct dse_draft_record record = {0};
    /* sixteen rows in 32 ms, each further one 2 ms: even a token that is sure to come costs what it brings */
    dse_speculate_note_step(&speculation, 16, 0, 32 * MS);
    dse_speculate_note_step(&speculation, 16, 4, 40 * MS);
    assert_int_equal(dse_speculate_length(&speculation, &record, 16, 8), 0);
}

/* However little it pays with models as small as these. */
static struct dse_engine *create_drafting(struct dse_model *model, struct dse_engine_options options)
{
    struct dse_engine *engine = create_engine(model, options);
    engine->scheduler.speculation.always = true;
    return engine;
}

static int32_t prompt[60];

/* Mostly two tokens, so that drafts are often right for a while. */
static struct dse_request request_of(int n_prompt, int max_tokens, float temperature)
{
    static const struct dse_logit_bias two[] = {{20, 100}, {30, 100}};
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = temperature;
    request.sampling.seed = 5;
    request.sampling.top_logprobs = 3;
    request.sampling.logit_bias = two;
    request.sampling.n_logit_bias = 2;
    request.ignore_eos = true;
    return request;
}

static int same_answer(struct dse_engine *drafting, struct dse_engine *plain, struct dse_request request)
{
    struct run *a = run_request(drafting, request), *b = run_request(plain, request);
    assert_true(runs_equal(a, b));
    int n_taken = 0;
    for (int c = 0; c < request.n_choices; c++) {
        const struct dse_timings *t = &a->choice[c].timings;
        assert_int_equal(a->choice[c].finish, b->choice[c].finish);
        assert_in_range(t->n_draft_taken, 0, t->n_drafted);
        assert_int_equal(b->choice[c].timings.n_drafted, 0);
        n_taken += t->n_draft_taken;
    }
    run_free(a);
    run_free(b);
    return n_taken;
}

static void check_architecture(const char *path, enum dse_kv_cache kv)
{
    struct dse_model *model = open_reference_as(path, (struct dse_model_options){.n_threads = 1, .kv_cache = kv});
    struct dse_engine_options engine = {.context_length = 256, .prefix_caching = true};
    struct dse_engine *plain = create_engine(model, engine);
    engine.max_draft = 8;
    struct dse_engine *drafting = create_drafting(model, engine);
    fill_prompt(prompt, 60, model->info.n_vocab, 7);
    int n_taken = 0;
    for (int temperature = 0; temperature < 2; temperature++) {
        struct dse_request request = request_of(40, 150, (float)temperature);
        n_taken += same_answer(drafting, plain, request);
        request.max_tokens = -1; /* to the end of the context, block after block */
        n_taken += same_answer(drafting, plain, request);
        request = request_of(50, 60, (float)temperature);
        request.n_choices = 3;
        n_taken += same_answer(drafting, plain, request);
        request.n_choices = 1;
        request.stop_tokens = (const int32_t[]){30};
        request.n_stop_tokens = 1;
        request.min_tokens = 20; /* the first of the two that may come after it ends the answer */
        n_taken += same_answer(drafting, plain, request);
        for (int max = 1; max < 6; max++)
            n_taken += same_answer(drafting, plain, request_of(45, max, (float)temperature));
    }
    assert_true(n_taken > 100);
    close_pair_of_engines(drafting, plain, model);
}

static void drafting_changes_no_bit_on_any_architecture(void **state)
{
    (void)state;
    for (size_t i = 0; i < REFERENCE_ARCHITECTURES; i++)
        check_architecture(reference_architectures[i], DSE_KV_CACHE_AUTO);
    check_architecture("deepseek_v2", DSE_KV_CACHE_Q8_0);
}

/* What a drafted token left in the cache, right or wrong, is never found by another request. */
static void answers_with_drafts_are_good_beginnings_for_others(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = {.context_length = 256, .prefix_caching = true, .max_draft = 16};
    struct dse_engine *drafting = create_drafting(model, options);
    struct dse_engine *plain = create_engine(model, (struct dse_engine_options){.context_length = 256});
    int32_t turn[256];
    fill_prompt(prompt, 60, model->info.n_vocab, 8);
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct dse_request request = request_of(40, 100, 1.0f);
        request.sampling.seed = seed;
        struct run *first = run_request(drafting, request);
        memcpy(turn, prompt, 40 * sizeof *turn);
        memcpy(turn + 40, first->choice[0].tokens, 100 * sizeof *turn);
        run_free(first);
        request.prompt = turn;
        request.n_prompt = 140;
        request.max_tokens = 20;
        struct run *a = run_request(drafting, request), *b = run_request(plain, request);
        assert_int_equal(a->choice[0].timings.n_cached, 128);
        assert_true(runs_equal(a, b));
        run_free(a);
        run_free(b);
    }
    close_pair_of_engines(drafting, plain, model);
}

static void several_at_once_draft_and_a_prompt_comes_by(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = {.context_length = 256, .max_concurrent = 4, .chunk_tokens = 16};
    struct dse_engine *plain = create_engine(model, options);
    options.max_draft = 16;
    struct dse_engine *drafting = create_drafting(model, options);
    struct run *runs[4], *alone[4];
    fill_prompt(prompt, 60, model->info.n_vocab, 9);
    for (int i = 0; i < 4; i++) {
        struct dse_request request = request_of(30 + 10 * i, 120, i % 2 == 0 ? 0.0f : 1.0f);
        alone[i] = run_request(plain, request);
        runs[i] = run_create();
        run_submit(runs[i], drafting, request);
    }
    for (int i = 0; i < 4; i++) {
        run_wait(runs[i]);
        assert_true(runs_equal(runs[i], alone[i]));
        run_free(runs[i]);
        run_free(alone[i]);
    }
    assert_true(dse_counter_get(DSE_COUNTER_DRAFT_TAKEN) > 0);
    assert_true(dse_counter_get(DSE_COUNTER_DRAFT_TAKEN) <= dse_counter_get(DSE_COUNTER_DRAFT_TOKENS));
    close_pair_of_engines(drafting, plain, model);
}

static void more_than_sixteen_are_refused(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = NULL;
    struct dse_error error = {0};
    for (int i = 0; i < 2; i++) {
        struct dse_engine_options options = {.max_draft = i == 0 ? DSE_MAX_DRAFT + 1 : -1};
        assert_int_equal(dse_engine_create(model, &options, &engine, &error), DSE_ERR_INVALID);
        assert_string_equal(error.file, "max_draft");
    }
    dse_model_unref(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_what_followed_the_same_three_tokens),
        cmocka_unit_test(of_two_places_the_one_that_agrees_longer_is_taken_else_the_later),
        cmocka_unit_test(a_repetition_goes_on_repeating),
        cmocka_unit_test(drafts_grow_where_they_are_right_and_cheap_and_shrink_where_they_are_not),
        cmocka_unit_test(drafts_that_fail_are_rare),
        cmocka_unit_test(a_step_that_is_full_of_others_drafts_nothing),
        cmocka_unit_test(drafting_changes_no_bit_on_any_architecture),
        cmocka_unit_test(answers_with_drafts_are_good_beginnings_for_others),
        cmocka_unit_test(several_at_once_draft_and_a_prompt_comes_by),
        cmocka_unit_test(more_than_sixteen_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

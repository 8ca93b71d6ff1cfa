/* Requests that begin like others: they compute less and say the same, bit for bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/random.h"
#include "engine/engine_internal.h"
#include "engine_support.h"

#define N_VOCAB 512

static int32_t prompt[300];

static struct dse_request request_of(int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 5;
    request.sampling.top_logprobs = 5;
    request.ignore_eos = true;
    return request;
}

static const struct dse_engine_options cached = {
    .context_length = 256, .prefix_caching = true, .adapter_rank = 8, .adapter_bytes = 1 << 20};
static const struct dse_engine_options uncached = {.context_length = 256, .adapter_rank = 8, .adapter_bytes = 1 << 20};

static int n_cached(const struct run *run)
{
    return run->choice[0].timings.n_cached;
}

static void same_result(struct dse_engine *with, struct dse_engine *without, struct dse_request request, int expected)
{
    struct run *a = run_request(with, request), *b = run_request(without, request);
    assert_int_equal(n_cached(a), expected);
    assert_int_equal(n_cached(b), 0);
    assert_true(runs_equal(a, b));
    assert_int_equal(a->n_prompt_logprobs, b->n_prompt_logprobs);
    assert_memory_equal(a->prompt_logprobs, b->prompt_logprobs, (size_t)b->n_prompt_logprobs * sizeof(float));
    run_free(a);
    run_free(b);
}

/* The prompt again, longer, shorter, parted in the middle; then with its answer, as the next turn of a chat. */
static void check_architecture(const char *path, enum dse_kv_cache kv)
{
    struct dse_model *model = open_reference_as(path, (struct dse_model_options){.n_threads = 1, .kv_cache = kv});
    struct dse_engine *with = create_engine(model, cached), *without = create_engine(model, uncached);
    fill_prompt(prompt, 300, model->info.n_vocab, 11);
    same_result(with, without, request_of(100, 40), 0);
    same_result(with, without, request_of(100, 40), 96);
    same_result(with, without, request_of(96, 10), 64); /* the last token is always computed */
    same_result(with, without, request_of(97, 10), 96);
    same_result(with, without, request_of(130, 10), 96);
    same_result(with, without, request_of(130, 10), 128);
    prompt[70] ^= 1;
    same_result(with, without, request_of(130, 10), 64);
    prompt[70] ^= 1;
    struct run *turn = run_request(with, request_of(100, 40));
    memcpy(prompt + 100, turn->choice[0].tokens, 40 * sizeof *prompt);
    run_free(turn);
    same_result(with, without, request_of(150, 20), 128); /* 100 and 39 of the answer were stored */
    close_pair_of_engines(with, without, model);
}

static void prefix_reuse_changes_no_bit_on_any_architecture(void **state)
{
    (void)state;
    for (size_t i = 0; i < REFERENCE_ARCHITECTURES; i++)
        check_architecture(reference_architectures[i], DSE_KV_CACHE_AUTO);
    check_architecture("deepseek_v2", DSE_KV_CACHE_Q8_0);
    check_architecture("deepseek_v3", DSE_KV_CACHE_Q8_0);
}

struct pair {
    struct dse_model *model;
    struct dse_engine *with, *without;
};

static int open_pair(void **state)
{
    static struct pair pair;
    pair.model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    pair.with = create_engine(pair.model, cached);
    pair.without = create_engine(pair.model, uncached);
    fill_prompt(prompt, 300, N_VOCAB, 12);
    *state = &pair;
    return 0;
}

static int close_pair(void **state)
{
    struct pair *pair = *state;
    close_pair_of_engines(pair->with, pair->without, pair->model);
    return 0;
}

static void prompt_logprobs_are_all_there_although_the_prompt_is_cached(void **state)
{
    struct pair *pair = *state;
    run_free(run_request(pair->with, request_of(100, 5)));
    struct dse_request request = request_of(100, 5);
    request.prompt_logprobs = true;
    same_result(pair->with, pair->without, request, 0);
    same_result(pair->with, pair->without, request_of(100, 5), 96);
}

static void choices_share_what_is_cached(void **state)
{
    struct pair *pair = *state;
    struct dse_request request = request_of(100, 50);
    request.n_choices = 4;
    same_result(pair->with, pair->without, request, 0);
    same_result(pair->with, pair->without, request, 96);
    request.max_tokens = 0;
    same_result(pair->with, pair->without, request, 96);
}

static void different_salts_and_adapters_never_share(void **state)
{
    struct pair *pair = *state;
    struct dse_request request = request_of(100, 3);
    same_result(pair->with, pair->without, request, 0);
    request.cache_salt = "one";
    request.cache_salt_bytes = 3;
    same_result(pair->with, pair->without, request, 0);
    same_result(pair->with, pair->without, request, 96);
    request.cache_salt = "two";
    same_result(pair->with, pair->without, request, 0);
    struct dse_adapter_use use = {open_adapter(pair->model, "llama_linear/b"), 1};
    request.adapters = &use;
    request.n_adapters = 1;
    same_result(pair->with, pair->without, request, 0);
    same_result(pair->with, pair->without, request, 96);
    request.n_adapters = 0;
    same_result(pair->with, pair->without, request, 96);
    dse_adapter_unref(use.adapter);
}

static uint64_t constant_hash(const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    (void)chain;
    (void)tokens;
    return 1;
}

static void colliding_hashes_give_no_wrong_text(void **state)
{
    struct pair *pair = *state;
    pair->with->scheduler.pool.cache.hash = constant_hash;
    same_result(pair->with, pair->without, request_of(100, 20), 0);
    same_result(pair->with, pair->without, request_of(100, 20), 32); /* one block a hash */
    prompt[3]++;
    same_result(pair->with, pair->without, request_of(100, 20), 0);
    prompt[40]++;
    same_result(pair->with, pair->without, request_of(100, 20), 0);
}

static void metrics_count_tokens_asked_for_and_found(void **state)
{
    struct pair *pair = *state;
    uint64_t asked = dse_counter_get(DSE_COUNTER_PREFIX_QUERY_TOKENS);
    uint64_t found = dse_counter_get(DSE_COUNTER_PREFIX_HIT_TOKENS);
    uint64_t computed = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
    run_free(run_request(pair->with, request_of(100, 3)));
    run_free(run_request(pair->with, request_of(100, 3)));
    assert_int_equal(dse_counter_get(DSE_COUNTER_PREFIX_QUERY_TOKENS) - asked, 200);
    assert_int_equal(dse_counter_get(DSE_COUNTER_PREFIX_HIT_TOKENS) - found, 96);
    assert_int_equal(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS) - computed, 104);
    wait_until_empty();
    assert_int_equal(dse_gauge_get(DSE_GAUGE_KV_BLOCKS_CACHED), 3);
}

#define CROWD 24

/* A pool for two and a half of them, requests that begin alike, with and without a limit: all of it at once, blocks are
 * evicted and requests set back, and everyone says what it says alone. */
static void under_pressure_everyone_says_the_same(void **state)
{
    struct pair *pair = *state;
    struct dse_engine_options options = cached;
    options.max_concurrent = 6;
    options.max_queue = CROWD;
    options.kv_bytes = 20 * pair->model->kv_layout.block_bytes;
    struct dse_engine *tight = create_engine(pair->model, options);
    struct run *alone[CROWD], *crowd[CROWD];
    struct dse_request requests[CROWD];
    static int32_t prompts[CROWD][200];
    uint64_t evicted = dse_counter_get(DSE_COUNTER_PREFIX_EVICTIONS);
    for (int i = 0; i < CROWD; i++) {
        memcpy(prompts[i], prompt, sizeof prompts[i]);
        for (int p = 32 * (i % 5) + 7; p < 200; p++)
            prompts[i][p] = 2 + (prompts[i][p] + i) % 500;
        requests[i] = request_of(60 + 5 * i, i % 3 == 0 ? -1 : 30);
        requests[i].prompt = prompts[i];
        requests[i].n_choices = i % 7 == 0 ? 2 : 1;
        requests[i].prompt_logprobs = i % 6 == 1;
        alone[i] = run_request(pair->without, requests[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = run_create();
        run_submit(crowd[i], tight, requests[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        run_wait(crowd[i]);
        assert_true(runs_equal(alone[i], crowd[i]) || requests[i].max_tokens < 0);
        /* a pool this small ends unlimited choices earlier; up to there they are equal */
        for (int c = 0; c < requests[i].n_choices; c++)
            assert_memory_equal(alone[i]->choice[c].logprobs, crowd[i]->choice[c].logprobs,
                                (size_t)crowd[i]->choice[c].n_tokens * sizeof(float));
        run_free(alone[i]);
        run_free(crowd[i]);
    }
    wait_until_empty();
    assert_true(dse_counter_get(DSE_COUNTER_PREFIX_EVICTIONS) > evicted);
    assert_int_equal(dse_kv_pool_available(&tight->scheduler.pool), 20);
    dse_engine_free(tight);
}

static void random_cancels_lose_no_block(void **state)
{
    struct pair *pair = *state;
    struct dse_engine_options options = cached;
    options.max_concurrent = 4;
    options.max_queue = 64;
    options.kv_bytes = 24 * pair->model->kv_layout.block_bytes;
    options.prefix_cache_bytes = 10 * pair->model->kv_layout.block_bytes;
    struct dse_engine *engine = create_engine(pair->model, options);
    struct run *runs[40];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 40; i++) {
            uint64_t draw = (uint64_t)(round * 40 + i);
            struct dse_request request = request_of(20 + (int)(dse_philox_uniform(1, 1, draw) * 150), 20);
            request.n_choices = i % 5 == 0 ? 3 : 1;
            prompt[(int)(dse_philox_uniform(1, 2, draw) * 150)] ^= i & 1;
            runs[i] = run_create();
            runs[i]->stop_after = i % 4 == 1 ? 3 : 0;
            run_submit(runs[i], engine, request);
            if (i % 3 == 0) dse_engine_cancel(engine, runs[(int)(dse_philox_uniform(1, 3, draw) * (i + 1))]->id);
        }
        for (int i = 0; i < 40; i++) {
            run_wait(runs[i]);
            run_free(runs[i]);
        }
        wait_until_empty();
        assert_int_equal(dse_kv_pool_available(&engine->scheduler.pool), 24);
        assert_true(engine->scheduler.pool.cache.n_parked <= 10);
        assert_int_equal(engine->scheduler.pool.cache.n_parked, engine->scheduler.pool.cache.n_filled);
    }
    dse_engine_free(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_reuse_changes_no_bit_on_any_architecture),
        cmocka_unit_test_setup_teardown(prompt_logprobs_are_all_there_although_the_prompt_is_cached, open_pair,
                                        close_pair),
        cmocka_unit_test_setup_teardown(choices_share_what_is_cached, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(different_salts_and_adapters_never_share, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(colliding_hashes_give_no_wrong_text, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(metrics_count_tokens_asked_for_and_found, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(under_pressure_everyone_says_the_same, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(random_cancels_lose_no_block, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

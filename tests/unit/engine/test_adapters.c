/* Adapters in the engine: who uses which, in one batch and over a warm prefix cache; generations; limits. What they
 * compute is compared with PEFT in tests/fidelity/test_adapters.c.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/engine_internal.h"
#include "engine_support.h"

#define N_VOCAB    512
#define N_PROMPT   200
#define MAX_TOKENS 12

static int32_t prompt[N_PROMPT];

/* The adapters of one request of the tests below; of llama_linear both add to k and v. */
#define N_WAYS 7
struct ways {
    struct dse_adapter *a, *b;
    struct dse_adapter_use uses[N_WAYS][2];
    int n_uses[N_WAYS];
};

static const char *const way_names[N_WAYS] = {"base", "a", "b", "a at 0.5", "a and b", "b and a", "a at 0"};

static void open_ways(struct ways *ways, struct dse_model *model)
{
    ways->a = open_adapter(model, "llama_linear/a");
    ways->b = open_adapter(model, "llama_linear/b");
    const struct dse_adapter_use uses[N_WAYS][2] = {{{NULL, 0}},
                                                    {{ways->a, 1}},
                                                    {{ways->b, 1}},
                                                    {{ways->a, 0.5f}},
                                                    {{ways->a, 1}, {ways->b, 1}},
                                                    {{ways->b, 1}, {ways->a, 1}},
                                                    {{ways->a, 0}}};
    static const int counts[N_WAYS] = {0, 1, 1, 1, 2, 2, 1};
    memcpy(ways->uses, uses, sizeof uses);
    memcpy(ways->n_uses, counts, sizeof counts);
}

static void close_ways(struct ways *ways)
{
    dse_adapter_unref(ways->a);
    dse_adapter_unref(ways->b);
}

static struct dse_request request_of(const struct ways *ways, int way)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = N_PROMPT;
    request.max_tokens = MAX_TOKENS;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 5;
    request.ignore_eos = true;
    request.prompt_logprobs = false;
    if (ways != NULL) {
        request.adapters = ways->uses[way];
        request.n_adapters = ways->n_uses[way];
    }
    return request;
}

/* H12: the same prompt with every choice of adapters, each twice over one cache, is what it is on an engine of its
 * own. */
static void a_warm_cache_gives_every_choice_of_adapters_its_own_text(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
    const struct dse_engine_options with = {
        .context_length = 256, .prefix_caching = true, .adapter_rank = 8, .adapter_bytes = 1 << 20};
    const struct dse_engine_options without = {.context_length = 256, .adapter_rank = 8, .adapter_bytes = 1 << 20};
    struct ways ways;
    struct run *cold[N_WAYS];
    open_ways(&ways, model);
    for (int w = 0; w < N_WAYS; w++) {
        struct dse_engine *alone = create_engine(model, without);
        cold[w] = run_request(alone, request_of(&ways, w));
        wait_until_empty();
        dse_engine_free(alone);
    }
    for (int i = 0; i < N_WAYS; i++)
        for (int j = 0; j < i; j++) {
            const bool equal = (i == 5 && j == 4) || (i == 6 && j == 0);
            if (runs_equal(cold[i], cold[j]) != equal) fail_msg("%s against %s", way_names[i], way_names[j]);
        }
    struct dse_engine *engine = create_engine(model, with);
    for (int pass = 0; pass < 2; pass++)
        for (int w = 0; w < N_WAYS; w++) {
            struct run *run = run_request(engine, request_of(&ways, w));
            if (!runs_equal(run, cold[w])) fail_msg("%s, pass %d", way_names[w], pass);
            const bool shared = pass == 1 || w == 5 || w == 6; /* 5 and 6 are 4 and 0 again */
            assert_int_equal(run->choice[0].timings.n_cached, shared ? 192 : 0);
            run_free(run);
        }
    wait_until_empty();
    dse_engine_free(engine);
    for (int w = 0; w < N_WAYS; w++)
        run_free(cold[w]);
    close_ways(&ways);
    dse_model_unref(model);
}

/* All at once, several rows each, with prompts among the answers of others: no row knows of its neighbours. */
static void adapters_of_one_batch_do_not_touch_each_other(void **state)
{
    static const char *const models[] = {"llama_linear", "gguf/llama_linear.gguf"};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct dse_model *model = open_reference(models[m], DSE_COMPUTE_AUTO, 3);
        struct dse_engine *alone = create_engine(
            model, (struct dse_engine_options){.context_length = 256, .adapter_rank = 8, .adapter_bytes = 1 << 20});
        struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = 256,
                                                                                     .max_concurrent = 2 * N_WAYS,
                                                                                     .max_queue = 32,
                                                                                     .chunk_tokens = 48,
                                                                                     .prefix_caching = m == 1,
                                                                                     .adapter_rank = 8,
                                                                                     .adapter_bytes = 1 << 20});
        struct ways ways;
        struct run *cold[N_WAYS], *runs[2 * N_WAYS];
        open_ways(&ways, model);
        for (int w = 0; w < N_WAYS; w++)
            cold[w] = run_request(alone, request_of(&ways, w));
        for (int i = 0; i < 2 * N_WAYS; i++) {
            runs[i] = run_create();
            run_submit(runs[i], engine, request_of(&ways, (i * 3) % N_WAYS));
        }
        for (int i = 0; i < 2 * N_WAYS; i++) {
            run_wait(runs[i]);
            if (!runs_equal(runs[i], cold[(i * 3) % N_WAYS])) fail_msg("%s", way_names[(i * 3) % N_WAYS]);
            run_free(runs[i]);
        }
        for (int w = 0; w < N_WAYS; w++)
            run_free(cold[w]);
        wait_until_empty();
        dse_engine_free(alone);
        dse_engine_free(engine);
        close_ways(&ways);
        dse_model_unref(model);
    }
}

/* The owner lets go while a request runs: the request keeps the old weights, and the memory comes back after it. */
static void a_request_in_flight_keeps_its_adapter(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(
        model, (struct dse_engine_options){.context_length = 256, .adapter_rank = 8, .adapter_bytes = 1 << 20});
    const size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    struct dse_adapter_use use = {open_adapter(model, "llama_linear/a"), 1};
    struct dse_request request = request_of(NULL, 0);
    request.adapters = &use;
    request.n_adapters = 1;
    struct run *expected = run_request(engine, request), *run = run_create();
    run->hold = true;
    run->hold_at = DSE_EVENT_TOKEN;
    run_submit(run, engine, request);
    run_wait_held(run);
    dse_adapter_unref(use.adapter);
    assert_true(dse_mem_live_bytes(DSE_MEM_MODEL) > before);
    run_release(run);
    run_wait(run);
    assert_true(runs_equal(run, expected));
    wait_until_empty();
    dse_engine_free(engine); /* joins the thread that frees the request */
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
    run_free(run);
    run_free(expected);
    dse_model_unref(model);
}

static void refuse(struct dse_engine *engine, struct dse_request request, const char *text)
{
    struct dse_error error = {0};
    struct run *run = run_create();
    request.on_event = run_on_event;
    request.user = run;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "adapters");
    if (strstr(error.message, text) == NULL) fail_msg("'%s' is not in: %s", text, error.message);
    run_free(run);
}

static void requests_with_wrong_adapters_are_refused(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_model *other = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(
        model, (struct dse_engine_options){.context_length = 256, .adapter_rank = 4, .adapter_bytes = 1 << 20});
    struct dse_engine *none = create_engine(model, (struct dse_engine_options){.context_length = 256});
    struct dse_adapter_use uses[DSE_MAX_ADAPTERS + 1] = {{open_adapter(model, "llama_linear/a"), 1},
                                                         {open_adapter(model, "llama_linear/b"), 1},
                                                         {open_adapter(other, "llama_linear/b"), 1}};
    struct dse_request request = request_of(NULL, 0);
    request.adapters = uses;
    request.n_adapters = 1;
    refuse(none, request, "there is room for 0");
    request.n_adapters = 2; /* ranks 2 and 3 */
    refuse(engine, request, "are 5 together, there is room for 4");
    request.n_adapters = -1;
    refuse(engine, request, "8 adapters at most");
    request.n_adapters = DSE_MAX_ADAPTERS + 1;
    refuse(engine, request, "8 adapters at most");
    request.n_adapters = 1;
    request.adapters = &uses[2];
    refuse(engine, request, "not one of this model");
    request.adapters = &uses[3];
    refuse(engine, request, "not one of this model");
    request.adapters = NULL;
    refuse(engine, request, "no entries");
    request.adapters = uses;
    static const float scales[] = {(float)NAN, (float)INFINITY, -(float)INFINITY};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        uses[0].scale = scales[i];
        refuse(engine, request, "not a finite number");
    }
    struct dse_adapter_use twice[2] = {{uses[0].adapter, 3e38f}, {uses[0].adapter, 3e38f}};
    request.adapters = twice;
    request.n_adapters = 2;
    refuse(engine, request, "infinity");
    for (int i = 0; i < 3; i++)
        dse_adapter_unref(uses[i].adapter);
    dse_engine_free(engine);
    dse_engine_free(none);
    dse_model_unref(model);
    dse_model_unref(other);
}

/* What was planned is the limit: an adapter that would go beyond it is refused with both numbers, and changes
 * nothing. */
static void memory_beyond_the_plan_is_refused(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_adapter *a = open_adapter(model, "llama_linear/a"), *more = NULL;
    struct dse_adapter_info info;
    struct dse_memory_plan plan, without;
    struct dse_error error = {0};
    dse_adapter_get_info(a, &info);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.n_matrices, 21);
    struct dse_engine_options options = {.context_length = 256, .kv_bytes = 4 << 20};
    assert_int_equal(dse_engine_plan(model, &options, &without, &error), DSE_OK);
    options.adapter_bytes = info.bytes;
    options.adapter_rank = 8;
    assert_int_equal(dse_engine_plan(model, &options, &plan, &error), DSE_OK);
    assert_int_equal(without.adapter_bytes, info.bytes);
    assert_int_equal(plan.adapter_bytes, 2 * info.bytes);
    assert_int_equal(plan.total_bytes - without.total_bytes, info.bytes + plan.scratch_bytes - without.scratch_bytes);
    assert_true(plan.scratch_bytes - without.scratch_bytes >= 3 * 512 * 8 * sizeof(float));

    struct dse_engine *engine = create_engine(model, options);
    struct dse_adapter *again = open_adapter(model, "llama_linear/a");
    const size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    assert_int_equal(dse_adapter_open(model, adapter_path("llama_linear/b"), &more, &error), DSE_ERR_NO_MEMORY);
    assert_null(more);
    assert_int_equal(error.have, 0);
    assert_true(error.need > 0);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
    dse_adapter_unref(again);
    more = open_adapter(model, "llama_linear/b");
    dse_adapter_unref(more);
    dse_adapter_unref(a);
    dse_engine_free(engine);
    dse_model_unref(model);
}

int main(void)
{
    fill_prompt(prompt, N_PROMPT, N_VOCAB, 8);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_cache_gives_every_choice_of_adapters_its_own_text),
        cmocka_unit_test(adapters_of_one_batch_do_not_touch_each_other),
        cmocka_unit_test(a_request_in_flight_keeps_its_adapter),
        cmocka_unit_test(requests_with_wrong_adapters_are_refused),
        cmocka_unit_test(memory_beyond_the_plan_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

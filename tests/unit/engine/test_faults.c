/* Every allocation fails in turn: opening, creating and submitting end with an error, leak nothing and can be
 * repeated. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine_support.h"
#include "text/grammar.h"

#define MAX_ALLOCATIONS 20000

static int32_t prompt[64];

static size_t live_bytes(void)
{
    size_t sum = 0;
    for (int tag = 0; tag < DSE_MEM_COUNT; tag++)
        sum += dse_mem_live_bytes((enum dse_mem)tag);
    return sum;
}

/* A finished request is freed by the engine thread after its last event, its task last of all. */
static void wait_until_freed(size_t request_bytes)
{
    for (int i = 0; i < 3000 && dse_mem_live_bytes(DSE_MEM_REQUEST) != request_bytes; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_REQUEST), request_bytes);
}

static struct dse_request full_request(void)
{
    static const int32_t stops[] = {5, 9};
    static const struct dse_logit_bias bias[] = {{.token = 7, .bias = 1.0f}};
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = 40;
    request.max_tokens = 5;
    request.n_choices = 3;
    request.stop_tokens = stops;
    request.n_stop_tokens = 2;
    request.sampling.logit_bias = bias;
    request.sampling.n_logit_bias = 1;
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.top_k = 40;
    return request;
}

static void check_submit_with_failing_allocations(struct dse_engine *engine, struct dse_request request)
{
    for (long n = 1; n < MAX_ALLOCATIONS; n++) {
        struct run *run = run_create();
        struct dse_error error = {0};
        request.on_event = run_on_event;
        request.user = run;
        run->n_choices = request.n_choices;
        size_t before = live_bytes();
        dse_alloc_fail_after(n);
        enum dse_status status = dse_engine_submit(engine, &request, &run->id, &error);
        dse_alloc_fail_after(0);
        if (status == DSE_OK) {
            run_wait(run);
            for (int i = 0; i < request.n_choices; i++)
                assert_int_not_equal(run->choice[i].finish, DSE_FINISH_ERROR);
            run_free(run);
            assert_true(n > 5);
            return;
        }
        assert_int_equal(status, DSE_ERR_NO_MEMORY);
        assert_true(error.message[0] != '\0');
        assert_int_equal(live_bytes(), before);
        assert_int_equal(dse_engine_slots(engine, &(struct dse_slot){0}, 1), 0);
        run_free(run);
    }
    fail_msg("submit never succeeded");
}

static void submit_survives_every_failing_allocation(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = 128});
    check_submit_with_failing_allocations(engine, full_request());
    wait_until_empty();
    dse_engine_free(engine);
    dse_model_unref(model);
}

static void submit_with_a_grammar_survives_every_failing_allocation(void **state)
{
    (void)state;
    static const char source[] = "root ::= [a-z]+";
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    assert_non_null(dse_model_tokenizer(model));
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = 128});
    struct dse_request request = full_request();
    struct dse_error error;
    assert_int_equal(dse_grammar_compile(source, strlen(source), &request.grammar, &error), DSE_OK);
    size_t request_bytes = dse_mem_live_bytes(DSE_MEM_REQUEST);
    struct run *first = run_request(engine, request); /* builds the trie, which stays */
    run_free(first);
    wait_until_freed(request_bytes);
    check_submit_with_failing_allocations(engine, request);
    dse_grammar_unref(request.grammar);
    wait_until_empty();
    dse_engine_free(engine);
    dse_model_unref(model);
}

static void engine_create_survives_every_failing_allocation(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_engine_options options = {.context_length = 128, .chunk_tokens = 16, .adapter_rank = 8};
    dse_engine_free(create_engine(model, options)); /* the device keeps its scratch from here on */
    for (long n = 1; n < MAX_ALLOCATIONS; n++) {
        struct dse_engine *engine = NULL;
        struct dse_error error = {0};
        size_t before = live_bytes();
        dse_alloc_fail_after(n);
        enum dse_status status = dse_engine_create(model, &options, &engine, &error);
        dse_alloc_fail_after(0);
        if (status == DSE_OK) {
            dse_engine_free(engine);
            assert_true(n > 5);
            dse_model_unref(model);
            return;
        }
        assert_int_equal(status, DSE_ERR_NO_MEMORY);
        assert_null(engine);
        assert_int_equal(live_bytes(), before);
    }
    fail_msg("create never succeeded");
}

static void model_open_survives_every_failing_allocation(void **state)
{
    (void)state;
    struct dse_model_options options = {.n_threads = 1};
    for (long n = 1; n < MAX_ALLOCATIONS; n++) {
        struct dse_model *model = NULL;
        struct dse_error error = {0};
        size_t before = live_bytes();
        dse_alloc_fail_after(n);
        enum dse_status status = dse_model_open(reference_path("llama_linear"), &options, &model, &error);
        dse_alloc_fail_after(0);
        if (status == DSE_OK) {
            dse_model_unref(model);
            assert_int_equal(live_bytes(), before);
            return;
        }
        assert_null(model);
        assert_int_equal(live_bytes(), before);
    }
    fail_msg("open never succeeded");
}

static void eval_survives_every_failing_allocation(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    float *out = calloc(40 * 512, sizeof *out);
    struct dse_error error = {0};
    assert_int_equal(dse_eval_logits(model, prompt, 40, 16, out, &error), DSE_OK); /* the device keeps its scratch */
    enum dse_status status = DSE_ERR_NO_MEMORY;
    const size_t before = live_bytes();
    for (long n = 1; n < MAX_ALLOCATIONS && status != DSE_OK; n++) {
        dse_alloc_fail_after(n);
        status = dse_eval_logits(model, prompt, 40, 16, out, &error);
        dse_alloc_fail_after(0);
        assert_true(status == DSE_OK || status == DSE_ERR_NO_MEMORY);
        assert_int_equal(live_bytes(), before);
        assert_true(status != DSE_OK || n > 4);
    }
    assert_int_equal(status, DSE_OK);
    free(out);
    dse_model_unref(model);
}

/* Opening, and then a request with it: nothing is taken that is not given back. */
static void adapters_survive_every_failing_allocation(void **state)
{
    static const char *const paths[] = {"llama_linear/a", "llama_linear/a.gguf", "qwen2_bias/a"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct dse_model *model = open_reference(i < 2 ? "llama_linear" : "qwen2_bias", DSE_COMPUTE_AUTO, 1);
        struct dse_adapter *adapter = NULL;
        struct dse_error error = {0};
        const size_t before = live_bytes();
        enum dse_status status = DSE_ERR_NO_MEMORY;
        for (long n = 1; n < MAX_ALLOCATIONS && status != DSE_OK; n++) {
            dse_alloc_fail_after(n);
            status = dse_adapter_open(model, adapter_path(paths[i]), &adapter, &error);
            dse_alloc_fail_after(0);
            if (status != DSE_OK) {
                if (status != DSE_ERR_NO_MEMORY) fail_msg("allocation %ld: %s", n, error.message);
                assert_null(adapter);
                assert_int_equal(live_bytes(), before);
            }
            assert_true(status != DSE_OK || n > 20);
        }
        assert_int_equal(status, DSE_OK);
        struct dse_engine *engine = create_engine(
            model, (struct dse_engine_options){.context_length = 128, .adapter_rank = 8});
        struct dse_request request = full_request();
        struct dse_adapter_use use = {adapter, 1};
        request.adapters = &use;
        request.n_adapters = 1;
        check_submit_with_failing_allocations(engine, request);
        wait_until_empty();
        dse_engine_free(engine);
        dse_adapter_unref(adapter);
        dse_model_unref(model);
    }
}

int main(void)
{
    fill_prompt(prompt, 64, 512, 8);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submit_survives_every_failing_allocation),
        cmocka_unit_test(submit_with_a_grammar_survives_every_failing_allocation),
        cmocka_unit_test(engine_create_survives_every_failing_allocation),
        cmocka_unit_test(model_open_survives_every_failing_allocation),
        cmocka_unit_test(adapters_survive_every_failing_allocation),
        cmocka_unit_test(eval_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

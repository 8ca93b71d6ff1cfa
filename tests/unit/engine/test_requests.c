/* What a single request does: lengths, stops, logprobs, grammar, and everything that submit refuses. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "engine_support.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

struct fixture {
    struct dse_model *model;
    struct dse_engine *engine;
    int32_t prompt[300];
};

#define CONTEXT 256

static struct dse_request greedy(const struct fixture *f, int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = f->prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
}

static void request_generates_exactly_max_tokens(void **state)
{
    struct fixture *f = *state;
    struct run *run = run_request(f->engine, greedy(f, 10, 25));
    assert_int_equal(run->choice[0].n_tokens, 25);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    assert_int_equal(run->choice[0].n_finish_events, 1);
    assert_int_equal(run->choice[0].timings.n_prompt, 10);
    assert_int_equal(run->choice[0].timings.n_generated, 25);
    assert_true(run->choice[0].timings.prefill_ns > 0);
    assert_true(run->choice[0].timings.decode_ns > 0);
    assert_int_equal(run->n_processed, 10);
    run_free(run);
    wait_until_empty();
}

static void request_with_max_tokens_0_only_computes_the_prompt(void **state)
{
    struct fixture *f = *state;
    struct run *run = run_request(f->engine, greedy(f, 100, 0));
    assert_int_equal(run->choice[0].n_tokens, 0);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    assert_int_equal(run->n_processed, 100);
    run_free(run);
    wait_until_empty();
}

static void request_with_max_tokens_minus_1_runs_to_the_end_of_the_context(void **state)
{
    struct fixture *f = *state;
    struct run *run = run_request(f->engine, greedy(f, 20, -1));
    assert_int_equal(run->choice[0].n_tokens, CONTEXT - 20);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    run_free(run);
    struct run *large = run_request(f->engine, greedy(f, 250, 1000));
    assert_int_equal(large->choice[0].n_tokens, 6);
    assert_int_equal(large->choice[0].finish, DSE_FINISH_LENGTH);
    run_free(large);
    wait_until_empty();
}

/* One below the context leaves room for one token; the context itself only for prefill; more for nothing. */
static void request_at_the_end_of_the_context(void **state)
{
    struct fixture *f = *state;
    struct dse_error error;
    struct dse_request request = greedy(f, CONTEXT - 1, 50);
    struct run *run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, 1);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    run_free(run);

    request = greedy(f, CONTEXT, 0);
    run = run_request(f->engine, request);
    assert_int_equal(run->n_processed, CONTEXT);
    run_free(run);

    request = greedy(f, CONTEXT, 1);
    request.on_event = run_on_event;
    assert_int_equal(dse_engine_submit(f->engine, &request, NULL, &error), DSE_ERR_TOO_LONG);
    assert_int_equal(error.need, CONTEXT);
    assert_int_equal(error.have, CONTEXT);
    request = greedy(f, CONTEXT + 1, 0);
    request.on_event = run_on_event;
    assert_int_equal(dse_engine_submit(f->engine, &request, NULL, &error), DSE_ERR_TOO_LONG);
    assert_int_equal(error.need, CONTEXT + 1);
    wait_until_empty();
}

/* H5: requests at the limit leave a running neighbour as it was. */
static void requests_at_the_limit_do_not_disturb_others(void **state)
{
    struct fixture *f = *state;
    struct run *expected = run_request(f->engine, greedy(f, 40, 150));
    struct run *a = run_create(), *b = run_create(), *c = run_create();
    struct dse_request request = greedy(f, 40, 150);
    struct dse_error error;
    run_submit(a, f->engine, request);
    request = greedy(f, 250, 1000);
    run_submit(b, f->engine, request);
    request = greedy(f, 255, -1);
    run_submit(c, f->engine, request);
    request = greedy(f, 300, 1);
    request.on_event = run_on_event;
    assert_int_equal(dse_engine_submit(f->engine, &request, NULL, &error), DSE_ERR_TOO_LONG);
    run_wait(a);
    run_wait(b);
    run_wait(c);
    assert_true(runs_equal(a, expected));
    assert_int_equal(b->choice[0].n_tokens, 6);
    assert_int_equal(c->choice[0].n_tokens, 1);
    run_free(a);
    run_free(b);
    run_free(c);
    run_free(expected);
    wait_until_empty();
}

static void request_ends_at_its_stop_tokens(void **state)
{
    struct fixture *f = *state;
    struct run *free_run = run_request(f->engine, greedy(f, 30, 40));
    int32_t stop = free_run->choice[0].tokens[12];
    int first = 0;
    while (free_run->choice[0].tokens[first] != stop)
        first++;
    struct dse_request request = greedy(f, 30, 40);
    request.stop_tokens = &stop;
    request.n_stop_tokens = 1;
    struct run *run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, first + 1);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    assert_true(run->choice[0].saw_stop_token);
    run_free(run);

    request.min_tokens = 30;
    run = run_request(f->engine, request);
    assert_true(run->choice[0].n_tokens > 30);
    for (int i = 0; i < 30; i++)
        assert_int_not_equal(run->choice[0].tokens[i], stop);
    run_free(run);
    run_free(free_run);
}

static void ignore_eos_never_yields_a_stop_token_and_its_absence_ends_there(void **state)
{
    struct fixture *f = *state;
    struct dse_logit_bias bias = {.token = 1, .bias = 100.0f}; /* eos of the model */
    struct dse_request request = greedy(f, 30, 20);
    request.sampling.logit_bias = &bias;
    request.sampling.n_logit_bias = 1;
    struct run *run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, 20);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    assert_false(run->choice[0].saw_stop_token);
    run_free(run);

    request.ignore_eos = false;
    run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, 1);
    assert_int_equal(run->choice[0].tokens[0], 1);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    run_free(run);

    request.min_tokens = 7;
    run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, 8);
    assert_int_equal(run->choice[0].tokens[7], 1);
    run_free(run);
}

static void callback_that_says_stop_ends_the_request(void **state)
{
    struct fixture *f = *state;
    struct run *run = run_create();
    run->stop_after = 5;
    run_submit(run, f->engine, greedy(f, 30, 200));
    run_wait(run);
    assert_int_equal(run->choice[0].n_tokens, 5);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    run_free(run);
    wait_until_empty();
}

static void logprobs_are_sorted_and_belong_to_one_distribution(void **state)
{
    struct fixture *f = *state;
    struct dse_request request = greedy(f, 30, 10);
    request.sampling.top_logprobs = 20;
    struct run *run = run_request(f->engine, request);
    for (int t = 0; t < 10; t++) {
        double sum = 0;
        assert_int_equal(run->choice[0].n_top, 20);
        for (int i = 0; i < 20; i++) {
            assert_true(run->choice[0].top[t][i].logprob <= 0);
            if (i > 0) assert_true(run->choice[0].top[t][i].logprob <= run->choice[0].top[t][i - 1].logprob);
            sum += exp((double)run->choice[0].top[t][i].logprob);
        }
        assert_true(sum <= 1.0001 && sum > 0.3);
        assert_float_equal(run->choice[0].top[t][0].logprob, run->choice[0].logprobs[t], 1e-6);
    }
    run_free(run);
}

static void prompt_logprobs_come_in_order_for_any_chunking(void **state)
{
    struct fixture *f = *state;
    struct dse_request request = greedy(f, 200, 3);
    request.prompt_logprobs = true;
    struct run *run = run_request(f->engine, request);
    assert_int_equal(run->n_prompt_logprobs, 199);
    for (int i = 0; i < 199; i++) {
        assert_int_equal(run->prompt_tokens[i], f->prompt[i + 1]);
        assert_true(run->prompt_logprobs[i] <= 0);
    }
    assert_int_equal(run->choice[0].n_tokens, 3);
    run_free(run);
}

static void request_of_one_token_works(void **state)
{
    struct fixture *f = *state;
    struct dse_request request = greedy(f, 1, 5);
    request.prompt_logprobs = true;
    struct run *run = run_request(f->engine, request);
    assert_int_equal(run->choice[0].n_tokens, 5);
    assert_int_equal(run->n_prompt_logprobs, 0);
    run_free(run);
}

static void submit_names_the_field_it_refuses(void **state)
{
    struct fixture *f = *state;
    const struct dse_logit_bias bad_bias = {.token = 512};
    const int32_t bad_ids[] = {3, 512, 4}, negative[] = {-1};
    struct dse_request r = greedy(f, 10, 5);
    r.on_event = run_on_event;
    struct {
        struct dse_request request;
        const char *field;
    } cases[24];
    int n = 0;
#define CASE(name, ...)                                                                                                \
    do {                                                                                                               \
        cases[n].request = r;                                                                                          \
        struct dse_request *q = &cases[n].request;                                                                     \
        __VA_ARGS__;                                                                                                   \
        cases[n++].field = name;                                                                                       \
    } while (0)
    CASE("prompt", q->n_prompt = 0);
    CASE("prompt", q->prompt = NULL);
    CASE("prompt", q->prompt = bad_ids; q->n_prompt = 3);
    CASE("prompt", q->prompt = negative; q->n_prompt = 1);
    CASE("on_event", q->on_event = NULL);
    CASE("max_tokens", q->max_tokens = -2);
    CASE("min_tokens", q->min_tokens = -1);
    CASE("n_choices", q->n_choices = 0);
    CASE("n_choices", q->n_choices = DSE_MAX_CHOICES + 1);
    CASE("stop_tokens", q->stop_tokens = bad_ids; q->n_stop_tokens = 3);
    CASE("stop_tokens", q->n_stop_tokens = 2);
    CASE("stop_tokens", q->stop_tokens = bad_ids; q->n_stop_tokens = -1);
    CASE("temperature", q->sampling.temperature = -1);
    CASE("temperature", q->sampling.temperature = NAN);
    CASE("top_k", q->sampling.top_k = -1);
    CASE("top_p", q->sampling.top_p = 1.5f);
    CASE("min_p", q->sampling.min_p = NAN);
    CASE("repetition_penalty", q->sampling.repetition_penalty = 0);
    CASE("presence_penalty", q->sampling.presence_penalty = INFINITY);
    CASE("top_logprobs", q->sampling.top_logprobs = 21);
    CASE("logit_bias", q->sampling.logit_bias = &bad_bias; q->sampling.n_logit_bias = 1);
    CASE("logit_bias", q->sampling.n_logit_bias = 1);
    CASE("logit_bias", q->sampling.logit_bias = &bad_bias; q->sampling.n_logit_bias = 5000);
    CASE("top_logprobs", q->max_tokens = 0; q->sampling.top_logprobs = -2);
#undef CASE
    for (int i = 0; i < n; i++) {
        struct dse_error error = {0};
        uint64_t id = 77;
        enum dse_status status = dse_engine_submit(f->engine, &cases[i].request, &id, &error);
        if (status != DSE_ERR_INVALID || strcmp(error.file, cases[i].field) != 0)
            fail_msg("case %d (%s): status %d, field '%s'", i, cases[i].field, status, error.file);
        assert_non_null(strstr(error.message, cases[i].field));
    }
    wait_until_empty();
}

static struct dse_grammar *compile(const char *source)
{
    struct dse_grammar *grammar = NULL;
    struct dse_error error;
    if (dse_grammar_compile(source, strlen(source), &grammar, &error) != DSE_OK) fail_msg("%s", error.message);
    return grammar;
}

static void grammar_needs_a_tokenizer(void **state)
{
    struct fixture *f = *state;
    struct dse_error error;
    struct dse_request request = greedy(f, 10, 5);
    request.on_event = run_on_event;
    request.grammar = compile("root ::= \"yes\"");
    assert_int_equal(dse_engine_submit(f->engine, &request, NULL, &error), DSE_ERR_UNSUPPORTED);
    assert_string_equal(error.file, "grammar");
    dse_grammar_unref(request.grammar);
}

static void append_text(const struct dse_tokenizer *tokenizer, const struct run *run, char *out, size_t capacity)
{
    size_t used = 0;
    for (int i = 0; i < run->choice[0].n_tokens; i++) {
        struct dse_slice slice = dse_tokenizer_bytes(tokenizer, run->choice[0].tokens[i]);
        if (dse_tokenizer_kind(tokenizer, run->choice[0].tokens[i]) == DSE_TOKEN_CONTROL) continue;
        assert_true(used + slice.bytes < capacity);
        memcpy(out + used, slice.data, slice.bytes);
        used += slice.bytes;
    }
    out[used] = '\0';
}

static void grammar_forces_a_literal(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    const struct dse_tokenizer *tokenizer = dse_model_tokenizer(model);
    assert_non_null(tokenizer);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = CONTEXT});
    int32_t prompt[] = {30, 40, 50};
    char text[512];
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = 3;
    request.max_tokens = 200;
    request.grammar = compile("root ::= \"two plus two is four</think>\\n\\nIt is 4.\"");
    struct run *run = run_request(engine, request);
    append_text(tokenizer, run, text, sizeof text);
    assert_string_equal(text, "two plus two is four</think>\n\nIt is 4.");
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    run_free(run);

    /* the same, but only after a token that comes third */
    request.sampling.temperature = 0;
    struct dse_request unbound = request;
    unbound.grammar = NULL;
    unbound.max_tokens = 3;
    unbound.ignore_eos = request.ignore_eos = true;
    struct run *head = run_request(engine, unbound);
    request.grammar_after_token = head->choice[0].tokens[2];
    int start = 0;
    while (head->choice[0].tokens[start] != request.grammar_after_token)
        start++;
    run = run_request(engine, request);
    assert_memory_equal(run->choice[0].tokens, head->choice[0].tokens, (size_t)(start + 1) * sizeof(int32_t));
    append_text(tokenizer, run, text, sizeof text);
    assert_non_null(strstr(text, "two plus two is four</think>\n\nIt is 4."));
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    run_free(run);
    run_free(head);
    dse_grammar_unref(request.grammar);
    dse_engine_free(engine);
    dse_model_unref(model);
}

/* The end that a grammar wants is not held back when nothing else may come. */
static void grammar_that_may_only_end_wins_over_min_tokens(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = CONTEXT});
    int32_t prompt[] = {30, 40, 50};
    static const char *const sources[] = {"root ::= \"\"", "root ::= \"a\"?"};
    for (int i = 0; i < 2; i++) {
        for (int how = 0; how < 2; how++) {
            struct dse_request request = dse_request_default;
            request.prompt = prompt;
            request.n_prompt = 3;
            request.max_tokens = 20;
            request.min_tokens = how == 0 ? 3 : 0;
            request.ignore_eos = how == 1;
            request.sampling.top_logprobs = 2;
            request.grammar = compile(sources[i]);
            struct run *run = run_request(engine, request);
            if (run->choice[0].finish == DSE_FINISH_ERROR) fail_msg("%s: %s", sources[i], run->error.message);
            assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
            assert_int_equal(run->choice[0].n_tokens, i);
            run_free(run);
            dse_grammar_unref(request.grammar);
        }
    }
    dse_engine_free(engine);
    dse_model_unref(model);
}

static void grammar_that_no_allowed_token_continues_is_a_fault_of_the_request(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = CONTEXT});
    struct dse_logit_bias forbidden[512];
    int32_t prompt[] = {30, 40, 50};
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = 3;
    request.max_tokens = 20;
    request.grammar = compile("root ::= \"ab\"");
    for (int i = 0; i < 512; i++) {
        const struct dse_slice text = dse_tokenizer_bytes(dse_model_tokenizer(model), i);
        const bool begins = text.bytes > 0 && (text.data[0] == 'a' || text.data[0] == 'b');
        if (begins) forbidden[request.sampling.n_logit_bias++] = (struct dse_logit_bias){i, -INFINITY};
    }
    request.sampling.logit_bias = forbidden;
    struct run *run = run_request(engine, request);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_ERROR);
    assert_int_equal(run->error.status, DSE_ERR_INVALID);
    assert_string_equal(run->error.file, "grammar");
    run_free(run);
    dse_grammar_unref(request.grammar);
    dse_engine_free(engine);
    dse_model_unref(model);
}

static void stop_that_only_the_configuration_names_ends_a_grammar(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    /* what collect_stop_tokens makes of "eos_token_id" in a generation_config.json; the list has room for one more */
    const int32_t extra = 500;
    assert_false(dse_tokenizer_is_stop(model->tokenizer, extra));
    model->stop_tokens[model->n_stop_tokens++] = extra;
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = CONTEXT});
    const struct dse_logit_bias wanted = {extra, 1000};
    int32_t prompt[] = {30, 40, 50};
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = 3;
    request.max_tokens = 20;
    request.sampling.temperature = 0;
    request.sampling.logit_bias = &wanted;
    request.sampling.n_logit_bias = 1;
    request.grammar = compile("root ::= \"\"");
    struct run *run = run_request(engine, request);
    assert_int_equal(run->choice[0].n_tokens, 1);
    assert_int_equal(run->choice[0].tokens[0], extra);
    assert_true(run->choice[0].saw_stop_token);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_STOP);
    run_free(run);
    dse_grammar_unref(request.grammar);
    dse_engine_free(engine);
    dse_model_unref(model);
}

/* A token has the same log-probability whether it was generated or comes as part of a prompt. */
static void prompt_logprobs_have_the_bits_of_generated_ones(void **state)
{
    struct fixture *f = *state;
    struct dse_request request = greedy(f, 50, 60);
    request.sampling.top_logprobs = 0;
    struct run *said = run_request(f->engine, request);
    int32_t whole[110];
    memcpy(whole, f->prompt, 50 * sizeof *whole);
    memcpy(whole + 50, said->choice[0].tokens, 60 * sizeof *whole);
    request.prompt = whole;
    request.n_prompt = 110;
    request.max_tokens = 0;
    request.prompt_logprobs = true;
    struct run *echo = run_request(f->engine, request);
    assert_int_equal(echo->n_prompt_logprobs, 109);
    assert_memory_equal(echo->prompt_logprobs + 49, said->choice[0].logprobs, 60 * sizeof(float));
    run_free(echo);
    run_free(said);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
    f->engine = create_engine(
        f->model, (struct dse_engine_options){.context_length = CONTEXT, .max_concurrent = 4, .max_queue = 8});
    fill_prompt(f->prompt, 300, 512, 1);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    dse_engine_free(f->engine);
    dse_model_unref(f->model);
    free(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_generates_exactly_max_tokens),
        cmocka_unit_test(request_with_max_tokens_0_only_computes_the_prompt),
        cmocka_unit_test(request_with_max_tokens_minus_1_runs_to_the_end_of_the_context),
        cmocka_unit_test(request_at_the_end_of_the_context),
        cmocka_unit_test(requests_at_the_limit_do_not_disturb_others),
        cmocka_unit_test(request_ends_at_its_stop_tokens),
        cmocka_unit_test(ignore_eos_never_yields_a_stop_token_and_its_absence_ends_there),
        cmocka_unit_test(callback_that_says_stop_ends_the_request),
        cmocka_unit_test(logprobs_are_sorted_and_belong_to_one_distribution),
        cmocka_unit_test(prompt_logprobs_come_in_order_for_any_chunking),
        cmocka_unit_test(request_of_one_token_works),
        cmocka_unit_test(submit_names_the_field_it_refuses),
        cmocka_unit_test(grammar_needs_a_tokenizer),
        cmocka_unit_test(grammar_forces_a_literal),
        cmocka_unit_test(grammar_that_may_only_end_wins_over_min_tokens),
        cmocka_unit_test(grammar_that_no_allowed_token_continues_is_a_fault_of_the_request),
        cmocka_unit_test(stop_that_only_the_configuration_names_ends_a_grammar),
        cmocka_unit_test(prompt_logprobs_have_the_bits_of_generated_ones),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

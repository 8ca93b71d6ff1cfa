/* Hidden states of prompt tokens, as embeddings are made of them, against Hugging Face's last_hidden_state. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_support.h"
#include "reference.h"

/* The references' bound for logits; hidden states are smaller. */
#define F32_BOUND 1e-3

static const char *const models[][2] = {
    {"llama_linear", "llama_linear"},
    {"llama_llama3", "llama_llama3"},
    {"qwen2_bias", "qwen2_bias"},
    {"qwen3_yarn", "qwen3_yarn"},
    {"gguf/llama_linear.gguf", "llama_linear"},
    {"deepseek_v1_moe", "deepseek_v1_moe"},
    {"deepseek_v2", "deepseek_v2"},
    {"gguf/deepseek_v2.gguf", "deepseek_v2"},
    {"deepseek_v3", "deepseek_v3"},
    {"deepseek_v32", "deepseek_v32"},
};

struct collected {
    struct run *run;
    float *states; /* [n_prompt, n_embd] */
    int n_embd, next;
};

static bool collect(void *user, const struct dse_event *event)
{
    struct collected *c = user;
    if (event->kind == DSE_EVENT_HIDDEN_STATE) {
        assert_int_equal(event->n_processed, c->next++);
        memcpy(c->states + (size_t)event->n_processed * (size_t)c->n_embd, event->hidden,
               (size_t)c->n_embd * sizeof(float));
    }
    return run_on_event(c->run, event);
}

/* The states of a prompt, owned by the caller. */
static float *states_of(struct dse_engine *engine, const int32_t *ids, int n_ids, int max_tokens)
{
    struct dse_model_info info;
    dse_model_get_info(dse_engine_model(engine), &info);
    struct collected c = {.run = run_create(), .n_embd = info.n_embd};
    c.states = calloc((size_t)n_ids * (size_t)info.n_embd, sizeof *c.states);
    assert_non_null(c.states);
    struct dse_request request = dse_request_default;
    struct dse_error error;
    request.prompt = ids;
    request.n_prompt = n_ids;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.hidden_states = true;
    request.on_event = collect;
    request.user = &c;
    c.run->n_choices = 1;
    if (dse_engine_submit(engine, &request, &c.run->id, &error) != DSE_OK) fail_msg("%s", error.message);
    run_wait(c.run);
    assert_int_equal(c.next, n_ids);
    assert_int_equal(c.run->choice[0].n_tokens, max_tokens);
    run_free(c.run);
    return c.states;
}

static void hidden_states_equal_hugging_face(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct dse_model *model = open_reference(models[m][0], DSE_COMPUTE_F32, 1);
        struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = 64});
        struct dse_model_info info;
        char name[64];
        int n_ids, count;
        snprintf(name, sizeof name, "%s/reference.safetensors", models[m][1]);
        struct reference *reference = reference_open(name);
        dse_model_get_info(model, &info);
        snprintf(name, sizeof name, "hidden.%d", info.n_layers);
        const int32_t *ids = reference_i32(reference, 1, "ids", &n_ids);
        const float *expected = reference_f32(reference, 1, name, &count);
        assert_int_equal(count, n_ids * info.n_embd);
        float *states = states_of(engine, ids, n_ids, 0);
        double largest = 0;
        for (int i = 0; i < count; i++)
            largest = fmax(largest, fabs((double)states[i] - (double)expected[i]));
        print_message("%s: max %.2e\n", models[m][0], largest);
        if (!(largest <= F32_BOUND)) fail_msg("%s: error %g", models[m][0], largest);
        free(states);
        reference_close(reference);
        dse_engine_free(engine);
        dse_model_unref(model);
    }
}

static void hidden_states_do_not_depend_on_chunks_or_what_follows(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
    struct dse_model_info info;
    int32_t ids[50];
    float *first = NULL;
    dse_model_get_info(model, &info);
    fill_prompt(ids, 50, info.n_vocab, 7);
    for (int chunk = 1; chunk <= 64; chunk += 21)
        for (int max_tokens = 0; max_tokens <= 3; max_tokens += 3) {
            struct dse_engine *engine = create_engine(
                model, (struct dse_engine_options){.context_length = 64, .chunk_tokens = chunk});
            float *states = states_of(engine, ids, 50, max_tokens);
            if (!first)
                first = states;
            else
                assert_memory_equal(first, states, 50 * (size_t)info.n_embd * sizeof(float));
            if (first != states) free(states);
            dse_engine_free(engine);
        }
    free(first);
    dse_model_unref(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_equal_hugging_face),
        cmocka_unit_test(hidden_states_do_not_depend_on_chunks_or_what_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

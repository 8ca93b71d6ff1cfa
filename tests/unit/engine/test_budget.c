/* The memory plan: what fits, what does not, and what the refusal says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bench.h"
#include "engine/budget.h"
#include "engine/kv_pool.h"
#include "engine/model.h"
#include "engine_support.h"
#include "quant/types.h"

#define MIB (1024ull * 1024)

static struct dse_memory_limit machine(uint64_t available)
{
    return (struct dse_memory_limit){.available_bytes = available, .total_bytes = available, .reason = "cgroup limit"};
}

/* llama_linear: 3 layers, 8 kv heads of 16: K and V of a head take 2048 bytes of a block, a block 49152, 32 tokens. */
static const uint64_t block_bytes = 49152;

static void plan_gives_every_sequence_a_context_when_memory_is_plenty(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.max_concurrent = 3, .memory_fraction = 1.0};
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.plan.context_length, 1024);
    assert_int_equal(sizes.n_blocks, 3 * 32);
    assert_int_equal(sizes.plan.kv_bytes, 3 * 32 * block_bytes);
    assert_int_equal(sizes.plan.kv_tokens, 3 * 1024);
    assert_int_equal(sizes.plan.total_bytes,
                     sizes.plan.resident_weight_bytes + sizes.plan.kv_bytes + sizes.plan.scratch_bytes);
    assert_true(sizes.plan.total_bytes <= sizes.plan.available_bytes);
}

static void plan_keeps_the_default_pool_to_a_quarter_of_memory(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.max_concurrent = 64, .memory_fraction = 1.0};
    assert_int_equal(dse_budget_plan(*state, &options, machine(64 * MIB), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.n_blocks, 16 * MIB / block_bytes);
    assert_int_equal(sizes.plan.context_length, 1024);
}

static void plan_shrinks_the_default_context_to_what_fits(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.chunk_tokens = 64, .memory_fraction = 1.0, .max_concurrent = 1};
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    uint64_t scratch = sizes.plan.scratch_bytes;
    assert_int_equal(dse_budget_plan(*state, &options, machine(scratch + 7 * block_bytes + 100), &sizes, &error),
                     DSE_OK);
    assert_int_equal(sizes.plan.context_length, 7 * 32);
    assert_int_equal(sizes.n_blocks, 7);
}

static void plan_refusal_names_need_have_and_the_nearest_context(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.chunk_tokens = 64, .memory_fraction = 1.0, .max_concurrent = 1};
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    uint64_t available = sizes.plan.scratch_bytes + 5 * block_bytes;
    options.context_length = 1024;
    assert_int_equal(dse_budget_plan(*state, &options, machine(available), &sizes, &error), DSE_ERR_NO_MEMORY);
    assert_int_equal(error.have, available);
    assert_int_equal(error.need, available + 27 * block_bytes);
    assert_non_null(strstr(error.message, "--ctx-size 160"));
    assert_non_null(strstr(error.message, "cgroup limit"));
    /* what it proposes does fit */
    options.context_length = 160;
    assert_int_equal(dse_budget_plan(*state, &options, machine(available), &sizes, &error), DSE_OK);
    options.context_length = 0;
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000), &sizes, &error), DSE_ERR_NO_MEMORY);
    assert_true(error.need > error.have);
}

static void plan_takes_an_explicit_pool_or_says_what_it_lacks(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.kv_bytes = 10 * block_bytes + 5};
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.n_blocks, 10);
    assert_int_equal(sizes.plan.context_length, 320); /* 0: what the pool holds */
    options.context_length = 512;
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_ERR_NO_MEMORY);
    assert_string_equal(error.file, "kv_bytes");
    options.context_length = 0;
    options.kv_bytes = 5;
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_ERR_NO_MEMORY);
    options.kv_bytes = UINT64_MAX;
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_ERR_NO_MEMORY);
    options.kv_bytes = 2000 * MIB;
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_ERR_NO_MEMORY);
}

/* The same model, its weights mapped from a pack cache. */
static struct dse_model *open_mapped(char folder[64], uint64_t *mapped)
{
    struct dse_model_options options = {.n_threads = 1, .pack_cache = folder};
    struct dse_error error;
    struct dse_engine_sizes sizes;
    memcpy(folder, "/tmp/dse-test-plan-XXXXXX", sizeof "/tmp/dse-test-plan-XXXXXX");
    assert_non_null(mkdtemp(folder));
    struct dse_model *model = open_reference_as("llama_linear", options);
    assert_int_equal(dse_budget_plan(model, NULL, machine(1000 * MIB), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.plan.resident_weight_bytes, 0);
    *mapped = sizes.plan.mapped_weight_bytes;
    assert_true(*mapped > 10 * block_bytes);
    assert_int_equal(sizes.plan.total_bytes, *mapped + sizes.plan.kv_bytes + sizes.plan.scratch_bytes);
    return model;
}

static void plan_leaves_mapped_weights_their_memory_unless_told_otherwise(void **state)
{
    (void)state;
    char folder[64], command[96];
    uint64_t mapped;
    struct dse_model *model = open_mapped(folder, &mapped);
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.chunk_tokens = 64, .memory_fraction = 1.0, .max_concurrent = 1};
    assert_int_equal(dse_budget_plan(model, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    const uint64_t scratch = sizes.plan.scratch_bytes;

    /* by default what is beside them */
    uint64_t available = mapped + scratch + 7 * block_bytes + 100;
    assert_true(available / 4 < scratch + 7 * block_bytes);
    assert_int_equal(dse_budget_plan(model, &options, machine(available), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.plan.context_length, 7 * 32);
    assert_int_equal(sizes.n_blocks, 7);
    assert_true(sizes.plan.total_bytes <= sizes.plan.available_bytes);

    /* an explicit context may not take their place: every step would read them from the file again */
    options.context_length = 1024;
    available = mapped + scratch + 32 * block_bytes;
    assert_int_equal(dse_budget_plan(model, &options, machine(available), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.n_blocks, 32);
    assert_int_equal(sizes.plan.mapped_weight_bytes, mapped);
    assert_int_equal(sizes.plan.total_bytes, sizes.plan.available_bytes);
    assert_int_equal(dse_budget_plan(model, &options, machine(available - 1), &sizes, &error), DSE_ERR_NO_MEMORY);
    assert_int_equal(error.need, available);
    assert_int_equal(error.have, available - 1);
    assert_non_null(strstr(error.message, "weights, KV cache and scratch"));
    assert_non_null(strstr(error.message, "--ctx-size 992"));

    /* weights larger than memory */
    options.context_length = 0;
    assert_int_equal(dse_budget_plan(model, &options, machine(mapped - 1), &sizes, &error), DSE_ERR_NO_MEMORY);
    assert_true(error.need > error.have);
    assert_int_equal(error.have, mapped - 1);

    /* experts need not fit, and leave a part of the memory by default */
    model->weights.storage_bytes = mapped + 1000 * MIB;
    model->weights.expert_bytes = model->weights.storage_bytes - 5 * block_bytes;
    available = 5 * block_bytes + 4 * (scratch + 3 * block_bytes);
    assert_int_equal(dse_budget_plan(model, &options, machine(available), &sizes, &error), DSE_OK);
    assert_true(sizes.plan.context_length >= 3 * 32);
    assert_true(sizes.plan.total_bytes > sizes.plan.available_bytes);
    dse_model_unref(model);
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* deepseek_v2: 4 layers of 4 heads, of each 32 rows of 64 columns in bf16; scratch for each thread: keys and
 * values of a split, results of all rows. All of it is in the plan, and none of it without. */
static void plan_counts_what_fast_numerics_take(void **state)
{
    (void)state;
    struct dse_engine_sizes exact, fast;
    struct dse_error error;
    struct dse_engine_options options = {.context_length = 256, .max_concurrent = 1, .memory_fraction = 1.0};
    struct dse_model *models[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        const struct dse_model_options open = {.n_threads = 2,
                                               .numerics = i == 0 ? DSE_NUMERICS_EXACT : DSE_NUMERICS_FAST};
        models[i] = open_reference_as("deepseek_v2", open);
        assert_int_equal(dse_budget_plan(models[i], &options, machine(1000 * MIB), i == 0 ? &exact : &fast, &error),
                         DSE_OK);
    }
    const uint64_t scratch = fast.plan.scratch_bytes - exact.plan.scratch_bytes;
    assert_true(exact.plan.resident_weight_bytes > 0);
    assert_int_equal(dse_expansion_bytes(models[1]->file, false), 4 * 4 * 32 * 64 * 2);
    /* weights are in the plan as one area, where experts begin at a multiple of 4 MiB */
    assert_int_equal(fast.plan.resident_weight_bytes, models[1]->weights.storage_bytes);
    assert_true(fast.plan.resident_weight_bytes >= exact.plan.resident_weight_bytes);
    assert_true(models[1]->weights.layers[3].k_up.head.data != NULL);
    assert_true(models[0]->weights.layers[3].k_up.head.data == NULL);
    /* of two threads at least: keys [48][272], values [256][48], results [513][32], all f32 */
    assert_true(scratch >= 2 * 4 * (48 * 272 + 256 * 48 + 513 * 32) && scratch < 2 * MIB);
    assert_int_equal(fast.plan.total_bytes,
                     fast.plan.resident_weight_bytes + fast.plan.kv_bytes + fast.plan.scratch_bytes);
    /* what the plan said is what is taken */
    assert_int_equal(dse_model_reserve(models[1], fast.max_rows, &error), DSE_OK);
    dse_model_unref(models[0]);
    dse_model_unref(models[1]);
}

static void plan_of_a_machine_without_any_limit_does_not_overflow(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.memory_fraction = 1.0};
    assert_int_equal(dse_budget_plan(*state, &options, machine(UINT64_MAX), &sizes, &error), DSE_OK);
    assert_int_equal(sizes.plan.context_length, 1024);
    assert_true(sizes.plan.available_bytes == UINT64_MAX);
}

static void check_of_eval_and_bench_counts_cache_and_scratch(void **state)
{
    struct dse_engine_sizes sizes;
    struct dse_error error;
    struct dse_engine_options options = {.chunk_tokens = 64, .max_concurrent = 1};
    assert_int_equal(dse_budget_plan(*state, &options, machine(1000 * MIB), &sizes, &error), DSE_OK);
    const uint64_t need = sizes.plan.scratch_bytes + 3 * block_bytes;
    const int rows = sizes.max_rows, out = sizes.max_out;
    assert_int_equal(dse_budget_check(*state, rows, out, 3, machine(need), "the test", &error), DSE_OK);
    assert_int_equal(dse_budget_check(*state, rows, out, 3, machine(need - 1), "the test", &error), DSE_ERR_NO_MEMORY);
    assert_int_equal(error.need, need);
    assert_int_equal(error.have, need - 1);
    assert_non_null(strstr(error.message, "the test"));
    assert_int_equal(dse_budget_check(*state, rows, out, SIZE_MAX, machine(need), "the test", &error),
                     DSE_ERR_NO_MEMORY);
    int32_t ids[2] = {3, 4};
    float *logits = calloc(2 * 512, sizeof *logits);
    assert_int_equal(dse_eval_logits(*state, ids, 2, DSE_MAX_CHUNK_TOKENS + 1, logits, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "chunk_tokens");
    assert_int_equal(dse_eval_logits(*state, ids, 2, DSE_MAX_CHUNK_TOKENS, logits, &error), DSE_OK);
    free(logits);
}

/* From the largest machine that refuses a row down to none: what is proposed fits, and a step more of it does not. */
static void refusal_of_a_benchmark_names_the_nearest_row_that_fits(void **state)
{
    static const struct {
        struct dse_bench_spec spec;
        const char *first; /* the setting that is lowered alone on a machine that is a little too small */
    } rows[] = {
        {{.n_prompt = 100, .n_depth = 500, .n_seqs = 7}, "--n-seqs"},
        {{.n_gen = 100, .n_depth = 500, .n_seqs = 1}, "--n-depth"},
        {{.n_gen = 500, .n_seqs = 1}, "--n-gen"},
        {{.n_prompt = 500, .n_seqs = 1}, "--n-prompt"},
        {{.n_prompt = 1, .n_seqs = 1}, "--chunk-tokens"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct dse_bench_sizes sizes;
        struct dse_error error;
        assert_int_equal(dse_budget_bench(*state, &rows[r].spec, 64, machine(1), &sizes, &error), DSE_ERR_NO_MEMORY);
        assert_non_null(strstr(error.message, "no smaller one fits"));
        const uint64_t need = (uint64_t)error.need;
        assert_int_equal(dse_budget_bench(*state, &rows[r].spec, 64, machine(need), &sizes, &error), DSE_OK);
        for (uint64_t have = need - 1; have > need / 64; have -= have / 5 + 1) {
            struct dse_bench_spec spec = rows[r].spec;
            int chunk = 64, *last = NULL;
            assert_int_equal(dse_budget_bench(*state, &spec, chunk, machine(have), &sizes, &error), DSE_ERR_NO_MEMORY);
            const char *use = strstr(error.message, "use");
            if (strstr(error.message, "no smaller one fits") != NULL) continue;
            assert_non_null(use);
            if (have == need - 1) assert_true(strncmp(use + 4, rows[r].first, strlen(rows[r].first)) == 0);
            struct {
                const char *flag;
                int *value;
            } settings[] = {{" --n-seqs ", &spec.n_seqs},
                            {" --n-depth ", &spec.n_depth},
                            {" --n-gen ", &spec.n_gen},
                            {" --n-prompt ", &spec.n_prompt},
                            {" --chunk-tokens ", &chunk}};
            for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
                const char *at = strstr(use, settings[i].flag);
                if (at == NULL) continue;
                last = settings[i].value;
                *last = (int)strtol(at + strlen(settings[i].flag), NULL, 10);
            }
            assert_non_null(last);
            assert_int_equal(dse_budget_bench(*state, &spec, chunk, machine(have), &sizes, &error), DSE_OK);
            ++*last;
            assert_int_equal(dse_budget_bench(*state, &spec, chunk, machine(have), &sizes, &error), DSE_ERR_NO_MEMORY);
        }
    }
}

static void plan_refuses_options_out_of_range_by_name(void **state)
{
    const struct {
        struct dse_engine_options options;
        const char *field;
    } cases[] = {
        {{.context_length = -1}, "context_length"},
        {{.context_length = 1025}, "context_length"},
        {{.max_concurrent = -1}, "max_concurrent"},
        {{.max_concurrent = 100000}, "max_concurrent"},
        {{.max_queue = -1}, "max_queue"},
        {{.chunk_tokens = -5}, "chunk_tokens"},
        {{.chunk_tokens = INT32_MAX}, "chunk_tokens"},
        {{.memory_fraction = -0.5}, "memory_fraction"},
        {{.memory_fraction = 1.5}, "memory_fraction"},
        {{.memory_fraction = __builtin_nan("")}, "memory_fraction"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dse_engine_sizes sizes;
        struct dse_error error;
        assert_int_equal(dse_budget_plan(*state, &cases[i].options, machine(1000 * MIB), &sizes, &error),
                         DSE_ERR_INVALID);
        assert_string_equal(error.file, cases[i].field);
    }
}

static void engine_refuses_to_start_when_the_plan_does_not_fit(void **state)
{
    struct dse_engine *engine = NULL;
    struct dse_error error;
    struct dse_engine_options options = {.memory_fraction = 1e-7};
    assert_int_equal(dse_engine_create(*state, &options, &engine, &error), DSE_ERR_NO_MEMORY);
    assert_null(engine);
    assert_true(error.need > error.have);
}

static void engine_reports_its_plan_and_model(void **state)
{
    struct dse_memory_plan plan, again;
    struct dse_error error;
    struct dse_engine_options options = {.context_length = 128, .max_concurrent = 2, .warmup = true};
    assert_int_equal(dse_engine_plan(*state, &options, &plan, &error), DSE_OK);
    struct dse_engine *engine = create_engine(*state, options);
    dse_engine_get_plan(engine, &again);
    assert_int_equal(again.kv_bytes, plan.kv_bytes);
    assert_int_equal(again.context_length, 128);
    assert_ptr_equal(dse_engine_model(engine), *state);
    dse_engine_free(engine);
}

static void bench_times_prefill_and_decode(void **state)
{
    struct dse_error error;
    double seconds = -1;
    struct dse_bench_spec prefill = {.n_prompt = 100, .n_seqs = 2, .n_depth = 64};
    struct dse_bench_spec decode = {.n_gen = 20, .n_seqs = 40, .n_depth = 33};
    assert_int_equal(dse_bench_run(*state, &prefill, 64, &seconds, &error), DSE_OK);
    assert_true(seconds > 0 && seconds < 60);
    assert_int_equal(dse_bench_run(*state, &decode, 0, &seconds, &error), DSE_OK);
    assert_true(seconds > 0 && seconds < 60);
    struct dse_bench_spec bad = {.n_prompt = 1000, .n_seqs = 1, .n_depth = 100};
    assert_int_equal(dse_bench_run(*state, &bad, 0, &seconds, &error), DSE_ERR_TOO_LONG);
    bad = (struct dse_bench_spec){.n_prompt = 10, .n_seqs = 0};
    assert_int_equal(dse_bench_run(*state, &bad, 0, &seconds, &error), DSE_ERR_INVALID);
    bad = (struct dse_bench_spec){.n_prompt = -10, .n_gen = 3, .n_seqs = 1};
    assert_int_equal(dse_bench_run(*state, &bad, 0, &seconds, &error), DSE_ERR_INVALID);
}

static void assert_small_halves(const uint8_t *data, int n)
{
    for (int i = 0; i < n; i++) {
        const float value = dse_f16_to_f32((uint16_t)(data[2 * i] | data[2 * i + 1] << 8));
        assert_true(fabsf(value) > 0 && fabsf(value) < 0.01f);
    }
}

/* A q8_0 row of a V3.2 model: blocks of a scale and 32 values, the rope part, and behind the rows the indexer's keys. */
static void made_up_keys_of_a_benchmark_are_small_numbers_of_their_type(void **state)
{
    struct dse_kv_layout layout = {.type = DSE_KV_Q8_0, .n_layers = 2, .latent = 512, .rope = 64, .index_dim = 128};
    struct dse_kv_pool pool;
    struct dse_error error;
    int values[256] = {0}, n_different = 0;
    (void)state;
    dse_kv_layout_init(&layout);
    assert_int_equal(dse_kv_pool_init(&pool, &layout, 3, &error), DSE_OK);
    dse_bench_fill_pool(&pool);
    for (int layer = 0; layer < 3 * layout.n_layers; layer++) {
        const uint8_t *data = pool.memory + (size_t)layer * layout.layer_bytes;
        for (int token = 0; token < DSE_KV_BLOCK_TOKENS; token++) {
            const uint8_t *block = data + (size_t)token * layout.row_bytes;
            for (int b = 0; b < layout.latent / DSE_KV_Q8_BLOCK; b++, block += DSE_KV_Q8_BLOCK_BYTES) {
                assert_small_halves(block, 1);
                for (int i = 2; i < DSE_KV_Q8_BLOCK_BYTES; i++)
                    n_different += values[block[i]]++ == 0;
            }
            assert_small_halves(block, layout.rope);
        }
        assert_small_halves(data + layout.index_offset, layout.index_dim * DSE_KV_BLOCK_TOKENS);
    }
    assert_int_equal(values[0x80], 0); /* -128: no cache stores it */
    assert_true(n_different > 100);
    dse_kv_pool_deinit(&pool);
}

static int open_model(void **state)
{
    *state = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    return 0;
}

static int close_model(void **state)
{
    dse_model_unref(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_gives_every_sequence_a_context_when_memory_is_plenty),
        cmocka_unit_test(plan_keeps_the_default_pool_to_a_quarter_of_memory),
        cmocka_unit_test(plan_shrinks_the_default_context_to_what_fits),
        cmocka_unit_test(plan_refusal_names_need_have_and_the_nearest_context),
        cmocka_unit_test(plan_takes_an_explicit_pool_or_says_what_it_lacks),
        cmocka_unit_test(plan_leaves_mapped_weights_their_memory_unless_told_otherwise),
        cmocka_unit_test(plan_of_a_machine_without_any_limit_does_not_overflow),
        cmocka_unit_test(plan_counts_what_fast_numerics_take),
        cmocka_unit_test(check_of_eval_and_bench_counts_cache_and_scratch),
        cmocka_unit_test(refusal_of_a_benchmark_names_the_nearest_row_that_fits),
        cmocka_unit_test(plan_refuses_options_out_of_range_by_name),
        cmocka_unit_test(engine_refuses_to_start_when_the_plan_does_not_fit),
        cmocka_unit_test(engine_reports_its_plan_and_model),
        cmocka_unit_test(bench_times_prefill_and_decode),
        cmocka_unit_test(made_up_keys_of_a_benchmark_are_small_numbers_of_their_type),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

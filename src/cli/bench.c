/* `bench`: prefill and decode rates by depth and batch, beside what the CPU and its memory allow at most. */
#include <dse/dse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/bench_kernel.h"
#include "cli/json_out.h"
#include "cli/limits.h"
#include "cli/model_arguments.h"
#include "cli/verbs.h"

#define MAX_REPEATS 1000

struct row {
    struct dse_bench_spec spec;
    double median, slowest, fastest; /* tokens per second over all sequences */
    double of_limit;                 /* median, as a share of what is possible at most */
};

struct bench {
    const struct dse_options *options;
    struct dse_model *model;
    struct dse_model_info info;
    double bandwidth, macs; /* at most: bytes read and 8-bit multiply-adds per second */
    const char *format;
    json_t *rows; /* json format: collected */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens per second at most: each weight that a token uses is multiplied once for it, and read once for all rows of a
 * pass (of a whole prompt, if it were one pass); keys and values are read too. Their products, and experts that only
 * some rows use, are left out: no program can be faster than this. */
static double limit(const struct bench *bench, const struct dse_bench_spec *spec)
{
    const struct dse_model_info *info = &bench->info;
    const double active = (double)info->n_active_parameters, head = (double)info->n_vocab * info->n_embd;
    const double weight_bytes = (double)info->file_bytes * active / (double)info->n_parameters;
    const double rows = (double)spec->n_seqs * (spec->n_prompt > 0 ? spec->n_prompt : 1);
    const double macs = rows * (active - head) + spec->n_seqs * head; /* a prompt's last row alone needs the head */
    const double bytes = weight_bytes + (double)spec->n_seqs * (double)info->kv_bytes_per_token * spec->n_depth;
    const double memory = bytes / bench->bandwidth, arithmetic = macs / bench->macs;
    return rows / (memory > arithmetic ? memory : arithmetic);
}

static enum dse_status measure(struct bench *bench, struct row *row, struct dse_error *err)
{
    static double rates[MAX_REPEATS];
    int repeats = (int)dse_opt_int(bench->options, DSE_OPT_REPEAT);
    double tokens = (double)row->spec.n_seqs * (row->spec.n_prompt > 0 ? row->spec.n_prompt : row->spec.n_gen);
    /* One run before the first that counts: pages, caches and clock settle. */
    for (int i = -1; i < repeats; i++) {
        double seconds;
        enum dse_status status = dse_bench_run(bench->model, &row->spec,
                                               (int)dse_opt_int(bench->options, DSE_OPT_CHUNK), &seconds, err);
        if (status != DSE_OK) return status;
        if (i >= 0) rates[i] = seconds > 0 ? tokens / seconds : 0;
    }
    qsort(rates, (size_t)repeats, sizeof *rates, compare);
    row->median = repeats % 2 ? rates[repeats / 2] : (rates[repeats / 2 - 1] + rates[repeats / 2]) / 2;
    row->slowest = rates[0];
    row->fastest = rates[repeats - 1];
    row->of_limit = row->median / limit(bench, &row->spec);
    return DSE_OK;
}

static const char *numerics_name(enum dse_numerics numerics)
{
    return numerics == DSE_NUMERICS_FAST ? "fast" : "exact";
}

static json_t *row_json(const struct bench *bench, const struct row *row)
{
    char features[64];
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    return json_pack("{s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:s, s:s, s:s, s:s, s:i, s:f, s:f}", "n_prompt",
                     row->spec.n_prompt, "n_gen", row->spec.n_gen, "n_depth", row->spec.n_depth, "n_seqs",
                     row->spec.n_seqs, "numerics", numerics_name(row->spec.numerics), "tokens_per_second", row->median,
                     "slowest", row->slowest, "fastest", row->fastest, "of_limit", row->of_limit, "model",
                     bench->info.name, "quantization", bench->info.quantization, "cpu", dse_cpu_model(), "cpu_features",
                     features, "threads", bench->info.n_threads, "bandwidth_bytes_per_second", bench->bandwidth,
                     "macs_per_second", bench->macs);
}

static void print_head(const struct bench *bench)
{
    char features[64];
    dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
    if (strcmp(bench->format, "md") == 0) {
        printf("model: %s %s %s, %.1f M parameters\ncpu: %s (%s), %d threads, %.1f GB/s read, "
               "%.0f G 8-bit multiply-adds/s\n\n",
               bench->info.name, bench->info.arch, bench->info.quantization, (double)bench->info.n_parameters * 1e-6,
               dse_cpu_model(), features, bench->info.n_threads, bench->bandwidth * 1e-9, bench->macs * 1e-9);
        printf("| test | n_prompt | n_gen | depth | seqs | numerics | tok/s | slowest | fastest | of limit "
               "|\n|---|---|---|---|---|---|---|---|---|---|\n");
    } else if (strcmp(bench->format, "csv") == 0) {
        printf("n_prompt,n_gen,n_depth,n_seqs,numerics,tokens_per_second,slowest,fastest,of_limit,model,quantization,"
               "cpu,cpu_features,threads,bandwidth_bytes_per_second,macs_per_second\n");
    }
}

static enum dse_status print_row(struct bench *bench, const struct row *row, struct dse_error *err)
{
    const struct dse_bench_spec *s = &row->spec;
    if (strcmp(bench->format, "jsonl") == 0) {
        enum dse_status status = dse_print_json_line(row_json(bench, row), err);
        fflush(stdout);
        return status;
    }
    if (strcmp(bench->format, "json") == 0)
        return json_array_append_new(bench->rows, row_json(bench, row)) == 0 ? DSE_OK
                                                                             : dse_fail_memory(err, 64, "a row");
    if (strcmp(bench->format, "csv") == 0) {
        char features[64];
        dse_cpu_feature_names(dse_cpu_features(), features, sizeof features);
        printf("%d,%d,%d,%d,%s,%.2f,%.2f,%.2f,%.3f,\"%s\",%s,\"%s\",\"%s\",%d,%.0f,%.0f\n", s->n_prompt, s->n_gen,
               s->n_depth, s->n_seqs, numerics_name(s->numerics), row->median, row->slowest, row->fastest,
               row->of_limit, bench->info.name, bench->info.quantization, dse_cpu_model(), features,
               bench->info.n_threads, bench->bandwidth, bench->macs);
    } else {
        printf("| %s%d | %d | %d | %d | %d | %s | %.1f | %.1f | %.1f | %.0f %% |\n", s->n_prompt > 0 ? "pp" : "tg",
               s->n_prompt > 0 ? s->n_prompt : s->n_gen, s->n_prompt, s->n_gen, s->n_depth, s->n_seqs,
               numerics_name(s->numerics), row->median, row->slowest, row->fastest, 100 * row->of_limit);
    }
    fflush(stdout);
    return DSE_OK;
}

typedef enum dse_status visit_fn(struct bench *bench, const struct dse_bench_spec *spec, struct dse_error *err);

static enum dse_status check_test(struct bench *bench, const struct dse_bench_spec *spec, struct dse_error *err)
{
    return dse_bench_check(bench->model, spec, (int)dse_opt_int(bench->options, DSE_OPT_CHUNK), err);
}

static enum dse_status run_test(struct bench *bench, const struct dse_bench_spec *spec, struct dse_error *err)
{
    struct row row = {.spec = *spec};
    enum dse_status status = measure(bench, &row, err);
    return status == DSE_OK ? print_row(bench, &row, err) : status;
}

/* A test as --numerics asks; where the model has only exact ones, once with those. */
static enum dse_status each_numerics(struct bench *bench, struct dse_bench_spec *spec, visit_fn *visit,
                                     struct dse_error *err)
{
    const char *asked = dse_opt_text(bench->options, DSE_OPT_BENCH_NUMERICS);
    const bool has_fast = bench->info.numerics == DSE_NUMERICS_FAST;
    enum dse_status status = DSE_OK;
    if (!has_fast || strcmp(asked, "both") == 0) status = visit(bench, spec, err);
    if (!has_fast || status != DSE_OK) return status;
    spec->numerics = DSE_NUMERICS_FAST;
    return visit(bench, spec, err);
}

/* All combinations of depth, batch, and the lengths of one kind of test; a length of 0 skips it. */
static enum dse_status each_length(struct bench *bench, enum dse_option lengths, visit_fn *visit, struct dse_error *err)
{
    const struct dse_option_value *depth = &bench->options->values[DSE_OPT_BENCH_DEPTH];
    const struct dse_option_value *seqs = &bench->options->values[DSE_OPT_BENCH_SEQS];
    const struct dse_option_value *length = &bench->options->values[lengths];
    for (int d = 0; d < depth->count; d++) {
        for (int b = 0; b < seqs->count; b++) {
            for (int l = 0; l < length->count; l++) {
                struct dse_bench_spec spec = {.n_depth = (int)depth->ints[d], .n_seqs = (int)seqs->ints[b]};
                if (length->ints[l] == 0) continue;
                *(lengths == DSE_OPT_BENCH_PROMPT ? &spec.n_prompt : &spec.n_gen) = (int)length->ints[l];
                enum dse_status status = each_numerics(bench, &spec, visit, err);
                if (status != DSE_OK) return status;
            }
        }
    }
    return DSE_OK;
}

static enum dse_status each_test(struct bench *bench, visit_fn *visit, struct dse_error *err)
{
    enum dse_status status = each_length(bench, DSE_OPT_BENCH_PROMPT, visit, err);
    return status == DSE_OK ? each_length(bench, DSE_OPT_BENCH_GEN, visit, err) : status;
}

static enum dse_status measure_limits(struct bench *bench, struct dse_error *err)
{
    struct dse_pool *pool;
    enum dse_status status = dse_pool_create(bench->info.n_threads, &pool, err);
    if (status != DSE_OK) return status;
    status = dse_measure_bandwidth(pool, &bench->bandwidth, err);
    bench->macs = dse_measure_macs(pool);
    dse_pool_free(pool);
    return status;
}

enum dse_status dse_verb_bench(const struct dse_options *options, struct dse_error *err)
{
    struct bench bench = {.options = options, .format = dse_opt_text(options, DSE_OPT_OUTPUT_FORMAT)};
    const char *name = dse_cli_model_name(options);
    if (name != NULL && strcmp(name, "kernel") == 0) return dse_bench_kernel(options, err);
    enum dse_status status = dse_cli_model_open(options, name, &bench.model, err);
    if (status != DSE_OK) return status;
    dse_model_get_info(bench.model, &bench.info);
    status = each_test(&bench, check_test, err); /* what is refused is refused before there is a table */
    if (status == DSE_OK) status = measure_limits(&bench, err);
    bench.rows = json_array();
    if (status == DSE_OK) {
        print_head(&bench);
        status = each_test(&bench, run_test, err);
    }
    if (status == DSE_OK && strcmp(bench.format, "json") == 0) status = dse_print_json(json_incref(bench.rows), err);
    json_decref(bench.rows);
    dse_model_unref(bench.model);
    return status;
}

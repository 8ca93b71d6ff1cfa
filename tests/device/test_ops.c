/* The CPU device's other ops on a made-up model: against f64, and the same bits whatever the batch and the threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_data.h"

enum { ROWS = 70 };

struct bench {
    struct fake_model model;
    struct dse_device *device;
    struct dse_device_weights weights;
    int q, kv; /* columns */
};

static void bench_init(struct bench *bench, const struct fake_shape *shape, int threads, int max_rows)
{
    struct dse_error err;
    fake_model_init(&bench->model, shape, "made up");
    assert_int_equal(dse_device_open("auto", threads, &bench->device, &err), DSE_OK);
    assert_int_equal(bench->device->ops->load(bench->device, &bench->model.file, false, NULL, &bench->weights, &err),
                     DSE_OK);
    assert_int_equal(bench->device->ops->reserve(bench->device, &bench->model.file.config, max_rows, &err), DSE_OK);
    bench->q = shape->n_heads * shape->head_dim;
    bench->kv = shape->n_kv_heads * shape->head_dim;
}

static void bench_deinit(struct bench *bench)
{
    bench->device->ops->unload(bench->device, &bench->weights);
    dse_device_close(bench->device);
    fake_model_deinit(&bench->model);
}

static float *decoded(const struct dse_tensor *tensor)
{
    size_t n = tensor->shape[0] * tensor->shape[1];
    float *out = malloc(n * sizeof *out);
    assert_non_null(out);
    dse_type_decode(tensor->type, tensor->data, out, n);
    return out;
}

/* y = W x (+ bias), all in f64 */
static void multiply(const struct dse_tensor *w, const struct dse_tensor *bias, const double *x, double *y)
{
    float *weights = decoded(w);
    for (size_t r = 0; r < w->shape[0]; r++) {
        y[r] = bias != NULL ? (double)((const float *)bias->data)[r] : 0.0;
        for (size_t k = 0; k < w->shape[1]; k++)
            y[r] += (double)weights[r * w->shape[1] + k] * x[k];
    }
    free(weights);
}

static void norm(const float *x, const struct dse_tensor *w, size_t n, double *out)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < n; i++)
        out[i] = (double)x[i] / sqrt(sum / (double)n + 1e-5) * (double)((const float *)w->data)[i];
}

/* Relative to the largest value of the vector: s8 activations carry half a percent of error per element. */
static void assert_close(const float *got, const double *want, size_t n, double tolerance, const char *what)
{
    double scale = 0;
    for (size_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * scale))
            fail_msg("%s: element %zu is %g instead of %g", what, i, (double)got[i], want[i]);
}

static const struct {
    enum dse_type type;
    double tolerance;
} types[] = {{DSE_TYPE_F32, 2e-6}, {DSE_TYPE_F16, 2e-6}, {DSE_TYPE_Q8_0, 0.02}, {DSE_TYPE_Q4_1, 0.02}};
enum { N_TYPES = sizeof types / sizeof types[0] };

static void products_are_close_to_f64(void **state)
{
    for (int t = 0; t < N_TYPES; t++) {
        struct fake_shape shape = small_shape;
        struct bench bench;
        shape.type = types[t].type;
        shape.bias = t % 2 == 0;
        bench_init(&bench, &shape, 2, ROWS);
        const struct dse_device_ops *ops = bench.device->ops;
        const struct dse_config *config = &bench.model.file.config;
        const struct dse_layer_tensors *tensors = &bench.model.layers[1];
        const struct dse_layer *layer = &bench.weights.layers[1];
        struct random random = {11};
        static float x[ROWS * 64], q[ROWS * 64], k[ROWS * 32], v[ROWS * 32], h[ROWS * 96], y[ROWS * 64],
            logits[ROWS * 100];
        random_fill(&random, x, ROWS * 64, -2, 2);
        for (int n = 1; n <= ROWS; n += 23) {
            int m = n - 1;
            double in[96], want[128], up[96];
            ops->qkv(bench.device, config, layer, NULL, x, n, q, k, v);
            norm(x + m * 64, tensors->attn_norm, 64, in);
            multiply(tensors->q, tensors->q_bias, in, want);
            assert_close(q + m * 64, want, 64, types[t].tolerance, "q");
            multiply(tensors->k, tensors->k_bias, in, want);
            assert_close(k + m * 32, want, 32, types[t].tolerance, "k");
            multiply(tensors->v, tensors->v_bias, in, want);
            assert_close(v + m * 32, want, 32, types[t].tolerance, "v");

            ops->ffn_up(bench.device, config, layer, NULL, x, n, h);
            norm(x + m * 64, tensors->ffn_norm, 64, in);
            multiply(tensors->gate, NULL, in, want);
            multiply(tensors->up, NULL, in, up);
            for (int i = 0; i < 96; i++)
                want[i] = want[i] / (1 + exp(-want[i])) * up[i];
            assert_close(h + m * 96, want, 96, 3 * types[t].tolerance, "h");

            memcpy(y, x, sizeof y);
            ops->project_add(bench.device, &layer->down, NULL, DSE_SITE_DOWN, h, n, y);
            for (int i = 0; i < 96; i++)
                in[i] = (double)h[m * 96 + i];
            multiply(tensors->down, NULL, in, want);
            for (int i = 0; i < 64; i++)
                want[i] += (double)x[m * 64 + i];
            assert_close(y + m * 64, want, 64, types[t].tolerance, "down");
            if (n < ROWS) assert_memory_equal(y + n * 64, x + n * 64, sizeof(float) * 64); /* other rows untouched */

            int32_t index[2] = {m, 0};
            ops->logits(bench.device, &bench.weights, bench.weights.output_norm, x, index, 2, logits);
            norm(x + m * 64, bench.model.file.output_norm, 64, in);
            multiply(bench.model.file.output, NULL, in, want);
            assert_close(logits, want, 100, types[t].tolerance, "logits");
            norm(x, bench.model.file.output_norm, 64, in);
            multiply(bench.model.file.output, NULL, in, want);
            assert_close(logits + 100, want, 100, types[t].tolerance, "logits of the second row");
        }
        bench_deinit(&bench);
    }
}

/* The widest input of the made-up model is that of the prediction layer, 2 * 64 columns. */
static void the_input_of_a_prediction_layer_is_close_to_f64_and_the_same_in_any_batch(void **state)
{
    static float x[ROWS * 64], y[ROWS * 64], alone[ROWS * 64], joined[ROWS * 128];
    int32_t tokens[ROWS];
    for (int m = 0; m < ROWS; m++)
        tokens[m] = m * 37 % 100;
    for (int t = 0; t < N_TYPES; t++) {
        struct fake_shape shape = small_shape;
        struct bench bench;
        struct random random = {13};
        shape.type = types[t].type;
        shape.mtp = true;
        random_fill(&random, x, ROWS * 64, -2, 2);
        for (int threads = 1; threads <= 3; threads++) {
            bench_init(&bench, &shape, threads, ROWS);
            const struct dse_model_file *file = &bench.model.file;
            const struct dse_layer_tensors *tensors = &file->layers[file->config.n_layers];
            const struct dse_layer *layer = &bench.weights.layers[file->config.n_layers];
            float *table = decoded(file->token_embd), hidden[64];
            for (int n = 1; n <= ROWS; n += 23) {
                const struct dse_rows rows = {.n_rows = n, .tokens = tokens};
                memcpy(y, x, sizeof y);
                bench.device->ops->mtp_input(bench.device, &bench.weights, layer, &rows, joined, y);
                if (n < ROWS) assert_memory_equal(y + n * 64, x + n * 64, sizeof(float) * 64); /* untouched */
                for (int m = 0; m < n; m++) {
                    double in[128], normed[64], want[64];
                    norm(table + tokens[m] * 64, tensors->mtp.embd_norm, 64, in);
                    norm(x + m * 64, file->output_norm, 64, normed);
                    for (int i = 0; i < 64; i++)
                        hidden[i] = (float)normed[i];
                    norm(hidden, tensors->mtp.hidden_norm, 64, in + 64);
                    multiply(tensors->mtp.project, NULL, in, want);
                    assert_close(y + m * 64, want, 64, types[t].tolerance, "input of the prediction layer");
                }
                if (threads == 1 && n == ROWS) memcpy(alone, y, sizeof y);
                if (threads > 1) assert_same_bits(y, alone, (size_t)n * 64, "input of the prediction layer");
            }
            free(table);
            bench_deinit(&bench);
        }
    }
}

static void embed_decodes_rows_and_gives_zeros_beyond_the_table(void **state)
{
    struct bench bench;
    bench_init(&bench, &small_shape, 2, ROWS);
    float *table = decoded(bench.model.file.token_embd);
    int32_t tokens[ROWS];
    static float x[ROWS * 64];
    for (int m = 0; m < ROWS; m++)
        tokens[m] = (m * 37) % 100;
    tokens[3] = 100;
    tokens[4] = -1;
    for (int n = 1; n <= ROWS; n += 69) {
        struct dse_rows rows = {.n_rows = n, .tokens = tokens};
        bench.device->ops->embed(bench.device, bench.weights.token_embd, &rows, x);
        for (int m = 0; m < n; m++) {
            if (m == 3 || m == 4) continue;
            assert_same_bits(x + m * 64, table + tokens[m] * 64, 64, "embedding");
        }
    }
    for (int i = 0; i < 128; i++)
        assert_true(x[3 * 64 + i] == 0.0f);
    free(table);
    bench_deinit(&bench);
}

/* One pass through the products, so that any dependence on the batch shows. */
static void pass(struct bench *bench, const float *x, int n, float *out)
{
    const struct dse_device_ops *ops = bench->device->ops;
    const struct dse_config *config = &bench->model.file.config;
    const struct dse_layer *layer = &bench->weights.layers[0];
    static float q[ROWS * 64], k[ROWS * 32], v[ROWS * 32], h[ROWS * 96];
    static int32_t index[ROWS];
    float *y = out, *logits = out + n * 64;
    memcpy(y, x, (size_t)n * 64 * sizeof *x);
    ops->qkv(bench->device, config, layer, NULL, y, n, q, k, v);
    ops->project_add(bench->device, &layer->o, NULL, DSE_SITE_O, q, n, y);
    ops->ffn_up(bench->device, config, layer, NULL, y, n, h);
    ops->project_add(bench->device, &layer->down, NULL, DSE_SITE_DOWN, h, n, y);
    for (int m = 0; m < n; m++) {
        index[m] = n - 1 - m;
        memcpy(q + m * 64, y + m * 64, 64 * sizeof *y);
    }
    ops->logits(bench->device, &bench->weights, bench->weights.output_norm, y, index, n, logits);
}

static void products_give_the_same_bits_in_any_batch_and_with_any_threads(void **state)
{
    for (int t = 0; t < N_TYPES; t++) {
        struct fake_shape shape = small_shape;
        shape.type = types[t].type;
        struct random random = {12};
        static float x[ROWS * 64], alone[ROWS * 164], out[ROWS * 164];
        random_fill(&random, x, ROWS * 64, -2, 2);
        struct bench bench;
        bench_init(&bench, &shape, 1, 8); /* logits of more rows than reserved come in parts */
        for (int m = 0; m < ROWS; m++)
            pass(&bench, x + m * 64, 1, alone + m * 164);
        bench_deinit(&bench);
        for (int threads = 1; threads <= 3; threads++) {
            static const int batches[] = {1, 2, 4, 5, 33, ROWS};
            bench_init(&bench, &shape, threads, ROWS);
            for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
                int n = batches[b];
                pass(&bench, x, n, out);
                for (int m = 0; m < n; m++) {
                    assert_same_bits(out + m * 64, alone + m * 164, 64, "hidden");
                    assert_same_bits(out + n * 64 + (n - 1 - m) * 100, alone + m * 164 + 64, 100, "logits");
                }
            }
            bench_deinit(&bench);
        }
    }
}

static void rope_expected(const struct fake_shape *shape, const float *head, const float *weight, int position,
                          double *out)
{
    int d = shape->head_dim, r = shape->rope_dimensions;
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)head[i] * (double)head[i];
    for (int i = 0; i < d; i++)
        out[i] = weight != NULL ? (double)head[i] / sqrt(sum / d + 1e-5) * (double)weight[i] : (double)head[i];
    for (int i = 0; i < r / 2; i++) {
        int a = shape->pairs == DSE_ROPE_HALF ? i : 2 * i, b = shape->pairs == DSE_ROPE_HALF ? i + r / 2 : 2 * i + 1;
        double angle = position * pow(10000.0, -2.0 * i / r), c = cos(angle), s = sin(angle), x = out[a], y = out[b];
        out[a] = x * c - y * s;
        out[b] = y * c + x * s;
    }
}

static void rope_rotates_pairs_and_stores_keys_and_values(void **state)
{
    for (int variant = 0; variant < 8; variant++) {
        struct fake_shape shape = small_shape;
        shape.pairs = variant & 1 ? DSE_ROPE_INTERLEAVED : DSE_ROPE_HALF;
        shape.rope_dimensions = variant & 2 ? 8 : 16;
        shape.qk_norm = variant & 4;
        enum dse_kv_type type = variant & 1 ? DSE_KV_F32 : DSE_KV_F16;
        struct bench bench;
        struct fake_kv kv;
        static float q[ROWS * 64], before[ROWS * 64], k[ROWS * 32], v[ROWS * 32];
        struct random random = {13};
        int32_t positions[ROWS];
        struct dse_kv_view views[ROWS];
        bench_init(&bench, &shape, 2, ROWS);
        fake_kv_init(&kv, type, 2, 2, 16, 2, 128);
        random_fill(&random, q, ROWS * 64, -2, 2);
        memcpy(before, q, sizeof q);
        random_fill(&random, k, ROWS * 32, -2, 2);
        random_fill(&random, v, ROWS * 32, -2, 2);
        for (int m = 0; m < ROWS; m++) {
            positions[m] = m < 60 ? 20 + m : m;
            views[m] = fake_kv_view(&kv, m < 60 ? 0 : 1);
        }
        struct dse_rows rows = {.n_rows = ROWS, .positions = positions, .kv = views};
        bench.device->ops->rope_store(bench.device, &bench.weights, 1, &kv.layout, &rows, q, k, v);
        const struct dse_layer *layer = &bench.weights.layers[1];
        for (int m = 0; m < ROWS; m++) {
            double want[16];
            for (int h = 0; h < 4; h++) {
                rope_expected(&shape, before + m * 64 + h * 16, layer->q_norm, positions[m], want);
                for (int i = 0; i < 16; i++)
                    assert_true(fabs(want[i] - (double)q[m * 64 + h * 16 + i]) < 2e-5);
            }
            for (int h = 0; h < 2; h++) {
                rope_expected(&shape, k + m * 32 + h * 16, layer->k_norm, positions[m], want);
                for (int i = 0; i < 16; i++) {
                    double key = (double)fake_kv_get(&kv, m < 60 ? 0 : 1, 1, h, false, positions[m], i);
                    double value = (double)fake_kv_get(&kv, m < 60 ? 0 : 1, 1, h, true, positions[m], i);
                    double tolerance = type == DSE_KV_F16 ? 2e-3 : 2e-5;
                    assert_true(fabs(want[i] - key) < tolerance);
                    assert_true(fabs((double)v[m * 32 + h * 16 + i] - value) < tolerance);
                }
            }
        }
        assert_true(isnan(fake_kv_get(&kv, 0, 1, 0, false, 19, 0))); /* nothing else was written */
        assert_true(isnan(fake_kv_get(&kv, 0, 1, 0, true, 80, 0)));
        assert_true(isnan(fake_kv_get(&kv, 0, 0, 0, false, 20, 0)));
        fake_kv_deinit(&kv);
        bench_deinit(&bench);
    }
}

static void rope_tables_follow_the_positions_from_call_to_call(void **state)
{
    struct bench bench;
    struct fake_kv kv;
    bench_init(&bench, &small_shape, 1, 4);
    fake_kv_init(&kv, DSE_KV_F32, 2, 2, 16, 1, 64);
    float k[32] = {1}, v[32] = {0}, q[64], want[2][64];
    struct dse_kv_view view = fake_kv_view(&kv, 0);
    static const int32_t order[] = {5, 9, 5, 9, 9, 5};
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 64; j++)
            q[j] = (float)j;
        struct dse_rows rows = {.n_rows = 1, .positions = &order[i], .kv = &view};
        bench.device->ops->rope_store(bench.device, &bench.weights, i % 2, &kv.layout, &rows, q, k, v);
        if (i < 2)
            memcpy(want[order[i] == 9], q, sizeof q);
        else
            assert_same_bits(q, want[order[i] == 9], 64, "q");
    }
    assert_true(want[0][1] != want[1][1]);
    fake_kv_deinit(&kv);
    bench_deinit(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_close_to_f64),
        cmocka_unit_test(the_input_of_a_prediction_layer_is_close_to_f64_and_the_same_in_any_batch),
        cmocka_unit_test(embed_decodes_rows_and_gives_zeros_beyond_the_table),
        cmocka_unit_test(products_give_the_same_bits_in_any_batch_and_with_any_threads),
        cmocka_unit_test(rope_rotates_pairs_and_stores_keys_and_values),
        cmocka_unit_test(rope_tables_follow_the_positions_from_call_to_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Attention of the CPU device: against f64, and the same bits whatever the batch, the threads or the chunking. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_data.h"

enum { LAYERS = 2, LAYER = 1 };

struct scene {
    struct dse_config config;
    struct fake_kv kv;
    int n_rows;
    int32_t *positions;
    int *sequence;
    struct dse_kv_view *views;
    float *q, *out;
    size_t row_floats;
};

/* Keys and values of a sequence exist up to `length`; all beyond stays NaN. */
static void fill_sequence(struct scene *scene, int sequence, int length, struct random *random)
{
    for (int t = 0; t < length; t++)
        for (int h = 0; h < scene->config.n_kv_heads; h++)
            for (int i = 0; i < scene->config.head_dim; i++) {
                fake_kv_set(&scene->kv, sequence, LAYER, h, false, t, i, random_float(random, -2, 2));
                fake_kv_set(&scene->kv, sequence, LAYER, h, true, t, i, random_float(random, -2, 2));
            }
}

static void scene_init(struct scene *scene, enum dse_kv_type type, int n_heads, int n_kv_heads, int head_dim,
                       int n_sequences, int length, int n_rows)
{
    struct random random = {(uint64_t)(n_heads * 1000 + head_dim + length)};
    memset(scene, 0, sizeof *scene);
    scene->config = (struct dse_config){.n_layers = LAYERS,
                                        .n_embd = 32,
                                        .n_heads = n_heads,
                                        .n_kv_heads = n_kv_heads,
                                        .head_dim = head_dim,
                                        .n_ff = 32,
                                        .n_vocab = 16,
                                        .rope = {.dimensions = head_dim}};
    fake_kv_init(&scene->kv, type, LAYERS, n_kv_heads, head_dim, n_sequences, length + 64);
    for (int s = 0; s < n_sequences; s++)
        fill_sequence(scene, s, length, &random);
    scene->n_rows = n_rows;
    scene->row_floats = (size_t)n_heads * (size_t)head_dim;
    scene->positions = calloc((size_t)n_rows, sizeof *scene->positions);
    scene->sequence = calloc((size_t)n_rows, sizeof *scene->sequence);
    scene->views = calloc((size_t)n_rows, sizeof *scene->views);
    scene->q = malloc((size_t)n_rows * scene->row_floats * sizeof(float));
    scene->out = malloc((size_t)n_rows * scene->row_floats * sizeof(float));
    random_fill(&random, scene->q, (size_t)n_rows * scene->row_floats, -3, 3);
}

static void scene_deinit(struct scene *scene)
{
    fake_kv_deinit(&scene->kv);
    free(scene->positions);
    free(scene->sequence);
    free(scene->views);
    free(scene->q);
    free(scene->out);
}

static void set_row(struct scene *scene, int row, int sequence, int position)
{
    scene->positions[row] = position;
    scene->sequence[row] = sequence;
    scene->views[row] = fake_kv_view(&scene->kv, sequence);
}

static struct dse_device *open_device(const struct scene *scene, int threads)
{
    struct dse_device *device;
    struct dse_error err;
    assert_int_equal(dse_device_open("cpu", threads, &device, &err), DSE_OK);
    assert_int_equal(device->ops->reserve(device, &scene->config, scene->n_rows, &err), DSE_OK);
    return device;
}

/* Rows [begin, end) as one call. */
static void run(struct dse_device *device, const struct scene *scene, int begin, int end, float *out)
{
    struct dse_rows rows = {.n_rows = end - begin, .positions = scene->positions + begin, .kv = scene->views + begin};
    device->ops->attention(device, &scene->config, LAYER, &scene->kv.layout, &rows,
                           scene->q + (size_t)begin * scene->row_floats, out + (size_t)begin * scene->row_floats);
}

static void check_row(const struct scene *scene, int row, double tolerance)
{
    int d = scene->config.head_dim, group = scene->config.n_heads / scene->config.n_kv_heads;
    int n = scene->positions[row] + 1, sequence = scene->sequence[row];
    double *p = malloc((size_t)n * sizeof *p);
    for (int h = 0; h < scene->config.n_heads; h++) {
        const float *q = scene->q + (size_t)row * scene->row_floats + (size_t)(h * d);
        const float *out = scene->out + (size_t)row * scene->row_floats + (size_t)(h * d);
        double most = -INFINITY, sum = 0;
        for (int t = 0; t < n; t++) {
            p[t] = 0;
            for (int i = 0; i < d; i++)
                p[t] += (double)q[i] * (double)fake_kv_get(&scene->kv, sequence, LAYER, h / group, false, t, i);
            p[t] /= sqrt((double)d);
            most = fmax(most, p[t]);
        }
        for (int t = 0; t < n; t++)
            sum += p[t] = exp(p[t] - most);
        for (int i = 0; i < d; i++) {
            double want = 0;
            for (int t = 0; t < n; t++)
                want += p[t] / sum * (double)fake_kv_get(&scene->kv, sequence, LAYER, h / group, true, t, i);
            if (!(fabs(want - (double)out[i]) <= tolerance))
                fail_msg("row %d head %d element %d: %g instead of %g", row, h, i, (double)out[i], want);
        }
    }
    free(p);
}

static void attention_is_close_to_f64_for_every_group_and_head_size(void **state)
{
    static const struct {
        int n_heads, n_kv_heads, head_dim;
    } shapes[] = {{2, 2, 64}, {9, 3, 64}, {4, 1, 128}, {7, 1, 80},  {14, 2, 72},
                  {3, 1, 96}, {2, 1, 2},  {2, 1, 18},  {2, 2, 256}, {40, 1, 16}};
    static const int positions[] = {0, 1, 30, 31, 32, 33, 100, 254, 255, 256, 257, 300, 511, 512, 599};
    enum { N_POSITIONS = sizeof positions / sizeof positions[0] };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        struct scene scene;
        scene_init(&scene, s % 2 == 0 ? DSE_KV_F16 : DSE_KV_F32, shapes[s].n_heads, shapes[s].n_kv_heads,
                   shapes[s].head_dim, 1, 600, N_POSITIONS);
        for (int i = 0; i < N_POSITIONS; i++)
            set_row(&scene, i, 0, positions[i]);
        struct dse_device *device = open_device(&scene, 2);
        run(device, &scene, 0, N_POSITIONS, scene.out);
        for (int i = 0; i < N_POSITIONS; i++)
            check_row(&scene, i, 2e-5);
        dse_device_close(device);
        scene_deinit(&scene);
    }
}

static void attention_never_uses_keys_beyond_the_position(void **state)
{
    /* everything after token 40 is NaN in the cache: one use of it and the row is NaN */
    struct scene scene;
    scene_init(&scene, DSE_KV_F16, 6, 2, 64, 1, 41, 41);
    for (int i = 0; i < 41; i++)
        set_row(&scene, i, 0, i);
    struct dse_device *device = open_device(&scene, 2);
    run(device, &scene, 0, 41, scene.out);
    for (int i = 0; i < 41; i++)
        check_row(&scene, i, 2e-5);
    /* a later token that is infinite must not reach earlier rows of its tile */
    float *before = malloc(41 * scene.row_floats * sizeof(float));
    memcpy(before, scene.out, 41 * scene.row_floats * sizeof(float));
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 64; i++)
            fake_kv_set(&scene.kv, 0, LAYER, h, true, 40, i, INFINITY);
    run(device, &scene, 0, 41, scene.out);
    assert_same_bits(before, scene.out, 40 * scene.row_floats, "rows before an infinite value");
    free(before);
    dse_device_close(device);
    scene_deinit(&scene);
}

/* Three sequences: a long prompt, two decoding rows at other depths. Groups of 3. */
static void mixed_scene(struct scene *scene)
{
    enum { PROMPT = 300 };
    scene_init(scene, DSE_KV_F16, 9, 3, 64, 3, 1400, PROMPT + 2);
    for (int i = 0; i < PROMPT; i++)
        set_row(scene, i, 0, 230 + i);
    set_row(scene, PROMPT, 1, 1399);
    set_row(scene, PROMPT + 1, 2, 7);
}

/* Computed once with one thread and the scalar kernels, one row at a time; every machine must find the same. */
#define MIXED_HASH UINT64_C(0x3f67de2ffbb0f1c8)

static void attention_bits_do_not_depend_on_batch_threads_or_chunks(void **state)
{
    struct scene scene;
    mixed_scene(&scene);
    size_t floats = (size_t)scene.n_rows * scene.row_floats;
    float *alone = malloc(floats * sizeof *alone);
    struct dse_device *device = open_device(&scene, 1);
    for (int i = 0; i < scene.n_rows; i++)
        run(device, &scene, i, i + 1, alone);
    dse_device_close(device);
    assert_int_equal(hash_floats(alone, floats), MIXED_HASH);
    for (int threads = 1; threads <= 3; threads++) {
        static const int chunks[] = {1, 2, 5, 64, 1000};
        device = open_device(&scene, threads);
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            memset(scene.out, 0, floats * sizeof *scene.out);
            for (int at = 0; at < scene.n_rows; at += chunks[c])
                run(device, &scene, at, at + chunks[c] < scene.n_rows ? at + chunks[c] : scene.n_rows, scene.out);
            assert_same_bits(alone, scene.out, floats, "chunked");
        }
        dse_device_close(device);
    }
    free(alone);
    scene_deinit(&scene);
}

static void attention_merges_more_splits_than_wait_at_once(void **state)
{
    /* 43 splits of two heads do not fit one thread's 32 slots: several waves */
    enum { LENGTH = 11000 };
    struct scene scene;
    scene_init(&scene, DSE_KV_F32, 2, 2, 16, 1, LENGTH, 1);
    set_row(&scene, 0, 0, LENGTH - 1);
    float one[32];
    for (int threads = 1; threads <= 3; threads++) {
        struct dse_device *device = open_device(&scene, threads);
        run(device, &scene, 0, 1, scene.out);
        check_row(&scene, 0, 2e-5);
        if (threads == 1) memcpy(one, scene.out, sizeof one);
        assert_same_bits(one, scene.out, 32, "threads");
        dse_device_close(device);
    }
    scene_deinit(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_close_to_f64_for_every_group_and_head_size),
        cmocka_unit_test(attention_never_uses_keys_beyond_the_position),
        cmocka_unit_test(attention_bits_do_not_depend_on_batch_threads_or_chunks),
        cmocka_unit_test(attention_merges_more_splits_than_wait_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

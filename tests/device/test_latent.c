/* Latent attention of the CPU device, from x to the heads' results: against the expanded form in f64, and the same bits
 * whatever the batch, the threads, the chunking or the kernels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_data.h"
#include "quant/types.h"

enum { LAYERS = 2, LAYER = 1, EMBD = 64 };

struct shape {
    int n_heads, q_rank, kv_rank, nope, rope, v;
    enum dse_type type; /* of the weights */
    enum dse_kv_type kv;
    double tolerance;
};

/* A matrix as the device has it and as doubles. */
struct weight {
    void *packed;
    double *values;
};

/* One layer and sequences of `length` tokens; row m of the batch has the input x[m]. */
struct scene {
    struct shape shape;
    struct dse_config config;
    struct dse_layer layers[LAYERS];
    struct dse_device_weights weights;
    struct weight q, q_a, q_b, kv_a, k_b, v_b;
    float attn_norm[EMBD], q_a_norm[256], kv_a_norm[512], frequencies[64];
    struct fake_kv kv;
    int n_rows;
    int32_t *positions;
    struct dse_kv_view *views;
    float *x, *out; /* [n_rows][EMBD], [n_rows][H * v] */
    size_t out_floats;
};

/* heads matrices of one shape, one after the other. */
static struct weight weight_init(struct random *random, enum dse_type type, int heads, int rows, int cols,
                                 struct dse_matrix *out, size_t *head_bytes)
{
    struct weight w;
    size_t n = (size_t)rows * (size_t)cols, row_bytes;
    enum dse_layout layout = dse_matrix_layout(type, (size_t)cols, false);
    assert_true(dse_matrix_packed_bytes(layout, (size_t)rows, (size_t)cols, head_bytes));
    assert_true(dse_type_row_bytes(type, (size_t)cols, &row_bytes));
    size_t bytes = (*head_bytes + 63) / 64 * 64;
    *head_bytes = bytes;
    w.packed = aligned_alloc(64, bytes * (size_t)heads);
    w.values = malloc(n * (size_t)heads * sizeof *w.values);
    uint8_t *source = malloc(row_bytes * (size_t)rows);
    float *decoded = malloc(n * sizeof *decoded);
    memset(w.packed, 0, bytes * (size_t)heads);
    for (int h = 0; h < heads; h++) {
        random_fill(random, decoded, n, -0.25f, 0.25f); /* scores of a few units */
        if (type == DSE_TYPE_F32) memcpy(source, decoded, row_bytes * (size_t)rows);
        for (size_t at = 0; type == DSE_TYPE_Q8_0 && at < row_bytes * (size_t)rows; at += 34) {
            uint16_t scale = dse_f32_to_f16(random_float(random, 0.001f, 0.002f));
            memcpy(source + at, &scale, 2);
            for (int i = 0; i < 32; i++)
                source[at + 2 + (size_t)i] = (uint8_t)random_u32(random);
        }
        dse_matrix_pack(type, source, (size_t)cols, 0, (size_t)rows, layout, (uint8_t *)w.packed + bytes * (size_t)h,
                        0);
        dse_type_decode(type, source, decoded, n);
        for (size_t i = 0; i < n; i++)
            w.values[n * (size_t)h + i] = (double)decoded[i];
    }
    free(source);
    free(decoded);
    *out = (struct dse_matrix){.layout = layout,
                               .source_type = type,
                               .rows = (size_t)rows,
                               .cols = (size_t)cols,
                               .data = w.packed,
                               .panel_bytes = dse_matrix_panel_bytes(layout, (size_t)cols)};
    return w;
}

static void weight_deinit(struct weight *w)
{
    free(w->packed);
    free(w->values);
}

static void scene_init(struct scene *scene, const struct shape *shape, int n_sequences, int length, int n_rows)
{
    const struct shape s = *shape;
    struct random random = {(uint64_t)(s.n_heads * 1000 + s.kv_rank + s.rope)};
    size_t unused;
    memset(scene, 0, sizeof *scene);
    scene->shape = s;
    scene->config = (struct dse_config){.arch = DSE_ARCH_DEEPSEEK2,
                                        .n_layers = LAYERS,
                                        .n_embd = EMBD,
                                        .n_heads = s.n_heads,
                                        .n_kv_heads = 1,
                                        .head_dim = s.nope + s.rope,
                                        .n_ff = 32,
                                        .n_vocab = 16,
                                        .rms_eps = 1e-3f, /* not that of the latent norms */
                                        .rope = {.dimensions = s.rope,
                                                 .pairs = DSE_ROPE_INTERLEAVED,
                                                 .scaling = DSE_ROPE_YARN,
                                                 .factor = 4,
                                                 .mscale = 1,
                                                 .mscale_all_dim = 1},
                                        .latent = {s.kv_rank, s.q_rank, s.nope, s.rope, s.v}};
    struct dse_layer *layer = &scene->layers[LAYER];
    int d = s.nope + s.rope, in = s.q_rank > 0 ? s.q_rank : EMBD;
    if (s.q_rank > 0) scene->q_a = weight_init(&random, s.type, 1, s.q_rank, EMBD, &layer->q_a, &unused);
    scene->q = weight_init(&random, s.type, 1, s.n_heads * d, in, s.q_rank > 0 ? &layer->q_b : &layer->q, &unused);
    scene->kv_a = weight_init(&random, s.type, 1, s.kv_rank + s.rope, EMBD, &layer->kv_a, &unused);
    scene->k_b = weight_init(&random, s.type, s.n_heads, s.kv_rank, s.nope, &layer->k_b.head, &layer->k_b.head_bytes);
    scene->v_b = weight_init(&random, s.type, s.n_heads, s.v, s.kv_rank, &layer->v_b.head, &layer->v_b.head_bytes);
    layer->k_b.n_heads = layer->v_b.n_heads = s.n_heads;
    random_fill(&random, scene->attn_norm, EMBD, 0.5f, 1.5f);
    random_fill(&random, scene->q_a_norm, 256, 0.5f, 1.5f);
    random_fill(&random, scene->kv_a_norm, 512, 0.5f, 1.5f);
    for (int i = 0; i < s.rope / 2; i++)
        scene->frequencies[i] = (float)pow(10000, -2.0 * i / s.rope);
    layer->attn_norm = scene->attn_norm;
    layer->q_a_norm = scene->q_a_norm;
    layer->kv_a_norm = scene->kv_a_norm;
    scene->weights = (struct dse_device_weights){.config = &scene->config,
                                                 .layers = scene->layers,
                                                 .rope_frequencies = scene->frequencies,
                                                 .rope_factor = 1.25f};
    struct dse_kv_layout layout = {
        .type = s.kv, .n_layers = LAYERS, .n_kv_heads = 1, .head_dim = d, .latent = s.kv_rank, .rope = s.rope};
    dse_kv_layout_init(&layout);
    fake_kv_init_layout(&scene->kv, &layout, n_sequences, length + 64);
    scene->n_rows = n_rows;
    scene->positions = calloc((size_t)n_rows, sizeof *scene->positions);
    scene->views = calloc((size_t)n_rows, sizeof *scene->views);
    scene->x = malloc((size_t)n_rows * EMBD * sizeof *scene->x);
    scene->out_floats = (size_t)(s.n_heads * s.v);
    scene->out = malloc((size_t)n_rows * scene->out_floats * sizeof *scene->out);
    random_fill(&random, scene->x, (size_t)n_rows * EMBD, -2, 2);
}

static void scene_deinit(struct scene *scene)
{
    weight_deinit(&scene->q);
    weight_deinit(&scene->q_a);
    weight_deinit(&scene->kv_a);
    weight_deinit(&scene->k_b);
    weight_deinit(&scene->v_b);
    fake_kv_deinit(&scene->kv);
    free(scene->positions);
    free(scene->views);
    free(scene->x);
    free(scene->out);
}

static void set_row(struct scene *scene, int row, int sequence, int position)
{
    scene->positions[row] = position;
    scene->views[row] = fake_kv_view(&scene->kv, sequence);
}

static struct dse_device *open_device(const struct scene *scene, int threads)
{
    struct dse_device *device;
    struct dse_error err;
    assert_int_equal(dse_device_open("cpu", threads, &device, &err), DSE_OK);
    assert_int_equal(device->ops->reserve(device, &scene->config, scene->n_rows, 4096, &err), DSE_OK);
    return device;
}

/* Rows [begin, end) from x to out, as the forward pass does it. choice: of these rows, or NULL. */
static void run(struct dse_device *device, const struct scene *scene, int begin, int end,
                const struct dse_key_choice *choice, float *out)
{
    const struct dse_device_ops *ops = device->ops;
    const struct dse_layer *layer = &scene->layers[LAYER];
    const struct shape *s = &scene->shape;
    size_t n = (size_t)(end - begin), heads = (size_t)s->n_heads, d = (size_t)(s->nope + s->rope);
    size_t rank = (size_t)s->kv_rank;
    struct dse_rows rows = {.n_rows = end - begin, .positions = scene->positions + begin, .kv = scene->views + begin};
    float *q_latent = malloc((n * (size_t)s->q_rank + 1) * sizeof *q_latent), *q = malloc(n * heads * d * sizeof *q);
    float *ck = malloc(n * (rank + (size_t)s->rope) * sizeof *ck);
    float *absorbed = malloc(n * heads * rank * sizeof *absorbed),
          *latents = malloc(n * heads * rank * sizeof *latents);
    ops->latent_qkv(device, &scene->config, layer, scene->x + (size_t)begin * EMBD, (int)n, q_latent, q, ck);
    ops->latent_store(device, &scene->weights, LAYER, &scene->kv.layout, &rows, q, ck);
    ops->head_project(device, &layer->k_b, q, d, (int)n, absorbed);
    ops->latent_attention(device, &scene->config, LAYER, &scene->kv.layout, &rows, q, absorbed, choice, latents);
    ops->head_project(device, &layer->v_b, latents, rank, (int)n, out + (size_t)begin * scene->out_floats);
    free(q_latent);
    free(q);
    free(ck);
    free(absorbed);
    free(latents);
}

/* ---- the expanded form in f64 ---- */

static void norm(const double *x, const float *w, int n, double eps, double *out)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + eps) * (double)w[i];
}

static void multiply(const double *w, int rows, int cols, const double *x, double *y)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < cols; c++)
            y[r] += w[r * cols + c] * x[c];
    }
}

static void rotate(const struct scene *scene, int position, double *x)
{
    for (int i = 0; i < scene->shape.rope / 2; i++) {
        double angle = position * (double)scene->frequencies[i], c = 1.25 * cos(angle), s = 1.25 * sin(angle);
        double a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = b * c + a * s;
    }
}

/* What a row of the batch has: q [H][d], and k [H][d], v [H][v] of its token. */
struct expanded {
    double *q, *k, *v;
};

static struct expanded expand(const struct scene *scene, int row)
{
    const struct shape *s = &scene->shape;
    int d = s->nope + s->rope, in = EMBD;
    double x[EMBD], latent[256], ck[640], c[512];
    struct expanded e = {.q = malloc((size_t)(s->n_heads * d) * sizeof(double)),
                         .k = malloc((size_t)(s->n_heads * d) * sizeof(double)),
                         .v = malloc((size_t)(s->n_heads * s->v) * sizeof(double))};
    const double *to_q = x;
    for (int i = 0; i < EMBD; i++)
        x[i] = (double)scene->x[row * EMBD + i];
    norm(x, scene->attn_norm, EMBD, 1e-3, x);
    if (s->q_rank > 0) {
        multiply(scene->q_a.values, s->q_rank, EMBD, x, latent);
        norm(latent, scene->q_a_norm, s->q_rank, 1e-6, latent);
        to_q = latent;
        in = s->q_rank;
    }
    multiply(scene->q.values, s->n_heads * d, in, to_q, e.q);
    multiply(scene->kv_a.values, s->kv_rank + s->rope, EMBD, x, ck);
    norm(ck, scene->kv_a_norm, s->kv_rank, 1e-6, c);
    rotate(scene, scene->positions[row], ck + s->kv_rank);
    for (int h = 0; h < s->n_heads; h++) {
        double *k = e.k + h * d;
        const double *k_b = scene->k_b.values + (size_t)h * (size_t)(s->kv_rank * s->nope);
        rotate(scene, scene->positions[row], e.q + h * d + s->nope);
        for (int i = 0; i < s->nope; i++) {
            k[i] = 0;
            for (int r = 0; r < s->kv_rank; r++)
                k[i] += k_b[r * s->nope + i] * c[r];
        }
        memcpy(k + s->nope, ck + s->kv_rank, (size_t)s->rope * sizeof *k);
        multiply(scene->v_b.values + (size_t)h * (size_t)(s->v * s->kv_rank), s->v, s->kv_rank, c, e.v + h * s->v);
    }
    return e;
}

static void expanded_deinit(struct expanded *e)
{
    free(e->q);
    free(e->k);
    free(e->v);
}

/* Row `row` of a batch whose rows [first, row] are the whole sequence; keys: n of them, or NULL for all. */
static void check_row(const struct scene *scene, const struct expanded *e, int first, int row, const int32_t *keys,
                      int n)
{
    const struct shape *s = &scene->shape;
    int d = s->nope + s->rope;
    double magnitude = 0.1 * log(4) + 1, *p = malloc((size_t)n * sizeof *p);
    for (int h = 0; h < s->n_heads; h++) {
        double most = -INFINITY, sum = 0, largest = 0;
        for (int t = 0; t < n; t++) {
            const double *k = e[first + (keys != NULL ? keys[t] : t)].k + h * d;
            p[t] = 0;
            for (int i = 0; i < d; i++)
                p[t] += e[row].q[h * d + i] * k[i];
            p[t] *= magnitude * magnitude / sqrt(d);
            most = fmax(most, p[t]);
        }
        for (int t = 0; t < n; t++)
            sum += p[t] = exp(p[t] - most);
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < s->v; i++) {
                double want = 0, got = (double)scene->out[(size_t)row * scene->out_floats + (size_t)(h * s->v + i)];
                for (int t = 0; t < n; t++)
                    want += p[t] / sum * e[first + (keys != NULL ? keys[t] : t)].v[h * s->v + i];
                if (pass == 0) largest = fmax(largest, fabs(want));
                if (pass == 1 && !(fabs(want - got) <= s->tolerance * largest))
                    fail_msg("H %d R %d rope %d: row %d head %d element %d: %g instead of %g (of %g)", s->n_heads,
                             s->kv_rank, s->rope, row, h, i, got, want, largest);
            }
    }
    free(p);
}

static const struct shape shapes[] = {
    {1, 0, 32, 32, 8, 32, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {3, 64, 40, 24, 8, 40, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {5, 64, 96, 32, 16, 16, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {16, 0, 512, 32, 64, 32, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {20, 96, 33, 16, 2, 8, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {33, 0, 64, 32, 16, 48, DSE_TYPE_F32, DSE_KV_F32, 2e-5},
    {5, 64, 72, 32, 16, 32, DSE_TYPE_F32, DSE_KV_F16, 4e-3},
    {16, 64, 128, 32, 64, 32, DSE_TYPE_F32, DSE_KV_F16, 4e-3},
    {3, 0, 64, 32, 16, 32, DSE_TYPE_F32, DSE_KV_Q8_0, 3e-2},
    {20, 64, 96, 32, 8, 32, DSE_TYPE_F32, DSE_KV_Q8_0, 3e-2},
    {3, 64, 128, 32, 16, 32, DSE_TYPE_Q8_0, DSE_KV_F32, 6e-2},
    {5, 0, 64, 64, 8, 48, DSE_TYPE_Q8_0, DSE_KV_F16, 6e-2},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void latent_attention_is_close_to_the_expanded_form_in_f64(void **state)
{
    enum { LENGTH = 301 };
    static const int checked[] = {0, 1, 31, 32, 33, 64, 255, 256, 300};
    for (int i = 0; i < N_SHAPES; i++) {
        struct scene scene;
        struct expanded e[LENGTH];
        scene_init(&scene, &shapes[i], 1, LENGTH, LENGTH);
        for (int m = 0; m < LENGTH; m++) {
            set_row(&scene, m, 0, m);
            e[m] = expand(&scene, m);
        }
        struct dse_device *device = open_device(&scene, 2);
        run(device, &scene, 0, LENGTH, NULL, scene.out);
        for (size_t c = 0; c < sizeof checked / sizeof checked[0]; c++)
            check_row(&scene, e, 0, checked[c], NULL, checked[c] + 1);
        for (int m = 0; m < LENGTH; m++)
            expanded_deinit(&e[m]);
        dse_device_close(device);
        scene_deinit(&scene);
    }
}

/* A prompt of 300 and two decoding rows, each at the end of a sequence that is in the cache already. */
enum { PROMPT = 300, OTHER = 280 };

static void mixed_scene(struct scene *scene, const struct shape *shape)
{
    scene_init(scene, shape, 3, 400, OTHER + 3 + PROMPT + 2);
    int m = 0;
    for (int i = 0; i < OTHER; i++)
        set_row(scene, m++, 1, i);
    for (int i = 0; i < 3; i++)
        set_row(scene, m++, 2, i);
    for (int i = 0; i < PROMPT; i++)
        set_row(scene, m++, 0, i);
    set_row(scene, m++, 1, OTHER);
    set_row(scene, m++, 2, 3);
}

static void bits_do_not_depend_on_batch_threads_or_chunks(void **state)
{
    static const int of_every_kind[] = {1, 4, 6, 8, 11};
    for (size_t k = 0; k < sizeof of_every_kind / sizeof of_every_kind[0]; k++) {
        int i = of_every_kind[k];
        struct scene scene;
        mixed_scene(&scene, &shapes[i]);
        size_t floats = (size_t)scene.n_rows * scene.out_floats;
        float *alone = malloc(floats * sizeof *alone);
        struct dse_device *device = open_device(&scene, 1);
        for (int m = 0; m < scene.n_rows; m++)
            run(device, &scene, m, m + 1, NULL, alone);
        dse_device_close(device);
        for (int threads = 1; threads <= 3; threads++) {
            static const int chunks[] = {2, 5, 64, 1000};
            size_t c = ((size_t)threads + k) % 4;
            device = open_device(&scene, threads);
            memset(scene.kv.pool, 0xff, (size_t)(3 * scene.kv.blocks_per_sequence) * scene.kv.layout.block_bytes);
            for (int at = 0; at < scene.n_rows; at += chunks[c])
                run(device, &scene, at, at + chunks[c] < scene.n_rows ? at + chunks[c] : scene.n_rows, NULL, scene.out);
            assert_same_bits(alone, scene.out, floats, "chunked");
            dse_device_close(device);
        }
        free(alone);
        scene_deinit(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_attention_is_close_to_the_expanded_form_in_f64),
        cmocka_unit_test(bits_do_not_depend_on_batch_threads_or_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

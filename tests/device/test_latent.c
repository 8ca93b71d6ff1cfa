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

#include "device/cpu.h"
#include "device_data.h"
#include "quant/types.h"

enum { LAYERS = 2, LAYER = 1, EMBD = 64 };

struct shape {
    int n_heads, q_rank, kv_rank, nope, rope, v;
    enum dse_type type; /* of the weights */
    enum dse_kv_type kv;
    double tolerance;
    struct dse_indexer_config indexer;
};

/* A matrix as the device has it and as doubles. */
struct weight {
    void *packed;
    double *values;
};

/* The transposes of some heads' matrices: exact, or for Q8_0 in new blocks. */
static struct weight weight_turn(const struct weight *from, enum dse_type type, int heads, int rows, int cols,
                                 struct dse_head_matrix *out)
{
    const size_t n = (size_t)rows * (size_t)cols;
    const bool blocks = type == DSE_TYPE_Q8_0;
    const enum dse_layout layout = dse_matrix_layout(type, (size_t)rows, false);
    struct dse_vector_ops vector;
    struct weight w = {0};
    float *turned = malloc(n * sizeof *turned);
    uint8_t *source = malloc(n * sizeof *turned);
    dse_vector_ops_pick(&vector);
    assert_true(dse_matrix_packed_bytes(layout, (size_t)cols, (size_t)rows, &out->head_bytes));
    out->head_bytes = (out->head_bytes + 63) / 64 * 64;
    w.packed = aligned_alloc(64, out->head_bytes * (size_t)heads);
    memset(w.packed, 0, out->head_bytes * (size_t)heads);
    for (int h = 0; h < heads; h++) {
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++)
                turned[c * rows + r] = (float)from->values[(size_t)h * n + (size_t)(r * cols + c)];
        if (blocks) vector.shrink(turned, n, source);
        dse_matrix_pack(type, blocks ? (const void *)source : turned, (size_t)rows, 0, (size_t)cols, layout,
                        (uint8_t *)w.packed + (size_t)h * out->head_bytes, 0);
    }
    out->n_heads = heads;
    out->head = (struct dse_matrix){.layout = layout,
                                    .source_type = type,
                                    .rows = (size_t)cols,
                                    .cols = (size_t)rows,
                                    .data = w.packed,
                                    .panel_bytes = dse_matrix_panel_bytes(layout, (size_t)rows)};
    free(turned);
    free(source);
    return w;
}

/* One layer and sequences of `length` tokens; row m of the batch has the input x[m]. */
struct scene {
    struct shape shape;
    struct dse_config config;
    struct dse_layer layers[LAYERS];
    struct dse_device_weights weights;
    struct weight q, q_a, kv_a, k_b, v_b, k_up, index_q, index_k, index_weights;
    float attn_norm[EMBD], q_a_norm[256], kv_a_norm[512], frequencies[64], index_norm[64], index_bias[64];
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
                                        .latent = {s.kv_rank, s.q_rank, s.nope, s.rope, s.v, true}};
    struct dse_layer *layer = &scene->layers[LAYER];
    int d = s.nope + s.rope, in = s.q_rank > 0 ? s.q_rank : EMBD;
    if (s.q_rank > 0) scene->q_a = weight_init(&random, s.type, 1, s.q_rank, EMBD, &layer->q_a, &unused);
    scene->q = weight_init(&random, s.type, 1, s.n_heads * d, in, s.q_rank > 0 ? &layer->q_b : &layer->q, &unused);
    scene->kv_a = weight_init(&random, s.type, 1, s.kv_rank + s.rope, EMBD, &layer->kv_a, &unused);
    scene->k_b = weight_init(&random, s.type, s.n_heads, s.kv_rank, s.nope, &layer->k_b.head, &layer->k_b.head_bytes);
    scene->v_b = weight_init(&random, s.type, s.n_heads, s.v, s.kv_rank, &layer->v_b.head, &layer->v_b.head_bytes);
    layer->k_b.n_heads = layer->v_b.n_heads = s.n_heads;
    scene->k_up = weight_turn(&scene->k_b, s.type, s.n_heads, s.kv_rank, s.nope, &layer->k_up);
    if (s.indexer.n_heads > 0) {
        int di = s.indexer.head_dim, hi = s.indexer.n_heads;
        scene->config.indexer = s.indexer;
        scene->index_q = weight_init(&random, s.type, 1, hi * di, s.q_rank, &layer->index_q, &unused);
        scene->index_k = weight_init(&random, s.type, 1, di, EMBD, &layer->index_k, &unused);
        scene->index_weights = weight_init(&random, DSE_TYPE_F32, 1, hi, EMBD, &layer->index_weights, &unused);
        random_fill(&random, scene->index_norm, 64, 0.5f, 1.5f);
        random_fill(&random, scene->index_bias, 64, -0.5f, 0.5f);
        layer->index_k_norm = scene->index_norm;
        layer->index_k_norm_bias = scene->index_bias;
    }
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
    struct dse_kv_layout layout = dse_kv_layout_of(&scene->config, s.kv);
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
    weight_deinit(&scene->k_up);
    weight_deinit(&scene->index_q);
    weight_deinit(&scene->index_k);
    weight_deinit(&scene->index_weights);
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
    assert_int_equal(device->ops->reserve(device, &scene->config, scene->n_rows, &err), DSE_OK);
    return device;
}

/* Rows [begin, end), all of one sequence, from x to out, with attention in expanded form. */
static void run_expanded(struct dse_device *device, const struct scene *scene, int begin, int end, float *out)
{
    const struct dse_device_ops *ops = device->ops;
    const struct shape *s = &scene->shape;
    const size_t n = (size_t)(end - begin), q_floats = (size_t)(s->n_heads * (s->nope + s->rope));
    const struct dse_rows rows = {
        .n_rows = end - begin, .positions = scene->positions + begin, .kv = scene->views + begin};
    float *q_latent = malloc((n * (size_t)s->q_rank + 1) * sizeof *q_latent), *q = malloc(n * q_floats * sizeof *q);
    float *ck = malloc(n * (size_t)(s->kv_rank + s->rope) * sizeof *ck);
    ops->latent_qkv(device, &scene->config, &scene->layers[LAYER], NULL, scene->x + (size_t)begin * EMBD, (int)n,
                    q_latent, q, ck);
    ops->latent_store(device, &scene->weights, LAYER, &scene->kv.layout, &rows, q, ck);
    ops->expanded_attention(device, &scene->weights, LAYER, &scene->kv.layout, &rows, q,
                            out + (size_t)begin * scene->out_floats);
    free(q_latent);
    free(q);
    free(ck);
}

/* Rows [begin, end) from x to out, as the forward pass does it. choice: of all rows, filled where there is an
 * indexer. */
static void run(struct dse_device *device, const struct scene *scene, int begin, int end,
                const struct dse_key_choice *choice, float *out)
{
    struct dse_key_choice own = {0};
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
    ops->latent_qkv(device, &scene->config, layer, NULL, scene->x + (size_t)begin * EMBD, (int)n, q_latent, q, ck);
    ops->latent_store(device, &scene->weights, LAYER, &scene->kv.layout, &rows, q, ck);
    if (choice != NULL) {
        own = (struct dse_key_choice){choice->top_k, choice->keys + (size_t)begin * (size_t)choice->top_k};
        for (int first = 0; first < rows.n_rows; first += DSE_LATENT_ROWS) {
            const int left = rows.n_rows - first;
            const struct dse_rows part = {.n_rows = left < DSE_LATENT_ROWS ? left : DSE_LATENT_ROWS,
                                          .positions = rows.positions + first,
                                          .kv = rows.kv + first,
                                          .first = first};
            struct dse_key_choice keys = {choice->top_k, own.keys + (size_t)first * (size_t)choice->top_k};
            ops->index_keys(device, &scene->weights, LAYER, &scene->kv.layout, &part,
                            scene->x + (size_t)(begin + first) * EMBD, q_latent + (size_t)first * (size_t)s->q_rank,
                            &keys);
        }
    }
    ops->head_project(device, &layer->k_b, q, d, (int)n, absorbed);
    ops->latent_attention(device, &scene->config, LAYER, &scene->kv.layout, &rows, q, absorbed,
                          choice != NULL ? &own : NULL, latents);
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

static void check_against_f64(bool expanded)
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
        if (expanded)
            run_expanded(device, &scene, 0, LENGTH, scene.out);
        else
            run(device, &scene, 0, LENGTH, NULL, scene.out);
        for (size_t c = 0; c < sizeof checked / sizeof checked[0]; c++)
            check_row(&scene, e, 0, checked[c], NULL, checked[c] + 1);
        for (int m = 0; m < LENGTH; m++)
            expanded_deinit(&e[m]);
        dse_device_close(device);
        scene_deinit(&scene);
    }
}

static void latent_attention_is_close_to_the_expanded_form_in_f64(void **state)
{
    (void)state;
    check_against_f64(false);
}

/* The same bounds: both forms round the same kind of numbers once. */
static void expanded_attention_is_close_to_f64(void **state)
{
    (void)state;
    check_against_f64(true);
}

/* Cut anywhere, on fewer threads than heads and on more: a row gets the same bits. */
static void expanded_bits_do_not_depend_on_rows_beside_them_or_threads(void **state)
{
    enum { LENGTH = 1200 }; /* more rows than a thread takes at once, in several splits */
    static const int of_every_kind[] = {6, 8, 11};
    /* the last: rows alone, around the border of two splits */
    static const struct {
        int threads, cut[10];
    } cuts[] = {{1, {LENGTH}},
                {2, {257, 700, LENGTH}},
                {3, {1000, LENGTH}},
                {7, {64, 1199, LENGTH}},
                {12, {250, 251, 252, 253, 254, 255, 256, 257, 258, LENGTH}}};
    (void)state;
    for (size_t k = 0; k < sizeof of_every_kind / sizeof of_every_kind[0]; k++) {
        struct scene scene;
        scene_init(&scene, &shapes[of_every_kind[k]], 1, LENGTH, LENGTH);
        const size_t floats = LENGTH * scene.out_floats;
        float *first = malloc(floats * sizeof *first);
        for (int m = 0; m < LENGTH; m++)
            set_row(&scene, m, 0, m);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            struct dse_device *device = open_device(&scene, cuts[c].threads);
            memset(scene.kv.pool, 0xff, (size_t)scene.kv.blocks_per_sequence * scene.kv.layout.block_bytes);
            for (int at = 0, i = 0; at < LENGTH; at = cuts[c].cut[i++])
                run_expanded(device, &scene, at, cuts[c].cut[i], scene.out);
            if (c == 0)
                memcpy(first, scene.out, floats * sizeof *first);
            else
                assert_same_bits(first, scene.out, floats, "expanded");
            dse_device_close(device);
        }
        free(first);
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

static void check_later_row(bool expanded)
{
    /* behind the last row the cache is NaN; the last row itself is made so, in the tile of the rows before it */
    static const enum dse_kv_type kinds[] = {DSE_KV_F32, DSE_KV_F16, DSE_KV_Q8_0};
    for (int i = 0; i < 3; i++) {
        struct shape shape = shapes[8];
        struct scene scene;
        shape.kv = kinds[i];
        scene_init(&scene, &shape, 1, 41, 41);
        for (int m = 0; m < 41; m++)
            set_row(&scene, m, 0, m);
        struct dse_device *device = open_device(&scene, 2);
        size_t floats = 41 * scene.out_floats;
        float *before = malloc(floats * sizeof *before);
        expanded ? run_expanded(device, &scene, 0, 41, before) : run(device, &scene, 0, 41, NULL, before);
        for (size_t k = 0; k < floats; k++)
            assert_true(isfinite(before[k]));
        scene.x[40 * EMBD + 7] = INFINITY;
        expanded ? run_expanded(device, &scene, 0, 41, scene.out) : run(device, &scene, 0, 41, NULL, scene.out);
        assert_same_bits(before, scene.out, 40 * scene.out_floats, "rows before an infinite one");
        assert_true(isnan(scene.out[40 * scene.out_floats]));
        free(before);
        dse_device_close(device);
        scene_deinit(&scene);
    }
}

static void a_later_row_never_reaches_an_earlier_one(void **state)
{
    (void)state;
    check_later_row(false);
    check_later_row(true);
}

/* ---- the core alone, on a cache of random rows ---- */

/* Written from the comment in kv_layout.h. */
static uint8_t *row_at(const struct fake_kv *kv, int sequence, int position)
{
    size_t element = kv->layout.type == DSE_KV_F32 ? 4 : 2;
    size_t row = (size_t)(kv->layout.latent + kv->layout.rope) * element;
    size_t block = (size_t)kv->blocks[sequence * kv->blocks_per_sequence + position / 32];
    size_t layer_bytes = (row * 32 + 511) / 512 * 512;
    return kv->pool + (block * LAYERS + LAYER) * layer_bytes + (size_t)(position % 32) * row;
}

struct core {
    struct scene scene;
    float *q, *absorbed, *latents;
    size_t q_floats, latent_floats; /* of a row */
};

static void core_init(struct core *core, enum dse_kv_type type, int heads, int rank, int rope, int n_sequences,
                      int length, int n_rows)
{
    const struct shape shape = {heads, 0, rank, 32, rope, 32, DSE_TYPE_F32, type, 0, {0}};
    struct random random = {(uint64_t)(heads + length)};
    scene_init(&core->scene, &shape, n_sequences, length, n_rows);
    core->scene.config.rope.scaling = DSE_ROPE_NONE;
    core->q_floats = (size_t)(heads * (32 + rope));
    core->latent_floats = (size_t)(heads * rank);
    core->q = malloc((size_t)n_rows * core->q_floats * sizeof(float));
    core->absorbed = malloc((size_t)n_rows * core->latent_floats * sizeof(float));
    core->latents = malloc((size_t)n_rows * core->latent_floats * sizeof(float));
    random_fill(&random, core->q, (size_t)n_rows * core->q_floats, -3, 3);
    random_fill(&random, core->absorbed, (size_t)n_rows * core->latent_floats, -2, 2);
    for (int s = 0; s < n_sequences; s++)
        for (int t = 0; t < length; t++)
            for (int i = 0; i < rank + rope; i++) {
                float x = random_float(&random, -2, 2);
                uint16_t half = dse_f32_to_f16(x);
                memcpy(row_at(&core->scene.kv, s, t) + (type == DSE_KV_F32 ? 4 : 2) * i,
                       type == DSE_KV_F32 ? (const void *)&x : &half, type == DSE_KV_F32 ? 4 : 2);
            }
}

static void core_deinit(struct core *core)
{
    scene_deinit(&core->scene);
    free(core->q);
    free(core->absorbed);
    free(core->latents);
}

static void core_run(struct dse_device *device, const struct core *core, int begin, int end,
                     const struct dse_key_choice *choice, float *latents)
{
    const struct scene *scene = &core->scene;
    struct dse_rows rows = {.n_rows = end - begin, .positions = scene->positions + begin, .kv = scene->views + begin};
    struct dse_key_choice own = {0};
    if (choice != NULL) own = (struct dse_key_choice){choice->top_k, choice->keys + begin * choice->top_k};
    device->ops->latent_attention(device, &scene->config, LAYER, &scene->kv.layout, &rows,
                                  core->q + (size_t)begin * core->q_floats,
                                  core->absorbed + (size_t)begin * core->latent_floats, choice != NULL ? &own : NULL,
                                  latents + (size_t)begin * core->latent_floats);
}

static void check_core(const struct core *core, int row, int sequence, const int32_t *keys, int n)
{
    const struct shape *s = &core->scene.shape;
    int d = 32 + s->rope, width = s->kv_rank + s->rope;
    double *p = malloc((size_t)n * sizeof *p), *cache = malloc((size_t)(n * width) * sizeof *cache);
    for (int t = 0; t < n; t++) {
        const uint8_t *at = row_at(&core->scene.kv, sequence, keys != NULL ? keys[t] : t);
        for (int i = 0; i < width; i++) {
            float full;
            uint16_t half;
            memcpy(&full, at + 4 * i, s->kv == DSE_KV_F32 ? 4 : 0);
            memcpy(&half, at + 2 * i, 2);
            cache[t * width + i] = (double)(s->kv == DSE_KV_F32 ? full : dse_f16_to_f32(half));
        }
    }
    for (int h = 0; h < s->n_heads; h++) {
        const float *q = core->q + (size_t)row * core->q_floats + (size_t)(h * d + 32);
        const float *absorbed = core->absorbed + (size_t)row * core->latent_floats + (size_t)(h * s->kv_rank);
        const float *got = core->latents + (size_t)row * core->latent_floats + (size_t)(h * s->kv_rank);
        double most = -INFINITY, sum = 0;
        for (int t = 0; t < n; t++) {
            p[t] = 0;
            for (int i = 0; i < width; i++)
                p[t] += cache[t * width + i] * (double)(i < s->kv_rank ? absorbed[i] : q[i - s->kv_rank]);
            p[t] /= sqrt(d);
            most = fmax(most, p[t]);
        }
        for (int t = 0; t < n; t++)
            sum += p[t] = exp(p[t] - most);
        for (int i = 0; i < s->kv_rank; i++) {
            double want = 0;
            for (int t = 0; t < n; t++)
                want += p[t] / sum * cache[t * width + i];
            if (!(fabs(want - (double)got[i]) <= 2e-5))
                fail_msg("row %d head %d element %d: %g instead of %g", row, h, i, (double)got[i], want);
        }
    }
    free(p);
    free(cache);
}

/* Computed once with one thread and the scalar kernels, one row at a time; every machine must find the same. */
#define CORE_HASH     UINT64_C(0xa73e7d95877c1408)
#define EXPANDED_HASH UINT64_C(0xdf575f9a4f6a0cb8)

static void latent_core_has_the_same_bits_on_every_machine(void **state)
{
    struct core core;
    core_init(&core, DSE_KV_F16, 5, 72, 16, 2, 600, 40);
    for (int m = 0; m < 40; m++)
        set_row(&core.scene, m, m / 39, m < 39 ? 235 + m : 599);
    struct dse_device *device = open_device(&core.scene, 2);
    core_run(device, &core, 0, 40, NULL, core.latents);
    check_core(&core, 0, 0, NULL, 236);
    check_core(&core, 38, 0, NULL, 274);
    check_core(&core, 39, 1, NULL, 600);
    uint64_t hash = hash_floats(core.latents, 40 * core.latent_floats);
    if (hash != CORE_HASH) fail_msg("the hash is 0x%llx", (unsigned long long)hash);
    const struct dse_rows rows = {.n_rows = 39, .positions = core.scene.positions, .kv = core.scene.views};
    device->ops->expanded_attention(device, &core.scene.weights, LAYER, &core.scene.kv.layout, &rows, core.q,
                                    core.scene.out);
    hash = hash_floats(core.scene.out, 39 * core.scene.out_floats);
    if (hash != EXPANDED_HASH) fail_msg("the hash of the expanded form is 0x%llx", (unsigned long long)hash);
    dse_device_close(device);
    core_deinit(&core);
}

static void latent_core_merges_more_splits_than_wait_at_once(void **state)
{
    /* 43 splits of two heads do not fit one thread's 32 slots: several waves */
    enum { LENGTH = 11000 };
    struct core core;
    float one[64];
    core_init(&core, DSE_KV_F32, 2, 32, 8, 1, LENGTH, 1);
    set_row(&core.scene, 0, 0, LENGTH - 1);
    for (int threads = 1; threads <= 3; threads++) {
        struct dse_device *device = open_device(&core.scene, threads);
        core_run(device, &core, 0, 1, NULL, core.latents);
        check_core(&core, 0, 0, NULL, LENGTH);
        if (threads == 1) memcpy(one, core.latents, sizeof one);
        assert_same_bits(one, core.latents, 64, "threads");
        dse_device_close(device);
    }
    core_deinit(&core);
}

static void chosen_keys_are_the_only_ones_attended_to(void **state)
{
    /* sequence 1 is a short prompt whose rows see all their keys, with lists; of sequence 0 the odd keys are NaN */
    enum { TOP_K = 300, SHORT = 20, LONG = 24, ROWS = SHORT + LONG, LENGTH = 900 };
    static const enum dse_kv_type kinds[] = {DSE_KV_F32, DSE_KV_F16};
    for (int kind = 0; kind < 2; kind++) {
        struct core core;
        int32_t *keys = malloc((size_t)(ROWS * TOP_K) * sizeof *keys);
        core_init(&core, kinds[kind], kind == 0 ? 3 : 33, kind == 0 ? 40 : 64, 8, 2, LENGTH, ROWS);
        for (int t = 1; t < LENGTH; t += 2)
            memset(row_at(&core.scene.kv, 0, t), 0xff, core.scene.kv.layout.row_bytes);
        for (int m = 0; m < ROWS; m++) {
            set_row(&core.scene, m, m < SHORT, m < SHORT ? m : LENGTH - ROWS + m);
            for (int i = 0; i < TOP_K; i++) /* every row a list of its own */
                keys[m * TOP_K + i] = m < SHORT ? i : 2 * (i + (i > 150 + m ? 50 + m : 0));
        }
        struct dse_key_choice choice = {TOP_K, keys};
        size_t floats = ROWS * core.latent_floats;
        float *alone = malloc(floats * sizeof *alone);
        struct dse_device *device = open_device(&core.scene, 1);
        for (int m = 0; m < ROWS; m++)
            core_run(device, &core, m, m + 1, m < SHORT ? NULL : &choice, alone);
        dse_device_close(device);
        for (int threads = 1; threads <= 3; threads++) {
            device = open_device(&core.scene, threads);
            core_run(device, &core, 0, ROWS, &choice, core.latents);
            assert_same_bits(alone, core.latents, floats, "with a choice");
            dse_device_close(device);
        }
        for (int m = 0; m < ROWS; m += 11)
            check_core(&core, m, m < SHORT, keys + m * TOP_K, m < SHORT ? m + 1 : TOP_K);
        free(alone);
        free(keys);
        core_deinit(&core);
    }
}

static void a_list_of_all_keys_gives_the_bits_of_no_list(void **state)
{
    /* row 0 sees keys 0…599 by its position, row 1 is one token further and sees them by its list */
    enum { TOP_K = 600 };
    struct core core;
    int32_t keys[2 * TOP_K];
    core_init(&core, DSE_KV_F16, 16, 64, 16, 1, TOP_K + 1, 2);
    memcpy(core.q + core.q_floats, core.q, core.q_floats * sizeof *core.q);
    memcpy(core.absorbed + core.latent_floats, core.absorbed, core.latent_floats * sizeof *core.q);
    for (int i = 0; i < 2 * TOP_K; i++)
        keys[i] = i % TOP_K;
    set_row(&core.scene, 0, 0, TOP_K - 1);
    set_row(&core.scene, 1, 0, TOP_K);
    struct dse_key_choice choice = {TOP_K, keys};
    struct dse_device *device = open_device(&core.scene, 2);
    core_run(device, &core, 0, 1, NULL, core.latents);
    core_run(device, &core, 1, 2, &choice, core.latents);
    assert_same_bits(core.latents, core.latents + core.latent_floats, core.latent_floats, "listed");
    core_run(device, &core, 0, 2, &choice, core.latents);
    assert_same_bits(core.latents, core.latents + core.latent_floats, core.latent_floats, "listed together");
    dse_device_close(device);
    core_deinit(&core);
}

static void q8_0_rows_hold_the_latent_within_half_a_step(void **state)
{
    enum { ROWS = 40, RANK = 96, ROPE = 16, WIDTH = RANK + ROPE };
    static float ck[ROWS * WIDTH], q[ROWS * (32 + ROPE)], full[ROWS * WIDTH];
    struct scene exact, small;
    struct shape shape = {1, 0, RANK, 32, ROPE, 32, DSE_TYPE_F32, DSE_KV_F32, 0, {0}};
    struct random random = {5};
    scene_init(&exact, &shape, 1, ROWS, ROWS);
    shape.kv = DSE_KV_Q8_0;
    scene_init(&small, &shape, 1, ROWS, ROWS);
    assert_int_equal(small.kv.layout.row_bytes, RANK / 32 * 34 + 2 * ROPE);
    random_fill(&random, ck, ROWS * WIDTH, -2, 2);
    memset(ck, 0, 40 * sizeof *ck);
    ck[3 * WIDTH + 50] = NAN; /* makes the norm and so the whole row NaN */
    struct scene *scenes[] = {&exact, &small};
    for (int i = 0; i < 2; i++) {
        struct dse_device *device = open_device(scenes[i], 2);
        for (int m = 0; m < ROWS; m++)
            set_row(scenes[i], m, 0, m);
        struct dse_rows rows = {.n_rows = ROWS, .positions = scenes[i]->positions, .kv = scenes[i]->views};
        device->ops->latent_store(device, &scenes[i]->weights, LAYER, &scenes[i]->kv.layout, &rows, q, ck);
        dse_device_close(device);
    }
    for (int m = 0; m < ROWS; m++) {
        float got[RANK];
        const struct dse_kv_layout *layout = &small.kv.layout;
        const uint8_t *row = small.kv.pool + (size_t)small.kv.blocks[m / 32] * layout->block_bytes +
                             LAYER * layout->layer_bytes + (size_t)(m % 32) * layout->row_bytes;
        memcpy(full, row_at(&exact.kv, 0, m), sizeof(float) * WIDTH);
        dse_type_decode(DSE_TYPE_Q8_0, row, got, RANK);
        for (int i = 0; i < RANK; i++) {
            float most = 0;
            for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++)
                most = fmaxf(most, fabsf(full[j]));
            if (m == 3)
                assert_true(isnan(got[i]) && isnan(full[i]));
            else /* half a step, and the clamp where the scale was rounded down */
                assert_true(fabsf(got[i] - full[i]) <= most * (0.5f / 127 + 0x1p-11f));
        }
        for (int i = 0; i < ROPE; i++) {
            uint16_t half;
            memcpy(&half, row + RANK / 32 * 34 + 2 * i, 2);
            assert_int_equal(half, dse_f32_to_f16(full[RANK + i]));
        }
    }
    scene_deinit(&exact);
    scene_deinit(&small);
}

/* ---- the indexer ---- */

static const struct shape indexed = {3, 64, 64, 32, 16, 32, DSE_TYPE_F32, DSE_KV_F32, 2e-5, {5, 48, 24}};

/* Index query [Hi][di] and weights of a row, and its key. */
static void index_vectors(const struct scene *scene, int row, double *query, double *weights, double *key)
{
    const struct shape *s = &scene->shape;
    int di = s->indexer.head_dim, hi = s->indexer.n_heads, half = s->rope / 2;
    double x[EMBD], latent[256], mean = 0, variance = 0;
    for (int i = 0; i < EMBD; i++)
        x[i] = (double)scene->x[row * EMBD + i];
    norm(x, scene->attn_norm, EMBD, 1e-3, x);
    multiply(scene->q_a.values, s->q_rank, EMBD, x, latent);
    norm(latent, scene->q_a_norm, s->q_rank, 1e-6, latent);
    multiply(scene->index_q.values, hi * di, s->q_rank, latent, query);
    multiply(scene->index_k.values, di, EMBD, x, key);
    multiply(scene->index_weights.values, hi, EMBD, x, weights);
    for (int i = 0; i < di; i++)
        mean += key[i] / di;
    for (int i = 0; i < di; i++)
        variance += (key[i] - mean) * (key[i] - mean) / di;
    for (int i = 0; i < di; i++)
        key[i] = (key[i] - mean) / sqrt(variance + 1e-6) * (double)scene->index_norm[i] + (double)scene->index_bias[i];
    for (int h = 0; h <= hi; h++)
        for (int i = 0; i < half; i++) {
            double *v = h < hi ? query + h * di : key, a = v[i], b = v[i + half];
            double angle = scene->positions[row] * (double)scene->frequencies[i];
            v[i] = 1.25 * (a * cos(angle) - b * sin(angle));
            v[i + half] = 1.25 * (b * cos(angle) + a * sin(angle));
        }
}

static double index_score(const struct shape *s, const double *query, const double *weights, const double *key)
{
    double score = 0;
    for (int h = 0; h < s->indexer.n_heads; h++) {
        double dot = 0;
        for (int i = 0; i < s->indexer.head_dim; i++)
            dot += query[h * s->indexer.head_dim + i] * key[i];
        score += weights[h] * fmax(dot, 0);
    }
    return score / sqrt(s->indexer.head_dim) / sqrt(s->indexer.n_heads);
}

/* keys: ascending, and none of those left out has a score that is clearly larger than one of those taken. */
static void check_choice(const struct scene *scene, int row, const int32_t *keys, double tolerance)
{
    enum { MOST = 5 * 48 };
    const struct shape *s = &scene->shape;
    int n = scene->positions[row] + 1, taken = n < s->indexer.top_k ? n : s->indexer.top_k;
    double query[MOST], weights[5], key[48], ignored[MOST], worst_taken = INFINITY, best_left = -INFINITY;
    index_vectors(scene, row, query, weights, key);
    for (int t = 0, i = 0; t < n; t++) {
        index_vectors(scene, row - n + 1 + t, ignored, ignored, key);
        double score = index_score(s, query, weights, key);
        bool is_taken = i < taken && keys[i] == t;
        if (is_taken) i++;
        if (is_taken) worst_taken = fmin(worst_taken, score);
        if (!is_taken) best_left = fmax(best_left, score);
        if (t == n - 1) assert_int_equal(i, taken); /* all of them were found, in order */
    }
    if (!(best_left <= worst_taken + tolerance))
        fail_msg("row %d: a key with score %g was left out, one with %g taken", row, best_left, worst_taken);
}

static void the_indexer_takes_the_keys_with_the_largest_scores(void **state)
{
    enum { LENGTH = 301, TOP_K = 24 };
    for (int kind = 0; kind < 3; kind++) {
        static const enum dse_kv_type kinds[] = {DSE_KV_F32, DSE_KV_F16, DSE_KV_Q8_0};
        struct shape shape = indexed;
        struct scene scene;
        struct expanded e[LENGTH];
        int32_t *keys = malloc((size_t)(LENGTH * TOP_K) * sizeof *keys);
        struct dse_key_choice choice = {TOP_K, keys};
        shape.kv = kinds[kind];
        shape.tolerance = kind == 0 ? 2e-5 : 3e-2;
        scene_init(&scene, &shape, 1, LENGTH, LENGTH);
        for (int m = 0; m < LENGTH; m++) {
            set_row(&scene, m, 0, m);
            e[m] = expand(&scene, m);
        }
        struct dse_device *device = open_device(&scene, 2);
        run(device, &scene, 0, LENGTH, &choice, scene.out);
        /* the angles are those of the whole batch still: the next layer need not compute them again */
        for (int m = 0; m < LENGTH; m++)
            assert_int_equal(((const struct cpu_state *)device->state)->angle_positions[m], m);
        for (int m = 0; m < LENGTH; m += m < 30 ? 1 : 45) {
            check_choice(&scene, m, keys + m * TOP_K, kind == 0 ? 1e-5 : 1e-2);
            check_row(&scene, e, 0, m, keys + m * TOP_K, m < TOP_K ? m + 1 : TOP_K);
        }
        for (int m = 0; m < LENGTH; m++)
            expanded_deinit(&e[m]);
        dse_device_close(device);
        scene_deinit(&scene);
        free(keys);
    }
}

static void the_choice_does_not_depend_on_batch_threads_or_chunks(void **state)
{
    enum { TOP_K = 24 };
    struct scene scene;
    mixed_scene(&scene, &indexed);
    size_t n_keys = (size_t)(scene.n_rows * TOP_K), floats = (size_t)scene.n_rows * scene.out_floats;
    struct dse_key_choice one = {TOP_K, calloc(n_keys, sizeof(int32_t))},
                          many = {TOP_K, calloc(n_keys, sizeof(int32_t))};
    float *alone = malloc(floats * sizeof *alone);
    struct dse_device *device = open_device(&scene, 1);
    for (int m = 0; m < scene.n_rows; m++)
        run(device, &scene, m, m + 1, &one, alone);
    dse_device_close(device);
    for (int threads = 1; threads <= 3; threads++) {
        static const int chunks[] = {1000, 7, 64};
        int step = chunks[threads - 1];
        device = open_device(&scene, threads);
        memset(scene.kv.pool, 0xff, (size_t)(3 * scene.kv.blocks_per_sequence) * scene.kv.layout.block_bytes);
        for (int at = 0; at < scene.n_rows; at += step)
            run(device, &scene, at, at + step < scene.n_rows ? at + step : scene.n_rows, &many, scene.out);
        assert_memory_equal(one.keys, many.keys, n_keys * sizeof(int32_t));
        assert_same_bits(alone, scene.out, floats, "chunked");
        dse_device_close(device);
    }
    free(one.keys);
    free(many.keys);
    free(alone);
    scene_deinit(&scene);
}

static void equal_scores_go_to_the_lower_position_and_nan_comes_last(void **state)
{
    enum { LENGTH = 100, TOP_K = 24 };
    struct scene scene;
    int32_t keys[LENGTH * TOP_K];
    struct dse_key_choice choice = {TOP_K, keys};
    scene_init(&scene, &indexed, 1, LENGTH, LENGTH);
    memset(scene.frequencies, 0,
           sizeof scene.frequencies); /* no rotation: the same token has the same key everywhere */
    for (int m = 0; m < LENGTH; m++) {
        set_row(&scene, m, 0, m);
        memcpy(scene.x + m * EMBD, scene.x, EMBD * sizeof *scene.x);
    }
    scene.x[5 * EMBD] = NAN;
    struct dse_device *device = open_device(&scene, 2);
    run(device, &scene, 0, LENGTH, &choice, scene.out);
    for (int i = 0; i < TOP_K; i++)
        assert_int_equal(keys[(LENGTH - 1) * TOP_K + i], i < 5 ? i : i + 1);
    assert_int_equal(keys[(TOP_K - 1) * TOP_K + 5], 5); /* few enough keys: all of them */
    dse_device_close(device);
    scene_deinit(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_attention_is_close_to_the_expanded_form_in_f64),
        cmocka_unit_test(bits_do_not_depend_on_batch_threads_or_chunks),
        cmocka_unit_test(expanded_attention_is_close_to_f64),
        cmocka_unit_test(expanded_bits_do_not_depend_on_rows_beside_them_or_threads),
        cmocka_unit_test(a_later_row_never_reaches_an_earlier_one),
        cmocka_unit_test(latent_core_has_the_same_bits_on_every_machine),
        cmocka_unit_test(latent_core_merges_more_splits_than_wait_at_once),
        cmocka_unit_test(chosen_keys_are_the_only_ones_attended_to),
        cmocka_unit_test(a_list_of_all_keys_gives_the_bits_of_no_list),
        cmocka_unit_test(q8_0_rows_hold_the_latent_within_half_a_step),
        cmocka_unit_test(the_indexer_takes_the_keys_with_the_largest_scores),
        cmocka_unit_test(the_choice_does_not_depend_on_batch_threads_or_chunks),
        cmocka_unit_test(equal_scores_go_to_the_lower_position_and_nan_comes_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

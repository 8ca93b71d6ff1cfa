/* Data for the kernel tests: file blocks with plausible or extreme fields, and activations. */
#include "kernel_data.h"

#include <string.h>

#include "base/alloc.h"

const enum dse_type packed_types[] = {
    DSE_TYPE_F32,    DSE_TYPE_F16,    DSE_TYPE_Q4_0, DSE_TYPE_Q4_1,    DSE_TYPE_Q5_0, DSE_TYPE_Q5_1,
    DSE_TYPE_Q8_0,   DSE_TYPE_Q2_K,   DSE_TYPE_Q3_K, DSE_TYPE_Q4_K,    DSE_TYPE_Q5_K, DSE_TYPE_Q6_K,
    DSE_TYPE_IQ4_NL, DSE_TYPE_IQ4_XS, DSE_TYPE_BF16, DSE_TYPE_F8_E4M3,
};
const size_t packed_type_count = sizeof packed_types / sizeof packed_types[0];

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

float random_unit(uint64_t *state)
{
    return (float)(random_next(state) >> 40) * 0x1p-23f - 1.0f;
}

/* Byte offsets of the f16 fields of a block; -1 where there is none. */
static void scale_offsets(enum dse_type type, int offset[2])
{
    offset[0] = 0;
    offset[1] = -1;
    switch (type) {
    case DSE_TYPE_Q4_1:
    case DSE_TYPE_Q5_1:
    case DSE_TYPE_Q4_K:
    case DSE_TYPE_Q5_K: offset[1] = 2; return;
    case DSE_TYPE_Q2_K: offset[0] = 80, offset[1] = 82; return;
    case DSE_TYPE_Q3_K: offset[0] = 108; return;
    case DSE_TYPE_Q6_K: offset[0] = 208; return;
    default: return;
    }
}

static uint16_t make_scale(enum data_kind kind, uint64_t *state)
{
    if (kind == DATA_ODD) {
        static const uint16_t odd[] = {0, 0x8000, 1, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff};
        return odd[random_next(state) % (sizeof odd / sizeof odd[0])];
    }
    if (kind == DATA_LARGEST) return dse_f32_to_f16(random_next(state) % 2 ? 1.5f : -0.75f);
    return dse_f32_to_f16(random_unit(state) * 0.1f);
}

static float make_value(enum data_kind kind, uint64_t *state)
{
    static const float odd[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 0x1p-126f, 1.0f, -3.5f};
    if (kind == DATA_ODD) return odd[random_next(state) % (sizeof odd / sizeof odd[0])];
    if (kind == DATA_LARGEST) return random_next(state) % 2 ? 60000.0f : -60000.0f;
    return random_unit(state);
}

static uint8_t make_e4m3(enum data_kind kind, uint64_t *state)
{
    static const uint8_t odd[] = {0, 0x80, 1, 0x81, 7, 0x87, 8, 0x88, 0x38, 0xC6};
    const uint8_t bits = (uint8_t)random_next(state);
    if (kind == DATA_ODD) return odd[bits % sizeof odd];
    if (kind == DATA_LARGEST) return bits % 2 ? 0x7E : 0xFE;
    return (bits & 0x7F) == 0x7F ? 0 : bits;
}

static void make_plain(enum dse_type type, size_t n, enum data_kind kind, uint64_t *state, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        if (type == DSE_TYPE_F8_E4M3) {
            out[i] = make_e4m3(kind, state);
            continue;
        }
        float f = make_value(kind, state);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        uint16_t half = type == DSE_TYPE_F16 ? dse_f32_to_f16(f) : (uint16_t)(bits >> 16);
        if (type == DSE_TYPE_F32)
            memcpy(out + 4 * i, &f, 4);
        else
            memcpy(out + 2 * i, &half, 2);
    }
}

uint8_t *make_source(enum dse_type type, size_t rows, size_t cols, enum data_kind kind, uint64_t seed)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)type);
    size_t blocks = rows * cols / (size_t)info->block_elements, block_bytes = (size_t)info->block_bytes;
    uint64_t state = seed * 1000 + (uint64_t)type;
    uint8_t *source = dse_alloc(DSE_MEM_MISC, blocks * block_bytes);
    if (source == NULL) return NULL;
    if (info->block_elements == 1) {
        make_plain(type, blocks, kind, &state, source);
        return source;
    }
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *block = source + b * block_bytes;
        int offset[2];
        scale_offsets(type, offset);
        /* 0xff is the largest of unsigned fields; 0x80 the largest magnitude of signed ones. */
        uint8_t largest = random_next(&state) % 4 == 0 ? 0 : type == DSE_TYPE_Q8_0 && b % 2 ? 0x80 : 0xff;
        for (size_t i = 0; i < block_bytes; i++)
            block[i] = kind == DATA_LARGEST ? largest : (uint8_t)random_next(&state);
        if (type == DSE_TYPE_Q6_K && kind == DATA_LARGEST) memset(block + 192, b % 2 ? 0x80 : 0x7f, 16);
        for (int i = 0; i < 2; i++) {
            uint16_t h = make_scale(kind, &state);
            if (offset[i] >= 0) memcpy(block + offset[i], &h, 2);
        }
    }
    return source;
}

float *make_fp8_scales(size_t rows, size_t cols, enum data_kind kind, uint64_t seed)
{
    static const float odd[] = {0.0f, -0.0f, 0x1p-149f, -0x1.8p-130f, 0x1p-126f, 1.0f, -3.5f};
    const size_t n = (rows + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK * ((cols + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK);
    float *scales = dse_calloc(DSE_MEM_MISC, n, sizeof *scales);
    uint64_t state = seed;
    for (size_t i = 0; scales != NULL && i < n; i++) {
        scales[i] = random_unit(&state) * 0.01f;
        if (kind == DATA_ODD) scales[i] = odd[random_next(&state) % (sizeof odd / sizeof odd[0])];
        if (kind == DATA_LARGEST) scales[i] = random_next(&state) % 2 ? 0x1.fffffep104f : -0x1p100f;
    }
    return scales;
}

struct dse_matrix make_matrix(enum dse_type type, const uint8_t *source, size_t rows, size_t cols)
{
    struct dse_matrix w = {
        .layout = dse_matrix_layout(type, cols, false), .source_type = type, .rows = rows, .cols = cols};
    size_t bytes = 0;
    void *data = NULL;
    if (dse_matrix_packed_bytes(w.layout, rows, cols, &bytes)) data = dse_alloc_aligned(DSE_MEM_MISC, 64, bytes);
    if (data == NULL) return w;
    memset(data, 0, bytes);
    dse_matrix_pack(type, source, cols, 0, rows, w.layout, data, 0);
    w.data = data;
    w.panel_bytes = dse_matrix_panel_bytes(w.layout, cols);
    return w;
}

void free_matrix(struct dse_matrix *w)
{
    dse_free((void *)(uintptr_t)w->data);
    w->data = NULL;
}

struct test_activation make_activation(size_t n_rows, size_t cols, enum data_kind kind, uint64_t seed)
{
    struct test_activation t = {0};
    uint64_t state = seed;
    size_t stride = cols + 3;
    t.x = dse_calloc(DSE_MEM_MISC, n_rows * stride, sizeof(float));
    t.memory = dse_alloc_aligned(DSE_MEM_MISC, 64, dse_activation_bytes(n_rows, cols));
    for (size_t m = 0; m < n_rows; m++)
        for (size_t k = 0; k < cols; k++) {
            float v = random_unit(&state);
            if (kind == DATA_LARGEST) v = m == 0 ? 5.0f : m == 1 ? -5.0f : v < 0 ? -5.0f : 5.0f;
            if (kind == DATA_ODD) v = m % 3 == 0 ? 0.0f : k / 32 % 2 ? v * 0x1p-120f : v;
            t.x[m * stride + k] = v;
        }
    t.act.x = t.x;
    t.act.stride = stride;
    dse_activation_place(&t.act, t.memory, n_rows, cols);
    if (cols % DSE_ACT_BLOCK == 0) dse_activation_quantize(&t.act, cols, 0, n_rows);
    return t;
}

void free_activation(struct test_activation *t)
{
    dse_free(t->x);
    dse_free(t->memory);
}

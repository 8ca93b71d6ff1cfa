/* The CPU device's own state, shared by its source files only.
 *
 * All memory that an op touches is carved out of one scratch area in reserve; ops never allocate.
 */
#ifndef DSE_DEVICE_CPU_H
#define DSE_DEVICE_CPU_H

#include "device/device.h"
#include "kernels/attention.h"

/* Up to this many rows every thread prepares the activations for itself instead of meeting the others at a barrier. */
#define CPU_PRIVATE_ROWS 4
/* With more rows, a unit of work is so many rows by so many panels of 16 weight rows. */
#define CPU_CHUNK_ROWS   192
#define CPU_CHUNK_PANELS 4
/* Partial attention results that may wait for their merge, per thread. */
#define CPU_ATTENTION_SLOTS 32

/* One thread's memory. */
struct cpu_thread {
    float *normed;    /* [CPU_PRIVATE_ROWS][widest input] */
    void *activation; /* of CPU_PRIVATE_ROWS rows, widest input */
    float *up;        /* [CPU_CHUNK_ROWS][CPU_CHUNK_PANELS * 16] */
    float *q;         /* [DSE_ATTENTION_COLUMNS][width] */
    float *scores;    /* [DSE_ATTENTION_COLUMNS][DSE_ATTENTION_SCORES] */
    float *block;     /* [32][width] */
    float *m, *l, *o; /* a partial result: [columns], [columns], [columns][width] */
    float *k_head;    /* [d] a key on its way into the cache */
};

/* Query rows of one sequence that are computed together, as DSE_ATTENTION_COLUMNS allows. */
struct cpu_tile {
    int first_row, n_rows;
};

struct cpu_state {
    struct dse_attention_ops kernels;
    int n_threads;

    void *scratch;
    size_t scratch_bytes;
    int max_rows;
    struct cpu_thread *threads; /* [n_threads] */
    float *normed;              /* [max_rows][widest input] */
    void *activation;           /* of max_rows rows */
    size_t widest;              /* columns of the widest input of a matrix */
    struct cpu_tile *tiles;     /* [max_rows] */
    /* Partial and running attention results that threads exchange: [slots][columns * (2 + width)]. */
    float *slots, *running;
    size_t n_slots, slot_floats;
    /* cos and sin of the rows of the batch, kept over the layers: [max_rows][r/2] each. */
    float *cosines, *sines;
    int32_t *angle_positions;       /* [max_rows] position that a row of the tables belongs to, -1: none */
    const float *angle_frequencies; /* whose tables they are */
};

/* cpu_load.c */
enum dse_status dse_cpu_load(struct dse_device *device, const struct dse_model_file *file, bool f32,
                             const char *pack_cache, struct dse_device_weights *out, struct dse_error *err);
void dse_cpu_unload(struct dse_device *device, struct dse_device_weights *weights);

/* cpu_scratch.c */
size_t dse_cpu_scratch_bytes(const struct dse_device *device, const struct dse_config *config, int max_rows);
enum dse_status dse_cpu_reserve(struct dse_device *device, const struct dse_config *config, int max_rows,
                                struct dse_error *err);

/* cpu_ops.c */
void dse_cpu_embed(struct dse_device *device, const struct dse_tensor *table, const struct dse_rows *rows, float *x);
void dse_cpu_qkv(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                 const float *x, int n_rows, float *q, float *k, float *v);
void dse_cpu_project_add(struct dse_device *device, const struct dse_matrix *w, const float *in, int n_rows, float *x);
void dse_cpu_ffn_up(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                    const float *x, int n_rows, float *h);
void dse_cpu_logits(struct dse_device *device, const struct dse_device_weights *weights, const float *x,
                    const int32_t *row_index, int n_out, float *logits);

/* cpu_rope.c */
void dse_cpu_rope_store(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                        const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *k,
                        const float *v);

/* cpu_attention.c */
void dse_cpu_attention(struct dse_device *device, const struct dse_config *config, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q, float *out);

#endif

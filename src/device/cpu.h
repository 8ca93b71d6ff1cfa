/* The CPU device's own state, shared by its source files only.
 *
 * All memory that an op touches is carved out of one scratch area in reserve; ops never allocate.
 */
#ifndef DSE_DEVICE_CPU_H
#define DSE_DEVICE_CPU_H

#include "device/device.h"
#include "kernels/attention.h"
#include "kernels/expanded.h"

/* Up to this many rows every thread prepares the activations for itself instead of meeting the others at a barrier. */
#define CPU_PRIVATE_ROWS 4
/* With more rows, a unit of work is so many rows by so many panels of 16 weight rows. */
#define CPU_CHUNK_ROWS   192
#define CPU_CHUNK_PANELS 4
/* Rows of a head's matrix product (head_project) that a thread prepares and computes in one go. */
#define CPU_HEAD_ROWS 32
/* Partial attention results that may wait for their merge, per thread. */
#define CPU_ATTENTION_SLOTS 32

/* Rows of a sequence whose attention in expanded form a thread computes in one go: keys and values are computed from
 * the latents once for so many. */
#define CPU_EXPANDED_ROWS 1024

/* Attention in expanded form; a head at a time, `key` is nope + rope values, `value` v in whole vectors. */
struct cpu_expanded {
    float *latents;   /* [DSE_EXPANDED_KEYS][key width of the cache] */
    void *latents_s8; /* their s8 form */
    float *plain;     /* [DSE_EXPANDED_KEYS][nope] keys on their way to be turned */
    float *keys;      /* [key][DSE_ATTENTION_SCORES] of a split */
    float *values;    /* [DSE_KV_SPLIT_TOKENS][value] */
    float *q, *part;  /* of a tile: [DSE_ATTENTION_COLUMNS][key], [value] */
    float *m, *l, *o; /* running results: [CPU_EXPANDED_ROWS], [], [][value] */
};

/* One thread's memory. */
struct cpu_thread {
    float *normed;    /* [CPU_PRIVATE_ROWS][widest input] */
    void *activation; /* of CPU_PRIVATE_ROWS rows, widest input; or of CPU_HEAD_ROWS rows of a head */
    float *up;        /* [CPU_CHUNK_ROWS][CPU_CHUNK_PANELS * 16] */
    float *q;         /* [DSE_ATTENTION_COLUMNS][width] */
    float *scores;    /* [DSE_ATTENTION_COLUMNS][DSE_ATTENTION_SCORES] */
    float *block;     /* [32][width] */
    float *dots;      /* latent attention: [32][DSE_ATTENTION_COLUMNS] */
    float *m, *l, *o; /* a partial result: [columns], [columns], [columns][width of a value] */
    float *k_head;    /* [width] a key on its way into the cache */
    struct cpu_expanded expanded;
    float *index_dots; /* indexer: [Hi][32] */
    float *gathered;   /* mixture of experts: [CPU_MOE_ROWS][D] rows of one expert, */
    void *gathered_s8; /* their s8 form, */
    float *expert;     /* and [CPU_MOE_ROWS][CPU_MOE_PANELS * 16] results */
};

/* Rows of an expert, and panels of its matrices, that are computed in one go. */
#define CPU_MOE_ROWS   48
#define CPU_MOE_PANELS 16

/* A row that chose an expert, and the factor on what the expert makes of it. */
struct cpu_slot {
    int32_t row;
    float weight;
};

/* Mixture of experts; E experts, k used. */
struct cpu_moe {
    float *logits;               /* [max_rows][E] of the router */
    size_t *first_slot;          /* [E + 2] slots of expert e: [first_slot[e], first_slot[e + 1]) */
    int32_t *active;             /* [E] experts that have slots, ascending */
    int n_active;                /* of the call that runs */
    struct cpu_slot *slots;      /* [max_rows * k] sorted by expert, then row */
    float *hidden, *shared;      /* [max_rows * k][F], [max_rows][S*F] between up and down */
    void *hidden_s8, *shared_s8; /* their s8 form */
};

/* Indexer; Hi heads of di values. */
struct cpu_index {
    size_t max_rows;               /* of a pass, at most DSE_LATENT_ROWS */
    float *keys, *weights;         /* [max_rows][di], [max_rows][Hi] */
    float *queries;                /* [max_rows][Hi*di] */
    size_t n_slots, *n_candidates; /* [n_slots] */
    uint64_t *candidates;          /* [n_slots][2 * top_k] */
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
    float *normed;              /* [max_rows][D]: only the residual stream is normed in many rows */
    void *activation;           /* of max_rows rows */
    size_t widest;              /* columns of the widest input of a matrix */
    struct cpu_tile *tiles;     /* [max_rows] */
    int32_t *last_keys;         /* [max_rows] last key that a row attends to */
    struct cpu_moe moe;
    struct cpu_index index;
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
bool dse_cpu_keep(struct dse_device *device, const struct dse_device_weights *weights);
void dse_cpu_unload(struct dse_device *device, struct dse_device_weights *weights);

/* cpu_adapter.c */
uint64_t dse_cpu_adapter_bytes(const struct dse_device *device, const struct dse_config *config,
                               const struct dse_adapter_file *file);
enum dse_status dse_cpu_load_adapter(struct dse_device *device, const struct dse_config *config,
                                     const struct dse_adapter_file *file, struct dse_device_adapter *out,
                                     struct dse_error *err);
void dse_cpu_unload_adapter(struct dse_device *device, struct dse_device_adapter *adapter);

/* cpu_scratch.c */
size_t dse_cpu_scratch_bytes(const struct dse_device *device, const struct dse_config *config, int max_rows);
enum dse_status dse_cpu_reserve(struct dse_device *device, const struct dse_config *config, int max_rows,
                                struct dse_error *err);

/* cpu_ops.c */
void dse_cpu_embed(struct dse_device *device, const struct dse_tensor *table, const struct dse_rows *rows, float *x);
void dse_cpu_qkv(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                 const struct dse_adaption *adaption, const float *x, int n_rows, float *q, float *k, float *v);
void dse_cpu_project_add(struct dse_device *device, const struct dse_matrix *w, const struct dse_adaption *adaption,
                         enum dse_adapter_site site, const float *in, int n_rows, float *x);
void dse_cpu_ffn_up(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                    const struct dse_adaption *adaption, const float *x, int n_rows, float *h);
void dse_cpu_mtp_input(struct dse_device *device, const struct dse_device_weights *weights,
                       const struct dse_layer *layer, const struct dse_rows *rows, float *joined, float *x);
void dse_cpu_logits(struct dse_device *device, const struct dse_device_weights *weights, const float *norm,
                    const float *x, const int32_t *row_index, int n_out, float *logits);

/* cpu_route.c */
void dse_cpu_route(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                   const float *x, int n_rows, struct dse_routes *routes);

/* cpu_moe.c */
void dse_cpu_moe(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                 const struct dse_adaption *adaption, const struct dse_routes *routes, int n_rows, float *x);

/* cpu_rope.c. begin comes first in an op that asks for angles; then threads may ask for different rows m of the op's
 * rows.
 */
struct cpu_angles {
    const float *cosine, *sine; /* [pairs], both times the rope factor */
    size_t pairs;
};
void dse_cpu_angles_begin(struct cpu_state *state, const struct dse_device_weights *weights);
struct cpu_angles dse_cpu_angles(struct cpu_state *state, const struct dse_device_weights *weights,
                                 const struct dse_rows *rows, size_t m);
void dse_cpu_rotate(float *head, const struct cpu_angles *angles, enum dse_rope_pairs kind);
/* A key as column `slot` of an area [n][32 tokens]: f32, or f16 for every other type. */
void dse_cpu_store_column(const struct cpu_state *state, enum dse_kv_type type, const float *key, size_t n,
                          uint8_t *area, size_t slot);
void dse_cpu_rope_store(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                        const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *k,
                        const float *v);

/* cpu_attention.c */
void dse_cpu_attention(struct dse_device *device, const struct dse_config *config, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q, float *out);
void dse_cpu_latent_attention(struct dse_device *device, const struct dse_config *config, int layer,
                              const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                              const float *absorbed, const struct dse_key_choice *choice, float *out);

/* cpu_latent.c */
void dse_cpu_latent_qkv(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                        const struct dse_adaption *adaption, const float *x, int n_rows, float *q_latent, float *q,
                        float *ck);
void dse_cpu_latent_store(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                          const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *ck);
void dse_cpu_head_project(struct dse_device *device, const struct dse_head_matrix *w, const float *x, size_t x_stride,
                          int n_rows, float *y);

/* cpu_expanded.c */
void dse_cpu_expanded_attention(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                                const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                                float *out);

/* cpu_index.c */
void dse_cpu_index_keys(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                        const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *x,
                        const float *q_latent, struct dse_key_choice *choice);

#endif

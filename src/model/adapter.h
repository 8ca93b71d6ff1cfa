/* A LoRA adapter on disk, opened and checked against the model that it is for: which matrix of which layer it adds to,
 * W + scale * B A, and the two factors of each.
 *
 * Two kinds of files: PEFT (adapter_config.json beside adapter_model.safetensors) and GGUF (general.type "adapter").
 * Both are untrusted. They are read into memory, so that nobody can cut them short under their reader, and every tensor
 * is looked at: an adapter that is opened fits the model in all its shapes and holds finite numbers only. Called by
 * engine/adapter.c, which lets the device pack the factors and closes the file. Formula: Hu et al., LoRA, 2021.
 */
#ifndef DSE_MODEL_ADAPTER_H
#define DSE_MODEL_ADAPTER_H

#include "model/weights.h"

/* The matrices of a layer that can be added to. */
enum dse_adapter_site {
    DSE_SITE_Q,
    DSE_SITE_K,
    DSE_SITE_V,
    DSE_SITE_O,
    DSE_SITE_GATE,
    DSE_SITE_UP,
    DSE_SITE_DOWN,
    DSE_SITE_Q_A,
    DSE_SITE_Q_B,
    DSE_SITE_KV_A,
    DSE_SITE_SHARED_GATE,
    DSE_SITE_SHARED_UP,
    DSE_SITE_SHARED_DOWN,
    DSE_SITE_COUNT
};

/* Above every published adapter. */
#define DSE_MAX_ADAPTER_RANK 4096

struct dse_adapter_module {
    int layer;
    enum dse_adapter_site site;
    const struct dse_tensor *a, *b; /* [rank, in] [out, rank]: F32, F16, BF16, from GGUF also quantized */
    int rank;
    float scale; /* alpha / rank, or alpha / sqrt(rank) */
    /* Rows of b that must be put in the order of the model's own: those of q and k where one of the two files comes
     * from a converter that turns halves of a head into pairs. 0: none. */
    size_t head_rows;
    bool to_pairs; /* the model has pairs; else it has halves */
};

struct dse_adapter_file {
    struct dse_gguf *gguf; /* one of the two is set */
    struct dse_safetensors *safetensors;
    struct dse_adapter_module *modules; /* by layer, then site */
    size_t n_modules;
    int max_rank;
};

/* path: a folder of PEFT, its .safetensors file, or a GGUF file. Files larger than max_bytes are DSE_ERR_LIMIT. base:
 * borrowed during the call. Nothing is left behind on failure. */
DSE_MUST_CHECK enum dse_status dse_adapter_file_open(const char *path, const struct dse_model_file *base,
                                                     size_t max_bytes, struct dse_adapter_file **out,
                                                     struct dse_error *err);
void dse_adapter_file_close(struct dse_adapter_file *file);

/* Where row `row` of b belongs among the rows of the model's matrix. */
size_t dse_adapter_row(const struct dse_adapter_module *module, size_t row);

#endif

/* A model on disk, opened: configuration, tensors under their fields, tokenizer definition, chat template.
 *
 * The same struct comes from a GGUF file and from a Hugging Face folder. Nothing is packed or copied here; the device
 * does that. All pointers are borrowed from the maps that the struct owns.
 */
#ifndef DSE_MODEL_WEIGHTS_H
#define DSE_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model/tensor.h"

/* One expert: views into stacked GGUF tensors or tensors of a folder. */
struct dse_expert_tensors {
    struct dse_tensor gate, up, down; /* [F, D] [F, D] [D, F] with F = moe.n_ff */
};

/* kv_b as files have it: split and transposed (GGUF), or joined (folders, old GGUF). Per head h: K part [nope, R], V
 * part [v, R]. */
struct dse_kv_b_tensors {
    const struct dse_tensor *k_b;    /* [H, R, nope], the K parts transposed; or NULL and */
    const struct dse_tensor *v_b;    /* [H, v, R] */
    const struct dse_tensor *joined; /* [H*(nope+v), R], the first nope rows of a head its K part */
};

/* V3.2 */
struct dse_indexer_tensors {
    const struct dse_tensor *q_b;                  /* [Hi*di, Rq] */
    const struct dse_tensor *k;                    /* [di, D] */
    const struct dse_tensor *k_norm, *k_norm_bias; /* [di] */
    const struct dse_tensor *weights;              /* [Hi, D] */
};

/* What a multi-token prediction layer has beside an ordinary layer. */
struct dse_mtp_tensors {
    const struct dse_tensor *embd_norm, *hidden_norm; /* [D] enorm, hnorm */
    const struct dse_tensor *project;                 /* [D, 2D] eh_proj: embedding first */
    const struct dse_tensor *head_norm;               /* [D] shared_head.norm */
};

/* One decoder layer. Fields that an architecture does not have are NULL. Shapes as Hugging Face writes them, [out, in];
 * bias and norm pointers are NULL when absent. */
struct dse_layer_tensors {
    const struct dse_tensor *attn_norm;                /* [D] */
    const struct dse_tensor *q, *k, *v, *o;            /* [H*d, D] [K*d, D] [K*d, D] [D, H*d] */
    const struct dse_tensor *q_bias, *k_bias, *v_bias; /* qwen2 */
    const struct dse_tensor *q_norm, *k_norm;          /* qwen3, [d] */
    const struct dse_tensor *ffn_norm;                 /* [D] */
    const struct dse_tensor *gate, *up, *down;         /* dense FFN: [F, D] [F, D] [D, F] */

    /* latent attention; q [H*(nope+rope), D] when there is no q_rank, o [D, H*v] */
    const struct dse_tensor *q_a, *q_a_norm, *q_b; /* [Rq, D] [Rq] [H*(nope+rope), Rq] */
    const struct dse_tensor *kv_a, *kv_a_norm;     /* [R+rope, D] [R] */
    struct dse_kv_b_tensors kv_b;
    struct dse_indexer_tensors indexer;

    /* mixture of experts */
    const struct dse_tensor *router;                                /* [E, D] */
    const struct dse_tensor *router_bias;                           /* [E] or NULL */
    struct dse_expert_tensors *experts;                             /* [E], owned by the model file */
    const struct dse_tensor *shared_gate, *shared_up, *shared_down; /* [S*F, D] [S*F, D] [D, S*F] or NULL */

    struct dse_mtp_tensors mtp; /* layers [n_layers, n_layers + n_mtp_layers) */
};

struct dse_model_file {
    char *path;            /* as resolved */
    struct dse_gguf *gguf; /* one of the two is set */
    struct dse_safetensors *safetensors;
    json_t *tokenizer_json;   /* Hugging Face folder: parsed tokenizer.json, or NULL */
    json_t *tokenizer_config; /* tokenizer_config.json, or NULL */
    struct dse_config config;
    const struct dse_tensor *token_embd;    /* [V, D] */
    const struct dse_tensor *output_norm;   /* [D] */
    const struct dse_tensor *output;        /* [V, D]; token_embd when tied */
    const struct dse_tensor *rope_divisors; /* GGUF rope_freqs.weight [r/2], or NULL */
    struct dse_layer_tensors *layers;       /* [L + n_mtp_layers] */
    bool *is_taken;                         /* of each tensor, whether a field above holds it */
    char *chat_template;                    /* owned, NUL-terminated, NULL if the model has none */
    size_t weight_bytes;                    /* of all tensors used */
    size_t mtp_bytes;                       /* of the prediction layers, which no other sum contains */
    int64_t n_parameters;
    int64_t n_active_parameters; /* that one token uses: without the experts it is not routed to, and of a table of
                                  * embeddings that is no head as well, one row */
};

/* path: a GGUF file, any of its shards, or a Hugging Face folder. */
DSE_MUST_CHECK enum dse_status dse_model_file_open(const char *path, struct dse_model_file **out,
                                                   struct dse_error *err);
/* Only what text work needs: a folder or tokenizer.json, or a GGUF without weights. config and tensors stay empty. */
DSE_MUST_CHECK enum dse_status dse_model_file_open_text(const char *path, struct dse_model_file **out,
                                                        struct dse_error *err);
void dse_model_file_close(struct dse_model_file *file);
/* Name of the type that most weights of the layers have: "q4_k". */
const char *dse_model_file_quantization(const struct dse_model_file *file);
bool dse_model_file_intact(const struct dse_model_file *file);
/* True if path names a file that this model is read from, or one in the folder it is read from. */
bool dse_model_file_uses(const struct dse_model_file *file, const char *path);

#endif

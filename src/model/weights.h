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

/* One decoder layer of llama, qwen2, qwen3. Shapes as Hugging Face writes them, [out, in]; bias and norm pointers are NULL when absent. */
struct dse_layer_tensors {
    const struct dse_tensor *attn_norm;                /* [D] */
    const struct dse_tensor *q, *k, *v, *o;            /* [H*d, D] [K*d, D] [K*d, D] [D, H*d] */
    const struct dse_tensor *q_bias, *k_bias, *v_bias; /* qwen2 */
    const struct dse_tensor *q_norm, *k_norm;          /* qwen3, [d] */
    const struct dse_tensor *ffn_norm;                 /* [D] */
    const struct dse_tensor *gate, *up, *down;         /* [F, D] [F, D] [D, F] */
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
    struct dse_layer_tensors *layers;       /* [L] */
    bool *is_taken;                         /* GGUF: of each tensor, whether a field above holds it */
    char *chat_template;                    /* owned, NUL-terminated, NULL if the model has none */
    size_t weight_bytes;                    /* of all tensors used */
    int64_t n_parameters;
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

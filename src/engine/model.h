/* A loaded model inside the engine room: what dse.h keeps opaque. Immutable after dse_model_open except for the three
 * things behind locks: the device (one caller at a time), the memory of adapters, and the token trie (built when the
 * first grammar comes).
 */
#ifndef DSE_ENGINE_MODEL_H
#define DSE_ENGINE_MODEL_H

#include <dse/dse.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

struct dse_model {
    atomic_int references;
    struct dse_model_file *file;
    struct dse_device *device;
    struct dse_device_weights weights;
    bool loaded; /* weights are on the device */
    bool f32;
    struct dse_tokenizer *tokenizer; /* NULL: the model came without one */
    struct dse_template *tmpl;       /* NULL: none */
    struct dse_kv_layout kv_layout;
    int32_t *stop_tokens; /* ascending; inside the vocabulary */
    int n_stop_tokens;
    int n_samplable; /* ids that may be produced: those the tokenizer knows */
    struct dse_model_info info;

    pthread_mutex_t device_lock; /* held while ops run; never by a thread that serves clients */
    int reserved_rows;
    pthread_mutex_t adapter_lock;
    uint64_t adapter_bytes, adapter_limit; /* taken by adapters, and what they may take */
    pthread_mutex_t trie_lock;
    struct dse_token_trie *trie;
};

/* Makes the device ready for max_rows rows; grows, never shrinks. */
DSE_MUST_CHECK enum dse_status dse_model_reserve(struct dse_model *model, int max_rows, struct dse_error *err);
/* An engine begins: from now on adapters may take so much beyond what those that are open take. The most that any
 * engine planned counts; before the first there is no limit. */
void dse_model_limit_adapters(struct dse_model *model, uint64_t more_bytes);
/* What adapters take. */
uint64_t dse_model_adapter_bytes(struct dse_model *model);
/* The trie of the model's tokenizer, built once. DSE_ERR_UNSUPPORTED without a tokenizer. */
DSE_MUST_CHECK enum dse_status dse_model_trie(struct dse_model *model, const struct dse_token_trie **trie,
                                              struct dse_error *err);

#endif

/* A loaded adapter inside the engine room: what dse.h keeps opaque. Immutable after dse_adapter_open. */
#ifndef DSE_ENGINE_ADAPTER_H
#define DSE_ENGINE_ADAPTER_H

#include "engine/model.h"

struct dse_adapter {
    atomic_int references;
    struct dse_model *model; /* referenced */
    struct dse_device_adapter device;
    struct dse_adapter_info info;
};

/* The adapters of a request: those that count, each once, in an order that does not depend on the request's. */
struct dse_adapter_set {
    struct dse_adapter *adapters[DSE_MAX_ADAPTERS]; /* referenced */
    struct dse_adapter_part parts[DSE_MAX_ADAPTERS];
    int count;
    int rank; /* of all together */
};

/* Checks what a request asks for and takes references. Scales of one content are summed; what comes to 0 is left out,
 * which makes it the base model. max_rank: that a pass has room for. */
DSE_MUST_CHECK enum dse_status dse_adapter_set_init(struct dse_adapter_set *set, const struct dse_model *model,
                                                    const struct dse_adapter_use *uses, int count, int max_rank,
                                                    struct dse_error *err);
void dse_adapter_set_deinit(struct dse_adapter_set *set);
/* Of contents and scales; 0: none. What a prefix of keys and values depends on. */
uint64_t dse_adapter_set_identity(const struct dse_adapter_set *set);

#endif

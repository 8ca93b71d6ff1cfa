/* What the beginning of a prompt depends on besides its tokens: the scope of a request in the prefix cache. */
#ifndef DSE_ENGINE_PREFIX_SCOPE_H
#define DSE_ENGINE_PREFIX_SCOPE_H

#include "engine/adapter.h"
#include "engine/model.h"
#include "engine/prefix_cache.h"

/* The model's files, how they are computed, and the type of the KV cache. Not for files an attacker chooses. */
void dse_prefix_model(const struct dse_model *model, uint64_t identity[2]);
void dse_prefix_salt(const void *cache_salt, size_t bytes, uint64_t salt[2]); /* {0, 0} for none */
struct dse_prefix_scope dse_prefix_scope_of(const uint64_t model[2], const struct dse_request *request,
                                            const struct dse_adapter_set *adapters);

#endif

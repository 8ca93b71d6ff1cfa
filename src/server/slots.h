/* What requests with an `id_slot` said last: for each API key and number the tokens of a prompt and its answer, so that
 * they can be saved, restored and erased by that number (slot_actions.c).
 *
 * A slot here is a name for tokens, nothing more: it reserves no memory of the KV pool and takes no part in scheduling.
 * Any thread. The engine's thread fills slots, so the lock is held for a few loads and stores, and by dse_slots_get for
 * a copy of tokens, which are fewer than a context has: never while a file is waited for. At most DSE_MAX_SLOTS of them
 * with at most DSE_MAX_SLOT_TOKENS tokens in all: who was used least recently is forgotten.
 */
#ifndef DSE_SERVER_SLOTS_H
#define DSE_SERVER_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define DSE_MAX_SLOT_ID     255 /* numbers are 0…255 */
#define DSE_MAX_SLOTS       256
#define DSE_MAX_SLOT_TOKENS (4u << 20)

struct dse_slots;

struct dse_slot_tokens {
    int32_t *tokens; /* owned (dse_free) */
    size_t n_tokens;
    uint8_t cache_salt[32]; /* what else their keys and values depend on: see struct dse_request */
    uint64_t adapter_identity;
};

DSE_MUST_CHECK enum dse_status dse_slots_create(struct dse_slots **out, struct dse_error *err);
void dse_slots_free(struct dse_slots *slots);

/* Takes what is in *tokens: what the slot held before is forgotten. */
void dse_slots_put(struct dse_slots *slots, uint64_t tenant, int id, struct dse_slot_tokens *tokens);
/* A copy. The slot holds nothing: DSE_ERR_INVALID at `id_slot`. */
DSE_MUST_CHECK enum dse_status dse_slots_get(struct dse_slots *slots, uint64_t tenant, int id,
                                             struct dse_slot_tokens *tokens, struct dse_error *err);
void dse_slots_drop(struct dse_slots *slots, uint64_t tenant, int id);

#endif

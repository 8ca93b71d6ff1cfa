/* The table of slots (see slots.h). Filled on the engine thread when a request ends, used on the thread of actions. */
#include "server/slots.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

struct slot {
    uint64_t tenant, used; /* used: a count, 0 for an empty place */
    int id;
    struct dse_slot_tokens held;
};

struct dse_slots {
    pthread_mutex_t lock;
    uint64_t clock;
    size_t n_tokens;
    struct slot slots[DSE_MAX_SLOTS];
};

enum dse_status dse_slots_create(struct dse_slots **out, struct dse_error *err)
{
    *out = dse_calloc(DSE_MEM_SERVER, 1, sizeof **out);
    if (!*out) return dse_fail_memory(err, sizeof **out, "slots");
    pthread_mutex_init(&(*out)->lock, NULL);
    return DSE_OK;
}

void dse_slots_free(struct dse_slots *slots)
{
    if (!slots) return;
    for (int i = 0; i < DSE_MAX_SLOTS; i++)
        dse_free(slots->slots[i].held.tokens);
    pthread_mutex_destroy(&slots->lock);
    dse_free(slots);
}

static struct slot *find(struct dse_slots *slots, uint64_t tenant, int id)
{
    for (int i = 0; i < DSE_MAX_SLOTS; i++)
        if (slots->slots[i].used && slots->slots[i].tenant == tenant && slots->slots[i].id == id)
            return &slots->slots[i];
    return NULL;
}

/* An empty place, or the one used least recently. */
static struct slot *oldest(struct dse_slots *slots)
{
    struct slot *least = &slots->slots[0];
    for (int i = 1; i < DSE_MAX_SLOTS; i++)
        if (slots->slots[i].used < least->used) least = &slots->slots[i];
    return least;
}

static struct slot *oldest_in_use(struct dse_slots *slots)
{
    struct slot *least = NULL;
    for (int i = 0; i < DSE_MAX_SLOTS; i++) {
        struct slot *slot = &slots->slots[i];
        if (slot->used && (!least || slot->used < least->used)) least = slot;
    }
    return least;
}

static void empty(struct dse_slots *slots, struct slot *slot)
{
    slots->n_tokens -= slot->held.n_tokens;
    dse_free(slot->held.tokens);
    *slot = (struct slot){0};
}

void dse_slots_put(struct dse_slots *slots, uint64_t tenant, int id, struct dse_slot_tokens *tokens)
{
    pthread_mutex_lock(&slots->lock);
    struct slot *slot = find(slots, tenant, id);
    if (!slot) slot = oldest(slots);
    empty(slots, slot);
    slots->n_tokens += tokens->n_tokens;
    *slot = (struct slot){.tenant = tenant, .used = ++slots->clock, .id = id, .held = *tokens};
    *tokens = (struct dse_slot_tokens){0};
    for (struct slot *least; slots->n_tokens > DSE_MAX_SLOT_TOKENS && (least = oldest_in_use(slots)) != slot;)
        empty(slots, least);
    pthread_mutex_unlock(&slots->lock);
}

enum dse_status dse_slots_get(struct dse_slots *slots, uint64_t tenant, int id, struct dse_slot_tokens *tokens,
                              struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    pthread_mutex_lock(&slots->lock);
    struct slot *slot = find(slots, tenant, id);
    if (!slot) {
        status = dse_fail_at(err, DSE_ERR_INVALID, "id_slot", -1,
                             "slot %d holds nothing: a request with \"id_slot\": %d fills it", id, id);
    } else {
        *tokens = slot->held;
        tokens->tokens = dse_alloc(DSE_MEM_SERVER, slot->held.n_tokens * sizeof *tokens->tokens);
        if (tokens->tokens)
            memcpy(tokens->tokens, slot->held.tokens, slot->held.n_tokens * sizeof *tokens->tokens);
        else
            status = dse_fail_memory(err, slot->held.n_tokens * sizeof *tokens->tokens, "the tokens of a slot");
        slot->used = ++slots->clock;
    }
    pthread_mutex_unlock(&slots->lock);
    return status;
}

void dse_slots_drop(struct dse_slots *slots, uint64_t tenant, int id)
{
    pthread_mutex_lock(&slots->lock);
    struct slot *slot = find(slots, tenant, id);
    if (slot) empty(slots, slot);
    pthread_mutex_unlock(&slots->lock);
}

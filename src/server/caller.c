/* API keys to tenants, priorities and salts: see caller.h. */
#include "server/caller.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "server/params.h"

/* Clients of different keys never learn of each other's prompts by the time they take; those who name a salt share with
 * all who know it. */
static void choose_cache_salt(const char *named, const struct dse_api_key *key, uint8_t salt[32])
{
    const char *text = named != NULL ? named : key != NULL ? key->text : NULL;
    uint8_t pair[5 + 32];
    if (text == NULL) return;
    memcpy(pair, named != NULL ? "salt:" : "key:\n", 5);
    dse_sha256(text, strlen(text), pair + 5);
    dse_sha256(pair, sizeof pair, salt);
}

static enum dse_status read_header(const char *text, int *priority, struct dse_error *err)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < -DSE_MAX_PRIORITY || value > DSE_MAX_PRIORITY)
        return dse_fail_at(err, DSE_ERR_INVALID, "X-Priority", -1, "X-Priority must be an integer from %d to %d",
                           -DSE_MAX_PRIORITY, DSE_MAX_PRIORITY);
    *priority = (int)value;
    return DSE_OK;
}

enum dse_status dse_caller_identify(const struct dse_auth *auth, const struct dse_http_exchange *exchange,
                                    const struct dse_gen_params *params, struct dse_caller *caller,
                                    struct dse_error *err)
{
    const struct dse_api_key *key = dse_auth_key_of(auth, dse_http_header(exchange, "Authorization"),
                                                    dse_http_header(exchange, "x-api-key"));
    const char *header = dse_http_header(exchange, "X-Priority");
    *caller = (struct dse_caller){.tenant = key != NULL ? (uint64_t)(key - auth->keys) + 1 : 0};
    choose_cache_salt(params->cache_salt, key, caller->cache_salt);
    if (key != NULL && key->has_priority) caller->priority = key->priority;
    if (params->has_priority)
        caller->priority = params->priority;
    else if (header != NULL)
        TRY(read_header(header, &caller->priority, err));
    if (key != NULL && key->has_priority && caller->priority > key->priority) caller->priority = key->priority;
    return DSE_OK;
}

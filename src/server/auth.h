/* Who may ask: API keys, the Host check against DNS rebinding, and CORS. No I/O, no state beyond the configuration. */
#ifndef DSE_SERVER_AUTH_H
#define DSE_SERVER_AUTH_H

#include <stdbool.h>

#include "base/error.h"

/* Priorities of requests lie between minus this and this. */
#define DSE_MAX_PRIORITY 100

struct dse_api_key {
    const char *text;
    bool
        has_priority; /* the requests of this key have it, unless they ask for less; else they ask for what they like */
    int priority;
};

struct dse_auth {
    struct dse_api_key *keys; /* texts are owned */
    int n_keys;
    char **origins;
    int n_origins;
    bool guard_host; /* bound to loopback without a key: browsers must not be tricked into talking to us */
};

DSE_MUST_CHECK enum dse_status dse_auth_init(struct dse_auth *auth, const struct dse_api_key *keys, int n_keys,
                                             const char *const *origins, int n_origins, struct dse_error *err);
void dse_auth_deinit(struct dse_auth *auth);

/* authorization: "Bearer KEY"; api_key: x-api-key. Either may be NULL. */
bool dse_auth_key_ok(const struct dse_auth *auth, const char *authorization, const char *api_key);
/* The key that such a request came with, one of auth->keys; NULL when none is right, or none is needed. */
const struct dse_api_key *dse_auth_key_of(const struct dse_auth *auth, const char *authorization, const char *api_key);
/* Host header of a request to a guarded server; NULL (HTTP/1.0) passes. */
bool dse_auth_host_is_local(const char *host);
/* May pages of this origin read our answers? */
bool dse_auth_origin_ok(const struct dse_auth *auth, const char *origin);
/* Origins of web pages that are refused outright by a guarded server: a page can send requests without reading. */
bool dse_auth_origin_is_foreign_page(const struct dse_auth *auth, const char *origin);

#endif

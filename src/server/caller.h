/* Whose request it is, told by its API key: how urgent it may be, whose share of the machine it takes, and with whom it
 * shares computed beginnings of prompts. Called by generation.c. */
#ifndef DSE_SERVER_CALLER_H
#define DSE_SERVER_CALLER_H

#include "server/auth.h"
#include "server/http.h"
#include "server/openai_common.h"

struct dse_caller {
    int priority;           /* higher first */
    uint64_t tenant;        /* 0: without a key */
    uint8_t cache_salt[32]; /* all zero: those without a key */
};

/* The `priority` of the body, else X-Priority, else that of the key, else 0; beyond that of the key: its. A header that
 * is no integer of the range is DSE_ERR_INVALID. */
DSE_MUST_CHECK enum dse_status dse_caller_identify(const struct dse_auth *auth,
                                                   const struct dse_http_exchange *exchange,
                                                   const struct dse_gen_params *params, struct dse_caller *caller,
                                                   struct dse_error *err);

#endif

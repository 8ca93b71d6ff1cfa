/* What an answer must look like: response_format, grammar, and the names that vLLM, llama.cpp and SGLang have for the
 * same things. One per request; two at once are refused. Parsing needs no engine. */
#ifndef DSE_SERVER_CONSTRAINT_H
#define DSE_SERVER_CONSTRAINT_H

#include <jansson.h>

#include "base/buffer.h"
#include "text/grammar_cache.h"

enum dse_constraint_kind {
    DSE_CONSTRAINT_NONE,
    DSE_CONSTRAINT_GRAMMAR,     /* text: GBNF */
    DSE_CONSTRAINT_REGEX,       /* text: the whole answer matches */
    DSE_CONSTRAINT_CHOICE,      /* json: an array of strings */
    DSE_CONSTRAINT_SCHEMA,      /* json, or text that is parsed as JSON */
    DSE_CONSTRAINT_JSON_OBJECT, /* any object */
};

struct dse_constraint {
    enum dse_constraint_kind kind;
    const char *field; /* where it was given, for messages; static text */
    const char *text;  /* borrowed from the request, as json */
    size_t bytes;
    const json_t *json;
    unsigned flags; /* dse_schema_flags */
};

/* root: the request object, which must outlive *out. */
DSE_MUST_CHECK enum dse_status dse_constraint_parse(const json_t *root, struct dse_constraint *out,
                                                    struct dse_error *err);
/* The schema of DSE_CONSTRAINT_SCHEMA; *schema is owned. */
DSE_MUST_CHECK enum dse_status dse_constraint_schema(const struct dse_constraint *constraint, json_t **schema,
                                                     struct dse_error *err);
/* *grammar: owned, or NULL for DSE_CONSTRAINT_NONE. cache: where it may be found and is put. */
DSE_MUST_CHECK enum dse_status dse_constraint_compile(const struct dse_constraint *constraint,
                                                      struct dse_grammar_cache *cache, struct dse_grammar **grammar,
                                                      struct dse_error *err);
/* What the cache knows a constraint by. */
void dse_constraint_put_key(const struct dse_constraint *constraint, struct dse_buffer *key);
void dse_put_json_key(const json_t *value, struct dse_buffer *key); /* key->failed if there is no memory */

#define DSE_CONSTRAINT_MAX_KEY_BYTES ((size_t)4 << 20) /* of larger ones no grammar is kept */

#endif

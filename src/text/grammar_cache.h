/* Compiled grammars by their source: what comes again is not compiled again, and keeps the token masks that were worked
 * out for it. One per model served; any thread. Least recently used ones go when the bytes are used up. */
#ifndef DSE_TEXT_GRAMMAR_CACHE_H
#define DSE_TEXT_GRAMMAR_CACHE_H

#include "text/grammar.h"

#define DSE_GRAMMAR_CACHE_BYTES   ((size_t)64 << 20) /* of sources, graphs and masks, all in all */
#define DSE_GRAMMAR_CACHE_ENTRIES 256

struct dse_grammar_cache;
DSE_MUST_CHECK enum dse_status dse_grammar_cache_create(struct dse_grammar_cache **out, struct dse_error *err);
void dse_grammar_cache_free(struct dse_grammar_cache *cache);

/* The grammar of this source (compared byte by byte), referenced for the caller, or NULL. */
struct dse_grammar *dse_grammar_cache_find(struct dse_grammar_cache *cache, const char *source, size_t bytes);
/* Keeps a reference of its own; without memory or if it is too large it is not kept. */
void dse_grammar_cache_put(struct dse_grammar_cache *cache, const char *source, size_t bytes,
                           struct dse_grammar *grammar);
size_t dse_grammar_cache_count(struct dse_grammar_cache *cache); /* entries; for tests */

#endif

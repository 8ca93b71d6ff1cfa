/* The adapters that the server has loaded, by name and by number: who lists them, who chooses among them.
 *
 * One list per server, locked for as long as a lookup or a short answer takes, so that /v1/models may look at it from
 * the I/O thread.
 * Whoever takes an adapter out of it holds a reference: unloading and replacing never wait for requests. Loading itself
 * happens outside the lock, on a worker (lora.c).
 */
#ifndef DSE_SERVER_ADAPTERS_H
#define DSE_SERVER_ADAPTERS_H

#include <dse/dse.h>
#include <jansson.h>

#define DSE_MAX_LOADED_ADAPTERS    64
#define DSE_MAX_ADAPTER_NAME_BYTES 128
#define DSE_MAX_ADAPTER_SCALE      100.0

struct dse_server;
struct dse_adapter_list;

/* root: the folder that clients may load from, NULL: none; must be there. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_create(const char *root, struct dse_adapter_list **list,
                                                       struct dse_error *err);
void dse_adapter_list_free(struct dse_adapter_list *list);
bool dse_adapter_list_may_load(const struct dse_adapter_list *list);

/* What a client's path means: inside the root by its letters and by where its links lead, its files included. Returns
 * owned (dse_free). */
DSE_MUST_CHECK enum dse_status dse_adapter_list_resolve(const struct dse_adapter_list *list, const char *path,
                                                        char **resolved, struct dse_error *err);
/* 1 to 128 of A-Z a-z 0-9 . _ : / - */
DSE_MUST_CHECK enum dse_status dse_adapter_check_name(const char *name, struct dse_error *err);

/* Takes the root out of a message: clients need not know where it lies. */
void dse_adapter_list_hide_root(const struct dse_adapter_list *list, char *message);

/* Takes a reference of its own. scale: of requests that name no adapter. replace: the name may be there, and keeps its
 * number and scale. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_put(struct dse_adapter_list *list, const char *name, const char *path,
                                                    struct dse_adapter *adapter, float scale, bool replace,
                                                    struct dse_error *err);
/* What the engine has room for; fails if the adapters for everyone need more. From then on nothing is listed or given a
 * scale that would. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_set_max_rank(struct dse_adapter_list *list, int max_rank,
                                                             struct dse_error *err);
/* Whether a put would find room and a name that is free, or with replace may not be. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_check(struct dse_adapter_list *list, const char *name, bool replace,
                                                      struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_adapter_list_remove(struct dse_adapter_list *list, const char *name,
                                                       struct dse_error *err);
bool dse_adapter_list_has(struct dse_adapter_list *list, const char *name);

/* The adapters of a request: those of its field `lora` (NULL: not given), else the one that its model names, else
 * those with a scale for everyone. uses: each adapter a reference, for the caller to drop, on failure too. named: the
 * model is an adapter. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_choose(struct dse_adapter_list *list, const char *model,
                                                       const json_t *lora,
                                                       struct dse_adapter_use uses[DSE_MAX_ADAPTERS], int *n_uses,
                                                       bool *named, struct dse_error *err);
/* Scales for everyone, as POST /lora-adapters sets them: what is not in the list gets 0. All or nothing; what no
 * request could use is refused. */
DSE_MUST_CHECK enum dse_status dse_adapter_list_set_scales(struct dse_adapter_list *list, const json_t *scales,
                                                           struct dse_error *err);

/* Answers, owned; NULL without memory: entries of /v1/models, that of one name (false: there is none), and the list of
 * /lora-adapters. */
json_t *dse_adapter_list_models(struct dse_adapter_list *list, const char *parent, int64_t context_length);
bool dse_adapter_list_model(struct dse_adapter_list *list, const char *name, const char *parent, int64_t context_length,
                            json_t **object);
json_t *dse_adapter_list_json(struct dse_adapter_list *list);

#endif

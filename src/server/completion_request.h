/* A completion request (POST /v1/completions), parsed and checked. Needs no engine; the fuzzer feeds it directly. */
#ifndef DSE_SERVER_COMPLETION_REQUEST_H
#define DSE_SERVER_COMPLETION_REQUEST_H

#include "server/openai_common.h"

/* One prompt: a text or token ids. */
struct dse_completion_prompt {
    const char *text; /* borrowed; NULL: ids */
    size_t text_bytes;
    int32_t *ids; /* owned */
    size_t n_ids;
};

struct dse_completion_request {
    struct dse_gen_params params;
    struct dse_completion_prompt *prompts; /* owned array */
    int n_prompts;
    bool echo, add_special_tokens;
    const char *suffix; /* borrowed; NULL: none. The answer fills the hole between each prompt and this */
    size_t suffix_bytes;
};

/* A text, token ids, or a list of either, at most max_prompts, in a field of this name. *prompts: an owned array, to be
 * freed after a failure too. */
DSE_MUST_CHECK enum dse_status dse_completion_prompts_parse(const json_t *root, const char *field, int n_vocab,
                                                            int max_prompts, struct dse_completion_prompt **prompts,
                                                            int *n_prompts, struct dse_error *err);
void dse_completion_prompts_free(struct dse_completion_prompt *prompts, int n_prompts);

/* root must outlive *request. */
DSE_MUST_CHECK enum dse_status dse_completion_request_parse(const json_t *root, int n_vocab,
                                                            struct dse_completion_request *request,
                                                            struct dse_error *err);
void dse_completion_request_deinit(struct dse_completion_request *request); /* also after a failure */

#endif

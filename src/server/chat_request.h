/* A chat completion request, parsed and checked. Parsing needs no engine and no model: the fuzzer feeds it. */
#ifndef DSE_SERVER_CHAT_REQUEST_H
#define DSE_SERVER_CHAT_REQUEST_H

#include "server/openai_common.h"
#include "server/server_internal.h"
#include "server/tool_choice.h"

struct dse_chat_request {
    struct dse_gen_params params;
    const json_t *messages; /* borrowed; a non-empty array of checked messages */
    const json_t *tools;    /* borrowed; NULL: none, or switched off by tool_choice */
    struct dse_tool_choice choice;
    json_t *variables;                    /* owned object: chat_template_kwargs and the thinking switch */
    bool asks_thinking, refuses_thinking; /* a switch was given that wants thinking on, or off */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message is the beginning of the answer */
};

/* root must outlive *request. */
DSE_MUST_CHECK enum dse_status dse_chat_request_parse(const json_t *root, int n_vocab, struct dse_chat_request *request,
                                                      struct dse_error *err);
enum dse_chat_use {
    DSE_CHAT_SHOW,     /* only the text is wanted */
    DSE_CHAT_COUNT,    /* and the tokens */
    DSE_CHAT_GENERATE, /* and they must have a chance to fit the context */
};
/* Renders for the model that is served. */
DSE_MUST_CHECK enum dse_status dse_chat_request_prompt(const struct dse_chat_request *request,
                                                       const struct dse_served *served, enum dse_chat_use use,
                                                       struct dse_chat_prompt *out, struct dse_error *err);
/* The grammar of the answer: of its constraint, of calls, or of both; owned, NULL if anything may come. thinks: the
 * prompt ends inside an open <think>. */
DSE_MUST_CHECK enum dse_status dse_chat_request_grammar(const struct dse_chat_request *request,
                                                        const struct dse_served *served, bool thinks,
                                                        struct dse_grammar **grammar, struct dse_error *err);
/* The format in which calls are looked for in the answer. */
enum dse_tool_format dse_chat_request_tools(const struct dse_chat_request *request, const struct dse_served *served);
void dse_chat_request_deinit(struct dse_chat_request *request); /* also after a failure */

#endif

/* tool_choice and parallel_tool_calls of a chat request: which tools may or must be called, and the grammar that holds
 * the answer to it. Parsing needs no engine. */
#ifndef DSE_SERVER_TOOL_CHOICE_H
#define DSE_SERVER_TOOL_CHOICE_H

#include <jansson.h>

#include "server/constraint.h"
#include "text/tool_calls.h"

#define DSE_MAX_TOOLS 512

enum dse_tool_choice_mode { DSE_TOOL_CHOICE_AUTO, DSE_TOOL_CHOICE_NONE, DSE_TOOL_CHOICE_REQUIRED };

struct dse_tool_choice {
    enum dse_tool_choice_mode mode;
    bool *allowed; /* owned; by index in tools, NULL: all */
    bool parallel; /* more than one call in an answer */
};

/* tools: checked, NULL: none. *choice is to be deinited in every case. */
DSE_MUST_CHECK enum dse_status dse_tool_choice_parse(const json_t *root, const json_t *tools,
                                                     struct dse_tool_choice *choice, struct dse_error *err);
void dse_tool_choice_deinit(struct dse_tool_choice *choice);

/* Calls of these tools need a grammar: one must come, not all may come, not more than one may come, or a tool is
 * strict. Without, calls are what the model makes of them. */
bool dse_tool_choice_binds(const struct dse_tool_choice *choice, const json_t *tools,
                           const struct dse_constraint *constraint);
/* What a call looks like to the model that is served. */
struct dse_tool_model {
    enum dse_tool_format format;
    bool older_layout;
    bool after_thinking; /* DSE_SCHEMA_AFTER_THINKING */
    const struct dse_tokenizer *tokenizer;
    struct dse_grammar_cache *cache;
};
DSE_MUST_CHECK enum dse_status dse_tool_choice_compile(const struct dse_tool_choice *choice, const json_t *tools,
                                                       const struct dse_constraint *constraint,
                                                       const struct dse_tool_model *model, struct dse_grammar **grammar,
                                                       struct dse_error *err);

#endif

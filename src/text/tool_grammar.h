/* Which texts are tool calls in the format of a model, with arguments that satisfy the tools' schemas: a grammar for
 * answers that must be calls, or that may be text, then calls. Called by the server per request; see tool_calls.h for
 * the way back. */
#ifndef DSE_TEXT_TOOL_GRAMMAR_H
#define DSE_TEXT_TOOL_GRAMMAR_H

#include <jansson.h>

#include "text/grammar.h"
#include "text/tool_calls.h"

struct dse_tool_grammar {
    enum dse_tool_format format;
    bool older_layout;                     /* dse_tool_layout_is_older */
    const struct dse_tokenizer *tokenizer; /* which marks of the format are control tokens */
    const json_t *tools;                   /* as in a request, checked: objects with function.name */
    const bool *allowed;                   /* by index in tools; NULL: all */
    bool must_call;      /* no text, all arguments by their schemas; else only those of strict tools */
    bool parallel;       /* more than one call */
    bool after_thinking; /* as DSE_SCHEMA_AFTER_THINKING */
    /* Without must_call, what an answer without a call looks like: any text, or with is_json any JSON object, or with
     * schema what satisfies it. */
    bool is_json;
    const json_t *schema;
    const char *schema_field; /* what it is called in messages */
};

DSE_MUST_CHECK enum dse_status dse_tool_grammar_compile(const struct dse_tool_grammar *wanted, struct dse_grammar **out,
                                                        struct dse_error *err);

#endif

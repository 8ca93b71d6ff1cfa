/* What `run` keeps between answers: model, engine, the conversation, sampling flags. */
#ifndef DSE_CLI_RUN_SESSION_H
#define DSE_CLI_RUN_SESSION_H

#include <dse/dse.h>
#include <jansson.h>

#include "base/buffer.h"
#include "cli/generation.h"
#include "cli/lora.h"
#include "cli/options.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

struct dse_run_session {
    const struct dse_options *options;
    struct dse_model *model;
    struct dse_engine *engine;
    const struct dse_tokenizer *tokenizer;
    const struct dse_template *tmpl;   /* NULL: raw only */
    struct dse_template *own_template; /* from --chat-template */
    struct dse_template_traits traits;
    struct dse_grammar *grammar;
    struct dse_sampling sampling;
    struct dse_cli_adapters adapters; /* all of them, in every answer */
    struct dse_adapter_use uses[DSE_CLI_MAX_ADAPTERS];
    json_t *messages;
    int max_tokens;
    bool raw, hide_thinking, show_stats;
    int think; /* -1: the template's default, else 0 or 1 */
    bool stdout_is_terminal, printed_reasoning;
    const char *dim, *undim;   /* escape sequences or "" */
    struct dse_buffer *answer; /* gets the answer without its thinking too; NULL: only printed */
};

DSE_MUST_CHECK enum dse_status dse_run_session_open(const struct dse_options *options, struct dse_run_session *session,
                                                    struct dse_error *err);
void dse_run_session_close(struct dse_run_session *session);

DSE_MUST_CHECK enum dse_status dse_run_add_message(struct dse_run_session *session, const char *role, const char *text,
                                                   struct dse_error *err);
/* Prompt of the conversation so far. tokens: owned by the caller. */
DSE_MUST_CHECK enum dse_status dse_run_render(struct dse_run_session *session, struct dse_tokens *tokens,
                                              bool *opens_thinking, struct dse_error *err);
/* Prints the answer as it comes: to standard output, thinking dimmed on a terminal and never mixed into piped data. */
DSE_MUST_CHECK enum dse_status dse_run_generate(struct dse_run_session *session, const struct dse_tokens *tokens,
                                                bool opens_thinking, struct dse_generation_result *result,
                                                struct dse_error *err);
/* One dim line on standard error: tokens, rate, time to first token, context. */
void dse_run_print_stats(const struct dse_run_session *session, const struct dse_generation_result *result);

#endif

/* `run`: one prompt and its answer, or a chat (chat.c) when there is no prompt and a person at the terminal. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/chat.h"
#include "cli/input.h"
#include "cli/model_arguments.h"
#include "cli/run_session.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

#define MAX_PROMPT_BYTES ((size_t)64 << 20)

/* The prompt from -p, arguments, -f or a pipe; *text stays NULL when there is none. Returns owned. */
static enum dse_status find_prompt(const struct dse_options *options, char **text, struct dse_error *err)
{
    const char *given = dse_opt_text(options, DSE_OPT_PROMPT), *file = dse_opt_text(options, DSE_OPT_FILE);
    const char *positional = dse_cli_positional(options, 0);
    *text = NULL;
    if ((given != NULL) + (file != NULL) + (positional != NULL) > 1)
        return dse_fail(err, DSE_ERR_INVALID, "give the prompt once: as an argument, with -p or with -f");
    if (given == NULL) given = positional;
    if (given != NULL) {
        *text = dse_strdup(DSE_MEM_MISC, given);
        return *text != NULL ? DSE_OK : dse_fail_memory(err, strlen(given), "the prompt");
    }
    size_t bytes;
    enum dse_status status;
    if (file != NULL && strcmp(file, "-") != 0)
        status = dse_file_read(file, MAX_PROMPT_BYTES, text, &bytes, err);
    else if (file != NULL || !isatty(STDIN_FILENO))
        status = dse_read_stdin(MAX_PROMPT_BYTES, text, &bytes, err);
    else
        return DSE_OK;
    if (status == DSE_OK)
        status = dse_check_text(*text, bytes, file != NULL && strcmp(file, "-") != 0 ? file : "standard input", err);
    if (status != DSE_OK) {
        dse_free(*text);
        *text = NULL;
    }
    return status;
}

static enum dse_status answer_once(struct dse_run_session *session, const char *prompt, struct dse_error *err)
{
    struct dse_tokens tokens = {0};
    struct dse_generation_result result = {0};
    bool opens_thinking = false;
    enum dse_status status;
    if (session->raw) {
        status = dse_tokenizer_encode(session->tokenizer, prompt, strlen(prompt),
                                      DSE_ENCODE_PARSE_SPECIAL | DSE_ENCODE_ADD_BOS, &tokens, err);
        if (status == DSE_OK && tokens.count == 0) status = dse_fail(err, DSE_ERR_INVALID, "the prompt is empty");
    } else {
        status = dse_run_add_message(session, "user", prompt, err);
        if (status == DSE_OK) status = dse_run_render(session, &tokens, &opens_thinking, err);
    }
    if (status == DSE_OK) status = dse_run_generate(session, &tokens, opens_thinking, &result, err);
    if (status == DSE_OK) {
        if (session->stdout_is_terminal) fputc('\n', stdout);
        dse_run_print_stats(session, &result);
        if (result.finish == DSE_FINISH_CANCELLED) status = dse_fail(err, DSE_ERR_CANCELLED, "interrupted");
    }
    dse_tokens_deinit(&tokens);
    return status;
}

/* Without the template there is nothing that could carry these. */
static enum dse_status check_raw(const struct dse_options *options, struct dse_error *err)
{
    if (!dse_opt_flag(options, DSE_OPT_RAW)) return DSE_OK;
    const char *flag = dse_opt_text(options, DSE_OPT_SYSTEM) != NULL          ? "--system"
                       : options->values[DSE_OPT_THINK].given                 ? "--think"
                       : dse_opt_text(options, DSE_OPT_CHAT_TEMPLATE) != NULL ? "--chat-template"
                                                                              : NULL;
    if (flag == NULL) return DSE_OK;
    return dse_fail(err, DSE_ERR_INVALID, "%s does nothing with --raw, which completes the prompt without a template",
                    flag);
}

enum dse_status dse_verb_run(const struct dse_options *options, struct dse_error *err)
{
    struct dse_run_session session;
    char *prompt = NULL;
    enum dse_status status = check_raw(options, err);
    if (status == DSE_OK) status = find_prompt(options, &prompt, err);
    if (status == DSE_OK) status = dse_run_session_open(options, &session, err);
    if (status != DSE_OK) {
        dse_free(prompt);
        return status;
    }
    dse_terminal_watch_interrupts();
    status = prompt != NULL ? answer_once(&session, prompt, err) : dse_chat(&session, err);
    dse_run_session_close(&session);
    dse_free(prompt);
    return status;
}

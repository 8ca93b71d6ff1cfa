/* Parsing of chat completion requests: messages, tools, thinking switches (see chat_request.h). */
#include "base/json.h"
#include "server/chat_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/params.h"
#include "text/chat_tools.h"
#include "text/json_schema.h"

#define PATH_BYTES 96
/* Names of fields for messages; a cut one is still of use. */
static void path_set(char path[PATH_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void path_set(char path[PATH_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, PATH_BYTES, format, arguments);
    va_end(arguments);
}

static enum dse_status wrong(struct dse_error *err, const char *path, const char *expected, const json_t *found)
{
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be %s, not %s", path, expected,
                       dse_json_type_name(found));
}

static enum dse_status check_part(const json_t *part, const char *path, struct dse_error *err)
{
    static const char *const types[] = {"text", "refusal", NULL}; /* also the names of the fields with the text */
    static const char *const media[] = {"image_url", "input_audio", "video_url", "file"};
    char at[PATH_BYTES];
    int index;
    if (!json_is_object(part)) return wrong(err, path, "an object", part);
    const json_t *type = json_object_get(part, "type");
    path_set(at, "%s.type", path);
    for (size_t i = 0; json_is_string(type) && i < sizeof media / sizeof *media; i++)
        if (strcmp(json_string_value(type), media[i]) == 0)
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is of type %s; this model takes text only", path,
                               media[i]);
    TRY(dse_param_word_value(type, at, types, &index, err));
    const json_t *text = json_object_get(part, types[index]);
    path_set(at, "%s.%s", path, types[index]);
    return json_is_string(text) ? DSE_OK : wrong(err, at, "a string", text);
}

static enum dse_status check_content(const json_t *message, const char *path, bool may_be_null, struct dse_error *err)
{
    char at[PATH_BYTES];
    const json_t *content = json_object_get(message, "content");
    path_set(at, "%s.content", path);
    if (!content || json_is_null(content))
        return may_be_null ? DSE_OK : wrong(err, at, "a string or an array of parts", content);
    if (json_is_string(content)) return DSE_OK;
    if (!json_is_array(content)) return wrong(err, at, "a string or an array of parts", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        path_set(at, "%s.content[%zu]", path, i);
        TRY(check_part(json_array_get(content, i), at, err));
    }
    return DSE_OK;
}

static enum dse_status check_tool_calls(const json_t *message, const char *path, struct dse_error *err)
{
    char at[PATH_BYTES];
    const json_t *calls = dse_param_get(message, "tool_calls");
    if (!calls) return DSE_OK;
    path_set(at, "%s.tool_calls", path);
    if (!json_is_array(calls)) return wrong(err, at, "an array", calls);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        path_set(at, "%s.tool_calls[%zu]", path, i);
        if (!json_is_object(call)) return wrong(err, at, "an object", call);
        const json_t *function = json_object_get(call, "function");
        path_set(at, "%s.tool_calls[%zu].function", path, i);
        if (!json_is_object(function)) return wrong(err, at, "an object", function);
        const json_t *name = json_object_get(function, "name");
        path_set(at, "%s.tool_calls[%zu].function.name", path, i);
        if (!json_is_string(name)) return wrong(err, at, "a string", name);
        const json_t *arguments = dse_param_get(function, "arguments");
        path_set(at, "%s.tool_calls[%zu].function.arguments", path, i);
        if (arguments && !json_is_string(arguments) && !json_is_object(arguments))
            return wrong(err, at, "a string or an object", arguments);
    }
    return DSE_OK;
}

static enum dse_status check_message(const json_t *message, size_t index, struct dse_error *err)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function", NULL};
    static const char *const texts[] = {"name", "tool_call_id", "reasoning_content", "reasoning", "refusal"};
    char path[PATH_BYTES], at[PATH_BYTES];
    path_set(path, "messages[%zu]", index);
    if (!json_is_object(message)) return wrong(err, path, "an object", message);
    int role;
    path_set(at, "%s.role", path);
    TRY(dse_param_word_value(json_object_get(message, "role"), at, roles, &role, err));
    const char *name = roles[role];
    bool assistant = strcmp(name, "assistant") == 0;
    bool from_tool = strcmp(name, "tool") == 0 || strcmp(name, "function") == 0;
    TRY(check_content(message, path, assistant || from_tool, err));
    if (assistant) TRY(check_tool_calls(message, path, err));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *text = dse_param_get(message, texts[i]);
        path_set(at, "%s.%s", path, texts[i]);
        if (text && !json_is_string(text)) return wrong(err, at, "a string", text);
    }
    return DSE_OK;
}

static enum dse_status parse_messages(const json_t *root, struct dse_chat_request *request, struct dse_error *err)
{
    const json_t *messages = json_object_get(root, "messages");
    if (!json_is_array(messages)) return wrong(err, "messages", "an array", messages);
    size_t n = json_array_size(messages);
    if (n == 0) return dse_fail_at(err, DSE_ERR_INVALID, "messages", -1, "messages must not be empty");
    for (size_t i = 0; i < n; i++)
        TRY(check_message(json_array_get(messages, i), i, err));
    request->messages = messages;

    const json_t *last = json_array_get(messages, n - 1);
    bool add_given = false, prefix = false;
    request->add_generation_prompt = true;
    TRY(dse_param_bool(root, "add_generation_prompt", &request->add_generation_prompt, &add_given, err));
    TRY(dse_param_bool(root, "continue_final_message", &request->continue_final_message, NULL, err));
    char at[PATH_BYTES];
    path_set(at, "messages[%zu].prefix", n - 1);
    TRY(dse_param_bool(last, at, &prefix, NULL, err));
    if (request->continue_final_message && add_given && request->add_generation_prompt)
        return dse_fail_at(err, DSE_ERR_INVALID, "continue_final_message", -1,
                           "continue_final_message and add_generation_prompt cannot both be true");
    if (prefix) request->continue_final_message = true;
    if (!request->continue_final_message) return DSE_OK;
    request->add_generation_prompt = false;
    const json_t *content = json_object_get(last, "content");
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0 || !json_is_string(content))
        return dse_fail_at(err, DSE_ERR_INVALID, "messages", -1,
                           "only an assistant message with a text content can be continued");
    return DSE_OK;
}

static enum dse_status check_tool(const json_t *tool, size_t index, struct dse_error *err)
{
    char path[PATH_BYTES];
    const char *unused = NULL;
    bool strict;
    path_set(path, "tools[%zu]", index);
    if (!json_is_object(tool)) return wrong(err, path, "an object", tool);
    const json_t *function = json_object_get(tool, "function");
    path_set(path, "tools[%zu].function", index);
    if (!json_is_object(function)) return wrong(err, path, "an object", function);
    const json_t *name = json_object_get(function, "name");
    path_set(path, "tools[%zu].function.name", index);
    if (!json_is_string(name)) return wrong(err, path, "a string", name);
    const json_t *parameters = json_object_get(function, "parameters");
    path_set(path, "tools[%zu].function.parameters", index);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return wrong(err, path, "an object", parameters);
    path_set(path, "tools[%zu].function.strict", index);
    TRY(dse_param_bool(function, path, &strict, NULL, err));
    path_set(path, "tools[%zu].function.description", index);
    return dse_param_string(function, path, &unused, &(size_t){0}, err);
}

static enum dse_status parse_tools(const json_t *root, struct dse_chat_request *request, struct dse_error *err)
{
    const json_t *tools = dse_param_get(root, "tools");
    if (tools && !json_is_array(tools)) return wrong(err, "tools", "an array", tools);
    for (size_t i = 0; i < json_array_size(tools); i++)
        TRY(check_tool(json_array_get(tools, i), i, err));
    if (json_array_size(tools) > 0) request->tools = tools;
    TRY(dse_tool_choice_parse(root, request->tools, &request->choice, err));
    if (request->choice.mode == DSE_TOOL_CHOICE_NONE) request->tools = NULL;
    return DSE_OK;
}

/* reasoning_effort, thinking and chat_template_kwargs.enable_thinking are three names for one switch. */
static enum dse_status parse_thinking(const json_t *root, struct dse_chat_request *request, struct dse_error *err)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", NULL};
    static const char *const kinds[] = {"disabled", "enabled", "adaptive", NULL};
    int on = -1, effort = -1, kind = -1;
    const json_t *kwargs = dse_param_get(root, "chat_template_kwargs");
    const json_t *thinking = dse_param_get(root, "thinking");

    if (request->params.model && strcmp(request->params.model, "deepseek-chat") == 0) on = 0;
    if (request->params.model && strcmp(request->params.model, "deepseek-reasoner") == 0) on = 1;
    TRY(dse_param_word(root, "reasoning_effort", efforts, &effort, err));
    if (effort >= 0) on = effort > 0;
    if (thinking) {
        if (!json_is_object(thinking)) return wrong(err, "thinking", "an object", thinking);
        TRY(dse_param_word_value(json_object_get(thinking, "type"), "thinking.type", kinds, &kind, err));
        if (kind < 2) on = kind; /* adaptive leaves it to the others */
    }
    if (kwargs && !json_is_object(kwargs)) return wrong(err, "chat_template_kwargs", "an object", kwargs);

    request->variables = kwargs ? dse_json_copy(kwargs) : json_object();
    if (!request->variables) return dse_fail_memory(err, 64, "chat_template_kwargs");
    const json_t *given = json_object_get(request->variables, "enable_thinking");
    if (json_is_boolean(given)) on = json_is_true(given);
    int failed = 0;
    if (on >= 0) {
        failed |= json_object_set_new(request->variables, "enable_thinking", json_boolean(on));
        if (!json_object_get(request->variables, "thinking")) /* DeepSeek's templates call it so */
            failed |= json_object_set_new(request->variables, "thinking", json_boolean(on));
    }
    if (effort >= 0 && !json_object_get(request->variables, "reasoning_effort"))
        failed |= json_object_set_new(request->variables, "reasoning_effort", json_string(efforts[effort]));
    if (failed) return dse_fail_memory(err, 64, "chat_template_kwargs");
    request->asks_thinking = on == 1;
    request->refuses_thinking = on == 0;
    return DSE_OK;
}

/* Several names for one number; -1 is no limit. */
static enum dse_status parse_thought_budget(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    static const char *const names[] = {"thinking_budget", "thinking_token_budget", "thinking_budget_tokens"};
    const json_t *thinking = dse_param_get(root, "thinking");
    bool given = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TRY(dse_param_int(root, names[i], -1, INT64_MAX, &params->thought_budget, &given, err));
        params->has_thought_budget |= given;
    }
    TRY(dse_param_int(thinking, "thinking.budget_tokens", 1, INT64_MAX, &params->thought_budget, &given, err));
    params->has_thought_budget |= given;
    return DSE_OK;
}

static enum dse_status parse_logprobs(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    int64_t top = 0;
    TRY(dse_param_bool(root, "logprobs", &params->logprobs, NULL, err));
    TRY(dse_param_int(root, "top_logprobs", 0, DSE_MAX_TOP_LOGPROBS, &top, NULL, err));
    if (top > 0 && !params->logprobs)
        return dse_fail_at(err, DSE_ERR_INVALID, "top_logprobs", -1, "top_logprobs needs logprobs: true");
    params->sampling.top_logprobs = params->logprobs ? (int)top : -1;
    return DSE_OK;
}

enum dse_status dse_chat_request_parse(const json_t *root, int n_vocab, struct dse_chat_request *request,
                                       struct dse_error *err)
{
    *request = (struct dse_chat_request){0};
    TRY(dse_gen_params_parse(root, n_vocab, &request->params, err));
    TRY(parse_messages(root, request, err));
    TRY(parse_logprobs(root, &request->params, err));
    TRY(parse_tools(root, request, err));
    TRY(parse_thinking(root, request, err));
    return parse_thought_budget(root, &request->params, err);
}

enum dse_tool_format dse_chat_request_tools(const struct dse_chat_request *request, const struct dse_served *served)
{
    if (!request->tools) return DSE_TOOLS_NONE;
    return dse_chat_tools_told(&served->traits, true) == DSE_TOLD_IN_WORDS ? DSE_TOOLS_QWEN
                                                                           : served->traits.tool_format;
}

enum dse_status dse_chat_request_grammar(const struct dse_chat_request *request, const struct dse_served *served,
                                         bool thinks, struct dse_grammar **grammar, struct dse_error *err)
{
    /* What is thought is free. Where a token ends it, the engine waits for that; else the grammar itself does, but for
     * GBNF, which says everything. */
    bool by_text = thinks && dse_tokenizer_find_added(served->tokenizer, "</think>") < 0;
    struct dse_constraint constraint = request->params.constraint;
    if (by_text) constraint.flags |= DSE_SCHEMA_AFTER_THINKING;
    if (!request->tools || !dse_tool_choice_binds(&request->choice, request->tools, &constraint))
        return dse_constraint_compile(&constraint, served->grammars, grammar, err);
    struct dse_tool_model model = {.format = dse_chat_request_tools(request, served),
                                   .older_layout = served->traits.older_tool_layout,
                                   .after_thinking = by_text,
                                   .tokenizer = served->tokenizer,
                                   .cache = served->grammars};
    return dse_tool_choice_compile(&request->choice, request->tools, &constraint, &model, grammar, err);
}

void dse_chat_request_deinit(struct dse_chat_request *request)
{
    dse_tool_choice_deinit(&request->choice);
    dse_gen_params_deinit(&request->params);
    json_decref(request->variables);
    request->variables = NULL;
}

enum dse_status dse_chat_request_prompt(const struct dse_chat_request *request, const struct dse_served *served,
                                        enum dse_chat_use use, struct dse_chat_prompt *out, struct dse_error *err)
{
    if (!served->tmpl)
        return dse_fail(err, DSE_ERR_UNSUPPORTED,
                        "this model has no chat template; use /v1/completions, or start with --chat-template");
    bool native = dse_chat_tools_told(&served->traits, request->tools != NULL) == DSE_TOLD_BY_TEMPLATE;
    json_t *messages = NULL;
    if (!native) {
        enum dse_status status = dse_chat_tools_as_text(&served->traits, request->messages, request->tools, &messages,
                                                        err);
        if (status != DSE_OK) return status;
    }
    struct dse_template_inputs inputs = {
        .messages = native ? request->messages : messages,
        .tools = native ? request->tools : NULL,
        .add_generation_prompt = request->add_generation_prompt,
        .extra = request->variables,
    };
    size_t max_bytes = use == DSE_CHAT_SHOW       ? SIZE_MAX
                       : use == DSE_CHAT_GENERATE ? dse_served_max_prompt(served)
                                                  : DSE_SERVER_MAX_TEXT_BYTES;
    unsigned flags = (use != DSE_CHAT_SHOW ? DSE_PROMPT_ENCODE : 0) |
                     (request->continue_final_message ? DSE_PROMPT_CONTINUE_FINAL : 0);
    enum dse_status status = dse_chat_prompt_render(served->tmpl, &served->traits, served->tokenizer, served->marks,
                                                    &inputs, flags, max_bytes, out, err);
    json_decref(messages);
    if (status == DSE_ERR_TOO_LONG && err) return dse_served_check_prompt(served, (size_t)err->need, "messages", err);
    if (status == DSE_OK || !err || err->file[0] || status == DSE_ERR_NO_MEMORY) return status;
    struct dse_error copy = *err;
    return dse_fail_at(err, status, "messages", -1, "the chat template: %s", copy.message);
}

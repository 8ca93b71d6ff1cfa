/* Items, instructions, tools and switches of the Responses API -> those of a chat request (see responses_request.h).
 *
 * Nothing is stored here: what refers to something stored is refused. Tools that run at the provider are left out and
 * named in a header: agents offer them to every server, and the model does well without.
 */
#include "server/responses_request.h"

#include <dse/dse.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "server/chat_translate.h"
#include "server/params.h"

#define MAX_ECHO_BYTES (64u << 20)

const char *const dse_responses_fields[] = {"max_tokens",
                                            "max_output_tokens",
                                            "reasoning_effort",
                                            "reasoning.effort",
                                            "response_format.json_schema",
                                            "text.format",
                                            "response_format",
                                            "text.format",
                                            ".function.",
                                            ".",
                                            "messages",
                                            "input",
                                            NULL};

/* ---- items ---------------------------------------------------------------------------------------------------- */

struct items {
    json_t *messages;  /* borrowed */
    json_t *assistant; /* borrowed; the message that reasoning, texts and calls of one turn go to, NULL: none is open */
};

/* The assistant's message that may take a thought (before all else), a text (before calls) or a call. */
static enum dse_status open_assistant(struct items *items, bool for_thought, bool for_text, struct dse_error *err)
{
    json_t *open = items->assistant;
    bool spoke = open && json_array_size(json_object_get(open, "content")) > 0;
    bool called = open && json_object_get(open, "tool_calls");
    if (open && !(for_thought && (spoke || called)) && !(for_text && (spoke || called))) return DSE_OK;
    return dse_translate_message(items->messages, "assistant", &items->assistant, err);
}

static enum dse_status add_part(json_t *message, const json_t *part, const char *path, struct dse_error *err)
{
    static const char *const types[] = {"input_text", "output_text", "text", "refusal", NULL};
    static const char *const media[] = {"input_image", "input_file", "input_audio"};
    char at[DSE_FIELD_PATH_BYTES];
    int index = 0;
    if (!json_is_object(part)) return dse_field_wrong(err, path, "an object", part);
    const json_t *type = json_object_get(part, "type");
    for (size_t i = 0; json_is_string(type) && i < sizeof media / sizeof *media; i++)
        if (strcmp(json_string_value(type), media[i]) == 0)
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is of type %s; this model takes text only", path,
                               media[i]);
    dse_field_path(at, "%s.type", path);
    TRY(dse_param_word_value(type, at, types, &index, err));
    const char *name = index == 3 ? "refusal" : "text";
    dse_field_path(at, "%s.%s", path, name);
    return dse_translate_text(message, json_object_get(part, name), at, err);
}

static enum dse_status add_content(json_t *message, const json_t *content, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    if (json_is_string(content)) return dse_translate_text(message, content, path, err);
    if (!json_is_array(content)) return dse_field_wrong(err, path, "a string or an array of parts", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        dse_field_path(at, "%s[%zu]", path, i);
        TRY(add_part(message, json_array_get(content, i), at, err));
    }
    return DSE_OK;
}

static enum dse_status add_message(struct items *items, const json_t *item, const char *path, struct dse_error *err)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    char at[DSE_FIELD_PATH_BYTES];
    int role = 0;
    json_t *message;
    dse_field_path(at, "%s.role", path);
    TRY(dse_param_word_value(json_object_get(item, "role"), at, roles, &role, err));
    if (role == 1) {
        TRY(open_assistant(items, false, true, err));
        message = items->assistant;
    } else {
        items->assistant = NULL;
        TRY(dse_translate_message(items->messages, roles[role], &message, err));
    }
    dse_field_path(at, "%s.content", path);
    return add_content(message, json_object_get(item, "content"), at, err);
}

static enum dse_status add_call(struct items *items, const json_t *item, const char *path, struct dse_error *err)
{
    static const char *const strings[] = {"call_id", "name", "arguments"};
    char at[DSE_FIELD_PATH_BYTES];
    const json_t *values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = json_object_get(item, strings[i]);
        dse_field_path(at, "%s.%s", path, strings[i]);
        if (!json_is_string(values[i])) return dse_field_wrong(err, at, "a string", values[i]);
    }
    TRY(open_assistant(items, false, false, err));
    return dse_translate_call(items->assistant, values[0], values[1], values[2], err);
}

static enum dse_status add_call_output(struct items *items, const json_t *item, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    json_t *message;
    const json_t *id = json_object_get(item, "call_id");
    dse_field_path(at, "%s.call_id", path);
    if (!json_is_string(id)) return dse_field_wrong(err, at, "a string", id);
    items->assistant = NULL;
    TRY(dse_translate_message(items->messages, "tool", &message, err));
    TRY(dse_translate_set(message, "tool_call_id", json_incref((json_t *)id), err));
    dse_field_path(at, "%s.output", path);
    return add_content(message, json_object_get(item, "output"), at, err);
}

/* The thought itself if it is there, else its summary; what is encrypted nobody here can read. */
static enum dse_status add_reasoning(struct items *items, const json_t *item, const char *path, struct dse_error *err)
{
    const char *name = dse_param_get(item, "content") ? "content" : "summary";
    const json_t *parts = dse_param_get(item, name);
    char at[DSE_FIELD_PATH_BYTES];
    dse_field_path(at, "%s.%s", path, name);
    if (!parts) return DSE_OK;
    if (!json_is_array(parts)) return dse_field_wrong(err, at, "an array", parts);
    if (json_array_size(parts) == 0) return DSE_OK;
    TRY(open_assistant(items, true, false, err));
    for (size_t i = 0; i < json_array_size(parts); i++) {
        dse_field_path(at, "%s.%s[%zu].text", path, name, i);
        TRY(dse_translate_append(items->assistant, "reasoning_content",
                                 json_object_get(json_array_get(parts, i), "text"), at, err));
    }
    return DSE_OK;
}

static enum dse_status add_item(struct items *items, const json_t *item, size_t index, struct dse_error *err)
{
    char path[DSE_FIELD_PATH_BYTES], at[DSE_FIELD_PATH_BYTES];
    const char *type = "message";
    dse_field_path(path, "input[%zu]", index);
    if (!json_is_object(item)) return dse_field_wrong(err, path, "an object", item);
    dse_field_path(at, "%s.type", path);
    TRY(dse_param_string(item, at, &type, NULL, err));
    if (strcmp(type, "message") == 0) return add_message(items, item, path, err);
    if (strcmp(type, "function_call") == 0) return add_call(items, item, path, err);
    if (strcmp(type, "function_call_output") == 0) return add_call_output(items, item, path, err);
    if (strcmp(type, "reasoning") == 0) return add_reasoning(items, item, path, err);
    if (strcmp(type, "item_reference") == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s refers to a stored item; nothing is stored here", path);
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is of type %.60s, which this server does not take", path,
                       type);
}

static enum dse_status translate_input(const json_t *root, json_t *chat, struct dse_error *err)
{
    struct items items = {.messages = json_array()};
    json_t *message;
    TRY(dse_translate_set(chat, "messages", items.messages, err)); /* owns it */
    const json_t *input = json_object_get(root, "input"), *instructions = dse_param_get(root, "instructions");
    if (instructions) {
        TRY(dse_translate_message(items.messages, "system", &message, err));
        TRY(dse_translate_text(message, instructions, "instructions", err));
    }
    if (json_is_string(input)) {
        TRY(dse_translate_message(items.messages, "user", &message, err));
        return dse_translate_text(message, input, "input", err);
    }
    if (!json_is_array(input)) return dse_field_wrong(err, "input", "a string or an array of items", input);
    if (json_array_size(input) == 0) return dse_fail_at(err, DSE_ERR_INVALID, "input", -1, "input must not be empty");
    for (size_t i = 0; i < json_array_size(input); i++)
        TRY(add_item(&items, json_array_get(input, i), i, err));
    if (items.assistant && json_object_get(items.assistant, "tool_calls"))
        return dse_fail_at(err, DSE_ERR_INVALID, "input", -1,
                           "input ends with a function_call; its function_call_output must follow");
    return DSE_OK;
}

/* ---- tools and switches --------------------------------------------------------------------------------------- */

static void note_ignored(char ignored[96], const char *type)
{
    size_t length = strlen(ignored);
    if (!strstr(ignored, type)) snprintf(ignored + length, 96 - length, "%s%.40s", length ? ", " : "", type);
}

/* A type of tool that only its provider can run. */
static bool is_hosted(const char *type)
{
    static const char *const beginnings[] = {"web_search", "file_search", "code_interpreter", "image_generation",
                                             "computer",   "mcp",         "tool_search"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(type, beginnings[i], strlen(beginnings[i])) == 0) return true;
    return false;
}

static enum dse_status translate_tool(const json_t *tool, size_t index, json_t *tools, char ignored[96],
                                      struct dse_error *err)
{
    static const char *const members[] = {"description", "parameters", "strict"};
    char path[DSE_FIELD_PATH_BYTES], at[DSE_FIELD_PATH_BYTES];
    dse_field_path(path, "tools[%zu]", index);
    if (!json_is_object(tool)) return dse_field_wrong(err, path, "an object", tool);
    const json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name");
    dse_field_path(at, "%s.type", path);
    if (!json_is_string(type)) return dse_field_wrong(err, at, "a string", type);
    if (is_hosted(json_string_value(type))) {
        note_ignored(ignored, json_string_value(type));
        return DSE_OK;
    }
    if (strcmp(json_string_value(type), "function") != 0)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1,
                           "%s is of type %.60s; only function tools can be called here", path,
                           json_string_value(type));
    dse_field_path(at, "%s.name", path);
    if (!json_is_string(name)) return dse_field_wrong(err, at, "a string", name);
    json_t *function = json_pack("{s:O}", "name", name);
    json_t *made = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (json_array_append_new(tools, made) != 0) return dse_fail_memory(err, 64, "tools");
    const json_t *parameters = dse_param_get(tool, "parameters");
    dse_field_path(at, "%s.parameters", path);
    if (parameters && !json_is_object(parameters)) return dse_field_wrong(err, at, "an object", parameters);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *value = json_object_get(tool, members[i]);
        if (value && !json_is_null(value)) TRY(dse_translate_set(function, members[i], json_incref(value), err));
    }
    return DSE_OK;
}

static enum dse_status translate_tools(const json_t *root, json_t *chat, char ignored[96], struct dse_error *err)
{
    static const char *const words[] = {"auto", "required", "none", NULL}, *const types[] = {"function", NULL};
    const json_t *given = dse_param_get(root, "tools"), *choice = dse_param_get(root, "tool_choice");
    bool parallel = true;
    int index = 0;
    if (given) {
        json_t *tools = json_array();
        TRY(dse_translate_set(chat, "tools", tools, err));
        if (!json_is_array(given)) return dse_field_wrong(err, "tools", "an array", given);
        for (size_t i = 0; i < json_array_size(given); i++)
            TRY(translate_tool(json_array_get(given, i), i, tools, ignored, err));
        if (json_array_size(tools) == 0) json_object_del(chat, "tools");
    }
    TRY(dse_param_bool(root, "parallel_tool_calls", &parallel, NULL, err));
    if (!choice) return DSE_OK;
    if (!json_is_object(choice)) return dse_param_word_value(choice, "tool_choice", words, &index, err);
    TRY(dse_param_word_value(json_object_get(choice, "type"), "tool_choice.type", types, &index, err));
    const json_t *name = json_object_get(choice, "name");
    if (!json_is_string(name)) return dse_field_wrong(err, "tool_choice.name", "a string", name);
    return dse_translate_set(chat, "tool_choice",
                             json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name), err);
}

static enum dse_status translate_format(const json_t *root, json_t *chat, struct dse_error *err)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    static const char *const members[] = {"name", "description", "schema", "strict"};
    const json_t *text = dse_param_get(root, "text");
    int type = 0;
    if (!text) return DSE_OK;
    if (!json_is_object(text)) return dse_field_wrong(err, "text", "an object", text);
    const json_t *format = dse_param_get(text, "format");
    json_object_del(chat, "text");
    if (!format) return DSE_OK;
    if (!json_is_object(format)) return dse_field_wrong(err, "text.format", "an object", format);
    TRY(dse_param_word_value(json_object_get(format, "type"), "text.format.type", types, &type, err));
    if (type == 0) return DSE_OK;
    json_t *made = json_pack("{s:s}", "type", types[type]);
    TRY(dse_translate_set(chat, "response_format", made, err));
    if (type == 1) return DSE_OK;
    json_t *schema = json_object();
    TRY(dse_translate_set(made, "json_schema", schema, err));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *value = json_object_get(format, members[i]);
        if (value) TRY(dse_translate_set(schema, members[i], json_incref(value), err));
    }
    return DSE_OK;
}

static enum dse_status translate_reasoning(const json_t *root, json_t *chat, struct dse_error *err)
{
    const json_t *reasoning = dse_param_get(root, "reasoning");
    json_object_del(chat, "reasoning");
    if (!reasoning) return DSE_OK;
    if (!json_is_object(reasoning)) return dse_field_wrong(err, "reasoning", "an object", reasoning);
    json_t *effort = json_object_get(reasoning, "effort");
    return effort ? dse_translate_set(chat, "reasoning_effort", json_incref(effort), err) : DSE_OK;
}

/* What would need something stored, or would be missing in the answer. */
static enum dse_status refuse(const json_t *root, struct dse_error *err)
{
    static const char *const stored[] = {"previous_response_id", "conversation", "prompt"};
    const json_t *metadata = dse_param_get(root, "metadata");
    bool background = false, store = false;
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
        if (dse_param_get(root, stored[i]))
            return dse_fail_at(err, DSE_ERR_INVALID, stored[i], -1,
                               "%s refers to something stored; nothing is stored here, send the whole conversation as "
                               "input",
                               stored[i]);
    TRY(dse_param_bool(root, "store", &store, NULL, err)); /* SDKs send it without asking for the response again */
    TRY(dse_param_bool(root, "background", &background, NULL, err));
    if (background)
        return dse_fail_at(err, DSE_ERR_INVALID, "background", -1,
                           "background is not possible: a response is not stored to be fetched later");
    if (metadata && !json_is_object(metadata)) return dse_field_wrong(err, "metadata", "an object", metadata);
    return DSE_OK;
}

/* Of what can be asked for in addition there are log probabilities here; other words are let pass. */
static enum dse_status translate_include(const json_t *root, json_t *chat, struct dse_error *err)
{
    const json_t *include = dse_param_get(root, "include");
    int64_t top = 0;
    bool logprobs = false;
    TRY(dse_param_int(root, "top_logprobs", 0, DSE_MAX_TOP_LOGPROBS, &top, NULL, err));
    if (include && !json_is_array(include)) return dse_field_wrong(err, "include", "an array of strings", include);
    for (size_t i = 0; i < json_array_size(include); i++) {
        char path[DSE_FIELD_PATH_BYTES];
        const json_t *what = json_array_get(include, i);
        dse_field_path(path, "include[%zu]", i);
        if (!json_is_string(what)) return dse_field_wrong(err, path, "a string", what);
        logprobs |= strcmp(json_string_value(what), "message.output_text.logprobs") == 0;
    }
    if (top > 0 && !logprobs)
        return dse_fail_at(err, DSE_ERR_INVALID, "top_logprobs", -1,
                           "top_logprobs needs message.output_text.logprobs in include");
    TRY(dse_translate_set(chat, "top_logprobs", json_integer(top), err));
    return dse_translate_set(chat, "logprobs", json_boolean(logprobs), err);
}

static enum dse_status translate(const json_t *root, struct dse_responses_request *request, struct dse_error *err)
{
    json_t *chat = request->chat;
    int64_t max_tokens = -1;
    json_object_del(chat, "max_tokens");
    TRY(refuse(root, err));
    TRY(translate_include(root, chat, err));
    TRY(dse_param_int(root, "max_output_tokens", 0, INT64_MAX, &max_tokens, NULL, err));
    TRY(dse_translate_rename(chat, "max_output_tokens", "max_tokens", err));
    TRY(translate_input(root, chat, err));
    TRY(translate_tools(root, chat, request->ignored, err));
    TRY(translate_format(root, chat, err));
    return translate_reasoning(root, chat, err);
}

/* ---- what the answer repeats ---------------------------------------------------------------------------------- */

static int append(const char *text, size_t bytes, void *user)
{
    return dse_buffer_append(user, text, bytes) ? 0 : -1;
}

static enum dse_status make_echo(const json_t *root, char **echo, struct dse_error *err)
{
    static const struct {
        const char *name, *otherwise;
    } members[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"temperature", "1.0"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"top_p", "1.0"},
    };
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ECHO_BYTES);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = dse_param_get(root, members[i].name);
        dse_buffer_printf(&out, "\"%s\":", members[i].name);
        if (!value)
            dse_buffer_puts(&out, members[i].otherwise);
        else if (json_dump_callback(value, append, &out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
            out.failed = true;
        dse_buffer_putc(&out, ',');
    }
    dse_buffer_puts(&out, "\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"");
    *echo = dse_buffer_take(&out);
    dse_buffer_deinit(&out);
    return *echo ? DSE_OK : dse_fail_memory(err, 64, "response");
}

enum dse_status dse_responses_request_parse(const json_t *root, struct dse_responses_request *request,
                                            struct dse_error *err)
{
    *request = (struct dse_responses_request){.chat = dse_translate_begin(root)};
    enum dse_status status = request->chat ? translate(root, request, err) : dse_fail_memory(err, 64, "request");
    if (status == DSE_OK) status = make_echo(root, &request->echo, err);
    if (status != DSE_OK) {
        json_decref(request->chat);
        request->chat = NULL;
    }
    return status;
}

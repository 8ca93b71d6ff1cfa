/* Anthropic's messages, blocks, tools and switches -> those of a chat request (see messages_request.h).
 *
 * What would change the answer and cannot be had is refused by name: media, tools that run at the provider. Hints of
 * caching, billing and tracing are ignored.
 */
#include "server/messages_request.h"

#include <stdio.h>
#include <string.h>

#include "server/chat_translate.h"
#include "server/params.h"
#include "text/output.h"

const char *const dse_messages_fields[] = {"response_format.json_schema.schema",
                                           "output_config.format.schema",
                                           "response_format.json_schema",
                                           "output_config.format",
                                           "response_format",
                                           "output_config.format",
                                           "reasoning_effort",
                                           "output_config.effort",
                                           ".function.parameters",
                                           ".input_schema",
                                           ".function.name",
                                           ".name",
                                           NULL};

/* ---- content -------------------------------------------------------------------------------------------------- */

/* The type of a block, which must be an object; NULL after an error. */
static const char *block_type(const json_t *block, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    const json_t *type = json_object_get(block, "type");
    dse_field_path(at, "%s.type", path);
    if (!json_is_object(block))
        (void)dse_field_wrong(err, path, "an object", block);
    else if (!json_is_string(type))
        (void)dse_field_wrong(err, at, "a string", type);
    return json_string_value(type);
}

static enum dse_status refuse_type(struct dse_error *err, const char *path, const char *type)
{
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is of type %.60s, which this server does not take here",
                       path, type);
}

/* A text block, the only kind that systems and results have. */
static enum dse_status add_text_block(json_t *message, const json_t *block, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    const char *type = block_type(block, path, err);
    if (!type) return DSE_ERR_INVALID;
    if (strcmp(type, "text") != 0) return refuse_type(err, path, type);
    dse_field_path(at, "%s.text", path);
    return dse_translate_text(message, json_object_get(block, "text"), at, err);
}

/* A string or text blocks. */
static enum dse_status add_texts(json_t *message, const json_t *content, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    if (json_is_string(content)) return dse_translate_text(message, content, path, err);
    if (!json_is_array(content)) return dse_field_wrong(err, path, "a string or an array of blocks", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        dse_field_path(at, "%s[%zu]", path, i);
        TRY(add_text_block(message, json_array_get(content, i), at, err));
    }
    return DSE_OK;
}

static enum dse_status add_tool_result(json_t *messages, const json_t *block, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    json_t *message;
    bool is_error = false;
    const json_t *id = json_object_get(block, "tool_use_id"), *content = dse_param_get(block, "content");
    dse_field_path(at, "%s.tool_use_id", path);
    if (!json_is_string(id)) return dse_field_wrong(err, at, "a string", id);
    dse_field_path(at, "%s.is_error", path);
    TRY(dse_param_bool(block, at, &is_error, NULL, err));
    TRY(dse_translate_message(messages, "tool", &message, err));
    TRY(dse_translate_set(message, "tool_call_id", json_incref((json_t *)id), err));
    if (is_error) /* templates know no failed call, the model reads */
        TRY(dse_translate_set(message, "content", json_pack("[{s:s, s:s}]", "type", "text", "text", "Error: "), err));
    dse_field_path(at, "%s.content", path);
    return content ? add_texts(message, content, at, err) : DSE_OK;
}

/* Texts between results are messages of their own, in the order given. */
static enum dse_status add_user(json_t *messages, const json_t *content, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    json_t *message = NULL;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        dse_field_path(at, "%s[%zu]", path, i);
        const char *type = block_type(block, at, err);
        if (!type) return DSE_ERR_INVALID;
        if (strcmp(type, "tool_result") == 0) {
            message = NULL;
            TRY(add_tool_result(messages, block, at, err));
            continue;
        }
        if (!message) TRY(dse_translate_message(messages, "user", &message, err));
        TRY(add_text_block(message, block, at, err));
    }
    return DSE_OK;
}

static enum dse_status add_tool_use(json_t *message, const json_t *block, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    static const char *const strings[] = {"id", "name"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(block, strings[i]);
        dse_field_path(at, "%s.%s", path, strings[i]);
        if (!json_is_string(value)) return dse_field_wrong(err, at, "a string", value);
    }
    const json_t *input = json_object_get(block, "input");
    dse_field_path(at, "%s.input", path);
    if (!json_is_object(input)) return dse_field_wrong(err, at, "an object", input);
    return dse_translate_call(message, json_object_get(block, "id"), json_object_get(block, "name"), input, err);
}

static enum dse_status add_assistant(json_t *messages, const json_t *content, const char *path, struct dse_error *err)
{
    char at[DSE_FIELD_PATH_BYTES];
    json_t *message;
    TRY(dse_translate_message(messages, "assistant", &message, err));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        dse_field_path(at, "%s[%zu]", path, i);
        const char *type = block_type(block, at, err);
        if (!type) return DSE_ERR_INVALID;
        if (strcmp(type, "tool_use") == 0) {
            TRY(add_tool_use(message, block, at, err));
        } else if (strcmp(type, "thinking") == 0) {
            dse_field_path(at, "%s[%zu].thinking", path, i);
            TRY(dse_translate_append(message, "reasoning_content", json_object_get(block, "thinking"), at, err));
        } else if (strcmp(type, "redacted_thinking") != 0) { /* nobody here can read those */
            TRY(add_text_block(message, block, at, err));
        }
    }
    return DSE_OK;
}

static enum dse_status add_message(json_t *messages, const json_t *given, size_t index, struct dse_error *err)
{
    static const char *const roles[] = {"user", "assistant", "system", NULL};
    char path[DSE_FIELD_PATH_BYTES], at[DSE_FIELD_PATH_BYTES];
    int role = 0;
    dse_field_path(path, "messages[%zu]", index);
    if (!json_is_object(given)) return dse_field_wrong(err, path, "an object", given);
    dse_field_path(at, "%s.role", path);
    TRY(dse_param_word_value(json_object_get(given, "role"), at, roles, &role, err));
    const json_t *content = json_object_get(given, "content");
    dse_field_path(at, "%s.content", path);
    if (json_is_array(content) && role == 0) return add_user(messages, content, at, err);
    if (json_is_array(content) && role == 1) return add_assistant(messages, content, at, err);
    json_t *message;
    TRY(dse_translate_message(messages, roles[role], &message, err));
    return add_texts(message, content, at, err);
}

static enum dse_status translate_messages(const json_t *root, json_t *chat, struct dse_error *err)
{
    json_t *messages = json_array(), *message;
    TRY(dse_translate_set(chat, "messages", messages, err)); /* owns it */
    const json_t *given = json_object_get(root, "messages"), *system = dse_param_get(root, "system");
    if (!json_is_array(given)) return dse_field_wrong(err, "messages", "an array", given);
    if (json_array_size(given) == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "messages", -1, "messages must not be empty");
    json_object_del(chat, "system");
    if (system) {
        TRY(dse_translate_message(messages, "system", &message, err));
        TRY(add_texts(message, system, "system", err));
    }
    for (size_t i = 0; i < json_array_size(given); i++)
        TRY(add_message(messages, json_array_get(given, i), i, err));
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (json_object_get(last, "tool_calls"))
        return dse_fail_at(err, DSE_ERR_INVALID, "messages", -1,
                           "messages[%zu] calls a tool; the next message must have its tool_result",
                           json_array_size(given) - 1);
    return dse_translate_continue(chat, messages, err);
}

/* ---- tools and switches --------------------------------------------------------------------------------------- */

static enum dse_status translate_tool(const json_t *tool, size_t index, json_t *tools, struct dse_error *err)
{
    char path[DSE_FIELD_PATH_BYTES], at[DSE_FIELD_PATH_BYTES];
    const char *type = "custom", *description = NULL;
    bool strict = false, strict_given = false;
    dse_field_path(path, "tools[%zu]", index);
    if (!json_is_object(tool)) return dse_field_wrong(err, path, "an object", tool);
    dse_field_path(at, "%s.type", path);
    TRY(dse_param_string(tool, at, &type, NULL, err));
    if (strcmp(type, "custom") != 0) return refuse_type(err, path, type);
    const json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
    dse_field_path(at, "%s.name", path);
    if (!json_is_string(name)) return dse_field_wrong(err, at, "a string", name);
    dse_field_path(at, "%s.input_schema", path);
    if (!json_is_object(schema)) return dse_field_wrong(err, at, "an object", schema);
    dse_field_path(at, "%s.description", path);
    TRY(dse_param_string(tool, at, &description, NULL, err));
    dse_field_path(at, "%s.strict", path);
    TRY(dse_param_bool(tool, at, &strict, &strict_given, err));
    /* The order in which chat clients write them, and in which templates show them. */
    json_t *function = json_pack("{s:O}", "name", name);
    json_t *made = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (json_array_append_new(tools, made) != 0) return dse_fail_memory(err, 64, "tools");
    if (description) TRY(dse_translate_set(function, "description", json_string(description), err));
    TRY(dse_translate_set(function, "parameters", json_incref((json_t *)schema), err));
    if (!strict_given) return DSE_OK;
    return dse_translate_set(function, "strict", json_boolean(strict), err);
}

static enum dse_status translate_tools(const json_t *root, json_t *chat, struct dse_error *err)
{
    static const char *const kinds[] = {"auto", "any", "none", "tool", NULL}, *const words[] = {"auto", "required",
                                                                                                "none"};
    const json_t *given = dse_param_get(root, "tools"), *choice = dse_param_get(root, "tool_choice");
    if (given) {
        json_t *tools = json_array();
        if (!json_is_array(given)) {
            json_decref(tools);
            return dse_field_wrong(err, "tools", "an array", given);
        }
        TRY(dse_translate_set(chat, "tools", tools, err));
        for (size_t i = 0; i < json_array_size(given); i++)
            TRY(translate_tool(json_array_get(given, i), i, tools, err));
    }
    if (!choice) return DSE_OK;
    int kind = 0;
    bool alone = false;
    if (!json_is_object(choice)) return dse_field_wrong(err, "tool_choice", "an object", choice);
    TRY(dse_param_word_value(json_object_get(choice, "type"), "tool_choice.type", kinds, &kind, err));
    TRY(dse_param_bool(choice, "tool_choice.disable_parallel_tool_use", &alone, NULL, err));
    if (alone) TRY(dse_translate_set(chat, "parallel_tool_calls", json_false(), err));
    if (kind < 3) return dse_translate_set(chat, "tool_choice", json_string(words[kind]), err);
    const json_t *name = json_object_get(choice, "name");
    if (!json_is_string(name)) return dse_field_wrong(err, "tool_choice.name", "a string", name);
    return dse_translate_set(chat, "tool_choice",
                             json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name), err);
}

static enum dse_status translate_stops(const json_t *root, json_t *chat, struct dse_error *err)
{
    const json_t *stops = dse_param_get(root, "stop_sequences");
    if (!stops) return DSE_OK;
    if (!json_is_array(stops)) return dse_field_wrong(err, "stop_sequences", "an array of strings", stops);
    if (json_array_size(stops) > DSE_OUTPUT_MAX_STOPS)
        return dse_fail_at(err, DSE_ERR_INVALID, "stop_sequences", -1,
                           "stop_sequences has %zu strings; at most %d are possible", json_array_size(stops),
                           DSE_OUTPUT_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(stops); i++) {
        char path[DSE_FIELD_PATH_BYTES];
        const json_t *stop = json_array_get(stops, i);
        dse_field_path(path, "stop_sequences[%zu]", i);
        if (!json_is_string(stop)) return dse_field_wrong(err, path, "a string", stop);
        if (json_string_length(stop) == 0 || json_string_length(stop) > DSE_OUTPUT_MAX_STOP_BYTES)
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s has %zu bytes; 1 to %d are possible", path,
                               json_string_length(stop), DSE_OUTPUT_MAX_STOP_BYTES);
    }
    return dse_translate_set(chat, "stop", json_incref((json_t *)stops), err);
}

static enum dse_status translate_output_config(const json_t *root, json_t *chat, struct dse_error *err)
{
    static const char *const types[] = {"json_schema", NULL};
    const json_t *config = dse_param_get(root, "output_config");
    if (!config) return DSE_OK;
    if (!json_is_object(config)) return dse_field_wrong(err, "output_config", "an object", config);
    json_t *effort = json_object_get(config, "effort");
    const json_t *format = dse_param_get(config, "format");
    int index;
    if (effort) TRY(dse_translate_set(chat, "reasoning_effort", json_incref(effort), err));
    if (!format) return DSE_OK;
    if (!json_is_object(format)) return dse_field_wrong(err, "output_config.format", "an object", format);
    TRY(dse_param_word_value(json_object_get(format, "type"), "output_config.format.type", types, &index, err));
    const json_t *schema = json_object_get(format, "schema");
    if (!json_is_object(schema)) return dse_field_wrong(err, "output_config.format.schema", "an object", schema);
    return dse_translate_set(chat, "response_format",
                             json_pack("{s:s, s:{s:s, s:b, s:O}}", "type", "json_schema", "json_schema", "name",
                                       "output", "strict", 1, "schema", schema),
                             err);
}

static enum dse_status translate(const json_t *root, bool counting, json_t *chat, struct dse_error *err)
{
    int64_t max_tokens = 0;
    bool given = false;
    TRY(dse_param_int(root, "max_tokens", 0, INT64_MAX, &max_tokens, &given, err));
    if (!given && !counting)
        return dse_fail_at(err, DSE_ERR_INVALID, "max_tokens", -1, "max_tokens is missing; this endpoint needs it");
    TRY(translate_messages(root, chat, err));
    TRY(translate_tools(root, chat, err));
    TRY(translate_stops(root, chat, err));
    return translate_output_config(root, chat, err);
}

enum dse_status dse_messages_to_chat(const json_t *root, bool counting, json_t **chat, struct dse_error *err)
{
    json_t *made = dse_translate_begin(root);
    enum dse_status status = made ? translate(root, counting, made, err) : dse_fail_memory(err, 64, "request");
    if (status == DSE_OK)
        *chat = made;
    else
        json_decref(made);
    return status;
}

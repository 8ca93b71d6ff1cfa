/* Chat requests made from requests of other dialects (see chat_translate.h). Runs on workers. */
#include "server/chat_translate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "server/params.h"

json_t *dse_translate_begin(const json_t *root)
{
    static const char *const foreign[] = {
        "n",          "stop",           "max_completion_tokens", "n_predict",      "continue_final_message",
        "functions",  "function_call",  "add_generation_prompt", "logprobs",       "top_logprobs",
        "prediction", "stream_options", "return_progress",       "response_format"};
    json_t *chat = dse_json_copy(root);
    for (size_t i = 0; chat && i < sizeof foreign / sizeof *foreign; i++)
        json_object_del(chat, foreign[i]);
    return chat;
}

enum dse_status dse_translate_set(json_t *chat, const char *name, json_t *value, struct dse_error *err)
{
    return json_object_set_new(chat, name, value) == 0 ? DSE_OK : dse_fail_memory(err, 64, name);
}

enum dse_status dse_translate_rename(json_t *chat, const char *from, const char *to, struct dse_error *err)
{
    json_t *value = json_object_get(chat, from);
    if (!value) return DSE_OK;
    TRY(dse_translate_set(chat, to, json_incref(value), err));
    json_object_del(chat, from);
    return DSE_OK;
}

enum dse_status dse_translate_message(json_t *messages, const char *role, json_t **message, struct dse_error *err)
{
    *message = json_pack("{s:s, s:[]}", "role", role, "content");
    return json_array_append_new(messages, *message) == 0 ? DSE_OK : dse_fail_memory(err, 64, "messages");
}

enum dse_status dse_translate_text(json_t *message, const json_t *text, const char *path, struct dse_error *err)
{
    if (!json_is_string(text)) return dse_field_wrong(err, path, "a string", text);
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", text);
    if (json_array_append_new(json_object_get(message, "content"), part) == 0) return DSE_OK;
    return dse_fail_memory(err, 64, path);
}

enum dse_status dse_translate_append(json_t *message, const char *name, const json_t *text, const char *path,
                                     struct dse_error *err)
{
    if (!json_is_string(text)) return dse_field_wrong(err, path, "a string", text);
    const json_t *before = json_object_get(message, name);
    if (!before) return dse_translate_set(message, name, json_incref((json_t *)text), err);
    struct dse_buffer both;
    dse_buffer_init(&both, DSE_MEM_REQUEST, SIZE_MAX / 2);
    dse_buffer_append(&both, json_string_value(before), json_string_length(before));
    dse_buffer_append(&both, json_string_value(text), json_string_length(text));
    json_t *joined = both.failed ? NULL : json_stringn(dse_buffer_text(&both), both.length);
    dse_buffer_deinit(&both);
    return dse_translate_set(message, name, joined, err);
}

enum dse_status dse_translate_call(json_t *message, const json_t *id, const json_t *name, const json_t *arguments,
                                   struct dse_error *err)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        TRY(dse_translate_set(message, "tool_calls", json_array(), err));
        calls = json_object_get(message, "tool_calls");
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    return json_array_append_new(calls, call) == 0 ? DSE_OK : dse_fail_memory(err, 64, "tool_calls");
}

enum dse_status dse_translate_continue(json_t *chat, json_t *messages, struct dse_error *err)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *parts = json_object_get(last, "content");
    if (!role || strcmp(role, "assistant") != 0 || json_array_size(parts) == 0) return DSE_OK;
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_REQUEST, SIZE_MAX / 2);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_object_get(json_array_get(parts, i), "text");
        dse_buffer_append(&text, json_string_value(part), json_string_length(part));
    }
    json_t *joined = text.failed ? NULL : json_stringn(dse_buffer_text(&text), text.length);
    dse_buffer_deinit(&text);
    TRY(dse_translate_set(last, "content", joined, err));
    return dse_translate_set(chat, "continue_final_message", json_true(), err);
}

void dse_field_path(char path[DSE_FIELD_PATH_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, DSE_FIELD_PATH_BYTES, format, arguments);
    va_end(arguments);
}

enum dse_status dse_field_wrong(struct dse_error *err, const char *path, const char *expected, const json_t *found)
{
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be %s, not %s", path, expected,
                       dse_json_type_name(found));
}

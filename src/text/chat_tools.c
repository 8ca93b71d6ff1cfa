/* Tools as text (see chat_tools.h). */
#include "text/chat_tools.h"

#include <string.h>

#include "base/buffer.h"
#include "base/json.h"

#define MAX_TEXT_BYTES ((size_t)64 << 20)

static const char before_tools[] = "# Tools\n\nThese functions can be called, described by one JSON object per line:\n";
/* Behind the tools: the form of calls. */
static const char qwen_form[] =
    "\nTo call a function, end the answer with a block of exactly this form, one for each call:\n"
    "<tool_call>\n{\"name\": \"function name\", \"arguments\": {\"parameter\": \"value\"}}\n</tool_call>\n"
    "The results come back between <tool_response> and </tool_response>. Where no function helps, answer without such "
    "a block.";
#define DEEPSEEK_FORM(call)                                                                                              \
    "\nTo call functions, end the answer with exactly this form, in which the part from <｜tool▁call▁begin｜> to " \
    "<｜tool▁call▁end｜> comes once for each call:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" call                    \
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nWhere no function helps, answer without it."
static const char deepseek_form[] = DEEPSEEK_FORM("function name<｜tool▁sep｜>{\"parameter\": \"value\"}");
static const char older_deepseek_form[] = DEEPSEEK_FORM(
    "function<｜tool▁sep｜>function name\n```json\n{\"parameter\": \"value\"}\n```");

static enum dse_status no_memory(struct dse_error *err)
{
    return dse_fail_memory(err, 0, "messages");
}

static bool put_json(struct dse_buffer *out, const json_t *value)
{
    return dse_json_write(out, value, JSON_COMPACT);
}

/* Text around a content in whatever form it has: a string, parts, or null. */
static bool wrap_content(json_t *message, const char *before, const char *behind)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) {
        json_t *parts = dse_json_copy(content);
        if (before[0] && json_array_insert_new(parts, 0, json_pack("{s:s,s:s}", "type", "text", "text", before)) != 0)
            return json_decref(parts), false;
        if (behind[0] && json_array_append_new(parts, json_pack("{s:s,s:s}", "type", "text", "text", behind)) != 0)
            return json_decref(parts), false;
        return json_object_set_new(message, "content", parts) == 0;
    }
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    dse_buffer_puts(&text, before);
    dse_buffer_append(&text, json_is_string(content) ? json_string_value(content) : "",
                      json_is_string(content) ? json_string_length(content) : 0);
    dse_buffer_puts(&text, behind);
    bool good = !text.failed &&
                json_object_set_new(message, "content", json_stringn(dse_buffer_text(&text), text.length)) == 0;
    dse_buffer_deinit(&text);
    return good;
}

static bool put_call(struct dse_buffer *out, const json_t *call, bool first)
{
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    dse_buffer_puts(out, first ? "<tool_call>\n{\"name\": " : "\n<tool_call>\n{\"name\": ");
    bool good = put_json(out, json_object_get(function, "name"));
    dse_buffer_puts(out, ", \"arguments\": ");
    if (json_is_string(arguments))
        dse_buffer_append(out, json_string_value(arguments), json_string_length(arguments));
    else if (json_is_object(arguments))
        good &= put_json(out, arguments);
    else
        dse_buffer_puts(out, "{}");
    dse_buffer_puts(out, "}\n</tool_call>");
    return good && !out->failed;
}

static bool rewrite_calls(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *content = json_object_get(message, "content");
    bool empty = !content || json_is_null(content) || (json_is_string(content) && json_string_length(content) == 0);
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    if (!empty) dse_buffer_putc(&text, '\n');
    bool good = true;
    for (size_t i = 0; i < json_array_size(calls) && good; i++)
        good = put_call(&text, json_array_get(calls, i), i == 0);
    good = good && wrap_content(message, "", dse_buffer_text(&text));
    dse_buffer_deinit(&text);
    if (good) json_object_del(message, "tool_calls");
    return good;
}

static bool rewrite_result(json_t *message)
{
    json_object_del(message, "tool_call_id");
    json_object_del(message, "name");
    return json_object_set_new(message, "role", json_string("user")) == 0 &&
           wrap_content(message, "<tool_response>\n", "\n</tool_response>");
}

static bool rewrite(json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0)) return rewrite_result(message);
    return json_array_size(json_object_get(message, "tool_calls")) == 0 || rewrite_calls(message);
}

static bool describe(json_t *list, const json_t *tools, const char *form)
{
    json_t *first = json_array_get(list, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool has_system = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    dse_buffer_puts(&text, has_system ? "\n\n" : "");
    dse_buffer_puts(&text, before_tools);
    bool good = true;
    for (size_t i = 0; i < json_array_size(tools) && good; i++) {
        good = put_json(&text, json_object_get(json_array_get(tools, i), "function"));
        dse_buffer_putc(&text, '\n');
    }
    dse_buffer_puts(&text, form);
    good = good && !text.failed;
    if (good && has_system)
        good = wrap_content(first, "", dse_buffer_text(&text));
    else if (good)
        good = json_array_insert_new(list, 0,
                                     json_pack("{s:s,s:s}", "role", "system", "content", dse_buffer_text(&text))) == 0;
    dse_buffer_deinit(&text);
    return good;
}

enum dse_tools_told dse_chat_tools_told(const struct dse_template_traits *traits, bool tools)
{
    if (traits->has_tools)
        return traits->tool_format != DSE_TOOLS_NONE || !tools ? DSE_TOLD_BY_TEMPLATE : DSE_TOLD_IN_WORDS;
    return traits->tool_format == DSE_TOOLS_DEEPSEEK && traits->has_calls ? DSE_TOLD_OWN_FORM : DSE_TOLD_IN_WORDS;
}

enum dse_status dse_chat_tools_as_text(const struct dse_template_traits *traits, const json_t *messages,
                                       const json_t *tools, json_t **out, struct dse_error *err)
{
    const bool words = dse_chat_tools_told(traits, tools != NULL) == DSE_TOLD_IN_WORDS;
    const char *form = words ? qwen_form : traits->older_tool_layout ? older_deepseek_form : deepseek_form;
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; i < json_array_size(messages) && good; i++) {
        json_t *message = dse_json_copy(json_array_get(messages, i)); /* shallow: only members are replaced */
        good = message && (!words || rewrite(message));
        if (good)
            good = json_array_append_new(list, message) == 0;
        else
            json_decref(message);
    }
    if (good && tools) good = describe(list, tools, form);
    if (!good) {
        json_decref(list);
        return no_memory(err);
    }
    *out = list;
    return DSE_OK;
}

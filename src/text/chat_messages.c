/* Messages as clients send them -> messages as the template at hand can take them.
 *
 * Called by the server and the command line for every chat request. The input is never changed. Errors name the field
 * by its path, which is also what the HTTP answer gives as `param`.
 */
#include <string.h>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/jinja_json.h"

/* Puts the field's path in front: `messages[2].content: …`. */
static enum dse_status field_error(struct dse_error *err, enum dse_status status, const char *path, const char *what)
{
    return dse_fail_at(err, status, path, -1, "%s: %s", path, what);
}

static enum dse_status no_memory(struct dse_error *err)
{
    return dse_fail_memory(err, 0, "messages");
}

static json_t *string_of(const struct dse_buffer *buffer)
{
    return buffer->failed ? NULL : json_stringn(dse_buffer_text(buffer), buffer->length);
}

/* A text that grows: neighbours are joined in one buffer, since many small ones would be copied again and again. */
struct joining {
    json_t *message; /* borrowed; whose content the text becomes, NULL: nothing to join */
    struct dse_buffer text;
    bool changed;
};

static void join_begin(struct joining *j, json_t *message)
{
    j->message = message;
    j->changed = false;
}

static void join_add(struct joining *j, const json_t *content)
{
    if (!j->changed) {
        const json_t *first = json_object_get(j->message, "content");
        dse_buffer_clear(&j->text);
        dse_buffer_append(&j->text, json_string_value(first), json_string_length(first));
        j->changed = true;
    }
    if (j->text.length > 0 && json_string_length(content) > 0) dse_buffer_puts(&j->text, "\n\n");
    dse_buffer_append(&j->text, json_string_value(content), json_string_length(content));
}

static enum dse_status join_end(struct joining *j, struct dse_error *err)
{
    if (!j->message || !j->changed) return DSE_OK;
    j->changed = false;
    json_t *text = string_of(&j->text);
    return text && json_object_set_new(j->message, "content", text) == 0 ? DSE_OK : no_memory(err);
}

/* ---- content ---- */

static enum dse_status append_part(const json_t *part, const char *path, size_t index, struct dse_buffer *text,
                                   struct dse_error *err)
{
    char name[160], what[200];
    snprintf(name, sizeof(name), "%.100s[%zu]", path, index);
    if (json_is_string(part)) {
        dse_buffer_append(text, json_string_value(part), json_string_length(part));
        return DSE_OK;
    }
    const json_t *type = json_object_get(part, "type");
    if (!json_is_object(part) || !json_is_string(type))
        return field_error(err, DSE_ERR_INVALID, name, "expected an object with a type");
    const char *kind = json_string_value(type);
    bool is_text = strcmp(kind, "text") == 0 || strcmp(kind, "input_text") == 0 || strcmp(kind, "output_text") == 0;
    const char *key = is_text ? "text" : strcmp(kind, "refusal") == 0 ? "refusal" : NULL;
    if (!key) {
        snprintf(what, sizeof(what), "parts of type %.60s are not supported, only text", kind);
        return field_error(err, DSE_ERR_UNSUPPORTED, name, what);
    }
    const json_t *value = json_object_get(part, key);
    snprintf(name, sizeof(name), "%.100s[%zu].%s", path, index, key);
    if (!json_is_string(value)) return field_error(err, DSE_ERR_INVALID, name, "expected a string");
    dse_buffer_append(text, json_string_value(value), json_string_length(value));
    return DSE_OK;
}

/* Content of any accepted form as an owned string; null and missing become "". */
static enum dse_status content_text(const json_t *content, const char *path, bool null_allowed, json_t **out,
                                    struct dse_error *err)
{
    struct dse_buffer text;
    enum dse_status status = DSE_OK;
    *out = NULL;
    if (!content || json_is_null(content)) {
        if (!null_allowed) return field_error(err, DSE_ERR_INVALID, path, "expected a string or an array of parts");
        *out = json_string("");
    } else if (json_is_string(content)) {
        *out = json_copy((json_t *)content);
    } else if (json_is_array(content)) {
        dse_buffer_init(&text, DSE_MEM_REQUEST, SIZE_MAX);
        for (size_t i = 0; i < json_array_size(content) && status == DSE_OK; i++)
            status = append_part(json_array_get(content, i), path, i, &text, err);
        if (status == DSE_OK) *out = string_of(&text);
        dse_buffer_deinit(&text);
        if (status != DSE_OK) return status;
    } else {
        return field_error(err, DSE_ERR_INVALID, path, "expected a string, null or an array of parts");
    }
    return *out ? DSE_OK : no_memory(err);
}

/* ---- tool calls ---- */

/* Arguments in the template's form. A string that is not a JSON object stays what it is (models do produce such, and
 * clients send them back), or becomes the only argument where nothing but objects can be written. */
static json_t *convert_arguments(json_t *arguments, const struct dse_template_traits *traits)
{
    if (json_is_string(arguments) && traits->arguments_as_object) {
        json_t *parsed;
        struct dse_error ignored;
        if (json_string_length(arguments) == 0) return json_object();
        if (dse_json_parse(json_string_value(arguments), json_string_length(arguments), "arguments", &parsed,
                           &ignored) != DSE_OK)
            parsed = NULL;
        if (json_is_object(parsed)) return parsed;
        json_decref(parsed);
        return traits->encoder_rules ? json_pack("{s:O}", "arguments", arguments) : json_incref(arguments);
    }
    if (json_is_object(arguments) && !traits->arguments_as_object) {
        char *text = dse_json_text(arguments);
        json_t *string = text ? json_string(text) : NULL;
        dse_free(text);
        return string;
    }
    return json_incref(arguments);
}

static enum dse_status normalize_function(json_t *function, const char *path, const struct dse_template_traits *traits,
                                          struct dse_error *err)
{
    char name[160];
    snprintf(name, sizeof(name), "%.130s.name", path);
    if (!json_is_string(json_object_get(function, "name")))
        return field_error(err, DSE_ERR_INVALID, name, "expected a string");
    json_t *arguments = json_object_get(function, "arguments");
    snprintf(name, sizeof(name), "%.130s.arguments", path);
    if (!arguments || json_is_null(arguments)) {
        if (json_object_set_new(function, "arguments", json_string("{}")) != 0) return no_memory(err);
        arguments = json_object_get(function, "arguments");
    }
    if (!json_is_string(arguments) && !json_is_object(arguments))
        return field_error(err, DSE_ERR_INVALID, name, "expected a string or an object");
    json_t *converted = convert_arguments(arguments, traits);
    return converted && json_object_set_new(function, "arguments", converted) == 0 ? DSE_OK : no_memory(err);
}

static enum dse_status normalize_calls(json_t *message, const char *path, const struct dse_template_traits *traits,
                                       struct dse_error *err)
{
    char name[160];
    json_t *calls = json_object_get(message, "tool_calls");
    snprintf(name, sizeof(name), "%.100s.tool_calls", path);
    if (!json_is_array(calls)) return field_error(err, DSE_ERR_INVALID, name, "expected an array");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        json_t *function = json_object_get(call, "function");
        snprintf(name, sizeof(name), "%.100s.tool_calls[%zu]", path, i);
        if (!json_is_object(call)) return field_error(err, DSE_ERR_INVALID, name, "expected an object");
        snprintf(name, sizeof(name), "%.100s.tool_calls[%zu].function", path, i);
        if (!json_is_object(function)) return field_error(err, DSE_ERR_INVALID, name, "expected an object");
        if (!json_object_get(call, "type") && json_object_set_new(call, "type", json_string("function")) != 0)
            return no_memory(err);
        enum dse_status status = normalize_function(function, name, traits, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}

/* The older `function_call` field of one call becomes `tool_calls`. */
static enum dse_status adopt_function_call(json_t *message, const char *path, struct dse_error *err)
{
    char name[160];
    json_t *call = json_object_get(message, "function_call");
    if (!call || json_is_null(call) || json_object_get(message, "tool_calls")) return DSE_OK;
    snprintf(name, sizeof(name), "%.100s.function_call", path);
    if (!json_is_object(call)) return field_error(err, DSE_ERR_INVALID, name, "expected an object");
    json_t *calls = json_pack("[{s:s,s:s,s:O}]", "id", "call_0", "type", "function", "function", call);
    return calls && json_object_set_new(message, "tool_calls", calls) == 0 ? DSE_OK : no_memory(err);
}

/* ---- one message ---- */

static enum dse_status check_strings(const json_t *message, const char *path, struct dse_error *err)
{
    static const char *const fields[] = {"name", "tool_call_id", "reasoning_content", "reasoning"};
    char name[160];
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        const json_t *value = json_object_get(message, fields[i]);
        if (!value || json_is_string(value) || json_is_null(value)) continue;
        snprintf(name, sizeof(name), "%.100s.%s", path, fields[i]);
        return field_error(err, DSE_ERR_INVALID, name, "expected a string");
    }
    return DSE_OK;
}

static const char *canonical_role(const json_t *role)
{
    static const char *const roles[][2] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                                           {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    for (size_t i = 0; json_is_string(role) && i < sizeof(roles) / sizeof(*roles); i++)
        if (strcmp(json_string_value(role), roles[i][0]) == 0) return roles[i][1];
    return NULL;
}

/* Optional text fields: null means absent; `reasoning` is another name of reasoning_content. */
static enum dse_status tidy_fields(json_t *message, struct dse_error *err)
{
    static const char *const fields[] = {"name",      "tool_call_id", "reasoning_content",
                                         "reasoning", "tool_calls",   "function_call"};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (json_is_null(json_object_get(message, fields[i]))) json_object_del(message, fields[i]);
    json_t *reasoning = json_object_get(message, "reasoning");
    if (reasoning && !json_object_get(message, "reasoning_content") &&
        json_object_set(message, "reasoning_content", reasoning) != 0)
        return no_memory(err);
    json_object_del(message, "reasoning");
    return DSE_OK;
}

static enum dse_status normalize_message(json_t *message, size_t index, const struct dse_template_traits *traits,
                                         struct dse_error *err)
{
    char path[64], name[100];
    snprintf(path, sizeof(path), "messages[%zu]", index);
    if (!json_is_object(message)) return field_error(err, DSE_ERR_INVALID, path, "expected an object");
    const char *role = canonical_role(json_object_get(message, "role"));
    snprintf(name, sizeof(name), "%s.role", path);
    if (!role)
        return field_error(err, DSE_ERR_INVALID, name, "expected developer, system, user, assistant, tool or function");
    enum dse_status status = check_strings(message, path, err);
    if (status == DSE_OK) status = tidy_fields(message, err);
    bool assistant = strcmp(role, "assistant") == 0;
    if (status == DSE_OK && assistant) status = adopt_function_call(message, path, err);
    if (status != DSE_OK) return status;
    json_object_del(message, "function_call");

    bool has_calls = false;
    if (json_object_get(message, "tool_calls")) {
        status = normalize_calls(message, path, traits, err);
        if (status != DSE_OK) return status;
        has_calls = assistant && json_array_size(json_object_get(message, "tool_calls")) > 0;
        if (!has_calls) json_object_del(message, "tool_calls");
    }
    json_t *content;
    snprintf(name, sizeof(name), "%s.content", path);
    bool null_allowed = assistant || strcmp(role, "tool") == 0;
    status = content_text(json_object_get(message, "content"), name, null_allowed, &content, err);
    if (status != DSE_OK) return status;
    /* V3's template shows calls only beside null, so that is the form unless the template cannot take it. */
    if (has_calls && json_string_length(content) == 0 && !traits->null_content_fails) {
        json_decref(content);
        content = json_null();
    }
    if (json_object_set_new(message, "content", content) != 0 ||
        json_object_set_new(message, "role", json_string(role)) != 0)
        return no_memory(err);
    return DSE_OK;
}

/* ---- the list ---- */

static bool role_is(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));
    return found && strcmp(found, role) == 0;
}

/* Neighbours of one speaker become one message; what carries calls or a prefix mark stays apart. Encoders have their own
 * rules for neighbours. */
static bool can_merge(const json_t *a, const json_t *b)
{
    if (role_is(a, "user")) return role_is(b, "user");
    if (!role_is(a, "assistant") || !role_is(b, "assistant")) return false;
    static const char *const marks[] = {"tool_calls", "prefix", "reasoning_content"};
    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++)
        if (json_object_get(a, marks[i]) || json_object_get(b, marks[i])) return false;
    return true;
}

/* The list under construction. */
struct assembly {
    json_t *list;
    json_t *system; /* owned; NULL: none so far */
    struct joining last, systems;
};

/* One system message in front; for templates that do not show it, its text goes into the first user message. */
static enum dse_status place_system(struct assembly *a, const struct dse_template_traits *traits, struct dse_error *err)
{
    if (!a->system) return DSE_OK;
    for (size_t i = 0; !traits->renders_system && i < json_array_size(a->list); i++) {
        json_t *message = json_array_get(a->list, i);
        if (!role_is(message, "user")) continue;
        join_begin(&a->last, a->system);
        join_add(&a->last, json_object_get(message, "content"));
        a->last.message = message;
        return join_end(&a->last, err);
    }
    return json_array_insert(a->list, 0, a->system) == 0 ? DSE_OK : no_memory(err);
}

static enum dse_status add_message(struct assembly *a, json_t *message, const struct dse_template_traits *traits,
                                   struct dse_error *err)
{
    const json_t *content = json_object_get(message, "content");
    if (role_is(message, "system") && !traits->encoder_rules) {
        if (a->system) {
            join_add(&a->systems, content);
            return DSE_OK;
        }
        a->system = json_incref(message);
        join_begin(&a->systems, message);
        return DSE_OK;
    }
    if (!traits->encoder_rules && a->last.message && can_merge(a->last.message, message)) {
        join_add(&a->last, content);
        return DSE_OK;
    }
    enum dse_status status = join_end(&a->last, err);
    join_begin(&a->last, message);
    if (status != DSE_OK) return status;
    return json_array_append(a->list, message) == 0 ? DSE_OK : no_memory(err);
}

enum dse_status dse_messages_normalize(const json_t *messages, const struct dse_template_traits *traits, json_t **out,
                                       struct dse_error *err)
{
    *out = NULL;
    if (!json_is_array(messages)) return field_error(err, DSE_ERR_INVALID, "messages", "expected an array");
    if (json_array_size(messages) == 0)
        return field_error(err, DSE_ERR_INVALID, "messages", "expected at least one message");
    struct assembly a = {.list = json_array()};
    dse_buffer_init(&a.last.text, DSE_MEM_REQUEST, SIZE_MAX);
    dse_buffer_init(&a.systems.text, DSE_MEM_REQUEST, SIZE_MAX);
    enum dse_status status = a.list ? DSE_OK : no_memory(err);
    for (size_t i = 0; i < json_array_size(messages) && status == DSE_OK; i++) {
        json_t *message = json_deep_copy(json_array_get(messages, i));
        status = message ? normalize_message(message, i, traits, err) : no_memory(err);
        if (status == DSE_OK) status = add_message(&a, message, traits, err);
        json_decref(message);
    }
    if (status == DSE_OK) status = join_end(&a.last, err);
    if (status == DSE_OK) status = join_end(&a.systems, err);
    if (status == DSE_OK) status = place_system(&a, traits, err);
    json_decref(a.system);
    dse_buffer_deinit(&a.last.text);
    dse_buffer_deinit(&a.systems.text);
    if (status == DSE_OK)
        *out = a.list;
    else
        json_decref(a.list);
    return status;
}

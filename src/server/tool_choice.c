/* Choice of tools (see tool_choice.h). */
#include "server/tool_choice.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "server/params.h"
#include "text/tool_grammar.h"

static const json_t *name_of(const json_t *tools, size_t index)
{
    return json_object_get(json_object_get(json_array_get(tools, index), "function"), "name");
}

/* Marks the tool that is called `name`. */
static enum dse_status allow(struct dse_tool_choice *choice, const json_t *tools, const json_t *name, const char *path,
                             struct dse_error *err)
{
    if (!json_is_string(name))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a string, not %s", path,
                           dse_json_type_name(name));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        if (!json_equal(name_of(tools, i), name)) continue;
        choice->allowed[i] = true;
        return DSE_OK;
    }
    return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s: \"%.64s\" is not among the tools", path,
                       json_string_value(name));
}

static enum dse_status need_tools(const json_t *tools, struct dse_error *err)
{
    return json_array_size(tools) > 0 ? DSE_OK
                                      : dse_fail_at(err, DSE_ERR_INVALID, "tool_choice", -1,
                                                    "tool_choice asks for a call, but there are no tools");
}

static enum dse_status parse_allowed(const json_t *value, const json_t *tools, struct dse_tool_choice *choice,
                                     struct dse_error *err)
{
    static const char *const modes[] = {"auto", "required", NULL};
    static const char field[] = "tool_choice.allowed_tools";
    const json_t *allowed = json_object_get(value, "allowed_tools");
    const json_t *list = json_object_get(allowed, "tools");
    int mode = 0;
    if (!json_is_object(allowed))
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be an object, not %s", field,
                           dse_json_type_name(allowed));
    TRY(dse_param_word(allowed, "tool_choice.allowed_tools.mode", modes, &mode, err));
    if (json_array_size(list) == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "tool_choice.allowed_tools.tools", -1,
                           "tool_choice.allowed_tools.tools must be an array of at least one tool");
    choice->mode = mode == 1 ? DSE_TOOL_CHOICE_REQUIRED : DSE_TOOL_CHOICE_AUTO;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[96];
        const json_t *function = json_object_get(json_array_get(list, i), "function");
        snprintf(path, sizeof path, "tool_choice.allowed_tools.tools[%zu].function.name", i);
        TRY(allow(choice, tools, json_object_get(function, "name"), path, err));
    }
    return DSE_OK;
}

static enum dse_status parse_object(const json_t *value, const json_t *tools, struct dse_tool_choice *choice,
                                    struct dse_error *err)
{
    static const char *const types[] = {"function", "allowed_tools", NULL};
    int type = 0;
    TRY(dse_param_word_value(json_object_get(value, "type"), "tool_choice.type", types, &type, err));
    TRY(need_tools(tools, err));
    choice->allowed = dse_calloc(DSE_MEM_REQUEST, json_array_size(tools), sizeof *choice->allowed);
    if (!choice->allowed) return dse_fail_memory(err, json_array_size(tools), "tool_choice");
    if (type == 1) return parse_allowed(value, tools, choice, err);
    choice->mode = DSE_TOOL_CHOICE_REQUIRED;
    const json_t *name = json_object_get(json_object_get(value, "function"), "name");
    return allow(choice, tools, name, "tool_choice.function.name", err);
}

/* A call tells its tool by the name alone. */
static enum dse_status check_names_differ(const json_t *tools, struct dse_error *err)
{
    char path[64];
    for (size_t i = 0; i < json_array_size(tools); i++)
        for (size_t k = 0; k < i; k++) {
            if (!json_equal(name_of(tools, k), name_of(tools, i))) continue;
            snprintf(path, sizeof path, "tools[%zu].function.name", i);
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s is that of tools[%zu] too", path, k);
        }
    return DSE_OK;
}

enum dse_status dse_tool_choice_parse(const json_t *root, const json_t *tools, struct dse_tool_choice *choice,
                                      struct dse_error *err)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    const json_t *value = dse_param_get(root, "tool_choice");
    int word = 0;
    *choice = (struct dse_tool_choice){.mode = DSE_TOOL_CHOICE_AUTO, .parallel = true};
    if (json_array_size(tools) > DSE_MAX_TOOLS)
        return dse_fail_at(err, DSE_ERR_INVALID, "tools", -1, "tools has %zu entries; at most %d are possible",
                           json_array_size(tools), DSE_MAX_TOOLS);
    TRY(check_names_differ(tools, err));
    TRY(dse_param_bool(root, "parallel_tool_calls", &choice->parallel, NULL, err));
    if (!value) return DSE_OK;
    if (json_is_object(value)) return parse_object(value, tools, choice, err);
    TRY(dse_param_word_value(value, "tool_choice", words, &word, err));
    if (word == 2) TRY(need_tools(tools, err));
    choice->mode = word == 0 ? DSE_TOOL_CHOICE_AUTO : word == 1 ? DSE_TOOL_CHOICE_NONE : DSE_TOOL_CHOICE_REQUIRED;
    return DSE_OK;
}

void dse_tool_choice_deinit(struct dse_tool_choice *choice)
{
    dse_free(choice->allowed);
    choice->allowed = NULL;
}

static bool is_json(const struct dse_constraint *constraint)
{
    return constraint->kind == DSE_CONSTRAINT_SCHEMA || constraint->kind == DSE_CONSTRAINT_JSON_OBJECT;
}

bool dse_tool_choice_binds(const struct dse_tool_choice *choice, const json_t *tools,
                           const struct dse_constraint *constraint)
{
    if (choice->mode == DSE_TOOL_CHOICE_REQUIRED) return true;
    if (constraint->kind != DSE_CONSTRAINT_NONE) return is_json(constraint); /* another text leaves no room for calls */
    bool binds = choice->allowed != NULL || !choice->parallel;
    for (size_t i = 0; i < json_array_size(tools) && !binds; i++)
        binds = json_is_true(json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict"));
    return binds;
}

/* A name that the format's marks could not hold would make a call that is none. */
static enum dse_status check_names(const json_t *tools, struct dse_error *err)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char path[64];
        const json_t *name = name_of(tools, i);
        size_t n = json_string_length(name);
        bool bad = n == 0 || n > 128;
        for (size_t k = 0; k < n && !bad; k++) {
            unsigned char c = (unsigned char)json_string_value(name)[k];
            bad = c <= ' ' || c == '<' || c == '"' || c == '\\' || c == 0x7F;
        }
        snprintf(path, sizeof path, "tools[%zu].function.name", i);
        if (bad)
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1,
                               "%s must be 1 to 128 bytes without blanks, control characters, quotes, \\ and <", path);
    }
    return DSE_OK;
}

static enum dse_status compile(struct dse_tool_grammar *wanted, const struct dse_constraint *constraint,
                               struct dse_grammar **grammar, struct dse_error *err)
{
    json_t *schema = NULL;
    if (constraint->kind == DSE_CONSTRAINT_JSON_OBJECT) wanted->is_json = true;
    if (constraint->kind == DSE_CONSTRAINT_SCHEMA) TRY(dse_constraint_schema(constraint, &schema, err));
    wanted->schema = schema;
    wanted->schema_field = constraint->field;
    enum dse_status status = dse_tool_grammar_compile(wanted, grammar, err);
    json_decref(schema);
    if (status != DSE_ERR_LIMIT || !err) return status;
    struct dse_error copy = *err;
    return dse_fail_at(err, DSE_ERR_INVALID, copy.file, -1, "%s", copy.message);
}

/* The format is that of the model whose cache it is. */
static void put_key(const struct dse_tool_choice *choice, const json_t *tools, const struct dse_constraint *constraint,
                    bool after_thinking, struct dse_buffer *key)
{
    dse_buffer_printf(key, "tools %d %d %d ", (int)choice->mode, choice->parallel, after_thinking);
    for (size_t i = 0; choice->allowed && i < json_array_size(tools); i++)
        dse_buffer_putc(key, choice->allowed[i] ? '1' : '0');
    dse_buffer_putc(key, ' ');
    dse_put_json_key(tools, key);
    dse_constraint_put_key(constraint, key);
}

enum dse_status dse_tool_choice_compile(const struct dse_tool_choice *choice, const json_t *tools,
                                        const struct dse_constraint *constraint, const struct dse_tool_model *model,
                                        struct dse_grammar **grammar, struct dse_error *err)
{
    struct dse_tool_grammar wanted = {.format = model->format,
                                      .older_layout = model->older_layout,
                                      .tokenizer = model->tokenizer,
                                      .tools = tools,
                                      .allowed = choice->allowed,
                                      .must_call = choice->mode == DSE_TOOL_CHOICE_REQUIRED,
                                      .parallel = choice->parallel,
                                      .after_thinking = model->after_thinking};
    struct dse_buffer key;
    *grammar = NULL;
    if (wanted.must_call && constraint->kind != DSE_CONSTRAINT_NONE && !is_json(constraint))
        return dse_fail_at(err, DSE_ERR_INVALID, constraint->field, -1,
                           "%s cannot be combined with a tool_choice that asks for a call", constraint->field);
    TRY(check_names(tools, err));
    dse_buffer_init(&key, DSE_MEM_REQUEST, DSE_CONSTRAINT_MAX_KEY_BYTES);
    put_key(choice, tools, constraint, model->after_thinking, &key);
    if (!key.failed) *grammar = dse_grammar_cache_find(model->cache, dse_buffer_text(&key), key.length);
    enum dse_status status = *grammar ? DSE_OK : compile(&wanted, constraint, grammar, err);
    if (status == DSE_OK && !key.failed)
        dse_grammar_cache_put(model->cache, dse_buffer_text(&key), key.length, *grammar);
    dse_buffer_deinit(&key);
    return status;
}

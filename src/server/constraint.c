/* Constraints of an answer (see constraint.h). */
#include "server/constraint.h"

#include <string.h>

#include "base/json.h"
#include "server/params.h"
#include "text/json_schema.h"

static enum dse_status set(struct dse_constraint *out, const struct dse_constraint *one, struct dse_error *err)
{
    if (out->kind != DSE_CONSTRAINT_NONE)
        return dse_fail_at(err, DSE_ERR_INVALID, one->field, -1,
                           "%s cannot be combined with %s: one constraint at once", one->field, out->field);
    *out = *one;
    return DSE_OK;
}

/* One value that says what it constrains by where it stands. */
static enum dse_status take(enum dse_constraint_kind kind, const char *field, const json_t *value, bool may_be_text,
                            unsigned flags, struct dse_constraint *out, struct dse_error *err)
{
    struct dse_constraint one = {.kind = kind, .field = field, .json = value, .flags = flags};
    if (kind == DSE_CONSTRAINT_JSON_OBJECT) {
        if (!json_is_boolean(value))
            return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be true or false, not %s", field,
                               dse_json_type_name(value));
        return json_is_true(value) ? set(out, &one, err) : DSE_OK;
    }
    bool is_text = kind == DSE_CONSTRAINT_GRAMMAR || kind == DSE_CONSTRAINT_REGEX;
    if (is_text || (may_be_text && json_is_string(value))) {
        if (!json_is_string(value))
            return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be a string, not %s", field,
                               dse_json_type_name(value));
        one.text = json_string_value(value);
        one.bytes = json_string_length(value);
        if (one.bytes == 0 && kind == DSE_CONSTRAINT_GRAMMAR) return DSE_OK; /* some clients send "" for none */
    } else if (kind == DSE_CONSTRAINT_CHOICE && !json_is_array(value)) {
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be an array of strings, not %s", field,
                           dse_json_type_name(value));
    } else if (kind == DSE_CONSTRAINT_SCHEMA && !json_is_object(value) && !json_is_boolean(value)) {
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be a JSON schema, not %s", field,
                           dse_json_type_name(value));
    }
    return set(out, &one, err);
}

static enum dse_status parse_response_format(const json_t *format, struct dse_constraint *out, struct dse_error *err)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    static const char whole[] = "response_format.json_schema", field[] = "response_format.json_schema.schema";
    int type = 0;
    if (!json_is_object(format))
        return dse_fail_at(err, DSE_ERR_INVALID, "response_format", -1, "response_format must be an object, not %s",
                           dse_json_type_name(format));
    TRY(dse_param_word_value(json_object_get(format, "type"), "response_format.type", types, &type, err));
    if (type == 0) return DSE_OK;
    const json_t *schema = dse_param_get(format, "schema"); /* llama.cpp's way */
    if (type == 1) {
        if (schema) return take(DSE_CONSTRAINT_SCHEMA, "response_format.schema", schema, false, 0, out, err);
        return set(out, &(struct dse_constraint){.kind = DSE_CONSTRAINT_JSON_OBJECT, .field = "response_format"}, err);
    }
    const json_t *named = json_object_get(format, "json_schema");
    const char *unused = NULL;
    if (!json_is_object(named))
        return dse_fail_at(err, DSE_ERR_INVALID, whole, -1, "%s must be an object, not %s", whole,
                           dse_json_type_name(named));
    /* Both strictnesses are held the same way: what is generated is always valid. */
    TRY(dse_param_bool(named, "response_format.json_schema.strict", &(bool){false}, NULL, err));
    TRY(dse_param_string(named, "response_format.json_schema.name", &unused, NULL, err));
    TRY(dse_param_string(named, "response_format.json_schema.description", &unused, &(size_t){0}, err));
    schema = json_object_get(named, "schema");
    if (!schema) return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s is missing", field);
    return take(DSE_CONSTRAINT_SCHEMA, field, schema, false, 0, out, err);
}

struct named_constraint {
    const char *key, *field;
    enum dse_constraint_kind kind;
    bool may_be_text;
};

static enum dse_status take_named(const json_t *object, const struct named_constraint *named, size_t n, unsigned flags,
                                  struct dse_constraint *out, struct dse_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = dse_param_get(object, named[i].key);
        if (value) TRY(take(named[i].kind, named[i].field, value, named[i].may_be_text, flags, out, err));
    }
    return DSE_OK;
}

/* What would change the answer and is not there is refused. */
static enum dse_status refuse(const json_t *object, const char *field, struct dse_error *err)
{
    const json_t *value = dse_param_get(object, field);
    if (!value || json_is_false(value)) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s is not supported", field);
}

static enum dse_status parse_structured_outputs(const json_t *object, struct dse_constraint *out, struct dse_error *err)
{
    static const struct named_constraint named[] = {
        {"json", "structured_outputs.json", DSE_CONSTRAINT_SCHEMA, true},
        {"regex", "structured_outputs.regex", DSE_CONSTRAINT_REGEX, false},
        {"choice", "structured_outputs.choice", DSE_CONSTRAINT_CHOICE, false},
        {"grammar", "structured_outputs.grammar", DSE_CONSTRAINT_GRAMMAR, false},
        {"json_object", "structured_outputs.json_object", DSE_CONSTRAINT_JSON_OBJECT, false},
    };
    if (!json_is_object(object))
        return dse_fail_at(err, DSE_ERR_INVALID, "structured_outputs", -1,
                           "structured_outputs must be an object, not %s", dse_json_type_name(object));
    bool compact = false;
    TRY(dse_param_bool(object, "structured_outputs.disable_any_whitespace", &compact, NULL, err));
    TRY(refuse(object, "structured_outputs.structural_tag", err));
    TRY(refuse(object, "structured_outputs.whitespace_pattern", err));
    TRY(refuse(object, "structured_outputs.disable_additional_properties", err));
    return take_named(object, named, sizeof named / sizeof *named, compact ? DSE_SCHEMA_COMPACT : 0, out, err);
}

enum dse_status dse_constraint_parse(const json_t *root, struct dse_constraint *out, struct dse_error *err)
{
    static const struct named_constraint named[] = {
        {"grammar", "grammar", DSE_CONSTRAINT_GRAMMAR, false},
        {"json_schema", "json_schema", DSE_CONSTRAINT_SCHEMA, false},
        {"regex", "regex", DSE_CONSTRAINT_REGEX, false},
        {"guided_json", "guided_json", DSE_CONSTRAINT_SCHEMA, true},
        {"guided_regex", "guided_regex", DSE_CONSTRAINT_REGEX, false},
        {"guided_choice", "guided_choice", DSE_CONSTRAINT_CHOICE, false},
        {"guided_grammar", "guided_grammar", DSE_CONSTRAINT_GRAMMAR, false},
        {"guided_json_object", "guided_json_object", DSE_CONSTRAINT_JSON_OBJECT, false},
    };
    const char *backend = NULL;
    *out = (struct dse_constraint){.kind = DSE_CONSTRAINT_NONE};
    const json_t *format = dse_param_get(root, "response_format");
    const json_t *structured = dse_param_get(root, "structured_outputs");
    if (format) TRY(parse_response_format(format, out, err));
    if (structured) TRY(parse_structured_outputs(structured, out, err));
    TRY(refuse(root, "guided_whitespace_pattern", err));
    TRY(dse_param_string(root, "guided_decoding_backend", &backend, NULL, err)); /* all do the same */
    return take_named(root, named, sizeof named / sizeof *named, 0, out, err);
}

enum dse_status dse_constraint_schema(const struct dse_constraint *c, json_t **schema, struct dse_error *err)
{
    if (c->text) return dse_json_parse(c->text, c->bytes, c->field, schema, err);
    *schema = json_incref((json_t *)c->json);
    return DSE_OK;
}

static enum dse_status compile_schema(const struct dse_constraint *c, struct dse_grammar **grammar,
                                      struct dse_error *err)
{
    json_t *schema = NULL;
    enum dse_status status = dse_constraint_schema(c, &schema, err);
    if (status == DSE_OK) status = dse_json_schema_compile(schema, c->field, c->flags, grammar, err);
    json_decref(schema);
    return status;
}

static enum dse_status compile(const struct dse_constraint *c, struct dse_grammar **grammar, struct dse_error *err)
{
    switch (c->kind) {
    case DSE_CONSTRAINT_NONE: return DSE_OK;
    case DSE_CONSTRAINT_GRAMMAR: return dse_grammar_compile(c->text, c->bytes, grammar, err);
    case DSE_CONSTRAINT_REGEX: return dse_regex_compile(c->text, c->bytes, c->field, c->flags, grammar, err);
    case DSE_CONSTRAINT_CHOICE: return dse_choice_compile(c->json, c->field, c->flags, grammar, err);
    case DSE_CONSTRAINT_SCHEMA: return compile_schema(c, grammar, err);
    case DSE_CONSTRAINT_JSON_OBJECT: return dse_json_object_compile(c->field, c->flags, grammar, err);
    }
    return DSE_OK;
}

void dse_put_json_key(const json_t *value, struct dse_buffer *key)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (value && !text) key->failed = true;
    if (text) dse_buffer_append(key, text, strlen(text) + 1);
    dse_json_free_text(text);
}

void dse_constraint_put_key(const struct dse_constraint *c, struct dse_buffer *key)
{
    dse_buffer_printf(key, "%d %u %zu ", (int)c->kind, c->flags, c->bytes);
    if (c->text)
        dse_buffer_append(key, c->text, c->bytes);
    else
        dse_put_json_key(c->json, key);
}

/* Names the field; what went wrong below it is named by the compilers. */
static enum dse_status name_field(const struct dse_constraint *c, enum dse_status status, struct dse_error *err)
{
    if (status == DSE_OK || status == DSE_ERR_NO_MEMORY || !err) return status;
    struct dse_error copy = *err;
    if (strncmp(copy.file, c->field, strlen(c->field)) == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, copy.file, -1, "%s", copy.message);
    return dse_fail_at(err, DSE_ERR_INVALID, c->field, -1, "%s: %s", c->field, copy.message);
}

enum dse_status dse_constraint_compile(const struct dse_constraint *c, struct dse_grammar_cache *cache,
                                       struct dse_grammar **grammar, struct dse_error *err)
{
    struct dse_buffer key;
    *grammar = NULL;
    if (c->kind == DSE_CONSTRAINT_NONE) return DSE_OK;
    dse_buffer_init(&key, DSE_MEM_REQUEST, DSE_CONSTRAINT_MAX_KEY_BYTES);
    dse_constraint_put_key(c, &key);
    if (!key.failed) *grammar = dse_grammar_cache_find(cache, dse_buffer_text(&key), key.length);
    enum dse_status status = *grammar ? DSE_OK : name_field(c, compile(c, grammar, err), err);
    if (status == DSE_OK && !key.failed) dse_grammar_cache_put(cache, dse_buffer_text(&key), key.length, *grammar);
    dse_buffer_deinit(&key);
    return status;
}

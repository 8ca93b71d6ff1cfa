/* Tool calls as grammars (see tool_grammar.h).
 *
 * A mark that is a control token of the model is written as GRAMMAR_CONTROL_BYTE and its text, which only that token
 * matches (grammar_trie.c): no text of pieces can pass for it.
 */
#include "text/tool_grammar.h"

#include <stdio.h>
#include <string.h>

#include "text/json_schema_internal.h"

#define DSML "｜DSML｜"

struct writer {
    const struct dse_tool_grammar *wanted;
    struct grammar_builder *b;
    struct schema_compiler s;
    bool dsml_is_control;
    uint32_t text; /* 1 + rule: text of a DSML parameter */
};

static struct grammar_tree *text(struct writer *w, const char *literal)
{
    return dse_grammar_text(w->b, literal);
}

static bool is_control(const struct writer *w, const char *mark)
{
    int32_t id = w->wanted->tokenizer ? dse_tokenizer_find_added(w->wanted->tokenizer, mark) : -1;
    return id >= 0 && dse_tokenizer_kind(w->wanted->tokenizer, id) == DSE_TOKEN_CONTROL;
}

static struct grammar_tree *mark(struct writer *w, const char *literal)
{
    char control[128];
    if (!is_control(w, literal)) return text(w, literal);
    snprintf(control, sizeof control, "%c%s", GRAMMAR_CONTROL_BYTE, literal);
    return text(w, control);
}

/* `<｜DSML｜rest`, or with slash `</｜DSML｜rest`. */
static struct grammar_tree *tag(struct writer *w, bool slash, const char *rest)
{
    return GRAMMAR_SEQ(w->b, text(w, slash ? "</" : "<"), mark(w, DSML), text(w, rest));
}

/* ---- arguments ------------------------------------------------------------------------------------------------ */

static bool is_strict(const json_t *function)
{
    return json_is_true(json_object_get(function, "strict"));
}

/* The arguments as one JSON object. */
static enum dse_status json_arguments(struct writer *w, const json_t *function, struct grammar_tree **out)
{
    const json_t *parameters = json_object_get(function, "parameters");
    if (!w->wanted->must_call && !is_strict(function)) {
        *out = dse_schema_any_object(&w->s);
        return DSE_OK;
    }
    if (!parameters || json_is_null(parameters)) {
        *out = text(w, "{}");
        return DSE_OK;
    }
    struct schema_set set = {.n = 0};
    struct schema_facets facets;
    struct grammar_tree *tree = NULL;
    w->s.root = (struct schema_node){parameters, NULL};
    dse_schema_facets_init(&facets, NULL);
    facets.types = SCHEMA_OBJECT; /* also where the schema does not say so */
    facets.constrained = true;
    TRY(dse_schema_set_add(&w->s, &set, w->s.root));
    for (size_t i = 0; i < set.n; i++)
        TRY(dse_schema_collect(&w->s, set.nodes[i], 0, &facets));
    if (!(facets.types & SCHEMA_OBJECT))
        return dse_schema_fail(&w->s, DSE_ERR_INVALID, NULL, NULL, "must be the schema of an object");
    TRY(dse_schema_emit(&w->s, &facets, 0, &tree));
    TRY(dse_schema_work_off(&w->s));
    *out = tree;
    return DSE_OK;
}

struct text_values {
    struct writer *w;
    struct grammar_tree *choice;
    bool all;
};

static enum dse_status add_text_value(void *user, const json_t *value)
{
    struct text_values *v = user;
    bool fits = json_is_string(value) && !strstr(json_string_value(value), DSML) &&
                strlen(json_string_value(value)) == json_string_length(value);
    v->all &= fits;
    if (fits) dse_grammar_add(v->w->b, v->choice, text(v->w, json_string_value(value)));
    return DSE_OK;
}

/* A parameter between its tags: strings that are free, or one of a list, as they are; all else as JSON. */
static enum dse_status dsml_parameter(struct writer *w, const struct schema_facets *f, const char *name,
                                      struct grammar_tree **out)
{
    struct grammar_builder *b = w->b;
    struct schema_set set = {.n = 0};
    struct schema_facets p;
    struct grammar_tree *value = NULL;
    TRY(dse_schema_property_set(&w->s, f, name, &set));
    dse_schema_facets_init(&p, f->path);
    for (size_t i = 0; i < set.n; i++)
        TRY(dse_schema_collect(&w->s, set.nodes[i], 0, &p));
    bool plain = p.types == SCHEMA_STRING && !p.unions && !p.patterns && p.min_length == 0 &&
                 p.max_length == UINT64_MAX;
    if (plain && p.values) {
        struct text_values values = {w, dse_grammar_choice(b), true};
        TRY(dse_schema_each_value(&w->s, &p, add_text_value, &values));
        plain = values.all;
        value = values.choice;
    } else if (plain) {
        if (!w->text) {
            uint32_t rule = dse_grammar_rule(b, "parameter text");
            dse_grammar_define(b, rule, dse_grammar_text_without(w->b, "</" DSML));
            w->text = rule + 1;
        }
        value = dse_grammar_call(b, w->text - 1);
    }
    if (!plain) TRY(dse_schema_call(&w->s, &set, &value));
    *out = GRAMMAR_SEQ(b, tag(w, false, "parameter name=\""), text(w, name),
                       text(w, plain ? "\" string=\"true\">" : "\" string=\"false\">"), value,
                       tag(w, true, "parameter>\n"));
    return DSE_OK;
}

/* The arguments as parameter tags, in the order of the schema. */
static enum dse_status dsml_arguments(struct writer *w, const json_t *function, struct grammar_tree **out)
{
    const json_t *parameters = json_object_get(function, "parameters");
    struct grammar_builder *b = w->b;
    struct grammar_tree *list = dse_grammar_sequence(b);
    struct schema_facets f;
    const struct schema_member *members = NULL;
    size_t n = 0;
    *out = list;
    if (!parameters || json_is_null(parameters)) return DSE_OK;
    w->s.root = (struct schema_node){parameters, NULL};
    dse_schema_facets_init(&f, NULL);
    TRY(dse_schema_collect(&w->s, w->s.root, 0, &f));
    if (f.unions || f.values || !(f.types & SCHEMA_OBJECT))
        return dse_schema_fail(&w->s, DSE_ERR_INVALID, NULL, NULL,
                               "this model's calls need a schema of one object, without anyOf, oneOf, enum or const");
    TRY(dse_schema_members(&w->s, &f, &members, &n));
    for (size_t i = 0; i < n; i++) {
        struct grammar_tree *parameter = NULL;
        if (strpbrk(members[i].name, "<\"\\\n"))
            return dse_schema_fail(&w->s, DSE_ERR_INVALID, NULL, NULL,
                                   "this model's calls cannot hold the name \"%.40s\"", members[i].name);
        TRY(dsml_parameter(w, &f, members[i].name, &parameter));
        dse_grammar_add(b, list, members[i].required ? parameter : dse_grammar_optional(b, parameter));
    }
    return dse_schema_work_off(&w->s);
}

/* Those of tools whose schema does not bind: any names, any values. */
static struct grammar_tree *dsml_any_arguments(struct writer *w)
{
    static const struct grammar_range name[] = {{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    struct grammar_builder *b = w->b;
    struct grammar_tree *kind = dse_grammar_choice(b);
    dse_grammar_add(b, kind, GRAMMAR_SEQ(b, text(w, "true\">"), dse_grammar_text_without(w->b, "</" DSML)));
    dse_grammar_add(b, kind, GRAMMAR_SEQ(b, text(w, "false\">"), dse_schema_any(&w->s)));
    struct grammar_tree *one = GRAMMAR_SEQ(b, tag(w, false, "parameter name=\""),
                                           dse_grammar_repeat(b, dse_grammar_class(b, name, 5), 1, 64),
                                           text(w, "\" string=\""), kind, tag(w, true, "parameter>\n"));
    return dse_grammar_repeat(b, one, 0, -1);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static enum dse_status one_call(struct writer *w, const json_t *function, struct grammar_tree **out)
{
    struct grammar_builder *b = w->b;
    const char *name = json_string_value(json_object_get(function, "name"));
    struct grammar_tree *arguments = NULL;
    if (w->wanted->format == DSE_TOOLS_DSML) {
        if (w->wanted->must_call || is_strict(function))
            TRY(dsml_arguments(w, function, &arguments));
        else
            arguments = dsml_any_arguments(w);
        *out = GRAMMAR_SEQ(b, tag(w, false, "invoke name=\""), text(w, name), text(w, "\">\n"), arguments,
                           tag(w, true, "invoke>\n"));
        return DSE_OK;
    }
    TRY(json_arguments(w, function, &arguments));
    if (w->wanted->format == DSE_TOOLS_DEEPSEEK && w->wanted->older_layout)
        *out = GRAMMAR_SEQ(b, mark(w, "<｜tool▁call▁begin｜>"), text(w, "function"), mark(w, "<｜tool▁sep｜>"),
                           text(w, name), text(w, "\n```json\n"), arguments, text(w, "\n```"),
                           mark(w, "<｜tool▁call▁end｜>"));
    else if (w->wanted->format == DSE_TOOLS_DEEPSEEK)
        *out = GRAMMAR_SEQ(b, mark(w, "<｜tool▁call▁begin｜>"), text(w, name), mark(w, "<｜tool▁sep｜>"), arguments,
                           mark(w, "<｜tool▁call▁end｜>"));
    else
        *out = GRAMMAR_SEQ(b, mark(w, "<tool_call>"), text(w, "\n{\"name\": "),
                           dse_json_literal(&w->s.text, name, strlen(name)), text(w, ", \"arguments\": "), arguments,
                           text(w, "}\n"), mark(w, "</tool_call>"));
    return DSE_OK;
}

/* What a call begins with, as text: no other text may contain it. */
static const char *opening(const struct writer *w)
{
    return w->wanted->format == DSE_TOOLS_DSML       ? "<" DSML
           : w->wanted->format == DSE_TOOLS_DEEPSEEK ? "<｜tool▁call"
                                                     : "<tool_call>";
}

static struct grammar_tree *block(struct writer *w, struct grammar_tree *call, struct grammar_tree *more)
{
    struct grammar_builder *b = w->b;
    const char *name = w->wanted->older_layout ? "function_calls>" : "tool_calls>";
    char open[32];
    snprintf(open, sizeof open, "%s\n", name);
    switch (w->wanted->format) {
    case DSE_TOOLS_DSML: return GRAMMAR_SEQ(b, tag(w, false, open), call, more, tag(w, true, name));
    case DSE_TOOLS_DEEPSEEK:
        return GRAMMAR_SEQ(b, mark(w, "<｜tool▁calls▁begin｜>"), call, more, mark(w, "<｜tool▁calls▁end｜>"));
    default: return GRAMMAR_SEQ(b, call, more);
    }
}

static enum dse_status calls(struct writer *w, struct grammar_tree **out)
{
    const struct dse_tool_grammar *wanted = w->wanted;
    struct grammar_builder *b = w->b;
    struct grammar_tree *choice = dse_grammar_choice(b), *tree = NULL;
    for (size_t i = 0; i < json_array_size(wanted->tools); i++) {
        char field[64];
        const json_t *function = json_object_get(json_array_get(wanted->tools, i), "function");
        if (wanted->allowed && !wanted->allowed[i]) continue;
        snprintf(field, sizeof field, "tools[%zu].function.parameters", i);
        w->s.field = field;
        TRY(one_call(w, function, &tree));
        if (grammar_build_failed(b)) return dse_schema_fail_memory(&w->s);
        dse_grammar_add(b, choice, tree);
    }
    w->s.field = "tools";
    uint32_t rule = dse_grammar_rule(b, "call");
    dse_grammar_define(b, rule, choice);
    bool lines = wanted->format == DSE_TOOLS_QWEN || (wanted->format == DSE_TOOLS_DEEPSEEK && wanted->older_layout);
    struct grammar_tree *next = dse_grammar_call(b, rule);
    if (lines) next = GRAMMAR_SEQ(b, text(w, "\n"), next);
    *out = block(w, dse_grammar_call(b, rule), dse_grammar_repeat(b, next, 0, wanted->parallel ? -1 : 0));
    return DSE_OK;
}

static enum dse_status answer_without_call(struct writer *w, struct grammar_tree **out)
{
    if (!w->wanted->schema) {
        *out = dse_schema_any_object(&w->s);
        return DSE_OK;
    }
    struct schema_set set = {.n = 0};
    w->s.root = (struct schema_node){w->wanted->schema, NULL};
    w->s.field = w->wanted->schema_field;
    TRY(dse_schema_set_add(&w->s, &set, w->s.root));
    TRY(dse_schema_call(&w->s, &set, out));
    return dse_schema_work_off(&w->s);
}

static enum dse_status compile(struct writer *w, uint32_t root)
{
    const struct dse_tool_grammar *wanted = w->wanted;
    struct grammar_builder *b = w->b;
    struct grammar_tree *body = NULL, *answer = NULL;
    TRY(calls(w, &body));
    if (!wanted->must_call && (wanted->is_json || wanted->schema)) {
        TRY(answer_without_call(w, &answer));
        body = dse_grammar_add(b, dse_grammar_add(b, dse_grammar_choice(b), body), answer);
    } else if (!wanted->must_call) {
        body = GRAMMAR_SEQ(b, dse_grammar_text_without(w->b, opening(w)), dse_grammar_optional(b, body));
    }
    dse_grammar_define(b, root, wanted->after_thinking ? dse_grammar_after_thinking(b, body) : body);
    return DSE_OK;
}

enum dse_status dse_tool_grammar_compile(const struct dse_tool_grammar *wanted, struct dse_grammar **out,
                                         struct dse_error *err)
{
    struct grammar_builder b;
    struct writer w = {.wanted = wanted, .b = &b};
    *out = NULL;
    TRY(dse_grammar_build_init(&b, err));
    dse_schema_init(&w.s, &b, NULL, "tools", 0, err);
    uint32_t root = dse_grammar_rule(&b, "root");
    enum dse_status status = w.s.slots ? compile(&w, root) : dse_schema_fail_memory(&w.s);
    if (status == DSE_OK) status = dse_grammar_build_finish(&b, root, "tools", out, err);
    dse_grammar_build_deinit(&b);
    return status;
}

/* JSON schemas: rules, references and the way from the first to the last (see json_schema_internal.h). */
#include "text/json_schema_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 256

/* ---- paths and failures --------------------------------------------------------------------------------------- */

void dse_schema_path_text(const struct schema_compiler *s, const struct schema_path *path, const char *key, char *out,
                          size_t max)
{
    const struct schema_path *pieces[DSE_SCHEMA_MAX_DEPTH * 4];
    size_t n = 0, limit = sizeof pieces / sizeof *pieces;
    for (; path && n < limit; path = path->parent)
        pieces[n++] = path;
    size_t at = (size_t)snprintf(out, max, "%s", s->field);
    while (n-- > 0 && at < max) {
        const struct schema_path *piece = pieces[n];
        int written = piece->key ? snprintf(out + at, max - at, ".%s", piece->key)
                                 : snprintf(out + at, max - at, "[%zu]", piece->index);
        at += written > 0 ? (size_t)written : 0;
    }
    if (key && at < max) snprintf(out + at, max - at, ".%s", key);
}

enum dse_status(dse_schema_fail)(struct schema_compiler *s, enum dse_status status, const struct schema_path *path,
                                 const char *key, const char *format, ...)
{
    char at[PATH_BYTES], message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    dse_schema_path_text(s, path, key, at, sizeof at);
    return dse_fail_at(s->err, status, at, -1, "%s: %s", at, message);
}

enum dse_status dse_schema_fail_memory(struct schema_compiler *s)
{
    if (s->b->failed_limit)
        return dse_fail_at(s->err, DSE_ERR_LIMIT, s->field, -1, "%s: %s", s->field, s->b->failed_limit);
    return dse_fail_memory(s->err, s->b->arena.used_bytes, s->field);
}

void *dse_schema_take(struct schema_compiler *s, size_t bytes)
{
    if (grammar_build_failed(s->b)) return NULL;
    void *memory = dse_arena_alloc(&s->b->arena, bytes);
    if (!memory && s->b->arena.used_bytes + bytes + 16 > s->b->arena.max_bytes)
        dse_grammar_build_limit(s->b, "it needs too much memory while it is compiled (DSE_GRAMMAR_MAX_BUILD_BYTES)");
    else if (!memory)
        s->b->failed_memory = true;
    return memory;
}

const struct schema_path *dse_schema_path(struct schema_compiler *s, const struct schema_path *parent, const char *key,
                                          size_t index)
{
    struct schema_path *path = dse_schema_take(s, sizeof *path);
    if (path) *path = (struct schema_path){parent, key, index};
    return path;
}

/* ---- references ----------------------------------------------------------------------------------------------- */

/* One piece of a JSON pointer, its escapes undone; false if it is broken or too long. */
static bool pointer_piece(const char **at, char *out, size_t max)
{
    size_t n = 0;
    const char *p = *at;
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '%') {
            char hex[3] = {p[1], p[1] ? p[2] : '\0', '\0'}, *end;
            c = (char)strtoul(hex, &end, 16);
            if (end != hex + 2 || !c) return false;
            p += 2;
        }
        if (c == '~') {
            if (p[1] != '0' && p[1] != '1') return false;
            c = *++p == '0' ? '~' : '/';
        }
        if (n + 1 >= max) return false;
        out[n++] = c;
    }
    out[n] = '\0';
    *at = p;
    return true;
}

enum dse_status dse_schema_target(struct schema_compiler *s, const struct schema_node *node, struct schema_node *target)
{
    char piece[DSE_SCHEMA_MAX_NAME_BYTES];
    const json_t *ref = json_object_get(node->json, "$ref");
    if (!json_is_string(ref)) return dse_schema_fail(s, DSE_ERR_INVALID, node->path, "$ref", "must be a string");
    const char *text = json_string_value(ref), *at = text + 1;
    if (text[0] != '#' || (text[1] != '\0' && text[1] != '/'))
        return dse_schema_fail(s, DSE_ERR_INVALID, node->path, "$ref",
                               "\"%.80s\" is not supported: only # and #/… (a place in this schema)", text);
    *target = s->root;
    while (*at == '/') {
        at++;
        if (!pointer_piece(&at, piece, sizeof piece))
            return dse_schema_fail(s, DSE_ERR_INVALID, node->path, "$ref", "\"%.80s\" is no JSON pointer", text);
        char *end;
        size_t index = strtoul(piece, &end, 10);
        bool is_array = json_is_array(target->json), is_index = is_array && end != piece && !*end;
        const json_t *next = is_index ? json_array_get(target->json, index) : json_object_get(target->json, piece);
        if (!next) return dse_schema_fail(s, DSE_ERR_INVALID, node->path, "$ref", "\"%.80s\" leads nowhere", text);
        /* The key as the schema has it: it outlives this function. */
        const char *key = is_index ? NULL : json_object_iter_key(json_object_iter_at((json_t *)target->json, piece));
        target->path = dse_schema_path(s, target->path, key, index);
        if (!target->path) return dse_schema_fail_memory(s);
        target->json = next;
    }
    return DSE_OK;
}

enum dse_status dse_schema_resolve(struct schema_compiler *s, struct schema_node *node)
{
    for (int hops = 0; json_is_object(node->json) && json_object_get(node->json, "$ref"); hops++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)node->json, key, value)
        {
            if (strcmp(key, "$ref") != 0 && !dse_schema_is_annotation(key, node->json == s->root.json)) return DSE_OK;
        }
        if (hops == DSE_SCHEMA_MAX_DEPTH)
            return dse_schema_fail(s, DSE_ERR_INVALID, node->path, "$ref",
                                   "refers to itself, or through more than %d others (DSE_SCHEMA_MAX_DEPTH)",
                                   DSE_SCHEMA_MAX_DEPTH);
        struct schema_node target;
        TRY(dse_schema_target(s, node, &target));
        *node = target;
    }
    return DSE_OK;
}

/* ---- rules ---------------------------------------------------------------------------------------------------- */

enum dse_status dse_schema_set_add(struct schema_compiler *s, struct schema_set *set, struct schema_node node)
{
    TRY(dse_schema_resolve(s, &node));
    if (json_is_true(node.json) || (json_is_object(node.json) && json_object_size(node.json) == 0)) return DSE_OK;
    for (size_t i = 0; i < set->n; i++)
        if (set->nodes[i].json == node.json) return DSE_OK;
    if (set->n == DSE_SCHEMA_MAX_PARTS)
        return dse_schema_fail(s, DSE_ERR_LIMIT, node.path, NULL,
                               "more than %d schemas hold for one value (DSE_SCHEMA_MAX_PARTS)", DSE_SCHEMA_MAX_PARTS);
    set->nodes[set->n++] = node;
    return DSE_OK;
}

static struct schema_item **find_item(struct schema_compiler *s, const struct schema_set *set)
{
    uint64_t hash = set->n;
    for (size_t i = 0; i < set->n; i++)
        hash = (hash ^ (uintptr_t)set->nodes[i].json) * 0x9E3779B97F4A7C15ull;
    struct schema_item **at = &s->slots[hash >> 32 & (SCHEMA_SLOTS - 1)];
    for (; *at; at = &(*at)->chain) {
        size_t i = 0;
        while (i < set->n && (*at)->n_nodes == set->n && (*at)->nodes[i].json == set->nodes[i].json)
            i++;
        if (i == set->n && (*at)->n_nodes == set->n) break;
    }
    return at;
}

enum dse_status dse_schema_call(struct schema_compiler *s, const struct schema_set *set, struct grammar_tree **out)
{
    if (set->n == 0) {
        *out = dse_schema_any(s);
        return *out ? DSE_OK : dse_schema_fail_memory(s);
    }
    struct schema_item **at = find_item(s, set);
    if (!*at) {
        char name[PATH_BYTES];
        struct schema_item *item = dse_schema_take(s, sizeof *item);
        struct schema_node *nodes = dse_schema_take(s, set->n * sizeof *nodes);
        if (!item || !nodes) return dse_schema_fail_memory(s);
        memcpy(nodes, set->nodes, set->n * sizeof *nodes);
        dse_schema_path_text(s, nodes[0].path, NULL, name, sizeof name);
        *item = (struct schema_item){.nodes = nodes, .n_nodes = set->n, .rule = dse_grammar_rule(s->b, name)};
        if (grammar_build_failed(s->b)) return dse_schema_fail_memory(s);
        *at = item;
        *s->last = item;
        s->last = &item->next;
    }
    *out = dse_grammar_call(s->b, (*at)->rule);
    return *out ? DSE_OK : dse_schema_fail_memory(s);
}

enum dse_status dse_schema_work_off(struct schema_compiler *s)
{
    for (; s->first; s->first = s->first->next) {
        const struct schema_item *item = s->first;
        struct schema_facets facets;
        struct grammar_tree *body = NULL;
        dse_schema_facets_init(&facets, item->nodes[0].path);
        for (size_t i = 0; i < item->n_nodes; i++)
            TRY(dse_schema_collect(s, item->nodes[i], 0, &facets));
        TRY(dse_schema_emit(s, &facets, 0, &body));
        if (grammar_build_failed(s->b)) return dse_schema_fail_memory(s);
        dse_grammar_define(s->b, item->rule, body);
    }
    s->last = &s->first;
    return DSE_OK;
}

/* ---- what is the same everywhere ------------------------------------------------------------------------------ */

/* Calls the rule, after it was made on the first use. */
static bool is_new(struct schema_compiler *s, uint32_t *rule, const char *name)
{
    if (*rule) return false;
    *rule = dse_grammar_rule(s->b, name) + 1;
    return true;
}

struct grammar_tree *dse_schema_space(struct schema_compiler *s)
{
    struct grammar_builder *b = s->b;
    if (s->flags & DSE_SCHEMA_COMPACT) return dse_grammar_text(b, "");
    if (is_new(s, &s->space, "space")) {
        static const struct grammar_range blank[] = {{' ', ' '}};
        struct grammar_tree *choice = dse_grammar_choice(b), *blanks = dse_grammar_class(b, blank, 1);
        dse_grammar_add(b, choice, dse_grammar_text(b, ""));
        dse_grammar_add(b, choice, dse_grammar_text(b, " "));
        dse_grammar_add(
            b, choice,
            GRAMMAR_SEQ(b, dse_grammar_text(b, "\n"), dse_grammar_repeat(b, blanks, 0, DSE_SCHEMA_MAX_INDENT)));
        dse_grammar_define(b, s->space - 1, choice);
    }
    return dse_grammar_call(b, s->space - 1);
}

struct grammar_tree *dse_schema_comma(struct schema_compiler *s)
{
    if (is_new(s, &s->comma, "comma"))
        dse_grammar_define(s->b, s->comma - 1,
                           GRAMMAR_SEQ(s->b, dse_schema_space(s), dse_grammar_text(s->b, ","), dse_schema_space(s)));
    return dse_grammar_call(s->b, s->comma - 1);
}

struct grammar_tree *dse_schema_colon(struct schema_compiler *s)
{
    struct grammar_tree *blank = dse_grammar_optional(s->b, dse_grammar_text(s->b, " "));
    if (is_new(s, &s->colon, "colon"))
        dse_grammar_define(s->b, s->colon - 1,
                           s->flags & DSE_SCHEMA_COMPACT ? dse_grammar_text(s->b, ":")
                                                         : GRAMMAR_SEQ(s->b, dse_grammar_text(s->b, ":"), blank));
    return dse_grammar_call(s->b, s->colon - 1);
}

/* Nothing, or the element and more of it behind commas. */
static struct grammar_tree *comma_list(struct schema_compiler *s, struct grammar_tree *first, struct grammar_tree *more)
{
    struct grammar_builder *b = s->b;
    struct grammar_tree *rest = dse_grammar_repeat(b, GRAMMAR_SEQ(b, dse_schema_comma(s), more), 0, -1);
    return dse_grammar_optional(b, GRAMMAR_SEQ(b, first, rest, dse_schema_space(s)));
}

struct grammar_tree *dse_schema_any_object(struct schema_compiler *s)
{
    struct grammar_builder *b = s->b;
    if (is_new(s, &s->object, "object")) {
        uint32_t member = dse_grammar_rule(b, "member");
        dse_grammar_define(b, member,
                           GRAMMAR_SEQ(b, dse_json_string(&s->text), dse_schema_colon(s), dse_schema_any(s)));
        struct grammar_tree *list = comma_list(s, dse_grammar_call(b, member), dse_grammar_call(b, member));
        dse_grammar_define(
            b, s->object - 1,
            GRAMMAR_SEQ(b, dse_grammar_text(b, "{"), dse_schema_space(s), list, dse_grammar_text(b, "}")));
    }
    return dse_grammar_call(b, s->object - 1);
}

struct grammar_tree *dse_schema_any(struct schema_compiler *s)
{
    static const struct json_bound none = {0};
    struct grammar_builder *b = s->b;
    if (is_new(s, &s->any, "value")) {
        struct grammar_tree *choice = dse_grammar_choice(b);
        struct grammar_tree *list = comma_list(s, dse_grammar_call(b, s->any - 1), dse_grammar_call(b, s->any - 1));
        dse_grammar_add(b, choice, dse_schema_any_object(s));
        dse_grammar_add(b, choice,
                        GRAMMAR_SEQ(b, dse_grammar_text(b, "["), dse_schema_space(s), list, dse_grammar_text(b, "]")));
        dse_grammar_add(b, choice, dse_json_string(&s->text));
        dse_grammar_add(b, choice, dse_json_number(b, &none, &none, -1));
        dse_grammar_add(b, choice, dse_grammar_text(b, "true"));
        dse_grammar_add(b, choice, dse_grammar_text(b, "false"));
        dse_grammar_add(b, choice, dse_grammar_text(b, "null"));
        dse_grammar_define(b, s->any - 1, choice);
    }
    return dse_grammar_call(b, s->any - 1);
}

/* ---- from the first to the last ------------------------------------------------------------------------------- */

void dse_schema_init(struct schema_compiler *s, struct grammar_builder *b, const json_t *root, const char *field,
                     unsigned flags, struct dse_error *err)
{
    *s = (struct schema_compiler){
        .b = b, .text = {.b = b}, .root = {root, NULL}, .field = field, .flags = flags, .err = err};
    s->last = &s->first;
    s->slots = dse_schema_take(s, SCHEMA_SLOTS * sizeof *s->slots);
}

static void define_root(struct grammar_builder *b, uint32_t root, struct grammar_tree *body, unsigned flags)
{
    dse_grammar_define(b, root, flags & DSE_SCHEMA_AFTER_THINKING ? dse_grammar_after_thinking(b, body) : body);
}

static enum dse_status compile_schema(struct schema_compiler *s, uint32_t *root)
{
    struct schema_set set = {.n = 0};
    struct grammar_tree *body = NULL;
    if (!s->slots) return dse_schema_fail_memory(s);
    *root = dse_grammar_rule(s->b, "root");
    TRY(dse_schema_set_add(s, &set, s->root));
    TRY(dse_schema_call(s, &set, &body));
    define_root(s->b, *root, body, s->flags);
    return dse_schema_work_off(s);
}

enum dse_status dse_json_schema_compile(const json_t *schema, const char *field, unsigned flags,
                                        struct dse_grammar **out, struct dse_error *err)
{
    struct grammar_builder b;
    struct schema_compiler s;
    uint32_t root = 0;
    *out = NULL;
    TRY(dse_grammar_build_init(&b, err));
    dse_schema_init(&s, &b, schema, field, flags, err);
    enum dse_status status = compile_schema(&s, &root);
    if (status == DSE_OK) status = dse_grammar_build_finish(&b, root, field, out, err);
    dse_grammar_build_deinit(&b);
    return status;
}

enum dse_status dse_json_object_compile(const char *field, unsigned flags, struct dse_grammar **out,
                                        struct dse_error *err)
{
    struct grammar_builder b;
    struct schema_compiler s;
    *out = NULL;
    TRY(dse_grammar_build_init(&b, err));
    dse_schema_init(&s, &b, NULL, field, flags, err);
    uint32_t root = dse_grammar_rule(&b, "root");
    define_root(&b, root, dse_schema_any_object(&s), flags);
    enum dse_status status = dse_grammar_build_finish(&b, root, field, out, err);
    dse_grammar_build_deinit(&b);
    return status;
}

enum dse_status dse_regex_compile(const char *pattern, size_t bytes, const char *field, unsigned flags,
                                  struct dse_grammar **out, struct dse_error *err)
{
    struct grammar_builder b;
    *out = NULL;
    TRY(dse_grammar_build_init(&b, err));
    struct json_text text = {.b = &b};
    struct regex_result result = {0};
    uint32_t root = dse_grammar_rule(&b, "root");
    enum dse_status status = dse_regex_tree(&text, pattern, bytes, REGEX_TEXT, field, &result, err);
    define_root(&b, root, result.tree, flags);
    if (status == DSE_OK) status = dse_grammar_build_finish(&b, root, field, out, err);
    dse_grammar_build_deinit(&b);
    return status;
}

static enum dse_status choice_texts(const json_t *strings, const char *field, struct dse_slice *texts,
                                    struct dse_error *err)
{
    for (size_t i = 0; i < json_array_size(strings); i++) {
        char path[PATH_BYTES];
        const json_t *string = json_array_get(strings, i);
        snprintf(path, sizeof path, "%s[%zu]", field, i);
        if (!json_is_string(string) || json_string_length(string) == 0)
            return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a string that is not empty", path);
        texts[i] = (struct dse_slice){json_string_value(string), json_string_length(string)};
    }
    return DSE_OK;
}

enum dse_status dse_choice_compile(const json_t *strings, const char *field, unsigned flags, struct dse_grammar **out,
                                   struct dse_error *err)
{
    struct grammar_builder b;
    size_t n = json_array_size(strings);
    *out = NULL;
    if (n == 0 || n > DSE_SCHEMA_MAX_VALUES)
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s must be an array of 1 to %d strings", field,
                           DSE_SCHEMA_MAX_VALUES);
    TRY(dse_grammar_build_init(&b, err));
    uint32_t root = dse_grammar_rule(&b, "root");
    struct dse_slice *texts = dse_arena_alloc(&b.arena, n * sizeof *texts);
    enum dse_status status = texts ? choice_texts(strings, field, texts, err)
                                   : dse_fail_memory(err, n * sizeof *texts, field);
    if (status == DSE_OK) {
        define_root(&b, root, dse_grammar_one_of(&b, texts, n), flags);
        status = dse_grammar_build_finish(&b, root, field, out, err);
    }
    dse_grammar_build_deinit(&b);
    return status;
}

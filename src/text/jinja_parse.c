/* Statements of a chat template, and the helpers that both halves of the parser share.
 *
 * Called by chat_template.c. A tag that we do not have is an error at load, with its line: nothing is skipped silently.
 */
#include <string.h>

#include "text/jinja_parser.h"
#include "text/jinja_text.h"

/* ---- helpers ---- */

struct dse_jinja_node *dse_jinja_parse_fail(struct dse_jinja_parser *parser, enum dse_status status, const char *format,
                                            ...)
{
    if (parser->failed) return NULL;
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    parser->failed = true;
    dse_fail(parser->err, status, "chat template line %u: %s", parser->token->line, text);
    parser->err->line = parser->token->line;
    return NULL;
}

void *dse_jinja_parse_alloc(struct dse_jinja_parser *parser, size_t bytes)
{
    if (parser->failed) return NULL;
    void *memory = dse_arena_alloc(parser->arena, bytes);
    if (!memory) dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "the template takes too much memory");
    return memory;
}

struct dse_jinja_node *dse_jinja_node_new(struct dse_jinja_parser *parser, enum dse_jinja_node_kind kind,
                                          const struct dse_jinja_token *where)
{
    struct dse_jinja_node *node = dse_jinja_parse_alloc(parser, sizeof(*node));
    if (!node) return NULL;
    node->kind = kind;
    node->line = where->line;
    return node;
}

bool dse_node_list_add(struct dse_jinja_parser *parser, struct dse_node_list *list, struct dse_jinja_node *node)
{
    if (!node) return false;
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        struct dse_jinja_node **items = dse_jinja_parse_alloc(parser, capacity * sizeof(*items));
        if (!items) return false;
        if (list->count) memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = node;
    return true;
}

struct dse_jinja_node *dse_jinja_node_done(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    unsigned height = 0;
    struct dse_jinja_node *children[3] = {node->a, node->b, node->c};
    for (int i = 0; i < 3; i++)
        if (children[i] && children[i]->height > height) height = children[i]->height;
    for (uint32_t i = 0; i < node->n_items; i++)
        if (node->items[i] && node->items[i]->height > height) height = node->items[i]->height;
    for (uint32_t i = 0; i < node->n_keywords; i++)
        if (node->keywords[i].node && node->keywords[i].node->height > height) height = node->keywords[i].node->height;
    if (height + 1 > DSE_JINJA_MAX_HEIGHT)
        return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "an expression has more than %d operators in a row",
                                    DSE_JINJA_MAX_HEIGHT);
    node->height = (uint16_t)(height + 1);
    return node;
}

bool dse_jinja_enter(struct dse_jinja_parser *parser)
{
    if (parser->failed) return false;
    if (parser->depth >= parser->max_depth)
        return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "nested deeper than %u", parser->max_depth), false;
    parser->depth++;
    return true;
}

bool dse_token_is(const struct dse_jinja_parser *parser, const char *text)
{
    const struct dse_jinja_token *token = parser->token;
    size_t bytes = strlen(text);
    return (token->kind == DSE_TOKEN_NAME || token->kind == DSE_TOKEN_OPERATOR) && token->bytes == bytes &&
           memcmp(token->text, text, bytes) == 0;
}

bool dse_token_take(struct dse_jinja_parser *parser, const char *text)
{
    if (parser->failed || !dse_token_is(parser, text)) return false;
    parser->token++;
    return true;
}

bool dse_token_expect(struct dse_jinja_parser *parser, const char *text)
{
    if (dse_token_take(parser, text)) return true;
    dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected '%s', found '%.*s'", text,
                         (int)(parser->token->bytes < 40 ? parser->token->bytes : 40), parser->token->text);
    return false;
}

struct dse_jv dse_jinja_name_value(struct dse_jinja_parser *parser, const char *data, size_t bytes)
{
    struct dse_jv_string *string = dse_jinja_parse_alloc(parser, sizeof(*string));
    if (!string) return dse_jv_failed();
    *string = (struct dse_jv_string){.data = data, .bytes = bytes, .chars = dse_jv_count_chars(data, bytes)};
    return (struct dse_jv){.kind = DSE_JV_STRING, .as.string = string};
}

/* ---- statements ---- */

static struct dse_jinja_node *parse_body(struct dse_jinja_parser *parser, const char *const *ends);

static bool end_tag(struct dse_jinja_parser *parser)
{
    if (parser->failed) return false;
    if (parser->token->kind != DSE_TOKEN_BLOCK_END)
        return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected '%%}', found '%.*s'",
                                    (int)(parser->token->bytes < 40 ? parser->token->bytes : 40), parser->token->text),
               false;
    parser->token++;
    return true;
}

/* Body up to one of the tags in `ends` (whose name is left for the caller), from the end of the opening tag on. */
static struct dse_jinja_node *parse_block(struct dse_jinja_parser *parser, const char *const *ends)
{
    return end_tag(parser) ? parse_body(parser, ends) : NULL;
}

struct dse_jinja_node *dse_parse_target(struct dse_jinja_parser *parser, bool with_attribute)
{
    const struct dse_jinja_token *first = parser->token;
    struct dse_node_list list = {0};
    bool comma = false;
    do {
        if (list.count && (dse_token_is(parser, "in") || dse_token_is(parser, "=") || dse_token_is(parser, ")"))) break;
        const struct dse_jinja_token *token = parser->token;
        struct dse_jinja_node *node = NULL;
        if (dse_token_take(parser, "(")) {
            if (!dse_jinja_enter(parser)) return NULL;
            node = dse_parse_target(parser, false);
            parser->depth--;
            if (!node || !dse_token_expect(parser, ")")) return NULL;
        } else if (token->kind == DSE_TOKEN_NAME) {
            node = dse_jinja_node_new(parser, DSE_NODE_NAME, token);
            if (!node) return NULL;
            node->value = dse_jinja_name_value(parser, token->text, token->bytes);
            parser->token++;
            if (with_attribute && dse_token_take(parser, ".")) {
                struct dse_jinja_node *attribute = dse_jinja_node_new(parser, DSE_NODE_ATTRIBUTE, token);
                if (!attribute) return NULL;
                attribute->a = node;
                attribute->value = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
                if (parser->token->kind != DSE_TOKEN_NAME)
                    return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected a name after '.'");
                parser->token++;
                node = attribute;
            }
        }
        if (!node) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected a name to assign to");
        static const char *const constants[] = {"true", "True", "false", "False", "none", "None", "not", "in"};
        for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
            if (node->kind == DSE_NODE_NAME && token->bytes == strlen(constants[i]) &&
                memcmp(token->text, constants[i], token->bytes) == 0)
                return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "cannot assign to '%s'", constants[i]);
        if (!dse_node_list_add(parser, &list, node)) return NULL;
    } while (dse_token_take(parser, ",") && (comma = true));
    if (!comma) return list.items[0];
    struct dse_jinja_node *tuple = dse_jinja_node_new(parser, DSE_NODE_TUPLE, first);
    if (!tuple) return NULL;
    tuple->items = list.items;
    tuple->n_items = list.count;
    return tuple;
}

static struct dse_jinja_node *parse_set(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"endset", NULL};
    if (!(node->b = dse_parse_target(parser, true))) return NULL;
    if (dse_token_take(parser, "=")) return (node->a = dse_parse_tuple(parser, true)) && end_tag(parser) ? node : NULL;
    node->kind = DSE_NODE_SET_BLOCK;
    node->a = dse_parse_filters(parser, NULL);
    if (parser->failed || !(node->c = parse_block(parser, ends))) return NULL;
    parser->token++;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_if(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct dse_node_list list = {0};
    do
        if (!dse_node_list_add(parser, &list, dse_parse_tuple(parser, false)) ||
            !dse_node_list_add(parser, &list, parse_block(parser, ends)))
            return NULL;
    while (dse_token_take(parser, "elif"));
    if (dse_token_take(parser, "else") && !(node->c = parse_block(parser, last))) return NULL;
    parser->token++;
    node->items = list.items;
    node->n_items = list.count;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_for(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    if (!(node->b = dse_parse_target(parser, false)) || !dse_token_expect(parser, "in")) return NULL;
    if (!(node->a = dse_parse_tuple(parser, false))) return NULL;
    node->n_items = 2;
    if (!(node->items = dse_jinja_parse_alloc(parser, 2 * sizeof(*node->items)))) return NULL;
    if (dse_token_take(parser, "if") && !(node->items[0] = dse_parse_expression(parser, true))) return NULL;
    if (dse_token_is(parser, "recursive"))
        return dse_jinja_parse_fail(parser, DSE_ERR_UNSUPPORTED, "recursive loops are not supported");
    parser->loops++;
    node->c = parse_block(parser, ends);
    parser->loops--;
    if (!node->c) return NULL;
    if (dse_token_take(parser, "else") && !(node->items[1] = parse_block(parser, last))) return NULL;
    parser->token++;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_macro(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct dse_jinja_keyword parameters[32];
    if (parser->token->kind != DSE_TOKEN_NAME)
        return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected the name of a macro");
    node->value = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
    parser->token++;
    if (!dse_token_expect(parser, "(")) return NULL;
    while (!dse_token_take(parser, ")")) {
        if (node->n_keywords && !dse_token_expect(parser, ",")) return NULL;
        if (node->n_keywords == sizeof(parameters) / sizeof(*parameters))
            return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "a macro with more than 32 parameters");
        if (parser->token->kind != DSE_TOKEN_NAME)
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected the name of a parameter");
        struct dse_jinja_keyword *parameter = &parameters[node->n_keywords];
        parameter->name = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
        parameter->node = NULL;
        parser->token++;
        if (dse_token_take(parser, "=")) {
            if (!(parameter->node = dse_parse_expression(parser, true))) return NULL;
        } else if (node->n_keywords && parameters[node->n_keywords - 1].node) {
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "parameter without default after one with default");
        }
        node->n_keywords++;
    }
    if (node->n_keywords) {
        if (!(node->keywords = dse_jinja_parse_alloc(parser, node->n_keywords * sizeof(*parameters)))) return NULL;
        memcpy(node->keywords, parameters, node->n_keywords * sizeof(*parameters));
    }
    unsigned loops = parser->loops;
    parser->loops = 0; /* a macro's body is not inside the loop around it */
    node->c = parse_block(parser, ends);
    parser->loops = loops;
    if (!node->c) return NULL;
    parser->token++;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_with(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"endwith", NULL};
    struct dse_node_list list = {0};
    while (!parser->failed && parser->token->kind != DSE_TOKEN_BLOCK_END) {
        if (list.count && !dse_token_expect(parser, ",")) return NULL;
        if (!dse_node_list_add(parser, &list, dse_parse_target(parser, false)) || !dse_token_expect(parser, "=") ||
            !dse_node_list_add(parser, &list, dse_parse_expression(parser, true)))
            return NULL;
    }
    node->items = list.items;
    node->n_items = list.count;
    if (!(node->c = parse_block(parser, ends))) return NULL;
    parser->token++;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_filter_block(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"endfilter", NULL};
    node->a = dse_parse_filter_chain(parser);
    if (!node->a || !(node->c = parse_block(parser, ends))) return NULL;
    parser->token++;
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_generation(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct dse_jinja_node *body = parse_block(parser, ends); /* marks training targets: nothing to do for us */
    if (!body) return NULL;
    parser->token++;
    return end_tag(parser) ? body : NULL;
}

static struct dse_jinja_node *parse_jump(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    if (!parser->loops) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "break or continue outside a loop");
    return end_tag(parser) ? node : NULL;
}

static struct dse_jinja_node *parse_statement(struct dse_jinja_parser *parser)
{
    static const struct {
        const char *name;
        enum dse_jinja_node_kind kind;
        struct dse_jinja_node *(*parse)(struct dse_jinja_parser *, struct dse_jinja_node *);
    } statements[] = {
        {"set", DSE_NODE_SET, parse_set},
        {"if", DSE_NODE_IF, parse_if},
        {"for", DSE_NODE_FOR, parse_for},
        {"macro", DSE_NODE_MACRO, parse_macro},
        {"with", DSE_NODE_WITH, parse_with},
        {"filter", DSE_NODE_FILTER_BLOCK, parse_filter_block},
        {"generation", DSE_NODE_BLOCK, parse_generation},
        {"break", DSE_NODE_BREAK, parse_jump},
        {"continue", DSE_NODE_CONTINUE, parse_jump},
    };
    const struct dse_jinja_token *name = parser->token;
    for (size_t i = 0; i < sizeof(statements) / sizeof(*statements); i++) {
        if (!dse_token_take(parser, statements[i].name)) continue;
        struct dse_jinja_node *node = dse_jinja_node_new(parser, statements[i].kind, name);
        if (!node || !(node = statements[i].parse(parser, node))) return NULL;
        return dse_jinja_node_done(parser, node);
    }
    return dse_jinja_parse_fail(parser, DSE_ERR_UNSUPPORTED, "tag '%.*s' is not supported here",
                                (int)(name->bytes < 40 ? name->bytes : 40), name->text);
}

static struct dse_jinja_node *parse_print(struct dse_jinja_parser *parser)
{
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_PRINT, parser->token++);
    if (!node || !(node->a = dse_parse_tuple(parser, true))) return NULL;
    if (parser->token->kind != DSE_TOKEN_PRINT_END)
        return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected '}}', found '%.*s'",
                                    (int)(parser->token->bytes < 40 ? parser->token->bytes : 40), parser->token->text);
    parser->token++;
    return dse_jinja_node_done(parser, node);
}

static bool at_end_tag(const struct dse_jinja_parser *parser, const char *const *ends)
{
    for (; *ends; ends++)
        if (dse_token_is(parser, *ends)) return true;
    return false;
}

static struct dse_jinja_node *parse_body(struct dse_jinja_parser *parser, const char *const *ends)
{
    struct dse_node_list list = {0};
    struct dse_jinja_node *block = dse_jinja_node_new(parser, DSE_NODE_BLOCK, parser->token);
    if (!block || !dse_jinja_enter(parser)) return NULL;
    for (;;) {
        struct dse_jinja_node *node;
        if (parser->token->kind == DSE_TOKEN_END) {
            if (!*ends) break;
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "the template ends without {%% %s %%}", *ends);
        }
        if (parser->token->kind == DSE_TOKEN_DATA) {
            node = dse_jinja_node_new(parser, DSE_NODE_DATA, parser->token);
            if (node) node->value = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
            parser->token++;
        } else if (parser->token->kind == DSE_TOKEN_PRINT_BEGIN) {
            node = parse_print(parser);
        } else {
            parser->token++;
            if (at_end_tag(parser, ends)) break;
            node = parse_statement(parser);
        }
        if (!dse_node_list_add(parser, &list, node)) return NULL;
    }
    parser->depth--;
    block->items = list.items;
    block->n_items = list.count;
    return dse_jinja_node_done(parser, block);
}

enum dse_status dse_jinja_parse(const struct dse_jinja_tokens *tokens, unsigned max_depth, struct dse_arena *arena,
                                const struct dse_jinja_node **root, struct dse_error *err)
{
    static const char *const no_ends[] = {NULL};
    struct dse_error local;
    struct dse_jinja_parser parser = {
        .token = tokens->items, .arena = arena, .max_depth = max_depth, .err = err ? err : &local};
    *root = parse_body(&parser, no_ends);
    return *root ? DSE_OK : parser.err->status;
}

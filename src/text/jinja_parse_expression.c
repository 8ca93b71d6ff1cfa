/* Expressions of a chat template: precedence climbing from `x if y else z` down to literals.
 *
 * From loose to tight: if-else, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix and filters.
 * Called by jinja_parse.c. Recursion is bounded by the parser's depth, the tree's height by DSE_JINJA_MAX_HEIGHT.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_builtins.h"
#include "text/jinja_parser.h"
#include "text/jinja_text.h"

static struct dse_jinja_node *parse_unary(struct dse_jinja_parser *parser, bool with_filter);

static struct dse_jinja_node *parse_constant(struct dse_jinja_parser *parser, struct dse_jv value)
{
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_CONSTANT, parser->token);
    if (node) node->value = value;
    return node;
}

/* ---- literals ---- */

static int hex_digits(const char *text, size_t count, uint32_t *value)
{
    *value = 0;
    for (size_t i = 0; i < count; i++) {
        const char *digits = "0123456789abcdef";
        const char *found = text[i] ? strchr(digits, text[i] | 32) : NULL;
        if (!found) return false;
        *value = *value * 16 + (uint32_t)(found - digits);
    }
    return true;
}

/* One escape at text[1] (behind the backslash); returns bytes used of text, writes to out. 0: not valid. */
static size_t unescape(const char *text, size_t bytes, char *out, size_t *n_out)
{
    static const char simple[] = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
    char c = text[1];
    *n_out = 1;
    if (c == '\n') return *n_out = 0, 2;
    for (size_t i = 0; i + 1 < sizeof(simple); i += 2)
        if (simple[i] == c) return out[0] = simple[i + 1], 2;
    if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t used = 1;
        while (used < 4 && used < bytes && text[used] >= '0' && text[used] <= '7')
            value = value * 8 + (uint32_t)(text[used++] - '0');
        *n_out = dse_utf8_encode(value, out);
        return used;
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        uint32_t value;
        if (bytes < 2 + digits || !hex_digits(text + 2, digits, &value)) return 0;
        *n_out = dse_utf8_encode(value, out);
        return *n_out ? 2 + digits : 0;
    }
    out[0] = '\\'; /* not an escape: both characters stay */
    return 1;
}

/* Neighbouring strings are one. */
static struct dse_jinja_node *parse_string(struct dse_jinja_parser *parser)
{
    size_t total = 0, used = 0;
    const struct dse_jinja_token *first = parser->token, *end = first;
    for (; end->kind == DSE_TOKEN_STRING; end++)
        total += end->bytes - 2;
    char *data = dse_jinja_parse_alloc(parser, total + 1);
    if (!data) return NULL;
    for (; parser->token < end; parser->token++) {
        const char *text = parser->token->text + 1, *stop = text + parser->token->bytes - 2;
        while (text < stop) {
            if (*text != '\\') {
                data[used++] = *text++;
                continue;
            }
            size_t written, taken = unescape(text, (size_t)(stop - text), data + used, &written);
            if (!taken) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "invalid escape in a string");
            text += taken;
            used += written;
        }
    }
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_CONSTANT, first);
    if (node) node->value = dse_jinja_name_value(parser, data, used);
    return node;
}

static struct dse_jinja_node *parse_number(struct dse_jinja_parser *parser)
{
    char digits[64];
    size_t n = 0;
    const struct dse_jinja_token *token = parser->token;
    for (size_t i = 0; i < token->bytes && n + 1 < sizeof(digits); i++)
        if (token->text[i] != '_') digits[n++] = token->text[i];
    digits[n] = 0;
    struct dse_jv value;
    char *end;
    errno = 0;
    if (token->kind == DSE_TOKEN_FLOAT) {
        value = dse_jv_of_float(strtod(digits, &end));
    } else {
        bool prefixed = n > 1 && digits[0] == '0' && strchr("xXbBoO", digits[1]);
        int base = !prefixed ? 10 : (digits[1] | 32) == 'x' ? 16 : (digits[1] | 32) == 'b' ? 2 : 8;
        value = dse_jv_of_int(strtoll(digits + (prefixed ? 2 : 0), &end, base));
        if (errno) return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "integer too large");
    }
    if (*end || n == 0 || end == digits) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "invalid number");
    struct dse_jinja_node *node = parse_constant(parser, value);
    parser->token++;
    return node;
}

/* Items up to `close`, which is taken. key_separator: the items are `key: value`. */
static bool parse_items(struct dse_jinja_parser *parser, const char *close, bool pairs, struct dse_node_list *list)
{
    while (!dse_token_take(parser, close)) {
        if (list->count && !dse_token_expect(parser, ",")) return false;
        if (dse_token_take(parser, close)) return true;
        if (!dse_node_list_add(parser, list, dse_parse_expression(parser, true))) return false;
        if (pairs &&
            (!dse_token_expect(parser, ":") || !dse_node_list_add(parser, list, dse_parse_expression(parser, true))))
            return false;
    }
    return true;
}

static struct dse_jinja_node *parse_bracketed(struct dse_jinja_parser *parser)
{
    bool dict = dse_token_is(parser, "{");
    struct dse_jinja_node *node = dse_jinja_node_new(parser, dict ? DSE_NODE_DICT : DSE_NODE_LIST, parser->token);
    struct dse_node_list list = {0};
    parser->token++;
    if (!node || !parse_items(parser, dict ? "}" : "]", dict, &list)) return NULL;
    node->items = list.items;
    node->n_items = list.count;
    return dse_jinja_node_done(parser, node);
}

static struct dse_jinja_node *parse_parentheses(struct dse_jinja_parser *parser)
{
    const struct dse_jinja_token *open = parser->token++;
    if (dse_token_take(parser, ")")) return dse_jinja_node_new(parser, DSE_NODE_TUPLE, open);
    struct dse_jinja_node *node = dse_parse_tuple(parser, true);
    return node && dse_token_expect(parser, ")") ? node : NULL;
}

static struct dse_jinja_node *parse_name(struct dse_jinja_parser *parser)
{
    static const struct {
        const char *name;
        struct dse_jv value;
    } constants[] = {
        {"true", {.kind = DSE_JV_BOOL, .as.boolean = true}},
        {"True", {.kind = DSE_JV_BOOL, .as.boolean = true}},
        {"false", {.kind = DSE_JV_BOOL}},
        {"False", {.kind = DSE_JV_BOOL}},
        {"none", {.kind = DSE_JV_NONE}},
        {"None", {.kind = DSE_JV_NONE}},
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
        if (dse_token_is(parser, constants[i].name)) {
            struct dse_jinja_node *node = parse_constant(parser, constants[i].value);
            parser->token++;
            return node;
        }
    static const char *const reserved[] = {"if", "else", "elif", "and", "or", "not", "in", "is", "for"};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(*reserved); i++)
        if (dse_token_is(parser, reserved[i]))
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected an expression, found '%s'", reserved[i]);
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_NAME, parser->token);
    if (node) node->value = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
    parser->token++;
    return node;
}

static struct dse_jinja_node *parse_primary(struct dse_jinja_parser *parser)
{
    switch (parser->token->kind) {
    case DSE_TOKEN_STRING: return parse_string(parser);
    case DSE_TOKEN_INT:
    case DSE_TOKEN_FLOAT: return parse_number(parser);
    case DSE_TOKEN_NAME: return parse_name(parser);
    default: break;
    }
    if (dse_token_is(parser, "(")) return parse_parentheses(parser);
    if (dse_token_is(parser, "[") || dse_token_is(parser, "{")) return parse_bracketed(parser);
    return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected an expression, found '%.*s'",
                                (int)(parser->token->bytes < 40 ? parser->token->bytes : 40), parser->token->text);
}

/* ---- postfix: attributes, items, calls, filters, tests ---- */

/* The arguments behind an opening bracket that is already taken. */
static bool parse_arguments(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    struct dse_node_list list = {0};
    struct dse_jinja_keyword keywords[32];
    bool any = false;
    while (!dse_token_take(parser, ")")) {
        if (any && !dse_token_expect(parser, ",")) return false;
        if (dse_token_take(parser, ")")) break;
        any = true;
        if (dse_token_is(parser, "*") || dse_token_is(parser, "**"))
            return dse_jinja_parse_fail(parser, DSE_ERR_UNSUPPORTED, "* in a call is not supported"), false;
        const struct dse_jinja_token *next = parser->token + 1;
        if (parser->token->kind == DSE_TOKEN_NAME && next->kind == DSE_TOKEN_OPERATOR && next->bytes == 1 &&
            next->text[0] == '=') {
            if (node->n_keywords == sizeof(keywords) / sizeof(*keywords))
                return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "more than 32 keyword arguments"), false;
            struct dse_jinja_keyword *keyword = &keywords[node->n_keywords++];
            keyword->name = dse_jinja_name_value(parser, parser->token->text, parser->token->bytes);
            parser->token += 2;
            if (!(keyword->node = dse_parse_expression(parser, true))) return false;
        } else if (node->n_keywords) {
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "positional argument after keyword argument"), false;
        } else if (!dse_node_list_add(parser, &list, dse_parse_expression(parser, true))) {
            return false;
        }
    }
    node->items = list.items;
    node->n_items = list.count;
    if (node->n_keywords) {
        node->keywords = dse_jinja_parse_alloc(parser, node->n_keywords * sizeof(*keywords));
        if (!node->keywords) return false;
        memcpy(node->keywords, keywords, node->n_keywords * sizeof(*keywords));
    }
    return true;
}

static struct dse_jinja_node *parse_call(struct dse_jinja_parser *parser, struct dse_jinja_node *callee)
{
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_CALL, parser->token);
    if (!node || !dse_token_expect(parser, "(")) return NULL;
    node->a = callee;
    return parse_arguments(parser, node) ? dse_jinja_node_done(parser, node) : NULL;
}

static struct dse_jinja_node *parse_dot(struct dse_jinja_parser *parser, struct dse_jinja_node *object)
{
    const struct dse_jinja_token *name = ++parser->token;
    if (name->kind == DSE_TOKEN_INT) {
        struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_ITEM, name);
        if (!node) return NULL;
        node->a = object;
        node->b = parse_number(parser);
        return node->b ? dse_jinja_node_done(parser, node) : NULL;
    }
    if (name->kind != DSE_TOKEN_NAME) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected a name after '.'");
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_ATTRIBUTE, name);
    if (!node) return NULL;
    node->a = object;
    node->value = dse_jinja_name_value(parser, name->text, name->bytes);
    parser->token++;
    return dse_jinja_node_done(parser, node);
}

static struct dse_jinja_node *parse_item(struct dse_jinja_parser *parser, struct dse_jinja_node *object)
{
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_ITEM, parser->token++);
    struct dse_jinja_node *parts[3] = {NULL};
    if (!node) return NULL;
    int n = 0;
    bool slice = false;
    while (!dse_token_is(parser, "]")) {
        if (dse_token_take(parser, ":")) {
            slice = true;
            if (++n > 2) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "too many ':' in a slice");
        } else if (parts[n] || !(parts[n] = dse_parse_expression(parser, true))) {
            return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected ']'");
        }
    }
    parser->token++;
    node->a = object;
    node->b = slice ? NULL : parts[0];
    if (!slice && !node->b) return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected an expression, found ']'");
    if (slice) {
        node->kind = DSE_NODE_SLICE;
        node->n_items = 3;
        if (!(node->items = dse_jinja_parse_alloc(parser, sizeof(parts)))) return NULL;
        memcpy(node->items, parts, sizeof(parts));
    }
    return dse_jinja_node_done(parser, node);
}

static struct dse_jinja_node *parse_postfix(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    while (node) {
        if (dse_token_is(parser, "."))
            node = parse_dot(parser, node);
        else if (dse_token_is(parser, "["))
            node = parse_item(parser, node);
        else if (dse_token_is(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

static struct dse_jinja_node *parse_filter(struct dse_jinja_parser *parser, struct dse_jinja_node *input)
{
    const struct dse_jinja_token *name = parser->token;
    if (name->kind != DSE_TOKEN_NAME)
        return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected the name of a filter");
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_FILTER, name);
    if (!node) return NULL;
    node->builtin = dse_jinja_find_filter(name->text, name->bytes);
    if (!node->builtin)
        return dse_jinja_parse_fail(parser, DSE_ERR_UNSUPPORTED, "unknown filter '%.*s'",
                                    (int)(name->bytes < 60 ? name->bytes : 60), name->text);
    node->a = input;
    parser->token++;
    if (dse_token_take(parser, "(") && !parse_arguments(parser, node)) return NULL;
    return dse_jinja_node_done(parser, node);
}

static struct dse_jinja_node *parse_test(struct dse_jinja_parser *parser, struct dse_jinja_node *input)
{
    static const char *const no_argument[] = {"else", "or", "and", "if", "in", "not", "is"};
    const struct dse_jinja_token *is = parser->token++;
    bool negated = dse_token_take(parser, "not");
    const struct dse_jinja_token *name = parser->token;
    if (name->kind != DSE_TOKEN_NAME)
        return dse_jinja_parse_fail(parser, DSE_ERR_CORRUPT, "expected a test after 'is'");
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_TEST, is);
    if (!node) return NULL;
    node->builtin = dse_jinja_find_test(name->text, name->bytes);
    if (!node->builtin)
        return dse_jinja_parse_fail(parser, DSE_ERR_UNSUPPORTED, "unknown test '%.*s'",
                                    (int)(name->bytes < 60 ? name->bytes : 60), name->text);
    node->a = input;
    parser->token++;
    enum dse_jinja_token_kind next = parser->token->kind;
    bool argument = next == DSE_TOKEN_NAME || next == DSE_TOKEN_STRING || next == DSE_TOKEN_INT ||
                    next == DSE_TOKEN_FLOAT || dse_token_is(parser, "[") || dse_token_is(parser, "{");
    for (size_t i = 0; i < sizeof(no_argument) / sizeof(*no_argument); i++)
        if (dse_token_is(parser, no_argument[i])) argument = false;
    if (dse_token_take(parser, "(")) {
        if (!parse_arguments(parser, node)) return NULL;
    } else if (argument) {
        struct dse_node_list list = {0};
        if (!dse_node_list_add(parser, &list, parse_postfix(parser, parse_primary(parser)))) return NULL;
        node->items = list.items;
        node->n_items = list.count;
    }
    if (!dse_jinja_node_done(parser, node) || !negated) return parser->failed ? NULL : node;
    struct dse_jinja_node *not_node = dse_jinja_node_new(parser, DSE_NODE_NOT, is);
    if (!not_node) return NULL;
    not_node->a = node;
    return dse_jinja_node_done(parser, not_node);
}

struct dse_jinja_node *dse_parse_filters(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    while (dse_token_take(parser, "|"))
        node = parse_filter(parser, node);
    return node;
}

struct dse_jinja_node *dse_parse_filter_chain(struct dse_jinja_parser *parser)
{
    struct dse_jinja_node *node = parse_filter(parser, NULL);
    return node ? dse_parse_filters(parser, node) : NULL;
}

static struct dse_jinja_node *parse_filters_and_tests(struct dse_jinja_parser *parser, struct dse_jinja_node *node)
{
    while (node) {
        if (dse_token_take(parser, "|"))
            node = parse_filter(parser, node);
        else if (dse_token_is(parser, "is"))
            node = parse_test(parser, node);
        else if (dse_token_is(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* ---- operators ---- */

static struct dse_jinja_node *parse_unary(struct dse_jinja_parser *parser, bool with_filter)
{
    struct dse_jinja_node *node;
    const struct dse_jinja_token *token = parser->token;
    bool negate = dse_token_is(parser, "-");
    if (negate || dse_token_is(parser, "+")) {
        node = dse_jinja_node_new(parser, negate ? DSE_NODE_NEGATE : DSE_NODE_PLUS, token);
        parser->token++;
        if (!node || !dse_jinja_enter(parser)) return NULL;
        node->a = parse_unary(parser, false);
        parser->depth--;
        if (!node->a || !dse_jinja_node_done(parser, node)) return NULL;
    } else {
        node = parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    return with_filter ? parse_filters_and_tests(parser, node) : node;
}

/* Left-associative operators, loosest level first. */
static const struct {
    const char *text;
    enum dse_jinja_op op;
    int level;
} binary_operators[] = {
    {"+", DSE_OP_ADD, 0},           {"-", DSE_OP_SUBTRACT, 0}, {"~", DSE_OP_CONCAT, 1}, {"*", DSE_OP_MULTIPLY, 2},
    {"//", DSE_OP_FLOOR_DIVIDE, 2}, {"/", DSE_OP_DIVIDE, 2},   {"%", DSE_OP_MODULO, 2}, {"**", DSE_OP_POWER, 3},
};

static struct dse_jinja_node *parse_binary(struct dse_jinja_parser *parser, int level)
{
    struct dse_jinja_node *left = level < 3 ? parse_binary(parser, level + 1) : parse_unary(parser, true);
    while (left) {
        const size_t n = sizeof(binary_operators) / sizeof(*binary_operators);
        size_t i = 0;
        while (i < n && (binary_operators[i].level != level || !dse_token_is(parser, binary_operators[i].text)))
            i++;
        if (i == n) break;
        struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_BINARY, parser->token++);
        if (!node) return NULL;
        node->op = (uint8_t)binary_operators[i].op;
        node->a = left;
        node->b = level < 3 ? parse_binary(parser, level + 1) : parse_unary(parser, true);
        left = node->b ? dse_jinja_node_done(parser, node) : NULL;
    }
    return left;
}

static bool take_comparison(struct dse_jinja_parser *parser, uint8_t *op)
{
    static const struct {
        const char *text;
        enum dse_jinja_op op;
    } comparisons[] = {{"==", DSE_OP_EQ}, {"!=", DSE_OP_NE}, {"<", DSE_OP_LT}, {"<=", DSE_OP_LE},
                       {">", DSE_OP_GT},  {">=", DSE_OP_GE}, {"in", DSE_OP_IN}};
    for (size_t i = 0; i < sizeof(comparisons) / sizeof(*comparisons); i++)
        if (dse_token_take(parser, comparisons[i].text)) return *op = (uint8_t)comparisons[i].op, true;
    const struct dse_jinja_token *next = parser->token + 1;
    if (dse_token_is(parser, "not") && next->kind == DSE_TOKEN_NAME && next->bytes == 2 &&
        memcmp(next->text, "in", 2) == 0) {
        parser->token += 2;
        *op = DSE_OP_NOT_IN;
        return true;
    }
    return false;
}

static struct dse_jinja_node *parse_comparison(struct dse_jinja_parser *parser)
{
    const struct dse_jinja_token *token = parser->token;
    struct dse_jinja_node *left = parse_binary(parser, 0);
    uint8_t ops[16], op;
    struct dse_node_list list = {0};
    while (left && take_comparison(parser, &op)) {
        if (list.count == sizeof(ops))
            return dse_jinja_parse_fail(parser, DSE_ERR_LIMIT, "more than %zu comparisons in a row", sizeof(ops));
        ops[list.count] = op;
        if (!dse_node_list_add(parser, &list, parse_binary(parser, 0))) return NULL;
    }
    if (!left || list.count == 0) return left;
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_COMPARE, token);
    if (!node || !(node->ops = dse_jinja_parse_alloc(parser, list.count))) return NULL;
    memcpy(node->ops, ops, list.count);
    node->a = left;
    node->items = list.items;
    node->n_items = list.count;
    return dse_jinja_node_done(parser, node);
}

static struct dse_jinja_node *parse_not(struct dse_jinja_parser *parser)
{
    if (!dse_token_is(parser, "not")) return parse_comparison(parser);
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_NOT, parser->token++);
    if (!node || !dse_jinja_enter(parser)) return NULL;
    node->a = parse_not(parser);
    parser->depth--;
    return node->a ? dse_jinja_node_done(parser, node) : NULL;
}

static struct dse_jinja_node *parse_logic(struct dse_jinja_parser *parser, bool is_or)
{
    struct dse_jinja_node *left = is_or ? parse_logic(parser, false) : parse_not(parser);
    while (left && dse_token_is(parser, is_or ? "or" : "and")) {
        struct dse_jinja_node *node = dse_jinja_node_new(parser, is_or ? DSE_NODE_OR : DSE_NODE_AND, parser->token++);
        if (!node) return NULL;
        node->a = left;
        node->b = is_or ? parse_logic(parser, false) : parse_not(parser);
        left = node->b ? dse_jinja_node_done(parser, node) : NULL;
    }
    return left;
}

static struct dse_jinja_node *parse_if_else(struct dse_jinja_parser *parser)
{
    struct dse_jinja_node *value = parse_logic(parser, true);
    while (value && dse_token_is(parser, "if")) {
        struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_IF_ELSE, parser->token++);
        if (!node) return NULL;
        node->a = value;
        if (!(node->b = parse_logic(parser, true))) return NULL;
        if (dse_token_take(parser, "else") && !(node->c = dse_parse_expression(parser, true))) return NULL;
        value = dse_jinja_node_done(parser, node);
    }
    return value;
}

struct dse_jinja_node *dse_parse_expression(struct dse_jinja_parser *parser, bool with_if_else)
{
    if (!dse_jinja_enter(parser)) return NULL;
    struct dse_jinja_node *node = with_if_else ? parse_if_else(parser) : parse_logic(parser, true);
    parser->depth--;
    return node;
}

static bool at_tuple_end(const struct dse_jinja_parser *parser)
{
    enum dse_jinja_token_kind kind = parser->token->kind;
    return kind == DSE_TOKEN_BLOCK_END || kind == DSE_TOKEN_PRINT_END || kind == DSE_TOKEN_END ||
           dse_token_is(parser, ")") || dse_token_is(parser, "in") || dse_token_is(parser, "=");
}

struct dse_jinja_node *dse_parse_tuple(struct dse_jinja_parser *parser, bool with_if_else)
{
    const struct dse_jinja_token *token = parser->token;
    struct dse_node_list list = {0};
    bool comma = false;
    do {
        if (list.count && at_tuple_end(parser)) break;
        if (!dse_node_list_add(parser, &list, dse_parse_expression(parser, with_if_else))) return NULL;
    } while (dse_token_take(parser, ",") && (comma = true));
    if (!comma) return list.items[0];
    struct dse_jinja_node *node = dse_jinja_node_new(parser, DSE_NODE_TUPLE, token);
    if (!node) return NULL;
    node->items = list.items;
    node->n_items = list.count;
    return dse_jinja_node_done(parser, node);
}

/* Shared by jinja_parse.c (statements) and jinja_parse_expression.c. Used nowhere else. */
#ifndef DSE_TEXT_JINJA_PARSER_H
#define DSE_TEXT_JINJA_PARSER_H

#include "text/jinja_ast.h"

#define DSE_JINJA_MAX_HEIGHT 500 /* of the tree: a + b + c … is as high as it is long */

struct dse_jinja_parser {
    const struct dse_jinja_token *token; /* the next one; the last is DSE_TOKEN_END and never passed */
    struct dse_arena *arena;
    unsigned depth, max_depth;
    unsigned loops; /* for blocks around here: break and continue are allowed inside */
    bool failed;
    struct dse_error *err;
};

struct dse_node_list {
    struct dse_jinja_node **items;
    uint32_t count, capacity;
};

/* All return NULL (or false) after a failure; the first one is kept. */
struct dse_jinja_node *dse_jinja_parse_fail(struct dse_jinja_parser *parser, enum dse_status status, const char *format,
                                            ...) __attribute__((format(printf, 3, 4)));
void *dse_jinja_parse_alloc(struct dse_jinja_parser *parser, size_t bytes);
struct dse_jinja_node *dse_jinja_node_new(struct dse_jinja_parser *parser, enum dse_jinja_node_kind kind,
                                          const struct dse_jinja_token *where);
bool dse_node_list_add(struct dse_jinja_parser *parser, struct dse_node_list *list, struct dse_jinja_node *node);
/* Works out the height from the children; fails beyond DSE_JINJA_MAX_HEIGHT. */
struct dse_jinja_node *dse_jinja_node_done(struct dse_jinja_parser *parser, struct dse_jinja_node *node);
bool dse_jinja_enter(struct dse_jinja_parser *parser); /* counts nesting; pair with parser->depth-- when true */

bool dse_token_is(const struct dse_jinja_parser *parser, const char *text); /* an operator or a name */
bool dse_token_take(struct dse_jinja_parser *parser, const char *text);
bool dse_token_expect(struct dse_jinja_parser *parser, const char *text);
struct dse_jv dse_jinja_name_value(struct dse_jinja_parser *parser, const char *data, size_t bytes);

struct dse_jinja_node *dse_parse_expression(struct dse_jinja_parser *parser, bool with_if_else);
/* An expression, or `a, b` without brackets. */
struct dse_jinja_node *dse_parse_tuple(struct dse_jinja_parser *parser, bool with_if_else);
/* The filters after a block's name: `| upper | trim`; NULL with nothing failed when there are none. */
struct dse_jinja_node *dse_parse_filters(struct dse_jinja_parser *parser, struct dse_jinja_node *node);
/* The same with a first filter without its bar, as in `{% filter upper | trim %}`. */
struct dse_jinja_node *dse_parse_filter_chain(struct dse_jinja_parser *parser);
struct dse_jinja_node *dse_parse_target(struct dse_jinja_parser *parser, bool with_attribute);

#endif

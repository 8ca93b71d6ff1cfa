/* Tokens and syntax tree of a chat template: made by jinja_lexer.c and jinja_parse*.c, walked by jinja_eval.c and
 * jinja_exec.c. The tree is immutable once parsed and lives in the template's arena. */
#ifndef DSE_TEXT_JINJA_AST_H
#define DSE_TEXT_JINJA_AST_H

#include "text/jinja_value.h"

enum dse_jinja_token_kind {
    DSE_TOKEN_DATA,
    DSE_TOKEN_BLOCK_BEGIN,
    DSE_TOKEN_BLOCK_END,
    DSE_TOKEN_PRINT_BEGIN,
    DSE_TOKEN_PRINT_END,
    DSE_TOKEN_NAME,
    DSE_TOKEN_STRING, /* with its quotes */
    DSE_TOKEN_INT,
    DSE_TOKEN_FLOAT,
    DSE_TOKEN_OPERATOR,
    DSE_TOKEN_END,
};

struct dse_jinja_token {
    const char *text;
    uint32_t bytes, line;
    enum dse_jinja_token_kind kind;
};

struct dse_jinja_tokens {
    struct dse_jinja_token *items;
    size_t count, capacity;
};

/* trim_blocks and lstrip_blocks on, one newline at the end of the source dropped. `source` (line ends already "\n")
 * must outlive the tokens. */
DSE_MUST_CHECK enum dse_status dse_jinja_lex(const char *source, size_t bytes, struct dse_arena *arena,
                                             struct dse_jinja_tokens *tokens, struct dse_error *err);

enum dse_jinja_node_kind {
    /* expressions */
    DSE_NODE_CONSTANT,  /* value */
    DSE_NODE_NAME,      /* value: string */
    DSE_NODE_LIST,      /* items */
    DSE_NODE_TUPLE,     /* items */
    DSE_NODE_DICT,      /* items: key, value, key, value … */
    DSE_NODE_ATTRIBUTE, /* a.value */
    DSE_NODE_ITEM,      /* a[b] */
    DSE_NODE_SLICE,     /* a[items[0]:items[1]:items[2]], absent parts NULL */
    DSE_NODE_CALL,      /* a(items, keywords) */
    DSE_NODE_FILTER,    /* a | builtin(items, keywords); a NULL: the text of a block */
    DSE_NODE_TEST,      /* a is builtin(items, keywords) */
    DSE_NODE_NOT,       /* not a */
    DSE_NODE_NEGATE,    /* -a */
    DSE_NODE_PLUS,      /* +a */
    DSE_NODE_BINARY,    /* a op b */
    DSE_NODE_COMPARE,   /* a, then (ops[i], items[i]) … */
    DSE_NODE_AND,
    DSE_NODE_OR,
    DSE_NODE_IF_ELSE, /* a if b else c (c may be NULL) */
    /* statements */
    DSE_NODE_BLOCK,        /* items in order */
    DSE_NODE_DATA,         /* value: text */
    DSE_NODE_PRINT,        /* a */
    DSE_NODE_SET,          /* target b = a */
    DSE_NODE_SET_BLOCK,    /* target b = text of c, through the filters in a (may be NULL) */
    DSE_NODE_IF,           /* items: condition, block, condition, block …; c: else block or NULL */
    DSE_NODE_FOR,          /* target b in a, filter in items[0] or NULL; body c; else block items[1] or NULL */
    DSE_NODE_MACRO,        /* value: name; keywords: parameters with defaults (node NULL: none); body c */
    DSE_NODE_WITH,         /* items: target, expression …; body c */
    DSE_NODE_FILTER_BLOCK, /* text of c through the filters in a */
    DSE_NODE_BREAK,
    DSE_NODE_CONTINUE,
};

enum dse_jinja_op {
    DSE_OP_ADD,
    DSE_OP_SUBTRACT,
    DSE_OP_MULTIPLY,
    DSE_OP_DIVIDE,
    DSE_OP_FLOOR_DIVIDE,
    DSE_OP_MODULO,
    DSE_OP_POWER,
    DSE_OP_CONCAT,
    DSE_OP_EQ,
    DSE_OP_NE,
    DSE_OP_LT,
    DSE_OP_LE,
    DSE_OP_GT,
    DSE_OP_GE,
    DSE_OP_IN,
    DSE_OP_NOT_IN,
};

struct dse_jinja_keyword {
    struct dse_jv name; /* string */
    struct dse_jinja_node *node;
};

struct dse_jinja_builtin;

struct dse_jinja_node {
    enum dse_jinja_node_kind kind;
    uint8_t op;
    uint16_t height; /* of the tree below: bounds the recursion of the evaluator */
    uint32_t line;
    struct dse_jinja_node *a, *b, *c;
    struct dse_jinja_node **items;
    uint8_t *ops;
    uint32_t n_items, n_keywords;
    struct dse_jinja_keyword *keywords;
    struct dse_jv value;
    const struct dse_jinja_builtin *builtin;
};

/* Root block of the template. */
DSE_MUST_CHECK enum dse_status dse_jinja_parse(const struct dse_jinja_tokens *tokens, unsigned max_depth,
                                               struct dse_arena *arena, const struct dse_jinja_node **root,
                                               struct dse_error *err);

#endif

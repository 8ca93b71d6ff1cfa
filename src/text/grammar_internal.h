/* What the files of the grammar share: syntax tree, compiled graph, token trie, matcher.
 *
 *   source --grammar_parse.c--> rules (tree) --grammar_compile.c--> struct dse_grammar (graph of byte ranges)
 *   JSON schema, regular expression, tools --json_schema*.c, regex_grammar.c, grammar_build.c--> rules (tree)
 *   graph --grammar_matcher.c--> sets of parse stacks, a lazily built automaton over them
 *   token texts --grammar_trie.c--> trie;   grammar.c walks the trie with the matcher.
 *
 * Private to the text room and to its tests and fuzz targets.
 */
#ifndef DSE_TEXT_GRAMMAR_INTERNAL_H
#define DSE_TEXT_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "text/grammar.h"

#define DSE_GRAMMAR_MAX_REPEAT       4096       /* bounds of {m,n} */
#define DSE_GRAMMAR_MAX_BUILD_REPEAT 65536      /* the same of grammars that are built (grammar_build.h) */
#define DSE_GRAMMAR_MAX_PARENS       128        /* nested groups */
#define DSE_GRAMMAR_MAX_TREE_DEPTH   512        /* groups, sequences and repetitions inside one another */
#define DSE_GRAMMAR_MAX_NAME_BYTES   256        /* of a rule */
#define DSE_GRAMMAR_MAX_TOKEN_BYTES  4096       /* longer tokens are never allowed under a grammar */
#define DSE_GRAMMAR_MAX_CLOSURE      16384      /* positions visited for one byte */
#define DSE_GRAMMAR_MAX_MASK_WORK    (1u << 22) /* positions visited for one mask; a hostile grammar stops here */
#define DSE_GRAMMAR_MASK_CACHE_BYTES ((size_t)1 << 20) /* of one grammar, for all its sequences */
#define DSE_GRAMMAR_MAX_MASKS        512               /* the same of a small vocabulary */

/* ---- syntax tree ------------------------------------------------------------------------------------------- */

enum grammar_tree_kind {
    GRAMMAR_LITERAL,
    GRAMMAR_CLASS,
    GRAMMAR_RULE,
    GRAMMAR_SEQUENCE,
    GRAMMAR_CHOICE,
    GRAMMAR_REPEAT
};

struct grammar_range {
    uint32_t lo, hi;
}; /* code points, both included */

struct grammar_tree {
    enum grammar_tree_kind kind;
    uint32_t depth;                    /* 1 for leaves */
    struct grammar_tree *first, *last; /* children of a sequence or choice; first is what a repetition repeats */
    struct grammar_tree *next, *previous;
    union {
        struct {
            const uint8_t *bytes;
            size_t n_bytes;
        } literal;
        struct {
            const struct grammar_range *ranges;
            size_t n_ranges;
        } class; /* sorted, disjoint, not empty */
        struct {
            int min, max;
        } repeat; /* max -1: unbounded */
        uint32_t rule;
    };
};

/* The child, complete and without a parent, becomes the last one. false: the tree is deeper than
 * DSE_GRAMMAR_MAX_TREE_DEPTH now. */
static inline bool grammar_tree_append(struct grammar_tree *parent, struct grammar_tree *child)
{
    child->previous = parent->last;
    child->next = NULL;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    if (parent->depth <= child->depth) parent->depth = child->depth + 1;
    return parent->depth <= DSE_GRAMMAR_MAX_TREE_DEPTH;
}

struct grammar_rule {
    const char *name;          /* NUL-terminated, in the arena */
    int line;                  /* where it is defined, or first used while it is not */
    struct grammar_tree *body; /* NULL: not defined */
};

struct grammar_rules {
    struct dse_arena *arena;
    struct grammar_rule *rules; /* [DSE_GRAMMAR_MAX_RULES] */
    uint32_t n_rules;
};

/* Fills rules (which is zeroed by the caller but for its arena); every rule that is used is defined. */
DSE_MUST_CHECK enum dse_status dse_grammar_parse(const char *source, size_t bytes, struct grammar_rules *rules,
                                                 struct dse_error *err);
/* Sorts, joins and, if negated, turns inside out; ranges has room for n + 1. Returns the new count. */
size_t dse_grammar_normalise_ranges(struct grammar_range *ranges, size_t n_ranges, bool negated);
/* "grammar line N: …"; also sets err->line. */
enum dse_status dse_grammar_fail(struct dse_error *err, enum dse_status status, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* as in base/error.h */
#define dse_grammar_fail(err, status, ...) ((void)(dse_grammar_fail)(err, status, __VA_ARGS__), (status))
#endif

/* ---- graph ------------------------------------------------------------------------------------------------- */

enum grammar_op {
    GRAMMAR_RETURN,    /* end of a rule; always node 0 */
    GRAMMAR_BYTES,     /* takes one byte in [lo, hi], then next */
    GRAMMAR_SPLIT,     /* next or other */
    GRAMMAR_CALL,      /* other is the first node of a rule, next is where it returns to */
    GRAMMAR_CALL_RULE, /* the same while compiling: other is the number of a rule */
};

struct grammar_node {
    uint32_t next, other;
    uint8_t op, lo, hi;
};

struct dse_grammar {
    atomic_uint references;
    struct grammar_node *nodes;
    uint32_t n_nodes, start;
    uint32_t n_classes; /* bytes that no node tells apart share a class */
    uint8_t class_of_byte[256], byte_of_class[256];
    pthread_mutex_t lock;        /* while masks are made for the first sequence */
    struct grammar_masks *masks; /* NULL: none so far */
};

/* Rules whose bodies are all there -> a grammar that starts at root, owned. */
DSE_MUST_CHECK enum dse_status dse_grammar_compile_rules(const struct grammar_rules *rules, uint32_t root,
                                                         struct dse_grammar **out, struct dse_error *err);
/* Rejects left recursion. */
DSE_MUST_CHECK enum dse_status dse_grammar_check_recursion(const struct grammar_rules *rules, struct dse_error *err);
/* Ranges of code points as alternative sequences of byte ranges; calls back with 1…4 bytes. */
typedef bool grammar_utf8_fn(void *user, const uint8_t lo[4], const uint8_t hi[4], int n_bytes);
bool dse_grammar_utf8_ranges(uint32_t lo, uint32_t hi, grammar_utf8_fn *fn, void *user);

/* ---- trie -------------------------------------------------------------------------------------------------- */

struct trie_node {
    uint32_t skip;  /* node after this subtree */
    uint32_t token; /* n_words * 64 if no token ends here */
    uint16_t depth; /* 0 for the first byte of tokens */
    uint8_t byte;
};

struct dse_token_trie {
    uint64_t id;              /* of no other trie of this process */
    size_t n_tokens, n_words; /* words of a mask */
    struct trie_node *nodes;  /* in preorder */
    uint32_t n_nodes;
    uint32_t max_depth;
    uint64_t *stops;   /* [n_words] */
    uint32_t *offsets; /* [n_tokens + 1] into texts; tokens that are never allowed are empty */
    uint8_t *texts;
};

/* A control token can only be taken where a grammar asks for it: it is matched by this byte, which no UTF-8 has, and
 * its text. Tokens of text with this byte are never allowed. */
#define GRAMMAR_CONTROL_BYTE 0xFF

enum grammar_token_use { GRAMMAR_TOKEN_TEXT, GRAMMAR_TOKEN_STOP, GRAMMAR_TOKEN_NEVER, GRAMMAR_TOKEN_CONTROL };
DSE_MUST_CHECK enum dse_status dse_token_trie_create_from(const struct dse_slice *texts, const uint8_t *uses,
                                                          size_t n_tokens, struct dse_token_trie **out,
                                                          struct dse_error *err);

/* ---- matcher ----------------------------------------------------------------------------------------------- */

/* A configuration is a set of parse stacks, held once; its number is valid until the next flush. */
#define GRAMMAR_FULL 0u /* no room: flush, then try again */
#define GRAMMAR_DEAD 1u /* the empty set */

struct grammar_config {
    uint32_t first, count; /* entries, sorted */
    uint32_t chain;
};

struct grammar_cell {
    uint32_t node, parent, chain, depth;
    uint64_t hash[2]; /* of this cell and all below it: does not depend on their numbers */
};

struct grammar_matcher {
    const struct dse_grammar *grammar;
    struct grammar_cell *cells; /* 0 is the bottom of every stack; parents come before their children */
    uint32_t n_cells, *cell_heads;
    uint64_t *entries; /* node << 32 | cell; 0 (return at the bottom) means that the text may end */
    uint32_t n_entries;
    struct grammar_config *configs;
    uint32_t n_configs, max_configs, *config_heads;
    uint32_t *rows;          /* [max_configs][n_classes] configuration after a byte; 0: not known yet */
    uint64_t *work, *result; /* of one closure */
    uint32_t n_work, n_result;
    uint64_t *seen;
    uint32_t *seen_stamp, stamp, n_seen;
    uint64_t work_done;
    void *zeroed_block, *block;
};

DSE_MUST_CHECK enum dse_status dse_grammar_matcher_init(struct grammar_matcher *matcher,
                                                        const struct dse_grammar *grammar, struct dse_error *err);
void dse_grammar_matcher_deinit(struct grammar_matcher *matcher);
uint32_t dse_grammar_matcher_start(struct grammar_matcher *matcher);
/* The configuration after a byte of this class. */
uint32_t dse_grammar_matcher_step(struct grammar_matcher *matcher, uint32_t config, uint32_t byte_class);
/* Forgets everything but this configuration, whose new number is returned. */
uint32_t dse_grammar_matcher_flush(struct grammar_matcher *matcher, uint32_t config);

/* Of a configuration's stacks, whatever their cells are numbered. */
void dse_grammar_matcher_hash(const struct grammar_matcher *matcher, uint32_t config, uint64_t hash[2]);

/* ---- masks that were worked out (grammar_masks.c) ------------------------------------------------------------ */

struct grammar_masks;
struct grammar_masks *dse_grammar_masks_create(const struct dse_token_trie *trie); /* NULL: no memory */
void dse_grammar_masks_free(struct grammar_masks *masks);
bool dse_grammar_masks_fit(const struct grammar_masks *masks, const struct dse_token_trie *trie);
/* mask: [n_words of the trie]. Neither allocates. */
bool dse_grammar_masks_find(struct grammar_masks *masks, const uint64_t hash[2], uint64_t *mask);
void dse_grammar_masks_put(struct grammar_masks *masks, const uint64_t hash[2], const uint64_t *mask);

static inline bool grammar_config_may_end(const struct grammar_matcher *matcher, uint32_t config)
{
    const struct grammar_config *c = &matcher->configs[config];
    return c->count > 0 && matcher->entries[c->first] == 0;
}

#endif

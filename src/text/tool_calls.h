/* Tool calls in the text of a model: bytes in, content, calls and their arguments out.
 *
 * The output stage feeds it what is neither reasoning nor behind a stop string. Byte driven, so that nothing depends on
 * how the text was cut. A call is announced once its name and the beginning of its arguments are there; what does not
 * have the shape of a call is content, byte for byte. Arguments go out as they come: if the model wrote no valid JSON,
 * the client sees that. Memory is fixed; never allocates.
 *
 * White space around calls belongs to the format and is dropped: up to two newlines before the first, all between
 * calls, all behind the last if nothing else follows.
 */
#ifndef DSE_TEXT_TOOL_CALLS_H
#define DSE_TEXT_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dse_tool_format {
    DSE_TOOLS_NONE,
    DSE_TOOLS_DEEPSEEK, /* V3, R1 (type word, name, fenced JSON) and V3.1 (name, bare JSON), told apart by shape */
    DSE_TOOLS_DSML,     /* V3.2 and V4: invoke and parameter tags */
    DSE_TOOLS_QWEN,     /* <tool_call> around a JSON object with name and arguments */
};

/* The format that a chat template or a compiled-in rendering shows to the model. */
enum dse_tool_format dse_tool_format_of(const char *template_source);
/* Of a format's two layouts the template shows the older one: V3's fence around arguments (then V3.1's bare ones), V3.2's
 * function_calls (then V4's tool_calls). */
bool dse_tool_layout_is_older(enum dse_tool_format format, const char *template_source);
/* A token's text is a mark of the format: it must reach the parser even where control tokens are hidden. */
bool dse_tool_format_has(enum dse_tool_format format, const char *text, size_t bytes);

#define DSE_TOOL_MAX_HELD_BYTES     1024              /* of structure that is not decided yet */
#define DSE_TOOL_MAX_NAME_BYTES     256               /* of a function or a parameter */
#define DSE_TOOL_MAX_ARGUMENT_BYTES ((size_t)4 << 20) /* of one call; what follows is content */
#define DSE_TOOL_MAX_PARAMETERS     64                /* that are checked for being given twice */

struct dse_tool_sink {
    void (*content)(void *user, uint8_t byte);
    void (*begin)(void *user, const char *name, size_t bytes);
    void (*argument)(void *user, uint8_t byte); /* of the call that began last */
    void (*end)(void *user);
};

enum dse_tool_state {
    DSE_TOOL_TEXT,
    DSE_TOOL_BETWEEN,   /* behind a call */
    DSE_TOOL_ARGUMENTS, /* JSON, up to the end mark */
    DSE_TOOL_STRING,    /* DSML: text of a parameter */
    DSE_TOOL_VALUE,     /* DSML: JSON of a parameter */
    DSE_TOOL_GAP,       /* DSML: between parameters */
};

struct dse_tool_parser {
    const struct dse_tool_sink *sink;
    void *user;
    enum dse_tool_format format;
    enum dse_tool_state state;
    char held[DSE_TOOL_MAX_HELD_BYTES];
    size_t n_held;
    size_t n_argument_bytes; /* of the open call */
    int depth;               /* of the JSON so far */
    bool in_string, escaped;
    uint64_t parameters[DSE_TOOL_MAX_PARAMETERS]; /* hashes of their names */
    int n_parameters;
};

void dse_tool_parser_init(struct dse_tool_parser *parser, enum dse_tool_format format, const struct dse_tool_sink *sink,
                          void *user);
void dse_tool_parser_feed(struct dse_tool_parser *parser, uint8_t byte);
/* End of the text: an open call ends where it stands, what was held back goes out. */
void dse_tool_parser_finish(struct dse_tool_parser *parser);

#endif

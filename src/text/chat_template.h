/* Chat templates: messages and tools -> prompt text, by our own subset of Jinja with hard limits.
 *
 * Templates come with the model and are untrusted: nothing in them can reach outside their variables, and steps,
 * output, memory, depth and processor time are limited. A template is immutable and may be rendered from any thread.
 */
#ifndef DSE_TEXT_CHAT_TEMPLATE_H
#define DSE_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "text/tool_calls.h"

struct dse_template_limits {
    size_t max_source_bytes; /* 1 MiB */
    size_t max_output_bytes; /* 64 MiB */
    size_t max_memory_bytes; /* values alive during a rendering, 256 MiB */
    uint64_t max_steps;      /* nodes evaluated, 20 million */
    unsigned max_depth;      /* nesting of the source and of macro calls, 64 */
    unsigned max_ms;         /* processor time of the thread, 5000 */
};
extern const struct dse_template_limits dse_template_limits_default;

struct dse_template;

/* Errors carry line number and what was not understood. */
DSE_MUST_CHECK enum dse_status dse_template_parse(const char *source, size_t bytes,
                                                  const struct dse_template_limits *limits, struct dse_template **out,
                                                  struct dse_error *err);
void dse_template_free(struct dse_template *tmpl);

struct dse_template_inputs {
    const json_t *messages; /* array of objects, as the client sent them */
    const json_t *tools;    /* array or NULL (none, as transformers passes it) */
    bool add_generation_prompt;
    const char *bos_token, *eos_token; /* texts; NULL: undefined, prints as "" */
    const json_t *extra; /* object of further variables (enable_thinking, …) or NULL; the names above win */
};

/* Returns owned text (dse_free). raise_exception() in the template is DSE_ERR_INVALID with its message. */
DSE_MUST_CHECK enum dse_status dse_template_render(const struct dse_template *tmpl,
                                                   const struct dse_template_inputs *inputs, char **text, size_t *bytes,
                                                   struct dse_error *err);

/* How a template wants things, found out once by trial renderings. */
struct dse_template_traits {
    bool has_tools;             /* renders the tools variable */
    bool has_calls;             /* renders tool_calls of earlier messages */
    bool arguments_as_object;   /* tool_calls[].function.arguments must be an object, not a string */
    bool null_content_fails;    /* content null must become "" */
    bool has_thinking;          /* knows <think> … </think> */
    bool prompt_opens_thinking; /* the generation prompt ends inside an open <think> by default */
    bool renders_system;        /* a system message reaches the text */
    bool encoder_rules;         /* a built-in encoder: system messages stay in place, arguments must be an object */
    enum dse_tool_format tool_format; /* of the calls that it shows to the model */
    bool older_tool_layout;           /* dse_tool_layout_is_older */
};
void dse_template_probe(const struct dse_template *tmpl, const char *bos_token, const char *eos_token,
                        struct dse_template_traits *traits);

/* Messages as a server gets them -> messages as this template can take them: developer becomes system, several system
 * messages are joined, consecutive roles merged where the template needs it, content parts of type text joined,
 * null content and tool arguments put into the form that `traits` asks for. Returns a new owned array.
 * DSE_ERR_INVALID names the field (messages[2].content). */
DSE_MUST_CHECK enum dse_status dse_messages_normalize(const json_t *messages, const struct dse_template_traits *traits,
                                                      json_t **out, struct dse_error *err);

#endif

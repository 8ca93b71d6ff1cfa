/* Output stage of one sequence: token bytes -> whole UTF-8 characters, stop strings, reasoning split -> events.
 *
 * Runs between the sampler and the client. Text that may still turn into a stop string or a tag is held back; nothing
 * is lost or sent twice, however the text is cut into tokens. Never allocates after creation.
 *
 * Stop strings are looked for in the raw text of the whole output, reasoning and tags included, in every format. The
 * one that is complete first ends the output; of several that end at the same byte, the longest.
 *
 * Reasoning (DSE_REASONING_DEEPSEEK): an opening tag counts only at the very start, after white space; later tags in
 * the content are text. Newlines after the opening tag and around the closing tag are dropped.
 *
 * Tool calls (tools): looked for in the content, never in the reasoning (tool_calls.h). Their text does not reach the
 * content; events tell of them instead, in order with it.
 */
#ifndef DSE_TEXT_OUTPUT_H
#define DSE_TEXT_OUTPUT_H

#include <stdbool.h>

#include "base/error.h"
#include "text/tool_calls.h"

#define DSE_OUTPUT_MAX_STOPS      16
#define DSE_OUTPUT_MAX_STOP_BYTES 512

enum dse_reasoning_format {
    DSE_REASONING_NONE,     /* everything is content, verbatim; a tag that the prompt opened is put in front */
    DSE_REASONING_DEEPSEEK, /* text inside <think>…</think> goes to the reasoning channel, tags are dropped */
};

enum dse_channel { DSE_CHANNEL_CONTENT, DSE_CHANNEL_REASONING };

enum dse_tool_event_kind {
    DSE_TOOL_EVENT_BEGIN,     /* text: the function's name */
    DSE_TOOL_EVENT_ARGUMENTS, /* text: the next piece of the arguments */
    DSE_TOOL_EVENT_END,
};
struct dse_tool_event {
    enum dse_tool_event_kind kind;
    int index; /* of the call in this output, from 0 */
    const char *text;
    size_t bytes;
};

/* Called with whole UTF-8 characters, never empty. */
typedef void dse_output_fn(void *user, enum dse_channel channel, const char *text, size_t bytes);
/* The same for tool calls. */
typedef void dse_output_tool_fn(void *user, const struct dse_tool_event *event);

struct dse_output_options {
    const char *const *stops; /* borrowed during creation */
    const size_t *stop_bytes;
    int n_stops;
    enum dse_reasoning_format reasoning;
    bool starts_in_reasoning;             /* the prompt ended inside an open <think> */
    const char *think_open, *think_close; /* "<think>", "</think>"; NULL: no reasoning split at all */
    dse_output_fn *emit;
    enum dse_tool_format tools;    /* DSE_TOOLS_NONE: calls are text */
    dse_output_tool_fn *emit_tool; /* needed with tools */
    void *user;
};

struct dse_output;
DSE_MUST_CHECK enum dse_status dse_output_create(const struct dse_output_options *options, struct dse_output **out,
                                                 struct dse_error *err);
void dse_output_free(struct dse_output *output);

/* Feeds the bytes of one token. Returns false when a stop string was completed (its text and all after are dropped);
 * *stop_index then tells which. All text before it has then gone out; later calls do nothing and return true. */
bool dse_output_feed(struct dse_output *output, const char *bytes, size_t count, int *stop_index);
/* End of generation: what was held back goes out; a left-over partial character becomes U+FFFD once. */
void dse_output_finish(struct dse_output *output);
/* Tokens fed while inside reasoning, the one that closes it included (for usage.completion_tokens_details); always 0
 * without a reasoning split. */
int dse_output_reasoning_tokens(const struct dse_output *output);
/* Calls that have begun so far. */
int dse_output_tool_calls(const struct dse_output *output);
bool dse_output_in_reasoning(const struct dse_output *output);
/* Bytes at the end of what was fed whose text has not gone out yet: they may still become a stop string, a tag, a call
 * or a character. */
size_t dse_output_held_bytes(const struct dse_output *output);
/* Bytes at the end of what was fed, from the first that is content, or may yet be: newlines behind a thought are none.
 * To be asked for outside of reasoning. */
size_t dse_output_content_bytes(const struct dse_output *output);

/* A part of what was fed, counted back from the end of all that was: from `begin` bytes before it to `end` bytes before
 * it. Empty if both are equal. */
struct dse_output_span {
    size_t begin, end;
};
#define DSE_OUTPUT_CALL_SPANS 2
/* What became tool calls instead of content: the last such part that content followed, and the one that is open. To be
 * asked for after every feed and after finish. */
void dse_output_call_spans(const struct dse_output *output, struct dse_output_span spans[DSE_OUTPUT_CALL_SPANS]);

#endif

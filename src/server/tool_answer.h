/* The tool calls of one choice, as elements of `tool_calls` in an answer: whole, or delta by delta in a stream.
 *
 * Filled by the output stage's events on the engine thread. Only text: knows nothing of requests or exchanges.
 */
#ifndef DSE_SERVER_TOOL_ANSWER_H
#define DSE_SERVER_TOOL_ANSWER_H

#include "base/buffer.h"
#include "text/output.h"
#include "text/tokenizer.h"

struct dse_tool_answer {
    struct dse_buffer text; /* whole: the elements of the array; stream: one delta per line, since the last chunk */
    bool stream;
};

void dse_tool_answer_init(struct dse_tool_answer *answer, bool stream, size_t max_bytes);
void dse_tool_answer_deinit(struct dse_tool_answer *answer);
void dse_tool_answer_add(struct dse_tool_answer *answer, const struct dse_tool_event *event);
/* Next delta from *position on, false at the end. */
bool dse_tool_answer_next(const struct dse_tool_answer *answer, size_t *position, struct dse_slice *delta);

#endif

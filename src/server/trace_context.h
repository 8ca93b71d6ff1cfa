/* W3C Trace Context (https://www.w3.org/TR/trace-context/): the traceparent of a request, and ours in the answer,
 * which has the same trace id, our own span id and the caller's flags. Without a valid one, or with two, a new trace
 * begins. */
#ifndef DSE_SERVER_TRACE_CONTEXT_H
#define DSE_SERVER_TRACE_CONTEXT_H

#include <stdbool.h>

#define DSE_TRACEPARENT_BYTES 56 /* with the NUL */

struct dse_trace_context {
    char trace_id[33], parent_id[17]; /* parent_id: "" when the trace begins here */
    char span_id[17];
    unsigned flags;
};

/* header: NULL or what the client sent. Returns whether it was valid; *context is usable in both cases. */
bool dse_trace_context_begin(const char *header, struct dse_trace_context *context);
/* Reads a header alone. */
bool dse_trace_context_parse(const char *header, struct dse_trace_context *context);
void dse_trace_context_put(const struct dse_trace_context *context, char out[DSE_TRACEPARENT_BYTES]);

#endif

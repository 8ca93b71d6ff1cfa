/* One answer at a time for the command line: posts a request, hands its text to the caller's thread as it comes. */
#ifndef DSE_CLI_GENERATION_H
#define DSE_CLI_GENERATION_H

#include <dse/dse.h>
#include <stdbool.h>

#include "text/chat_template.h"
#include "text/output.h"

struct dse_generation_result {
    enum dse_finish finish;
    struct dse_timings timings;
    int reasoning_tokens;
};

typedef void dse_generation_text_fn(void *user, enum dse_channel channel, const char *text, size_t bytes);

struct dse_generation_options {
    struct dse_request request;       /* on_event and user are set by the call */
    struct dse_output_options output; /* emit and user are set by the call */
    dse_generation_text_fn *on_text;  /* called on the calling thread */
    void *user;
};

/* Blocks until the answer is complete. *stop (may be NULL) is polled: once true the request is cancelled. */
DSE_MUST_CHECK enum dse_status dse_generate_text(struct dse_engine *engine,
                                                 const struct dse_generation_options *options,
                                                 const volatile bool *stop, struct dse_generation_result *result,
                                                 struct dse_error *err);

#endif

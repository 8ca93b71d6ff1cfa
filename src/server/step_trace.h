/* `--trace-steps FILE`: the engine's steps as a trace that chrome://tracing and ui.perfetto.dev open. A thread of its
 * own copies them from the engine's ring, so the engine never waits for a disk. The file is bounded, and whole JSON after
 * every write, also when the process is killed. */
#ifndef DSE_SERVER_STEP_TRACE_H
#define DSE_SERVER_STEP_TRACE_H

#include "base/error.h"

#define DSE_STEP_TRACE_MAX_BYTES (64u << 20)

struct dse_engine;
struct dse_step_trace;

/* Creates or empties the file, which must be a regular one. */
DSE_MUST_CHECK enum dse_status dse_step_trace_open(const char *path, struct dse_step_trace **trace,
                                                   struct dse_error *err);
/* Starts the thread; the engine must outlive the trace. Once. */
DSE_MUST_CHECK enum dse_status dse_step_trace_start(struct dse_step_trace *trace, struct dse_engine *engine,
                                                    struct dse_error *err);
/* Writes what is left and closes. Safe on NULL. */
void dse_step_trace_close(struct dse_step_trace *trace);

#endif

/* GET /api/edge/events: what the server counts, once a second, as a stream for the page's dashboard and for tools.
 *
 * One thread takes a sample a second and keeps the last ten minutes in fixed memory, so that who looks later sees how
 * it came to this. It reads atomics and the list that /slots shows: never a lock that the engine holds while it computes.
 */
#ifndef DSE_SERVER_EVENTS_H
#define DSE_SERVER_EVENTS_H

#include "base/error.h"

#define DSE_EVENTS_MAX_LISTENERS 16

struct dse_server;
struct dse_events;

/* Before requests come. The server is borrowed. */
DSE_MUST_CHECK enum dse_status dse_events_start(struct dse_server *server, struct dse_events **events,
                                                struct dse_error *err);
/* Ends all streams and the thread; whoever comes later is told that the server is shutting down. */
void dse_events_end(struct dse_events *events);
/* When no exchange is left. */
void dse_events_free(struct dse_events *events);

#endif

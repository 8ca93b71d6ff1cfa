/* One log line for each request, when it is over: who (ids), what (method and route), how (status, bytes, times, counts
 * of tokens). Never its text, its query or its key. Level info, component "access". */
#ifndef DSE_SERVER_ACCESS_LOG_H
#define DSE_SERVER_ACCESS_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct dse_http_exchange;
struct dse_generation;

/* What a generation tells of itself. Kept by its exchange. */
struct dse_access_note {
    bool given;
    char model[128];
    const char *finish; /* constant text; NULL: has not ended by itself */
    bool stream;
    int64_t n_prompt, n_cached, n_generated;
    uint64_t queued_ns, prefill_ns, decode_ns;
};

/* What the HTTP layer knows of an exchange that is over. */
struct dse_http_summary {
    int status; /* 0: the client left before there was an answer */
    uint64_t bytes, duration_ns;
    bool complete; /* the whole answer was taken by the client's side */
    const struct dse_access_note *note;
};

/* route: its path in our table, NULL: none. */
void dse_access_log(struct dse_http_exchange *x, const char *route, const struct dse_http_summary *summary);
/* Before the answer of a generation ends. */
void dse_access_note_generation(const struct dse_generation *generation);

#endif

/* The picture of `top`: from the JSON of /api/edge/state to lines of plain text, without any escape sequence. */
#ifndef DSE_CLI_TOP_DRAW_H
#define DSE_CLI_TOP_DRAW_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buffer.h"

#define DSE_TOP_HISTORY 60

enum dse_top_sort { DSE_TOP_BY_AGE, DSE_TOP_BY_SPEED, DSE_TOP_BY_CONTEXT, DSE_TOP_SORT_COUNT };

/* The last one is the newest. */
struct dse_top_history {
    double values[DSE_TOP_HISTORY];
    int n;
};

struct dse_top_view {
    const char *url;
    json_t *now, *before;         /* states; before: of the last look, NULL: none. Differences between them are shown */
    struct dse_top_history speed; /* generated tokens per second */
    struct dse_top_history first_token; /* seconds, mean of those between two looks; negative: there was none */
    enum dse_top_sort sort;
    bool utf8;
    bool is_stale; /* the last look had no answer: now is older */
    int columns;
};

/* Adds what view->now says to the histories. */
void dse_top_remember(struct dse_top_view *view);
/* Lines with a newline each; none wider than view->columns. */
void dse_top_draw(const struct dse_top_view *view, struct dse_buffer *out);
/* The first line of a text from elsewhere, as far as it has room in so many columns: nothing that a terminal obeys. */
void dse_top_put_text(struct dse_buffer *out, const char *text, int columns);
const char *dse_top_sort_name(enum dse_top_sort sort);

#endif

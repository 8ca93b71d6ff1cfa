/* The parts of an answer in order: thoughts, texts and tool calls, for dialects that number them (messages.c,
 * responses.c). The output stage's events fill the list on the engine thread; a stream tells what is new in it.
 *
 * Only text: knows nothing of requests or exchanges.
 */
#ifndef DSE_SERVER_ITEMS_H
#define DSE_SERVER_ITEMS_H

#include "base/buffer.h"
#include "text/output.h"

enum dse_item_kind { DSE_ITEM_THOUGHT, DSE_ITEM_TEXT, DSE_ITEM_CALL };

struct dse_item {
    enum dse_item_kind kind;
    char id[25];                      /* random, without the dialect's prefix */
    struct dse_buffer name;           /* of the function, of a call */
    struct dse_buffer text;           /* all so far: of a call its arguments */
    size_t first_logprob, n_logprobs; /* of a text: its part of the choice's list */
};

struct dse_items {
    struct dse_item *items; /* owned array */
    size_t count, capacity;
    bool failed; /* there was no memory for a part */
    /* What a stream has told: items before `told` wholly, of that one it has opened `sent` bytes. */
    size_t told, sent;
    size_t sent_logprobs; /* of that one */
    bool opened;
    size_t n_logprobs; /* that belong to an item */
};

void dse_items_deinit(struct dse_items *items);
void dse_items_add_text(struct dse_items *items, enum dse_channel channel, const char *text, size_t bytes);
void dse_items_add_call(struct dse_items *items, const struct dse_tool_event *event);

/* The choice's list of log probabilities has so many now: the new ones are those of the text added last. */
void dse_items_add_logprobs(struct dse_items *items, size_t count);

/* How a stream tells of items. */
struct dse_item_teller {
    void (*open)(void *user, size_t index, const struct dse_item *item);
    void (*more)(void *user, size_t index, const struct dse_item *item, const char *text, size_t bytes);
    void (*close)(void *user, size_t index, const struct dse_item *item);
};
/* Tells what is new. over: the answer has ended, and its last item with it. */
void dse_items_tell(struct dse_items *items, const struct dse_item_teller *teller, void *user, bool over);

#endif

/* Thoughts, texts and calls of an answer in order (see items.h). */
#include "server/items.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/random.h"

#define MAX_ITEM_BYTES (256u << 20)

void dse_items_deinit(struct dse_items *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dse_buffer_deinit(&list->items[i].name);
        dse_buffer_deinit(&list->items[i].text);
    }
    dse_free(list->items);
    *list = (struct dse_items){0};
}

/* Whoever can guess the id of a call could answer for another's: it is random. */
static void set_id(struct dse_item *item)
{
    unsigned char random[(sizeof item->id - 1) / 2];
    dse_random_bytes(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(item->id + 2 * i, 3, "%02x", random[i]);
}

static struct dse_item *add(struct dse_items *list, enum dse_item_kind kind)
{
    if (!list->items || list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        struct dse_item *items = dse_realloc(DSE_MEM_REQUEST, list->items, capacity * sizeof *items);
        if (!items) {
            list->failed = true;
            return NULL;
        }
        list->items = items;
        list->capacity = capacity;
    }
    struct dse_item *item = &list->items[list->count++];
    *item = (struct dse_item){.kind = kind};
    set_id(item);
    dse_buffer_init(&item->name, DSE_MEM_REQUEST, DSE_TOOL_MAX_NAME_BYTES + 1);
    dse_buffer_init(&item->text, DSE_MEM_REQUEST, MAX_ITEM_BYTES);
    return item;
}

void dse_items_add_text(struct dse_items *list, enum dse_channel channel, const char *text, size_t bytes)
{
    enum dse_item_kind kind = channel == DSE_CHANNEL_REASONING ? DSE_ITEM_THOUGHT : DSE_ITEM_TEXT;
    struct dse_item *item = list->count ? &list->items[list->count - 1] : NULL;
    if (!item || item->kind != kind) item = add(list, kind);
    if (item && !dse_buffer_append(&item->text, text, bytes)) list->failed = true;
}

void dse_items_add_call(struct dse_items *list, const struct dse_tool_event *event)
{
    if (event->kind == DSE_TOOL_EVENT_END) return; /* the next item ends it */
    struct dse_item *item = list->count ? &list->items[list->count - 1] : NULL;
    if (event->kind == DSE_TOOL_EVENT_BEGIN) item = add(list, DSE_ITEM_CALL);
    if (!item) return;
    struct dse_buffer *to = event->kind == DSE_TOOL_EVENT_BEGIN ? &item->name : &item->text;
    if (!dse_buffer_append(to, event->text, event->bytes)) list->failed = true;
}

void dse_items_add_logprobs(struct dse_items *list, size_t count)
{
    size_t i = list->count;
    while (i > 0 && list->items[i - 1].kind != DSE_ITEM_TEXT)
        i--;
    if (i == 0) return; /* of blanks that were dropped: the next text takes them */
    struct dse_item *item = &list->items[i - 1];
    if (item->n_logprobs == 0) item->first_logprob = list->n_logprobs;
    item->n_logprobs += count - list->n_logprobs;
    list->n_logprobs = count;
}

void dse_items_tell(struct dse_items *list, const struct dse_item_teller *teller, void *user, bool over)
{
    while (list->told < list->count) {
        const struct dse_item *item = &list->items[list->told];
        if (!list->opened) teller->open(user, list->told, item);
        list->opened = true;
        size_t bytes = item->text.length - list->sent;
        if (bytes > 0) teller->more(user, list->told, item, item->text.data + list->sent, bytes);
        list->sent = item->text.length;
        if (bytes > 0) list->sent_logprobs = item->n_logprobs;
        if (list->told + 1 == list->count && !over) return; /* more of it may come */
        teller->close(user, list->told, item);
        list->told++;
        list->sent = list->sent_logprobs = 0;
        list->opened = false;
    }
}

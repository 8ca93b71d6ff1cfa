/* Elements of `tool_calls` (see tool_answer.h). */
#include "server/tool_answer.h"

#include <string.h>

#include "base/random.h"

void dse_tool_answer_init(struct dse_tool_answer *answer, bool stream, size_t max_bytes)
{
    *answer = (struct dse_tool_answer){.stream = stream};
    dse_buffer_init(&answer->text, DSE_MEM_REQUEST, max_bytes);
}

void dse_tool_answer_deinit(struct dse_tool_answer *answer)
{
    dse_buffer_deinit(&answer->text);
}

/* Whoever can guess an id could answer for another's call: it is random. */
static void put_id(struct dse_buffer *out)
{
    unsigned char random[12];
    dse_random_bytes(random, sizeof random);
    dse_buffer_puts(out, "\"id\":\"call_");
    for (size_t i = 0; i < sizeof random; i++)
        dse_buffer_printf(out, "%02x", random[i]);
    dse_buffer_puts(out, "\",\"type\":\"function\",\"function\":{\"name\":");
}

/* More of a JSON string whose closing quote is the last byte so far. */
static void extend_string(struct dse_buffer *out, const char *text, size_t bytes)
{
    if (out->failed || out->length == 0) return;
    size_t quote = out->length - 1;
    if (!dse_buffer_put_json_string(out, text, bytes)) return;
    /* `…"` and `"more"` become one: both quotes between them go. */
    memmove(out->data + quote, out->data + quote + 2, out->length - quote - 2);
    out->length -= 2;
    out->data[out->length] = 0;
}

static void add_delta(struct dse_buffer *out, const struct dse_tool_event *event)
{
    if (event->kind == DSE_TOOL_EVENT_END) return;
    dse_buffer_printf(out, "{\"index\":%d,", event->index);
    if (event->kind == DSE_TOOL_EVENT_BEGIN) {
        put_id(out);
        dse_buffer_put_json_string(out, event->text, event->bytes);
        dse_buffer_puts(out, ",\"arguments\":\"\"}}\n");
    } else {
        dse_buffer_puts(out, "\"function\":{\"arguments\":");
        dse_buffer_put_json_string(out, event->text, event->bytes);
        dse_buffer_puts(out, "}}\n");
    }
}

static void add_whole(struct dse_buffer *out, const struct dse_tool_event *event)
{
    switch (event->kind) {
    case DSE_TOOL_EVENT_BEGIN:
        dse_buffer_puts(out, event->index > 0 ? ",{" : "{");
        put_id(out);
        dse_buffer_put_json_string(out, event->text, event->bytes);
        dse_buffer_puts(out, ",\"arguments\":\"\"");
        break;
    case DSE_TOOL_EVENT_ARGUMENTS: extend_string(out, event->text, event->bytes); break;
    case DSE_TOOL_EVENT_END: dse_buffer_puts(out, "}}"); break;
    }
}

void dse_tool_answer_add(struct dse_tool_answer *answer, const struct dse_tool_event *event)
{
    if (answer->stream)
        add_delta(&answer->text, event);
    else
        add_whole(&answer->text, event);
}

bool dse_tool_answer_next(const struct dse_tool_answer *answer, size_t *position, struct dse_slice *delta)
{
    size_t rest = answer->text.length - *position;
    const char *from = rest > 0 ? answer->text.data + *position : NULL, *end = from ? memchr(from, '\n', rest) : NULL;
    if (!end) return false;
    *delta = (struct dse_slice){from, (size_t)(end - from)};
    *position += delta->bytes + 1;
    return true;
}

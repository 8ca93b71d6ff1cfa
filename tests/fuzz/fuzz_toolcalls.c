/* Tool calls in hostile output: byte 0 picks format and reasoning, byte 1 the size of the pieces, the rest is text.
 *
 * Whatever comes out must be whole UTF-8, in the order begin, arguments, end, and the same for other pieces.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/output.h"

struct record {
    uint64_t hash[3]; /* content, reasoning, calls: pieces do not count, their bytes do */
    size_t bytes[3];
    bool open;
    int n_calls;
};

static void add(struct record *record, int channel, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        record->hash[channel] = (record->hash[channel] ^ (uint8_t)text[i]) * 0x100000001b3u;
    record->bytes[channel] += bytes;
}

static void on_text(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    if (bytes == 0 || !dse_utf8_valid(text, bytes)) abort();
    add(user, (int)channel, text, bytes);
}

static void on_tool(void *user, const struct dse_tool_event *event)
{
    struct record *record = user;
    bool begins = event->kind == DSE_TOOL_EVENT_BEGIN;
    if (record->open == begins || event->index != record->n_calls - !begins) abort();
    if (event->kind != DSE_TOOL_EVENT_END && (event->bytes == 0 || !dse_utf8_valid(event->text, event->bytes))) abort();
    record->n_calls += begins;
    record->open = event->kind != DSE_TOOL_EVENT_END;
    if (event->kind != DSE_TOOL_EVENT_ARGUMENTS) add(record, 2, begins ? "<" : ">", 1);
    add(record, 2, event->text, event->bytes);
}

static void run(uint8_t choice, size_t piece, const char *text, size_t bytes, struct record *record)
{
    struct dse_output *output;
    struct dse_error err;
    bool thinks = choice & 4;
    struct dse_output_options options = {.reasoning = DSE_REASONING_DEEPSEEK,
                                         .starts_in_reasoning = choice & 8,
                                         .think_open = thinks ? "<think>" : NULL,
                                         .think_close = thinks ? "</think>" : NULL,
                                         .emit = on_text,
                                         .tools = (enum dse_tool_format)(choice & 3),
                                         .emit_tool = on_tool,
                                         .user = record};
    memset(record, 0, sizeof *record);
    if (dse_output_create(&options, &output, &err) != DSE_OK) abort();
    for (size_t i = 0; i < bytes; i += piece)
        dse_output_feed(output, text + i, bytes - i < piece ? bytes - i : piece, NULL);
    dse_output_finish(output);
    if (record->open) abort();
    dse_output_free(output);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct record whole, cut;
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    run(data[0], size, text, size - 2, &whole);
    run(data[0], (size_t)data[1] % 16 + 1, text, size - 2, &cut);
    if (memcmp(&whole, &cut, sizeof whole) != 0) abort();
    return 0;
}

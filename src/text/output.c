/* Output stage of one sequence. Runs on the engine thread's callback path, between sampler and client.
 *
 * Byte machines in a row, so that nothing depends on how the text was cut:
 *   feed -> stop_byte   finds stop strings in the raw text, holds back what may still become one
 *        -> split_byte  finds the reasoning tags, chooses the channel, trims newlines around the tags
 *        -> tool parser in the content, if tools are in play (tool_calls.c)
 *        -> put         gathers bytes of one channel; flush emits whole characters and keeps a cut one
 * Never allocates after creation.
 */
#include "text/output.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

#define MAX_TAG_BYTES     64
#define MAX_LEADING_BYTES 256 /* white space that may precede an opening tag */
#define GATHER_BYTES      512

enum mode {
    MODE_START, /* white space, then perhaps the opening tag */
    MODE_LEAD,  /* in reasoning, before its first text */
    MODE_REASONING,
    MODE_CLOSED, /* after the closing tag, before the first content */
    MODE_CONTENT,
};

/* Channels as the bytes are gathered: arguments are events for the client. */
enum gather { GATHER_CONTENT = DSE_CHANNEL_CONTENT, GATHER_REASONING = DSE_CHANNEL_REASONING, GATHER_ARGUMENTS };

/* Knuth, Morris, Pratt: `matched` is the length of the longest suffix of the text that begins the pattern. */
struct pattern {
    uint8_t *bytes;
    uint16_t *fallback; /* [n_bytes] */
    uint32_t n_bytes, matched;
};

struct dse_output {
    dse_output_fn *emit;
    void *user;
    bool split, starts_in_reasoning, done;
    const char *prefix; /* format none: tag to put in front, NULL once it is out */

    struct pattern stops[DSE_OUTPUT_MAX_STOPS];
    int n_stops;
    uint8_t held[DSE_OUTPUT_MAX_STOP_BYTES]; /* ring: the raw bytes that may become a stop string */
    uint32_t held_first, n_held;

    enum mode mode;
    struct pattern close;
    uint8_t open[MAX_TAG_BYTES];
    uint32_t n_open, open_matched;
    uint8_t leading[MAX_LEADING_BYTES + MAX_TAG_BYTES];
    uint32_t n_leading;
    uint64_t n_newlines; /* at the end of the reasoning so far; dropped if the tag closes */
    int reasoning_tokens;

    struct dse_tool_parser tools;
    dse_output_tool_fn *emit_tool;
    int n_calls;
    size_t n_fed, n_released; /* all bytes; those that were no stop string */
    size_t content_begin;     /* of n_released, once there is content */
    /* Positions in what the parser was fed. The gap that calls left in front of the last content, and its end. */
    size_t n_parsed, gap_begin, gap_end, content_end;

    enum gather channel; /* of the gathered bytes */
    char gathered[GATHER_BYTES];
    uint32_t n_gathered;

    char open_text[MAX_TAG_BYTES + 1];
};

static const struct dse_tool_sink tool_sink; /* below */

/* ---- creation ---------------------------------------------------------------------------------------------- */

static size_t pattern_size(size_t n_bytes)
{
    return n_bytes * (sizeof(uint16_t) + 1) + 1;
}

/* Takes its memory from *block: fallback table, then the text. */
static void init_pattern(struct pattern *pattern, const char *text, size_t n_bytes, uint8_t **block)
{
    pattern->fallback = (uint16_t *)*block;
    pattern->bytes = *block + n_bytes * sizeof(uint16_t);
    pattern->n_bytes = (uint32_t)n_bytes;
    *block += (pattern_size(n_bytes) + 1) & ~(size_t)1; /* the next table stays aligned */
    memcpy(pattern->bytes, text, n_bytes);
    if (n_bytes) pattern->fallback[0] = 0;
    for (uint32_t i = 1, k = 0; i < n_bytes; i++) {
        while (k > 0 && pattern->bytes[i] != pattern->bytes[k])
            k = pattern->fallback[k - 1];
        if (pattern->bytes[i] == pattern->bytes[k]) k++;
        pattern->fallback[i] = (uint16_t)k;
    }
}

/* True when the pattern is complete. */
static bool match_byte(struct pattern *pattern, uint8_t byte)
{
    uint32_t k = pattern->matched;
    while (k > 0 && pattern->bytes[k] != byte)
        k = pattern->fallback[k - 1];
    if (pattern->bytes[k] == byte) k++;
    pattern->matched = k;
    return k == pattern->n_bytes;
}

static enum dse_status check_options(const struct dse_output_options *options, struct dse_error *err)
{
    if (options->n_stops < 0 || options->n_stops > DSE_OUTPUT_MAX_STOPS)
        return dse_fail_at(err, DSE_ERR_INVALID, "stop", -1, "stop: %d stop strings, at most %d are possible",
                           options->n_stops, DSE_OUTPUT_MAX_STOPS);
    for (int i = 0; i < options->n_stops; i++) {
        if (options->stop_bytes[i] == 0)
            return dse_fail_at(err, DSE_ERR_INVALID, "stop", -1, "stop: string %d is empty", i);
        if (options->stop_bytes[i] > DSE_OUTPUT_MAX_STOP_BYTES)
            return dse_fail_at(err, DSE_ERR_INVALID, "stop", -1,
                               "stop: string %d has %zu bytes, at most %d are possible", i, options->stop_bytes[i],
                               DSE_OUTPUT_MAX_STOP_BYTES);
    }
    const char *tags[] = {options->think_open, options->think_close};
    for (int i = 0; i < 2; i++)
        if (tags[i] && (tags[i][0] == 0 || strlen(tags[i]) > MAX_TAG_BYTES))
            return dse_fail(err, DSE_ERR_INVALID, "a reasoning tag must have 1 to %d bytes", MAX_TAG_BYTES);
    return DSE_OK;
}

enum dse_status dse_output_create(const struct dse_output_options *options, struct dse_output **out,
                                  struct dse_error *err)
{
    *out = NULL;
    enum dse_status status = check_options(options, err);
    if (status != DSE_OK) return status;
    const char *open = options->think_open, *close = options->think_close;
    bool has_tags = open && close;
    size_t bytes = (sizeof(struct dse_output) + 1) & ~(size_t)1;
    for (int i = 0; i < options->n_stops; i++)
        bytes += pattern_size(options->stop_bytes[i]) + 1;
    if (has_tags) bytes += pattern_size(strlen(close)) + 1;
    struct dse_output *output = dse_calloc(DSE_MEM_REQUEST, 1, bytes);
    if (!output) return dse_fail_memory(err, bytes, "an output stage");
    uint8_t *block = (uint8_t *)output + ((sizeof *output + 1) & ~(size_t)1);

    output->emit = options->emit;
    output->user = options->user;
    output->emit_tool = options->emit_tool;
    dse_tool_parser_init(&output->tools, options->emit_tool ? options->tools : DSE_TOOLS_NONE, &tool_sink, output);
    output->n_stops = options->n_stops;
    for (int i = 0; i < options->n_stops; i++)
        init_pattern(&output->stops[i], options->stops[i], options->stop_bytes[i], &block);
    output->split = has_tags && options->reasoning == DSE_REASONING_DEEPSEEK;
    output->starts_in_reasoning = options->starts_in_reasoning;
    output->mode = output->split ? MODE_START : MODE_CONTENT;
    if (has_tags) {
        init_pattern(&output->close, close, strlen(close), &block);
        output->n_open = (uint32_t)strlen(open);
        memcpy(output->open, open, output->n_open);
        memcpy(output->open_text, open, output->n_open);
        if (!output->split && options->starts_in_reasoning) output->prefix = output->open_text;
    }
    *out = output;
    return DSE_OK;
}

void dse_output_free(struct dse_output *output)
{
    dse_free(output);
}

/* ---- characters -------------------------------------------------------------------------------------------- */

static void emit(struct dse_output *output, const char *text, size_t bytes)
{
    if (output->channel != GATHER_ARGUMENTS) {
        output->emit(output->user, (enum dse_channel)output->channel, text, bytes);
        return;
    }
    struct dse_tool_event event = {DSE_TOOL_EVENT_ARGUMENTS, output->n_calls - 1, text, bytes};
    output->emit_tool(output->user, &event);
}

/* Emits what was gathered; the start of a cut character stays unless it can never be completed (last). */
static void flush(struct dse_output *output, bool last)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    const char *text = output->gathered;
    size_t n = output->n_gathered, at = 0, begin = 0, used;
    size_t end = last ? n : n - dse_utf8_incomplete_suffix(text, n);
    while (at < end) {
        if (dse_utf8_decode(text + at, n - at, &used) != DSE_UTF8_INVALID) {
            at += used;
            continue;
        }
        if (at > begin) emit(output, text + begin, at - begin);
        emit(output, replacement, sizeof replacement - 1);
        begin = at += used;
    }
    if (at > begin) emit(output, text + begin, at - begin);
    memmove(output->gathered, text + at, n - at);
    output->n_gathered = (uint32_t)(n - at);
}

static void put(struct dse_output *output, enum gather channel, uint8_t byte)
{
    if (channel != output->channel) {
        flush(output, true);
        output->channel = channel;
    } else if (output->n_gathered == GATHER_BYTES) {
        flush(output, false);
    }
    output->gathered[output->n_gathered++] = (char)byte;
}

/* ---- tool calls ---------------------------------------------------------------------------------------------- */

/* The first byte that the parser has not decided on. */
static size_t parsed_position(const struct dse_output *output)
{
    return output->n_parsed - output->tools.n_held;
}

static void tool_content(void *user, uint8_t byte)
{
    struct dse_output *output = user;
    size_t position = parsed_position(output);
    if (position > output->content_end) {
        output->gap_begin = output->content_end;
        output->gap_end = position;
    }
    output->content_end = position + 1;
    put(output, GATHER_CONTENT, byte);
}

static void tool_argument(void *user, uint8_t byte)
{
    put(user, GATHER_ARGUMENTS, byte);
}

static void tool_begin(void *user, const char *name, size_t bytes)
{
    struct dse_output *output = user;
    flush(output, true);
    struct dse_tool_event event = {DSE_TOOL_EVENT_BEGIN, output->n_calls++, name, bytes};
    output->emit_tool(output->user, &event);
}

static void tool_end(void *user)
{
    struct dse_output *output = user;
    flush(output, true);
    struct dse_tool_event event = {.kind = DSE_TOOL_EVENT_END, .index = output->n_calls - 1};
    output->emit_tool(output->user, &event);
}

static const struct dse_tool_sink tool_sink = {tool_content, tool_begin, tool_argument, tool_end};

static void put_content(struct dse_output *output, uint8_t byte)
{
    if (output->tools.format == DSE_TOOLS_NONE) {
        put(output, GATHER_CONTENT, byte);
        return;
    }
    output->n_parsed++;
    dse_tool_parser_feed(&output->tools, byte);
}

/* ---- reasoning --------------------------------------------------------------------------------------------- */

static void put_reasoning(struct dse_output *output, uint8_t byte)
{
    if (byte == '\n') {
        if (output->mode == MODE_REASONING) output->n_newlines++;
        return;
    }
    output->mode = MODE_REASONING;
    for (; output->n_newlines > 0; output->n_newlines--)
        put(output, GATHER_REASONING, '\n');
    put(output, GATHER_REASONING, byte);
}

static void reasoning_byte(struct dse_output *output, uint8_t byte)
{
    uint32_t before = output->close.matched;
    if (match_byte(&output->close, byte)) {
        output->close.matched = 0;
        output->n_newlines = 0;
        output->mode = MODE_CLOSED;
        return;
    }
    /* Bytes that no longer belong to a possible tag: from the front of what was matched, then this one. */
    uint32_t loose = before + 1 - output->close.matched;
    for (uint32_t i = 0; i < loose; i++)
        put_reasoning(output, i < before ? output->close.bytes[i] : byte);
}

static void split_byte(struct dse_output *output, uint8_t byte);

/* No opening tag after all: the bytes go where they would have gone without the wait. */
static void end_start(struct dse_output *output)
{
    output->mode = output->starts_in_reasoning ? MODE_LEAD : MODE_CONTENT;
    for (uint32_t i = 0; i < output->n_leading; i++)
        split_byte(output, output->leading[i]);
    output->n_leading = 0;
}

/* An opening tag counts only at the very start, also when the prompt has opened it already (models repeat it). */
static void start_byte(struct dse_output *output, uint8_t byte)
{
    output->leading[output->n_leading++] = byte;
    bool blank = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
    if (byte == output->open[output->open_matched]) {
        if (++output->open_matched < output->n_open) return;
        output->n_leading = 0;
        output->mode = MODE_LEAD;
    } else if (output->open_matched > 0 || !blank || output->n_leading == MAX_LEADING_BYTES) {
        end_start(output);
    }
}

static void split_byte(struct dse_output *output, uint8_t byte)
{
    switch (output->mode) {
    case MODE_START: start_byte(output, byte); break;
    case MODE_LEAD:
    case MODE_REASONING: reasoning_byte(output, byte); break;
    case MODE_CLOSED:
        if (byte == '\n') break;
        output->mode = MODE_CONTENT;
        output->content_begin = output->n_released - 1; /* this byte is the last of them */
        put_content(output, byte);
        break;
    case MODE_CONTENT: put_content(output, byte); break;
    }
}

/* ---- stop strings ------------------------------------------------------------------------------------------ */

static void release(struct dse_output *output, uint32_t count)
{
    for (; count > 0; count--, output->n_held--) {
        uint8_t byte = output->held[output->held_first];
        output->held_first = (output->held_first + 1) % DSE_OUTPUT_MAX_STOP_BYTES;
        output->n_released++;
        split_byte(output, byte);
    }
}

/* The stop that ends at this byte, the longest if several do; -1 if none. */
static int stop_byte(struct dse_output *output, uint8_t byte)
{
    uint32_t keep = 0;
    int found = -1;
    for (int i = 0; i < output->n_stops; i++) {
        struct pattern *stop = &output->stops[i];
        if (match_byte(stop, byte) && (found < 0 || stop->n_bytes > output->stops[found].n_bytes)) found = i;
        if (stop->matched > keep) keep = stop->matched;
    }
    /* n_held is at most the longest partial match, which is shorter than its string: the ring has room for one more. */
    output->held[(output->held_first + output->n_held++) % DSE_OUTPUT_MAX_STOP_BYTES] = byte;
    if (found >= 0) {
        release(output, output->n_held - output->stops[found].n_bytes);
        output->n_held = 0;
    } else {
        release(output, output->n_held - keep);
    }
    return found;
}

/* ---- the interface ----------------------------------------------------------------------------------------- */

static void put_prefix(struct dse_output *output)
{
    for (const char *c = output->prefix; c && *c; c++)
        put(output, GATHER_CONTENT, (uint8_t)*c);
    output->prefix = NULL;
}

/* Everything that waited for more text goes out. */
static void finish_split(struct dse_output *output)
{
    put_prefix(output);
    if (output->mode == MODE_START) end_start(output);
    if (output->mode == MODE_LEAD || output->mode == MODE_REASONING) {
        uint32_t n = output->close.matched;
        output->close.matched = 0;
        for (uint32_t i = 0; i < n; i++)
            put_reasoning(output, output->close.bytes[i]);
    }
    if (output->tools.format != DSE_TOOLS_NONE) dse_tool_parser_finish(&output->tools);
    flush(output, true);
    output->done = true;
}

bool dse_output_feed(struct dse_output *output, const char *bytes, size_t count, int *stop_index)
{
    if (output->done) return true;
    if (dse_output_in_reasoning(output)) output->reasoning_tokens++;
    if (count > 0) put_prefix(output);
    output->n_fed += count;
    for (size_t i = 0; i < count; i++) {
        int found = stop_byte(output, (uint8_t)bytes[i]);
        if (found < 0) continue;
        if (stop_index) *stop_index = found;
        finish_split(output);
        return false;
    }
    flush(output, false);
    return true;
}

void dse_output_finish(struct dse_output *output)
{
    if (output->done) return;
    release(output, output->n_held);
    finish_split(output);
}

int dse_output_reasoning_tokens(const struct dse_output *output)
{
    return output->reasoning_tokens;
}

int dse_output_tool_calls(const struct dse_output *output)
{
    return output->n_calls;
}

bool dse_output_in_reasoning(const struct dse_output *output)
{
    return output->mode == MODE_LEAD || output->mode == MODE_REASONING ||
           (output->mode == MODE_START && output->starts_in_reasoning);
}

size_t dse_output_held_bytes(const struct dse_output *output)
{
    bool in_tag = output->mode == MODE_LEAD || output->mode == MODE_REASONING;
    return output->n_held + output->n_leading + output->n_gathered + output->tools.n_held +
           (in_tag ? output->close.matched : 0);
}

size_t dse_output_content_bytes(const struct dse_output *output)
{
    return output->n_fed - (output->mode == MODE_CLOSED ? output->n_released : output->content_begin);
}

void dse_output_call_spans(const struct dse_output *output, struct dse_output_span spans[DSE_OUTPUT_CALL_SPANS])
{
    /* All that is released goes to the parser once the content has begun. */
    size_t end = output->n_fed - output->n_released + output->n_parsed;
    spans[0] = (struct dse_output_span){end - output->gap_begin, end - output->gap_end};
    spans[1] = (struct dse_output_span){end - output->content_end, end - parsed_position(output)};
}

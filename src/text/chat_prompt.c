/* Messages -> prompt ids. Called by server and command line; knows nothing of either. */
#include "text/chat_prompt.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

#define MAX_TEXT_BYTES ((size_t)64 << 20)

/* U+FDD0 and U+FDD1 are noncharacters, meant for internal use. A mark is FDD0 FDD1; an FDD0 of the client itself is
 * written FDD0 FDD0, so that any text survives. */
#define NONCHARACTER "\xEF\xB7\x90"
#define MARK         "\xEF\xB7\x90\xEF\xB7\x91"

/* Copies text with a mark inside the literal of each added token. think: also inside the thinking tags, which templates
 * look for in the answers of the assistant. */
static void append_marked(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, const char *text, size_t bytes,
                          bool think)
{
    static const char *const tags[] = {"<think>", "</think>"};
    for (size_t i = 0; i < bytes;) {
        size_t n = dse_tokenizer_match_added(tokenizer, text + i, bytes - i);
        for (int t = 0; t < 2 && !think; t++) {
            if (n == strlen(tags[t]) && memcmp(text + i, tags[t], n) == 0) n = 0;
        }
        if (n > 1) {
            dse_buffer_append(out, text + i, 1);
            dse_buffer_puts(out, MARK);
            dse_buffer_append(out, text + i + 1, n - 1);
            i += n;
        } else if (bytes - i >= 3 && memcmp(text + i, NONCHARACTER, 3) == 0) {
            dse_buffer_puts(out, NONCHARACTER NONCHARACTER);
            i += 3;
        } else {
            dse_buffer_append(out, text + i++, 1);
        }
    }
}

static enum dse_status mark_string(json_t *object, const char *key, const struct dse_tokenizer *tokenizer, bool think,
                                   struct dse_error *err)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) return DSE_OK;
    struct dse_buffer marked;
    dse_buffer_init(&marked, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    append_marked(&marked, tokenizer, json_string_value(value), json_string_length(value), think);
    bool ok = !marked.failed && json_string_setn(value, dse_buffer_text(&marked), marked.length) == 0;
    dse_buffer_deinit(&marked);
    return ok ? DSE_OK : dse_fail(err, DSE_ERR_LIMIT, "messages: a %s is longer than %zu bytes", key, MAX_TEXT_BYTES);
}

/* messages is our own copy. A marker must begin inside a multi-byte first character never: added tokens of this family
 * begin with an ASCII character. */
static enum dse_status mark_messages(json_t *messages, const struct dse_tokenizer *tokenizer, struct dse_error *err)
{
    size_t i;
    json_t *message;
    enum dse_status status = DSE_OK;
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        bool think = role == NULL || strcmp(role, "assistant") != 0;
        status = mark_string(message, "content", tokenizer, think, err);
        if (status != DSE_OK) return status;
    }
    return status;
}

struct marks {
    size_t *positions;
    size_t count, capacity;
};

/* Takes the marks out of text in place and notes where they were. */
static enum dse_status remove_marks(char *text, size_t *bytes, struct marks *marks, struct dse_error *err)
{
    size_t out = 0;
    for (size_t i = 0; i < *bytes;) {
        if (*bytes - i >= 6 && memcmp(text + i, MARK, 6) == 0) {
            if (marks->count == marks->capacity) {
                size_t capacity = marks->capacity > 0 ? 2 * marks->capacity : 16;
                size_t *grown = dse_realloc(DSE_MEM_REQUEST, marks->positions, capacity * sizeof *grown);
                if (grown == NULL) return dse_fail_memory(err, capacity * sizeof *grown, "the prompt");
                marks->positions = grown;
                marks->capacity = capacity;
            }
            marks->positions[marks->count++] = out;
            i += 6;
        } else if (*bytes - i >= 6 && memcmp(text + i, NONCHARACTER NONCHARACTER, 6) == 0) {
            memmove(text + out, text + i, 3);
            out += 3;
            i += 6;
        } else {
            text[out++] = text[i++];
        }
    }
    text[out] = '\0';
    *bytes = out;
    return DSE_OK;
}

/* True if the text ends, blanks aside, in an open thinking tag. */
static bool ends_in_think(const char *text, size_t bytes)
{
    static const char tag[] = "<think>";
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) != NULL)
        bytes--;
    return bytes >= sizeof tag - 1 && memcmp(text + bytes - (sizeof tag - 1), tag, sizeof tag - 1) == 0;
}

/* Text of a control token, "" if there is none. */
static enum dse_status token_text(const struct dse_tokenizer *tokenizer, int32_t id, char **out, struct dse_error *err)
{
    struct dse_slice text = dse_tokenizer_bytes(tokenizer, id);
    *out = dse_strndup(DSE_MEM_REQUEST, text.data != NULL ? text.data : "", text.bytes);
    return *out != NULL ? DSE_OK : dse_fail_memory(err, text.bytes, "a token's text");
}

enum dse_status dse_chat_prompt_build(const struct dse_template *tmpl, const struct dse_template_traits *traits,
                                      const struct dse_tokenizer *tokenizer, const struct dse_template_inputs *inputs,
                                      bool encode, struct dse_chat_prompt *out, struct dse_error *err)
{
    json_t *messages = NULL, *copy = NULL;
    char *bos = NULL, *eos = NULL;
    struct marks marks = {0};
    memset(out, 0, sizeof *out);
    enum dse_status status = dse_messages_normalize(inputs->messages, traits, &messages, err);
    if (status == DSE_OK && (copy = json_deep_copy(messages)) == NULL)
        status = dse_fail_memory(err, 64, "the messages");
    if (status == DSE_OK) status = mark_messages(copy, tokenizer, err);
    if (status == DSE_OK) status = token_text(tokenizer, dse_tokenizer_bos(tokenizer), &bos, err);
    if (status == DSE_OK) status = token_text(tokenizer, dse_tokenizer_eos(tokenizer), &eos, err);
    if (status == DSE_OK) {
        struct dse_template_inputs marked = *inputs;
        marked.messages = copy;
        if (marked.bos_token == NULL) marked.bos_token = bos;
        if (marked.eos_token == NULL) marked.eos_token = eos;
        status = dse_template_render(tmpl, &marked, &out->text, &out->bytes, err);
    }
    if (status == DSE_OK) status = remove_marks(out->text, &out->bytes, &marks, err);
    if (status == DSE_OK) out->opens_thinking = ends_in_think(out->text, out->bytes);
    if (status == DSE_OK && encode)
        status = dse_tokenizer_encode_guarded(tokenizer, out->text, out->bytes,
                                              DSE_ENCODE_PARSE_SPECIAL | DSE_ENCODE_ADD_BOS, marks.positions,
                                              marks.count, &out->tokens, err);
    if (status != DSE_OK) dse_chat_prompt_deinit(out);
    dse_free(marks.positions);
    dse_free(bos);
    dse_free(eos);
    json_decref(copy);
    json_decref(messages);
    return status;
}

void dse_chat_prompt_deinit(struct dse_chat_prompt *prompt)
{
    dse_free(prompt->text);
    dse_tokens_deinit(&prompt->tokens);
    memset(prompt, 0, sizeof *prompt);
}

/* Messages -> prompt ids. Called by server and command line; knows nothing of either. */
#include "text/chat_prompt.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define MAX_DEPTH      130 /* of values inside a message; the JSON reader allows less */

/* ---- marked copies of what the client sent -------------------------------------------------------------------- */

struct marking {
    const struct dse_chat_marks *marks;
    bool assistant;
    struct dse_buffer *scratch;
};

static json_t *mark_string(const struct marking *m, const char *text, size_t bytes)
{
    if (!dse_chat_marks_apply(m->marks, text, bytes, m->assistant, m->scratch)) return NULL;
    return json_stringn(dse_buffer_text(m->scratch), m->scratch->length);
}

/* A new reference to value with all strings and keys marked; NULL without memory. */
static json_t *mark_value(const struct marking *m, json_t *value, int depth)
{
    if (depth > MAX_DEPTH) return NULL;
    if (json_is_string(value)) return mark_string(m, json_string_value(value), json_string_length(value));
    if (json_is_array(value)) {
        json_t *array = json_array();
        for (size_t i = 0; array && i < json_array_size(value); i++) {
            if (json_array_append_new(array, mark_value(m, json_array_get(value, i), depth + 1)) != 0) {
                json_decref(array);
                return NULL;
            }
        }
        return array;
    }
    if (!json_is_object(value)) return json_incref(value);
    json_t *object = json_object();
    const char *key;
    json_t *item;
    json_object_foreach(value, key, item)
    {
        bool name = strcmp(key, "role") == 0 || strcmp(key, "type") == 0;
        json_t *marked = name ? json_incref(item) : mark_value(m, item, depth + 1);
        if (!marked || !dse_chat_marks_apply(m->marks, key, strlen(key), m->assistant, m->scratch) || !object ||
            json_object_set(object, dse_buffer_text(m->scratch), marked) != 0) {
            json_decref(marked);
            json_decref(object);
            return NULL;
        }
        json_decref(marked);
    }
    return object;
}

static json_t *mark_messages(const struct dse_chat_marks *marks, const json_t *messages, struct dse_buffer *scratch)
{
    json_t *array = json_array();
    for (size_t i = 0; array && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        struct marking m = {marks, role && strcmp(role, "assistant") == 0, scratch};
        if (json_array_append_new(array, mark_value(&m, message, 0)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Puts the end mark behind the last message: what the template adds after it is cut off. */
static bool mark_end(json_t *messages, struct dse_buffer *scratch)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(last, "content");
    dse_buffer_clear(scratch);
    if (json_is_string(content)) dse_buffer_append(scratch, json_string_value(content), json_string_length(content));
    return dse_chat_marks_put_end(scratch) &&
           json_object_set_new(last, "content", json_stringn(scratch->data, scratch->length)) == 0;
}

/* ---- rendering ------------------------------------------------------------------------------------------------ */

/* Text of a control token, "" if there is none. */
static enum dse_status token_text(const struct dse_tokenizer *tokenizer, int32_t id, char **out, struct dse_error *err)
{
    struct dse_slice text = dse_tokenizer_bytes(tokenizer, id);
    *out = dse_strndup(DSE_MEM_REQUEST, text.data ? text.data : "", text.bytes);
    return *out ? DSE_OK : dse_fail_memory(err, text.bytes, "a token's text");
}

/* The rendered text with its marks. */
static enum dse_status render_marked(const struct dse_template *tmpl, const struct dse_template_traits *traits,
                                     const struct dse_tokenizer *tokenizer, const struct dse_chat_marks *marks,
                                     const struct dse_template_inputs *inputs, bool continued, char **text,
                                     size_t *bytes, struct dse_error *err)
{
    struct dse_buffer scratch;
    dse_buffer_init(&scratch, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    struct marking other = {marks, false, &scratch};
    json_t *normal = NULL, *messages = NULL, *tools = NULL, *extra = NULL;
    char *bos = NULL, *eos = NULL;
    /* Marked after parts were joined: a control token must not arise from two halves. */
    enum dse_status status = dse_messages_normalize(inputs->messages, traits, &normal, err);
    if (status == DSE_OK) status = token_text(tokenizer, dse_tokenizer_bos(tokenizer), &bos, err);
    if (status == DSE_OK) status = token_text(tokenizer, dse_tokenizer_eos(tokenizer), &eos, err);
    if (status == DSE_OK) {
        messages = mark_messages(marks, normal, &scratch);
        if (inputs->tools) tools = mark_value(&other, (json_t *)inputs->tools, 0);
        if (inputs->extra) extra = mark_value(&other, (json_t *)inputs->extra, 0);
        if (!messages || (inputs->tools && !tools) || (inputs->extra && !extra) ||
            (continued && !mark_end(messages, &scratch)))
            status = dse_fail_memory(err, scratch.length, "messages");
    }
    if (status == DSE_OK) {
        struct dse_template_inputs marked = *inputs;
        marked.messages = messages;
        marked.tools = tools;
        marked.extra = extra;
        if (!marked.bos_token) marked.bos_token = bos;
        if (!marked.eos_token) marked.eos_token = eos;
        status = dse_template_render(tmpl, &marked, text, bytes, err);
    }
    dse_buffer_deinit(&scratch);
    dse_free(bos);
    dse_free(eos);
    json_decref(normal);
    json_decref(messages);
    json_decref(tools);
    json_decref(extra);
    return status;
}

/* ---- encoding ------------------------------------------------------------------------------------------------- */

static const char *find_last(const char *text, size_t bytes, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = bytes < n ? 0 : bytes - n + 1; i-- > 0;)
        if (memcmp(text + i, what, n) == 0) return text + i;
    return NULL;
}

/* On the marked text, where a tag in a message does not count. Of a continued message the rest may follow the tag. */
static bool ends_in_open_think(const char *text, size_t bytes, bool continued)
{
    const char *open = find_last(text, bytes, "<think>"), *close = find_last(text, bytes, "</think>");
    if (!open || (close && close > open)) return false;
    for (const char *p = open + strlen("<think>"); p < text + bytes && !continued; p++)
        if (!strchr(" \t\r\n", *p)) return false;
    return true;
}

/* What the marked text stands for, and the places where a literal of the client begins. */
struct unmarked {
    struct dse_buffer text;
    size_t *barriers; /* inside each literal: no added token may match across one */
    size_t n_barriers, capacity;
};

static enum dse_status add_barrier(struct unmarked *u, size_t position, struct dse_error *err)
{
    if (u->n_barriers == u->capacity) {
        size_t capacity = u->capacity > 0 ? 2 * u->capacity : 16;
        size_t *grown = dse_realloc(DSE_MEM_REQUEST, u->barriers, capacity * sizeof *grown);
        if (!grown) return dse_fail_memory(err, capacity * sizeof *grown, "the prompt");
        u->barriers = grown;
        u->capacity = capacity;
    }
    u->barriers[u->n_barriers++] = position;
    return DSE_OK;
}

/* *bytes becomes the length before the end mark, if one is wanted. */
static enum dse_status remove_marks(struct unmarked *u, const struct dse_chat_marks *marks, const char *text,
                                    size_t *bytes, bool continued, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    struct dse_chat_piece piece;
    bool ended = false;
    for (size_t position = 0, before = 0; status == DSE_OK && !ended; before = position) {
        if (!dse_chat_marks_next(marks, text, *bytes, &position, &piece)) break;
        if (piece.kind == DSE_PIECE_LITERAL) status = add_barrier(u, u->text.length + 1, err);
        dse_buffer_append(&u->text, piece.text, piece.bytes);
        if (piece.kind != DSE_PIECE_TEXT && piece.kind != DSE_PIECE_LITERAL && continued) {
            ended = true;
            *bytes = before;
        }
    }
    if (status == DSE_OK && u->text.failed) status = dse_fail_memory(err, u->text.length, "the prompt");
    if (status == DSE_OK && continued && !ended)
        status = dse_fail_at(err, DSE_ERR_INVALID, "messages", -1,
                             "the chat template does not show the final message, so it cannot be continued");
    return status;
}

enum dse_status dse_chat_prompt_render(const struct dse_template *tmpl, const struct dse_template_traits *traits,
                                       const struct dse_tokenizer *tokenizer, const struct dse_chat_marks *marks,
                                       const struct dse_template_inputs *inputs, unsigned flags, size_t max_bytes,
                                       struct dse_chat_prompt *out, struct dse_error *err)
{
    bool continued = flags & DSE_PROMPT_CONTINUE_FINAL;
    char *text = NULL;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    struct unmarked u = {0};
    dse_buffer_init(&u.text, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    enum dse_status status = render_marked(tmpl, traits, tokenizer, marks, inputs, continued, &text, &bytes, err);
    if (status == DSE_OK) status = remove_marks(&u, marks, text, &bytes, continued, err);
    if (status == DSE_OK && u.text.length > max_bytes) {
        status = dse_fail_at(err, DSE_ERR_TOO_LONG, "messages", -1,
                             "the prompt has %zu bytes; at most %zu are possible", u.text.length, max_bytes);
        if (err) err->need = u.text.length;
    }
    if (status == DSE_OK && (flags & DSE_PROMPT_ENCODE))
        status = dse_tokenizer_encode_guarded(tokenizer, dse_buffer_text(&u.text), u.text.length,
                                              DSE_ENCODE_PARSE_SPECIAL | DSE_ENCODE_ADD_BOS, u.barriers, u.n_barriers,
                                              &out->tokens, err);
    if (status == DSE_OK) {
        out->opens_thinking = ends_in_open_think(text, bytes, continued);
        out->bytes = u.text.length;
        out->text = dse_buffer_take(&u.text);
        if (!out->text) status = dse_fail_memory(err, out->bytes, "the prompt");
    }
    if (status != DSE_OK) dse_chat_prompt_deinit(out);
    dse_buffer_deinit(&u.text);
    dse_free(u.barriers);
    dse_free(text);
    return status;
}

enum dse_status dse_chat_prompt_build(const struct dse_template *tmpl, const struct dse_template_traits *traits,
                                      const struct dse_tokenizer *tokenizer, const struct dse_template_inputs *inputs,
                                      bool encode_tokens, struct dse_chat_prompt *out, struct dse_error *err)
{
    struct dse_chat_marks *marks = NULL;
    enum dse_status status = dse_chat_marks_create(tokenizer, &marks, err);
    if (status == DSE_OK)
        status = dse_chat_prompt_render(tmpl, traits, tokenizer, marks, inputs, encode_tokens ? DSE_PROMPT_ENCODE : 0,
                                        SIZE_MAX, out, err);
    dse_chat_marks_free(marks);
    return status;
}

void dse_chat_prompt_deinit(struct dse_chat_prompt *prompt)
{
    dse_free(prompt->text);
    dse_tokens_deinit(&prompt->tokens);
    memset(prompt, 0, sizeof *prompt);
}

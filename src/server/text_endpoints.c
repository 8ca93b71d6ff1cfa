/* /tokenize, /detokenize, /apply-template: in the shapes of llama.cpp (content, add_special) and of vLLM (prompt or
 * messages, add_special_tokens). Handlers run on a worker.
 *
 * Answers are written straight into a buffer: a tree of JSON values would take many times their bytes, and clients
 * choose how many there are.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "server/body.h"
#include "server/chat_request.h"
#include "server/errors.h"
#include "server/params.h"
#include "server/server_internal.h"

#define MAX_ANSWER_BYTES (256u << 20)
#define MAX_IDS          (256u << 10) /* of a request to /detokenize */

static void put_ids(struct dse_buffer *out, const struct dse_tokens *tokens)
{
    dse_buffer_putc(out, '[');
    for (size_t i = 0; i < tokens->count; i++)
        dse_buffer_printf(out, i ? ",%d" : "%d", (int)tokens->ids[i]);
    dse_buffer_putc(out, ']');
}

/* A token's text, or its bytes as numbers when they are not whole characters. */
static void put_piece(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, int32_t id)
{
    struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, id);
    if (dse_utf8_valid(bytes.data ? bytes.data : "", bytes.bytes)) {
        dse_buffer_put_json_string(out, bytes.data ? bytes.data : "", bytes.bytes);
        return;
    }
    dse_buffer_putc(out, '[');
    for (size_t i = 0; i < bytes.bytes; i++)
        dse_buffer_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes.data[i]);
    dse_buffer_putc(out, ']');
}

static void put_pieces(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, const struct dse_tokens *tokens)
{
    dse_buffer_putc(out, '[');
    for (size_t i = 0; i < tokens->count; i++) {
        dse_buffer_printf(out, i ? ",{\"id\":%d,\"piece\":" : "{\"id\":%d,\"piece\":", (int)tokens->ids[i]);
        put_piece(out, tokenizer, tokens->ids[i]);
        dse_buffer_putc(out, '}');
    }
    dse_buffer_putc(out, ']');
}

/* Each as the text of this token alone, so parts of characters are U+FFFD. */
static void put_strings(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, const struct dse_tokens *tokens)
{
    dse_buffer_putc(out, '[');
    for (size_t i = 0; i < tokens->count; i++) {
        struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, tokens->ids[i]);
        if (i) dse_buffer_putc(out, ',');
        dse_buffer_put_json_string(out, bytes.data ? bytes.data : "", bytes.bytes);
    }
    dse_buffer_putc(out, ']');
}

static enum dse_status chat_tokens(const struct dse_served *served, const json_t *root, struct dse_tokens *tokens,
                                   struct dse_error *err)
{
    struct dse_chat_request request;
    enum dse_status status = dse_chat_request_parse(root, served->n_vocab, &request, err);
    if (status == DSE_OK) {
        struct dse_chat_prompt prompt = {0};
        status = dse_chat_request_prompt(&request, served, DSE_CHAT_COUNT, &prompt, err);
        if (status == DSE_OK) {
            *tokens = prompt.tokens;
            prompt.tokens = (struct dse_tokens){0};
        }
        dse_chat_prompt_deinit(&prompt);
    }
    dse_chat_request_deinit(&request);
    return status;
}

struct tokenize_flags {
    bool llama, add_special, parse_special, pieces, strings;
};

static enum dse_status tokenize(const struct dse_served *served, const json_t *root, struct tokenize_flags *flags,
                                struct dse_tokens *tokens, struct dse_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    enum dse_status status = DSE_OK;
    flags->llama = dse_param_get(root, "content") != NULL;
    flags->add_special = !flags->llama; /* llama.cpp adds nothing unless asked, vLLM does unless told not to */
    flags->parse_special = true;
    if (status == DSE_OK) status = dse_param_bool(root, "add_special", &flags->add_special, NULL, err);
    if (status == DSE_OK) status = dse_param_bool(root, "add_special_tokens", &flags->add_special, NULL, err);
    if (status == DSE_OK) status = dse_param_bool(root, "parse_special", &flags->parse_special, NULL, err);
    if (status == DSE_OK) status = dse_param_bool(root, "with_pieces", &flags->pieces, NULL, err);
    if (status == DSE_OK) status = dse_param_bool(root, "return_token_strs", &flags->strings, NULL, err);
    if (status != DSE_OK) return status;
    if (!flags->llama && dse_param_get(root, "messages")) return chat_tokens(served, root, tokens, err);
    status = dse_param_string(root, flags->llama ? "content" : "prompt", &text, &bytes, err);
    if (status != DSE_OK) return status;
    if (!text) return dse_fail_at(err, DSE_ERR_INVALID, "prompt", -1, "one of content, prompt and messages is needed");
    if (bytes > DSE_SERVER_MAX_TEXT_BYTES)
        return dse_fail_at(err, DSE_ERR_INVALID, flags->llama ? "content" : "prompt", -1,
                           "the text has %zu bytes; at most %u are possible", bytes, DSE_SERVER_MAX_TEXT_BYTES);
    return dse_tokenizer_encode(served->tokenizer, text, bytes,
                                (flags->parse_special ? DSE_ENCODE_PARSE_SPECIAL : 0) |
                                    (flags->add_special ? DSE_ENCODE_ADD_BOS : 0),
                                tokens, err);
}

void dse_handle_tokenize(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_tokens tokens = {0};
    struct tokenize_flags flags = {0};
    struct dse_error err;
    json_t *root = dse_request_object(server, x);
    if (!root) return;
    enum dse_status status = tokenize(served, root, &flags, &tokens, &err);
    json_decref(root);
    if (status != DSE_OK) {
        dse_tokens_deinit(&tokens);
        dse_answer_failure(server, x, &err);
        return;
    }
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ANSWER_BYTES);
    if (flags.llama) {
        dse_buffer_puts(&out, "{\"tokens\":");
        if (flags.pieces)
            put_pieces(&out, served->tokenizer, &tokens);
        else
            put_ids(&out, &tokens);
    } else {
        dse_buffer_printf(&out, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":", tokens.count,
                          (long long)served->context_length);
        put_ids(&out, &tokens);
        dse_buffer_puts(&out, ",\"token_strs\":");
        if (flags.strings)
            put_strings(&out, served->tokenizer, &tokens);
        else
            dse_buffer_puts(&out, "null");
    }
    dse_buffer_putc(&out, '}');
    dse_tokens_deinit(&tokens);
    dse_answer_buffer(server, x, 200, "application/json", &out);
}

static enum dse_status detokenize(const struct dse_served *served, const json_t *root, char **text, size_t *bytes,
                                  struct dse_error *err)
{
    const json_t *list = dse_param_get(root, "tokens");
    if (!json_is_array(list))
        return dse_fail_at(err, DSE_ERR_INVALID, "tokens", -1, "tokens must be an array of token ids, not %s",
                           dse_json_type_name(list));
    if (json_array_size(list) > MAX_IDS)
        return dse_fail_at(err, DSE_ERR_INVALID, "tokens", -1, "tokens has %zu ids; at most %u are possible",
                           json_array_size(list), MAX_IDS);
    struct dse_tokens tokens = {0};
    enum dse_status status = DSE_OK;
    for (size_t i = 0; i < json_array_size(list) && status == DSE_OK; i++) {
        char path[40];
        int64_t id = 0;
        snprintf(path, sizeof path, "tokens[%zu]", i);
        status = dse_param_int_value(json_array_get(list, i), path, 0, served->n_vocab - 1, &id, err);
        if (status == DSE_OK) status = dse_tokens_push(&tokens, (int32_t)id, err);
    }
    if (status == DSE_OK)
        status = dse_tokenizer_decode(served->tokenizer, tokens.ids, tokens.count, false, text, bytes, err);
    dse_tokens_deinit(&tokens);
    return status;
}

void dse_handle_detokenize(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_error err;
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = dse_request_object(server, x);
    if (!root) return;
    enum dse_status status = detokenize(served, root, &text, &bytes, &err);
    json_decref(root);
    if (status == DSE_OK) {
        struct dse_buffer out;
        dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ANSWER_BYTES);
        dse_buffer_puts(&out, "{\"content\":");
        dse_buffer_put_json_string(&out, text, bytes);
        dse_buffer_puts(&out, ",\"prompt\":");
        dse_buffer_put_json_string(&out, text, bytes);
        dse_buffer_putc(&out, '}');
        dse_answer_buffer(server, x, 200, "application/json", &out);
    } else {
        dse_answer_failure(server, x, &err);
    }
    dse_free(text);
}

void dse_handle_apply_template(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_chat_request request;
    struct dse_error err;
    json_t *root = dse_request_object(server, x);
    if (!root) return;
    enum dse_status status = dse_chat_request_parse(root, served->n_vocab, &request, &err);
    if (status == DSE_OK) {
        struct dse_chat_prompt prompt = {0};
        status = dse_chat_request_prompt(&request, served, DSE_CHAT_SHOW, &prompt, &err);
        if (status == DSE_OK) {
            struct dse_buffer out;
            dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ANSWER_BYTES);
            dse_buffer_puts(&out, "{\"prompt\":");
            dse_buffer_put_json_string(&out, prompt.text, prompt.bytes);
            dse_buffer_putc(&out, '}');
            dse_answer_buffer(server, x, 200, "application/json", &out);
        }
        dse_chat_prompt_deinit(&prompt);
    }
    if (status != DSE_OK) dse_answer_failure(server, x, &err);
    dse_chat_request_deinit(&request);
    json_decref(root);
}

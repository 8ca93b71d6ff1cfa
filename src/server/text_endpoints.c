/* /tokenize, /detokenize, /apply-template: in the shapes of llama.cpp (content, add_special) and of vLLM (prompt or
 * messages, add_special_tokens). Handlers run on a worker. */
#include <stdio.h>

#include "base/alloc.h"
#include "server/chat_request.h"
#include "server/errors.h"
#include "server/params.h"
#include "server/server_internal.h"

static json_t *token_list(const struct dse_tokens *tokens)
{
    json_t *list = json_array();
    for (size_t i = 0; i < tokens->count; i++)
        json_array_append_new(list, json_integer(tokens->ids[i]));
    return list;
}

/* A token's text, or its bytes as numbers when they are not whole characters. */
static json_t *token_piece(const struct dse_tokenizer *tokenizer, int32_t id)
{
    struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, id);
    if (!bytes.data) bytes = (struct dse_slice){"", 0};
    json_t *text = json_stringn(bytes.data, bytes.bytes);
    if (text) return text;
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes.data[i]));
    return list;
}

static json_t *token_strings(const struct dse_served *served, const struct dse_tokens *tokens)
{
    json_t *list = json_array();
    for (size_t i = 0; i < tokens->count; i++) {
        char *text = NULL;
        size_t bytes = 0;
        if (dse_tokenizer_decode(served->tokenizer, &tokens->ids[i], 1, false, &text, &bytes, NULL) != DSE_OK) continue;
        json_array_append_new(list, json_stringn(text, bytes));
        dse_free(text);
    }
    return list;
}

static json_t *token_pieces(const struct dse_served *served, const struct dse_tokens *tokens)
{
    json_t *list = json_array();
    for (size_t i = 0; i < tokens->count; i++)
        json_array_append_new(list, json_pack("{s:i, s:o}", "id", (int)tokens->ids[i], "piece",
                                              token_piece(served->tokenizer, tokens->ids[i])));
    return list;
}

static enum dse_status chat_tokens(const struct dse_served *served, const json_t *root, struct dse_tokens *tokens,
                                   struct dse_error *err)
{
    struct dse_chat_request request;
    enum dse_status status = dse_chat_request_parse(root, served->n_vocab, &request, err);
    if (status == DSE_OK) {
        struct dse_chat_prompt prompt = {0};
        status = dse_chat_request_prompt(&request, served, true, &prompt, err);
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
    if (status != DSE_OK) {
        dse_answer_failure(server, x, &err);
    } else if (flags.llama) {
        dse_answer_json(
            server, x, 200,
            json_pack("{s:o}", "tokens", flags.pieces ? token_pieces(served, &tokens) : token_list(&tokens)));
    } else {
        dse_answer_json(server, x, 200,
                        json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)tokens.count, "max_model_len",
                                  (json_int_t)served->context_length, "tokens", token_list(&tokens), "token_strs",
                                  flags.strings ? token_strings(served, &tokens) : json_null()));
    }
    dse_tokens_deinit(&tokens);
    json_decref(root);
}

static enum dse_status detokenize(const struct dse_served *served, const json_t *root, char **text, size_t *bytes,
                                  struct dse_error *err)
{
    const json_t *list = dse_param_get(root, "tokens");
    if (!json_is_array(list))
        return dse_fail_at(err, DSE_ERR_INVALID, "tokens", -1, "tokens must be an array of token ids, not %s",
                           dse_json_type_name(list));
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
    if (detokenize(served, root, &text, &bytes, &err) == DSE_OK) {
        json_t *string = json_stringn(text, bytes);
        dse_answer_json(server, x, 200, json_pack("{s:O, s:o}", "content", string, "prompt", string));
    } else {
        dse_answer_failure(server, x, &err);
    }
    dse_free(text);
    json_decref(root);
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
        status = dse_chat_request_prompt(&request, served, false, &prompt, &err);
        if (status == DSE_OK)
            dse_answer_json(server, x, 200, json_pack("{s:o}", "prompt", json_stringn(prompt.text, prompt.bytes)));
        dse_chat_prompt_deinit(&prompt);
    }
    if (status != DSE_OK) dse_answer_failure(server, x, &err);
    dse_chat_request_deinit(&request);
    json_decref(root);
}

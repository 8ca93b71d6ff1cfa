/* POST /v1/completions: texts or token ids in, text out; echo with the prompt's log probabilities.
 *
 * The handler runs on a worker; the put_ functions on the engine thread, they only format.
 */
#include <string.h>

#include "server/body.h"
#include "server/completion_request.h"
#include "server/generation.h"
#include "text/grammar.h"

static void put_choice(struct dse_choice *c, const char *finish, struct dse_buffer *out)
{
    const struct dse_gen_params *params = &c->generation->params;
    const struct dse_buffer *text = &c->text[DSE_CHANNEL_CONTENT];
    dse_buffer_printf(out, "{\"index\":%d,\"text\":", c->index);
    dse_buffer_put_json_string(out, dse_buffer_text(text), text->length);
    dse_buffer_puts(out, ",\"logprobs\":");
    const struct dse_logprobs *echoed = c->prompt->echo && !c->echo_sent ? &c->prompt->echo_logprobs : NULL;
    c->echo_sent = true;
    if (params->logprobs)
        dse_put_completion_logprobs(out, c->generation->served->tokenizer, echoed, &c->logprobs);
    else
        dse_buffer_puts(out, "null");
    if (finish)
        dse_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else
        dse_buffer_puts(out, ",\"finish_reason\":null}");
}

static void put_delta(struct dse_choice *c, enum dse_channel channel, struct dse_buffer *out)
{
    put_choice(c, NULL, out);
}

static void put_finish(struct dse_choice *c, struct dse_buffer *out)
{
    put_choice(c, dse_finish_name(c->finish), out); /* its text has gone out already */
}

static const struct dse_dialect completion_dialect = {
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .too_long = "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in the "
                "prompt, %lld in the completion). Please reduce the length of the prompt or completion.",
    .put_delta = put_delta,
    .put_finish = put_finish,
    .put_whole = put_finish,
};

static enum dse_status encode_prompt(struct dse_served *served, const struct dse_completion_request *request, int index,
                                     struct dse_gen_prompt *out, struct dse_error *err)
{
    const struct dse_completion_prompt *prompt = &request->prompts[index];
    enum dse_status status = DSE_OK;
    if (prompt->text) {
        status = dse_served_check_prompt(served, prompt->text_bytes, "prompt", err);
        if (status != DSE_OK) return status;
        unsigned flags = DSE_ENCODE_PARSE_SPECIAL | (request->add_special_tokens ? DSE_ENCODE_ADD_BOS : 0);
        status = dse_tokenizer_encode(served->tokenizer, prompt->text, prompt->text_bytes, flags, &out->tokens, err);
        if (status == DSE_OK && request->echo) {
            out->echo = dse_strndup(DSE_MEM_REQUEST, prompt->text, prompt->text_bytes);
            out->echo_bytes = prompt->text_bytes;
            if (!out->echo) status = dse_fail_memory(err, prompt->text_bytes, "echo");
        }
    } else {
        for (size_t i = 0; i < prompt->n_ids && status == DSE_OK; i++)
            status = dse_tokens_push(&out->tokens, prompt->ids[i], err);
        if (status == DSE_OK && request->echo)
            status = dse_tokenizer_decode(served->tokenizer, prompt->ids, prompt->n_ids, false, &out->echo,
                                          &out->echo_bytes, err);
    }
    if (status == DSE_OK && out->tokens.count == 0)
        status = dse_fail_at(err, DSE_ERR_INVALID, "prompt", -1, "the prompt is empty");
    if (status == DSE_ERR_INVALID && err && !err->file[0]) {
        struct dse_error copy = *err;
        dse_fail_at(err, status, "prompt", -1, "prompt: %s", copy.message);
    }
    return status;
}

static enum dse_status prepare(struct dse_served *served, const json_t *root, struct dse_completion_request *request,
                               struct dse_generation_setup *setup, struct dse_error *err)
{
    enum dse_status status = dse_completion_request_parse(root, served->n_vocab, request, err);
    if (status == DSE_OK)
        status = dse_constraint_compile(&request->params.constraint, served->grammars, &setup->grammar, err);
    if (status != DSE_OK) return status;
    setup->prompts = dse_calloc(DSE_MEM_REQUEST, (size_t)request->n_prompts, sizeof *setup->prompts);
    if (!setup->prompts) return dse_fail_memory(err, (size_t)request->n_prompts * sizeof *setup->prompts, "prompts");
    setup->n_prompts = request->n_prompts;
    for (int i = 0; i < request->n_prompts && status == DSE_OK; i++)
        status = encode_prompt(served, request, i, &setup->prompts[i], err);
    return status;
}

void dse_handle_completions(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    struct dse_completion_request request;
    struct dse_generation_setup setup = {.exchange = x, .dialect = &completion_dialect};
    json_t *root = dse_request_object(server, x);
    if (!root || !dse_request_model_known(server, x, root)) {
        json_decref(root);
        return;
    }
    enum dse_status status = prepare(atomic_load(&server->served), root, &request, &setup, &err);
    struct dse_gen_params params = request.params;
    if (status == DSE_OK) { /* the generation takes them */
        request.params.logit_bias = NULL;
        setup.params = &params;
        setup.root = root;
        dse_generation_run(server, &setup);
    } else {
        dse_answer_failure(server, x, &err);
        dse_gen_prompts_free(setup.prompts, setup.n_prompts);
        dse_grammar_unref(setup.grammar);
        json_decref(root);
    }
    dse_completion_request_deinit(&request);
}

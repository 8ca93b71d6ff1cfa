/* POST /infill, as editors know it from llama-server: what belongs between input_prefix and input_suffix.
 *
 * The handler runs on a worker; the rest on the engine thread, it only formats.
 */
#include <string.h>

#include "base/alloc.h"
#include "server/body.h"
#include "server/chat_translate.h"
#include "server/fim.h"
#include "server/generation.h"
#include "server/params.h"
#include "text/grammar.h"

#define MAX_EXTRA 128 /* files beside the one with the hole */

/* ---- answer --------------------------------------------------------------------------------------------------- */

/* Members of both forms; text: the content. */
static void put_head(const struct dse_choice *c, const char *text, size_t bytes, bool stop, struct dse_buffer *out)
{
    dse_buffer_puts(out, "\"index\":0,\"content\":");
    dse_buffer_put_json_string(out, text, bytes);
    dse_buffer_printf(out, ",\"tokens\":[],\"stop\":%s,\"tokens_predicted\":%d,\"tokens_evaluated\":%zu",
                      stop ? "true" : "false", c->finished ? c->timings.n_generated : c->n_tokens,
                      c->prompt->tokens.count);
}

static void put_end(const struct dse_choice *c, struct dse_buffer *out)
{
    const struct dse_generation *g = c->generation;
    bool word = c->finish == DSE_FINISH_STOP && c->stop_index >= 0;
    struct dse_usage usage;
    struct dse_timing_sum timings;
    dse_generation_sums(g, &usage, &timings);
    dse_buffer_puts(out, ",\"model\":");
    dse_buffer_put_json_string(out, g->model, strlen(g->model));
    dse_buffer_printf(out, ",\"truncated\":false,\"stop_type\":\"%s\",\"stopping_word\":",
                      word                             ? "word"
                      : c->finish == DSE_FINISH_LENGTH ? "limit"
                                                       : "eos");
    dse_buffer_put_json_string(out, word ? g->params.stops[c->stop_index] : "",
                               word ? g->params.stop_bytes[c->stop_index] : 0);
    dse_buffer_printf(out, ",\"tokens_cached\":%lld,\"timings\":", (long long)usage.cached_tokens);
    dse_put_timings(out, &timings);
}

static void begin(struct dse_choice *c)
{
    (void)c; /* the first text is the beginning */
}

static void ignore_item(void *user, size_t index, const struct dse_item *item)
{
    (void)user, (void)index, (void)item;
}

static void more_text(void *user, size_t index, const struct dse_item *item, const char *text, size_t bytes)
{
    struct dse_choice *c = user;
    put_head(c, text, bytes, false, dse_stream_object(c->generation));
    dse_stream_event_send(c->generation);
}

static void tell(struct dse_choice *c, bool over)
{
    static const struct dse_item_teller teller = {ignore_item, more_text, ignore_item};
    dse_items_tell(&c->items, &teller, c, over);
}

static void finish(struct dse_choice *c)
{
    struct dse_buffer *out = dse_stream_object(c->generation);
    put_head(c, "", 0, true, out);
    put_end(c, out);
    dse_stream_event_send(c->generation);
}

static void put_failure(struct dse_generation *g, const struct dse_api_error *error, struct dse_buffer *out)
{
    dse_buffer_puts(out, "data: ");
    dse_put_error(out, error);
    dse_buffer_puts(out, "\n\n");
}

static void put_whole(struct dse_generation *g, struct dse_buffer *out)
{
    const struct dse_choice *c = &g->choices[0];
    const struct dse_item *item = c->items.count ? &c->items.items[0] : NULL; /* there is only text */
    dse_buffer_putc(out, '{');
    put_head(c, item ? dse_buffer_text(&item->text) : "", item ? item->text.length : 0, true, out);
    put_end(c, out);
    dse_buffer_putc(out, '}');
}

static const struct dse_event_dialect infill_events = {
    .begin = begin,
    .tell = tell,
    .finish = finish,
    .put_failure = put_failure,
    .no_memory = "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                 "\"code\":\"unavailable\"}}\n\n",
    .last = "",
    .filler = ": keep-alive\n\n",
    .put_whole = put_whole,
};

static const struct dse_dialect infill_dialect = {
    .id_prefix = "infill-",
    .too_long = "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in the "
                "input, %lld in the completion). Please reduce the length of the input or completion.",
    .prompt_field = "input_prefix",
    .events = &infill_events,
};

/* ---- request -------------------------------------------------------------------------------------------------- */

struct infill_request {
    const char *prefix, *suffix, *prompt; /* borrowed; prompt: the beginning of the filling */
    size_t prefix_bytes, suffix_bytes, prompt_bytes;
    const json_t *extra;
};

static enum dse_status parse(const json_t *root, struct infill_request *request, struct dse_error *err)
{
    int64_t n_probs = 0;
    *request = (struct infill_request){.prompt = ""};
    TRY(dse_param_string(root, "input_prefix", &request->prefix, &request->prefix_bytes, err));
    TRY(dse_param_string(root, "input_suffix", &request->suffix, &request->suffix_bytes, err));
    TRY(dse_param_string(root, "prompt", &request->prompt, &request->prompt_bytes, err));
    TRY(dse_param_int(root, "n_probs", 0, INT64_MAX, &n_probs, NULL, err));
    if (!request->prefix)
        return dse_fail_at(err, DSE_ERR_INVALID, "input_prefix", -1, "input_prefix is missing; it must be a string");
    if (!request->suffix)
        return dse_fail_at(err, DSE_ERR_INVALID, "input_suffix", -1, "input_suffix is missing; it must be a string");
    if (n_probs > 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "n_probs", -1,
                           "n_probs is not part of this endpoint; use suffix and logprobs of /v1/completions");
    request->extra = dse_param_get(root, "input_extra");
    if (!request->extra) return DSE_OK;
    if (!json_is_array(request->extra)) return dse_field_wrong(err, "input_extra", "an array", request->extra);
    if (json_array_size(request->extra) > MAX_EXTRA)
        return dse_fail_at(err, DSE_ERR_INVALID, "input_extra", -1,
                           "input_extra has %zu files; at most %d are possible", json_array_size(request->extra),
                           MAX_EXTRA);
    return DSE_OK;
}

static enum dse_status encode_text(const struct dse_served *served, const char *text, size_t bytes, const char *field,
                                   struct dse_tokens *out, struct dse_error *err)
{
    enum dse_status status = dse_served_check_prompt(served, bytes, field, err);
    return status == DSE_OK ? dse_tokenizer_encode(served->tokenizer, text, bytes, 0, out, err) : status;
}

/* Other files of the project, in front: `SEPARATOR name newline text newline`, the separator where a model has one. */
static enum dse_status encode_extra(const struct dse_served *served, const json_t *extra, struct dse_tokens *out,
                                    struct dse_error *err)
{
    for (size_t i = 0; i < json_array_size(extra); i++) {
        char path[DSE_FIELD_PATH_BYTES], at[DSE_FIELD_PATH_BYTES];
        const json_t *file = json_array_get(extra, i);
        const char *name = "", *text = NULL;
        size_t bytes = 0;
        dse_field_path(path, "input_extra[%zu]", i);
        if (!json_is_object(file)) return dse_field_wrong(err, path, "an object", file);
        dse_field_path(at, "%s.filename", path);
        TRY(dse_param_string(file, at, &name, NULL, err));
        dse_field_path(at, "%s.text", path);
        TRY(dse_param_string(file, at, &text, &bytes, err));
        if (!text) return dse_fail_at(err, DSE_ERR_INVALID, at, -1, "%s is missing; it must be a string", at);
        if (served->file_separator >= 0) TRY(dse_tokens_push(out, served->file_separator, err));
        TRY(encode_text(served, name, strlen(name), at, out, err));
        TRY(encode_text(served, "\n", 1, at, out, err));
        TRY(encode_text(served, text, bytes, at, out, err));
        TRY(encode_text(served, "\n", 1, at, out, err));
    }
    if (json_array_size(extra) > 0 && served->file_separator >= 0)
        return dse_tokens_push(out, served->file_separator, err);
    return DSE_OK;
}

static enum dse_status encode(const struct dse_served *served, const struct infill_request *request,
                              struct dse_tokens *out, struct dse_error *err)
{
    struct dse_fim_hole hole = {.before = request->prefix,
                                .before_bytes = request->prefix_bytes,
                                .behind = request->suffix,
                                .behind_bytes = request->suffix_bytes};
    if (dse_tokenizer_adds_bos(served->tokenizer)) TRY(dse_tokens_push(out, dse_tokenizer_bos(served->tokenizer), err));
    TRY(encode_extra(served, request->extra, out, err));
    TRY(dse_served_check_prompt(served, request->prefix_bytes, "input_prefix", err));
    TRY(dse_served_check_prompt(served, request->suffix_bytes, "input_suffix", err));
    TRY(dse_fim_encode(served, &hole, out, err));
    return encode_text(served, request->prompt, request->prompt_bytes, "prompt", out, err);
}

/* Everything up to the point where the engine takes over. */
static enum dse_status prepare(const struct dse_served *served, const json_t *root, struct dse_gen_params *params,
                               struct dse_generation_setup *setup, struct dse_error *err)
{
    struct infill_request request;
    if (!dse_fim_possible(served))
        return dse_fail(err, DSE_ERR_UNSUPPORTED, "this model has no tokens for filling holes (FIM)");
    TRY(dse_gen_params_parse(root, served->n_vocab, params, err));
    TRY(parse(root, &request, err));
    params->n = 1;
    params->include_usage = params->return_progress = false;
    dse_fim_add_stops(served, params);
    TRY(dse_constraint_compile(&params->constraint, served->grammars, &setup->grammar, err));
    setup->prompts = dse_calloc(DSE_MEM_REQUEST, 1, sizeof *setup->prompts);
    if (!setup->prompts) return dse_fail_memory(err, sizeof *setup->prompts, "prompt");
    setup->n_prompts = 1;
    return encode(served, &request, &setup->prompts[0].tokens, err);
}

void dse_handle_infill(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    struct dse_gen_params params = {0};
    struct dse_generation_setup setup = {.exchange = x, .dialect = &infill_dialect, .params = &params};
    json_t *root = dse_request_object(server, x);
    if (!root || !dse_request_model_known(server, x, root)) {
        json_decref(root);
        return;
    }
    enum dse_status status = prepare(atomic_load(&server->served), root, &params, &setup, &err);
    if (status == DSE_OK) {
        setup.root = root;
        dse_generation_run(server, &setup);
        return;
    }
    dse_answer_failure(server, x, &err);
    dse_gen_prompts_free(setup.prompts, setup.n_prompts);
    dse_grammar_unref(setup.grammar);
    dse_gen_params_deinit(&params);
    json_decref(root);
}

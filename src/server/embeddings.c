/* POST /v1/embeddings: the hidden states of an input's tokens become one vector of length 1.
 *
 * Which states: what the model's file says (the mean, the first or the last token's), else their mean. An input is a
 * prompt of a generation that generates nothing, so queueing, leaving and draining are those of all generations.
 * The handler runs on a worker, the rest on the engine thread.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "server/body.h"
#include "server/completion_request.h"
#include "server/generation.h"
#include "server/params.h"

/* ---- vectors -------------------------------------------------------------------------------------------------- */

enum dse_status dse_embedding_init(struct dse_choice *c, struct dse_error *err)
{
    size_t n = (size_t)c->generation->served->info.n_embd;
    c->vector = dse_calloc(DSE_MEM_REQUEST, n, sizeof *c->vector);
    return c->vector ? DSE_OK : dse_fail_memory(err, n * sizeof *c->vector, "embedding");
}

void dse_embedding_add(struct dse_choice *c, const struct dse_event *event)
{
    const struct dse_model_info *info = &c->generation->served->info;
    bool counts = info->pooling == DSE_POOLING_FIRST  ? event->n_processed == 0
                  : info->pooling == DSE_POOLING_LAST ? event->n_processed == event->n_prompt - 1
                                                      : true;
    for (int i = 0; counts && i < info->n_embd; i++)
        c->vector[i] += event->hidden[i];
}

void dse_embedding_finish(struct dse_choice *c)
{
    double square = 0;
    int n = c->generation->served->info.n_embd;
    for (int i = 0; i < n; i++)
        square += (double)c->vector[i] * (double)c->vector[i];
    double scale = 1.0 / sqrt(square);
    if (!isfinite(scale)) {
        struct dse_error err;
        dse_fail(&err, DSE_ERR_INTERNAL, "the model's hidden states are no numbers to be divided by");
        dse_generation_fail(c->generation, NULL, &err);
        return;
    }
    for (int i = 0; i < n; i++)
        c->vector[i] = (float)((double)c->vector[i] * scale);
}

/* ---- answer --------------------------------------------------------------------------------------------------- */

/* Little-endian f32 in base64. */
static void put_base64(struct dse_buffer *out, const float *values, int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int held = 0, count = 0;
    dse_buffer_putc(out, '"');
    for (int i = 0; i < n; i++) {
        uint32_t value;
        memcpy(&value, &values[i], sizeof value);
        for (int b = 0; b < 4; b++, value >>= 8) {
            bits = bits << 8 | (value & 0xFF);
            for (held += 8; held >= 6; held -= 6, count++)
                dse_buffer_putc(out, digits[bits >> (held - 6) & 63]);
        }
    }
    if (held > 0) {
        dse_buffer_putc(out, digits[bits << (6 - held) & 63]);
        count++;
    }
    for (; count % 4 != 0; count++)
        dse_buffer_putc(out, '=');
    dse_buffer_putc(out, '"');
}

static void put_floats(struct dse_buffer *out, const float *values, int n)
{
    dse_buffer_putc(out, '[');
    for (int i = 0; i < n; i++)
        dse_buffer_printf(out, i ? ",%.9g" : "%.9g", (double)values[i]);
    dse_buffer_putc(out, ']');
}

static void put_list(const struct dse_generation *g, bool base64, struct dse_buffer *out)
{
    int n = g->served->info.n_embd;
    struct dse_usage usage;
    struct dse_timing_sum timings;
    dse_generation_sums(g, &usage, &timings);
    dse_buffer_puts(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < g->n_choices; i++) {
        dse_buffer_printf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        if (base64)
            put_base64(out, g->choices[i].vector, n);
        else
            put_floats(out, g->choices[i].vector, n);
        dse_buffer_putc(out, '}');
    }
    dse_buffer_puts(out, "],\"model\":");
    dse_buffer_put_json_string(out, g->model, strlen(g->model));
    dse_buffer_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)usage.prompt_tokens,
                      (long long)usage.prompt_tokens);
}

static void put_whole_floats(struct dse_generation *g, struct dse_buffer *out)
{
    put_list(g, false, out);
}

static void put_whole_base64(struct dse_generation *g, struct dse_buffer *out)
{
    put_list(g, true, out);
}

static const struct dse_event_dialect events[2] = {{.put_whole = put_whole_floats}, {.put_whole = put_whole_base64}};

#define DIALECT(index)                                                                                                 \
    {                                                                                                                  \
        .id_prefix = "embd-",                                                                                          \
        .too_long = "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in " \
                    "the input, %lld in the completion). Please reduce the length of the input.",                      \
        .prompt_field = "input", .embeds = true, .events = &events[index],                                             \
    }
static const struct dse_dialect dialects[2] = {DIALECT(0), DIALECT(1)}; /* by enum of encoding_format */

/* ---- request -------------------------------------------------------------------------------------------------- */

/* Texts of control tokens stay text: who wants the tokens sends their ids. */
static enum dse_status encode_text(const struct dse_served *served, const struct dse_completion_prompt *input,
                                   struct dse_tokens *tokens, struct dse_error *err)
{
    enum dse_status status = dse_served_check_prompt(served, input->text_bytes, "input", err);
    if (status == DSE_OK)
        status = dse_tokenizer_encode(served->tokenizer, input->text, input->text_bytes, DSE_ENCODE_ADD_BOS, tokens,
                                      err);
    int32_t eos = dse_tokenizer_eos(served->tokenizer);
    if (status == DSE_OK && input->text_bytes > 0 && served->info.adds_eos && eos >= 0)
        status = dse_tokens_push(tokens, eos, err);
    return status;
}

static enum dse_status encode(const struct dse_served *served, const struct dse_completion_prompt *input,
                              struct dse_tokens *tokens, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    if (input->text && input->text_bytes == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "input", -1, "input must not be empty, nor any of its texts");
    if (input->text) status = encode_text(served, input, tokens, err);
    for (size_t i = 0; i < input->n_ids && status == DSE_OK; i++)
        status = dse_tokens_push(tokens, input->ids[i], err);
    if (status == DSE_ERR_INVALID && err && !err->file[0]) {
        struct dse_error copy = *err;
        dse_fail_at(err, status, "input", -1, "input: %s", copy.message);
    }
    return status;
}

static enum dse_status parse_options(const struct dse_served *served, const json_t *root, int *format,
                                     struct dse_error *err)
{
    static const char *const formats[] = {"float", "base64", NULL};
    int64_t dimensions = served->info.n_embd;
    if (served->info.pooling == DSE_POOLING_RANK)
        return dse_fail(err, DSE_ERR_UNSUPPORTED, "this model ranks texts; it makes no embeddings");
    TRY(dse_param_word(root, "encoding_format", formats, format, err));
    TRY(dse_param_int(root, "dimensions", 1, INT64_MAX, &dimensions, NULL, err));
    if (dimensions != served->info.n_embd)
        return dse_fail_at(err, DSE_ERR_INVALID, "dimensions", -1,
                           "dimensions is %lld; the embeddings of this model have %d, and a part of one would be none",
                           (long long)dimensions, served->info.n_embd);
    return DSE_OK;
}

static enum dse_status prepare(const struct dse_served *served, const json_t *root, struct dse_generation_setup *setup,
                               struct dse_error *err)
{
    struct dse_completion_prompt *inputs = NULL;
    int n = 0, format = 0;
    TRY(parse_options(served, root, &format, err));
    setup->dialect = &dialects[format];
    enum dse_status status = dse_completion_prompts_parse(root, "input", served->n_vocab, DSE_MAX_INPUTS, &inputs, &n,
                                                          err);
    if (status == DSE_OK) {
        setup->prompts = dse_calloc(DSE_MEM_REQUEST, (size_t)n, sizeof *setup->prompts);
        if (!setup->prompts) status = dse_fail_memory(err, (size_t)n * sizeof *setup->prompts, "inputs");
    }
    if (status == DSE_OK) setup->n_prompts = n;
    for (int i = 0; i < n && status == DSE_OK; i++)
        status = encode(served, &inputs[i], &setup->prompts[i].tokens, err);
    dse_completion_prompts_free(inputs, n);
    return status;
}

void dse_handle_embeddings(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_error err;
    struct dse_gen_params params = {.sampling = dse_sampling_default, .n = 1, .id_slot = -1, .thought_budget = -1};
    struct dse_generation_setup setup = {.exchange = x, .params = &params};
    json_t *root = dse_request_object(server, x);
    if (!root || !dse_request_model_known(server, x, root)) {
        json_decref(root);
        return;
    }
    enum dse_status status = prepare(atomic_load(&server->served), root, &setup, &err);
    if (status != DSE_OK) {
        dse_answer_failure(server, x, &err);
        dse_gen_prompts_free(setup.prompts, setup.n_prompts);
        json_decref(root);
        return;
    }
    params.model = json_string_value(json_object_get(root, "model"));
    params.lora = dse_param_get(root, "lora");
    setup.root = root;
    dse_generation_run(server, &setup);
}

/* Opening the model for `run`, and one turn of its conversation. */
#include "cli/run_session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "cli/input.h"
#include "cli/model_arguments.h"
#include "cli/plan.h"
#include "cli/terminal.h"
#include "text/chat_prompt.h"
#include "text/grammar.h"
#include "text/json_schema.h"

/* Messages of the compiler say which option they are about; the exit code is that of a bad value. */
static enum dse_status load_schema(struct dse_run_session *session, const char *path, struct dse_error *err)
{
    json_t *schema = NULL;
    enum dse_status status = dse_json_read(path, DSE_GRAMMAR_MAX_SOURCE_BYTES, &schema, err);
    if (status == DSE_OK) status = dse_json_schema_compile(schema, path, 0, &session->grammar, err);
    json_decref(schema);
    return status;
}

/* --grammar-file or --json-schema compiled. */
static enum dse_status load_grammar(struct dse_run_session *session, struct dse_error *err)
{
    const char *path = dse_opt_text(session->options, DSE_OPT_GRAMMAR);
    const char *schema = dse_opt_text(session->options, DSE_OPT_JSON_SCHEMA);
    if (path != NULL && schema != NULL)
        return dse_fail(err, DSE_ERR_INVALID, "--grammar-file and --json-schema cannot be given together");
    if (schema != NULL) return load_schema(session, schema, err);
    if (path == NULL) return DSE_OK;
    char *source;
    size_t bytes;
    enum dse_status status = dse_file_read(path, DSE_GRAMMAR_MAX_SOURCE_BYTES, &source, &bytes, err);
    if (status != DSE_OK) return status;
    status = dse_grammar_compile(source, bytes, &session->grammar, err);
    dse_free(source);
    return status;
}

static enum dse_status load_template(struct dse_run_session *session, struct dse_error *err)
{
    char *source;
    size_t bytes;
    enum dse_status status = dse_read_chat_template(session->options, &source, &bytes, err);
    if (status != DSE_OK) return status;
    session->tmpl = dse_model_template(session->model);
    if (source != NULL) {
        status = dse_template_parse(source, bytes, &dse_template_limits_default, &session->own_template, err);
        dse_free(source);
        if (status != DSE_OK) return status;
        session->tmpl = session->own_template;
    }
    if (session->tmpl != NULL) dse_template_probe(session->tmpl, "", "", &session->traits);
    if (session->tmpl == NULL && !session->raw)
        return dse_fail(
            err, DSE_ERR_UNSUPPORTED,
            "the model has no chat template; complete plain text with --raw, or name one with --chat-template");
    return DSE_OK;
}

static void fill_sampling(struct dse_run_session *session)
{
    const struct dse_options *o = session->options;
    session->sampling = dse_sampling_default;
    session->sampling.temperature = (float)dse_opt_real(o, DSE_OPT_TEMPERATURE);
    session->sampling.top_k = (int)dse_opt_int(o, DSE_OPT_TOP_K);
    session->sampling.top_p = (float)dse_opt_real(o, DSE_OPT_TOP_P);
    session->sampling.min_p = (float)dse_opt_real(o, DSE_OPT_MIN_P);
    session->sampling.repetition_penalty = (float)dse_opt_real(o, DSE_OPT_REPEAT_PENALTY);
    if (o->values[DSE_OPT_SEED].given)
        session->sampling.seed = (uint64_t)dse_opt_int(o, DSE_OPT_SEED);
    else
        dse_random_bytes(&session->sampling.seed, sizeof session->sampling.seed);
}

enum dse_status dse_run_session_open(const struct dse_options *options, struct dse_run_session *session,
                                     struct dse_error *err)
{
    memset(session, 0, sizeof *session);
    session->options = options;
    session->raw = dse_opt_flag(options, DSE_OPT_RAW);
    session->hide_thinking = dse_opt_flag(options, DSE_OPT_HIDE_THINKING);
    session->think = options->values[DSE_OPT_THINK].given ? (int)dse_opt_int(options, DSE_OPT_THINK) : -1;
    session->max_tokens = (int)dse_opt_int(options, DSE_OPT_N_PREDICT);
    session->stdout_is_terminal = isatty(STDOUT_FILENO);
    bool colour = dse_terminal_colour(dse_opt_text(options, DSE_OPT_COLOR), STDOUT_FILENO);
    session->dim = colour ? "\033[2m" : "";
    session->undim = colour ? "\033[0m" : "";
    session->show_stats = options->values[DSE_OPT_STATS].given ? dse_opt_flag(options, DSE_OPT_STATS)
                                                               : session->stdout_is_terminal;
    fill_sampling(session);
    enum dse_status status = load_grammar(session, err);
    if (status == DSE_OK) status = dse_cli_adapters_parse(options, &session->adapters, err);
    if (status == DSE_OK) status = dse_cli_model_open(options, dse_cli_model_name(options), &session->model, err);
    if (status == DSE_OK) {
        session->tokenizer = dse_model_tokenizer(session->model);
        if (session->tokenizer == NULL)
            status = dse_fail(err, DSE_ERR_UNSUPPORTED, "the model has no tokenizer, so it cannot work on text");
    }
    if (status == DSE_OK) status = load_template(session, err);
    if (status == DSE_OK) status = dse_cli_adapters_open(&session->adapters, session->model, err);
    for (int i = 0; i < session->adapters.count && status == DSE_OK; i++)
        session->uses[i] = (struct dse_adapter_use){session->adapters.list[i].adapter, session->adapters.list[i].scale};
    if (status == DSE_OK) {
        struct dse_engine_options engine;
        dse_cli_engine_options(options, 1, 1, &engine);
        engine.adapter_rank = session->adapters.rank;
        status = dse_engine_create(session->model, &engine, &session->engine, err);
    }
    const char *system = dse_opt_text(options, DSE_OPT_SYSTEM);
    session->messages = json_array();
    if (status == DSE_OK && session->messages == NULL) status = dse_fail_memory(err, 64, "the conversation");
    if (status == DSE_OK && system != NULL) status = dse_run_add_message(session, "system", system, err);
    if (status != DSE_OK) dse_run_session_close(session);
    return status;
}

void dse_run_session_close(struct dse_run_session *session)
{
    dse_engine_free(session->engine);
    dse_cli_adapters_close(&session->adapters);
    dse_template_free(session->own_template);
    dse_grammar_unref(session->grammar);
    dse_model_unref(session->model);
    json_decref(session->messages);
    memset(session, 0, sizeof *session);
}

enum dse_status dse_run_add_message(struct dse_run_session *session, const char *role, const char *text,
                                    struct dse_error *err)
{
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", text);
    if (message == NULL) return dse_fail(err, DSE_ERR_INVALID, "the text is not valid UTF-8");
    if (json_array_append_new(session->messages, message) != 0) return dse_fail_memory(err, strlen(text), "a message");
    return DSE_OK;
}

enum dse_status dse_run_render(struct dse_run_session *session, struct dse_tokens *tokens, bool *opens_thinking,
                               struct dse_error *err)
{
    json_t *extra = NULL;
    /* Qwen's templates call it enable_thinking, DeepSeek's thinking. */
    if (session->think >= 0)
        extra = json_pack("{s:b, s:b}", "enable_thinking", session->think, "thinking", session->think);
    struct dse_template_inputs inputs = {.messages = session->messages, .add_generation_prompt = true, .extra = extra};
    struct dse_chat_prompt prompt;
    enum dse_status status = dse_chat_prompt_build(session->tmpl, &session->traits, session->tokenizer, &inputs, true,
                                                   &prompt, err);
    json_decref(extra);
    if (status != DSE_OK) return status;
    *opens_thinking = prompt.opens_thinking;
    *tokens = prompt.tokens;
    prompt.tokens = (struct dse_tokens){0};
    dse_chat_prompt_deinit(&prompt);
    return DSE_OK;
}

static void print_text(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct dse_run_session *session = user;
    if (channel == DSE_CHANNEL_REASONING) {
        if (session->hide_thinking) return;
        FILE *out = session->stdout_is_terminal ? stdout : stderr;
        fputs(session->dim, out);
        fwrite(text, 1, bytes, out);
        fputs(session->undim, out);
        fflush(out);
        session->printed_reasoning = true;
        return;
    }
    if (session->printed_reasoning && session->stdout_is_terminal) fputs("\n\n", stdout);
    session->printed_reasoning = false;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    if (session->answer != NULL) dse_buffer_append(session->answer, text, bytes);
}

enum dse_status dse_run_generate(struct dse_run_session *session, const struct dse_tokens *tokens, bool opens_thinking,
                                 struct dse_generation_result *result, struct dse_error *err)
{
    const struct dse_option_value *stops = &session->options->values[DSE_OPT_STOP];
    size_t stop_bytes[DSE_MAX_LIST];
    for (int i = 0; i < stops->count; i++)
        stop_bytes[i] = strlen(stops->list[i]);
    struct dse_generation_options generation = {
        .request = dse_request_default,
        .output = {.stops = stops->list,
                   .stop_bytes = stop_bytes,
                   .n_stops = stops->count,
                   .reasoning = DSE_REASONING_DEEPSEEK,
                   .starts_in_reasoning = opens_thinking,
                   .think_open = session->traits.has_thinking && !session->raw ? "<think>" : NULL,
                   .think_close = session->traits.has_thinking && !session->raw ? "</think>" : NULL},
        .on_text = print_text,
        .user = session,
    };
    session->printed_reasoning = false;
    generation.request.prompt = tokens->ids;
    generation.request.n_prompt = (int)tokens->count;
    generation.request.max_tokens = session->max_tokens;
    generation.request.sampling = session->sampling;
    generation.request.grammar = session->grammar;
    generation.request.adapters = session->uses;
    generation.request.n_adapters = session->adapters.count;
    /* What is thought is free; the grammar is for the answer. */
    generation.request.grammar_after_token = session->grammar && opens_thinking
                                                 ? dse_tokenizer_find_added(session->tokenizer, "</think>")
                                                 : -1;
    return dse_generate_text(session->engine, &generation, &dse_terminal_interrupted, result, err);
}

void dse_run_print_stats(const struct dse_run_session *session, const struct dse_generation_result *result)
{
    if (!session->show_stats) return;
    const struct dse_timings *t = &result->timings;
    struct dse_memory_plan plan;
    struct dse_model_info info;
    dse_engine_get_plan(session->engine, &plan);
    dse_model_get_info(session->model, &info);
    double decode_s = (double)t->decode_ns * 1e-9;
    bool colour = isatty(STDERR_FILENO) && session->dim[0] != '\0';
    fprintf(stderr, "%s[%d tok, %.1f tok/s, TTFT %.2f s, ctx %d/%lld, cpu %d threads]%s\n", colour ? "\033[2m" : "",
            t->n_generated, decode_s > 0 ? (t->n_generated - 1) / decode_s : 0.0, (double)t->prefill_ns * 1e-9,
            t->n_prompt + t->n_generated, (long long)plan.context_length, info.n_threads, colour ? "\033[0m" : "");
}

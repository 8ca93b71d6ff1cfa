/* `tokenize` and `template`: text work without weights. With --json both read one JSON object a line and write one a
 * line; a bad line ends the run with its number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"
#include "cli/input.h"
#include "cli/json_out.h"
#include "cli/model_arguments.h"
#include "cli/verbs.h"
#include "model/tokenizer_source.h"
#include "model/weights.h"
#include "text/chat_prompt.h"
#include "text/chat_builtin.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#define MAX_LINE_BYTES ((size_t)256 << 20)

struct text_work {
    const struct dse_options *options;
    struct dse_model_file *file;
    struct dse_tokenizer *tokenizer; /* NULL for a template whose source has none */
    struct dse_template *tmpl;
    struct dse_template_traits traits;
};

static void work_close(struct text_work *work)
{
    dse_template_free(work->tmpl);
    dse_tokenizer_free(work->tokenizer);
    dse_model_file_close(work->file);
}

/* Index of the first argument after the model, which takes no place there when --tokenizer names it. */
static int after_model(const struct dse_options *options)
{
    return dse_opt_text(options, DSE_OPT_TOKENIZER) == NULL ? 1 : 0;
}

static enum dse_status work_open(const struct dse_options *options, struct text_work *work, struct dse_error *err)
{
    *work = (struct text_work){.options = options};
    const char *path = dse_opt_text(options, DSE_OPT_TOKENIZER);
    char *found = NULL;
    enum dse_status status = DSE_OK;
    if (path == NULL && options->n_positional == 0)
        return dse_fail(
            err, DSE_ERR_INVALID,
            "a MODEL is needed, as an argument or with --tokenizer: a folder, a tokenizer.json or a GGUF file");
    if (path == NULL) {
        status = dse_model_find(options->positional[0], &found, NULL, err);
        path = found;
    }
    if (status == DSE_OK) status = dse_model_file_open_text(path, &work->file, err);
    dse_free(found);
    return status == DSE_OK ? dse_tokenizer_from_model(work->file, &work->tokenizer, err) : status;
}

/* Calls each(work, line object) for every line of standard input. */
static enum dse_status each_line(struct text_work *work,
                                 enum dse_status (*each)(struct text_work *, const json_t *, struct dse_error *),
                                 struct dse_error *err)
{
    struct dse_buffer line;
    enum dse_status status = DSE_OK;
    bool more = true;
    dse_buffer_init(&line, DSE_MEM_MISC, MAX_LINE_BYTES);
    for (int number = 1; status == DSE_OK && more; number++) {
        char what[64];
        json_t *object = NULL;
        snprintf(what, sizeof what, "standard input, line %d", number);
        status = dse_read_line(&line, &more, err);
        if (status != DSE_OK || !more) break;
        if (strspn(dse_buffer_text(&line), " \t\r") == line.length) continue;
        status = dse_json_parse(line.data, line.length, what, &object, err);
        if (status == DSE_OK && !json_is_object(object))
            status = dse_fail(err, DSE_ERR_INVALID, "%s: expected a JSON object", what);
        if (status == DSE_OK) {
            struct dse_error inner = {0};
            status = each(work, object, &inner);
            if (status != DSE_OK) dse_fail(err, status, "%s: %s", what, inner.message);
        }
        json_decref(object);
    }
    dse_buffer_deinit(&line);
    return status;
}

/* ---- tokenize ---- */

static unsigned encode_flags(const struct dse_options *options)
{
    return (dse_opt_flag(options, DSE_OPT_NO_SPECIAL) ? 0 : DSE_ENCODE_PARSE_SPECIAL) |
           (dse_opt_flag(options, DSE_OPT_ADD_BOS) ? DSE_ENCODE_ADD_BOS : 0);
}

static enum dse_status encode_line(struct text_work *work, const json_t *object, struct dse_error *err)
{
    const json_t *text = json_object_get(object, "text");
    if (!json_is_string(text)) return dse_fail(err, DSE_ERR_INVALID, "\"text\" must be a string");
    struct dse_tokens tokens = {0};
    enum dse_status status = dse_tokenizer_encode(work->tokenizer, json_string_value(text), json_string_length(text),
                                                  encode_flags(work->options), &tokens, err);
    json_t *ids = json_array();
    for (size_t i = 0; status == DSE_OK && i < tokens.count; i++) {
        if (json_array_append_new(ids, json_integer(tokens.ids[i])) != 0) status = dse_fail_memory(err, 64, "the ids");
    }
    dse_tokens_deinit(&tokens);
    if (status == DSE_OK) return dse_print_json_line(json_pack("{s:o}", "ids", ids), err);
    json_decref(ids);
    return status;
}

static enum dse_status decode_line(struct text_work *work, const json_t *object, struct dse_error *err)
{
    const json_t *list = json_object_get(object, "ids");
    if (!json_is_array(list)) return dse_fail(err, DSE_ERR_INVALID, "\"ids\" must be a list");
    struct dse_tokens tokens = {0};
    enum dse_status status = DSE_OK;
    for (size_t i = 0; status == DSE_OK && i < json_array_size(list); i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || id < 0 || id > INT32_MAX)
            status = dse_fail(err, DSE_ERR_INVALID, "ids[%zu] is not a token id", i);
        else
            status = dse_tokens_push(&tokens, (int32_t)id, err);
    }
    char *text = NULL;
    size_t bytes = 0;
    if (status == DSE_OK)
        status = dse_tokenizer_decode(work->tokenizer, tokens.ids, tokens.count, false, &text, &bytes, err);
    dse_tokens_deinit(&tokens);
    if (status == DSE_OK) status = dse_print_json_line(json_pack("{s:s%}", "text", text, bytes), err);
    dse_free(text);
    return status;
}

/* Without --json: a table of ids and pieces of the text given as arguments. */
static enum dse_status print_pieces(struct text_work *work, const char *text, struct dse_error *err)
{
    struct dse_tokens tokens = {0};
    enum dse_status status = dse_tokenizer_encode(work->tokenizer, text, strlen(text), encode_flags(work->options),
                                                  &tokens, err);
    for (size_t i = 0; status == DSE_OK && i < tokens.count; i++) {
        struct dse_slice piece = dse_tokenizer_bytes(work->tokenizer, tokens.ids[i]);
        printf("%8d  \"", tokens.ids[i]);
        for (size_t k = 0; k < piece.bytes; k++) {
            unsigned char c = (unsigned char)piece.data[k];
            if (c == '\n')
                fputs("\\n", stdout);
            else if (c < 0x20 || c == 0x7f || c == '"' || c == '\\')
                printf("\\x%02x", c);
            else
                putchar(c);
        }
        fputs("\"\n", stdout);
    }
    if (status == DSE_OK) printf("%zu tokens\n", tokens.count);
    dse_tokens_deinit(&tokens);
    return status;
}

enum dse_status dse_verb_tokenize(const struct dse_options *options, struct dse_error *err)
{
    struct text_work work;
    bool decode = dse_opt_flag(options, DSE_OPT_DECODE), lines = decode || dse_opt_flag(options, DSE_OPT_JSON);
    int first = after_model(options);
    if (lines && options->n_positional > first)
        return dse_fail(err, DSE_ERR_INVALID,
                        "\"%.200s\" is not read: with --json and --decode, lines come on standard input",
                        options->positional[first]);
    if (!lines && options->n_positional <= first)
        return dse_fail(err, DSE_ERR_INVALID,
                        "tokenize needs a MODEL (an argument or --tokenizer PATH) and a TEXT, or --json and lines on "
                        "standard input");
    enum dse_status status = work_open(options, &work, err);
    if (status == DSE_OK && lines) status = each_line(&work, decode ? decode_line : encode_line, err);
    for (int i = first; status == DSE_OK && !lines && i < options->n_positional; i++)
        status = print_pieces(&work, options->positional[i], err);
    work_close(&work);
    return status;
}

/* ---- template ---- */

static enum dse_status open_template(struct text_work *work, struct dse_error *err)
{
    const char *text = work->file->chat_template;
    if (text == NULL) text = dse_chat_builtin_for(work->file->config.arch_name);
    char *source;
    size_t bytes;
    enum dse_status status = dse_read_chat_template(work->options, &source, &bytes, err);
    if (status != DSE_OK) return status;
    if (source == NULL && text == NULL)
        return dse_fail(err, DSE_ERR_UNSUPPORTED, "%s holds no chat template; name one with --chat-template FILE",
                        work->file->path);
    status = source != NULL ? dse_template_parse(source, bytes, &dse_template_limits_default, &work->tmpl, err)
                            : dse_template_parse(text, strlen(text), &dse_template_limits_default, &work->tmpl, err);
    dse_free(source);
    if (status == DSE_OK) dse_template_probe(work->tmpl, "", "", &work->traits);
    return status;
}

/* Members other than messages, tools and add_generation_prompt are further variables of the template. Messages are
 * rendered as they stand: this verb shows what a template does, it does not repair. */
static enum dse_status render_line(struct text_work *work, const json_t *object, struct dse_error *err)
{
    const json_t *messages = json_object_get(object, "messages"), *tools = json_object_get(object, "tools");
    const json_t *generation = json_object_get(object, "add_generation_prompt");
    if (!json_is_array(messages)) return dse_fail(err, DSE_ERR_INVALID, "\"messages\" must be a list");
    if (tools != NULL && !json_is_array(tools) && !json_is_null(tools))
        return dse_fail(err, DSE_ERR_INVALID, "\"tools\" must be a list");
    if (generation != NULL && !json_is_boolean(generation))
        return dse_fail(err, DSE_ERR_INVALID, "\"add_generation_prompt\" must be true or false");
    struct dse_slice bos = dse_tokenizer_bytes(work->tokenizer, dse_tokenizer_bos(work->tokenizer));
    struct dse_slice eos = dse_tokenizer_bytes(work->tokenizer, dse_tokenizer_eos(work->tokenizer));
    char *bos_text = dse_strndup(DSE_MEM_MISC, bos.bytes > 0 ? bos.data : "", bos.bytes);
    char *eos_text = dse_strndup(DSE_MEM_MISC, eos.bytes > 0 ? eos.data : "", eos.bytes);
    json_t *extra = dse_json_copy(object);
    if (extra == NULL || bos_text == NULL || eos_text == NULL) {
        json_decref(extra);
        dse_free(bos_text);
        dse_free(eos_text);
        return dse_fail_memory(err, 64, "the variables");
    }
    json_object_del(extra, "messages");
    json_object_del(extra, "tools");
    json_object_del(extra, "add_generation_prompt");
    struct dse_template_inputs inputs = {.messages = messages,
                                         .tools = json_is_array(tools) ? tools : NULL,
                                         .add_generation_prompt = json_is_true(generation),
                                         .bos_token = bos_text,
                                         .eos_token = eos_text,
                                         .extra = extra};
    char *text;
    size_t bytes;
    enum dse_status status = dse_template_render(work->tmpl, &inputs, &text, &bytes, err);
    json_decref(extra);
    dse_free(bos_text);
    dse_free(eos_text);
    if (status != DSE_OK) return status;
    if (dse_opt_flag(work->options, DSE_OPT_JSON))
        status = dse_print_json_line(json_pack("{s:s%}", "text", text, bytes), err);
    else if (fwrite(text, 1, bytes, stdout) != bytes)
        status = dse_fail(err, DSE_ERR_IO, "cannot write to standard output");
    dse_free(text);
    return status;
}

enum dse_status dse_verb_template(const struct dse_options *options, struct dse_error *err)
{
    struct text_work work;
    int first = after_model(options);
    if (options->n_positional > first)
        return dse_fail(err, DSE_ERR_INVALID, "\"%.200s\" is not read: lines come on standard input",
                        options->positional[first]);
    enum dse_status status = work_open(options, &work, err);
    if (status == DSE_OK) status = open_template(&work, err);
    if (status == DSE_OK) status = each_line(&work, render_line, err);
    work_close(&work);
    return status;
}

/* The chat on a terminal. Ctrl-C stops an answer; at the prompt it leaves, as do Ctrl-D and /bye. An error in a turn is
 * told and the chat goes on without that turn. */
#include "cli/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <editline/readline.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/input.h"
#include "cli/model_arguments.h"
#include "cli/streams.h"
#include "cli/terminal.h"

#define MAX_INPUT_BYTES ((size_t)16 << 20)
#define HISTORY_LINES   1000

struct chat {
    struct dse_run_session *session;
    struct dse_buffer answer; /* content only: what goes into the history */
    bool leave;
};

static void drop_last_message(struct dse_run_session *session)
{
    json_array_remove(session->messages, json_array_size(session->messages) - 1);
}

/* One turn. On failure the user's message is taken back, so that the conversation stays well formed. */
static enum dse_status turn(struct chat *chat, const char *text, struct dse_error *err)
{
    struct dse_run_session *session = chat->session;
    struct dse_tokens tokens = {0};
    struct dse_generation_result result = {0};
    bool opens_thinking = false;
    enum dse_status status = dse_run_add_message(session, "user", text, err);
    if (status != DSE_OK) return status;
    dse_terminal_interrupted = false;
    dse_buffer_clear(&chat->answer);
    status = dse_run_render(session, &tokens, &opens_thinking, err);
    if (status == DSE_OK) status = dse_run_generate(session, &tokens, opens_thinking, &result, err);
    dse_tokens_deinit(&tokens);
    if (status == DSE_OK) {
        putchar('\n');
        status = dse_run_add_message(session, "assistant", dse_buffer_text(&chat->answer), err);
        dse_run_print_stats(session, &result);
    }
    if (status != DSE_OK) drop_last_message(session);
    dse_terminal_interrupted = false;
    return status;
}

/* ---- commands ---- */

static enum dse_status set_value(struct chat *chat, char *arguments, struct dse_error *err)
{
    struct dse_sampling *s = &chat->session->sampling;
    char *value = strchr(arguments, ' ');
    if (value == NULL) goto usage;
    *value++ = '\0';
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end != '\0') goto usage;
    if (strcmp(arguments, "temp") == 0 && number >= 0 && number <= 100)
        s->temperature = (float)number;
    else if (strcmp(arguments, "top-p") == 0 && number >= 0 && number <= 1)
        s->top_p = (float)number;
    else if (strcmp(arguments, "top-k") == 0 && number >= 0 && number < 1e6)
        s->top_k = (int)number;
    else if (strcmp(arguments, "min-p") == 0 && number >= 0 && number <= 1)
        s->min_p = (float)number;
    else if (strcmp(arguments, "seed") == 0 && number >= 0 && number < 9e15)
        s->seed = (uint64_t)number;
    else if (strcmp(arguments, "max-tokens") == 0 && number >= -1 && number < 1e9)
        chat->session->max_tokens = (int)number;
    else
        goto usage;
    return DSE_OK;
usage:
    return dse_fail(err, DSE_ERR_INVALID, "usage: /set temp|top-p|top-k|min-p|seed|max-tokens NUMBER");
}

static enum dse_status show(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    const struct dse_sampling *s = &chat->session->sampling;
    fprintf(stderr, "temp %g  top-p %g  top-k %d  min-p %g  max-tokens %d  messages %zu\n", (double)s->temperature,
            (double)s->top_p, s->top_k, (double)s->min_p, chat->session->max_tokens,
            json_array_size(chat->session->messages));
    return DSE_OK;
}

static enum dse_status clear(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    json_array_clear(chat->session->messages);
    return DSE_OK;
}

static enum dse_status set_system(struct chat *chat, char *arguments, struct dse_error *err)
{
    json_t *messages = chat->session->messages;
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    if (role != NULL && strcmp(role, "system") == 0) json_array_remove(messages, 0);
    json_t *message = json_pack("{s:s, s:s}", "role", "system", "content", arguments);
    if (message == NULL) return dse_fail(err, DSE_ERR_INVALID, "the text is not valid UTF-8");
    return json_array_insert_new(messages, 0, message) == 0 ? DSE_OK : dse_fail_memory(err, 64, "a message");
}

static enum dse_status save(struct chat *chat, char *path, struct dse_error *err)
{
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_MISC, SIZE_MAX);
    enum dse_status status = dse_json_write(&text, chat->session->messages, JSON_INDENT(2))
                                 ? dse_file_write_atomic(path, text.data, text.length, 0600, err)
                                 : dse_fail_memory(err, 64, "the conversation");
    dse_buffer_deinit(&text);
    return status;
}

static enum dse_status load(struct chat *chat, char *path, struct dse_error *err)
{
    json_t *messages;
    enum dse_status status = dse_json_read(path, MAX_INPUT_BYTES, &messages, err);
    if (status != DSE_OK) return status;
    json_t *normal;
    status = dse_messages_normalize(messages, &chat->session->traits, &normal, err);
    if (status == DSE_OK) {
        json_decref(normal);
        json_decref(chat->session->messages);
        chat->session->messages = json_incref(messages);
    }
    json_decref(messages);
    return status;
}

static enum dse_status read_file(struct chat *chat, char *path, struct dse_error *err)
{
    char *text;
    size_t bytes;
    enum dse_status status = dse_file_read(path, MAX_INPUT_BYTES, &text, &bytes, err);
    if (status != DSE_OK) return status;
    status = dse_check_text(text, bytes, path, err);
    if (status == DSE_OK) status = turn(chat, text, err);
    dse_free(text);
    return status;
}

static enum dse_status think(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    chat->session->think = 1;
    return DSE_OK;
}

static enum dse_status no_think(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    chat->session->think = 0;
    return DSE_OK;
}

static enum dse_status stats(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    chat->session->show_stats = !chat->session->show_stats;
    fprintf(stderr, "rates after each answer: %s\n", chat->session->show_stats ? "on" : "off");
    return DSE_OK;
}

static enum dse_status bye(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)arguments, (void)err;
    chat->leave = true;
    return DSE_OK;
}

static enum dse_status help(struct chat *chat, char *arguments, struct dse_error *err);

static const struct {
    const char *name, *argument, *help;
    enum dse_status (*run)(struct chat *, char *, struct dse_error *);
} commands[] = {
    {"/help", "", "this list", help},
    {"/set", "NAME NUMBER", "temp, top-p, top-k, min-p, seed, max-tokens", set_value},
    {"/show", "", "the present settings", show},
    {"/system", "TEXT", "system message from now on", set_system},
    {"/think", "", "let a thinking model think", think},
    {"/nothink", "", "ask it not to", no_think},
    {"/read", "FILE", "send the content of a file", read_file},
    {"/save", "FILE", "write the conversation as JSON", save},
    {"/load", "FILE", "go on with a saved conversation", load},
    {"/clear", "", "forget the conversation", clear},
    {"/stats", "", "rates after each answer, on or off", stats},
    {"/bye", "", "leave", bye},
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static enum dse_status help(struct chat *chat, char *arguments, struct dse_error *err)
{
    (void)chat, (void)arguments, (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  %-8s %-12s %s\n", commands[i].name, commands[i].argument, commands[i].help);
    fputs("  \"\"\" begins and ends a text of several lines; Ctrl-C stops an answer\n", stderr);
    return DSE_OK;
}

static enum dse_status command(struct chat *chat, char *line, struct dse_error *err)
{
    size_t n = strcspn(line, " ");
    char *arguments = line + n + strspn(line + n, " ");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != n || strncmp(commands[i].name, line, n) != 0) continue;
        if (commands[i].argument[0] != '\0' && arguments[0] == '\0')
            return dse_fail(err, DSE_ERR_INVALID, "usage: %s %s", commands[i].name, commands[i].argument);
        return commands[i].run(chat, arguments, err);
    }
    return dse_fail(err, DSE_ERR_INVALID, "there is no command %.*s; try /help", (int)n, line);
}

/* libedit hands lines over from malloc. */
static void release_line(char *line)
{
    (free)(line);
}

/* A line, or several between """ and """. False at the end of input. */
static bool read_input(struct dse_buffer *text)
{
    char *line = readline("> ");
    dse_buffer_clear(text);
    if (line == NULL) return false;
    if (strncmp(line, "\"\"\"", 3) != 0) {
        dse_buffer_puts(text, line);
    } else {
        const char *rest = line + 3;
        for (;;) {
            const char *end = strstr(rest, "\"\"\"");
            dse_buffer_append(text, rest, end != NULL ? (size_t)(end - rest) : strlen(rest));
            if (end != NULL) break;
            dse_buffer_putc(text, '\n');
            release_line(line);
            line = readline(". ");
            if (line == NULL) return false;
            rest = line;
        }
    }
    if (text->length > 0 && text->length < 4096 && strchr(dse_buffer_text(text), '\n') == NULL)
        add_history(dse_buffer_text(text));
    release_line(line);
    return true;
}

/* Path of the history file, owned; NULL when none is to be kept. */
static char *open_history(const struct dse_run_session *session)
{
    if (dse_opt_flag(session->options, DSE_OPT_NO_HISTORY)) return NULL;
    char *folder = dse_cache_folder(""), *path = NULL;
    struct dse_error ignored;
    if (folder != NULL && dse_make_directories(folder, &ignored) == DSE_OK) path = dse_path_join(folder, "history");
    dse_free(folder);
    if (path != NULL) read_history(path);
    return path;
}

static void close_history(char *path)
{
    if (path == NULL) return;
    mode_t old = umask(077); /* what was typed is nobody else's business */
    stifle_history(HISTORY_LINES);
    write_history(path);
    chmod(path, 0600);
    umask(old);
    dse_free(path);
}

enum dse_status dse_chat(struct dse_run_session *session, struct dse_error *err)
{
    struct chat chat = {.session = session};
    struct dse_buffer text;
    struct dse_model_info info;
    if (session->raw) return dse_fail(err, DSE_ERR_INVALID, "--raw needs a prompt");
    dse_model_get_info(session->model, &info);
    dse_buffer_init(&chat.answer, DSE_MEM_MISC, MAX_INPUT_BYTES);
    dse_buffer_init(&text, DSE_MEM_MISC, MAX_INPUT_BYTES);
    session->answer = &chat.answer;
    fprintf(stderr, "%s (%s %s). /help lists the commands.\n", info.name, info.arch, info.quantization);
    using_history();
    char *history = open_history(session);
    while (!chat.leave && read_input(&text)) {
        struct dse_error turn_error = {0};
        enum dse_status status = DSE_OK;
        if (text.failed)
            status = dse_fail(&turn_error, DSE_ERR_LIMIT, "the text is too long");
        else if (text.length == 0)
            continue;
        else if (text.data[0] == '/')
            status = command(&chat, text.data, &turn_error);
        else
            status = turn(&chat, text.data, &turn_error);
        if (status != DSE_OK) {
            dse_print_safely(stderr, turn_error.message);
            fputc('\n', stderr);
        }
    }
    if (!chat.leave) fputc('\n', stderr);
    close_history(history);
    dse_buffer_deinit(&text);
    session->answer = NULL;
    dse_buffer_deinit(&chat.answer);
    return DSE_OK;
}

/* `top`: looks at a running server at intervals. On a terminal a picture that is drawn anew, with keys; elsewhere plain
 * text or lines of JSON, without any escape sequence. Never waits for a server so that keys or Ctrl-C have to wait too. */
#include <errno.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/http_client.h"
#include "cli/json_out.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "cli/top_draw.h"
#include "cli/top_terminal.h"
#include "cli/verbs.h"

#define STATE_PATH      "/api/edge/state"
#define MAX_STATE_BYTES (16u << 20)
#define TIMEOUT_MS      5000
#define PLAIN_COLUMNS   160

static void on_interrupt(int number)
{
    (void)number;
    _exit(130);
}

/* What is no state comes from a server of others, whatever is wrong with it. */
static enum dse_status parse_state(const char *url, const struct dse_buffer *body, json_t **state,
                                   struct dse_error *err)
{
    struct dse_error why = {0};
    enum dse_status status = dse_json_parse(dse_buffer_text(body), body->length, "body", state, &why);
    if (status == DSE_ERR_NO_MEMORY) return dse_fail(err, status, "%s", why.message);
    if (status == DSE_OK && json_is_string(json_object_get(*state, "status"))) return DSE_OK;
    json_decref(*state);
    *state = NULL;
    return dse_fail(err, DSE_ERR_ADDRESS, "%s answers " STATE_PATH " with no state (%s): is it a deepseek-edge server?",
                    url, status != DSE_OK ? why.message : "it has no status");
}

static enum dse_status look(const char *url, const char *key, const struct dse_http_wait *wait, json_t **state,
                            struct dse_error *err)
{
    struct dse_buffer body;
    int http = 0;
    *state = NULL;
    dse_buffer_init(&body, DSE_MEM_MISC, MAX_STATE_BYTES);
    enum dse_status status = dse_http_client_get(url, STATE_PATH, key, TIMEOUT_MS, wait, &http, &body, err);
    if (status == DSE_OK && http == 401) /* the server can be used: a value of the command line is wrong */
        status = dse_fail(err, DSE_ERR_INVALID, "%s wants a key: --api-key or DEEPSEEK_EDGE_API_KEY", url);
    else if (status == DSE_OK && http != 200)
        status = dse_fail(err, DSE_ERR_ADDRESS,
                          "%s answers " STATE_PATH " with status %d: is it a deepseek-edge server?", url, http);
    if (status == DSE_OK) status = parse_state(url, &body, state, err);
    dse_buffer_deinit(&body);
    return status;
}

static void accept_state(struct dse_top_view *view, json_t *state)
{
    json_decref(view->before);
    view->before = view->now;
    view->now = state;
    dse_top_remember(view);
}

/* ---- without a terminal --------------------------------------------------------------------------------------- */

static enum dse_status print_plain(struct dse_top_view *view, bool json, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_MISC, 4u << 20);
    if (json)
        status = dse_print_json_line(json_incref(view->now), err);
    else
        dse_top_draw(view, &out);
    fwrite(dse_buffer_text(&out), 1, out.length, stdout);
    if (status == DSE_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = dse_fail(err, DSE_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    dse_buffer_deinit(&out);
    return status;
}

static enum dse_status run_plain(struct dse_top_view *view, const char *key, bool json, bool once, int interval_ms,
                                 struct dse_error *err)
{
    for (bool first = true;; first = false) {
        json_t *state;
        enum dse_status status = look(view->url, key, NULL, &state, err);
        if (status != DSE_OK) return status;
        accept_state(view, state);
        if (!first && !json) fputc('\n', stdout);
        status = print_plain(view, json, err);
        if (status != DSE_OK || once) return status;
        if (poll(NULL, 0, interval_ms) < 0 && errno != EINTR) return dse_fail_errno(err, errno, "", "wait");
    }
}

/* ---- on a terminal -------------------------------------------------------------------------------------------- */

struct screen {
    struct dse_top_view *view;
    const char *key;
    bool colour, has_keys, is_paused, is_left;
    struct dse_error problem; /* of the last look */
};

static int screen_rows(struct dse_top_view *view)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
        view->columns = 80;
        return 24;
    }
    view->columns = size.ws_col;
    return size.ws_row;
}

static void put_foot(const struct screen *screen, struct dse_buffer *out)
{
    struct dse_buffer foot;
    dse_buffer_init(&foot, DSE_MEM_MISC, 65536);
    if (screen->problem.message[0] != '\0')
        dse_buffer_puts(&foot, screen->problem.message);
    else
        dse_buffer_printf(&foot, "q quit   p %s   s sort: %s", screen->is_paused ? "go on (paused)" : "pause",
                          dse_top_sort_name(screen->view->sort));
    dse_top_put_text(out, dse_buffer_text(&foot), screen->view->columns);
    dse_buffer_deinit(&foot);
}

static void put_screen(const struct screen *screen)
{
    const bool colour = screen->colour;
    const int rows = screen_rows(screen->view);
    struct dse_buffer picture, out;
    dse_buffer_init(&picture, DSE_MEM_MISC, 4u << 20);
    dse_buffer_init(&out, DSE_MEM_MISC, 8u << 20);
    dse_top_draw(screen->view, &picture);
    dse_buffer_puts(&out, "\033[H");
    int line = 0;
    for (const char *at = dse_buffer_text(&picture); *at != '\0' && line < rows - 1; line++) {
        size_t n = strcspn(at, "\n");
        dse_buffer_puts(&out, colour && line == 0 ? "\033[1m" : "");
        dse_buffer_append(&out, at, n);
        dse_buffer_puts(&out, colour && line == 0 ? "\033[0m\033[K\r\n" : "\033[K\r\n");
        at += n + 1;
    }
    dse_buffer_puts(&out, "\033[J");
    dse_buffer_printf(&out, "\033[%d;1H%s", rows, colour ? "\033[2m" : "");
    put_foot(screen, &out);
    dse_buffer_puts(&out, colour ? "\033[0m\033[K" : "\033[K");
    fwrite(dse_buffer_text(&out), 1, out.length, stdout);
    fflush(stdout);
    dse_buffer_deinit(&picture);
    dse_buffer_deinit(&out);
}

static void take_key(struct screen *screen)
{
    char key;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n < 0 && errno == EINTR) return;
    if (n != 1)
        screen->has_keys = false; /* there is no more input */
    else if (key == 'q' || key == 'Q')
        screen->is_left = true;
    else if (key == 'p')
        screen->is_paused = !screen->is_paused;
    else if (key == 's')
        screen->view->sort = (screen->view->sort + 1) % DSE_TOP_SORT_COUNT;
}

/* A struct dse_http_wait that takes keys meanwhile, and draws anew after them and after signals. */
static int wait_with_keys(void *context, struct pollfd *waited, int timeout_ms)
{
    struct screen *screen = context;
    struct pollfd both[] = {*waited, {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
    int n = poll(both, 2, timeout_ms);
    const int error = errno;
    if (n > 0 && both[1].revents != 0) take_key(screen);
    if (screen->is_left) return errno = ECANCELED, -1;
    if (n < 0 || both[1].revents != 0) put_screen(screen);
    errno = error;
    return n < 0 ? -1 : both[0].revents != 0;
}

static void run_screen(struct screen *screen, int interval_ms)
{
    const struct dse_http_wait wait = {wait_with_keys, screen};
    struct dse_top_view *view = screen->view;
    const uint64_t interval_ns = (uint64_t)interval_ms * 1000000;
    uint64_t next_ns = dse_clock_ns() + interval_ns;
    put_screen(screen);
    while (!screen->is_left) {
        uint64_t now_ns = dse_clock_ns();
        if (now_ns < next_ns) {
            struct pollfd nothing = {.fd = -1};
            (void)wait_with_keys(screen, &nothing, (int)((next_ns - now_ns) / 1000000) + 1);
            continue;
        }
        next_ns = now_ns + interval_ns;
        if (screen->is_paused) continue;
        struct dse_error problem = {0};
        json_t *state;
        if (look(view->url, screen->key, &wait, &state, &problem) == DSE_OK) accept_state(view, state);
        view->is_stale = problem.status != DSE_OK;
        screen->problem = problem;
        if (!screen->is_left) put_screen(screen);
    }
}

enum dse_status dse_verb_top(const struct dse_options *options, struct dse_error *err)
{
    const struct dse_option_value *keys = &options->values[DSE_OPT_API_KEY];
    const char *key = keys->count > 0 ? keys->list[0] : NULL, *term = getenv("TERM");
    const bool json = dse_opt_flag(options, DSE_OPT_JSON), once = dse_opt_flag(options, DSE_OPT_ONCE);
    const int interval_ms = (int)(dse_opt_real(options, DSE_OPT_INTERVAL) * 1000);
    struct dse_top_view view = {.url = dse_opt_text(options, DSE_OPT_URL), .columns = PLAIN_COLUMNS};
    view.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    const struct sigaction interrupt = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &interrupt, NULL);

    enum dse_status status = DSE_OK;
    bool on_screen = !json && !once && isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    if (on_screen) {
        json_t *state; /* before the screen is taken: whether anybody answers */
        status = look(view.url, key, NULL, &state, err);
        if (status == DSE_OK) {
            struct screen screen = {.view = &view, .key = key};
            accept_state(&view, state);
            screen.colour = dse_terminal_colour(dse_opt_text(options, DSE_OPT_COLOR), STDOUT_FILENO);
            screen.has_keys = dse_top_terminal_take();
            run_screen(&screen, interval_ms);
            dse_top_terminal_give_back();
        }
    } else {
        status = run_plain(&view, key, json, once, interval_ms, err);
    }
    json_decref(view.before);
    json_decref(view.now);
    return status;
}

/* `top`: looks at a running server at intervals. On a terminal a picture that is drawn anew, with keys; elsewhere plain
 * text or lines of JSON, without any escape sequence. The terminal is put back however it ends, but for SIGKILL. */
#include <errno.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/http_client.h"
#include "cli/json_out.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "cli/top_draw.h"
#include "cli/verbs.h"

#define STATE_PATH      "/api/edge/state"
#define MAX_STATE_BYTES (16u << 20)
#define TIMEOUT_MS      5000
#define PLAIN_COLUMNS   160

#define ENTER_SCREEN "\033[?1049h\033[?25l"
#define LEAVE_SCREEN "\033[?25h\033[?1049l"

static volatile sig_atomic_t ended_by; /* signal */

static void on_signal(int number)
{
    if (number != SIGWINCH) ended_by = number;
}

static enum dse_status look(const char *url, const char *key, json_t **state, struct dse_error *err)
{
    struct dse_buffer body;
    int http = 0;
    *state = NULL;
    dse_buffer_init(&body, DSE_MEM_MISC, MAX_STATE_BYTES);
    enum dse_status status = dse_http_client_get(url, STATE_PATH, key, TIMEOUT_MS, &http, &body, err);
    if (status == DSE_OK && http == 401)
        status = dse_fail(err, DSE_ERR_INVALID, "%s wants a key: --api-key or DEEPSEEK_EDGE_API_KEY", url);
    else if (status == DSE_OK && http != 200)
        status = dse_fail(err, DSE_ERR_ADDRESS,
                          "%s answers " STATE_PATH " with status %d: is it a deepseek-edge server?", url, http);
    if (status == DSE_OK) status = dse_json_parse(dse_buffer_text(&body), body.length, STATE_PATH, state, err);
    if (status == DSE_OK && !json_is_object(*state)) {
        json_decref(*state);
        *state = NULL;
        status = dse_fail(err, DSE_ERR_ADDRESS, "%s: " STATE_PATH " is not a JSON object", url);
    }
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
    if (json) {
        enum dse_status status = dse_print_json_line(json_incref(view->now), err);
        if (status == DSE_OK && fflush(stdout) != 0)
            status = dse_fail(err, DSE_ERR_IO, "cannot write to standard output");
        return status;
    }
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_MISC, 4u << 20);
    dse_top_draw(view, &out);
    bool ok = fwrite(dse_buffer_text(&out), 1, out.length, stdout) == out.length && fflush(stdout) == 0;
    dse_buffer_deinit(&out);
    return ok ? DSE_OK : dse_fail(err, DSE_ERR_IO, "cannot write to standard output");
}

static enum dse_status run_plain(struct dse_top_view *view, const char *key, bool json, bool once, int interval_ms,
                                 struct dse_error *err)
{
    for (bool first = true;; first = false) {
        json_t *state;
        enum dse_status status = look(view->url, key, &state, err);
        if (status != DSE_OK) return status;
        accept_state(view, state);
        if (!first && !json) fputc('\n', stdout);
        status = print_plain(view, json, err);
        if (status != DSE_OK || once) return status;
        if (poll(NULL, 0, interval_ms) < 0 && errno != EINTR) return dse_fail_errno(err, errno, "", "wait");
        if (ended_by != 0) return dse_fail(err, DSE_ERR_CANCELLED, "interrupted");
    }
}

/* ---- on a terminal -------------------------------------------------------------------------------------------- */

static void put_screen(const struct dse_top_view *view, const char *problem, bool paused, bool colour, int rows)
{
    struct dse_buffer picture, out;
    dse_buffer_init(&picture, DSE_MEM_MISC, 4u << 20);
    dse_buffer_init(&out, DSE_MEM_MISC, 8u << 20);
    dse_top_draw(view, &picture);
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
    struct dse_buffer foot;
    dse_buffer_init(&foot, DSE_MEM_MISC, 4096);
    if (problem[0] != '\0') dse_put_safely(&foot, problem, strcspn(problem, "\n"));
    if (problem[0] == '\0')
        dse_buffer_printf(&foot, "q quit   p %s   s sort: %s", paused ? "go on (paused)" : "pause",
                          dse_top_sort_name(view->sort));
    dse_buffer_append(&out, dse_buffer_text(&foot), strnlen(dse_buffer_text(&foot), (size_t)view->columns));
    dse_buffer_puts(&out, colour ? "\033[0m\033[K" : "\033[K");
    fwrite(dse_buffer_text(&out), 1, out.length, stdout);
    fflush(stdout);
    dse_buffer_deinit(&foot);
    dse_buffer_deinit(&picture);
    dse_buffer_deinit(&out);
}

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

/* A key, 0 after the time or a signal, -1 when there is no more input. */
static int read_key(int timeout_ms)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;
    if (poll(&input, 1, timeout_ms) <= 0) return 0;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    return n == 1 ? (unsigned char)key : n < 0 && errno == EINTR ? 0 : -1;
}

static void run_screen(struct dse_top_view *view, const char *key, bool colour, int interval_ms)
{
    struct dse_error err = {0};
    bool paused = false, keys = true;
    uint64_t next_ns = dse_clock_ns() + (uint64_t)interval_ms * 1000000;
    while (ended_by == 0) {
        put_screen(view, err.message, paused, colour, screen_rows(view));
        uint64_t now = dse_clock_ns();
        int wait_ms = next_ns > now ? (int)((next_ns - now) / 1000000) + 1 : 0;
        int pressed = 0;
        if (keys)
            pressed = read_key(wait_ms);
        else
            poll(NULL, 0, wait_ms);
        if (pressed == 'q' || pressed == 'Q') return;
        if (pressed == 'p') paused = !paused;
        if (pressed == 's') view->sort = (view->sort + 1) % DSE_TOP_SORT_COUNT;
        if (pressed < 0) keys = false;
        if (dse_clock_ns() < next_ns) continue;
        next_ns = dse_clock_ns() + (uint64_t)interval_ms * 1000000;
        json_t *state;
        if (paused) continue;
        err.message[0] = '\0';
        if (look(view->url, key, &state, &err) == DSE_OK) accept_state(view, state);
    }
}

static void on_terminal(struct dse_top_view *view, const char *key, bool colour, int interval_ms)
{
    struct termios before, raw;
    bool input = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
    if (input) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* to be stopped with the screen taken would leave it so */
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs(ENTER_SCREEN, stdout);
    run_screen(view, key, colour, interval_ms);
    fputs(LEAVE_SCREEN, stdout);
    fflush(stdout);
    if (input) tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

enum dse_status dse_verb_top(const struct dse_options *options, struct dse_error *err)
{
    const struct dse_option_value *keys = &options->values[DSE_OPT_API_KEY];
    const char *key = keys->count > 0 ? keys->list[0] : NULL, *term = getenv("TERM");
    const bool json = dse_opt_flag(options, DSE_OPT_JSON), once = dse_opt_flag(options, DSE_OPT_ONCE);
    const int interval_ms = (int)(dse_opt_real(options, DSE_OPT_INTERVAL) * 1000);
    struct dse_top_view view = {.url = dse_opt_text(options, DSE_OPT_URL), .columns = PLAIN_COLUMNS};
    view.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    struct sigaction action = {.sa_handler = on_signal};
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL); /* no SA_RESTART: a wait in progress returns */

    enum dse_status status = DSE_OK;
    bool screen = !json && !once && isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    if (screen) {
        json_t *state; /* before the screen is taken: whether anybody answers */
        status = look(view.url, key, &state, err);
        if (status == DSE_OK) {
            accept_state(&view, state);
            on_terminal(&view, key, dse_terminal_colour(dse_opt_text(options, DSE_OPT_COLOR), STDOUT_FILENO),
                        interval_ms);
        }
    } else {
        status = run_plain(&view, key, json, once, interval_ms, err);
    }
    json_decref(view.before);
    json_decref(view.now);
    if (ended_by == SIGTERM || ended_by == SIGHUP) {
        signal(ended_by, SIG_DFL);
        raise(ended_by); /* ended as by default, with the terminal put back */
    }
    if (status == DSE_OK && ended_by == SIGINT) status = dse_fail(err, DSE_ERR_CANCELLED, "interrupted");
    return status;
}

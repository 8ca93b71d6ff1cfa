/* The server without an engine: what answers while a model loads, limits with short clocks, refusals at start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/errors.h"
#include "server/server.h"

static struct dse_server *start(const struct dse_server_options *options)
{
    struct dse_server *server = NULL;
    struct dse_error err;
    if (dse_server_start(options, &server, &err) != DSE_OK) fail_msg("%s", err.message);
    return server;
}

static struct dse_server_options quick_options(void)
{
    struct dse_server_options options = dse_server_options_default;
    options.port = 0;
    options.idle_ms = 300;
    options.body_ms = 300;
    return options;
}

static int connect_to(const struct dse_server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)dse_server_port(server))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Reads until the other side closes or the time is over; false: still open. */
static bool read_to_end(int fd, char *out, size_t max, int timeout_ms)
{
    size_t n = 0;
    uint64_t end = dse_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    out[0] = '\0';
    while (dse_clock_ns() < end && n + 1 < max) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0) continue;
        ssize_t got = recv(fd, out + n, max - 1 - n, 0);
        if (got <= 0) return true;
        n += (size_t)got;
        out[n] = '\0';
    }
    return false;
}

static void ask(const struct dse_server *server, const char *request, char *answer, size_t max)
{
    int fd = connect_to(server);
    send_text(fd, request);
    assert_true(read_to_end(fd, answer, max, 5000));
    close(fd);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

static void health_models_and_metrics_answer_before_a_model_is_there(void **state)
{
    char answer[16384];
    struct dse_server_options options = quick_options();
    struct dse_server *server = start(&options);
    ask(server, GET("/health"), answer, sizeof answer);
    assert_non_null(strstr(answer, " 200 "));
    assert_non_null(strstr(answer, "loading"));
    ask(server, GET("/v1/models"), answer, sizeof answer);
    assert_non_null(strstr(answer, " 200 "));
    ask(server, GET("/metrics"), answer, sizeof answer);
    assert_non_null(strstr(answer, "deepseek_edge_ready 0"));
    ask(server, GET("/ready"), answer, sizeof answer);
    assert_non_null(strstr(answer, " 503 "));
    assert_non_null(strstr(answer, "Retry-After"));
    dse_server_stop(server);
}

static void what_needs_the_model_is_refused_as_loading_before_it_is_there(void **state)
{
    static const char *const lines[] = {
        "POST /v1/chat/completions",
        "POST /chat/completions",
        "POST /beta/completions",
        "POST /v1/completions",
        "POST /tokenize",
        "POST /v1/detokenize",
        "POST /apply-template",
        "GET /slots",
    };
    struct dse_server_options options = quick_options();
    struct dse_server *server = start(&options);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char request[256], answer[4096];
        snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", lines[i],
                 lines[i][0] == 'P' ? "Content-Length: 2\r\n\r\n{}" : "\r\n");
        ask(server, request, answer, sizeof answer);
        assert_non_null(strstr(answer, "HTTP/1.1 503 "));
        assert_non_null(strstr(answer, "\r\nRetry-After: 2\r\n"));
        assert_non_null(strstr(answer, "\"type\":\"server_error\""));
        assert_non_null(strstr(answer, "\"code\":\"loading\""));
    }
    dse_server_stop(server);
}

/* A failure of every kind: the three parts of what clients see belong together. */
static void every_status_is_answered_with_the_code_of_its_http_status(void **state)
{
    static const struct {
        int http;
        const char *type, *codes[3]; /* "" for none */
    } known[] = {
        {400, "invalid_request_error", {""}},
        {404, "not_found_error", {""}},
        {429, "rate_limit_exceeded", {"rate_limit_exceeded"}},
        {500, "server_error", {""}},
        {501, "not_supported_error", {""}},
        {503, "server_error", {"unavailable", "draining"}},
    };
    for (int status = DSE_OK + 1; status < DSE_STATUS_COUNT; status++) {
        struct dse_error err;
        bool found = false;
        dse_fail_at(&err, (enum dse_status)status, "field", -1, "it failed");
        struct dse_api_error error = dse_api_error_from(&err);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (known[i].http != error.http) continue;
            assert_string_equal(error.type, known[i].type);
            for (int c = 0; c < 3 && known[i].codes[c]; c++)
                found |= strcmp(error.code ? error.code : "", known[i].codes[c]) == 0;
        }
        if (!found) fail_msg("%s is answered with %d %s", dse_status_name(err.status), error.http, error.code);
        assert_int_equal(error.param != NULL, error.http == 400);
    }
    struct dse_error err;
    dse_fail(&err, DSE_ERR_CANCELLED, "generation ended early"); /* by whom, if the client still reads */
    struct dse_api_error error = dse_api_error_from(&err);
    assert_int_equal(error.http, 503);
    assert_string_equal(error.code, "draining");
    assert_string_equal(error.message, "the server is shutting down");
}

static void a_header_sent_byte_by_byte_is_cut_off(void **state)
{
    char answer[1024];
    struct dse_server_options options = quick_options();
    struct dse_server *server = start(&options);
    int fd = connect_to(server);
    bool closed = false;
    for (int i = 0; i < 100 && !closed; i++) {
        (void)!send(fd, "G", 1, MSG_NOSIGNAL);
        closed = read_to_end(fd, answer, sizeof answer, 30);
    }
    assert_true(closed);
    close(fd);
    dse_server_stop(server);
}

static void idle_and_half_sent_connections_are_closed_in_time(void **state)
{
    static const char *const beginnings[] = {
        "", "GET /health HT", GET("/health"),
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"};
    struct dse_server_options options = quick_options();
    struct dse_server *server = start(&options);
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        char answer[4096];
        int fd = connect_to(server);
        send_text(fd, beginnings[i]);
        assert_true(read_to_end(fd, answer, sizeof answer, 3000));
        close(fd);
    }
    dse_server_stop(server);
}

static void an_address_beyond_loopback_needs_a_key_or_consent(void **state)
{
    struct dse_server_options options = quick_options();
    struct dse_server *server = NULL;
    struct dse_error err;
    const char *key = "secret";
    options.host = "0.0.0.0";
    assert_int_equal(dse_server_start(&options, &server, &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "--api-key"));
    assert_non_null(strstr(err.message, "--insecure"));
    options.insecure = true;
    dse_server_stop(start(&options));
    options.insecure = false;
    options.api_keys = &key;
    options.n_api_keys = 1;
    dse_server_stop(start(&options));
}

static void a_port_in_use_and_a_bad_host_are_address_errors(void **state)
{
    struct dse_server_options options = quick_options();
    struct dse_server *other = NULL, *server = start(&options);
    struct dse_error err;
    options.port = dse_server_port(server);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, "--port"));
    options.port = 70000;
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_INVALID);
    options.port = 0;
    options.host = "no such host";
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    dse_server_stop(server);
}

static void a_unix_socket_serves_and_is_removed(void **state)
{
    char answer[4096], path[64];
    struct dse_server_options options = quick_options();
    snprintf(path, sizeof path, "/tmp/dse-test-%d.sock", (int)getpid());
    options.uds = path;
    struct dse_server *server = start(&options);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    send_text(fd, GET("/health"));
    assert_true(read_to_end(fd, answer, sizeof answer, 5000));
    assert_non_null(strstr(answer, " 200 "));
    close(fd);
    dse_server_stop(server);
    assert_int_equal(access(path, F_OK), -1);
}

static void draining_an_idle_server_ends_at_once(void **state)
{
    char answer[4096];
    struct dse_server_options options = quick_options();
    struct dse_server *server = start(&options);
    assert_true(dse_server_drain(server, 5000));
    ask(server, GET("/ready"), answer, sizeof answer);
    assert_non_null(strstr(answer, "draining"));
    dse_server_stop(server);
}

static void open_connections_do_not_keep_the_server_from_stopping(void **state)
{
    struct dse_server_options options = quick_options();
    options.idle_ms = options.body_ms = 60000;
    size_t before = dse_mem_live_bytes(DSE_MEM_SERVER);
    struct dse_server *server = start(&options);
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = connect_to(server);
        send_text(fds[i], i % 2 ? GET("/health") : "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Le");
    }
    usleep(100000);
    dse_server_stop(server);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_SERVER), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_models_and_metrics_answer_before_a_model_is_there),
        cmocka_unit_test(what_needs_the_model_is_refused_as_loading_before_it_is_there),
        cmocka_unit_test(every_status_is_answered_with_the_code_of_its_http_status),
        cmocka_unit_test(a_header_sent_byte_by_byte_is_cut_off),
        cmocka_unit_test(idle_and_half_sent_connections_are_closed_in_time),
        cmocka_unit_test(an_address_beyond_loopback_needs_a_key_or_consent),
        cmocka_unit_test(a_port_in_use_and_a_bad_host_are_address_errors),
        cmocka_unit_test(a_unix_socket_serves_and_is_removed),
        cmocka_unit_test(draining_an_idle_server_ends_at_once),
        cmocka_unit_test(open_connections_do_not_keep_the_server_from_stopping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

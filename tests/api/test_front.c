/* The server without an engine: what answers while a model loads, limits with short clocks, refusals at start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/errors.h"
#include "server/http.h"
#include "server/listen.h"
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
    static char answer[128 * 1024];
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
        {400, "invalid_request_error", {"", "context_length_exceeded"}},
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
    const struct dse_api_key key = {.text = "secret"};
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

/* The name "many.test" has these addresses; all others are the system's. A "-" before one: of a family that is not there,
 * as IPv6 where it is off. */
static const char *const *many_addresses;
static struct addrinfo many_infos[4];

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    static struct sockaddr_storage storage[4];
    __typeof__(getaddrinfo) *real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(node, "many.test") != 0) return real(node, service, hints, out);
    for (int i = 0; many_addresses[i]; i++) {
        struct addrinfo *one;
        bool off = many_addresses[i][0] == '-';
        assert_int_equal(real(many_addresses[i] + off, service, hints, &one), 0);
        memcpy(&storage[i], one->ai_addr, one->ai_addrlen);
        many_infos[i] = (struct addrinfo){.ai_family = off ? AF_MAX : one->ai_family,
                                          .ai_socktype = SOCK_STREAM,
                                          .ai_addrlen = one->ai_addrlen,
                                          .ai_addr = (struct sockaddr *)&storage[i],
                                          .ai_next = many_addresses[i + 1] ? &many_infos[i + 1] : NULL};
        freeaddrinfo(one);
    }
    *out = many_infos;
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    __typeof__(freeaddrinfo) *real;
    *(void **)&real = dlsym(RTLD_NEXT, "freeaddrinfo");
    if (list != many_infos) real(list);
}

/* 192.0.2.0/24 is of no machine. */
static void a_name_with_several_addresses_is_tried_until_one_can_be_had(void **state)
{
    char answer[4096];
    struct dse_server_options options = quick_options();
    struct dse_server *server = NULL, *other = NULL;
    struct dse_error err;
    options.host = "many.test";
    many_addresses = (const char *const[]){"-::1", "127.0.0.1", "192.0.2.1", NULL};
    server = start(&options);
    ask(server, GET("/health"), answer, sizeof answer);
    assert_non_null(strstr(answer, " 200 "));

    /* Never past one that somebody uses: whoever comes by the name would reach him. */
    many_addresses = (const char *const[]){"127.0.0.1", "127.0.0.2", NULL};
    options.port = dse_server_port(server);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, "--port"));
    many_addresses = (const char *const[]){"-::1", "127.0.0.1", "127.0.0.2", NULL};
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, "--port"));
    dse_server_stop(server);

    /* Never on to one that needs a key. */
    options.port = 0;
    many_addresses = (const char *const[]){"-::1", "192.0.2.1", "127.0.0.1", NULL};
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    many_addresses = (const char *const[]){"192.0.2.1", "127.0.0.1", NULL};
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_INVALID);
    assert_non_null(strstr(err.message, "--api-key"));
    options.insecure = true;
    server = start(&options);
    ask(server, GET("/health"), answer, sizeof answer);
    assert_non_null(strstr(answer, " 200 "));
    dse_server_stop(server);
    many_addresses = (const char *const[]){"192.0.2.1", "-::1", NULL};
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, "many.test"));
}

/* It stays when a server ends. */
static void remove_lock(const char *path)
{
    char lock[80];
    snprintf(lock, sizeof lock, "%s.lock", path);
    assert_int_equal(unlink(lock), 0);
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
    remove_lock(path);
}

static void a_unix_socket_that_is_served_is_refused_and_a_stale_one_replaced(void **state)
{
    char path[64];
    struct dse_server_options options = quick_options();
    struct dse_server *server, *other = NULL;
    struct dse_error err;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    snprintf(path, sizeof path, "/tmp/dse-stale-%d.sock", (int)getpid());
    memcpy(address.sun_path, path, sizeof path);
    options.uds = path;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd); /* the file stays */
    mode_t mask = umask(0);
    server = start(&options);
    assert_int_equal(umask(mask), 0); /* left alone */
    assert_int_equal(lstat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, "another server"));
    assert_int_equal(access(path, F_OK), 0);

    /* Somebody else's file of that name is not ours to remove. */
    assert_int_equal(unlink(path), 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    dse_server_stop(server);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS); /* no socket: never removed */
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    remove_lock(path);
}

static void an_empty_socket_path_is_refused(void **state)
{
    struct dse_server_options options = quick_options();
    struct dse_server *server = NULL;
    struct dse_error err;
    options.uds = "";
    assert_int_equal(dse_server_start(&options, &server, &err), DSE_ERR_INVALID);
    assert_string_equal(err.file, "uds");
    assert_non_null(strstr(err.message, "empty"));
}

static void what_others_can_lock_stops_no_unix_socket(void **state)
{
    char path[64], lock[80], elsewhere[80];
    struct dse_server_options options = quick_options();
    struct dse_server *server, *other = NULL;
    struct dse_error err;
    struct stat info;
    snprintf(path, sizeof path, "/tmp/dse-lock-%d.sock", (int)getpid());
    snprintf(lock, sizeof lock, "%s.lock", path);
    snprintf(elsewhere, sizeof elsewhere, "%s.elsewhere", path);
    options.uds = path;
    int folder = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(folder, LOCK_SH), 0);
    server = start(&options);
    dse_server_stop(server);
    assert_int_equal(access(path, F_OK), -1);
    close(folder);
    assert_int_equal(lstat(lock, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);

    /* Nor is the lock taken on what others may have put there or can open. */
    assert_int_equal(chmod(lock, 0644), 0);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_non_null(strstr(err.message, lock));
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkfifo(lock, 0600), 0);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(symlink(elsewhere, lock), 0);
    assert_int_equal(dse_server_start(&options, &other, &err), DSE_ERR_ADDRESS);
    assert_int_equal(access(elsewhere, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
    remove_lock(path);
}

#define RACERS 4

/* One of several that start, or one that ends, on the same path. */
struct racer {
    pthread_barrier_t *start;
    const char *path;
    bool ends;
    struct dse_listener listener;
    enum dse_status status;
    struct dse_error err;
};

static void *race(void *argument)
{
    struct racer *racer = argument;
    struct dse_server_options options = quick_options();
    options.uds = racer->path;
    pthread_barrier_wait(racer->start);
    if (racer->ends)
        dse_listener_deinit(&racer->listener);
    else
        racer->status = dse_listen(&options, &racer->listener, &racer->err);
    return NULL;
}

static void run_race(struct racer *racers, int n)
{
    pthread_barrier_t start;
    pthread_t threads[RACERS];
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        racers[i].start = &start;
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
}

static bool is_served(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool served = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return served;
}

static void of_servers_that_start_on_one_stale_socket_one_wins(void **state)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/dse-race-%d.sock", (int)getpid());
    for (int round = 0; round < 300; round++) { /* the first finds no file, the others a stale one */
        struct racer racers[RACERS] = {0};
        int n_won = 0;
        for (int i = 0; i < RACERS; i++)
            racers[i].path = path;
        run_race(racers, RACERS);
        for (int i = 0; i < RACERS; i++) {
            n_won += racers[i].status == DSE_OK;
            if (racers[i].status == DSE_OK) continue;
            assert_int_equal(racers[i].status, DSE_ERR_ADDRESS);
            assert_non_null(strstr(racers[i].err.message, path));
            assert_non_null(strstr(racers[i].err.message, "another server"));
        }
        assert_int_equal(n_won, 1);
        assert_true(is_served(path));
        for (int i = 0; i < RACERS; i++) {
            if (racers[i].status == DSE_OK) close(racers[i].listener.fd);
            racers[i].listener.inode = 0; /* as if it were killed: the file stays */
            dse_listener_deinit(&racers[i].listener);
        }
        assert_false(is_served(path));
    }
    assert_int_equal(unlink(path), 0);
    remove_lock(path);
}

static void a_server_that_ends_takes_nothing_from_one_that_starts(void **state)
{
    char path[64];
    struct racer old = {0};
    snprintf(path, sizeof path, "/tmp/dse-next-%d.sock", (int)getpid());
    old.path = path;
    run_race(&old, 1);
    for (int round = 0; round < 300; round++) {
        struct racer racers[2] = {{.path = path}, old};
        assert_int_equal(old.status, DSE_OK);
        racers[1].ends = true;
        close(old.listener.fd);
        run_race(racers, 2);
        assert_true(is_served(path));
        old = racers[0];
    }
    close(old.listener.fd);
    dse_listener_deinit(&old.listener);
    assert_int_equal(access(path, F_OK), -1);
    remove_lock(path);
}

static void a_client_that_ends_within_its_request_is_let_go_at_once(void **state)
{
    static const char *const beginnings[] = {
        "", "GET", "GET /health HTTP/1.1\r\nHost: loc",
        "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
        "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"};
    struct dse_server_options options = quick_options();
    options.idle_ms = options.body_ms = 60000;
    struct dse_server *server = start(&options);
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        char answer[4096];
        int fd = connect_to(server);
        send_text(fd, beginnings[i]);
        shutdown(fd, SHUT_WR);
        assert_true(read_to_end(fd, answer, sizeof answer, 10000));
        close(fd);
    }
    dse_server_stop(server);
}

static void blank_keys_are_refused(void **state)
{
    static const char *const blanks[] = {"", " ", "\t", " \r\n"};
    struct dse_server_options options = quick_options();
    struct dse_server *server = NULL;
    struct dse_error err;
    for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++) {
        const struct dse_api_key key = {.text = blanks[i]};
        options.api_keys = &key;
        options.n_api_keys = 1;
        assert_int_equal(dse_server_start(&options, &server, &err), DSE_ERR_INVALID);
    }
}

/* A handler that streams: three pieces, the second and third larger than the limit on unread bytes. */
struct pieces {
    char *large;
    size_t bytes;
    atomic_int taken; /* pieces, -1: not yet asked */
    bool wait;
    atomic_size_t got; /* by the client */
};

static void ignore_exchange(void *user, struct dse_http_exchange *x)
{
}

static void ignore_refusal(void *user, struct dse_http_exchange *x, int status, const char *message)
{
    dse_http_respond(x, status, NULL, NULL, 0);
}

static void stream_pieces(void *user, struct dse_http_exchange *x)
{
    struct pieces *pieces = user;
    dse_http_begin_stream(x, "text/plain", NULL);
    int taken = dse_http_write(x, "first", 5) == DSE_OK;
    taken += dse_http_write(x, pieces->large, pieces->bytes) == DSE_OK;
    while (pieces->wait && atomic_load(&pieces->got) < pieces->bytes) /* as long as a healthy reader needs */
        usleep(1000);
    taken += dse_http_write(x, pieces->large, pieces->bytes) == DSE_OK;
    dse_http_end_stream(x, "");
    atomic_store(&pieces->taken, taken);
}

static void a_large_piece_of_a_stream_is_no_sign_of_a_slow_reader(void **state)
{
    for (int reads = 0; reads < 2; reads++) {
        struct pieces pieces = {.bytes = 16u << 20, .wait = reads};
        struct sockaddr_in address = {.sin_family = AF_INET};
        socklen_t length = sizeof address;
        struct dse_http *http = NULL;
        struct dse_error err;
        atomic_init(&pieces.taken, -1);
        pieces.large = calloc(1, pieces.bytes);
        memset(pieces.large, 'x', pieces.bytes);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(listen(listener, 5), 0);
        assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
        struct dse_http_options options = {.max_body_bytes = 1000,
                                           .max_header_bytes = 10000,
                                           .max_headers = 100,
                                           .max_connections = 10,
                                           .max_queue_bytes = 1000,
                                           .idle_ms = 60000,
                                           .body_ms = 60000,
                                           .ping_ms = 60000,
                                           .n_workers = 1,
                                           .on_begin = ignore_exchange,
                                           .on_headers = ignore_exchange,
                                           .on_request = stream_pieces,
                                           .on_refused = ignore_refusal,
                                           .user = &pieces};
        assert_int_equal(dse_http_start(listener, &options, &http, &err), DSE_OK);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        send_text(fd, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        static char part[65536];
        for (ssize_t n = 1; reads && n > 0; atomic_fetch_add(&pieces.got, n > 0 ? (size_t)n : 0))
            n = recv(fd, part, sizeof part, 0);
        while (atomic_load(&pieces.taken) < 0)
            usleep(1000);
        /* One who reads gets everything; one who does not is cut off when more is to come. */
        assert_int_equal(atomic_load(&pieces.taken), reads ? 3 : 2);
        if (reads) assert_true(atomic_load(&pieces.got) > 2 * pieces.bytes);
        close(fd);
        dse_http_abandon_all(http);
        dse_http_stop(http);
        free(pieces.large);
    }
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
        cmocka_unit_test(a_name_with_several_addresses_is_tried_until_one_can_be_had),
        cmocka_unit_test(a_unix_socket_serves_and_is_removed),
        cmocka_unit_test(a_unix_socket_that_is_served_is_refused_and_a_stale_one_replaced),
        cmocka_unit_test(an_empty_socket_path_is_refused),
        cmocka_unit_test(what_others_can_lock_stops_no_unix_socket),
        cmocka_unit_test(of_servers_that_start_on_one_stale_socket_one_wins),
        cmocka_unit_test(a_server_that_ends_takes_nothing_from_one_that_starts),
        cmocka_unit_test(a_client_that_ends_within_its_request_is_let_go_at_once),
        cmocka_unit_test(blank_keys_are_refused),
        cmocka_unit_test(a_large_piece_of_a_stream_is_no_sign_of_a_slow_reader),
        cmocka_unit_test(draining_an_idle_server_ends_at_once),
        cmocka_unit_test(open_connections_do_not_keep_the_server_from_stopping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Listening on TCP and Unix sockets (see listen.h). Called once, at start. */
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"

#define LOCK_POLL_MS 10
#define LOCK_WAIT_MS 2000 /* far longer than a server holds it */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static enum dse_status listen_on(const struct addrinfo *info, const char *host, int port, int *fd, bool *in_use,
                                 struct dse_error *err)
{
    int on = 1;
    *fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*fd, info->ai_addr, info->ai_addrlen) != 0 || listen(*fd, 511) != 0) {
        int error = errno;
        close(*fd);
        *in_use = error == EADDRINUSE;
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s port %d: %s%s", host, port, strerror(error),
                        *in_use ? "; choose another --port, or 0 for any free one" : "");
    }
    return DSE_OK;
}

/* The addresses of a name in the order that the system prefers, until one can be listened on: with IPv6 off,
 * "localhost" may still have ::1. A port in use ends it, for clients would reach whoever uses it; so does an address
 * that needs a key. */
static enum dse_status listen_on_first(const struct addrinfo *list, const char *host,
                                       const struct dse_server_options *options, struct dse_listener *listener,
                                       struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    for (const struct addrinfo *info = list; info != NULL; info = info->ai_next) {
        struct dse_error reason;
        listener->loopback = is_loopback(info->ai_addr);
        if (!listener->loopback && options->n_api_keys == 0 && !options->insecure) {
            if (info != list) break; /* what was wrong with the first is the better reason */
            return dse_fail_at(err, DSE_ERR_INVALID, "host", -1,
                               "refusing to listen on %s, which other machines can reach, without an API key; give "
                               "--api-key, or --insecure to allow it",
                               host);
        }
        bool in_use = false;
        status = listen_on(info, host, options->port, &listener->fd, &in_use, &reason);
        if (status == DSE_OK) return DSE_OK;
        if (err != NULL && (info == list || in_use)) *err = reason;
        if (in_use) break;
    }
    return status;
}

static enum dse_status listen_tcp(struct dse_listener *listener, const struct dse_server_options *options,
                                  struct dse_error *err)
{
    const char *host = options->host && options->host[0] ? options->host : "127.0.0.1";
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    if (options->port < 0 || options->port > 65535)
        return dse_fail_at(err, DSE_ERR_INVALID, "port", -1, "port must be from 0 to 65535, not %d", options->port);
    snprintf(service, sizeof service, "%d", options->port);
    int error = getaddrinfo(host, service, &hints, &list);
    if (error) return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", host, gai_strerror(error));
    enum dse_status status = listen_on_first(list, host, options, listener, err);
    freeaddrinfo(list);
    if (status != DSE_OK) return status;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {0};
    socklen_t length = sizeof bound;
    if (getsockname(listener->fd, &bound.any, &length) == 0)
        listener->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    snprintf(listener->url, sizeof listener->url, strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d", host,
             listener->port);
    return DSE_OK;
}

/* Locks "<path>.lock", so that one process at a time looks who listens on a socket, removes its file, or makes it and
 * listens. Nobody else can hold it: what another user may open is refused. The file stays, for to remove a lock's file
 * is to let two hold it. Freed by close. */
static enum dse_status lock_path(const char *path, int *fd, struct dse_error *err)
{
    char name[sizeof((struct sockaddr_un *)0)->sun_path + sizeof ".lock"];
    struct stat info;
    snprintf(name, sizeof name, "%s.lock", path);
    *fd = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (*fd < 0)
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: cannot lock %s: %s", path, name, strerror(errno));
    const char *problem = "is not a regular file that only this user can open; remove it";
    bool ours = fstat(*fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() && !(info.st_mode & 077);
    for (int waited_ms = 0; ours; waited_ms += LOCK_POLL_MS) {
        if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return DSE_OK;
        problem = errno == EWOULDBLOCK ? "is kept locked by another process" : strerror(errno);
        if (errno != EWOULDBLOCK || waited_ms >= LOCK_WAIT_MS) break;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_POLL_MS * 1000000}, NULL);
    }
    close(*fd);
    return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s %s", path, name, problem);
}

/* A socket's file stays when its server is killed; only one that nobody listens on may be removed. */
static enum dse_status remove_stale(const struct sockaddr_un *address, struct dse_error *err)
{
    struct stat old;
    if (lstat(address->sun_path, &old) != 0 || !S_ISSOCK(old.st_mode)) return DSE_OK; /* bind says what is wrong */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    int error = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    close(fd);
    if (error != ECONNREFUSED)
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", address->sun_path,
                        error == 0 || error == EAGAIN ? "another server listens on it" : strerror(error));
    unlink(address->sun_path);
    return DSE_OK;
}

/* Under the path's lock. */
static enum dse_status make_unix(struct dse_listener *listener, const struct sockaddr_un *address,
                                 struct dse_error *err)
{
    const char *path = address->sun_path;
    struct stat made;
    enum dse_status status = remove_stale(address, err);
    if (status != DSE_OK) return status;
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    /* The file gets the mode of the socket: it is never open to others, and the process's umask is left alone. */
    bool ok = fchmod(listener->fd, 0600) == 0 && bind(listener->fd, (struct sockaddr *)address, sizeof *address) == 0;
    if (ok && lstat(path, &made) == 0) {
        listener->device = made.st_dev;
        listener->inode = made.st_ino;
    }
    if (ok && listen(listener->fd, 511) == 0) return DSE_OK;
    int error = errno;
    close(listener->fd);
    return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", path, strerror(error));
}

static enum dse_status listen_unix(struct dse_listener *listener, const char *path, struct dse_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int lock;
    if (path[0] == '\0') /* the system would listen on a name that has no file, open to every user */
        return dse_fail_at(err, DSE_ERR_INVALID, "uds", -1, "the socket path (--uds) is empty");
    if (strlen(path) >= sizeof address.sun_path)
        return dse_fail_at(err, DSE_ERR_INVALID, "uds", -1, "the socket path is longer than %zu bytes",
                           sizeof address.sun_path - 1);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    listener->path = dse_strdup(DSE_MEM_SERVER, path);
    if (!listener->path) return dse_fail_memory(err, strlen(path), "the socket path");
    enum dse_status status = lock_path(path, &lock, err);
    if (status != DSE_OK) return status;
    status = make_unix(listener, &address, err);
    close(lock);
    if (status == DSE_OK) snprintf(listener->url, sizeof listener->url, "unix:%s", path);
    return status;
}

enum dse_status dse_listen(const struct dse_server_options *options, struct dse_listener *listener,
                           struct dse_error *err)
{
    return options->uds ? listen_unix(listener, options->uds, err) : listen_tcp(listener, options, err);
}

void dse_listener_deinit(struct dse_listener *listener)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat now;
    int lock;
    if (listener->path && listener->inode != 0 && lock_path(listener->path, &lock, NULL) == DSE_OK) {
        bool ours = lstat(listener->path, &now) == 0 && now.st_dev == listener->device && now.st_ino == listener->inode;
        snprintf(address.sun_path, sizeof address.sun_path, "%s", listener->path);
        /* The file of one who came after us may have got the number of ours. */
        if (ours) (void)!remove_stale(&address, NULL);
        close(lock);
    }
    dse_free(listener->path);
    listener->path = NULL;
}

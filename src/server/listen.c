/* Listening on TCP and Unix sockets (see listen.h). Called once, at start. */
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static enum dse_status listen_on(const struct addrinfo *info, const char *host, int port, int *fd,
                                 struct dse_error *err)
{
    int on = 1;
    *fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*fd, info->ai_addr, info->ai_addrlen) != 0 || listen(*fd, 511) != 0) {
        int error = errno;
        close(*fd);
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s port %d: %s%s", host, port, strerror(error),
                        error == EADDRINUSE ? "; choose another --port, or 0 for any free one" : "");
    }
    return DSE_OK;
}

static enum dse_status listen_tcp(struct dse_listener *listener, const struct dse_server_options *options,
                                  struct dse_error *err)
{
    const char *host = options->host && options->host[0] ? options->host : "127.0.0.1";
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *info = NULL;
    if (options->port < 0 || options->port > 65535)
        return dse_fail_at(err, DSE_ERR_INVALID, "port", -1, "port must be from 0 to 65535, not %d", options->port);
    snprintf(service, sizeof service, "%d", options->port);
    int error = getaddrinfo(host, service, &hints, &info);
    if (error) return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", host, gai_strerror(error));
    bool loopback = is_loopback(info->ai_addr);
    enum dse_status status = DSE_OK;
    if (!loopback && options->n_api_keys == 0 && !options->insecure)
        status = dse_fail_at(err, DSE_ERR_INVALID, "host", -1,
                             "refusing to listen on %s, which other machines can reach, without an API key; give "
                             "--api-key, or --insecure to allow it",
                             host);
    if (status == DSE_OK) status = listen_on(info, host, options->port, &listener->fd, err);
    freeaddrinfo(info);
    if (status != DSE_OK) return status;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {0};
    socklen_t length = sizeof bound;
    if (getsockname(listener->fd, &bound.any, &length) == 0)
        listener->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    listener->loopback = loopback;
    snprintf(listener->url, sizeof listener->url, strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d", host,
             listener->port);
    return DSE_OK;
}

/* A socket's file stays when its server is killed; only one that nobody listens on may be removed. */
static enum dse_status remove_stale(const struct sockaddr_un *address, struct dse_error *err)
{
    struct stat old, again;
    if (lstat(address->sun_path, &old) != 0 || !S_ISSOCK(old.st_mode)) return DSE_OK; /* bind says what is wrong */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    int error = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    close(fd);
    if (error != ECONNREFUSED)
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", address->sun_path,
                        error == 0 || error == EAGAIN ? "another server listens on it" : strerror(error));
    if (lstat(address->sun_path, &again) == 0 && again.st_dev == old.st_dev && again.st_ino == old.st_ino)
        unlink(address->sun_path);
    return DSE_OK;
}

static enum dse_status listen_unix(struct dse_listener *listener, const char *path, struct dse_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat made;
    if (strlen(path) >= sizeof address.sun_path)
        return dse_fail_at(err, DSE_ERR_INVALID, "uds", -1, "the socket path is longer than %zu bytes",
                           sizeof address.sun_path - 1);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    enum dse_status status = remove_stale(&address, err);
    if (status != DSE_OK) return status;
    listener->path = dse_strdup(DSE_MEM_SERVER, path);
    if (!listener->path) return dse_fail_memory(err, strlen(path), "the socket path");
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) return dse_fail(err, DSE_ERR_ADDRESS, "cannot make a socket: %s", strerror(errno));
    /* The file gets the mode of the socket: it is never open to others, and the process's umask is left alone. */
    bool ok = fchmod(listener->fd, 0600) == 0 && bind(listener->fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (ok && lstat(path, &made) == 0) {
        listener->device = made.st_dev;
        listener->inode = made.st_ino;
    }
    if (!ok || listen(listener->fd, 511) != 0) {
        int error = errno;
        close(listener->fd);
        return dse_fail(err, DSE_ERR_ADDRESS, "cannot listen on %s: %s", path, strerror(error));
    }
    snprintf(listener->url, sizeof listener->url, "unix:%s", path);
    return DSE_OK;
}

enum dse_status dse_listen(const struct dse_server_options *options, struct dse_listener *listener,
                           struct dse_error *err)
{
    return options->uds ? listen_unix(listener, options->uds, err) : listen_tcp(listener, options, err);
}

void dse_listener_deinit(struct dse_listener *listener)
{
    struct stat now;
    bool ours = listener->path && listener->inode != 0 && lstat(listener->path, &now) == 0 &&
                now.st_dev == listener->device && now.st_ino == listener->inode;
    if (ours) unlink(listener->path);
    dse_free(listener->path);
    listener->path = NULL;
}

/* The listening socket: TCP or Unix. Refuses addresses that would be unsafe or are taken. */
#ifndef DSE_SERVER_LISTEN_H
#define DSE_SERVER_LISTEN_H

#include <sys/types.h>

#include "server/server.h"

struct dse_listener {
    int fd;        /* the HTTP layer takes it */
    int port;      /* 0 for a Unix socket */
    bool loopback; /* TCP, reachable from this machine only */
    char url[512];
    char *path; /* owned; of a Unix socket that we made, and which file that is */
    dev_t device;
    ino_t inode;
};

DSE_MUST_CHECK enum dse_status dse_listen(const struct dse_server_options *options, struct dse_listener *listener,
                                          struct dse_error *err);
/* Removes the socket's file if it is still ours. */
void dse_listener_deinit(struct dse_listener *listener);

#endif

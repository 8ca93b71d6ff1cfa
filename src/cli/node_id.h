/* The name of this machine in logs. */
#ifndef DSE_CLI_NODE_ID_H
#define DSE_CLI_NODE_ID_H

#include "base/error.h"
#include "base/log.h"

/* wanted: the value of --node-id, checked; NULL: a hash of the machine's id, never the id itself, which is to stay on
 * the machine (man 5 machine-id). Without one, of the host's name. root: file system root, "" but in tests. */
DSE_MUST_CHECK enum dse_status dse_node_id(const char *wanted, const char *root, char out[DSE_LOG_NODE_BYTES],
                                           struct dse_error *err);

#endif

/* Status codes and errors.
 *
 * Every function that can fail returns enum dse_status and, when the caller passes a struct dse_error, fills it with a
 * message that says what was found, what was expected and what to do. The struct is owned by the caller, never
 * allocates, and may be left uninitialised: it is only written on failure.
 */
#ifndef DSE_ERROR_H
#define DSE_ERROR_H

#include <stddef.h>
#include <stdint.h>

#define DSE_MUST_CHECK __attribute__((warn_unused_result))

enum dse_status {
    DSE_OK = 0,
    DSE_ERR_INVALID,     /* a value of the request or call is wrong           exit 2, HTTP 400 */
    DSE_ERR_TOO_LONG,    /* prompt longer than the context                    exit 1, HTTP 400 */
    DSE_ERR_LIMIT,       /* a named limit was exceeded (size, depth, steps)   exit 4, HTTP 400 */
    DSE_ERR_NOT_FOUND,   /* file, model or name does not exist                exit 3, HTTP 404 */
    DSE_ERR_CORRUPT,     /* a file is malformed                               exit 4, HTTP 500 */
    DSE_ERR_UNSUPPORTED, /* well formed, but not something we can do          exit 4, HTTP 501 */
    DSE_ERR_NO_MEMORY,   /* allocation failed, or the plan does not fit       exit 5, HTTP 503 */
    DSE_ERR_DEVICE,      /* the named device is missing or failed             exit 6, HTTP 503 */
    DSE_ERR_ADDRESS,     /* cannot listen or connect                          exit 7, HTTP 503 */
    DSE_ERR_BUSY,        /* queue full                                        exit 1, HTTP 429 */
    DSE_ERR_UNAVAILABLE, /* loading or draining                               exit 1, HTTP 503 */
    DSE_ERR_CANCELLED,   /* the caller left                                   exit 130, HTTP 499 */
    DSE_ERR_IO,          /* the system refused a read or write                exit 1, HTTP 500 */
    DSE_ERR_INTERNAL,    /* a bug of ours                                     exit 1, HTTP 500 */
    DSE_STATUS_COUNT
};

struct dse_error {
    enum dse_status status;
    char message[512];  /* one sentence or two, no newline at the end */
    char file[256];     /* file or field at fault, "" if none */
    int64_t line;       /* 1-based, 0 if none */
    int64_t offset;     /* byte offset in file, -1 if none */
    int64_t need, have; /* numbers behind the message where there are two (bytes or tokens), else 0 */
};

/* "invalid", "not_found", … : stable, for logs and tests. */
const char *dse_status_name(enum dse_status status);

#endif

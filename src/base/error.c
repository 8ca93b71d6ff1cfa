/* Filling struct dse_error, and the one table that maps a status to its name, exit code and HTTP status. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct status_row {
    const char *name;
    int exit_code, http;
};

static const struct status_row status_table[DSE_STATUS_COUNT] = {
    [DSE_OK] = {"ok", 0, 200},
    [DSE_ERR_INVALID] = {"invalid", 2, 400},
    [DSE_ERR_TOO_LONG] = {"too_long", 1, 400},
    [DSE_ERR_LIMIT] = {"limit", 4, 400},
    [DSE_ERR_NOT_FOUND] = {"not_found", 3, 404},
    [DSE_ERR_CORRUPT] = {"corrupt", 4, 500},
    [DSE_ERR_UNSUPPORTED] = {"unsupported", 4, 501},
    [DSE_ERR_NO_MEMORY] = {"no_memory", 5, 503},
    [DSE_ERR_DEVICE] = {"device", 6, 503},
    [DSE_ERR_ADDRESS] = {"address", 7, 503},
    [DSE_ERR_BUSY] = {"busy", 1, 429},
    [DSE_ERR_UNAVAILABLE] = {"unavailable", 1, 503},
    [DSE_ERR_CANCELLED] = {"cancelled", 130, 499},
    [DSE_ERR_IO] = {"io", 1, 500},
    [DSE_ERR_INTERNAL] = {"internal", 1, 500},
};

static const struct status_row *row_of(enum dse_status status)
{
    return &status_table[status < DSE_STATUS_COUNT ? status : DSE_ERR_INTERNAL];
}

const char *dse_status_name(enum dse_status status)
{
    return row_of(status)->name;
}
int dse_status_exit_code(enum dse_status status)
{
    return row_of(status)->exit_code;
}
int dse_status_http(enum dse_status status)
{
    return row_of(status)->http;
}

static enum dse_status fail(struct dse_error *err, enum dse_status status, const char *file, int64_t offset,
                            const char *format, va_list arguments)
{
    if (err == NULL) return status;
    /* The message may be built from the old content of *err, so it is formatted first. */
    char message[sizeof err->message];
    char where[sizeof err->file];
    vsnprintf(message, sizeof message, format, arguments);
    snprintf(where, sizeof where, "%s", file != NULL ? file : "");
    memset(err, 0, sizeof *err);
    err->status = status;
    err->offset = offset;
    memcpy(err->message, message, sizeof message);
    memcpy(err->file, where, sizeof where);
    return status;
}

/* The names are in parentheses because the header makes them macros for the analyzer. */
enum dse_status(dse_fail)(struct dse_error *err, enum dse_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(err, status, NULL, -1, format, arguments);
    va_end(arguments);
    return status;
}

enum dse_status(dse_fail_at)(struct dse_error *err, enum dse_status status, const char *file, int64_t offset,
                             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(err, status, file, offset, format, arguments);
    va_end(arguments);
    return status;
}

enum dse_status(dse_fail_errno)(struct dse_error *err, int error_number, const char *file, const char *what)
{
    enum dse_status status = DSE_ERR_IO;
    if (error_number == ENOENT || error_number == ENOTDIR) status = DSE_ERR_NOT_FOUND;
    if (error_number == ENOMEM) status = DSE_ERR_NO_MEMORY;
    const bool named = file != NULL && file[0] != '\0';
    return dse_fail_at(err, status, file, -1, "cannot %s%s%s: %s", what, named ? " " : "", named ? file : "",
                       strerror(error_number));
}

enum dse_status(dse_fail_memory)(struct dse_error *err, size_t bytes, const char *what)
{
    dse_fail(err, DSE_ERR_NO_MEMORY, "out of memory (%zu bytes for %s)", bytes, what);
    if (err != NULL) err->need = (int64_t)bytes;
    return DSE_ERR_NO_MEMORY;
}

/* Filling struct dse_error. Each helper returns the status it was given, so that a failing line reads
 *     return dse_fail(err, DSE_ERR_CORRUPT, "…", …);
 */
#ifndef DSE_BASE_ERROR_H
#define DSE_BASE_ERROR_H

#include <dse/error.h>

/* Sets message; file "", line 0, offset -1. err may be NULL. */
enum dse_status dse_fail(struct dse_error *err, enum dse_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with the file (or field) at fault and the byte offset in it (-1: none). */
enum dse_status dse_fail_at(struct dse_error *err, enum dse_status status, const char *file, int64_t offset,
                            const char *format, ...) __attribute__((format(printf, 5, 6)));

/* "cannot WHAT FILE: reason", without FILE when it is NULL or ""; what is an infinitive such as "open". ENOENT becomes
 * DSE_ERR_NOT_FOUND, ENOMEM DSE_ERR_NO_MEMORY, the rest DSE_ERR_IO. */
enum dse_status dse_fail_errno(struct dse_error *err, int error_number, const char *file, const char *what);

/* "out of memory (N bytes for WHAT)". */
enum dse_status dse_fail_memory(struct dse_error *err, size_t bytes, const char *what);

#ifdef __clang_analyzer__
/* The analyzer looks at one file at a time: without the results in sight it would follow failed calls as if they had
 * succeeded. */
#define dse_fail(err, status, ...)        ((void)(dse_fail)(err, status, __VA_ARGS__), (status))
#define dse_fail_at(err, status, ...)     ((void)(dse_fail_at)(err, status, __VA_ARGS__), (status))
#define dse_fail_errno(err, number, ...)  ((void)(dse_fail_errno)(err, number, __VA_ARGS__), DSE_ERR_IO)
#define dse_fail_memory(err, bytes, what) ((void)(dse_fail_memory)(err, bytes, what), DSE_ERR_NO_MEMORY)
#endif

/* One table: process exit code and HTTP status of a status. */
int dse_status_exit_code(enum dse_status status);
int dse_status_http(enum dse_status status);

#endif

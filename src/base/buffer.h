/* Growing byte buffer with a hard maximum. The content is always NUL-terminated once anything was written.
 *
 * A failed append (maximum reached or no memory) sets `failed` and leaves the content as it was; later appends fail
 * too, so that a writer may check once at the end.
 */
#ifndef DSE_BASE_BUFFER_H
#define DSE_BASE_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/alloc.h"

struct dse_buffer {
    enum dse_mem tag;
    char *data; /* NULL until the first append */
    size_t length, capacity, max_bytes;
    bool failed;
};

void dse_buffer_init(struct dse_buffer *buffer, enum dse_mem tag, size_t max_bytes);
/* Over memory of the caller, which holds all it will ever hold: neither deinit nor take. */
void dse_buffer_init_fixed(struct dse_buffer *buffer, char *memory, size_t bytes);
void dse_buffer_deinit(struct dse_buffer *buffer);
bool dse_buffer_append(struct dse_buffer *buffer, const void *bytes, size_t count);
bool dse_buffer_puts(struct dse_buffer *buffer, const char *text);
bool dse_buffer_putc(struct dse_buffer *buffer, char c);
bool dse_buffer_printf(struct dse_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool dse_buffer_vprintf(struct dse_buffer *buffer, const char *format, va_list arguments);
/* JSON string content with its quotes; text must be valid UTF-8 (invalid bytes become U+FFFD). */
bool dse_buffer_put_json_string(struct dse_buffer *buffer, const char *text, size_t bytes);
bool dse_buffer_reserve(struct dse_buffer *buffer, size_t extra_bytes);
void dse_buffer_clear(struct dse_buffer *buffer); /* keeps the memory, clears `failed` */
char *dse_buffer_take(struct dse_buffer *buffer); /* returns owned (dse_free); "" if empty; NULL if failed */
const char *dse_buffer_text(const struct dse_buffer *buffer); /* never NULL */

#endif

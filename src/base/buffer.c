/* Growing byte buffer with a hard maximum. */
#include "base/buffer.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"

void dse_buffer_init(struct dse_buffer *buffer, enum dse_mem tag, size_t max_bytes)
{
    *buffer = (struct dse_buffer){.tag = tag, .max_bytes = max_bytes};
}

void dse_buffer_init_fixed(struct dse_buffer *buffer, char *memory, size_t bytes)
{
    /* The maximum is reached before memory would have to grow. */
    *buffer = (struct dse_buffer){.data = memory, .capacity = bytes, .max_bytes = bytes - 1};
    memory[0] = '\0';
}

void dse_buffer_deinit(struct dse_buffer *buffer)
{
    dse_free(buffer->data);
    *buffer = (struct dse_buffer){.tag = buffer->tag, .max_bytes = buffer->max_bytes};
}

bool dse_buffer_reserve(struct dse_buffer *buffer, size_t extra_bytes)
{
    size_t need;
    if (buffer->failed) return false;
    if (!dse_add_size(buffer->length, extra_bytes, &need) || need > buffer->max_bytes) goto fail;
    if (need < buffer->capacity) return true;
    size_t capacity = buffer->capacity > 0 ? buffer->capacity : 64;
    while (capacity <= need && capacity < SIZE_MAX / 2)
        capacity *= 2;
    if (capacity <= need) goto fail;
    char *data = dse_realloc(buffer->tag, buffer->data, capacity);
    if (data == NULL) goto fail;
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
fail:
    buffer->failed = true;
    return false;
}

bool dse_buffer_append(struct dse_buffer *buffer, const void *bytes, size_t count)
{
    if (!dse_buffer_reserve(buffer, count)) return false;
    if (count > 0) memcpy(buffer->data + buffer->length, bytes, count);
    buffer->length += count;
    buffer->data[buffer->length] = '\0';
    return true;
}

bool dse_buffer_puts(struct dse_buffer *buffer, const char *text)
{
    return dse_buffer_append(buffer, text, strlen(text));
}

bool dse_buffer_putc(struct dse_buffer *buffer, char c)
{
    return dse_buffer_append(buffer, &c, 1);
}

bool dse_buffer_vprintf(struct dse_buffer *buffer, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) buffer->failed = true;
    if (length < 0 || !dse_buffer_reserve(buffer, (size_t)length)) return false;
    vsnprintf(buffer->data + buffer->length, (size_t)length + 1, format, arguments);
    buffer->length += (size_t)length;
    return true;
}

bool dse_buffer_printf(struct dse_buffer *buffer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool ok = dse_buffer_vprintf(buffer, format, arguments);
    va_end(arguments);
    return ok;
}

bool dse_buffer_put_json_string(struct dse_buffer *buffer, const char *text, size_t bytes)
{
    dse_buffer_putc(buffer, '"');
    for (size_t i = 0, used; i < bytes; i += used) {
        unsigned char c = (unsigned char)text[i];
        used = 1;
        switch (c) {
        case '"': dse_buffer_puts(buffer, "\\\""); continue;
        case '\\': dse_buffer_puts(buffer, "\\\\"); continue;
        case '\n': dse_buffer_puts(buffer, "\\n"); continue;
        case '\r': dse_buffer_puts(buffer, "\\r"); continue;
        case '\t': dse_buffer_puts(buffer, "\\t"); continue;
        default: break;
        }
        if (c < 0x20 || c == 0x7f) {
            dse_buffer_printf(buffer, "\\u%04x", c);
        } else if (c < 0x80) {
            dse_buffer_putc(buffer, (char)c);
        } else if (dse_utf8_decode(text + i, bytes - i, &used) == DSE_UTF8_INVALID) {
            dse_buffer_puts(buffer, "\xEF\xBF\xBD");
        } else {
            dse_buffer_append(buffer, text + i, used);
        }
    }
    return dse_buffer_putc(buffer, '"');
}

void dse_buffer_clear(struct dse_buffer *buffer)
{
    buffer->length = 0;
    buffer->failed = false;
    if (buffer->data != NULL) buffer->data[0] = '\0';
}

char *dse_buffer_take(struct dse_buffer *buffer)
{
    if (buffer->failed) return NULL;
    char *data = buffer->data != NULL ? buffer->data : dse_strdup(buffer->tag, "");
    buffer->data = NULL;
    dse_buffer_deinit(buffer);
    return data;
}

const char *dse_buffer_text(const struct dse_buffer *buffer)
{
    return buffer->data != NULL ? buffer->data : "";
}

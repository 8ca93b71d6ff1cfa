/* NFC for the tokenizers that want it (qwen). Called by tokenizer.c on the text between added tokens.
 *
 * utf8proc decomposes and composes. Canonical ordering is ours, because a run of marks may be as long as the text and
 * utf8proc sorts it in quadratic time. Characters that Hugging Face's older tables treat as plain starters
 * (DSE_UNICODE_NFC_INERT) split the text into parts that are normalised one by one.
 */
#include "text/tokenizer_nfc.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "text/unicode_ranges.h"

#define MAX_DECOMPOSITION 4 /* code points; canonical ones have at most 4 */
#define SHORT_RUN         16
/* Nothing below U+0300 composes with what precedes it, and all of it is in NFC. Lead bytes below are below U+0300. */
#define FIRST_LEAD_BYTE 0xCC

static bool is_inert(uint32_t c)
{
    const struct dse_unicode_table *table = &dse_unicode_tables[DSE_UNICODE_NFC_INERT];
    size_t a = 0, b = table->count;
    while (a < b) {
        size_t middle = a + (b - a) / 2;
        if (table->ranges[middle].last < c)
            a = middle + 1;
        else
            b = middle;
    }
    return a < table->count && table->ranges[a].first <= c;
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Stable order by combining class; spare has room for the run. */
static void sort_run(int32_t *run, size_t count, int32_t *spare)
{
    if (count <= SHORT_RUN) {
        for (size_t i = 1; i < count; i++) {
            int32_t c = run[i];
            size_t k = i;
            for (; k > 0 && combining_class(run[k - 1]) > combining_class(c); k--)
                run[k] = run[k - 1];
            run[k] = c;
        }
        return;
    }
    size_t begin[257] = {0};
    for (size_t i = 0; i < count; i++)
        begin[combining_class(run[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        begin[i] += begin[i - 1];
    for (size_t i = 0; i < count; i++)
        spare[begin[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, count * sizeof *run);
}

static void order(int32_t *points, size_t count, int32_t *spare)
{
    for (size_t i = 0; i < count;) {
        size_t end = i;
        while (end < count && combining_class(points[end]) != 0)
            end++;
        if (end - i > 1) sort_run(points + i, end - i, spare);
        i = end + 1;
    }
}

/* Normalises points[0..count) and writes them out. */
static void flush(int32_t *points, size_t count, int32_t *spare, struct dse_buffer *out)
{
    if (count == 0) return;
    order(points, count, spare);
    utf8proc_ssize_t n = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char encoded[4];
        dse_buffer_append(out, encoded, dse_utf8_encode((uint32_t)points[i], encoded));
    }
}

static bool is_surely_normal(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] >= FIRST_LEAD_BYTE) return false;
    return true;
}

enum dse_status dse_nfc(const char *text, size_t bytes, struct dse_buffer *out, const char **normal,
                        size_t *normal_bytes, struct dse_error *err)
{
    *normal = text;
    *normal_bytes = bytes;
    if (is_surely_normal(text, bytes)) return DSE_OK;
    /* A character of two bytes decomposes into at most three code points, one of three or four into four. */
    size_t room, size;
    if (!dse_mul_size(bytes, 2, &room) || !dse_add_size(room, MAX_DECOMPOSITION, &room) ||
        !dse_mul_size(room, 2 * sizeof(int32_t), &size))
        return dse_fail_memory(err, SIZE_MAX, "normalisation");
    int32_t *points = dse_alloc(DSE_MEM_REQUEST, size);
    if (!points) return dse_fail_memory(err, size, "normalisation");
    int32_t *spare = points + room;
    dse_buffer_clear(out);
    size_t count = 0;
    for (size_t i = 0, used; i < bytes; i += used) {
        uint32_t c = dse_utf8_decode(text + i, bytes - i, &used);
        if (c >= 0x300 && is_inert(c)) {
            flush(points, count, spare, out);
            count = 0;
            dse_buffer_append(out, text + i, used);
            continue;
        }
        int last_boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)c, points + count, (utf8proc_ssize_t)(room - count),
                                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last_boundary);
        if (n > 0 && (size_t)n <= room - count) count += (size_t)n;
    }
    flush(points, count, spare, out);
    dse_free(points);
    if (out->failed) return dse_fail_memory(err, bytes, "normalisation");
    *normal = dse_buffer_text(out);
    *normal_bytes = out->length;
    return DSE_OK;
}

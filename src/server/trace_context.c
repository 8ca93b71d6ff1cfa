/* traceparent: version "-" trace-id "-" parent-id "-" flags, all lower-case hex. See trace_context.h. */
#include "server/trace_context.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"

#define VALUE_LENGTH 55

static bool is_hex(const char *text, int n)
{
    for (int i = 0; i < n; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f'))) return false;
    return true;
}

static bool is_zero(const char *text, int n)
{
    for (int i = 0; i < n; i++)
        if (text[i] != '0') return false;
    return true;
}

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

bool dse_trace_context_parse(const char *h, struct dse_trace_context *context)
{
    size_t length = strlen(h);
    if (length < VALUE_LENGTH || h[2] != '-' || h[35] != '-' || h[52] != '-') return false;
    if (!is_hex(h, 2) || !is_hex(h + 3, 32) || !is_hex(h + 36, 16) || !is_hex(h + 53, 2)) return false;
    if (memcmp(h, "ff", 2) == 0 || is_zero(h + 3, 32) || is_zero(h + 36, 16)) return false;
    /* Later versions may add to the end; version 00 has none. */
    if (length > VALUE_LENGTH && (memcmp(h, "00", 2) == 0 || h[VALUE_LENGTH] != '-')) return false;
    memcpy(context->trace_id, h + 3, 32);
    memcpy(context->parent_id, h + 36, 16);
    context->trace_id[32] = context->parent_id[16] = '\0';
    context->flags = (unsigned)(nibble(h[53]) << 4 | nibble(h[54])) & 1u; /* of version 00: sampled */
    return true;
}

static void random_hex(char *out, int n)
{
    unsigned char bytes[16];
    do {
        dse_random_bytes(bytes, (size_t)n / 2);
        for (int i = 0; i < n / 2; i++)
            snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
    } while (is_zero(out, n));
}

bool dse_trace_context_begin(const char *header, struct dse_trace_context *context)
{
    *context = (struct dse_trace_context){0};
    bool valid = header && dse_trace_context_parse(header, context);
    if (!valid) random_hex(context->trace_id, 32);
    random_hex(context->span_id, 16);
    return valid;
}

void dse_trace_context_put(const struct dse_trace_context *context, char out[DSE_TRACEPARENT_BYTES])
{
    snprintf(out, DSE_TRACEPARENT_BYTES, "00-%s-%s-%02x", context->trace_id, context->span_id, context->flags);
}

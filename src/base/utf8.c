/* UTF-8 decoding by the table of well-formed sequences (Unicode standard, table 3-7). */
#include "base/utf8.h"

/* Length announced by a lead byte and the range of the second byte; 0 for bytes that cannot lead. */
static int lead_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0) *low = 0x90;
        if (lead == 0xF4) *high = 0x8F;
        return 4;
    }
    return 0;
}

/* Number of bytes at the front that belong to one sequence; *length is what the lead announced (0: not a lead). */
static size_t sequence(const unsigned char *s, size_t bytes, int *length)
{
    unsigned char low, high;
    *length = lead_length(s[0], &low, &high);
    size_t n = 1;
    for (; n < bytes && (int)n < *length; n++) {
        if (s[n] < low || s[n] > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return n;
}

uint32_t dse_utf8_decode(const char *text, size_t bytes, size_t *used)
{
    const unsigned char *s = (const unsigned char *)text;
    int length;
    *used = sequence(s, bytes, &length);
    if (length == 0 || *used < (size_t)length) return DSE_UTF8_INVALID;
    if (length == 1) return s[0];
    uint32_t code_point = s[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++)
        code_point = code_point << 6 | (s[i] & 0x3Fu);
    return code_point;
}

size_t dse_utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c >= 0xD800 && c <= 0xDFFF) return 0;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    if (c > 0x10FFFF) return 0;
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

bool dse_utf8_valid(const char *text, size_t bytes)
{
    for (size_t i = 0, used; i < bytes; i += used) {
        if (dse_utf8_decode(text + i, bytes - i, &used) == DSE_UTF8_INVALID) return false;
    }
    return true;
}

size_t dse_utf8_incomplete_suffix(const char *text, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        int length;
        if ((s[bytes - back] & 0xC0) == 0x80) continue;
        size_t n = sequence(s + bytes - back, back, &length);
        return length > 1 && n == back && n < (size_t)length ? back : 0;
    }
    return 0;
}

/* UTF-8, strictly by Unicode (no surrogates, no overlong forms, at most U+10FFFF). */
#ifndef DSE_BASE_UTF8_H
#define DSE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DSE_UTF8_INVALID 0xFFFFFFFFu

/* Reads one code point at text[0..bytes); *used is set to its length. An invalid sequence gives DSE_UTF8_INVALID and
 * the length of the maximal invalid part (Unicode "substitution of maximal subparts"), at least 1. bytes: not 0. */
uint32_t dse_utf8_decode(const char *text, size_t bytes, size_t *used);
size_t dse_utf8_encode(uint32_t code_point, char out[4]); /* 0 for surrogates and beyond U+10FFFF */
bool dse_utf8_valid(const char *text, size_t bytes);
/* Length of the incomplete but so far valid sequence at the end of text: 0…3 bytes that wait for more. */
size_t dse_utf8_incomplete_suffix(const char *text, size_t bytes);

#endif

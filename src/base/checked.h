/* Overflow-checked size arithmetic. Every function returns false on overflow and leaves *out untouched. */
#ifndef DSE_BASE_CHECKED_H
#define DSE_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool dse_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool dse_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Rounds value up to a multiple of alignment (any non-zero alignment). */
static inline bool dse_align_size(size_t value, size_t alignment, size_t *out)
{
    size_t rest = value % alignment;
    return rest == 0 ? (*out = value, true) : dse_add_size(value, alignment - rest, out);
}

/* [offset, offset + bytes) lies inside [0, limit). */
static inline bool dse_range_fits(size_t offset, size_t bytes, size_t limit)
{
    return offset <= limit && bytes <= limit - offset;
}

#endif

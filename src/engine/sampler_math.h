/* Vector arithmetic for the sampler: four lanes of f32, written with the compiler's vector types.
 *
 * Only basic IEEE operations in a fixed order (no fused multiply-add), so that every instruction set gives the same
 * bits and a seed replays on another machine. Private to the sampler.
 */
#ifndef DSE_ENGINE_SAMPLER_MATH_H
#define DSE_ENGINE_SAMPLER_MATH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float v4f __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

static inline v4f v4_load(const float *x)
{
    v4f v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline v4f v4_splat(float x)
{
    return (v4f){x, x, x, x};
}

static inline v4f v4_select(v4u mask, v4f yes, v4f no)
{
    return (v4f)((mask & (v4u)yes) | (~mask & (v4u)no));
}

/* NaN in x keeps m. */
static inline v4f v4_max(v4f x, v4f m)
{
    return v4_select((v4u)(x > m), x, m);
}

static inline bool v4_any(v4u mask)
{
    uint64_t half[2];
    memcpy(half, &mask, sizeof half);
    return (half[0] | half[1]) != 0;
}

/* e^x for x <= 0; 0 below -87 and for NaN. x = n ln 2 + f with |f| <= ln 2 / 2, then the Taylor series of e^f to the
 * sixth power (relative error below 2e-7), in pairs so that few operations wait for one another, times 2^n through the
 * exponent bits. */
static inline v4f v4_exp(v4f x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    v4f shifted = x * 1.44269504f + round;
    v4f n = shifted - round;
    v4f f = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts, the first exact in 10 bits */
    v4f f2 = f * f;
    v4f high = (1.0f / 24 + f * (1.0f / 120)) + f2 * (1.0f / 720);
    v4f y = (1.0f + f) + f2 * ((0.5f + f * (1.0f / 6)) + f2 * high);
    v4u scaled = (v4u)y + (((v4u)shifted - 0x4B400000u) << 23);
    return (v4f)(scaled & (v4u)(x > -87.0f));
}

static inline float exp_one(float x)
{
    return v4_exp(v4_splat(x))[0];
}

#endif

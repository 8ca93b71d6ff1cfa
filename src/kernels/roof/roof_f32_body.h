/* The f32 roof over 16 lanes; included by roof_<isa>.c, which defines DSE_NAME(op) and ROOF_SUMS, as many as hide the
 * latency of a multiply-add and still fit in registers.
 */
#include "kernels/prototypes.h"
#include "kernels/vector/v16.h"

dse_roof_fn DSE_NAME(roof_f32);
uint64_t DSE_NAME(roof_f32)(uint64_t n)
{
    float values[16 + ROOF_SUMS] = {0};
    __asm__ volatile("" ::"r"(values) : "memory"); /* no two sums are equal as far as the compiler knows */
    const v16 a = v16_load(values);
    v16 sum[ROOF_SUMS];
#pragma GCC unroll 16
    for (int j = 0; j < ROOF_SUMS; j++)
        sum[j] = v16_load(values + j);
    for (uint64_t i = 0; i < n; i++) {
#pragma GCC unroll 16
        for (int j = 0; j < ROOF_SUMS; j++)
            sum[j] = v16_fma(a, a, sum[j]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < ROOF_SUMS; j++) {
        v16_store(values, sum[j]);
        __asm__ volatile("" ::"r"(values) : "memory");
    }
    return ROOF_SUMS * 16;
}

/* Roofs of portable C: see roof.h. What the compiler makes of plain loops. */
#include "kernels/prototypes.h"

uint64_t dse_roof_s8_scalar(uint64_t n)
{
    int32_t sum[8] = {0};
    for (uint64_t i = 0; i < n; i++) {
        static volatile int8_t value;
        const int32_t a = value;
        for (int j = 0; j < 8; j++) {
            sum[j] += a * (j + 1);
            __asm__("" : "+r"(sum[j]));
        }
    }
    for (int j = 0; j < 8; j++)
        __asm__ volatile("" ::"r"(sum[j]));
    return 8;
}

uint64_t dse_roof_f32_scalar(uint64_t n)
{
    static volatile float value = 0.5f;
    float sum[8] = {0};
    for (uint64_t i = 0; i < n; i++) {
        const float a = value;
        for (int j = 0; j < 8; j++)
            sum[j] += a * sum[j];
        __asm__ volatile("" ::: "memory");
    }
    for (int j = 0; j < 8; j++)
        value = sum[j];
    return 8;
}

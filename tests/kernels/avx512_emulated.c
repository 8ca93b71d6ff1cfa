/* Linked with the emulated AVX-512 kernels (avx512_emulated.h): a CPU with AVX2 passes for one that has them. */
#include "base/cpu.h"

uint32_t __real_dse_cpu_features(void);
uint32_t __wrap_dse_cpu_features(void);

uint32_t __wrap_dse_cpu_features(void)
{
    uint32_t features = __real_dse_cpu_features();
    return features & DSE_CPU_AVX2 ? features | DSE_CPU_AVX512 | DSE_CPU_AVX512_VNNI : features;
}

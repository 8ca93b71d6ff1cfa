/* What this CPU can do. DSE_CPU_MASK (a list such as "avx2,f16c" or "none") limits what is reported, so that tests can
 * walk every kernel variant: only named features remain. */
#ifndef DSE_BASE_CPU_H
#define DSE_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

enum dse_cpu_feature {
    DSE_CPU_AVX2 = 1 << 0,        /* AVX2 with FMA and F16C */
    DSE_CPU_AVX512 = 1 << 1,      /* F, BW, VL, DQ */
    DSE_CPU_AVX512_VNNI = 1 << 2, /* implies AVX512 */
    DSE_CPU_AVX512_BF16 = 1 << 3,
    DSE_CPU_NEON = 1 << 4,
    DSE_CPU_DOTPROD = 1 << 5, /* implies NEON */
    DSE_CPU_I8MM = 1 << 6,    /* implies DOTPROD */
};

uint32_t dse_cpu_features(void); /* detected and masked; read once */
const char *dse_cpu_model(void); /* "AMD EPYC …", never NULL */
/* "avx2 avx512 …", written into out, truncated to bytes. */
void dse_cpu_feature_names(uint32_t features, char *out, int bytes);
int dse_cpu_physical_cores(void);

#endif

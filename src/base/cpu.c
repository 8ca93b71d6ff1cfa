/* CPU features, model and cores. */
#include "base/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static const struct {
    const char *name;
    uint32_t feature;
} names[] = {
    {"avx2", DSE_CPU_AVX2}, {"avx512", DSE_CPU_AVX512},   {"vnni", DSE_CPU_AVX512_VNNI}, {"bf16", DSE_CPU_AVX512_BF16},
    {"neon", DSE_CPU_NEON}, {"dotprod", DSE_CPU_DOTPROD}, {"i8mm", DSE_CPU_I8MM},
};
#define N_NAMES (sizeof names / sizeof *names)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t features;
static char model[128] = "unknown CPU";

static uint32_t detect(void)
{
    uint32_t f = 0;
#if defined(__x86_64__)
    unsigned eax, ebx, ecx = 0, edx;
    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    __builtin_cpu_init(); /* the builtin also asks whether the system saves the wide registers; clang knows no "f16c" */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (ecx & bit_F16C)) f |= DSE_CPU_AVX2;
    if (f && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        f |= DSE_CPU_AVX512;
    if ((f & DSE_CPU_AVX512) && __builtin_cpu_supports("avx512vnni")) f |= DSE_CPU_AVX512_VNNI;
    if ((f & DSE_CPU_AVX512) && __builtin_cpu_supports("avx512bf16")) f |= DSE_CPU_AVX512_BF16;
#elif defined(__aarch64__)
    unsigned long hw = getauxval(AT_HWCAP), hw2 = getauxval(AT_HWCAP2);
    f |= DSE_CPU_NEON;
    if (hw & (1ul << 20)) f |= DSE_CPU_DOTPROD; /* HWCAP_ASIMDDP */
    if (hw2 & (1ul << 13)) f |= DSE_CPU_I8MM;   /* HWCAP2_I8MM */
#endif
    return f;
}

/* The features named in a list separated by commas or blanks; unknown names (also "none") select nothing. */
static uint32_t parse_mask(const char *list)
{
    uint32_t mask = 0;
    while (*list != '\0') {
        size_t n = strcspn(list, ", ");
        for (size_t i = 0; i < N_NAMES; i++) {
            if (strlen(names[i].name) == n && strncmp(names[i].name, list, n) == 0) mask |= names[i].feature;
        }
        list += n;
        list += strspn(list, ", ");
    }
    return mask;
}

static void read_model(void)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || (strncmp(line, "model name", 10) != 0 && strncmp(line, "Model", 5) != 0)) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(model, sizeof model, "%s", colon);
        break;
    }
    if (file != NULL) fclose(file);
}

static void init(void)
{
    features = detect();
    const char *mask = getenv("DSE_CPU_MASK");
    if (mask != NULL) features &= parse_mask(mask);
    /* Variants build on each other: without a lower level the higher ones are off too. */
    if (!(features & DSE_CPU_AVX2)) features &= ~(uint32_t)DSE_CPU_AVX512;
    if (!(features & DSE_CPU_AVX512)) features &= ~(uint32_t)(DSE_CPU_AVX512_VNNI | DSE_CPU_AVX512_BF16);
    if (!(features & DSE_CPU_NEON)) features &= ~(uint32_t)DSE_CPU_DOTPROD;
    if (!(features & DSE_CPU_DOTPROD)) features &= ~(uint32_t)DSE_CPU_I8MM;
    read_model();
}

uint32_t dse_cpu_features(void)
{
    pthread_once(&once, init);
    return features;
}

const char *dse_cpu_model(void)
{
    pthread_once(&once, init);
    return model;
}

void dse_cpu_feature_names(uint32_t set, char *out, int bytes)
{
    int used = 0;
    if (bytes > 0) out[0] = '\0';
    for (size_t i = 0; i < N_NAMES; i++) {
        if (!(set & names[i].feature) || used >= bytes) continue;
        used += snprintf(out + used, (size_t)(bytes - used), "%s%s", used > 0 ? " " : "", names[i].name);
    }
}

int dse_cpu_physical_cores(void)
{
    /* One per distinct (package, core); hyper-threads share one and add little to matrix products. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int seen[1024][2], cores = 0;
    for (long cpu = 0; cpu < online && cpu < 4096; cpu++) {
        int id[2];
        static const char *const files[2] = {"physical_package_id", "core_id"};
        int k = 0;
        for (; k < 2; k++) {
            char path[128];
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/topology/%s", cpu, files[k]);
            FILE *file = fopen(path, "re");
            if (file == NULL) break;
            int n = fscanf(file, "%d", &id[k]);
            fclose(file);
            if (n != 1) break;
        }
        if (k < 2) continue;
        int i = 0;
        while (i < cores && (seen[i][0] != id[0] || seen[i][1] != id[1]))
            i++;
        if (i == cores && cores < 1024) {
            seen[cores][0] = id[0];
            seen[cores++][1] = id[1];
        }
    }
    if (cores > 0) return cores;
    return online > 0 ? (int)online : 1;
}

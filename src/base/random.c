/* Philox4x32-10, and random bytes from the kernel. */
#include "base/random.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

void dse_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double dse_philox_uniform(uint64_t seed, uint64_t sequence, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)sequence,
                           (uint32_t)(sequence >> 32)};
    uint32_t out[4];
    dse_philox(seed, counter, out);
    uint64_t bits = ((uint64_t)out[1] << 32 | out[0]) >> 11; /* 53 bits */
    return (double)bits * 0x1p-53;
}

/* Philox keyed by what the kernel gave this process when it started, counted on from call to call. */
static void fill_without_kernel(unsigned char *out, size_t bytes)
{
    static _Atomic uint64_t next;
    const void *given = (const void *)getauxval(AT_RANDOM); /* 16 bytes */
    uint64_t key[2] = {(uintptr_t)&next, (uint64_t)getpid()};
    if (given != NULL) memcpy(key, given, sizeof key);
    while (bytes > 0) {
        uint64_t words[2] = {atomic_fetch_add(&next, 1), key[1] ^ dse_clock_ns()};
        uint32_t counter[4], block[4];
        memcpy(counter, words, sizeof counter);
        dse_philox(key[0], counter, block);
        size_t n = bytes < sizeof block ? bytes : sizeof block;
        memcpy(out, block, n);
        out += n;
        bytes -= n;
    }
}

void dse_random_bytes(void *out, size_t bytes)
{
    unsigned char *p = out;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) { /* an old kernel, or a sandbox that forbids it */
            fill_without_kernel(p, bytes);
            return;
        }
        p += n;
        bytes -= (size_t)n;
    }
}

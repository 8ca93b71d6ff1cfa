/* A fast 64-bit hash against accidental damage and for file identities. Not for anything an attacker chooses. */
#ifndef DSE_DEVICE_PACK_HASH_H
#define DSE_DEVICE_PACK_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t pack_hash_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

static inline uint64_t pack_hash_step(uint64_t hash, uint64_t word)
{
    return pack_hash_mix((hash ^ word) + 0x9e3779b97f4a7c15u);
}

/* Four independent chains over 32 bytes at a time, so that the multiplier's latency is hidden. */
static inline uint64_t pack_hash(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t lane[4] = {1, 2, 3, 4}, left = bytes;
    for (; left >= 32; left -= 32, p += 32) {
        for (int i = 0; i < 4; i++) {
            uint64_t word;
            memcpy(&word, p + 8 * i, sizeof word);
            lane[i] = (lane[i] ^ word) * 0x9e3779b97f4a7c15u;
            lane[i] ^= lane[i] >> 29;
        }
    }
    uint64_t hash = pack_hash_step(bytes, 0);
    for (int i = 0; i < 4; i++)
        hash = pack_hash_step(hash, lane[i]);
    for (; left > 0; left--)
        hash = pack_hash_step(hash, *p++);
    return hash;
}

#endif

/* SHA-256 (FIPS 180-4) of a text that is in memory. Small and slow: for names and ids, not for model files. */
#ifndef DSE_BASE_SHA256_H
#define DSE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void dse_sha256(const void *data, size_t bytes, uint8_t out[32]);

#endif

/* SHA-256 (FIPS 180-4): for names that must not be made to collide on purpose. Not fast, not for passwords. */
#ifndef DSE_BASE_SHA256_H
#define DSE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void dse_sha256(const void *data, size_t bytes, uint8_t digest[32]);

#endif

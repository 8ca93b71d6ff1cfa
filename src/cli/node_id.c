/* edge_node_id of `serve`: given or derived. See node_id.h. */
#include "cli/node_id.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"

/* Hashes of other programs over the same id must not be the same. */
#define SALT          "deepseek-edge node id\n"
#define ID_HEX_DIGITS 16

static bool read_machine_id(const char *root, char *out, size_t bytes)
{
    static const char *const files[] = {"/etc/machine-id", "/var/lib/dbus/machine-id"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", root, files[i]);
        FILE *file = fopen(path, "re");
        if (file == NULL) continue;
        bool ok = fgets(out, (int)bytes, file) != NULL;
        fclose(file);
        if (ok) out[strcspn(out, "\n")] = '\0';
        if (ok && strlen(out) == 32) return true; /* else "uninitialized", during a first boot */
    }
    return false;
}

enum dse_status dse_node_id(const char *wanted, const char *root, char out[DSE_LOG_NODE_BYTES], struct dse_error *err)
{
    if (wanted != NULL) {
        size_t n = strlen(wanted);
        bool ok = n >= 1 && n < DSE_LOG_NODE_BYTES &&
                  strspn(wanted, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-") == n;
        if (!ok)
            return dse_fail_at(err, DSE_ERR_INVALID, "node-id", -1,
                               "--node-id must have 1 to %d of the characters A-Z a-z 0-9 . _ : -",
                               DSE_LOG_NODE_BYTES - 1);
        memcpy(out, wanted, n + 1);
        return DSE_OK;
    }
    char text[sizeof SALT + 300] = SALT;
    const size_t salt = sizeof SALT - 1;
    uint8_t hash[32];
    if (!read_machine_id(root, text + salt, sizeof text - salt) &&
        gethostname(text + salt, sizeof text - salt - 1) != 0)
        snprintf(text + salt, sizeof text - salt, "unknown");
    text[sizeof text - 1] = '\0';
    dse_sha256(text, strlen(text), hash);
    for (int i = 0; i < ID_HEX_DIGITS / 2; i++)
        snprintf(out + 2 * (size_t)i, 3, "%02x", hash[i]);
    return DSE_OK;
}

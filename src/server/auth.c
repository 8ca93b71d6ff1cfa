/* API keys, Host and Origin (see auth.h). */
#include "server/auth.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"

static enum dse_status copy_keys(struct dse_auth *auth, const struct dse_api_key *keys, int n, struct dse_error *err)
{
    auth->keys = dse_calloc(DSE_MEM_SERVER, (size_t)n + 1, sizeof *auth->keys);
    if (!auth->keys) return dse_fail_memory(err, (size_t)n * sizeof *auth->keys, "API keys");
    for (auth->n_keys = 0; auth->n_keys < n; auth->n_keys++) {
        struct dse_api_key *key = &auth->keys[auth->n_keys];
        *key = keys[auth->n_keys];
        key->text = dse_strdup(DSE_MEM_SERVER, key->text);
        if (!key->text) return dse_fail_memory(err, strlen(keys[auth->n_keys].text), "API keys");
    }
    return DSE_OK;
}

static enum dse_status copy_list(const char *const *from, int n, char ***to, int *n_to, struct dse_error *err)
{
    *to = dse_calloc(DSE_MEM_SERVER, (size_t)n + 1, sizeof **to);
    if (!*to) return dse_fail_memory(err, (size_t)n * sizeof **to, "server options");
    for (*n_to = 0; *n_to < n; ++*n_to)
        if (!((*to)[*n_to] = dse_strdup(DSE_MEM_SERVER, from[*n_to])))
            return dse_fail_memory(err, strlen(from[*n_to]), "server options");
    return DSE_OK;
}

enum dse_status dse_auth_init(struct dse_auth *auth, const struct dse_api_key *keys, int n_keys,
                              const char *const *origins, int n_origins, struct dse_error *err)
{
    for (int i = 0; i < n_keys; i++)
        if (keys[i].text[strspn(keys[i].text, " \t\r\n")] == '\0')
            return dse_fail(err, DSE_ERR_INVALID, "an API key is empty");
    enum dse_status status = copy_keys(auth, keys, n_keys, err);
    if (status == DSE_OK) status = copy_list(origins, n_origins, &auth->origins, &auth->n_origins, err);
    return status;
}

void dse_auth_deinit(struct dse_auth *auth)
{
    for (int i = 0; i < auth->n_keys; i++)
        dse_free((char *)auth->keys[i].text);
    for (int i = 0; i < auth->n_origins; i++)
        dse_free(auth->origins[i]);
    dse_free(auth->keys);
    dse_free(auth->origins);
}

/* Looks at every byte of what was presented, whatever differs: the time tells nothing about the key. */
static unsigned key_difference(const char *key, const char *presented)
{
    size_t key_bytes = strlen(key), bytes = strlen(presented);
    volatile unsigned difference = key_bytes != bytes;
    for (size_t i = 0, k = 0; i < bytes; i++) {
        difference |= (unsigned char)key[k] ^ (unsigned char)presented[i];
        k = k + 1 == key_bytes ? 0 : k + 1;
    }
    return difference;
}

const struct dse_api_key *dse_auth_key_of(const struct dse_auth *auth, const char *authorization, const char *api_key)
{
    const char *presented[2] = {NULL, api_key};
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        presented[0] = authorization + 7;
        while (*presented[0] == ' ')
            presented[0]++;
    }
    const struct dse_api_key *key = NULL;
    for (int p = 0; p < 2; p++)
        for (int i = 0; presented[p] && i < auth->n_keys; i++) /* all keys, no early end */
            if (key_difference(auth->keys[i].text, presented[p]) == 0) key = &auth->keys[i];
    return key;
}

bool dse_auth_key_ok(const struct dse_auth *auth, const char *authorization, const char *api_key)
{
    return auth->n_keys == 0 || dse_auth_key_of(auth, authorization, api_key) != NULL;
}

/* "127.0.0.1" but neither "127.evil.com" nor "127.0.0.1.evil.com". */
static bool is_loopback_v4(const char *host, size_t bytes)
{
    int parts = 0;
    for (size_t i = 0; i < bytes;) {
        unsigned value = 0;
        size_t digits = 0;
        for (; i < bytes && isdigit((unsigned char)host[i]) && digits < 4; i++, digits++)
            value = value * 10 + (unsigned)(host[i] - '0');
        if (digits == 0 || value > 255 || (parts == 0 && value != 127)) return false;
        parts++;
        if (i == bytes) break;
        if (host[i++] != '.' || i == bytes) return false;
    }
    return parts == 4;
}

static bool is_local_name(const char *host, size_t bytes)
{
    static const char suffix[] = ".localhost";
    size_t n = sizeof suffix - 1;
    if (bytes == 9 && strncasecmp(host, "localhost", 9) == 0) return true;
    if (bytes > n && strncasecmp(host + bytes - n, suffix, n) == 0) {
        for (size_t i = 0; i < bytes - n; i++)
            if (!isalnum((unsigned char)host[i]) && host[i] != '-' && host[i] != '.') return false;
        return true;
    }
    return (bytes == 5 && memcmp(host, "[::1]", 5) == 0) || is_loopback_v4(host, bytes);
}

bool dse_auth_host_is_local(const char *host)
{
    if (!host) return true;
    size_t bytes = strlen(host);
    const char *port = strrchr(host, ':');
    if (port && !strchr(port, ']')) {
        for (const char *p = port + 1; *p; p++)
            if (!isdigit((unsigned char)*p)) return false;
        bytes = (size_t)(port - host);
    }
    return is_local_name(host, bytes);
}

static bool is_local_origin(const char *origin)
{
    const char *host = strncmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncmp(origin, "https://", 8) == 0 ? origin + 8
                                                             : NULL;
    return host && *host && !strpbrk(host, "/@?#") && dse_auth_host_is_local(host);
}

bool dse_auth_origin_ok(const struct dse_auth *auth, const char *origin)
{
    if (auth->n_origins == 0) return is_local_origin(origin);
    for (int i = 0; i < auth->n_origins; i++)
        if (strcmp(auth->origins[i], "*") == 0 || strcmp(auth->origins[i], origin) == 0) return true;
    return false;
}

bool dse_auth_origin_is_foreign_page(const struct dse_auth *auth, const char *origin)
{
    if (dse_auth_origin_ok(auth, origin) || is_local_origin(origin)) return false;
    return strncmp(origin, "http", 4) == 0 || strcmp(origin, "null") == 0;
}

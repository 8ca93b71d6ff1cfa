/* The head of a request, before anybody looks at its meaning: what cannot be one request and nothing else is refused.
 *
 * Called by http.c on the I/O thread. The library is lenient in what it takes for a header; proxies that are not, or
 * are in another way, see another request than we do. So names, values and line are checked here, and their bytes
 * counted.
 */
#include <ctype.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "server/http_internal.h"

/* Stands before what the client sends: the library looks for pairs in the first Cookie, and they use up its pool. */
static const char no_cookies[] = "none=";

struct walk {
    struct dse_http_exchange *x;
    const char *authority; /* from the first line, instead of Host; NULL: none */
    size_t authority_bytes;
    int n_host, n_length, n_encoding;
    uint64_t content_length;
    bool chunked, bad_length, bad_name, bad_value;
    size_t bytes, n_lines; /* of the header lines, without their ends */
};

/* Names and methods, RFC 9110 section 5.6.2. White space before the colon is not part of it. */
static bool is_token(const char *text)
{
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("!#$%&'*+-.^_`|~", *p)) return false;
    return text[0] != '\0';
}

static bool has_controls(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if ((*p < ' ' && *p != '\t') || *p == 127) return true;
    return false;
}

static bool keep(struct dse_http_exchange *x, const char *name, const char *value, size_t bytes)
{
    bool ok = dse_buffer_append(&x->header_text, name, strlen(name) + 1) &&
              dse_buffer_append(&x->header_text, value, bytes) && dse_buffer_append(&x->header_text, "", 1);
    if (ok) x->n_headers++;
    return ok;
}

static enum MHD_Result walk_header(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct walk *walk = user;
    struct dse_http_exchange *x = walk->x;
    if (value == no_cookies) return MHD_YES;
    if (!value) value = "";
    walk->n_lines++;
    walk->bytes += (size_t)((uintptr_t)value - (uintptr_t)name) + strlen(value);
    walk->bad_name |= !is_token(name);
    walk->bad_value |= has_controls(value);
    if (strcasecmp(name, "Expect") == 0) x->expects_continue = true;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        walk->n_encoding++;
        walk->chunked = strcasecmp(value, "chunked") == 0;
    }
    if (strcasecmp(name, "Content-Length") == 0) {
        char *end;
        walk->n_length++;
        errno = 0;
        walk->content_length = strtoull(value, &end, 10);
        walk->bad_length = !isdigit((unsigned char)value[0]) || *end || errno;
    }
    if (strcasecmp(name, "Host") == 0) {
        walk->n_host++;
        if (walk->authority) return keep(x, "Host", walk->authority, walk->authority_bytes) ? MHD_YES : MHD_NO;
    }
    size_t bytes = strlen(value);
    while (bytes > 0 && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t'))
        bytes--;
    return keep(x, name, value, bytes) ? MHD_YES : MHD_NO;
}

/* The library ends names, values and the path at a NUL, and the whole head at a line that begins with one. What it
 * hides so is missing in our count. Line ends are CRLF, or all of them LF. */
static bool has_hidden_bytes(struct dse_http_exchange *x, const struct walk *walk, const char *method, const char *url,
                             const char *version)
{
    if (MHD_get_version()[0] != '0') return false; /* from 1.0 on it refuses them by itself, and trims values */
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection,
                                                                   MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    uintptr_t line = (uintptr_t)method, target = (uintptr_t)url, end = (uintptr_t)version;
    if (target != line + strlen(method) + 1 || end != target + x->target_bytes + 1) return true;
    size_t bytes = (size_t)(end - line) + strlen(version) + walk->bytes, n_ends = walk->n_lines + 2;
    return !info || (info->header_size != bytes + 2 * n_ends && info->header_size != bytes + n_ends);
}

/* Percent-decoding; NULL when malformed, when it would hide a NUL, or without memory. */
static char *decode_path(const char *url)
{
    size_t length = strlen(url), n = 0;
    char *path = dse_alloc(DSE_MEM_SERVER, length + 1);
    if (!path) return NULL;
    for (size_t i = 0; i < length; i++) {
        char c = url[i];
        if (c == '%') {
            char hex[3] = {0};
            if (i + 2 >= length || !isxdigit((unsigned char)url[i + 1]) || !isxdigit((unsigned char)url[i + 2])) {
                dse_free(path);
                return NULL;
            }
            memcpy(hex, url + i + 1, 2);
            c = (char)strtoul(hex, NULL, 16);
            i += 2;
        }
        if (c == '\0') {
            dse_free(path);
            return NULL;
        }
        path[n++] = c;
    }
    path[n] = '\0';
    return path;
}

/* "http://host/path", as clients of a proxy send it: the host counts in place of Host. Returns the path. */
static const char *split_authority(const char *url, struct walk *walk)
{
    size_t scheme = strncasecmp(url, "http://", 7) == 0 ? 7 : strncasecmp(url, "https://", 8) == 0 ? 8 : 0;
    if (scheme == 0) return url;
    walk->authority = url + scheme;
    walk->authority_bytes = strcspn(walk->authority, "/");
    const char *path = walk->authority + walk->authority_bytes;
    return *path ? path : "/";
}

static bool bad_authority(const struct walk *walk)
{
    return walk->authority && (walk->authority_bytes == 0 || memchr(walk->authority, '@', walk->authority_bytes));
}

void *dse_http_head_target(void *user, const char *target, struct MHD_Connection *connection)
{
    struct dse_http_exchange *x = dse_http_exchange_create(user, connection);
    if (!x) return NULL;
    x->target_bytes = target ? strlen(target) : 0;
    /* Pairs of a query would use up the library's pool: it shall find an empty one; endpoints read this copy. */
    const char *query = target ? strchr(target, '?') : NULL;
    if (query && strlen(query + 1) <= HTTP_MAX_QUERY) snprintf(x->query, sizeof x->query, "%s", query + 1);
    if (query && query[1]) *((char *)(uintptr_t)query + 1) = '\0';
    MHD_set_connection_value(connection, MHD_HEADER_KIND, "Cookie", no_cookies);
    return x;
}

bool dse_http_head_check(struct dse_http_exchange *x, const char *url, const char *method, const char *version,
                         struct dse_http_head *head)
{
    const struct dse_http_options *options = &x->http->options;
    struct walk walk = {.x = x};
    const char *target = split_authority(url, &walk);
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, walk_header, &walk);
    if (walk.authority && walk.n_host == 0) keep(x, "Host", walk.authority, walk.authority_bytes);
    x->expects_body = walk.n_encoding > 0 || walk.content_length > 0;
    x->method = dse_strdup(DSE_MEM_SERVER, method);
    x->path = decode_path(target);
    bool bad_line = !x->path || !is_token(method) || strncmp(version, "HTTP/1.", 7) != 0 || has_controls(url) ||
                    strpbrk(url, " \t") || bad_authority(&walk);
    if (!x->path) x->path = dse_strdup(DSE_MEM_SERVER, "/");
    if (!x->path || !x->method) return false;
    head->content_length = walk.content_length;
    head->status = 400;
    if (x->n_headers > options->max_headers || x->header_text.length > options->max_header_bytes ||
        x->header_text.failed) {
        head->status = 431;
        head->problem = "too many or too large request headers";
    } else if (bad_line) {
        head->problem = "the first line of the request is malformed";
    } else if (walk.bad_name || walk.bad_value) {
        head->problem = walk.bad_name ? "a header's name has white space or other bytes that are not allowed"
                                      : "a header's value has control characters";
    } else if (has_hidden_bytes(x, &walk, method, url, version)) {
        head->problem = "the request's head has NUL bytes, folded lines or mixed line ends";
    } else if (walk.n_host == 0 && strcmp(version, "HTTP/1.0") != 0) {
        head->problem = "the Host header is missing";
    } else if (walk.n_length > 1 || walk.n_host > 1 || walk.n_encoding > 1 || walk.bad_length ||
               (walk.n_length && walk.n_encoding) || (walk.n_encoding && !walk.chunked)) {
        /* Proxies and servers that read such requests differently are how requests are smuggled. */
        head->problem = "ambiguous Content-Length, Transfer-Encoding or Host";
    } else if (walk.content_length > options->max_body_bytes) {
        head->status = 413;
        head->problem = "the request body is larger than the limit";
    } else {
        head->status = 0;
    }
    head->ends_connection = head->status == 400;
    return true;
}

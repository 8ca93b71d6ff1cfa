/* The web page at `/` and the files it loads from `/ui/`, embedded (ui_files.h). On the I/O thread: waits for nobody.
 *
 * Needs no key: there is nothing secret in it, and it asks for the key itself. The policy sent along forbids the page
 * everything it does not do: other hosts, inline scripts and styles, turning text into HTML, being framed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "server/errors.h"
#include "server/server_internal.h"
#include "server/ui_files.h"

#define POLICY                                                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "   \
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

/* The page is not repeated below /v1 and /beta as the API is: its links are relative to its own place. */
static const struct dse_ui_file *find_file(const char *path)
{
    const char *name = strcmp(path, "/") == 0 ? "index.html" : strncmp(path, "/ui/", 4) == 0 ? path + 4 : "";
    for (size_t i = 0; i < dse_ui_n_files; i++)
        if (strcmp(name, dse_ui_files[i].name) == 0) return &dse_ui_files[i];
    return NULL;
}

/* Moves past one element of a comma-separated list. false: there is none. */
static bool next_element(const char **at, const char **element, size_t *bytes)
{
    *at += strspn(*at, ", \t");
    *element = *at;
    *at += strcspn(*at, ",");
    *bytes = (size_t)(*at - *element);
    while (*bytes > 0 && strchr(" \t", (*element)[*bytes - 1]))
        --*bytes;
    return *bytes > 0;
}

/* "gzip" or "*" in Accept-Encoding, unless its weight is 0. A name given itself counts before the star. */
static bool accepts_gzip(const char *header)
{
    bool by_name = false, named = false, by_star = false;
    const char *element;
    size_t bytes;
    while (header && next_element(&header, &element, &bytes)) {
        size_t name = strcspn(element, ";, \t");
        const char *weight = memchr(element, '=', bytes); /* q is the only parameter there is */
        bool wanted = !weight || strtod(weight + 1, NULL) > 0;
        if (name == 4 && strncasecmp(element, "gzip", 4) == 0) by_name = wanted, named = true;
        if (name == 1 && element[0] == '*') by_star = wanted;
    }
    return named ? by_name : by_star;
}

/* If-None-Match compares weakly: W/ in front makes no difference. */
static bool names_tag(const char *header, const char *tag)
{
    const char *element;
    size_t bytes, n = strlen(tag);
    while (header && next_element(&header, &element, &bytes)) {
        if (bytes > 2 && strncmp(element, "W/", 2) == 0) element += 2, bytes -= 2;
        if ((bytes == n && memcmp(element, tag, n) == 0) || (bytes == 1 && element[0] == '*')) return true;
    }
    return false;
}

void dse_handle_ui(struct dse_server *server, struct dse_http_exchange *x)
{
    const struct dse_ui_file *file = server->ui ? find_file(dse_http_path(x)) : NULL;
    if (!file) {
        dse_answer_problem(server, x, 404, NULL, "not_found", "there is nothing at this path");
        return;
    }
    bool gzip = accepts_gzip(dse_http_header(x, "Accept-Encoding"));
    char tag[64];
    snprintf(tag, sizeof tag, gzip ? "\"%s-gzip\"" : "\"%s\"", file->tag);
    dse_http_set_header(x, "ETag", tag);
    dse_http_set_header(x, "Cache-Control", "no-cache"); /* asked for each time: a new program has a new page */
    dse_http_set_header(x, "Vary", "Origin, Accept-Encoding");
    dse_http_set_header(x, "Content-Security-Policy", POLICY);
    dse_http_set_header(x, "Referrer-Policy", "no-referrer");
    dse_http_set_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    dse_http_set_header(x, "Cross-Origin-Resource-Policy", "same-origin");
    if (names_tag(dse_http_header(x, "If-None-Match"), tag)) {
        dse_http_respond(x, 304, NULL, NULL, 0);
        return;
    }
    if (gzip) dse_http_set_header(x, "Content-Encoding", "gzip");
    size_t bytes = gzip ? file->n_gzip : file->n_bytes;
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, bytes + 1);
    dse_buffer_append(&out, gzip ? file->gzip : file->bytes, bytes);
    dse_answer_buffer(server, x, 200, file->content_type, &out);
}

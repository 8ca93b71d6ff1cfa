/* Answers with embedded files (see embedded.h). Called by ui.c and openapi.c on the I/O thread: waits for nobody. */
#include "server/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "server/errors.h"

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

void dse_answer_embedded(struct dse_server *server, struct dse_http_exchange *x, const struct dse_embedded_file *file)
{
    bool gzip = accepts_gzip(dse_http_header(x, "Accept-Encoding"));
    char tag[64];
    snprintf(tag, sizeof tag, gzip ? "\"%s-gzip\"" : "\"%s\"", file->tag);
    dse_http_set_header(x, "ETag", tag);
    dse_http_set_header(x, "Cache-Control", "no-cache"); /* asked for each time: a new program has new files */
    dse_http_set_header(x, "Vary", "Origin, Accept-Encoding");
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

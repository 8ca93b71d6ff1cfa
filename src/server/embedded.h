/* Files inside the program, made by tools/embed_files.py: the page (web/), the description of the interface. An answer is
 * compressed for who takes that, and short for who has the file already. */
#ifndef DSE_SERVER_EMBEDDED_H
#define DSE_SERVER_EMBEDDED_H

#include <stddef.h>

#include "server/http.h"

struct dse_server;

struct dse_embedded_file {
    const char *name; /* "app.js" */
    const char *content_type;
    const char *tag; /* of this content, without quotes */
    const unsigned char *bytes, *gzip;
    size_t n_bytes, n_gzip;
};

extern const struct dse_embedded_file dse_ui_files[], dse_openapi_files[];
extern const size_t dse_n_ui_files, dse_n_openapi_files;

/* Headers that only this file has are set before. */
void dse_answer_embedded(struct dse_server *server, struct dse_http_exchange *x, const struct dse_embedded_file *file);

#endif

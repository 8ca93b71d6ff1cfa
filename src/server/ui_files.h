/* The files of the page (web/), embedded into the program: made by tools/embed_files.py, served by ui.c. */
#ifndef DSE_SERVER_UI_FILES_H
#define DSE_SERVER_UI_FILES_H

#include <stddef.h>

struct dse_ui_file {
    const char *name; /* "app.js" */
    const char *content_type;
    const char *tag; /* of this content, without quotes */
    const unsigned char *bytes, *gzip;
    size_t n_bytes, n_gzip;
};

extern const struct dse_ui_file dse_ui_files[];
extern const size_t dse_ui_n_files;

#endif

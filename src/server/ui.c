/* The web page at `/` and the files it loads from `/ui/`, embedded (embedded.h). On the I/O thread: waits for nobody.
 *
 * Needs no key: there is nothing secret in it, and it asks for the key itself. The policy sent along forbids the page
 * everything it does not do: other hosts, inline scripts and styles, turning text into HTML, being framed.
 */
#include <string.h>

#include "server/embedded.h"
#include "server/errors.h"
#include "server/server_internal.h"

#define POLICY                                                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "   \
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

/* The page is not repeated below /v1 and /beta as the API is: its links are relative to its own place. */
static const struct dse_embedded_file *find_file(const char *path)
{
    const char *name = strcmp(path, "/") == 0 ? "index.html" : strncmp(path, "/ui/", 4) == 0 ? path + 4 : "";
    for (size_t i = 0; i < dse_n_ui_files; i++)
        if (strcmp(name, dse_ui_files[i].name) == 0) return &dse_ui_files[i];
    return NULL;
}

void dse_handle_ui(struct dse_server *server, struct dse_http_exchange *x)
{
    const struct dse_embedded_file *file = server->ui ? find_file(dse_http_path(x)) : NULL;
    if (!file) {
        dse_answer_problem(server, x, 404, NULL, "not_found", "there is nothing at this path");
        return;
    }
    dse_http_set_header(x, "Content-Security-Policy", POLICY);
    dse_http_set_header(x, "Referrer-Policy", "no-referrer");
    dse_http_set_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    dse_http_set_header(x, "Cross-Origin-Resource-Policy", "same-origin");
    dse_answer_embedded(server, x, file);
}

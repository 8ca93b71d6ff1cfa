/* GET /openapi.json: the description of all endpoints, which is the file openapi.json beside this one. A test compares
 * it with the route table and with what the endpoints answer. On the I/O thread. */
#include "server/embedded.h"
#include "server/server_internal.h"

void dse_handle_openapi(struct dse_server *server, struct dse_http_exchange *x)
{
    dse_answer_embedded(server, x, &dse_openapi_files[0]);
}

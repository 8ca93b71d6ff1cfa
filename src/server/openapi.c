/* GET /openapi.json: the description of all endpoints, which is the file openapi.json beside this one. A test compares
 * it with the route table and with what the endpoints answer. On the I/O thread. */
#include "base/alloc.h"
#include "server/errors.h"
#include "server/openapi_json.h"
#include "server/server_internal.h"

void dse_handle_openapi(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, sizeof openapi_json + 1);
    dse_buffer_append(&out, openapi_json, sizeof openapi_json);
    dse_answer_buffer(server, x, 200, "application/json", &out);
}

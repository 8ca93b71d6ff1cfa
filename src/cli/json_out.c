/* JSON on standard output. */
#include "cli/json_out.h"

#include <stdbool.h>
#include <stdio.h>

static enum dse_status print(json_t *value, size_t flags, struct dse_error *err)
{
    if (value == NULL) return dse_fail_memory(err, 64, "the JSON output");
    bool ok = json_dumpf(value, stdout, flags) == 0 && fputc('\n', stdout) != EOF;
    json_decref(value);
    return ok ? DSE_OK : dse_fail(err, DSE_ERR_IO, "cannot write to standard output");
}

enum dse_status dse_print_json(json_t *value, struct dse_error *err)
{
    return print(value, JSON_INDENT(2), err);
}
enum dse_status dse_print_json_line(json_t *value, struct dse_error *err)
{
    return print(value, JSON_COMPACT, err);
}

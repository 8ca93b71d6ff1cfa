/* JSON on standard output. */
#include "cli/json_out.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/utf8.h"

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

json_t *dse_json_lossy_string(const char *text)
{
    struct dse_buffer buffer;
    dse_buffer_init(&buffer, DSE_MEM_MISC, SIZE_MAX / 4);
    size_t bytes = strlen(text);
    for (size_t at = 0, used = 1; at < bytes; at += used) {
        if (dse_utf8_decode(text + at, bytes - at, &used) != DSE_UTF8_INVALID) {
            dse_buffer_append(&buffer, text + at, used);
        } else {
            dse_buffer_puts(&buffer, "\xEF\xBF\xBD");
            used = 1;
        }
    }
    json_t *value = buffer.failed ? NULL : json_string(dse_buffer_text(&buffer));
    dse_buffer_deinit(&buffer);
    return value;
}

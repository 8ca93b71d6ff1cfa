/* Reading what the verbs share. */
#include "cli/input.h"

#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/file.h"
#include "text/chat_builtin.h"
#include "text/chat_template.h"

enum dse_status dse_read_stdin(size_t max_bytes, char **text, size_t *bytes, struct dse_error *err)
{
    struct dse_buffer buffer;
    char block[65536];
    *text = NULL;
    dse_buffer_init(&buffer, DSE_MEM_MISC, max_bytes);
    for (size_t n; (n = fread(block, 1, sizeof block, stdin)) > 0;)
        dse_buffer_append(&buffer, block, n);
    if (buffer.failed) {
        dse_buffer_deinit(&buffer);
        return dse_fail(err, DSE_ERR_LIMIT, "standard input is longer than %zu bytes", max_bytes);
    }
    *bytes = buffer.length;
    *text = dse_buffer_take(&buffer);
    return *text != NULL ? DSE_OK : dse_fail_memory(err, *bytes, "standard input");
}

enum dse_status dse_read_chat_template(const struct dse_options *options, char **source, size_t *bytes,
                                       struct dse_error *err)
{
    const char *path = dse_opt_text(options, DSE_OPT_CHAT_TEMPLATE);
    *source = NULL;
    *bytes = 0;
    if (path == NULL) return DSE_OK;
    const char *builtin = dse_chat_builtin_find(path);
    if (builtin != NULL) {
        *bytes = strlen(builtin);
        *source = dse_strndup(DSE_MEM_MISC, builtin, *bytes);
        return *source != NULL ? DSE_OK : dse_fail_memory(err, *bytes, "chat template");
    }
    return dse_file_read(path, dse_template_limits_default.max_source_bytes, source, bytes, err);
}

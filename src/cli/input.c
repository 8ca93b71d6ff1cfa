/* Reading what the verbs share. */
#include "cli/input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/chat_builtin.h"
#include "text/chat_template.h"

/* A buffer that takes no more is full, or the memory is. */
static enum dse_status fail_append(const struct dse_buffer *buffer, size_t bytes, const char *what,
                                   struct dse_error *err)
{
    if (bytes > buffer->max_bytes - buffer->length)
        return dse_fail(err, DSE_ERR_LIMIT, "%s is longer than %zu bytes", what, buffer->max_bytes);
    return dse_fail_memory(err, buffer->length + bytes, what);
}

enum dse_status dse_read_stdin(size_t max_bytes, char **text, size_t *bytes, struct dse_error *err)
{
    static const char what[] = "standard input";
    struct dse_buffer buffer;
    char block[65536];
    enum dse_status status = DSE_OK;
    *text = NULL;
    dse_buffer_init(&buffer, DSE_MEM_MISC, max_bytes);
    for (size_t n; status == DSE_OK && (n = fread(block, 1, sizeof block, stdin)) > 0;)
        if (!dse_buffer_append(&buffer, block, n)) status = fail_append(&buffer, n, what, err);
    if (status == DSE_OK && ferror(stdin)) status = dse_fail_errno(err, errno, what, "read");
    *bytes = buffer.length;
    if (status == DSE_OK && (*text = dse_buffer_take(&buffer)) == NULL) status = dse_fail_memory(err, 1, what);
    dse_buffer_deinit(&buffer);
    return status;
}

enum dse_status dse_read_line(struct dse_buffer *line, bool *more, struct dse_error *err)
{
    static const char what[] = "a line of standard input";
    dse_buffer_clear(line);
    *more = false;
    flockfile(stdin);
    enum dse_status status = DSE_OK;
    int c;
    while (status == DSE_OK && (c = getc_unlocked(stdin)) != EOF && c != '\n') {
        *more = true;
        if (!dse_buffer_putc(line, (char)c)) status = fail_append(line, 1, what, err);
    }
    *more = *more || (status == DSE_OK && c == '\n');
    if (status == DSE_OK && ferror(stdin)) status = dse_fail_errno(err, errno, "standard input", "read");
    funlockfile(stdin);
    return status;
}

enum dse_status dse_check_text(const char *text, size_t bytes, const char *what, struct dse_error *err)
{
    const char *nul = memchr(text, '\0', bytes);
    if (nul == NULL) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, what, nul - text, "%s holds a NUL at byte %zu: it is no text", what,
                       (size_t)(nul - text));
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

/* Standard input, output and error as main and the verbs need them. See streams.h. */
#include "cli/streams.h"

#include <errno.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"

void dse_streams_open_missing(void)
{
    /* A descriptor that the caller closed would be given to the next file that is opened, a model for instance, and
     * then be read or written as a standard stream. The wrong direction makes the use of a closed stream fail as
     * before. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (opened >= 0 && opened != fd) close(opened);
    }
}

int dse_streams_finish(int exit_code)
{
    /* An earlier failure leaves the mark only, a failure now sets errno too. */
    errno = 0;
    bool lost = fflush(stdout) != 0;
    int reason = errno;
    if (!lost && !ferror(stdout)) return exit_code;
    fprintf(stderr, "deepseek-edge: cannot write to standard output%s%s\n", reason != 0 ? ": " : "",
            reason != 0 ? strerror(reason) : "");
    return exit_code != 0 ? exit_code : dse_status_exit_code(DSE_ERR_IO);
}

void dse_put_safely(struct dse_buffer *out, const char *text, size_t bytes)
{
    for (size_t at = 0, used = 1; at < bytes; at += used) {
        uint32_t code = dse_utf8_decode(text + at, bytes - at, &used);
        bool control = code == DSE_UTF8_INVALID || (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0);
        if (!control) dse_buffer_append(out, text + at, used);
        for (size_t i = 0; control && i < used; i++)
            dse_buffer_printf(out, "\\x%02x", (unsigned char)text[at + i]);
    }
}

void dse_talk(const char *format, ...)
{
    va_list arguments;
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_MISC, 1u << 16);
    va_start(arguments, format);
    dse_buffer_vprintf(&text, format, arguments);
    va_end(arguments);
    if (!dse_log_is_json()) {
        fwrite(dse_buffer_text(&text), 1, text.length, stderr);
    } else if (text.data != NULL) {
        for (char *save = NULL, *line = strtok_r(text.data, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save))
            dse_log_always("serve", line + strspn(line, " "));
    }
    dse_buffer_deinit(&text);
}

void dse_print_safely(FILE *out, const char *text)
{
    struct dse_buffer buffer;
    dse_buffer_init(&buffer, DSE_MEM_MISC, SIZE_MAX / 4);
    dse_put_safely(&buffer, text, strlen(text));
    fwrite(dse_buffer_text(&buffer), 1, buffer.length, out);
    if (buffer.failed) fputs("…", out); /* no memory for the rest */
    dse_buffer_deinit(&buffer);
}

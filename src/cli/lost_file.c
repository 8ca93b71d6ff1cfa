/* The SIGBUS handler: model files and pack caches are mapped, so a file that is truncated or whose disk fails while in
 * use shows itself as this signal, in the middle of any computation, on any thread.
 *
 * Installed by main; the library leaves signals alone. The handler calls async-signal-safe functions only. It finds the
 * file's name in /proc/self/maps, so that nobody has to keep a list of maps; without /proc the sentence has no name.
 */
#include "cli/lost_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static uintptr_t parse_hex(const char **at)
{
    uintptr_t value = 0;
    for (;; ++*at) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (uintptr_t)(c - 'a' + 10);
        else
            return value;
    }
}

/* "begin-end permissions offset device inode   /path": the path if address is inside, else NULL. */
static const char *path_if_inside(const char *line, uintptr_t address)
{
    uintptr_t begin = parse_hex(&line);
    if (*line++ != '-') return NULL;
    uintptr_t end = parse_hex(&line);
    return address >= begin && address < end ? strchr(line, '/') : NULL;
}

/* The file mapped at address; NULL if unknown. line holds it; a longer path is cut. */
static const char *mapped_path(uintptr_t address, char *line, size_t size)
{
    char chunk[1024];
    const char *path = NULL;
    size_t used = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t n; path == NULL && fd >= 0 && (n = read(fd, chunk, sizeof chunk)) > 0;) {
        for (ssize_t i = 0; path == NULL && i < n; i++) {
            if (chunk[i] != '\n') {
                /* The name is somebody's choice: nothing in it that a terminal would obey. */
                bool control = (unsigned char)chunk[i] < 0x20 || chunk[i] == 0x7F;
                if (used + 1 < size) line[used++] = control ? '?' : chunk[i];
                continue;
            }
            line[used] = '\0';
            used = 0;
            path = path_if_inside(line, address);
        }
    }
    if (fd >= 0) close(fd);
    return path;
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* nobody left to tell */
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    static atomic_flag is_told = ATOMIC_FLAG_INIT;
    if (info->si_code != BUS_ADRERR) { /* sent by someone, or broken memory: as if there were no handler */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    /* All threads of the pool may get here at once; the first one speaks and ends the process. */
    while (atomic_flag_test_and_set(&is_told))
        pause();
    char line[4096 + 128];
    const char *path = mapped_path((uintptr_t)info->si_addr, line, sizeof line);
    say("deepseek-edge: a mapped model file became shorter while in use, or its disk failed: ");
    say(path != NULL ? path : "(name unknown)");
    say("; put the whole file back and start again\n");
    _exit(dse_status_exit_code(DSE_ERR_CORRUPT));
}

void dse_lost_file_watch(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

/* The terminal: colour or not, Ctrl-C, sizes for people. */
#include "cli/terminal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile bool dse_terminal_interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (dse_terminal_interrupted) _exit(130);
    dse_terminal_interrupted = true;
}

void dse_terminal_watch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a read in progress returns */
}

bool dse_terminal_colour(const char *when, int fd)
{
    const char *no = getenv("NO_COLOR"), *force = getenv("CLICOLOR_FORCE"), *term = getenv("TERM");
    if (when != NULL && strcmp(when, "always") == 0) return true;
    if (when != NULL && strcmp(when, "never") == 0) return false;
    if (no != NULL && no[0] != '\0') return false;
    if (force != NULL && force[0] != '\0' && strcmp(force, "0") != 0) return true;
    return isatty(fd) && term != NULL && strcmp(term, "dumb") != 0;
}

const char *dse_format_bytes(unsigned long long bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32,
             unit == 0     ? "%.0f %s"
             : value < 10  ? "%.2f %s"
             : value < 100 ? "%.1f %s"
                           : "%.0f %s",
             value, units[unit]);
    return out;
}

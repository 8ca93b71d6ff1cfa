/* Taking the terminal and giving it back, signals included. See top_terminal.h; called by top.c. Everything here but
 * dse_top_terminal_take runs in signal handlers and must keep to what is safe there. */
#include "cli/top_terminal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define ENTER_SCREEN "\033[?1049h\033[?25l"
#define LEAVE_SCREEN "\033[?25h\033[?1049l"

static struct termios before, raw;
static bool has_input;
static volatile sig_atomic_t is_taken;

static void put(const char *text)
{
    ssize_t written = write(STDOUT_FILENO, text, strlen(text));
    (void)written; /* nowhere to report it */
}

static void take(void)
{
    is_taken = 1;
    if (has_input) tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    put(ENTER_SCREEN);
}

void dse_top_terminal_give_back(void)
{
    if (!is_taken) return; /* stopped: it is the shell's */
    put(LEAVE_SCREEN);
    if (has_input) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    is_taken = 0;
}

static void on_end(int number)
{
    dse_top_terminal_give_back();
    if (number == SIGINT) _exit(130);
    raise(number); /* comes when this returns, to the default action */
}

static void on_stop(int number)
{
    const struct sigaction again = {.sa_handler = on_stop, .sa_flags = SA_RESETHAND | SA_NODEFER};
    const int kept = errno;
    dse_top_terminal_give_back();
    raise(number); /* stops here */
    sigaction(number, &again, NULL);
    if (!is_taken) take(); /* without a shell that could bring it back nothing was stopped */
    errno = kept;
}

/* Also after SIGSTOP, which gives nothing back: the shell has changed the terminal since. */
static void on_continue(int number)
{
    const int kept = errno;
    (void)number;
    take();
    errno = kept;
}

static void on_resize(int number)
{
    (void)number;
}

static bool is_deadly(int number)
{
    static const int others[] = {SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
    struct sigaction now;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (number == others[i]) return false;
    return number == SIGINT || (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN);
}

bool dse_top_terminal_take(void)
{
    struct sigaction end = {.sa_handler = on_end, .sa_flags = SA_RESETHAND};
    const struct sigaction resize = {.sa_handler = on_resize}, go_on = {.sa_handler = on_continue},
                           stop = {.sa_handler = on_stop, .sa_flags = SA_RESETHAND | SA_NODEFER};
    has_input = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    sigfillset(&end.sa_mask); /* SIGTTOU too: what ends in the background must not stop at the terminal */
    for (int number = 1; number <= SIGRTMAX; number++)
        if (is_deadly(number)) sigaction(number, &end, NULL); /* refused for SIGKILL and SIGSTOP */
    sigaction(SIGWINCH, &resize, NULL);                       /* no SA_RESTART: a wait in progress returns */
    sigaction(SIGTSTP, &stop, NULL);
    sigaction(SIGCONT, &go_on, NULL);
    take();
    return has_input;
}

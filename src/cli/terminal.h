/* The terminal: colour or not, and Ctrl-C. */
#ifndef DSE_CLI_TERMINAL_H
#define DSE_CLI_TERMINAL_H

#include <stdbool.h>

/* Colour on this descriptor? when: "auto", "always", "never". Honours NO_COLOR, CLICOLOR_FORCE and TERM=dumb. */
bool dse_terminal_colour(const char *when, int fd);

/* SIGINT sets dse_terminal_interrupted instead of ending the process; a second one before it is cleared ends it
 * (130). */
void dse_terminal_watch_interrupts(void);
extern volatile bool dse_terminal_interrupted;

/* "1.5 GiB" into out. */
const char *dse_format_bytes(unsigned long long bytes, char out[32]);

#endif

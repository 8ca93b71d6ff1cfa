/* The terminal while `top` has its screen: the alternate screen, no cursor, keys as they come. Once taken it is given
 * back before a signal ends or stops the process, and taken anew when it goes on. One per process. */
#ifndef DSE_CLI_TOP_TERMINAL_H
#define DSE_CLI_TOP_TERMINAL_H

#include <stdbool.h>

/* Standard output is a terminal; standard input may be one. Returns whether it is. SIGINT ends the process with 130,
 * other signals as by default. A wait in progress returns when the picture has to be drawn anew. */
bool dse_top_terminal_take(void);
void dse_top_terminal_give_back(void);

#endif

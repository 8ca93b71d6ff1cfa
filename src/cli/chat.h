/* The chat on a terminal: line editing, history, /commands. */
#ifndef DSE_CLI_CHAT_H
#define DSE_CLI_CHAT_H

#include "cli/run_session.h"

DSE_MUST_CHECK enum dse_status dse_chat(struct dse_run_session *session, struct dse_error *err);

#endif

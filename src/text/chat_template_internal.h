/* What a parsed template holds. Used by chat_template.c and chat_probe.c only. */
#ifndef DSE_TEXT_CHAT_TEMPLATE_INTERNAL_H
#define DSE_TEXT_CHAT_TEMPLATE_INTERNAL_H

#include "base/arena.h"
#include "text/chat_template.h"

struct dse_jinja_node;

struct dse_template {
    struct dse_template_limits limits;
    struct dse_arena arena; /* source, tokens, tree */
    const char *source;     /* NUL-terminated */
    size_t source_bytes;
    const struct dse_jinja_node *root;
};

#endif

/* What a parsed template holds. Used by chat_template.c and chat_probe.c only. */
#ifndef DSE_TEXT_CHAT_TEMPLATE_INTERNAL_H
#define DSE_TEXT_CHAT_TEMPLATE_INTERNAL_H

#include "base/arena.h"
#include "text/chat_template.h"

struct dse_jinja_node;

/* What several renderings may take together. */
struct dse_template_budget {
    struct dse_template_limits limits; /* of each: those of the template, unless its user lowers them */
    uint64_t deadline_ns;
    uint64_t steps; /* taken so far */
};
void dse_template_budget_start(struct dse_template_budget *budget, const struct dse_template *tmpl);
/* dse_template_render within what is left. */
DSE_MUST_CHECK enum dse_status dse_template_render_within(const struct dse_template *tmpl,
                                                          const struct dse_template_inputs *inputs,
                                                          struct dse_template_budget *budget, char **text,
                                                          size_t *bytes, struct dse_error *err);

struct dse_template {
    struct dse_template_limits limits;
    struct dse_arena arena; /* source, tokens, tree */
    const char *source;     /* NUL-terminated */
    size_t source_bytes;
    const struct dse_jinja_node *root;
};

#endif

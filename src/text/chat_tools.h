/* Tools for models whose template has no place for them, or none that we can read calls from: their description joins
 * the system message. Called by the server before a prompt is rendered.
 *
 * Templates of V3, R1 and V3.1 render calls and results, but no tools: their own form is described then. Others are told
 * of the form of DSE_TOOLS_QWEN, and earlier calls and results become text in it. */
#ifndef DSE_TEXT_CHAT_TOOLS_H
#define DSE_TEXT_CHAT_TOOLS_H

#include <jansson.h>

#include "base/error.h"
#include "text/chat_template.h"

enum dse_tools_told {
    DSE_TOLD_BY_TEMPLATE, /* messages and tools go to the template as they are */
    DSE_TOLD_OWN_FORM,    /* the template renders calls, their form is described to it */
    DSE_TOLD_IN_WORDS,    /* all is text, in the form of DSE_TOOLS_QWEN */
};

/* tools: the request has some. */
enum dse_tools_told dse_chat_tools_told(const struct dse_template_traits *traits, bool tools);
/* For all but DSE_TOLD_BY_TEMPLATE. messages and tools as the client sent them, checked; tools NULL: there is nothing to
 * describe. *out: a new owned array. */
DSE_MUST_CHECK enum dse_status dse_chat_tools_as_text(const struct dse_template_traits *traits, const json_t *messages,
                                                      const json_t *tools, json_t **out, struct dse_error *err);

#endif

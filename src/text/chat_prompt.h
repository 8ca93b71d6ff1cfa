/* Messages -> token ids of the prompt: normalise, render, encode, with the texts of the client kept as text.
 *
 * A template writes control tokens as literal text around the contents of messages. A content that itself holds the text
 * of a control token (`<|im_end|>`, `<think>`) must not become that token: while rendering, such places carry a marker of
 * Unicode noncharacters; the markers are taken out again before encoding and only tell the tokenizer where no added token
 * may match. So the ids are those of the rendered text, except that hostile text stays text.
 */
#ifndef DSE_TEXT_CHAT_PROMPT_H
#define DSE_TEXT_CHAT_PROMPT_H

#include <jansson.h>

#include "text/chat_template.h"
#include "text/tokenizer.h"

struct dse_chat_prompt {
    char *text; /* as rendered, without markers; owned */
    size_t bytes;
    struct dse_tokens tokens; /* owned */
    bool opens_thinking;      /* the prompt ends inside an open <think> */
};

/* inputs->messages as the client sent them. bos_token and eos_token of inputs may be NULL: then the tokenizer's are used.
 * encode false leaves tokens empty. On error nothing is left to free. */
DSE_MUST_CHECK enum dse_status dse_chat_prompt_build(const struct dse_template *tmpl,
                                                     const struct dse_template_traits *traits,
                                                     const struct dse_tokenizer *tokenizer,
                                                     const struct dse_template_inputs *inputs, bool encode,
                                                     struct dse_chat_prompt *out, struct dse_error *err);
void dse_chat_prompt_deinit(struct dse_chat_prompt *prompt);

#endif

/* Messages -> prompt: normalise, render, encode, with the texts of the client kept as text.
 *
 * A content that holds the text of a control token (`<|im_end|>`, `<think>`) does not become that token: such places
 * are marked while rendering (chat_marks.h), and no added token may match across a mark when the text is encoded. So
 * the ids are those of the rendered text, but for what would have been a control token, which is the ids of its plain
 * text.
 */
#ifndef DSE_TEXT_CHAT_PROMPT_H
#define DSE_TEXT_CHAT_PROMPT_H

#include <jansson.h>

#include "text/chat_marks.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

struct dse_chat_prompt {
    char *text; /* as rendered, without marks; owned */
    size_t bytes;
    struct dse_tokens tokens; /* owned */
    bool opens_thinking;      /* the prompt ends inside an open <think> */
};

enum dse_chat_prompt_flags {
    DSE_PROMPT_ENCODE = 1,         /* fill tokens */
    DSE_PROMPT_CONTINUE_FINAL = 2, /* the last message begins the answer: the prompt ends right behind its content */
};

/* inputs->messages as the client sent them. bos_token and eos_token of inputs may be NULL: then the tokenizer's are
 * used. marks: of this tokenizer, made once. A longer text than max_bytes is DSE_ERR_TOO_LONG (err->need: its bytes)
 * before it is encoded. On error nothing is left to free. */
DSE_MUST_CHECK enum dse_status
dse_chat_prompt_render(const struct dse_template *tmpl, const struct dse_template_traits *traits,
                       const struct dse_tokenizer *tokenizer, const struct dse_chat_marks *marks,
                       const struct dse_template_inputs *inputs, unsigned flags, size_t max_bytes,
                       struct dse_chat_prompt *out, struct dse_error *err);
/* The same for a single prompt: makes the marks for itself. */
DSE_MUST_CHECK enum dse_status dse_chat_prompt_build(const struct dse_template *tmpl,
                                                     const struct dse_template_traits *traits,
                                                     const struct dse_tokenizer *tokenizer,
                                                     const struct dse_template_inputs *inputs, bool encode,
                                                     struct dse_chat_prompt *out, struct dse_error *err);
void dse_chat_prompt_deinit(struct dse_chat_prompt *prompt);

#endif

/* Marks that keep the texts of control tokens inside messages from becoming control tokens.
 *
 * A template mixes its own control texts (<|im_start|>, …) with the client's. Before rendering, each place in a message
 * where a control token's text stands is replaced by a mark: private-use characters with the token's index. After
 * rendering the marks tell which literals are text. The mark character itself is marked likewise, so that any text
 * survives.
 */
#ifndef DSE_TEXT_CHAT_MARKS_H
#define DSE_TEXT_CHAT_MARKS_H

#include <stdbool.h>

#include "base/buffer.h"
#include "text/tokenizer.h"

/* The control tokens of a tokenizer, whose texts are borrowed from it. Immutable. */
struct dse_chat_marks;
DSE_MUST_CHECK enum dse_status dse_chat_marks_create(const struct dse_tokenizer *tokenizer, struct dse_chat_marks **out,
                                                     struct dse_error *err);
void dse_chat_marks_free(struct dse_chat_marks *marks);

/* Puts text with marks into out, which is cleared first. In the assistant's own texts visible tags (</think>) stay as
 * they are: templates look for them there. */
bool dse_chat_marks_apply(const struct dse_chat_marks *marks, const char *text, size_t bytes, bool assistant,
                          struct dse_buffer *out);
/* Appends the mark that stands for the end of what is wanted of a rendering. */
bool dse_chat_marks_put_end(struct dse_buffer *out);

enum dse_chat_piece_kind {
    DSE_PIECE_TEXT,    /* the template's or a client's; control tokens in it are meant */
    DSE_PIECE_LITERAL, /* a control token's text that a client wrote */
    DSE_PIECE_END,     /* an end mark; bytes 0 */
};
struct dse_chat_piece {
    enum dse_chat_piece_kind kind;
    const char *text;
    size_t bytes;
};
/* Next piece of marked text from *position on; false at the end. */
bool dse_chat_marks_next(const struct dse_chat_marks *marks, const char *text, size_t bytes, size_t *position,
                         struct dse_chat_piece *piece);

#endif

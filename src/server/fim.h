/* Filling holes in a text: the tokens that a model was trained with for it, and prompts made with them. */
#ifndef DSE_SERVER_FIM_H
#define DSE_SERVER_FIM_H

#include "server/openai_common.h"
#include "server/server_internal.h"
#include "text/tokenizer.h"

/* Fills in served->fim from the model's file, else from the texts of known tokens; all -1 if there are none. */
void dse_fim_find(struct dse_served *served);

static inline bool dse_fim_possible(const struct dse_served *served)
{
    return served->fim.prefix >= 0;
}

struct dse_fim_hole {
    const char *before, *behind; /* control texts in them stay text */
    size_t before_bytes, behind_bytes;
    const struct dse_tokens *ids; /* NULL, or what is before the hole instead of a text */
};
/* Appends the prompt, without a BOS, to *out. */
DSE_MUST_CHECK enum dse_status dse_fim_encode(const struct dse_served *served, const struct dse_fim_hole *hole,
                                              struct dse_tokens *out, struct dse_error *err);
/* What ends a filling besides the model's own stops: it goes on to another hole or file. */
void dse_fim_add_stops(const struct dse_served *served, struct dse_gen_params *params);

#endif

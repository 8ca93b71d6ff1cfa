/* Log probabilities of tokens between the sampler and the answer, in both of OpenAI's forms. */
#ifndef DSE_SERVER_LOGPROBS_H
#define DSE_SERVER_LOGPROBS_H

#include <dse/dse.h>

#include "base/buffer.h"
#include "text/tokenizer.h"

struct dse_logprob_entry {
    int32_t token;
    bool has_logprob; /* the first token of a prompt has none */
    float logprob;
    uint32_t text_offset; /* code points before it */
    size_t raw_start;     /* bytes before it */
    int n_top;
    struct dse_token_logprob top[DSE_MAX_TOP_LOGPROBS];
};

struct dse_logprobs {
    struct dse_logprob_entry *entries; /* owned */
    size_t count, capacity;
    bool failed; /* there was no memory for an entry */
};

/* Returns the new entry, or NULL without memory. */
struct dse_logprob_entry *dse_logprobs_add(struct dse_logprobs *list, int32_t token, float logprob,
                                           const struct dse_token_logprob *top, int n_top);
void dse_logprobs_clear(struct dse_logprobs *list);
void dse_logprobs_deinit(struct dse_logprobs *list);
/* Drops entries that begin at or after this byte of the raw text. */
void dse_logprobs_cut(struct dse_logprobs *list, size_t raw_bytes);
/* Moves entries that begin before this byte of the raw text to the end of another list. false: no memory. */
bool dse_logprobs_move(struct dse_logprobs *from, struct dse_logprobs *to, size_t raw_bytes);

/* [{token,logprob,bytes,top_logprobs}] of entries [begin, end) */
void dse_put_token_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                            const struct dse_logprobs *list, size_t begin, size_t end, int n_top);
/* {"content":[{token,logprob,bytes,top_logprobs}],"refusal":null} */
void dse_put_chat_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                           const struct dse_logprobs *list, int n_top);
/* {"tokens","token_logprobs","top_logprobs","text_offset"} over the prompt's list (may be NULL) and the choice's. */
void dse_put_completion_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                                 const struct dse_logprobs *prompt, const struct dse_logprobs *list);

#endif

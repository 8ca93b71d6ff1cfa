/* Makes a tokenizer from an opened model. Called by whoever opened the model; the two formats are read in
 * tokenizer_source_gguf.c and tokenizer_source_json.c. Never trusts a number or a text of the file.
 */
#include "model/tokenizer_source.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "model/tokenizer_source_internal.h"

enum dse_status dse_tokenizer_parts_allocate(struct dse_tokenizer_parts *parts, size_t n_tokens, size_t n_merges,
                                             struct dse_error *err)
{
    parts->tokens = dse_calloc(DSE_MEM_TEXT, n_tokens ? n_tokens : 1, sizeof *parts->tokens);
    parts->kinds = dse_calloc(DSE_MEM_TEXT, n_tokens ? n_tokens : 1, 1);
    parts->merges = dse_calloc(DSE_MEM_TEXT, n_merges ? n_merges : 1, 2 * sizeof *parts->merges);
    if (!parts->tokens || !parts->kinds || !parts->merges)
        return dse_fail_memory(err, (n_tokens + 2 * n_merges) * sizeof *parts->tokens, "the vocabulary");
    parts->def.tokens = parts->tokens;
    parts->def.n_tokens = n_tokens;
    parts->def.kinds = parts->kinds;
    parts->def.merges = parts->merges;
    parts->def.n_merges = n_merges;
    return DSE_OK;
}

bool dse_tokenizer_split_merge(const char *text, size_t bytes, struct dse_slice sides[2])
{
    const char *blank = memchr(text, ' ', bytes);
    if (!blank) return false;
    size_t left = (size_t)(blank - text), right = bytes - left - 1;
    if (left == 0 || right == 0 || memchr(blank + 1, ' ', right)) return false;
    sides[0] = (struct dse_slice){text, left};
    sides[1] = (struct dse_slice){blank + 1, right};
    return true;
}

bool dse_tokenizer_is_byte_char(const char *text, size_t bytes)
{
    size_t used = 0;
    if (bytes == 0) return false;
    uint32_t c = dse_utf8_decode(text, bytes, &used);
    return used == bytes && ((c >= 33 && c <= 126) || (c >= 161 && c < 256 + 68 && c != 173));
}

enum dse_status dse_tokenizer_from_model(const struct dse_model_file *file, struct dse_tokenizer **out,
                                         struct dse_error *err)
{
    struct dse_tokenizer_parts parts = {0};
    parts.def.bos = parts.def.eos = parts.def.eot = parts.def.pad = -1;
    enum dse_status status;
    if (file->tokenizer_json)
        status = dse_tokenizer_parts_from_json(file->tokenizer_json, file->tokenizer_config, &parts, err);
    else if (file->gguf)
        status = dse_tokenizer_parts_from_gguf(file->gguf, &parts, err);
    else
        status = dse_fail_at(err, DSE_ERR_NOT_FOUND, "tokenizer.json", -1,
                             "\"%.200s\" has no tokenizer.json beside it; copy it from where the model came from",
                             file->path ? file->path : "");
    if (status == DSE_OK) status = dse_tokenizer_create(&parts.def, out, err);
    if (status != DSE_OK && err != NULL && file->path != NULL && strstr(err->message, file->path) == NULL) {
        const struct dse_error cause = *err;
        (void)dse_fail_at(err, status, file->path, cause.offset, "%s: %s", file->path, cause.message);
    }
    dse_free(parts.tokens);
    dse_free(parts.kinds);
    dse_free(parts.merges);
    return status;
}

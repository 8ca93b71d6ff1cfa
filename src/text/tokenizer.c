/* The tokenizer: added tokens are cut out of the text, what lies between is normalised, split into pieces and merged.
 *
 * Created by model/tokenizer_source*.c from what a file says; used by the engine's clients on any thread. Nothing is
 * written to a tokenizer after creation; the memory of an encoding belongs to the call.
 */
#include "text/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_nfc.h"
#include "text/tokenizer_vocab.h"

struct dse_tokenizer {
    struct dse_vocab vocab;
    struct dse_bpe *bpe;
    struct dse_pretokenizer *pre;
    bool nfc, ignore_merges, add_bos;
    int32_t bos, eos, eot;
    int32_t *stops; /* ids that end a generation */
    size_t n_stops;
};

/* Control tokens that end a turn whatever else the file says. */
static const char *const stop_texts[] = {
    "<｜end▁of▁sentence｜>",
    "<|end▁of▁sentence|>",
    "<|EOT|>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "</s>",
};
#define N_STOP_TEXTS (sizeof stop_texts / sizeof stop_texts[0])

/* ---- creation ------------------------------------------------------------------------------------------------ */

/* One side of a merge, or both joined, to a token. Added tokens are found too, to tell them from nothing. */
static int32_t find_part(const struct dse_vocab *vocab, const char *text, size_t bytes, char *scratch, bool *is_added)
{
    size_t n = 0;
    int32_t id = -1;
    if (dse_byte_level_decode(text, bytes, scratch, &n) && n > 0) id = dse_vocab_find(vocab, scratch, n);
    *is_added = id < 0 && dse_vocab_find_added(vocab, text, bytes) >= 0;
    return id;
}

static enum dse_status resolve_merge(const struct dse_vocab *vocab, const struct dse_slice *parts, size_t rank,
                                     struct dse_buffer *joined, char *scratch, struct dse_bpe_merge *merge,
                                     struct dse_error *err)
{
    dse_buffer_clear(joined);
    dse_buffer_append(joined, parts[0].data, parts[0].bytes);
    dse_buffer_append(joined, parts[1].data, parts[1].bytes);
    if (joined->failed) return dse_fail_memory(err, parts[0].bytes + parts[1].bytes, "a merge");
    bool added[3];
    int32_t ids[3] = {
        find_part(vocab, parts[0].data, parts[0].bytes, scratch, &added[0]),
        find_part(vocab, parts[1].data, parts[1].bytes, scratch, &added[1]),
        find_part(vocab, dse_buffer_text(joined), joined->length, scratch, &added[2]),
    };
    *merge = (struct dse_bpe_merge){ids[0], ids[1], ids[2]};
    for (int i = 0; i < 3; i++) {
        if (ids[i] >= 0) continue;
        if (!added[i])
            return dse_fail(err, DSE_ERR_CORRUPT,
                            "merge %zu (\"%.*s\" + \"%.*s\") refers to a token that is not in the vocabulary", rank,
                            (int)(parts[0].bytes < 40 ? parts[0].bytes : 40), parts[0].data,
                            (int)(parts[1].bytes < 40 ? parts[1].bytes : 40), parts[1].data);
        /* Added tokens come from matching alone: text must never merge into one. */
        merge->left = -1;
    }
    return DSE_OK;
}

static enum dse_status create_bpe(struct dse_tokenizer *tokenizer, const struct dse_tokenizer_def *def,
                                  struct dse_error *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < 2 * def->n_merges; i++)
        if (def->merges[i].bytes > longest) longest = def->merges[i].bytes;
    struct dse_bpe_merge *merges = dse_calloc(DSE_MEM_TEXT, def->n_merges ? def->n_merges : 1, sizeof *merges);
    char *scratch = dse_alloc(DSE_MEM_TEXT, 2 * longest + 1);
    struct dse_buffer joined;
    dse_buffer_init(&joined, DSE_MEM_TEXT, 2 * longest + 1);
    enum dse_status status = DSE_OK;
    if (!merges || !scratch) status = dse_fail_memory(err, def->n_merges * sizeof *merges, "merges");
    for (size_t i = 0; status == DSE_OK && i < def->n_merges; i++)
        status = resolve_merge(&tokenizer->vocab, def->merges + 2 * i, i, &joined, scratch, &merges[i], err);
    if (status == DSE_OK)
        status = dse_bpe_create(tokenizer->vocab.byte_ids, merges, def->n_merges, &tokenizer->bpe, err);
    dse_buffer_deinit(&joined);
    dse_free(scratch);
    dse_free(merges);
    return status;
}

static enum dse_status collect_stops(struct dse_tokenizer *tokenizer, struct dse_error *err)
{
    tokenizer->stops = dse_calloc(DSE_MEM_TEXT, N_STOP_TEXTS + 2, sizeof *tokenizer->stops);
    if (!tokenizer->stops) return dse_fail_memory(err, N_STOP_TEXTS * sizeof *tokenizer->stops, "stop tokens");
    if (tokenizer->eos >= 0) tokenizer->stops[tokenizer->n_stops++] = tokenizer->eos;
    if (tokenizer->eot >= 0) tokenizer->stops[tokenizer->n_stops++] = tokenizer->eot;
    for (size_t i = 0; i < N_STOP_TEXTS; i++) {
        int32_t id = dse_tokenizer_find_added(tokenizer, stop_texts[i]);
        if (id >= 0 && tokenizer->vocab.kinds[id] == DSE_TOKEN_CONTROL) tokenizer->stops[tokenizer->n_stops++] = id;
    }
    return DSE_OK;
}

static enum dse_status check_ids(const struct dse_tokenizer_def *def, struct dse_error *err)
{
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos", def->bos}, {"eos", def->eos}, {"eot", def->eot}, {"pad", def->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i].id < -1 || (ids[i].id >= 0 && (size_t)ids[i].id >= def->n_tokens))
            return dse_fail(err, DSE_ERR_CORRUPT, "%s token id %d is outside the vocabulary of %zu tokens", ids[i].name,
                            (int)ids[i].id, def->n_tokens);
    return DSE_OK;
}

enum dse_status dse_tokenizer_create(const struct dse_tokenizer_def *def, struct dse_tokenizer **out,
                                     struct dse_error *err)
{
    struct dse_tokenizer *tokenizer = dse_calloc(DSE_MEM_TEXT, 1, sizeof *tokenizer);
    if (!tokenizer) return dse_fail_memory(err, sizeof *tokenizer, "the tokenizer");
    tokenizer->nfc = def->nfc;
    tokenizer->ignore_merges = def->ignore_merges;
    tokenizer->add_bos = def->add_bos && def->bos >= 0;
    tokenizer->bos = def->bos;
    tokenizer->eos = def->eos;
    tokenizer->eot = def->eot;
    enum dse_status status = dse_pretokenizer_create(def->pre, true, &tokenizer->pre, err);
    if (status == DSE_OK) status = check_ids(def, err);
    if (status == DSE_OK) status = dse_vocab_init(&tokenizer->vocab, def, err);
    if (status == DSE_OK) status = create_bpe(tokenizer, def, err);
    if (status == DSE_OK) status = collect_stops(tokenizer, err);
    if (status != DSE_OK) {
        dse_tokenizer_free(tokenizer);
        return status;
    }
    *out = tokenizer;
    return DSE_OK;
}

void dse_tokenizer_free(struct dse_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    dse_vocab_deinit(&tokenizer->vocab);
    dse_bpe_free(tokenizer->bpe);
    dse_pretokenizer_free(tokenizer->pre);
    dse_free(tokenizer->stops);
    dse_free(tokenizer);
}

/* ---- token lists --------------------------------------------------------------------------------------------- */

void dse_tokens_deinit(struct dse_tokens *tokens)
{
    dse_free(tokens->ids);
    *tokens = (struct dse_tokens){0};
}

enum dse_status dse_tokens_push(struct dse_tokens *tokens, int32_t id, struct dse_error *err)
{
    if (tokens->count == tokens->capacity) {
        size_t capacity, bytes;
        if (!dse_mul_size(tokens->capacity ? tokens->capacity : 32, 2, &capacity) ||
            !dse_mul_size(capacity, sizeof *tokens->ids, &bytes))
            return dse_fail_memory(err, SIZE_MAX, "tokens");
        int32_t *ids = dse_realloc(DSE_MEM_REQUEST, tokens->ids, bytes);
        if (!ids) return dse_fail_memory(err, bytes, "tokens");
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->count++] = id;
    return DSE_OK;
}

/* ---- encoding ------------------------------------------------------------------------------------------------ */

/* What one call of dse_tokenizer_encode works with. */
struct encoding {
    const struct dse_tokenizer *tokenizer;
    struct dse_pretokenizer_run run;
    struct dse_bpe_scratch scratch;
    struct dse_buffer normal;
    struct dse_tokens *out;
};

static enum dse_status encode_piece(void *user, const char *piece, size_t bytes, struct dse_error *err)
{
    struct encoding *encoding = user;
    const struct dse_tokenizer *tokenizer = encoding->tokenizer;
    if (tokenizer->ignore_merges) {
        int32_t id = dse_vocab_find(&tokenizer->vocab, piece, bytes);
        if (id >= 0) return dse_tokens_push(encoding->out, id, err);
    }
    return dse_bpe_encode(tokenizer->bpe, &encoding->scratch, piece, bytes, encoding->out, err);
}

/* Text without added tokens. */
static enum dse_status encode_plain(struct encoding *encoding, const char *text, size_t bytes, struct dse_error *err)
{
    if (bytes == 0) return DSE_OK;
    if (encoding->tokenizer->nfc) {
        enum dse_status status = dse_nfc(text, bytes, &encoding->normal, &text, &bytes, err);
        if (status != DSE_OK) return status;
    }
    return dse_pretokenizer_split(encoding->tokenizer->pre, &encoding->run, text, bytes, encode_piece, encoding, err);
}

static enum dse_status check_text(const char *text, size_t bytes, struct dse_error *err)
{
    if (bytes > INT32_MAX)
        return dse_fail(err, DSE_ERR_LIMIT, "text of %zu bytes, at most %d can be tokenized at once", bytes, INT32_MAX);
    if (dse_utf8_valid(text, bytes)) return DSE_OK;
    size_t at = 0, used = 0;
    while (at < bytes && dse_utf8_decode(text + at, bytes - at, &used) != DSE_UTF8_INVALID)
        at += used;
    return dse_fail_at(err, DSE_ERR_INVALID, "", (int64_t)at, "text is not valid UTF-8 at byte %zu", at);
}

/* All of the text. Added tokens are looked for between two barriers at a time, so none crosses one; what lies between
 * the tokens found is encoded as one, barriers or not. */
static enum dse_status encode_text(struct encoding *encoding, const char *text, size_t bytes, unsigned flags,
                                   const size_t *barriers, size_t n_barriers, struct dse_error *err)
{
    const struct dse_tokenizer *tokenizer = encoding->tokenizer;
    bool add_bos = (flags & DSE_ENCODE_ADD_BOS) && tokenizer->add_bos;
    enum dse_status status = add_bos ? dse_tokens_push(encoding->out, tokenizer->bos, err) : DSE_OK;
    size_t done = 0, next = 0;
    for (size_t search = 0; status == DSE_OK && search < bytes;) {
        size_t at;
        int32_t id;
        while (next < n_barriers && barriers[next] <= search)
            next++;
        size_t end = next < n_barriers && barriers[next] < bytes ? barriers[next] : bytes;
        if (!dse_vocab_next_added(&tokenizer->vocab, text, end, search, flags & DSE_ENCODE_PARSE_SPECIAL, &at, &id)) {
            search = end;
            continue;
        }
        status = encode_plain(encoding, text + done, at - done, err);
        bool is_second_bos = add_bos && at == 0 && id == tokenizer->bos;
        if (status == DSE_OK && !is_second_bos) status = dse_tokens_push(encoding->out, id, err);
        done = search = at + dse_vocab_token(&tokenizer->vocab, (size_t)id).bytes;
    }
    return status == DSE_OK ? encode_plain(encoding, text + done, bytes - done, err) : status;
}

enum dse_status dse_tokenizer_encode(const struct dse_tokenizer *tokenizer, const char *text, size_t bytes,
                                     unsigned flags, struct dse_tokens *out, struct dse_error *err)
{
    return dse_tokenizer_encode_guarded(tokenizer, text, bytes, flags, NULL, 0, out, err);
}

enum dse_status dse_tokenizer_encode_guarded(const struct dse_tokenizer *tokenizer, const char *text, size_t bytes,
                                             unsigned flags, const size_t *barriers, size_t n_barriers,
                                             struct dse_tokens *out, struct dse_error *err)
{
    size_t count_before = out->count;
    enum dse_status status = bytes ? check_text(text, bytes, err) : DSE_OK;
    if (status != DSE_OK) return status;
    struct encoding encoding = {.tokenizer = tokenizer, .out = out};
    dse_buffer_init(&encoding.normal, DSE_MEM_REQUEST, SIZE_MAX / 4);
    status = encode_text(&encoding, text, bytes, flags, barriers, n_barriers, err);
    if (status != DSE_OK) out->count = count_before;
    dse_buffer_deinit(&encoding.normal);
    dse_bpe_scratch_deinit(&encoding.scratch);
    dse_pretokenizer_run_deinit(&encoding.run);
    return status;
}

/* ---- questions ----------------------------------------------------------------------------------------------- */

static bool is_known(const struct dse_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (size_t)id < tokenizer->vocab.n_tokens;
}

size_t dse_tokenizer_count(const struct dse_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_tokens;
}

struct dse_slice dse_tokenizer_bytes(const struct dse_tokenizer *tokenizer, int32_t id)
{
    if (!is_known(tokenizer, id)) return (struct dse_slice){NULL, 0};
    return dse_vocab_token(&tokenizer->vocab, (size_t)id);
}

enum dse_token_kind dse_tokenizer_kind(const struct dse_tokenizer *tokenizer, int32_t id)
{
    return is_known(tokenizer, id) ? (enum dse_token_kind)tokenizer->vocab.kinds[id] : DSE_TOKEN_UNUSED;
}

int32_t dse_tokenizer_find_added(const struct dse_tokenizer *tokenizer, const char *text)
{
    return dse_vocab_find_added(&tokenizer->vocab, text, strlen(text));
}

int32_t dse_tokenizer_bos(const struct dse_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t dse_tokenizer_eos(const struct dse_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool dse_tokenizer_adds_bos(const struct dse_tokenizer *tokenizer)
{
    return tokenizer->add_bos;
}

bool dse_tokenizer_is_stop(const struct dse_tokenizer *tokenizer, int32_t id)
{
    for (size_t i = 0; i < tokenizer->n_stops; i++)
        if (tokenizer->stops[i] == id) return true;
    return false;
}

/* ---- decoding ------------------------------------------------------------------------------------------------ */

static enum dse_status replace_invalid(const char *text, size_t bytes, char **out, size_t *out_bytes,
                                       struct dse_error *err)
{
    struct dse_buffer buffer;
    dse_buffer_init(&buffer, DSE_MEM_REQUEST, SIZE_MAX / 4);
    size_t start = 0;
    for (size_t i = 0, used; i < bytes; i += used) {
        if (dse_utf8_decode(text + i, bytes - i, &used) != DSE_UTF8_INVALID) continue;
        dse_buffer_append(&buffer, text + start, i - start);
        dse_buffer_puts(&buffer, "\xEF\xBF\xBD");
        start = i + used;
    }
    dse_buffer_append(&buffer, text + start, bytes - start);
    *out_bytes = buffer.length;
    *out = dse_buffer_take(&buffer);
    dse_buffer_deinit(&buffer);
    return *out ? DSE_OK : dse_fail_memory(err, bytes, "decoded text");
}

enum dse_status dse_tokenizer_decode(const struct dse_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                     bool skip_special, char **text, size_t *bytes, struct dse_error *err)
{
    struct dse_buffer raw;
    dse_buffer_init(&raw, DSE_MEM_REQUEST, SIZE_MAX / 4);
    for (size_t i = 0; i < count; i++) {
        if (!is_known(tokenizer, ids[i])) {
            dse_buffer_deinit(&raw);
            return dse_fail(err, DSE_ERR_INVALID, "token id %d is outside the vocabulary of %zu tokens", (int)ids[i],
                            tokenizer->vocab.n_tokens);
        }
        if (skip_special && tokenizer->vocab.kinds[ids[i]] == DSE_TOKEN_CONTROL) continue;
        struct dse_slice token = dse_vocab_token(&tokenizer->vocab, (size_t)ids[i]);
        dse_buffer_append(&raw, token.data, token.bytes);
    }
    enum dse_status status = raw.failed ? dse_fail_memory(err, raw.length, "decoded text")
                                        : replace_invalid(dse_buffer_text(&raw), raw.length, text, bytes, err);
    dse_buffer_deinit(&raw);
    return status;
}

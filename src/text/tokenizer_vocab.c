/* Vocabulary of a tokenizer. Called by tokenizer.c. Definitions come from files: nothing in them is trusted, and
 * lookups stay fast whatever the texts are.
 */
#include "text/tokenizer_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/utf8.h"

/* An added token is compared at every place where its first byte occurs; real ones have fewer than 64 bytes. */
#define MAX_ADDED_BYTES 512
#define MAX_TOKENS      (1u << 26)

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes in order from U+0100. -1: no byte. */
static int byte_of_char(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 256 || c >= 256 + 68) return -1;
    c -= 256;
    return c < 33 ? (int)c : c < 67 ? (int)(c - 33 + 127) : 173;
}

bool dse_byte_level_decode(const char *text, size_t bytes, char *out, size_t *out_bytes)
{
    size_t n = 0;
    for (size_t i = 0, used; i < bytes; i += used) {
        int byte = byte_of_char(dse_utf8_decode(text + i, bytes - i, &used));
        if (byte < 0) return false;
        out[n++] = (char)byte;
    }
    *out_bytes = n;
    return true;
}

static bool is_added(uint8_t kind)
{
    return kind == DSE_TOKEN_CONTROL || kind == DSE_TOKEN_USER || kind == DSE_TOKEN_BYTE_CHAR;
}

/* ---- lookup of normal tokens ------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t seed, const char *bytes, size_t count)
{
    uint64_t h = seed ^ count;
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i < 8 ? count - i : 8);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static size_t slot_of(const struct dse_vocab *vocab, const char *bytes, size_t count)
{
    size_t i = (size_t)hash_bytes(vocab->seed, bytes, count) & vocab->mask;
    while (vocab->slots[i] >= 0) {
        struct dse_slice token = dse_vocab_token(vocab, (size_t)vocab->slots[i]);
        if (token.bytes == count && memcmp(token.data, bytes, count) == 0) break;
        i = (i + 1) & vocab->mask;
    }
    return i;
}

int32_t dse_vocab_find(const struct dse_vocab *vocab, const char *bytes, size_t count)
{
    return vocab->slots[slot_of(vocab, bytes, count)];
}

/* ---- added tokens ------------------------------------------------------------------------------------------ */

static int compare_added(const void *a, const void *b, void *user)
{
    struct dse_slice x = dse_vocab_token(user, (size_t) * (const int32_t *)a);
    struct dse_slice y = dse_vocab_token(user, (size_t) * (const int32_t *)b);
    int order = memcmp(x.data, y.data, x.bytes < y.bytes ? x.bytes : y.bytes);
    return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
}

/* Longest acceptable added token that text begins with. The sorted list is narrowed byte by byte: all tokens in
 * [low, high) share the first `depth` bytes with the text. */
static int32_t longest_added(const struct dse_vocab *vocab, const char *text, size_t bytes, bool special)
{
    uint8_t first = (uint8_t)text[0];
    size_t low = vocab->added_begin[first], high = vocab->added_begin[first + 1];
    int32_t best = -1;
    for (size_t depth = 1; low < high; depth++) {
        int32_t id = vocab->added[low];
        if (dse_vocab_token(vocab, (size_t)id).bytes == depth) { /* the shortest comes first */
            if (special || vocab->kinds[id] == DSE_TOKEN_BYTE_CHAR) best = id;
            low++;
        }
        if (depth >= bytes) break;
        uint8_t next = (uint8_t)text[depth];
        size_t a = low, b = high;
        while (a < b) { /* first token whose byte at depth is not below next */
            size_t middle = a + (b - a) / 2;
            uint8_t byte = (uint8_t)dse_vocab_token(vocab, (size_t)vocab->added[middle]).data[depth];
            if (byte < next)
                a = middle + 1;
            else
                b = middle;
        }
        low = a, b = high;
        while (a < b) { /* first token whose byte at depth is above next */
            size_t middle = a + (b - a) / 2;
            uint8_t byte = (uint8_t)dse_vocab_token(vocab, (size_t)vocab->added[middle]).data[depth];
            if (byte <= next)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return best;
}

bool dse_vocab_next_added(const struct dse_vocab *vocab, const char *text, size_t bytes, size_t from, bool special,
                          size_t *at, int32_t *id)
{
    for (size_t i = from; i < bytes; i++) {
        uint8_t first = (uint8_t)text[i];
        if (vocab->added_begin[first] == vocab->added_begin[first + 1]) continue;
        *id = longest_added(vocab, text + i, bytes - i, special);
        *at = i;
        if (*id >= 0) return true;
    }
    return false;
}

int32_t dse_vocab_find_added(const struct dse_vocab *vocab, const char *bytes, size_t count)
{
    size_t a = 0, b = vocab->n_added;
    while (a < b) {
        size_t middle = a + (b - a) / 2;
        struct dse_slice token = dse_vocab_token(vocab, (size_t)vocab->added[middle]);
        int order = memcmp(token.data, bytes, token.bytes < count ? token.bytes : count);
        if (order == 0) order = (token.bytes > count) - (token.bytes < count);
        if (order == 0) return vocab->added[middle];
        if (order < 0)
            a = middle + 1;
        else
            b = middle;
    }
    return -1;
}

static enum dse_status init_added(struct dse_vocab *vocab, struct dse_error *err)
{
    for (size_t i = 0; i < vocab->n_tokens; i++)
        if (is_added(vocab->kinds[i])) vocab->added[vocab->n_added++] = (int32_t)i;
    qsort_r(vocab->added, vocab->n_added, sizeof *vocab->added, compare_added, vocab);
    for (size_t i = 0, first = 0; first <= 256; first++) {
        while (i < vocab->n_added && (uint8_t)dse_vocab_token(vocab, (size_t)vocab->added[i]).data[0] < first)
            i++;
        vocab->added_begin[first] = (uint32_t)i;
    }
    for (size_t i = 1; i < vocab->n_added; i++)
        if (compare_added(&vocab->added[i - 1], &vocab->added[i], vocab) == 0)
            return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: added tokens %d and %d have the same text \"%.40s\"",
                            (int)vocab->added[i - 1], (int)vocab->added[i],
                            dse_vocab_token(vocab, (size_t)vocab->added[i]).data);
    return DSE_OK;
}

/* ---- creation ------------------------------------------------------------------------------------------------ */

static enum dse_status check_token(const struct dse_tokenizer_def *def, size_t i, struct dse_error *err)
{
    struct dse_slice token = def->tokens[i];
    if (def->kinds[i] > DSE_TOKEN_BYTE_CHAR)
        return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: token %zu has the unknown kind %d", i, def->kinds[i]);
    if (token.bytes && !dse_utf8_valid(token.data, token.bytes))
        return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: token %zu is not valid UTF-8", i);
    if (is_added(def->kinds[i]) && (token.bytes == 0 || token.bytes > MAX_ADDED_BYTES))
        return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: added token %zu has %zu bytes, 1 to %d are possible", i,
                        token.bytes, MAX_ADDED_BYTES);
    return DSE_OK;
}

static enum dse_status allocate(struct dse_vocab *vocab, const struct dse_tokenizer_def *def, struct dse_error *err)
{
    size_t n = def->n_tokens, total = 0, n_slots = 16;
    for (size_t i = 0; i < n; i++) {
        enum dse_status status = check_token(def, i, err);
        if (status != DSE_OK) return status;
        if (!dse_add_size(total, def->tokens[i].bytes, &total) || !dse_add_size(total, 1, &total))
            return dse_fail_memory(err, SIZE_MAX, "the vocabulary");
    }
    while (n_slots < 2 * n)
        n_slots *= 2;
    vocab->mask = n_slots - 1;
    vocab->seed = dse_clock_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)vocab;
    vocab->bytes = dse_alloc(DSE_MEM_TEXT, total);
    vocab->offsets = dse_calloc(DSE_MEM_TEXT, n + 1, sizeof *vocab->offsets);
    vocab->kinds = dse_calloc(DSE_MEM_TEXT, n, 1);
    vocab->slots = dse_calloc(DSE_MEM_TEXT, n_slots, sizeof *vocab->slots);
    vocab->added = dse_calloc(DSE_MEM_TEXT, n, sizeof *vocab->added);
    if (!vocab->bytes || !vocab->offsets || !vocab->kinds || !vocab->slots || !vocab->added)
        return dse_fail_memory(err, total + n_slots * sizeof *vocab->slots, "the vocabulary");
    memset(vocab->slots, 0xFF, n_slots * sizeof *vocab->slots);
    memset(vocab->byte_ids, 0xFF, sizeof vocab->byte_ids);
    return DSE_OK;
}

enum dse_status dse_vocab_init(struct dse_vocab *vocab, const struct dse_tokenizer_def *def, struct dse_error *err)
{
    if (def->n_tokens == 0) return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: no tokens");
    if (def->n_tokens > MAX_TOKENS)
        return dse_fail(err, DSE_ERR_LIMIT, "vocabulary: %zu tokens, at most %u are supported", def->n_tokens,
                        MAX_TOKENS);
    enum dse_status status = allocate(vocab, def, err);
    if (status != DSE_OK) return status;
    vocab->n_tokens = def->n_tokens;
    size_t end = 0;
    for (size_t i = 0; i < def->n_tokens; i++) {
        struct dse_slice token = def->tokens[i];
        uint8_t kind = vocab->kinds[i] = def->kinds[i];
        char *at = vocab->bytes + end;
        size_t bytes = 0;
        bool is_plain = kind == DSE_TOKEN_NORMAL && dse_byte_level_decode(token.data, token.bytes, at, &bytes);
        if (!is_plain && kind != DSE_TOKEN_UNUSED) {
            /* Added tokens are stored as they are; so decodes a normal one with a character of no byte. */
            bytes = token.bytes;
            if (bytes) memcpy(at, token.data, bytes);
        }
        at[bytes] = '\0';
        end += bytes + 1;
        vocab->offsets[i + 1] = end;
        if (!is_plain || bytes == 0) continue; /* an empty token can never be produced */
        size_t slot = slot_of(vocab, at, bytes);
        if (vocab->slots[slot] >= 0)
            return dse_fail(err, DSE_ERR_CORRUPT, "vocabulary: tokens %d and %zu have the same text \"%.*s\"",
                            (int)vocab->slots[slot], i, (int)(token.bytes < 40 ? token.bytes : 40), token.data);
        vocab->slots[slot] = (int32_t)i;
        if (bytes == 1) vocab->byte_ids[(uint8_t)*at] = (int32_t)i;
    }
    /* Where the base vocabulary lacks a byte, the added token of its character stands in. */
    for (size_t i = 0; i < def->n_tokens; i++) {
        char byte[MAX_ADDED_BYTES];
        size_t bytes = 0;
        if (def->kinds[i] != DSE_TOKEN_BYTE_CHAR) continue;
        if (dse_byte_level_decode(def->tokens[i].data, def->tokens[i].bytes, byte, &bytes) && bytes == 1 &&
            vocab->byte_ids[(uint8_t)byte[0]] < 0)
            vocab->byte_ids[(uint8_t)byte[0]] = (int32_t)i;
    }
    return init_added(vocab, err);
}

void dse_vocab_deinit(struct dse_vocab *vocab)
{
    dse_free(vocab->bytes);
    dse_free(vocab->offsets);
    dse_free(vocab->kinds);
    dse_free(vocab->slots);
    dse_free(vocab->added);
    *vocab = (struct dse_vocab){0};
}

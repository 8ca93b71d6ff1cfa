/* Log probabilities in answers (see logprobs.h). */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define NO_CHANCE (-9999.0) /* stands for minus infinity, which JSON lacks */

static bool reserve(struct dse_logprobs *list, size_t count)
{
    if (count <= list->capacity) return true;
    size_t capacity = list->capacity ? list->capacity * 2 : 16;
    if (capacity < count) capacity = count;
    struct dse_logprob_entry *grown = dse_realloc(DSE_MEM_REQUEST, list->entries, capacity * sizeof *grown);
    list->failed |= !grown;
    if (!grown) return false;
    list->entries = grown;
    list->capacity = capacity;
    return true;
}

struct dse_logprob_entry *dse_logprobs_add(struct dse_logprobs *list, int32_t token, float logprob,
                                           const struct dse_token_logprob *top, int n_top)
{
    if (!reserve(list, list->count + 1)) return NULL;
    struct dse_logprob_entry *entry = &list->entries[list->count++];
    memset(entry, 0, sizeof *entry);
    entry->token = token;
    entry->has_logprob = true;
    entry->logprob = logprob;
    entry->n_top = n_top > DSE_MAX_TOP_LOGPROBS ? DSE_MAX_TOP_LOGPROBS : n_top;
    if (entry->n_top > 0) memcpy(entry->top, top, (size_t)entry->n_top * sizeof *top);
    return entry;
}

void dse_logprobs_clear(struct dse_logprobs *list)
{
    list->count = 0;
}

void dse_logprobs_deinit(struct dse_logprobs *list)
{
    dse_free(list->entries);
    *list = (struct dse_logprobs){0};
}

void dse_logprobs_cut(struct dse_logprobs *list, size_t raw_bytes)
{
    while (list->count > 0 && list->entries[list->count - 1].raw_start >= raw_bytes)
        list->count--;
}

bool dse_logprobs_move(struct dse_logprobs *from, struct dse_logprobs *to, size_t raw_bytes)
{
    size_t n = 0;
    while (n < from->count && from->entries[n].raw_start < raw_bytes)
        n++;
    if (n == 0) return true;
    if (!reserve(to, to->count + n)) return false;
    memcpy(to->entries + to->count, from->entries, n * sizeof *to->entries);
    memmove(from->entries, from->entries + n, (from->count - n) * sizeof *from->entries);
    to->count += n;
    from->count -= n;
    return true;
}

static void put_number(struct dse_buffer *out, float logprob)
{
    double value = isfinite(logprob) && logprob > NO_CHANCE ? (double)logprob : NO_CHANCE;
    dse_buffer_printf(out, "%.6f", value > 0 ? 0.0 : value);
}

static void put_token_text(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, int32_t token)
{
    struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, token);
    dse_buffer_put_json_string(out, bytes.data ? bytes.data : "", bytes.bytes);
}

static void put_chat_token(struct dse_buffer *out, const struct dse_tokenizer *tokenizer, int32_t token, float logprob)
{
    struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, token);
    dse_buffer_puts(out, "{\"token\":");
    put_token_text(out, tokenizer, token);
    dse_buffer_puts(out, ",\"logprob\":");
    put_number(out, logprob);
    dse_buffer_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.bytes; i++)
        dse_buffer_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes.data[i]);
    dse_buffer_putc(out, ']');
}

void dse_put_token_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                            const struct dse_logprobs *list, size_t begin, size_t end, int n_top)
{
    dse_buffer_putc(out, '[');
    for (size_t i = begin; i < end; i++) {
        const struct dse_logprob_entry *entry = &list->entries[i];
        if (i > begin) dse_buffer_putc(out, ',');
        put_chat_token(out, tokenizer, entry->token, entry->logprob);
        dse_buffer_puts(out, ",\"top_logprobs\":[");
        for (int k = 0; k < entry->n_top && k < n_top; k++) {
            if (k) dse_buffer_putc(out, ',');
            put_chat_token(out, tokenizer, entry->top[k].token, entry->top[k].logprob);
            dse_buffer_putc(out, '}');
        }
        dse_buffer_puts(out, "]}");
    }
    dse_buffer_putc(out, ']');
}

void dse_put_chat_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                           const struct dse_logprobs *list, int n_top)
{
    dse_buffer_puts(out, "{\"content\":");
    dse_put_token_logprobs(out, tokenizer, list, 0, list->count, n_top);
    dse_buffer_puts(out, ",\"refusal\":null}");
}

/* The list of one prompt or choice goes on after another, so commas are asked for by position. */
struct walk {
    const struct dse_logprobs *lists[2];
};

static const struct dse_logprob_entry *entry_at(const struct walk *walk, size_t i)
{
    size_t first = walk->lists[0] ? walk->lists[0]->count : 0;
    if (i < first) return &walk->lists[0]->entries[i];
    return i - first < walk->lists[1]->count ? &walk->lists[1]->entries[i - first] : NULL;
}

static bool same_text(const struct dse_tokenizer *tokenizer, int32_t a, int32_t b)
{
    struct dse_slice x = dse_tokenizer_bytes(tokenizer, a), y = dse_tokenizer_bytes(tokenizer, b);
    return a == b || (x.bytes == y.bytes && (x.bytes == 0 || memcmp(x.data, y.data, x.bytes) == 0));
}

/* An object by token text; the sampled token is always in it. Of equal texts the likelier stays. */
static void put_top_object(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                           const struct dse_logprob_entry *entry)
{
    bool has_own = false;
    dse_buffer_putc(out, '{');
    for (int k = 0; k < entry->n_top; k++) {
        bool repeated = false;
        for (int j = 0; j < k && !repeated; j++)
            repeated = same_text(tokenizer, entry->top[j].token, entry->top[k].token);
        if (repeated) continue;
        has_own |= same_text(tokenizer, entry->top[k].token, entry->token);
        if (k) dse_buffer_putc(out, ',');
        put_token_text(out, tokenizer, entry->top[k].token);
        dse_buffer_putc(out, ':');
        put_number(out, entry->top[k].logprob);
    }
    if (!has_own) {
        if (entry->n_top) dse_buffer_putc(out, ',');
        put_token_text(out, tokenizer, entry->token);
        dse_buffer_putc(out, ':');
        put_number(out, entry->logprob);
    }
    dse_buffer_putc(out, '}');
}

void dse_put_completion_logprobs(struct dse_buffer *out, const struct dse_tokenizer *tokenizer,
                                 const struct dse_logprobs *prompt, const struct dse_logprobs *list)
{
    struct walk walk = {{prompt, list}};
    const struct dse_logprob_entry *entry;
    dse_buffer_puts(out, "{\"tokens\":[");
    for (size_t i = 0; (entry = entry_at(&walk, i)); i++) {
        if (i) dse_buffer_putc(out, ',');
        put_token_text(out, tokenizer, entry->token);
    }
    dse_buffer_puts(out, "],\"token_logprobs\":[");
    for (size_t i = 0; (entry = entry_at(&walk, i)); i++) {
        if (i) dse_buffer_putc(out, ',');
        if (entry->has_logprob)
            put_number(out, entry->logprob);
        else
            dse_buffer_puts(out, "null");
    }
    dse_buffer_puts(out, "],\"top_logprobs\":[");
    for (size_t i = 0; (entry = entry_at(&walk, i)); i++) {
        if (i) dse_buffer_putc(out, ',');
        if (entry->has_logprob)
            put_top_object(out, tokenizer, entry);
        else
            dse_buffer_puts(out, "null");
    }
    dse_buffer_puts(out, "],\"text_offset\":[");
    for (size_t i = 0; (entry = entry_at(&walk, i)); i++)
        dse_buffer_printf(out, i ? ",%u" : "%u", (unsigned)entry->text_offset);
    dse_buffer_puts(out, "]}");
}

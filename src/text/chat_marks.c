/* Marks for control tokens inside messages (see chat_marks.h). */
#include "text/chat_marks.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

/* A mark: MARK and three digits of base 64, all in plane 16's private use area, four bytes each. */
#define MARK       "\xF4\x8F\xA3\xB0" /* U+10F8F0 */
#define DIGIT_ZERO 0x10F900u
#define MARK_BYTES 16
enum { INDEX_MARK = 0, INDEX_END = 1, INDEX_FIRST = 2, INDEX_LIMIT = 64 * 64 * 64 };

#define MAX_DEPTH 130

struct literal {
    const char *text;
    size_t bytes;
    bool control;
};

struct dse_chat_marks {
    struct literal *literals; /* sorted by bytes; texts belong to the tokenizer */
    size_t count;
};

static int compare_literals(const void *a, const void *b)
{
    const struct literal *x = a, *y = b;
    size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp(x->text, y->text, n);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Added tokens that are tags by their look; others (runs of blanks, rare letters) are ordinary text. Of the tags of
 * V3.2 and V4 only the middle is a token, ｜DSML｜. */
static bool is_tag(struct dse_slice text)
{
    static const char *const ends[][2] = {{"<", ">"}, {"[", "]"}, {"｜", "｜"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t first = strlen(ends[i][0]), last = strlen(ends[i][1]);
        if (text.bytes > first + last && memcmp(text.data, ends[i][0], first) == 0 &&
            memcmp(text.data + text.bytes - last, ends[i][1], last) == 0)
            return true;
    }
    return false;
}

enum dse_status dse_chat_marks_create(const struct dse_tokenizer *tokenizer, struct dse_chat_marks **out,
                                      struct dse_error *err)
{
    struct dse_chat_marks *marks = dse_calloc(DSE_MEM_TEXT, 1, sizeof *marks);
    if (!marks) return dse_fail_memory(err, sizeof *marks, "control token table");
    size_t n_tokens = dse_tokenizer_count(tokenizer), capacity = 0;
    for (size_t id = 0; id < n_tokens; id++) {
        enum dse_token_kind kind = dse_tokenizer_kind(tokenizer, (int32_t)id);
        struct dse_slice text = dse_tokenizer_bytes(tokenizer, (int32_t)id);
        bool control = kind == DSE_TOKEN_CONTROL;
        if (text.bytes == 0 || !(control || (kind == DSE_TOKEN_USER && is_tag(text)))) continue;
        if (marks->count == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            struct literal *grown = dse_realloc(DSE_MEM_TEXT, marks->literals, capacity * sizeof *grown);
            if (!grown || capacity > INDEX_LIMIT / 2) {
                if (grown) marks->literals = grown;
                dse_chat_marks_free(marks);
                return dse_fail(err, DSE_ERR_LIMIT, "the tokenizer has too many control tokens");
            }
            marks->literals = grown;
        }
        marks->literals[marks->count++] = (struct literal){text.data, text.bytes, control};
    }
    if (marks->count) qsort(marks->literals, marks->count, sizeof *marks->literals, compare_literals);
    *out = marks;
    return DSE_OK;
}

void dse_chat_marks_free(struct dse_chat_marks *marks)
{
    if (!marks) return;
    dse_free(marks->literals);
    dse_free(marks);
}

/* First literal of [low, high) whose byte at depth is at least c; all share the bytes before. */
static size_t bound(const struct dse_chat_marks *marks, size_t low, size_t high, size_t depth, unsigned c)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct literal *l = &marks->literals[middle];
        if (l->bytes > depth && (unsigned char)l->text[depth] >= c)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The longest literal that text begins with, or -1. Assistant texts keep their visible tags (</think>): templates look
 * for them. */
static long match(const struct dse_chat_marks *marks, const char *text, size_t bytes, bool assistant)
{
    size_t low = 0, high = marks->count;
    long best = -1;
    for (size_t depth = 0; depth < bytes && low < high; depth++) {
        unsigned c = (unsigned char)text[depth];
        low = bound(marks, low, high, depth, c);
        high = bound(marks, low, high, depth, c + 1);
        if (low < high && marks->literals[low].bytes == depth + 1 && (marks->literals[low].control || !assistant))
            best = (long)low;
    }
    return best;
}

static void put_mark(struct dse_buffer *out, unsigned index)
{
    dse_buffer_puts(out, MARK);
    for (int shift = 12; shift >= 0; shift -= 6) {
        char bytes[4];
        size_t n = dse_utf8_encode(DIGIT_ZERO + (index >> shift & 63), bytes);
        dse_buffer_append(out, bytes, n);
    }
}

/* Index of a mark at text, or -1 if there is none. */
static long read_mark(const char *text, size_t bytes)
{
    if (bytes < MARK_BYTES || memcmp(text, MARK, 4) != 0) return -1;
    unsigned index = 0;
    for (int i = 1; i < 4; i++) {
        size_t used;
        uint32_t digit = dse_utf8_decode(text + 4 * i, bytes - (size_t)(4 * i), &used) - DIGIT_ZERO;
        if (digit > 63) return -1;
        index = index << 6 | digit;
    }
    return (long)index;
}

bool dse_chat_marks_apply(const struct dse_chat_marks *marks, const char *text, size_t bytes, bool assistant,
                          struct dse_buffer *out)
{
    size_t plain = 0;
    dse_buffer_clear(out);
    for (size_t i = 0; i < bytes;) {
        size_t skip = 0;
        unsigned index = INDEX_MARK;
        if (bytes - i >= 4 && memcmp(text + i, MARK, 4) == 0) {
            skip = 4;
        } else {
            long found = match(marks, text + i, bytes - i, assistant);
            if (found >= 0) {
                skip = marks->literals[found].bytes;
                index = (unsigned)found + INDEX_FIRST;
            }
        }
        if (skip == 0) {
            i++;
            continue;
        }
        dse_buffer_append(out, text + plain, i - plain);
        put_mark(out, index);
        i += skip;
        plain = i;
    }
    dse_buffer_append(out, text + plain, bytes - plain);
    return !out->failed;
}

bool dse_chat_marks_put_end(struct dse_buffer *out)
{
    put_mark(out, INDEX_END);
    return !out->failed;
}

bool dse_chat_marks_next(const struct dse_chat_marks *marks, const char *text, size_t bytes, size_t *position,
                         struct dse_chat_piece *piece)
{
    size_t i = *position;
    if (i >= bytes) return false;
    const char *at = memmem(text + i, bytes - i, MARK, 4);
    size_t plain = at ? (size_t)(at - text) - i : bytes - i;
    *piece = (struct dse_chat_piece){DSE_PIECE_TEXT, text + i, plain};
    *position = i + plain;
    if (plain > 0) return true;

    long index = read_mark(at, bytes - i);
    if (index == INDEX_END) {
        *piece = (struct dse_chat_piece){.kind = DSE_PIECE_END, .text = ""};
        *position = i + MARK_BYTES;
    } else if (index >= INDEX_FIRST && (size_t)index < marks->count + INDEX_FIRST) {
        const struct literal *l = &marks->literals[index - INDEX_FIRST];
        *piece = (struct dse_chat_piece){DSE_PIECE_LITERAL, l->text, l->bytes};
        *position = i + MARK_BYTES;
    } else { /* a mark for the mark character, or the template's own */
        *piece = (struct dse_chat_piece){DSE_PIECE_TEXT, at, 4};
        *position = i + (index == INDEX_MARK ? MARK_BYTES : 4);
    }
    return true;
}

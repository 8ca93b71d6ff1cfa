/* Template source -> tokens, with Jinja's rules for white space around tags.
 *
 *   {%-  -%}   strip all white space on that side
 *   {%+        keep what lstrip_blocks would strip: blanks between the start of a line and a block or comment
 *   +%}        keep what trim_blocks would strip: the newline right behind a block or comment
 *
 * Called by chat_template.c. Positions only ever move forward: linear time.
 */
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_ast.h"
#include "text/jinja_text.h"

struct lexer {
    const char *source;
    size_t bytes, at;
    uint32_t line;
    bool line_start; /* the tag before ended a line (or this is the beginning) */
    struct dse_arena *arena;
    struct dse_jinja_tokens *tokens;
    struct dse_error *err;
};

static enum dse_status fail(struct lexer *lexer, uint32_t line, const char *what)
{
    enum dse_status status = dse_fail(lexer->err, DSE_ERR_CORRUPT, "chat template line %u: %s", line, what);
    if (lexer->err) lexer->err->line = line;
    return status;
}

static enum dse_status add(struct lexer *lexer, enum dse_jinja_token_kind kind, size_t begin, size_t end)
{
    struct dse_jinja_tokens *tokens = lexer->tokens;
    if (tokens->count == tokens->capacity) {
        size_t capacity = tokens->capacity ? tokens->capacity * 2 : 256;
        struct dse_jinja_token *items = dse_arena_alloc(lexer->arena, capacity * sizeof(*items));
        if (!items) return dse_fail_memory(lexer->err, capacity * sizeof(*items), "chat template");
        if (tokens->count) memcpy(items, tokens->items, tokens->count * sizeof(*items));
        tokens->items = items;
        tokens->capacity = capacity;
    }
    tokens->items[tokens->count++] = (struct dse_jinja_token){
        .kind = kind, .text = lexer->source + begin, .bytes = (uint32_t)(end - begin), .line = lexer->line};
    return DSE_OK;
}

static void advance(struct lexer *lexer, size_t to)
{
    for (; lexer->at < to; lexer->at++)
        if (lexer->source[lexer->at] == '\n') lexer->line++;
}

static bool starts(const struct lexer *lexer, size_t at, const char *text)
{
    size_t bytes = strlen(text);
    return at <= lexer->bytes && bytes <= lexer->bytes - at && memcmp(lexer->source + at, text, bytes) == 0;
}

static size_t skip_space(const struct lexer *lexer, size_t at)
{
    size_t used;
    while (at < lexer->bytes && dse_jv_is_space(dse_utf8_decode(lexer->source + at, lexer->bytes - at, &used)))
        at += used;
    return at;
}

static size_t rstrip(const struct lexer *lexer, size_t begin, size_t end)
{
    while (end > begin) {
        size_t last = end - 1, used;
        while (last > begin && ((unsigned char)lexer->source[last] & 0xC0) == 0x80)
            last--;
        if (!dse_jv_is_space(dse_utf8_decode(lexer->source + last, end - last, &used))) break;
        end = last;
    }
    return end;
}

/* End of the text [begin, end) once the tag behind it has stripped its part. */
static size_t text_end(const struct lexer *lexer, size_t begin, size_t end, char sign, bool is_print)
{
    if (sign == '-') return rstrip(lexer, begin, end);
    if (sign == '+' || is_print) return end;
    size_t line = end;
    while (line > begin && lexer->source[line - 1] != '\n')
        line--;
    if (line == begin && !lexer->line_start) return end;
    return skip_space(lexer, line) >= end ? line : end;
}

/* Position behind a closing delimiter at `at` (its sign already seen), with the white space that it strips. */
static size_t after_close(struct lexer *lexer, size_t at, char sign, bool trims)
{
    if (sign == '-') {
        at = skip_space(lexer, at);
    } else if (sign != '+' && trims && at < lexer->bytes && lexer->source[at] == '\n') {
        at++;
    }
    lexer->line_start = lexer->source[at - 1] == '\n';
    return at;
}

static enum dse_status lex_comment(struct lexer *lexer, size_t body)
{
    const char *end = memmem(lexer->source + body, lexer->bytes - body, "#}", 2);
    if (!end) return fail(lexer, lexer->line, "comment without #}");
    size_t at = (size_t)(end - lexer->source);
    char sign = at > body ? lexer->source[at - 1] : 0;
    advance(lexer, after_close(lexer, at + 2, sign, true));
    return DSE_OK;
}

/* Length of `{% name %}` at `at` when it is that tag, else 0. Signs of both ends are given back. */
static size_t match_tag(const struct lexer *lexer, size_t at, const char *name, char *open, char *close)
{
    size_t begin = at;
    if (!starts(lexer, at, "{%")) return 0;
    at += 2;
    *open = *close = 0;
    if (starts(lexer, at, "-") || starts(lexer, at, "+")) *open = lexer->source[at++];
    at = skip_space(lexer, at);
    if (!starts(lexer, at, name)) return 0;
    at = skip_space(lexer, at + strlen(name));
    if (starts(lexer, at, "-") || starts(lexer, at, "+")) *close = lexer->source[at++];
    return starts(lexer, at, "%}") ? at + 2 - begin : 0;
}

static enum dse_status lex_raw(struct lexer *lexer, size_t tag_bytes, char close)
{
    uint32_t line = lexer->line;
    size_t begin = after_close(lexer, lexer->at + tag_bytes, close, false);
    advance(lexer, begin);
    for (size_t at = begin; at < lexer->bytes; at++) {
        char open, end_sign;
        const char *next = memmem(lexer->source + at, lexer->bytes - at, "{%", 2);
        if (!next) break;
        at = (size_t)(next - lexer->source);
        size_t bytes = match_tag(lexer, at, "endraw", &open, &end_sign);
        if (!bytes) continue;
        size_t end = text_end(lexer, begin, at, open, false);
        enum dse_status status = end > begin ? add(lexer, DSE_TOKEN_DATA, begin, end) : DSE_OK;
        advance(lexer, after_close(lexer, at + bytes, end_sign, true));
        return status;
    }
    return fail(lexer, line, "{% raw %} without {% endraw %}");
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t skip_digits(const struct lexer *lexer, size_t at)
{
    while (at < lexer->bytes && (is_digit(lexer->source[at]) || (lexer->source[at] == '_' && at + 1 < lexer->bytes &&
                                                                 is_digit(lexer->source[at + 1]))))
        at++;
    return at;
}

static size_t number_end(const struct lexer *lexer, size_t at, bool *is_float)
{
    const char *s = lexer->source;
    *is_float = false;
    if (s[at] == '0' && at + 1 < lexer->bytes && memchr("xXbBoO", s[at + 1], 6)) {
        at += 2;
        while (at < lexer->bytes && (is_digit(s[at]) || s[at] == '_' || ((s[at] | 32) >= 'a' && (s[at] | 32) <= 'f')))
            at++;
        return at;
    }
    at = skip_digits(lexer, at);
    if (at + 1 < lexer->bytes && s[at] == '.' && is_digit(s[at + 1])) {
        *is_float = true;
        at = skip_digits(lexer, at + 1);
    }
    if (at + 1 < lexer->bytes && (s[at] | 32) == 'e') {
        size_t exponent = at + 1;
        if (s[exponent] == '+' || s[exponent] == '-') exponent++;
        if (exponent < lexer->bytes && is_digit(s[exponent])) {
            *is_float = true;
            at = skip_digits(lexer, exponent);
        }
    }
    return at;
}

/* One token of an expression at lexer->at. */
static enum dse_status lex_token(struct lexer *lexer)
{
    static const char *const operators[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const char *s = lexer->source;
    size_t begin = lexer->at, end = begin;
    enum dse_jinja_token_kind kind = DSE_TOKEN_OPERATOR;
    if (is_name(s[begin], true)) {
        kind = DSE_TOKEN_NAME;
        while (end < lexer->bytes && is_name(s[end], false))
            end++;
    } else if (is_digit(s[begin])) {
        bool is_float;
        end = number_end(lexer, begin, &is_float);
        kind = is_float ? DSE_TOKEN_FLOAT : DSE_TOKEN_INT;
    } else if (s[begin] == '"' || s[begin] == '\'') {
        kind = DSE_TOKEN_STRING;
        for (end = begin + 1; end < lexer->bytes && s[end] != s[begin]; end++)
            if (s[end] == '\\') end++;
        if (end >= lexer->bytes) return fail(lexer, lexer->line, "string without closing quote");
        end++;
    } else {
        for (size_t i = 0; i < sizeof(operators) / sizeof(*operators) && end == begin; i++)
            if (starts(lexer, begin, operators[i])) end = begin + strlen(operators[i]);
        if (end == begin) return fail(lexer, lexer->line, "unexpected character in a tag");
    }
    enum dse_status status = add(lexer, kind, begin, end);
    advance(lexer, end);
    return status;
}

/* The inside of {{ }} or {% %}, from behind the opening delimiter to behind the closing one. */
static enum dse_status lex_tag(struct lexer *lexer, bool is_print)
{
    const char *close = is_print ? "}}" : "%}";
    uint32_t line = lexer->line;
    size_t open_brackets = 0; /* a closing delimiter inside brackets is not one: {{ {'a': {}} }} */
    for (;;) {
        advance(lexer, skip_space(lexer, lexer->at));
        if (lexer->at >= lexer->bytes) return fail(lexer, line, is_print ? "{{ without }}" : "{% without %}");
        char c = lexer->source[lexer->at];
        bool has_sign = (c == '-' || (c == '+' && !is_print)) && starts(lexer, lexer->at + 1, close);
        if (open_brackets == 0 && (has_sign || starts(lexer, lexer->at, close))) {
            enum dse_status status = add(lexer, is_print ? DSE_TOKEN_PRINT_END : DSE_TOKEN_BLOCK_END, lexer->at,
                                         lexer->at + 2);
            advance(lexer, after_close(lexer, lexer->at + (has_sign ? 3 : 2), has_sign ? c : 0, !is_print));
            return status;
        }
        if (c == '(' || c == '[' || c == '{') open_brackets++;
        if (c == ')' || c == ']' || c == '}') {
            if (open_brackets == 0) return fail(lexer, lexer->line, "closing bracket without an opening one");
            open_brackets--;
        }
        enum dse_status status = lex_token(lexer);
        if (status != DSE_OK) return status;
    }
}

/* Position of the next {{ {% or {#, or the end. */
static size_t next_tag(const struct lexer *lexer, size_t at)
{
    while (at < lexer->bytes) {
        const char *brace = memchr(lexer->source + at, '{', lexer->bytes - at);
        if (!brace) break;
        at = (size_t)(brace - lexer->source);
        if (at + 1 < lexer->bytes && memchr("{%#", lexer->source[at + 1], 3)) return at;
        at++;
    }
    return lexer->bytes;
}

enum dse_status dse_jinja_lex(const char *source, size_t bytes, struct dse_arena *arena,
                              struct dse_jinja_tokens *tokens, struct dse_error *err)
{
    if (bytes && source[bytes - 1] == '\n') bytes--;
    struct lexer state = {
        .source = source, .bytes = bytes, .line = 1, .line_start = true, .arena = arena, .tokens = tokens, .err = err};
    struct lexer *lexer = &state;
    while (lexer->at < bytes) {
        enum dse_status status = DSE_OK;
        size_t tag = next_tag(lexer, lexer->at), begin = lexer->at, end = tag;
        char kind = tag < bytes ? source[tag + 1] : 0, sign = 0;
        if (kind && tag + 2 < bytes && (source[tag + 2] == '-' || source[tag + 2] == '+')) sign = source[tag + 2];
        if (kind) end = text_end(lexer, begin, tag, sign, kind == '{');
        if (end > begin) status = add(lexer, DSE_TOKEN_DATA, begin, end);
        if (status != DSE_OK) return status;
        advance(lexer, tag);
        if (!kind) break;

        char open, close;
        size_t raw = kind == '%' ? match_tag(lexer, tag, "raw", &open, &close) : 0;
        size_t body = tag + 2 + (sign != 0);
        if (raw) {
            status = lex_raw(lexer, raw, close);
        } else if (kind == '#') {
            status = lex_comment(lexer, body);
        } else {
            status = add(lexer, kind == '{' ? DSE_TOKEN_PRINT_BEGIN : DSE_TOKEN_BLOCK_BEGIN, tag, tag + 2);
            if (status == DSE_OK) {
                advance(lexer, body);
                status = lex_tag(lexer, kind == '{');
            }
        }
        if (status != DSE_OK) return status;
    }
    return add(lexer, DSE_TOKEN_END, bytes, bytes);
}

/* The tool call parser (see tool_calls.h).
 *
 * Bytes gather in `held` until scan() can tell what they are: a match, which is applied and removed; nothing, then the
 * first byte is what the state says (content, argument) and the rest is looked at again; or not decided yet. A scan
 * always starts at the first held byte and reports the earliest match, so it does not matter when it is called.
 */
#include "text/tool_calls.h"

#include <string.h>

#include "base/utf8.h"

#define DSML_INVOKE     "<｜DSML｜invoke name=\""
#define DSML_INVOKE_END "</｜DSML｜invoke>"
#define DSML_PARAMETER  "<｜DSML｜parameter name=\""
#define DSML_VALUE_END  "</｜DSML｜parameter>"
#define CALLS_BEGIN     "<｜tool▁calls▁begin｜>"
#define CALLS_END       "<｜tool▁calls▁end｜>"
#define CALL_BEGIN      "<｜tool▁call▁begin｜>"
#define CALL_END        "<｜tool▁call▁end｜>"
#define CALL_SEPARATOR  "<｜tool▁sep｜>"

/* ---- formats -------------------------------------------------------------------------------------------------- */

enum dse_tool_format dse_tool_format_of(const char *source)
{
    if (strstr(source, "｜DSML｜")) return DSE_TOOLS_DSML;
    if (strstr(source, "tool▁call▁begin")) return DSE_TOOLS_DEEPSEEK;
    /* In Qwen3-Coder's and other dialects the tag holds tags, not an object. */
    if (strstr(source, "<tool_call>") && !strstr(source, "<function=")) return DSE_TOOLS_QWEN;
    return DSE_TOOLS_NONE;
}

bool dse_tool_layout_is_older(enum dse_tool_format format, const char *source)
{
    if (format == DSE_TOOLS_DSML) return strstr(source, "function_calls") != NULL;
    return format == DSE_TOOLS_DEEPSEEK && strstr(source, "```json") != NULL;
}

bool dse_tool_format_has(enum dse_tool_format format, const char *text, size_t bytes)
{
    static const char *const marks[] = {
        [DSE_TOOLS_NONE] = "",
        [DSE_TOOLS_DEEPSEEK] = CALLS_BEGIN CALLS_END CALL_BEGIN CALL_END CALL_SEPARATOR,
        [DSE_TOOLS_DSML] = "<｜DSML｜function_calls></｜DSML｜tool_calls>" DSML_INVOKE DSML_VALUE_END,
        [DSE_TOOLS_QWEN] = "<tool_call></tool_call>",
    };
    return bytes > 2 && memmem(marks[format], strlen(marks[format]), text, bytes) != NULL;
}

/* ---- pieces of a scan ----------------------------------------------------------------------------------------- */

enum verdict { NO, MORE, YES };

struct cursor {
    const char *at, *end;
};

enum match_kind { MATCH_CALL, MATCH_CALL_END, MATCH_BLOCK_END, MATCH_PARAMETER, MATCH_VALUE_END };

struct match {
    enum match_kind kind;
    const char *name, *parameter; /* inside held */
    size_t name_bytes, parameter_bytes;
    bool has_parameter, is_string; /* DSML: what the value is that follows */
    bool is_empty;                 /* a call that is complete, without arguments */
};

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum verdict try_verdict = (call);                                                                             \
        if (try_verdict != YES) return try_verdict;                                                                    \
    } while (0)

static enum verdict literal(struct cursor *c, const char *text)
{
    size_t n = strlen(text), have = (size_t)(c->end - c->at);
    if (memcmp(c->at, text, have < n ? have : n) != 0) return NO;
    if (have < n) return MORE;
    c->at += n;
    return YES;
}

static enum verdict either(struct cursor *c, const char *a, const char *b)
{
    enum verdict first = literal(c, a);
    if (first == YES) return YES;
    enum verdict second = literal(c, b);
    return second == NO ? first : second;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void blanks(struct cursor *c)
{
    while (c->at < c->end && is_blank(*c->at))
        c->at++;
}

/* Text before `stop`, which stays; blanks around it do not count. */
static enum verdict name(struct cursor *c, char stop, const char **out, size_t *bytes)
{
    const char *from = c->at;
    for (; c->at < c->end && *c->at != stop; c->at++) {
        bool bad = *c->at == '<' || *c->at == '"' || *c->at == '\\' || *c->at == '\n' || (unsigned char)*c->at < ' ';
        if (bad || c->at - from >= DSE_TOOL_MAX_NAME_BYTES) return NO;
    }
    if (c->at == c->end) return MORE;
    const char *to = c->at;
    while (from < to && is_blank(*from))
        from++;
    while (to > from && is_blank(to[-1]))
        to--;
    *out = from;
    *bytes = (size_t)(to - from);
    return to > from && dse_utf8_valid(from, (size_t)(to - from)) ? YES : NO;
}

/* ---- DSML ----------------------------------------------------------------------------------------------------- */

static enum verdict scan_parameter(struct cursor *c, struct match *m)
{
    TRY(literal(c, DSML_PARAMETER));
    TRY(name(c, '"', &m->parameter, &m->parameter_bytes));
    TRY(literal(c, "\""));
    m->has_parameter = true;
    enum verdict plain = literal(c, " string=\"false\">");
    m->is_string = plain != YES;
    if (plain == YES) return YES;
    enum verdict quoted = either(c, " string=\"true\">", ">");
    return quoted == NO ? plain : quoted;
}

/* The whole head of a call: whether it has parameters is known when the first one or the end has been seen. */
static enum verdict scan_dsml_call(struct cursor *c, struct match *m)
{
    enum verdict block = either(c, "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>");
    if (block == MORE) return MORE;
    if (block == YES) blanks(c);
    TRY(literal(c, DSML_INVOKE));
    TRY(name(c, '"', &m->name, &m->name_bytes));
    TRY(literal(c, "\">"));
    blanks(c);
    m->kind = MATCH_CALL;
    enum verdict end = literal(c, DSML_INVOKE_END);
    m->is_empty = end == YES;
    if (end == YES) return YES;
    enum verdict parameter = scan_parameter(c, m);
    return parameter == NO ? end : parameter;
}

static enum verdict scan_gap(struct cursor *c, struct match *m)
{
    blanks(c);
    m->kind = MATCH_CALL_END;
    enum verdict end = literal(c, DSML_INVOKE_END);
    if (end == YES) return YES;
    m->kind = MATCH_PARAMETER;
    enum verdict parameter = scan_parameter(c, m);
    return parameter == NO ? end : parameter;
}

/* ---- DeepSeek V3, R1, V3.1 ------------------------------------------------------------------------------------ */

/* ```json and its newline, if there. Ends at the first byte of the arguments. */
static enum verdict scan_fence(struct cursor *c)
{
    blanks(c);
    struct cursor plain = *c;
    enum verdict fence = literal(c, "```");
    if (fence == NO) *c = plain;
    if (fence != YES) return fence == NO ? YES : MORE;
    if (literal(c, "json") == MORE) return MORE;
    blanks(c);
    return c->at < c->end ? YES : MORE;
}

static enum verdict scan_deepseek_call(struct cursor *c, struct match *m)
{
    enum verdict block = literal(c, CALLS_BEGIN);
    if (block == MORE) return MORE;
    if (block == YES) blanks(c);
    TRY(literal(c, CALL_BEGIN));
    TRY(name(c, '<', &m->name, &m->name_bytes));
    TRY(literal(c, CALL_SEPARATOR));
    m->kind = MATCH_CALL;
    if (c->at == c->end) return MORE;
    bool typed = m->name_bytes == 8 && memcmp(m->name, "function", 8) == 0;
    if (!typed) return scan_fence(c);
    struct cursor rest = *c;
    blanks(&rest);
    if (rest.at == rest.end) return MORE;
    if (*rest.at != '{') { /* else: V3.1's layout, of a tool with that name */
        *c = rest;
        TRY(name(c, '\n', &m->name, &m->name_bytes));
    }
    return scan_fence(c);
}

/* A missing fence or end of the call is no reason to take marks for arguments. */
static enum verdict scan_deepseek_end(struct cursor *c, struct match *m)
{
    m->kind = MATCH_CALL_END;
    blanks(c);
    enum verdict fence = literal(c, "```");
    if (fence == MORE) return MORE;
    if (fence == YES) blanks(c);
    struct cursor before = *c;
    enum verdict end = either(c, CALL_END, CALLS_END);
    if (end == YES && c->at - before.at == sizeof CALLS_END - 1 &&
        memcmp(before.at, CALLS_END, sizeof CALLS_END - 1) == 0)
        *c = before;
    return end;
}

/* ---- Qwen ----------------------------------------------------------------------------------------------------- */

static enum verdict token(struct cursor *c, const char *text)
{
    blanks(c);
    return literal(c, text);
}

/* Inside a string of the arguments the mark is the string's text. No string of JSON has a line break, though: behind
 * one the mark ends the call of a model that forgot a quote. */
static enum verdict scan_qwen_end(struct cursor *c, bool in_string, struct match *m)
{
    m->kind = MATCH_CALL_END;
    TRY(token(c, "}"));
    const char *from = c->at;
    TRY(token(c, "</tool_call>"));
    return in_string && memchr(from, '\n', (size_t)(c->at - from)) == NULL ? NO : YES;
}

static enum verdict scan_qwen_call(struct cursor *c, struct match *m)
{
    TRY(literal(c, "<tool_call>"));
    TRY(token(c, "{"));
    TRY(token(c, "\"name\""));
    TRY(token(c, ":"));
    TRY(token(c, "\""));
    TRY(name(c, '"', &m->name, &m->name_bytes));
    TRY(literal(c, "\""));
    struct cursor rest = *c;
    m->is_empty = true;
    enum verdict end = scan_qwen_end(&rest, false, m);
    m->kind = MATCH_CALL;
    if (end == YES) *c = rest;
    if (end != NO) return end;
    m->is_empty = false;
    TRY(token(c, ","));
    blanks(c);
    TRY(either(c, "\"arguments\"", "\"parameters\""));
    TRY(token(c, ":"));
    blanks(c);
    return c->at < c->end ? YES : MORE;
}

/* ---- scan ----------------------------------------------------------------------------------------------------- */

static enum verdict scan_call(enum dse_tool_format format, struct cursor *c, struct match *m)
{
    switch (format) {
    case DSE_TOOLS_DEEPSEEK: return scan_deepseek_call(c, m);
    case DSE_TOOLS_DSML: return scan_dsml_call(c, m);
    case DSE_TOOLS_QWEN: return scan_qwen_call(c, m);
    case DSE_TOOLS_NONE: break;
    }
    return NO;
}

static enum verdict scan_block_end(enum dse_tool_format format, struct cursor *c, struct match *m)
{
    m->kind = MATCH_BLOCK_END;
    if (format == DSE_TOOLS_DEEPSEEK) return literal(c, CALLS_END);
    if (format == DSE_TOOLS_DSML) return either(c, "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>");
    return NO;
}

static enum verdict scan(const struct dse_tool_parser *p, struct cursor *c, struct match *m)
{
    switch (p->state) {
    case DSE_TOOL_TEXT:
        for (int i = 0; i < 2 && c->at < c->end && *c->at == '\n'; i++)
            c->at++;
        return scan_call(p->format, c, m);
    case DSE_TOOL_BETWEEN: {
        blanks(c);
        struct cursor rest = *c;
        enum verdict end = scan_block_end(p->format, c, m);
        if (end == YES) return YES;
        *c = rest;
        enum verdict call = scan_call(p->format, c, m);
        return call == NO ? end : call;
    }
    case DSE_TOOL_ARGUMENTS:
        if (p->format == DSE_TOOLS_DEEPSEEK) return scan_deepseek_end(c, m);
        return scan_qwen_end(c, p->in_string, m);
    case DSE_TOOL_STRING:
    case DSE_TOOL_VALUE: m->kind = MATCH_VALUE_END; return literal(c, DSML_VALUE_END);
    case DSE_TOOL_GAP: return scan_gap(c, m);
    }
    return NO;
}

/* ---- what comes out ------------------------------------------------------------------------------------------- */

/* Follows the JSON just far enough to know whether it is closed. */
static void follow_json(struct dse_tool_parser *p, uint8_t byte)
{
    if (p->in_string) {
        if (p->escaped)
            p->escaped = false;
        else if (byte == '\\')
            p->escaped = true;
        else if (byte == '"')
            p->in_string = false;
    } else if (byte == '"') {
        p->in_string = true;
    } else if (byte == '{' || byte == '[') {
        p->depth++;
    } else if (byte == '}' || byte == ']') {
        p->depth--;
    }
}

static void put_argument(struct dse_tool_parser *p, uint8_t byte)
{
    follow_json(p, byte);
    p->n_argument_bytes++;
    p->sink->argument(p->user, byte);
}

static void put_arguments(struct dse_tool_parser *p, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        put_argument(p, (uint8_t)text[i]);
}

static void put_escaped(struct dse_tool_parser *p, uint8_t byte)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf", digits[] = "0123456789abcdef";
    const char *found = byte ? strchr(from, byte) : NULL;
    if (found) {
        char text[2] = {'\\', to[found - from]};
        put_arguments(p, text, 2);
    } else if (byte < ' ') {
        char text[6] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
        put_arguments(p, text, 6);
    } else {
        put_argument(p, byte);
    }
}

static uint64_t hash_name(const char *text, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    return hash;
}

static bool is_repeated(const struct dse_tool_parser *p, const struct match *m)
{
    uint64_t hash = hash_name(m->parameter, m->parameter_bytes);
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i] == hash) return true;
    return false;
}

static void begin_parameter(struct dse_tool_parser *p, const struct match *m)
{
    if (p->n_parameters < DSE_TOOL_MAX_PARAMETERS)
        p->parameters[p->n_parameters++] = hash_name(m->parameter, m->parameter_bytes);
    put_arguments(p, p->n_argument_bytes == 0 ? "{\"" : ", \"", p->n_argument_bytes == 0 ? 2 : 3);
    put_arguments(p, m->parameter, m->parameter_bytes);
    put_arguments(p, m->is_string ? "\": \"" : "\": ", m->is_string ? 4 : 3);
    p->state = m->is_string ? DSE_TOOL_STRING : DSE_TOOL_VALUE;
}

static void end_call(struct dse_tool_parser *p, enum dse_tool_state next)
{
    p->sink->end(p->user);
    p->state = next;
}

static void begin_call(struct dse_tool_parser *p, const struct match *m)
{
    p->n_argument_bytes = 0;
    p->n_parameters = p->depth = 0;
    p->in_string = p->escaped = false;
    p->sink->begin(p->user, m->name, m->name_bytes);
    if (m->is_empty) {
        put_arguments(p, "{}", 2);
        end_call(p, DSE_TOOL_BETWEEN);
    } else if (m->has_parameter) {
        begin_parameter(p, m);
    } else {
        p->state = DSE_TOOL_ARGUMENTS;
    }
}

static void apply(struct dse_tool_parser *p, const struct match *m)
{
    switch (m->kind) {
    case MATCH_CALL: begin_call(p, m); break;
    case MATCH_PARAMETER: begin_parameter(p, m); break;
    case MATCH_VALUE_END:
        if (p->state == DSE_TOOL_STRING) put_argument(p, '"');
        p->state = DSE_TOOL_GAP;
        break;
    case MATCH_CALL_END:
        if (p->format == DSE_TOOLS_DSML) put_argument(p, '}');
        if (p->n_argument_bytes == 0) put_arguments(p, "{}", 2);
        end_call(p, DSE_TOOL_BETWEEN);
        break;
    case MATCH_BLOCK_END: break;
    }
}

/* ---- the machine ---------------------------------------------------------------------------------------------- */

static void drop(struct dse_tool_parser *p, size_t count)
{
    p->n_held -= count;
    memmove(p->held, p->held + count, p->n_held);
}

/* The held bytes have no structure where they stand. */
static void pass_on(struct dse_tool_parser *p)
{
    uint8_t byte = (uint8_t)p->held[0];
    switch (p->state) {
    case DSE_TOOL_TEXT: p->sink->content(p->user, byte); break;
    case DSE_TOOL_STRING: put_escaped(p, byte); break;
    case DSE_TOOL_ARGUMENTS:
    case DSE_TOOL_VALUE: put_argument(p, byte); break;
    case DSE_TOOL_BETWEEN: p->state = DSE_TOOL_TEXT; return;
    case DSE_TOOL_GAP: /* the parameters so far are a call; the rest is content */
        put_argument(p, '}');
        end_call(p, DSE_TOOL_TEXT);
        return;
    }
    drop(p, 1);
    bool in_arguments = p->state != DSE_TOOL_TEXT;
    if (in_arguments && p->n_argument_bytes >= DSE_TOOL_MAX_ARGUMENT_BYTES) end_call(p, DSE_TOOL_TEXT);
}

/* Works through what is held until more is needed; with `last`, nothing more comes. */
static void drain(struct dse_tool_parser *p, bool last)
{
    while (p->n_held > 0) {
        struct cursor c = {p->held, p->held + p->n_held};
        struct match m = {.kind = MATCH_BLOCK_END};
        enum verdict verdict = scan(p, &c, &m);
        if (verdict == MORE && !last && p->n_held < sizeof p->held) return;
        if (verdict == YES && p->state == DSE_TOOL_GAP && m.kind == MATCH_PARAMETER && is_repeated(p, &m)) verdict = NO;
        if (verdict == YES) {
            apply(p, &m);
            drop(p, (size_t)(c.at - p->held));
        } else {
            pass_on(p);
        }
    }
}

void dse_tool_parser_init(struct dse_tool_parser *parser, enum dse_tool_format format, const struct dse_tool_sink *sink,
                          void *user)
{
    memset(parser, 0, sizeof *parser);
    parser->format = format;
    parser->sink = sink;
    parser->user = user;
}

void dse_tool_parser_feed(struct dse_tool_parser *parser, uint8_t byte)
{
    parser->held[parser->n_held++] = (char)byte;
    drain(parser, false);
}

/* What is held is blank or the beginning of the end mark that was due: no text, though the mark was cut off. */
static bool is_cut_end(const struct dse_tool_parser *p)
{
    struct cursor c = {p->held, p->held + p->n_held};
    struct match m;
    switch (p->state) {
    case DSE_TOOL_ARGUMENTS: return p->depth == 0 && !p->in_string && p->n_argument_bytes > 0;
    case DSE_TOOL_BETWEEN: blanks(&c); return c.at == c.end || scan_block_end(p->format, &c, &m) == MORE;
    case DSE_TOOL_GAP: blanks(&c); return literal(&c, DSML_INVOKE_END) == MORE;
    default: return false;
    }
}

void dse_tool_parser_finish(struct dse_tool_parser *p)
{
    if (is_cut_end(p)) p->n_held = 0;
    /* Not closed for the model: a client must not take half a call for a whole one. */
    if (p->state == DSE_TOOL_GAP) end_call(p, DSE_TOOL_TEXT);
    drain(p, true);
    if (p->state == DSE_TOOL_ARGUMENTS || p->state == DSE_TOOL_STRING || p->state == DSE_TOOL_VALUE)
        end_call(p, DSE_TOOL_BETWEEN);
}

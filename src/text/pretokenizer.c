/* Pre-tokenizers over PCRE2. Called by tokenizer.c (splitting) and by the readers of model files (names, traits).
 *
 * Patterns come from this file only, never from a model: a model names one of them. Before compilation \p{..}, \s and
 * \S become explicit ranges (unicode_ranges.h), so PCRE2's own Unicode tables are never asked. Repetitions are
 * possessive wherever that cannot change a match, which together with the match limit keeps every pattern linear.
 */
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "text/unicode_ranges.h"

#define MAX_STEPS         6
#define MAX_PATTERN_BYTES (1u << 20)
#define JIT_STACK_START   (32u << 10)
#define JIT_STACK_MAX     (8u << 20)
/* Backtracking steps allowed for one match. The worst honest case is one pass over the rest of the text (a long run of
 * blanks without a line break), so the limit grows with the text and never bites unless something is wrong. */
#define MATCH_LIMIT_BASE     1000000u
#define MATCH_LIMIT_PER_BYTE 16u

/* One step: how tokenizer.json spells it, and what we run. NULL pattern: the spelling is fine as it is. */
struct step {
    const char *source, *pattern;
};

struct definition {
    const char *names[4]; /* first is the canonical one */
    struct dse_pretokenizer_traits traits;
    struct step steps[MAX_STEPS];
};

#define NEWLINES                                                                                                       \
    {                                                                                                                  \
        "[\\r\\n]", NULL                                                                                               \
    }
#define DIGITS                                                                                                         \
    {                                                                                                                  \
        DSE_PRETOKENIZER_DIGITS, "\\p{D}"                                                                              \
    }
#define CJK                                                                                                            \
    {                                                                                                                  \
        "[一-龥ࠀ-一가-퟿]+", "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]++"                    \
    }
/* The cased alphabets that deepseek-llm names one by one; not the same set as \p{L}. */
/* clang-format off */
#define LETTERS \
    "[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373" \
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-" \
    "\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-" \
    "\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D" \
    "\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-" \
    "\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-" \
    "\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-" \
    "\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-" \
    "\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-" \
    "\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]"
/* clang-format on */
#define SPACES_SOURCE  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPACES_PATTERN "\\s*[\\r\\n]++|\\s+(?!\\S)|\\s++"
/* (?i:…) folds by Unicode in the original, so that the long s counts as s. Spelled out: no folding tables needed. */
#define CONTRACTIONS_SOURCE  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CONTRACTIONS_PATTERN "'(?:[sS\\x{17F}tTmMdD]|[rRvV][eE]|[lL][lL])"
#define GPT4_SOURCE(digits)                                                                                            \
    CONTRACTIONS_SOURCE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| "                                            \
                        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_SOURCE
#define GPT4_PATTERN(digits)                                                                                           \
    CONTRACTIONS_PATTERN "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|\\p{N}" digits                                               \
                         "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|" SPACES_PATTERN

static const struct definition definitions[] = {
    {.names = {"deepseek-v3"},
     .traits = {.adds_bos = true},
     .steps = {{"\\p{N}{1,3}", NULL},
               {"[一-龥぀-ゟ゠-ヿ]+", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]++"},
               {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES_SOURCE,
                "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]++|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]++"
                "| ?[\\p{P}\\p{S}]++[\\r\\n]*+|" SPACES_PATTERN}}},
    {.names = {"qwen2"}, .traits = {.nfc = true}, .steps = {{GPT4_SOURCE(""), GPT4_PATTERN("")}}},
    {.names = {"deepseek-r1-qwen"},
     .traits = {.nfc = true, .adds_bos = true},
     .steps = {{GPT4_SOURCE(""), GPT4_PATTERN("")}}},
    {.names = {"llama-bpe", "llama3", "llama-v3"},
     .traits = {.ignore_merges = true, .adds_bos = true},
     .steps = {{GPT4_SOURCE("{1,3}"), GPT4_PATTERN("{1,3}")}}},
    {.names = {"deepseek-llm"},
     .traits = {.adds_bos = true},
     /* \s+$ without the look-behind would try again at every blank of a run that does not end the piece. */
     .steps = {NEWLINES,
               {"\\s?" LETTERS "+", "\\s?" LETTERS "++"},
               {"\\s?[!-/:-~！-／：-～‘-‟　-。]+",
                "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]++"},
               {"\\s+$", "(?<!\\s)\\s++\\z"},
               CJK,
               DIGITS}},
    {.names = {"deepseek-coder"},
     .traits = {.adds_bos = true},
     .steps = {NEWLINES, {"\\s?\\p{L}+", "\\s?\\p{L}++"}, {"\\s?\\p{P}+", "\\s?\\p{P}++"}, CJK, DIGITS}},
    {.names = {"smollm"},
     .steps = {DIGITS,
               {DSE_PRETOKENIZER_BYTE_LEVEL, "'(?:[stmd]|[rv]e|ll)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++"
                                             "|\\s+(?!\\S)|\\s++"}}},
};
#define N_DEFINITIONS (sizeof definitions / sizeof definitions[0])

struct dse_pretokenizer {
    size_t n_steps;
    pcre2_code *steps[MAX_STEPS];
};

static const struct definition *find_definition(const char *name)
{
    for (size_t i = 0; i < N_DEFINITIONS; i++)
        for (size_t k = 0; k < sizeof definitions[i].names / sizeof definitions[i].names[0]; k++)
            if (definitions[i].names[k] && strcmp(definitions[i].names[k], name) == 0) return &definitions[i];
    return NULL;
}

bool dse_pretokenizer_traits(const char *name, struct dse_pretokenizer_traits *traits)
{
    const struct definition *found = find_definition(name);
    if (!found) return false;
    *traits = found->traits;
    traits->name = found->names[0];
    return true;
}

const char *dse_pretokenizer_identify(const char *const *steps, size_t count)
{
    for (size_t i = 0; i < N_DEFINITIONS; i++) {
        size_t same = 0;
        while (same < count && same < MAX_STEPS && definitions[i].steps[same].source &&
               strcmp(definitions[i].steps[same].source, steps[same]) == 0)
            same++;
        bool at_end = same == MAX_STEPS || !definitions[i].steps[same].source;
        if (same == count && at_end) return definitions[i].names[0];
    }
    return NULL;
}

/* ---- compilation ------------------------------------------------------------------------------------------- */

static void *pcre_alloc(size_t bytes, void *user)
{
    (void)user;
    return dse_alloc(DSE_MEM_TEXT, bytes);
}

static void pcre_free(void *pointer, void *user)
{
    (void)user;
    dse_free(pointer);
}

static void put_ranges(struct dse_buffer *out, enum dse_unicode_class which)
{
    const struct dse_unicode_table *table = &dse_unicode_tables[which];
    for (size_t i = 0; i < table->count; i++)
        dse_buffer_printf(out, "\\x{%X}-\\x{%X}", (unsigned)table->ranges[i].first, (unsigned)table->ranges[i].last);
}

static enum dse_unicode_class class_of_letter(char letter)
{
    switch (letter) {
    case 'L': return DSE_UNICODE_L;
    case 'M': return DSE_UNICODE_M;
    case 'N': return DSE_UNICODE_N;
    case 'P': return DSE_UNICODE_P;
    case 'S': return DSE_UNICODE_S;
    default: return DSE_UNICODE_DIGIT; /* \p{D}, ours alone */
    }
}

/* Writes the pattern with its classes spelled out. */
static void expand(struct dse_buffer *out, const char *pattern)
{
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '[') in_class = true;
        if (*p == ']') in_class = false;
        bool is_property = p[0] == '\\' && p[1] == 'p';
        bool is_space = p[0] == '\\' && (p[1] == 's' || p[1] == 'S');
        if (is_property || is_space) {
            if (!in_class) dse_buffer_puts(out, p[1] == 'S' ? "[^" : "[");
            put_ranges(out, is_space ? DSE_UNICODE_SPACE : class_of_letter(p[3]));
            if (!in_class) dse_buffer_putc(out, ']');
            p += is_space ? 1 : 4;
        } else if (*p == '\\') {
            dse_buffer_append(out, p++, 2);
        } else {
            dse_buffer_putc(out, *p);
        }
    }
}

static enum dse_status compile_step(const struct step *step, bool jit, pcre2_compile_context *context,
                                    pcre2_code **code, struct dse_error *err)
{
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_TEXT, MAX_PATTERN_BYTES);
    expand(&text, step->pattern ? step->pattern : step->source);
    if (text.failed) {
        dse_buffer_deinit(&text);
        return dse_fail_memory(err, MAX_PATTERN_BYTES, "a pre-tokenizer pattern");
    }
    int number;
    PCRE2_SIZE offset;
    *code = pcre2_compile((PCRE2_SPTR)text.data, text.length, PCRE2_UTF, &number, &offset, context);
    dse_buffer_deinit(&text);
    if (!*code) {
        if (number == PCRE2_ERROR_HEAP_FAILED) return dse_fail_memory(err, 0, "a pre-tokenizer pattern");
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(number, why, sizeof why);
        return dse_fail(err, DSE_ERR_INTERNAL, "pre-tokenizer step \"%.40s\" does not compile: %s", step->source,
                        (const char *)why);
    }
    /* A refusal (no executable memory) only costs speed. */
    if (jit) pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    return DSE_OK;
}

enum dse_status dse_pretokenizer_create(const char *name, bool jit, struct dse_pretokenizer **out,
                                        struct dse_error *err)
{
    const struct definition *definition = find_definition(name);
    if (!definition)
        return dse_fail(err, DSE_ERR_UNSUPPORTED,
                        "pre-tokenizer \"%.60s\" is not supported (deepseek-v3, deepseek-llm, deepseek-coder, "
                        "deepseek-r1-qwen, qwen2, llama-bpe, smollm are)",
                        name);
    struct dse_pretokenizer *pre = dse_calloc(DSE_MEM_TEXT, 1, sizeof *pre);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    enum dse_status status = DSE_OK;
    if (!pre || !context) status = dse_fail_memory(err, sizeof *pre, "the pre-tokenizer");
    while (status == DSE_OK && pre->n_steps < MAX_STEPS && definition->steps[pre->n_steps].source) {
        status = compile_step(&definition->steps[pre->n_steps], jit, context, &pre->steps[pre->n_steps], err);
        if (status == DSE_OK) pre->n_steps++;
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (status != DSE_OK) {
        dse_pretokenizer_free(pre);
        return status;
    }
    *out = pre;
    return DSE_OK;
}

void dse_pretokenizer_free(struct dse_pretokenizer *pretokenizer)
{
    if (!pretokenizer) return;
    for (size_t i = 0; i < pretokenizer->n_steps; i++)
        pcre2_code_free(pretokenizer->steps[i]);
    dse_free(pretokenizer);
}

/* ---- splitting --------------------------------------------------------------------------------------------- */

struct split {
    const struct dse_pretokenizer *pre;
    struct dse_pretokenizer_run *run;
    dse_piece_fn *fn;
    void *user;
};

static enum dse_status run_init(struct dse_pretokenizer_run *run, struct dse_error *err)
{
    if (run->match_data && run->match_context) return DSE_OK;
    dse_pretokenizer_run_deinit(run);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (general) {
        run->match_data = pcre2_match_data_create(1, general);
        run->match_context = pcre2_match_context_create(general);
        pcre2_general_context_free(general);
    }
    if (!run->match_data || !run->match_context) return dse_fail_memory(err, 0, "text splitting");
    return DSE_OK;
}

void dse_pretokenizer_run_deinit(struct dse_pretokenizer_run *run)
{
    pcre2_match_data_free(run->match_data);
    pcre2_match_context_free(run->match_context);
    pcre2_jit_stack_free(run->jit_stack);
    *run = (struct dse_pretokenizer_run){0};
}

/* One match at or after `from`. The machine stack serves the compiled code until it asks for more. */
static int match(const struct split *split, const pcre2_code *code, const char *text, size_t bytes, size_t from)
{
    struct dse_pretokenizer_run *run = split->run;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    for (;;) {
        int found = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, options, run->match_data, run->match_context);
        if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
        if (!run->jit_stack) {
            run->jit_stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
            if (!run->jit_stack) options |= PCRE2_NO_JIT;
            pcre2_jit_stack_assign(run->match_context, NULL, run->jit_stack);
        } else {
            options |= PCRE2_NO_JIT;
        }
    }
}

static enum dse_status match_failed(int code, struct dse_error *err)
{
    if (code == PCRE2_ERROR_NOMEMORY) return dse_fail_memory(err, 0, "text splitting");
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    bool is_limit = code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_DEPTHLIMIT || code == PCRE2_ERROR_HEAPLIMIT;
    return dse_fail(err, is_limit ? DSE_ERR_LIMIT : DSE_ERR_INTERNAL, "splitting text into pieces failed: %s",
                    (const char *)why);
}

/* Recursion is as deep as the pre-tokenizer has steps. */
static enum dse_status split_step(const struct split *split, size_t step, const char *text, size_t bytes,
                                  struct dse_error *err)
{
    if (bytes == 0) return DSE_OK;
    if (step == split->pre->n_steps) return split->fn(split->user, text, bytes, err);
    size_t done = 0;
    while (done < bytes) {
        int found = match(split, split->pre->steps[step], text, bytes, done);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH) return match_failed(found, err);
        size_t start = bytes, end = bytes;
        if (found >= 0) {
            const PCRE2_SIZE *range = pcre2_get_ovector_pointer(split->run->match_data);
            start = range[0], end = range[1];
        }
        enum dse_status status = split_step(split, step + 1, text + done, start - done, err);
        if (status == DSE_OK) status = split_step(split, step + 1, text + start, end - start, err);
        if (status != DSE_OK) return status;
        done = end; /* no pattern matches the empty string, so this always moves on */
    }
    return DSE_OK;
}

enum dse_status dse_pretokenizer_split(const struct dse_pretokenizer *pretokenizer, struct dse_pretokenizer_run *run,
                                       const char *text, size_t bytes, dse_piece_fn *fn, void *user,
                                       struct dse_error *err)
{
    enum dse_status status = run_init(run, err);
    if (status != DSE_OK) return status;
    uint64_t limit = MATCH_LIMIT_BASE + (uint64_t)bytes * MATCH_LIMIT_PER_BYTE;
    pcre2_set_match_limit(run->match_context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    struct split split = {.pre = pretokenizer, .run = run, .fn = fn, .user = user};
    return split_step(&split, 0, text, bytes, err);
}

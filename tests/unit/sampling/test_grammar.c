/* GBNF: what is accepted, what is refused and on which line, and the token masks that follow. The reference for a mask
 * is the definition itself: a token is allowed when the matcher takes its bytes one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "text/grammar_internal.h"

/* ---- a tokenizer of every single byte, some longer texts, a control token and a stop token ------------------ */

static const char *const WORDS[] = {"\"",       "{\"",          "\":",
                                    "true",     "false",        "null",
                                    "tr",       "ue",           "  ",
                                    "[[[[",     "]]]]",         "\"}",
                                    "ab",       "abc",          "abc",
                                    "\n\n",     "\xF0\x9F",     "\xA7\xAA",
                                    "\xE6\xB8", "\xA9\xE5",     "\xBA\xA6",
                                    "four",     "</think>",     "two plus",
                                    "12345",    "na\xC3\xAFve", "\xF0\x9F\xA7\xAA ",
                                    " ok",      "\xE2\x80\x8D", "aaaaaaaaaaaaaaaa"};
enum { N_WORDS = sizeof WORDS / sizeof *WORDS, CONTROL = 256 + N_WORDS, STOP, N_TOKENS, N_MASK = (N_TOKENS + 63) / 64 };

static struct dse_token_trie *trie;

static int make_trie(void **state)
{
    static uint8_t bytes[256];
    struct dse_slice texts[N_TOKENS];
    uint8_t uses[N_TOKENS] = {[CONTROL] = GRAMMAR_TOKEN_NEVER, [STOP] = GRAMMAR_TOKEN_STOP};
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i, texts[i] = (struct dse_slice){(char *)&bytes[i], 1};
    for (int i = 0; i < N_WORDS; i++)
        texts[256 + i] = (struct dse_slice){WORDS[i], strlen(WORDS[i])};
    texts[CONTROL] = (struct dse_slice){"abc", 3};
    texts[STOP] = (struct dse_slice){"abc", 3};
    struct dse_error err;
    return dse_token_trie_create_from(texts, uses, N_TOKENS, &trie, &err) != DSE_OK;
}

static int free_trie(void **state)
{
    return dse_token_trie_free(trie), 0;
}

static struct dse_slice token_text(int32_t id)
{
    return (struct dse_slice){(const char *)trie->texts + trie->offsets[id], trie->offsets[id + 1] - trie->offsets[id]};
}

static bool bit(const uint64_t *mask, int32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

static struct dse_grammar *compile(const char *source)
{
    struct dse_grammar *grammar = NULL;
    struct dse_error err;
    if (dse_grammar_compile(source, strlen(source), &grammar, &err) != DSE_OK) fail_msg("%s", err.message);
    return grammar;
}

static struct dse_grammar_state *open_state(const char *source)
{
    struct dse_grammar *grammar = compile(source);
    struct dse_grammar_state *state = NULL;
    struct dse_error err;
    assert_int_equal(dse_grammar_state_create(grammar, trie, &state, &err), DSE_OK);
    dse_grammar_unref(grammar);
    return state;
}

/* Whole text of the language. */
static bool takes(const char *source, const char *text, size_t bytes)
{
    struct dse_grammar_state *state = open_state(source);
    bool ok = dse_grammar_accept_bytes(state, text, bytes) && dse_grammar_may_end(state);
    dse_grammar_state_free(state);
    return ok;
}

#define assert_takes(source, text)   assert_true(takes(source, text, sizeof(text) - 1))
#define assert_refuses(source, text) assert_false(takes(source, text, sizeof(text) - 1))

/* ---- notation ----------------------------------------------------------------------------------------------- */

static void literals_know_all_escapes(void **state)
{
    assert_takes("root ::= \"\\x41\\n\\t\\r\\\"\\\\\\u00e9\\U0001f600[\\[\\]\"",
                 "A\n\t\r\"\\\xC3\xA9\xF0\x9F\x98\x80[[]");
    assert_takes("root ::= \"\\xe9\"", "\xC3\xA9"); /* code points, not bytes */
    assert_takes("root ::= \"\xE6\xB8\xA9\"", "\xE6\xB8\xA9");
    assert_takes("root ::= \"\"", "");
    assert_takes("root ::= \"a\\x00b\"", "a\0b");
    assert_refuses("root ::= \"a\"", "b");
}

static void classes_cover_ranges_and_negation(void **state)
{
    const char *id = "root ::= [a-zA-Z_] [a-zA-Z0-9_-]*";
    assert_takes(id, "x-9_Z");
    assert_refuses(id, "9x");
    assert_takes("root ::= [^\"\\\\\\x00-\\x1F]+", "na\xC3\xAFve \xE6\xB8\xA9 \xF0\x9F\xA7\xAA");
    assert_refuses("root ::= [^\"\\\\\\x00-\\x1F]+", "a\nb");
    assert_refuses("root ::= [^\"]", "\"");
    assert_takes("root ::= [\\]\\-^]+", "^-]");
    assert_takes("root ::= [a-]+", "-a");
    assert_takes("root ::= .", "\xF4\x8F\xBF\xBF");
    assert_takes("root ::= .", "\n");
    assert_refuses("root ::= .", "\xED\xA0\x80");     /* a surrogate */
    assert_refuses("root ::= .", "\xC0\x80");         /* an overlong form */
    assert_refuses("root ::= .", "\xF4\x90\x80\x80"); /* beyond U+10FFFF */
    assert_refuses("root ::= .", "\xE6\xB8");         /* half a character */
}

/* Every code point against the definition, for ranges whose ends lie in awkward places. */
static void class_matches_exactly_its_code_points(void **state)
{
    static const struct {
        const char *source;
        uint32_t lo, hi;
        bool negated;
    } CASES[] = {
        {"root ::= [\\u0041-\\u0800]", 0x41, 0x800, false},
        {"root ::= [\\u07fe-\\U00010001]", 0x7FE, 0x10001, false},
        {"root ::= [^\\u0123-\\ue0ff]", 0x123, 0xE0FF, true},
        {"root ::= [\\U00012345-\\U000fedcb]", 0x12345, 0xFEDCB, false},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        struct dse_grammar *grammar = compile(CASES[c].source);
        struct grammar_matcher matcher;
        struct dse_error err;
        assert_int_equal(dse_grammar_matcher_init(&matcher, grammar, &err), DSE_OK);
        for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
            if (cp >= 0xD800 && cp <= 0xDFFF) continue;
            uint8_t text[4];
            int n;
            if (cp < 0x80)
                text[0] = (uint8_t)cp, n = 1;
            else if (cp < 0x800)
                text[0] = (uint8_t)(0xC0 | cp >> 6), text[1] = (uint8_t)(0x80 | (cp & 63)), n = 2;
            else if (cp < 0x10000)
                text[0] = (uint8_t)(0xE0 | cp >> 12), text[1] = (uint8_t)(0x80 | (cp >> 6 & 63)),
                text[2] = (uint8_t)(0x80 | (cp & 63)), n = 3;
            else
                text[0] = (uint8_t)(0xF0 | cp >> 18), text[1] = (uint8_t)(0x80 | (cp >> 12 & 63)),
                text[2] = (uint8_t)(0x80 | (cp >> 6 & 63)), text[3] = (uint8_t)(0x80 | (cp & 63)), n = 4;
            uint32_t config = dse_grammar_matcher_start(&matcher);
            for (int i = 0; i < n; i++)
                config = dse_grammar_matcher_step(&matcher, config, grammar->class_of_byte[text[i]]);
            bool inside = cp >= CASES[c].lo && cp <= CASES[c].hi;
            bool matched = grammar_config_may_end(&matcher, config);
            if (matched != (inside != CASES[c].negated)) fail_msg("%s at U+%04X", CASES[c].source, cp);
        }
        dse_grammar_matcher_deinit(&matcher);
        dse_grammar_unref(grammar);
    }
}

static void repetitions_count(void **state)
{
    static const struct {
        const char *bounds;
        int min, max;
    } CASES[] = {
        {"*", 0, 99},    {"+", 1, 99},        {"?", 0, 1},     {"{3}", 3, 3},   {"{2,}", 2, 99},
        {"{1,3}", 1, 3}, {"{0,2}", 0, 2},     {"{0}", 0, 0},   {"{0,0}", 0, 0}, {"{0,}", 0, 99},
        {"{1}", 1, 1},   {"{ 2 , 4 }", 2, 4}, {"{1,1}", 1, 1},
    };
    static const char *const OPERANDS[] = {"\"ab\"", "(\"ab\")", "[a] [b]", "(\"a\" \"b\" | \"ab\")", "pair"};
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++)
        for (size_t o = 0; o < sizeof OPERANDS / sizeof *OPERANDS; o++) {
            if (o == 2) continue; /* would repeat [b] only */
            char source[128], text[32] = "";
            snprintf(source, sizeof source, "root ::= \"<\" %s%s \">\"\npair ::= \"ab\"", OPERANDS[o], CASES[c].bounds);
            for (int n = 0; n < 7; n++) {
                int length = snprintf(text, sizeof text, "<%.*s>", 2 * n, "ababababababab");
                bool expected = n >= CASES[c].min && n <= CASES[c].max;
                if (takes(source, text, (size_t)length) != expected) fail_msg("%s on %s", source, text);
            }
        }
    assert_takes("root ::= [a] [b]{2}", "abb");
}

static void rules_may_span_lines_and_carry_comments(void **state)
{
    const char *source = "# a comment\r\n"
                         "root ::= # another ::= \"x\"\n"
                         "  object |\n"
                         "  (\n    \"[\" # inside\n    object\n    \"]\"\n  )\n"
                         "\n\n"
                         "object ::= \"{\" pair? \"}\"\n"
                         "pair ::= key\n  \":\" value\n"
                         "key_1 ::= \"k\" key ::= \"k\"\n"
                         "value ::= \"v\" |\n  # none\n  \"w\"";
    assert_takes(source, "{k:v}");
    assert_takes(source, "[{k:w}]");
    assert_takes(source, "[{}]");
    assert_refuses(source, "{k}");
    assert_takes("root ::= \"a\" | ", "");
    assert_takes("root ::= ()", "");
    assert_takes("root ::= \"a\"\n\n*", "aaa");
}

static const char JSON_GRAMMAR[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static void json_grammar_takes_json(void **state)
{
    assert_takes(JSON_GRAMMAR, "{\"a\": [1, -2.5e+3, true, null, {\"\\u00e9\": \"\xF0\x9F\xA7\xAA\"}]}");
    assert_takes(JSON_GRAMMAR, "{\n  \"a\": {}\n}");
    assert_refuses(JSON_GRAMMAR, "{\"a\": 01}");
    assert_refuses(JSON_GRAMMAR, "{\"a\": }");
    assert_refuses(JSON_GRAMMAR, "[]");
    assert_refuses(JSON_GRAMMAR, "{\"a\": \"\xC3\"}");
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

static void expect_error(const char *source, size_t bytes, enum dse_status status, int line, const char *part)
{
    struct dse_grammar *grammar = (void *)1;
    struct dse_error err = {0};
    if (dse_grammar_compile(source, bytes, &grammar, &err) != status)
        fail_msg("%.60s: expected %s, got %s", source, part, grammar ? "a grammar" : err.message);
    assert_null(grammar);
    if (!strstr(err.message, part)) fail_msg("'%s' lacks '%s'", err.message, part);
    assert_int_equal(err.line, line);
    assert_string_equal(err.file, "grammar");
}

static void errors_name_cause_and_line(void **state)
{
    static const struct {
        const char *source;
        int line;
        const char *part;
    } CASES[] = {
        {"", 0, "no rule 'root'"},
        {"   # only a comment", 0, "no rule 'root'"},
        {"rot ::= \"a\"", 0, "no rule 'root'"},
        {"root ::= \"a\"\nx ::= y\n", 2, "'y' is used but not defined"},
        {"root ::=\n x |\n \"b\"", 2, "'x' is used but not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", 2, "defined twice, first on line 1"},
        {"root ::= root \"a\"", 1, "left recursion: root -> root"},
        {"root ::= \"x\" | a\na ::= b \"y\"\nb ::= \"z\" | a", 2, "left recursion: a -> b -> a"},
        {"root ::= n root \"a\" | \"b\"\nn ::= m*\nm ::= \"c\"", 1, "left recursion: root -> root"},
        {"root ::= \"\" (\"q\"?){3} root", 1, "left recursion"},
        {"root ::= (root \"a\")? \"b\"", 1, "left recursion"},
        {"root ::= a a\na ::= \"x\"? b\nb ::= \"\" | a", 2, "left recursion: a -> b -> a"},
        {"root ::= \"abc", 1, "literal is never closed"},
        {"root ::= \"a\"\n  \"abc\\\"", 2, "literal is never closed"},
        {"root ::= \"abc\\", 1, "never closed"},
        {"root ::= [abc", 1, "class is never closed"},
        {"root ::= []", 1, "matches nothing"},
        {"root ::= [^\\x00-\\U0010ffff]", 1, "matches nothing"},
        {"root ::= [z-a]", 1, "reversed"},
        {"root ::= \"\\q\"", 1, "unknown escape \\q"},
        {"root ::= \"\\xZZ\"", 1, "2 hexadecimal digits"},
        {"root ::= \"\\u12\"", 1, "4 hexadecimal digits"},
        {"root ::= \"\\ud800\"", 1, "U+D800 is not a character"},
        {"root ::= \"\\U00110000\"", 1, "not a character"},
        {"root ::= (\"a\"\n", 1, "'(' is never closed"},
        {"root ::= \"a\" (\n\"b\"\nx ::= \"c\"", 1, "'(' is never closed"},
        {"root ::= \"a\")", 1, "')' without '('"},
        {"root ::= *", 1, "nothing to repeat"},
        {"root ::= | + \"a\"", 1, "nothing to repeat"},
        {"root ::= \"a\"{3,2}", 1, "upper bound is below"},
        {"root ::= \"a\"{,2}", 1, "expected a number"},
        {"root ::= \"a\"{2", 1, "never closed with }"},
        {"root ::= \"a\"{2;3}", 1, "never closed with }"},
        {"root \"a\"", 1, "expected ::="},
        {"\n\n::= \"a\"", 3, "expected `name ::=`"},
        {"root ::= \"a\" & \"b\"", 1, "unexpected '&'"},
        {"root ::= \"a\" \xC3\xA9", 1, "unexpected byte"},
        {"root ::= \"a\n\xFF\"", 2, "not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        expect_error(CASES[i].source, strlen(CASES[i].source), DSE_ERR_INVALID, CASES[i].line, CASES[i].part);
    expect_error("root ::= \"a\"\n\"b\"{5000}", 23, DSE_ERR_LIMIT, 2, "more than 4096 repetitions");
    expect_error("root ::= \"a\"{99999999999999999999}", 34, DSE_ERR_LIMIT, 1, "more than 4096");
}

static char *repeat(const char *head, const char *part, int n, const char *tail, size_t *bytes)
{
    struct dse_buffer b;
    dse_buffer_init(&b, DSE_MEM_MISC, 1u << 24);
    dse_buffer_puts(&b, head);
    for (int i = 0; i < n; i++)
        dse_buffer_puts(&b, part);
    dse_buffer_puts(&b, tail);
    *bytes = b.length;
    return dse_buffer_take(&b);
}

static void hostile_sizes_are_refused(void **state)
{
    size_t bytes;
    char *source = repeat("root ::= ", "(", 60000, "", &bytes);
    expect_error(source, bytes, DSE_ERR_LIMIT, 1, "128 nested parentheses");
    dse_free(source);
    source = repeat("root ::= \"a\"", "*", 60000, "", &bytes);
    expect_error(source, bytes, DSE_ERR_LIMIT, 1, "nested deeper");
    dse_free(source);
    source = repeat("root ::= ", "(\"abc\" | \"d\")? x{4096} ", 20000, "x ::= \"a\"", &bytes);
    expect_error(source, bytes, DSE_ERR_LIMIT, 1, "more than 1048576 nodes");
    dse_free(source);
    source = repeat("root ::= \"a\"", " ", 1 << 20, "", &bytes);
    expect_error(source, bytes, DSE_ERR_LIMIT, 0, "more than 1048576");
    dse_free(source);
    source = repeat("root ::= \"zz\"", " | [a-z] \"x\"", 5000, "", &bytes);
    expect_error(source, bytes, DSE_ERR_LIMIT, 0, "more than 4096 alternatives");
    dse_free(source);
    struct dse_buffer b;
    dse_buffer_init(&b, DSE_MEM_MISC, 1u << 24);
    dse_buffer_puts(&b, "root ::= \"a\"\n");
    for (int i = 0; i < 9000; i++)
        dse_buffer_printf(&b, "r%d ::= \"a\"\n", i);
    expect_error(b.data, b.length, DSE_ERR_LIMIT, 8193, "more than 8192 rules");
    dse_buffer_deinit(&b);
}

/* A chain of rules in either order, with and without something left to do after each. */
static void long_chains_of_rules_work_or_are_refused(void **state)
{
    for (int with_tail = 0; with_tail < 2; with_tail++)
        for (int backwards = 0; backwards < 2; backwards++) {
            struct dse_buffer b;
            dse_buffer_init(&b, DSE_MEM_MISC, 1u << 24);
            dse_buffer_puts(&b, "root ::= r0\nr5000 ::= \"a\"?\n");
            for (int i = 0; i < 5000; i++) {
                int at = backwards ? 4999 - i : i;
                dse_buffer_printf(&b, "r%d ::= r%d%s\n", at, at + 1, with_tail ? " \"\" \"b\"?" : "");
            }
            if (with_tail)
                expect_error(b.data, b.length, DSE_ERR_LIMIT, 0, "1024 nested rules");
            else
                assert_true(takes(b.data, "a", 1));
            dse_buffer_deinit(&b);
        }
}

static void ambiguous_grammars_do_not_explode(void **state)
{
    char text[400];
    memset(text, 'a', sizeof text);
    assert_true(takes("root ::= ((\"a\"*)*)*", text, sizeof text));
    assert_true(takes("root ::= (\"a\"? \"a\"?){200}", text, sizeof text));
    assert_false(takes("root ::= (\"a\"? \"a\"?){199}", text, sizeof text));
    /* The number of parse stacks doubles with every byte: the state dies at the limit, the masks before are right. */
    struct dse_grammar_state *s = open_state("root ::= s\ns ::= \"a\" | \"a\" s \"c\" | \"a\" s \"d\"");
    uint64_t mask[N_MASK];
    int n = 0;
    do {
        dse_grammar_mask(s, mask);
        assert_true(n > 8 || bit(mask, 'a'));
        assert_false(bit(mask, 'b'));
        n++;
    } while (n < 100 && dse_grammar_accept_bytes(s, "a", 1));
    assert_in_range(n, 8, 20);
    dse_grammar_mask(s, mask);
    for (int i = 0; i < N_MASK; i++)
        assert_true(mask[i] == 0);
    dse_grammar_state_free(s);
}

static void nesting_stops_at_the_depth_limit(void **state)
{
    struct dse_grammar_state *s = open_state("root ::= \"[\" root \"]\" | \"x\"");
    int depth = 0;
    while (dse_grammar_accept_bytes(s, "[", 1))
        depth++;
    assert_in_range(depth, DSE_GRAMMAR_MAX_DEPTH - 2, DSE_GRAMMAR_MAX_DEPTH + 2);
    assert_false(dse_grammar_may_end(s));
    uint64_t mask[N_MASK];
    memset(mask, 0xFF, sizeof mask);
    dse_grammar_mask(s, mask);
    for (int i = 0; i < N_MASK; i++)
        assert_true(mask[i] == 0); /* dead */
    dse_grammar_state_free(s);

    s = open_state("root ::= \"[\" root \"]\" | \"x\"");
    for (int i = 0; i < 1000; i++)
        assert_true(dse_grammar_accept_bytes(s, "[", 1));
    assert_true(dse_grammar_accept_bytes(s, "x", 1));
    for (int i = 0; i < 1000; i++)
        assert_true(dse_grammar_accept_bytes(s, "]", 1));
    assert_true(dse_grammar_must_end(s));
    dse_grammar_state_free(s);
}

static void right_recursion_runs_in_constant_depth(void **state)
{
    struct dse_grammar_state *s = open_state("root ::= item root | \"end\"\nitem ::= \"a\" | \"b\" item");
    for (int i = 0; i < 50000; i++)
        assert_true(dse_grammar_accept_bytes(s, i % 3 ? "ba" : "a", i % 3 ? 2 : 1));
    assert_true(dse_grammar_accept_bytes(s, "end", 3));
    assert_true(dse_grammar_must_end(s));
    dse_grammar_state_free(s);
}

/* ---- masks --------------------------------------------------------------------------------------------------- */

/* The mask after prefix, token by token against stepping through the bytes of each. */
static void check_mask(const char *source, const char *prefix, size_t n_prefix, struct dse_grammar_state *walked)
{
    uint64_t mask[N_MASK];
    dse_grammar_mask(walked, mask);
    struct dse_grammar *grammar = compile(source);
    struct grammar_matcher m;
    struct dse_error err;
    assert_int_equal(dse_grammar_matcher_init(&m, grammar, &err), DSE_OK);
    uint32_t start = dse_grammar_matcher_start(&m);
    for (size_t i = 0; i < n_prefix; i++) {
        start = dse_grammar_matcher_step(&m, start, grammar->class_of_byte[(uint8_t)prefix[i]]);
        start = dse_grammar_matcher_flush(&m, start);
        assert_true(start > GRAMMAR_DEAD);
    }
    for (int32_t id = 0; id < N_TOKENS; id++) {
        struct dse_slice text = token_text(id);
        uint32_t config = start;
        for (size_t i = 0; i < text.bytes && config != GRAMMAR_DEAD; i++)
            config = dse_grammar_matcher_step(&m, config, grammar->class_of_byte[(uint8_t)text.data[i]]);
        assert_int_not_equal(config, GRAMMAR_FULL);
        bool expected = id == STOP ? grammar_config_may_end(&m, start)
                                   : text.bytes > 0 && id != CONTROL && config != GRAMMAR_DEAD;
        if (bit(mask, id) != expected) fail_msg("%.30s after '%s': token %d", source, prefix, id);
    }
    dse_grammar_matcher_deinit(&m);
    dse_grammar_unref(grammar);
}

static void mask_equals_acceptance(void **state)
{
    static const char *const TEXTS[][2] = {
        {JSON_GRAMMAR, "{\"abc\": [true, [[\"\xF0\x9F\xA7\xAA\"]], 12345]}"},
        {"root ::= \"two plus two\" | [a-z]{2,9} \"!\"?", "two plus two"},
        {"root ::= [^a]* \"abc\" .*", "xx\xE6\xB8\xA9"
                                      "abc\xF0\x9F\xA7\xAA"},
    };
    for (int t = 0; t < 3; t++) {
        struct dse_grammar_state *s = open_state(TEXTS[t][0]);
        size_t n = strlen(TEXTS[t][1]);
        for (size_t i = 0; i <= n; i += t ? 1 : 3) {
            check_mask(TEXTS[t][0], TEXTS[t][1], i, s);
            for (size_t j = i; j < n && j < i + (t ? 1 : 3); j++)
                assert_true(dse_grammar_accept_bytes(s, TEXTS[t][1] + j, 1));
        }
        dse_grammar_state_free(s);
    }
}

/* Any choice among the allowed tokens writes the same text: here the highest, the lowest and pseudo-random ones. */
static void literal_root_forces_exactly_its_text(void **state)
{
    static const char TEXT[] =
        "two plus two is four</think>\n\nIt is \xF0\x9F\xA7\xAA na\xC3\xAFve \xE6\xB8\xA9\xE5\xBA\xA6 "
        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 ok";
    char source[256] = "root ::= \"";
    size_t used = strlen(source);
    for (const char *c = TEXT; *c; c++)
        if (*c == '\n')
            source[used++] = '\\', source[used++] = 'n';
        else
            source[used++] = *c;
    source[used++] = '"';
    source[used] = 0;
    for (uint32_t run = 0; run < 50; run++) {
        struct dse_grammar_state *s = open_state(source);
        char written[256] = "";
        size_t n = 0;
        uint32_t random = run * 2654435761u + 1;
        for (;;) {
            uint64_t mask[N_MASK];
            dse_alloc_forbid_begin();
            dse_grammar_mask(s, mask);
            int32_t allowed[N_TOKENS], count = 0;
            for (int32_t id = 0; id < N_TOKENS; id++)
                if (bit(mask, id)) allowed[count++] = id;
            assert_true(count > 0);
            random = random * 1664525u + 1013904223u;
            int32_t id = run == 0 ? allowed[0] : run == 1 ? allowed[count - 1] : allowed[(random >> 8) % count];
            assert_true(dse_grammar_accept(s, id));
            dse_alloc_forbid_end();
            if (id == STOP) break;
            assert_int_not_equal(id, CONTROL);
            memcpy(written + n, token_text(id).data, token_text(id).bytes);
            n += token_text(id).bytes;
        }
        assert_int_equal(n, sizeof TEXT - 1);
        assert_memory_equal(written, TEXT, n);
        dse_grammar_state_free(s);
    }
}

static void only_stop_tokens_when_the_grammar_must_end(void **state)
{
    struct dse_grammar_state *s = open_state("root ::= \"ab\"");
    uint64_t mask[N_MASK];
    assert_false(dse_grammar_may_end(s));
    dse_grammar_mask(s, mask);
    assert_false(bit(mask, STOP));
    assert_true(dse_grammar_accept_bytes(s, "ab", 2));
    assert_true(dse_grammar_must_end(s));
    dse_grammar_mask(s, mask);
    for (int32_t id = 0; id < N_TOKENS; id++)
        assert_int_equal(bit(mask, id), id == STOP);
    assert_true(dse_grammar_accept(s, STOP));
    assert_true(dse_grammar_must_end(s));
    dse_grammar_mask(s, mask);
    for (int32_t id = 0; id < N_TOKENS; id++)
        assert_int_equal(bit(mask, id), id == STOP);
    assert_false(dse_grammar_accept(s, 'a'));
    assert_false(dse_grammar_may_end(s));
    dse_grammar_state_free(s);
}

static void refused_tokens_kill_the_state(void **state)
{
    static const int32_t BAD[] = {-1, N_TOKENS, INT32_MAX, INT32_MIN, CONTROL, STOP, 'b'};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct dse_grammar_state *s = open_state("root ::= \"a\"");
        assert_false(dse_grammar_accept(s, BAD[i]));
        assert_false(dse_grammar_accept(s, 'a'));
        assert_false(dse_grammar_may_end(s));
        assert_false(dse_grammar_must_end(s));
        dse_grammar_state_free(s);
    }
}

/* Thousands of configurations: the arrays fill, are flushed, and masks and acceptance stay right. */
static void full_arrays_are_flushed_without_a_trace(void **state)
{
    const char *source = "root ::= ([a-z] | \"(\" [a-z]{0,4000} \")\"){4096} | [a-f]{4000} \"!\" [^x]{4000}";
    struct dse_grammar_state *s = open_state(source);
    struct dse_buffer text;
    dse_buffer_init(&text, DSE_MEM_MISC, 1u << 20);
    uint64_t mask[N_MASK];
    for (int i = 0; i < 4000; i++) {
        dse_alloc_forbid_begin();
        dse_grammar_mask(s, mask);
        dse_alloc_forbid_end();
        assert_true(bit(mask, 'a') && bit(mask, 'q') && !bit(mask, STOP));
        assert_true(dse_grammar_accept_bytes(s, "a", 1));
        dse_buffer_putc(&text, 'a');
        if (i % 997 == 0) check_mask(source, text.data, text.length, s);
    }
    assert_true(dse_grammar_accept_bytes(s, "!", 1));
    for (int i = 0; i < 4000; i++) {
        dse_grammar_mask(s, mask);
        assert_true(bit(mask, 0xC3) && !bit(mask, 'x') && !bit(mask, STOP));
        assert_true(dse_grammar_accept_bytes(s, "\xE6\xB8\xA9", 3));
    }
    assert_true(dse_grammar_must_end(s));
    dse_buffer_deinit(&text);
    dse_grammar_state_free(s);
}

static void lack_of_memory_is_reported_everywhere(void **state)
{
    size_t live = dse_mem_live_bytes(DSE_MEM_TEXT);
    bool succeeded = false;
    for (long n = 1; n < 200 && !succeeded; n++) {
        struct dse_grammar *grammar = NULL;
        struct dse_grammar_state *s = NULL;
        struct dse_error err;
        dse_alloc_fail_after(n);
        enum dse_status status = dse_grammar_compile(JSON_GRAMMAR, strlen(JSON_GRAMMAR), &grammar, &err);
        if (status == DSE_OK) status = dse_grammar_state_create(grammar, trie, &s, &err);
        dse_alloc_fail_after(0);
        succeeded = status == DSE_OK;
        if (!succeeded) assert_int_equal(status, DSE_ERR_NO_MEMORY);
        dse_grammar_state_free(s);
        dse_grammar_unref(grammar);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), live);
    }
    assert_true(succeeded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(literals_know_all_escapes),
        cmocka_unit_test(classes_cover_ranges_and_negation),
        cmocka_unit_test(class_matches_exactly_its_code_points),
        cmocka_unit_test(repetitions_count),
        cmocka_unit_test(rules_may_span_lines_and_carry_comments),
        cmocka_unit_test(json_grammar_takes_json),
        cmocka_unit_test(errors_name_cause_and_line),
        cmocka_unit_test(hostile_sizes_are_refused),
        cmocka_unit_test(long_chains_of_rules_work_or_are_refused),
        cmocka_unit_test(ambiguous_grammars_do_not_explode),
        cmocka_unit_test(nesting_stops_at_the_depth_limit),
        cmocka_unit_test(right_recursion_runs_in_constant_depth),
        cmocka_unit_test(mask_equals_acceptance),
        cmocka_unit_test(literal_root_forces_exactly_its_text),
        cmocka_unit_test(only_stop_tokens_when_the_grammar_must_end),
        cmocka_unit_test(refused_tokens_kill_the_state),
        cmocka_unit_test(full_arrays_are_flushed_without_a_trace),
        cmocka_unit_test(lack_of_memory_is_reported_everywhere),
    };
    return cmocka_run_group_tests(tests, make_trie, free_trie);
}

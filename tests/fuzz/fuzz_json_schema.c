/* Schemas, patterns and tools from requests: the input is JSON, a zero byte, and texts. What compiles must neither fail
 * nor disagree with itself: a mask allows exactly what is accepted. A schema is also tried as the parameters of a tool
 * in some format, a string as a regular expression, an array as a choice. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/grammar_internal.h"
#include "text/json_schema.h"
#include "text/tool_grammar.h"

enum { STOP = 256, N_TOKENS, N_MASK = (N_TOKENS + 63) / 64, MAX_STEPS = 96 };

static const struct dse_token_trie *byte_trie(void)
{
    static struct dse_token_trie *trie;
    static char bytes[256];
    struct dse_slice texts[N_TOKENS] = {[STOP] = {"", 0}};
    uint8_t uses[N_TOKENS] = {[STOP] = GRAMMAR_TOKEN_STOP};
    if (trie) return trie;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct dse_slice){&bytes[i], 1};
    }
    if (dse_token_trie_create_from(texts, uses, N_TOKENS, &trie, NULL) != DSE_OK) abort();
    return trie;
}

/* Goes on with bytes that the mask allows, near those of the input: what compiled must have a way on everywhere. */
static void walk(struct dse_grammar *grammar, const uint8_t *data, size_t size)
{
    struct dse_grammar_state *state;
    if (dse_grammar_state_create(grammar, byte_trie(), &state, NULL) != DSE_OK) return;
    for (size_t i = 0; i < size && i < MAX_STEPS; i++) {
        uint64_t mask[N_MASK];
        dse_grammar_mask(state, mask);
        int32_t token = -1;
        for (int n = 0; n < 256 && token < 0; n++) {
            int32_t next = (data[i] + n) % 256;
            if (mask[next / 64] >> (next % 64) & 1) token = next;
        }
        bool may_end = dse_grammar_may_end(state);
        if (may_end != (mask[STOP / 64] >> (STOP % 64) & 1)) abort();
        if (token < 0 && !may_end && i == 0) abort(); /* nothing can be said at all */
        if (token < 0) break;
        if (!dse_grammar_accept(state, token)) abort();
    }
    dse_grammar_state_free(state);
}

static void try_grammar(enum dse_status status, struct dse_grammar *grammar, const struct dse_error *err,
                        const uint8_t *data, size_t size)
{
    if ((status == DSE_OK) != (grammar != NULL)) abort();
    if (!grammar && err->message[0] == 0) abort();
    if (grammar) walk(grammar, data, size);
    dse_grammar_unref(grammar);
}

/* which: the format and whether a call must come. */
static void try_tools(const json_t *schema, size_t which, const uint8_t *data, size_t size)
{
    static const enum dse_tool_format formats[] = {DSE_TOOLS_DEEPSEEK, DSE_TOOLS_DSML, DSE_TOOLS_QWEN};
    struct dse_error err = {0};
    json_t *tools = json_pack("[{s:{s:s,s:b,s:O}}]", "function", "name", "f", "strict", 1, "parameters", schema);
    struct dse_tool_grammar wanted = {
        .format = formats[which / 2 % 3], .tools = tools, .must_call = which % 2, .parallel = true};
    struct dse_grammar *grammar;
    if (tools) {
        enum dse_status status = dse_tool_grammar_compile(&wanted, &grammar, &err);
        try_grammar(status, grammar, &err, data, size);
    }
    json_decref(tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size, n_rest = end ? size - n - 1 : 0;
    const uint8_t *rest = end ? end + 1 : data;
    struct dse_error err = {0};
    struct dse_grammar *grammar = NULL;
    json_t *schema = NULL;
    if (dse_json_parse((const char *)data, n, "the schema", &schema, &err) != DSE_OK) return 0;
    enum dse_status status = dse_json_schema_compile(schema, "schema", n % 2 ? DSE_SCHEMA_COMPACT : 0, &grammar, &err);
    try_grammar(status, grammar, &err, rest, n_rest);
    if (json_is_string(schema)) {
        status = dse_regex_compile(json_string_value(schema), json_string_length(schema), "regex", 0, &grammar, &err);
        try_grammar(status, grammar, &err, rest, n_rest);
    } else if (json_is_array(schema)) {
        status = dse_choice_compile(schema, "choice", 0, &grammar, &err);
        try_grammar(status, grammar, &err, rest, n_rest);
    } else {
        try_tools(schema, size, rest, n_rest);
    }
    json_decref(schema);
    return 0;
}

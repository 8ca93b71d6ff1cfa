/* Asks the schema compiler for Python tests: a line {"schema": …, "texts": […], "compact": bool} on standard input is
 * answered by a line with 1 or 0 per text (the text is complete and valid), or with "refused FIELD: MESSAGE". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/grammar_internal.h"
#include "text/json_schema.h"

static const struct dse_token_trie *byte_trie(void)
{
    static struct dse_token_trie *trie;
    static char bytes[256];
    struct dse_slice texts[257];
    uint8_t uses[257] = {[256] = GRAMMAR_TOKEN_STOP};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct dse_slice){&bytes[i], 1};
    }
    texts[256] = (struct dse_slice){"", 0};
    if (!trie && dse_token_trie_create_from(texts, uses, 257, &trie, NULL) != DSE_OK) exit(1);
    return trie;
}

static void check_texts(struct dse_grammar *grammar, const json_t *texts)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        struct dse_grammar_state *state;
        if (dse_grammar_state_create(grammar, byte_trie(), &state, NULL) != DSE_OK) exit(1);
        bool good = dse_grammar_accept_bytes(state, json_string_value(text), json_string_length(text)) &&
                    dse_grammar_may_end(state);
        putchar(good ? '1' : '0');
        dse_grammar_state_free(state);
    }
    putchar('\n');
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        struct dse_error err;
        json_t *request;
        struct dse_grammar *grammar;
        if (dse_json_parse(line, (size_t)n, "the request", &request, &err) != DSE_OK) return 1;
        unsigned flags = json_is_true(json_object_get(request, "compact")) ? DSE_SCHEMA_COMPACT : 0;
        if (dse_json_schema_compile(json_object_get(request, "schema"), "schema", flags, &grammar, &err) == DSE_OK)
            check_texts(grammar, json_object_get(request, "texts"));
        else
            printf("refused %s: %s\n", err.file, err.message);
        fflush(stdout);
        dse_grammar_unref(grammar);
        json_decref(request);
    }
    free(line);
    return 0;
}

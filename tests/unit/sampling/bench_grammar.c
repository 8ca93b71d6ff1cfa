/* How long the token mask takes on a model's vocabulary: bench_grammar MODEL SCHEMA.json [TEXTS.json].
 *
 * Walks each text (a JSON array of strings; without: "{}") token by token as a sampler would that always takes the
 * longest token, and prints the median, the 99th percentile and the largest time of a mask, for the first sequence and
 * for a second one over the same grammar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "model/tokenizer_source.h"
#include "model/weights.h"
#include "text/grammar_internal.h"
#include "text/json_schema.h"

#define MAX_STEPS 65536

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The longest token that the text goes on with; -1: none. */
static int32_t longest(const struct dse_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t best = -1;
    size_t best_bytes = 0;
    for (size_t i = 0; i < dse_tokenizer_count(tokenizer); i++) {
        struct dse_slice token = dse_tokenizer_bytes(tokenizer, (int32_t)i);
        if (token.bytes <= best_bytes || token.bytes > bytes || memcmp(token.data, text, token.bytes) != 0) continue;
        best = (int32_t)i;
        best_bytes = token.bytes;
    }
    return best;
}

static void run(struct dse_grammar *grammar, const struct dse_tokenizer *tokenizer, const struct dse_token_trie *trie,
                const json_t *texts, const char *name)
{
    static uint64_t times[MAX_STEPS];
    uint64_t *mask = calloc(trie->n_words, sizeof *mask);
    size_t n = 0;
    for (size_t t = 0; t < json_array_size(texts); t++) {
        const char *text = json_string_value(json_array_get(texts, t));
        size_t bytes = strlen(text);
        struct dse_grammar_state *state;
        if (!mask || dse_grammar_state_create(grammar, trie, &state, NULL) != DSE_OK) exit(1);
        for (size_t at = 0; at < bytes && n < MAX_STEPS;) {
            int32_t token = longest(tokenizer, text + at, bytes - at);
            uint64_t start = dse_clock_ns();
            dse_grammar_mask(state, mask);
            times[n++] = dse_clock_ns() - start;
            if (token < 0 || !(mask[token / 64] >> (token % 64) & 1) || !dse_grammar_accept(state, token)) {
                printf("%s: text %zu cannot go on at byte %zu\n", name, t, at);
                break;
            }
            at += dse_tokenizer_bytes(tokenizer, token).bytes;
        }
        dse_grammar_state_free(state);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += times[i];
    qsort(times, n, sizeof *times, compare);
    if (n > 0)
        printf("%-6s %5zu masks: mean %7.1f us, median %7.1f us, p99 %7.1f us, max %7.1f us\n", name, n,
               (double)sum / (double)n / 1e3, (double)times[n / 2] / 1e3, (double)times[n * 99 / 100] / 1e3,
               (double)times[n - 1] / 1e3);
    free(mask);
}

int main(int argc, char **argv)
{
    struct dse_error err = {0};
    struct dse_model_file *file = NULL;
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_token_trie *trie = NULL;
    struct dse_grammar *grammar = NULL;
    json_t *schema = NULL, *texts = json_pack("[s]", "{}");
    if (argc < 3) return fprintf(stderr, "usage: bench_grammar MODEL SCHEMA.json [TEXTS.json]\n"), 2;
    uint64_t start = 0;
    enum dse_status status = dse_model_file_open(argv[1], &file, &err);
    if (status == DSE_OK) status = dse_tokenizer_from_model(file, &tokenizer, &err);
    if (status == DSE_OK) status = dse_token_trie_create(tokenizer, NULL, 0, &trie, &err);
    if (status == DSE_OK) status = dse_json_read(argv[2], 1 << 20, &schema, &err);
    if (status == DSE_OK && argc > 3) status = dse_json_read(argv[3], 1 << 20, &texts, &err);
    start = dse_clock_ns();
    if (status == DSE_OK) status = dse_json_schema_compile(schema, "schema", 0, &grammar, &err);
    if (status != DSE_OK) return fprintf(stderr, "%s\n", err.message), 1;
    printf("compiled in %.1f us: %u nodes\n", (double)(dse_clock_ns() - start) / 1e3, grammar->n_nodes);
    run(grammar, tokenizer, trie, texts, "first");
    run(grammar, tokenizer, trie, texts, "second");
    return 0;
}

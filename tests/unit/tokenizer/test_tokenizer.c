/* The tokenizer against small definitions: encoding, decoding, added tokens, malformed definitions, hostile input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "tiny_vocab.h"

static struct dse_tokenizer *create(const struct tiny_vocab *vocab)
{
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_error err = {0};
    if (dse_tokenizer_create(&vocab->def, &tokenizer, &err) != DSE_OK) fail_msg("%s", err.message);
    return tokenizer;
}

static struct dse_tokenizer *create_tiny(void)
{
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    return create(&vocab);
}

static void expect_guarded_ids(const struct dse_tokenizer *tokenizer, const char *text, unsigned flags,
                               const size_t *barriers, size_t n_barriers, const int32_t *ids, size_t count)
{
    struct dse_tokens tokens = {0};
    struct dse_error err = {0};
    if (dse_tokenizer_encode_guarded(tokenizer, text, strlen(text), flags, barriers, n_barriers, &tokens, &err) !=
        DSE_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tokens.count, count);
    if (count) assert_memory_equal(tokens.ids, ids, count * sizeof *ids);
    dse_tokens_deinit(&tokens);
}

static void expect_ids(const struct dse_tokenizer *tokenizer, const char *text, unsigned flags, const int32_t *ids,
                       size_t count)
{
    expect_guarded_ids(tokenizer, text, flags, NULL, 0, ids, count);
}
#define EXPECT_IDS(tokenizer, text, flags, ...)                                                                        \
    expect_ids(tokenizer, text, flags, (const int32_t[]){__VA_ARGS__},                                                 \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

#define BARRIERS(...) (const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t)
#define IDS(...)      (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void expect_refused(const struct tiny_vocab *vocab, enum dse_status status, const char *words)
{
    struct dse_tokenizer *tokenizer = NULL;
    struct dse_error err = {0};
    assert_int_equal(dse_tokenizer_create(&vocab->def, &tokenizer, &err), status);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not mention \"%s\"", err.message, words);
}

/* ---- encoding ---- */

static void merges_follow_rank_and_stop_where_no_pair_is_left(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    EXPECT_IDS(tokenizer, "hello", 0, TINY_HELLO);
    EXPECT_IDS(tokenizer, "hell", 0, TINY_HEL, 'l');
    EXPECT_IDS(tokenizer, " a1", 0, TINY_BLANK_A, '1');
    expect_ids(tokenizer, "", 0, NULL, 0);
    dse_tokenizer_free(tokenizer);
}

static void added_tokens_match_only_when_asked(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    EXPECT_IDS(tokenizer, "a<tool>b<eos>", DSE_ENCODE_PARSE_SPECIAL, 'a', TINY_USER, 'b', TINY_EOS);
    EXPECT_IDS(tokenizer, "<eos>", 0, '<', 'e', 'o', 's', '>');
    EXPECT_IDS(tokenizer, "<tool", DSE_ENCODE_PARSE_SPECIAL, '<', 't', 'o', 'o', 'l');
    EXPECT_IDS(tokenizer, "[PAD260]", DSE_ENCODE_PARSE_SPECIAL, '[', 'P', 'A', 'D', '2', '6', '0', ']');
    dse_tokenizer_free(tokenizer);
}

static void longest_added_token_wins_at_the_leftmost_place(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "<t", DSE_TOKEN_USER);            /* 266 */
    tiny_vocab_add(&vocab, "<tool><tool>!", DSE_TOKEN_USER); /* 267 */
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "<tool><tool>!", DSE_ENCODE_PARSE_SPECIAL, 267);
    EXPECT_IDS(tokenizer, "<tool><tool>?", DSE_ENCODE_PARSE_SPECIAL, TINY_USER, TINY_USER, '?');
    EXPECT_IDS(tokenizer, "<toos", DSE_ENCODE_PARSE_SPECIAL, 266, 'o', 'o', 's');
    dse_tokenizer_free(tokenizer);
}

static void no_added_token_crosses_a_barrier(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    const unsigned special = DSE_ENCODE_PARSE_SPECIAL;
    expect_guarded_ids(tokenizer, "<tool>", special, BARRIERS(1), IDS('<', 't', 'o', 'o', 'l', '>'));
    expect_guarded_ids(tokenizer, "<tool>", special, BARRIERS(5), IDS('<', 't', 'o', 'o', 'l', '>'));
    /* At its ends, outside the text, or twice at one place it bars nothing else. */
    expect_guarded_ids(tokenizer, "<tool>", special, BARRIERS(0, 6, 99), IDS(TINY_USER));
    expect_guarded_ids(tokenizer, "<tool><tool><eos>", special, BARRIERS(6, 7, 7, 12),
                       IDS(TINY_USER, '<', 't', 'o', 'o', 'l', '>', TINY_EOS));
    /* Text merges across a barrier. */
    expect_guarded_ids(tokenizer, "hello<eos>", special, BARRIERS(1, 3), IDS(TINY_HELLO, TINY_EOS));
    dse_tokenizer_free(tokenizer);
}

static void a_shorter_added_token_matches_where_the_longest_is_barred(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "<t", DSE_TOKEN_USER);            /* 266 */
    tiny_vocab_add(&vocab, "<tool><tool>!", DSE_TOKEN_USER); /* 267 */
    struct dse_tokenizer *tokenizer = create(&vocab);
    const unsigned special = DSE_ENCODE_PARSE_SPECIAL;
    expect_guarded_ids(tokenizer, "<tool><tool>!", special, BARRIERS(6), IDS(TINY_USER, TINY_USER, '!'));
    expect_guarded_ids(tokenizer, "<tool><tool>!", special, BARRIERS(12), IDS(TINY_USER, TINY_USER, '!'));
    expect_guarded_ids(tokenizer, "<tool><tool>!", special, BARRIERS(3), IDS(266, 'o', 'o', 'l', '>', TINY_USER, '!'));
    expect_guarded_ids(tokenizer, "<tool>", special, BARRIERS(2), IDS(266, 'o', 'o', 'l', '>'));
    dse_tokenizer_free(tokenizer);
}

static void a_barred_bos_text_is_not_the_bos_of_the_text(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    const unsigned flags = DSE_ENCODE_PARSE_SPECIAL | DSE_ENCODE_ADD_BOS;
    EXPECT_IDS(tokenizer, "<bos>a", flags, TINY_BOS, 'a');
    EXPECT_IDS(tokenizer, "<bos><bos>a", flags, TINY_BOS, TINY_BOS, 'a');
    EXPECT_IDS(tokenizer, "a<bos>", flags, TINY_BOS, 'a', TINY_BOS);
    expect_guarded_ids(tokenizer, "<bos>a", flags, BARRIERS(1), IDS(TINY_BOS, '<', 'b', 'o', 's', '>', 'a'));
    expect_guarded_ids(tokenizer, "<bos>a", flags, BARRIERS(5), IDS(TINY_BOS, 'a'));
    dse_tokenizer_free(tokenizer);
}

static void text_never_merges_into_a_control_token(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "ab", DSE_TOKEN_CONTROL); /* 266 */
    tiny_vocab_merge(&vocab, "a", "b");
    vocab.def.ignore_merges = true;
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "ab", 0, 'a', 'b');
    EXPECT_IDS(tokenizer, "ab", DSE_ENCODE_PARSE_SPECIAL, 266);
    dse_tokenizer_free(tokenizer);
}

static void ignore_merges_takes_a_whole_piece_that_is_a_token(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "xyz", DSE_TOKEN_NORMAL); /* 266, no merge leads here */
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "xyz", 0, 'x', 'y', 'z');
    dse_tokenizer_free(tokenizer);
    vocab.def.ignore_merges = true;
    tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "xyz", 0, 266);
    EXPECT_IDS(tokenizer, "xyzz", 0, 'x', 'y', 'z', 'z');
    dse_tokenizer_free(tokenizer);
}

static void byte_character_tokens_match_without_special_parsing(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.kinds[0xFC] = DSE_TOKEN_UNUSED;                    /* the base vocabulary lacks the byte FC … */
    tiny_vocab_add(&vocab, "\xC3\xBC", DSE_TOKEN_BYTE_CHAR); /* … and carries ü as an added token, 266 */
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "a\xC3\xBC", 0, 'a', 266);
    const int32_t id = 266;
    char *text;
    size_t bytes;
    assert_int_equal(dse_tokenizer_decode(tokenizer, &id, 1, true, &text, &bytes, NULL), DSE_OK);
    assert_string_equal(text, "\xC3\xBC");
    dse_free(text);
    dse_tokenizer_free(tokenizer);
}

static void bytes_without_a_token_vanish(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.kinds[4] = DSE_TOKEN_UNUSED;
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "a\x04", 0, 'a');
    expect_ids(tokenizer, "\x04", 0, NULL, 0);
    dse_tokenizer_free(tokenizer);
}

static void bos_is_added_once(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    unsigned both = DSE_ENCODE_ADD_BOS | DSE_ENCODE_PARSE_SPECIAL;
    EXPECT_IDS(tokenizer, "a", both, TINY_BOS, 'a');
    EXPECT_IDS(tokenizer, "<bos>a", both, TINY_BOS, 'a');
    EXPECT_IDS(tokenizer, "", both, TINY_BOS);
    EXPECT_IDS(tokenizer, "<bos>", DSE_ENCODE_ADD_BOS, TINY_BOS, '<', 'b', 'o', 's', '>');
    dse_tokenizer_free(tokenizer);

    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.def.add_bos = false;
    tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "a", both, 'a');
    assert_false(dse_tokenizer_adds_bos(tokenizer));
    dse_tokenizer_free(tokenizer);
}

static void nfc_composes_between_added_tokens_only(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.def.nfc = true;
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "e\xCC\x81", 0, 0xC3, 0xA9);
    EXPECT_IDS(tokenizer, "e<tool>\xCC\x81", DSE_ENCODE_PARSE_SPECIAL, 'e', TINY_USER, 0xCC, 0x81);
    dse_tokenizer_free(tokenizer);
}

static void invalid_utf8_is_refused_with_its_offset(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    static const char *const texts[] = {"abc\xFF", "abc\xC0\x80", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80",
                                        "abc\xE4\xB8"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct dse_tokens tokens = {0};
        struct dse_error err = {0};
        assert_int_equal(dse_tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), 0, &tokens, &err),
                         DSE_ERR_INVALID);
        assert_int_equal(err.offset, 3);
        assert_int_equal(tokens.count, 0);
        dse_tokens_deinit(&tokens);
    }
    dse_tokenizer_free(tokenizer);
}

static void encoding_appends_to_what_is_there(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    struct dse_tokens tokens = {0};
    assert_int_equal(dse_tokens_push(&tokens, 7, NULL), DSE_OK);
    assert_int_equal(dse_tokenizer_encode(tokenizer, "a", 1, 0, &tokens, NULL), DSE_OK);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[0], 7);
    assert_int_equal(tokens.ids[1], 'a');
    dse_tokens_deinit(&tokens);
    dse_tokenizer_free(tokenizer);
}

/* ---- decoding and questions ---- */

static void decoding_replaces_each_maximal_invalid_part(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    /* E4 B8 is one broken character, FF another; then AD completes nothing. */
    const int32_t ids[] = {TINY_BOS, 0xE4, 0xB8, 'x', 0xFF, 0xAD, TINY_UNUSED, TINY_USER, TINY_EOS};
    char *text;
    size_t bytes;
    assert_int_equal(dse_tokenizer_decode(tokenizer, ids, 9, true, &text, &bytes, NULL), DSE_OK);
    assert_string_equal(text, "\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD<tool>");
    assert_int_equal(bytes, strlen(text));
    dse_free(text);
    assert_int_equal(dse_tokenizer_decode(tokenizer, ids, 1, false, &text, &bytes, NULL), DSE_OK);
    assert_string_equal(text, "<bos>");
    dse_free(text);
    assert_int_equal(dse_tokenizer_decode(tokenizer, ids, 0, false, &text, &bytes, NULL), DSE_OK);
    assert_string_equal(text, "");
    dse_free(text);
    dse_tokenizer_free(tokenizer);
}

static void decoding_refuses_ids_outside_the_vocabulary(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    const int32_t wrong[] = {-1, TINY_COUNT, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        char *text = NULL;
        size_t bytes;
        assert_int_equal(dse_tokenizer_decode(tokenizer, &wrong[i], 1, false, &text, &bytes, NULL), DSE_ERR_INVALID);
        assert_null(dse_tokenizer_bytes(tokenizer, wrong[i]).data);
        assert_int_equal(dse_tokenizer_kind(tokenizer, wrong[i]), DSE_TOKEN_UNUSED);
        assert_false(dse_tokenizer_is_stop(tokenizer, wrong[i]));
    }
    dse_tokenizer_free(tokenizer);
}

static void stop_tokens_are_eos_eot_and_known_control_texts(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.def.eot = TINY_USER;
    tiny_vocab_add(&vocab, "<|endoftext|>", DSE_TOKEN_USER); /* known text, but not control */
    struct dse_tokenizer *tokenizer = create(&vocab);
    assert_true(dse_tokenizer_is_stop(tokenizer, TINY_EOS));
    assert_true(dse_tokenizer_is_stop(tokenizer, TINY_USER));
    assert_true(dse_tokenizer_is_stop(tokenizer, TINY_IM_END));
    assert_false(dse_tokenizer_is_stop(tokenizer, TINY_COUNT));
    assert_false(dse_tokenizer_is_stop(tokenizer, TINY_BOS));
    assert_int_equal(dse_tokenizer_find_added(tokenizer, "<tool>"), TINY_USER);
    assert_int_equal(dse_tokenizer_find_added(tokenizer, "<tool"), -1);
    assert_int_equal(dse_tokenizer_find_added(tokenizer, "hello"), -1);
    dse_tokenizer_free(tokenizer);
}

/* ---- malformed definitions ---- */

static void malformed_definitions_are_refused_by_name(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.def.pre = "mystery-bpe";
    expect_refused(&vocab, DSE_ERR_UNSUPPORTED, "mystery-bpe");
    tiny_vocab_init(&vocab);
    vocab.def.n_tokens = 0;
    vocab.def.bos = vocab.def.eos = -1;
    expect_refused(&vocab, DSE_ERR_CORRUPT, "no tokens");
    tiny_vocab_init(&vocab);
    vocab.def.eos = TINY_COUNT;
    expect_refused(&vocab, DSE_ERR_CORRUPT, "eos");
    tiny_vocab_init(&vocab);
    vocab.def.bos = -2;
    expect_refused(&vocab, DSE_ERR_CORRUPT, "bos");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "hello", DSE_TOKEN_NORMAL);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "same text");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "<tool>", DSE_TOKEN_CONTROL);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "same text");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "", DSE_TOKEN_CONTROL);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "0 bytes");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "\xFF", DSE_TOKEN_NORMAL);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "UTF-8");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "x", (enum dse_token_kind)77);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "kind");
    tiny_vocab_init(&vocab);
    tiny_vocab_merge(&vocab, "h", "nowhere");
    expect_refused(&vocab, DSE_ERR_CORRUPT, "not in the vocabulary");
    tiny_vocab_init(&vocab);
    tiny_vocab_merge(&vocab, "x", "y"); /* both exist, "xy" does not */
    expect_refused(&vocab, DSE_ERR_CORRUPT, "not in the vocabulary");
    tiny_vocab_init(&vocab);
    char huge[4096];
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    tiny_vocab_add(&vocab, huge, DSE_TOKEN_CONTROL);
    expect_refused(&vocab, DSE_ERR_CORRUPT, "4095 bytes");
}

static void an_empty_normal_token_is_harmless(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "", DSE_TOKEN_NORMAL);
    tiny_vocab_add(&vocab, "", DSE_TOKEN_NORMAL);
    struct dse_tokenizer *tokenizer = create(&vocab);
    EXPECT_IDS(tokenizer, "hello", 0, TINY_HELLO);
    dse_tokenizer_free(tokenizer);
}

static void every_failing_allocation_is_reported_and_nothing_leaks(void **state)
{
    (void)state;
    struct tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.def.nfc = true;
    size_t text_before = dse_mem_live_bytes(DSE_MEM_TEXT), request_before = dse_mem_live_bytes(DSE_MEM_REQUEST);
    static const char text[] = "hello <tool> e\xCC\x81 hello hello";
    for (long n = 1; n < 10000; n++) {
        struct dse_tokenizer *tokenizer = NULL;
        struct dse_tokens tokens = {0};
        dse_alloc_fail_after(n);
        enum dse_status status = dse_tokenizer_create(&vocab.def, &tokenizer, NULL);
        if (status == DSE_OK)
            status = dse_tokenizer_encode(tokenizer, text, sizeof text - 1, DSE_ENCODE_PARSE_SPECIAL, &tokens, NULL);
        dse_alloc_fail_after(0);
        dse_tokens_deinit(&tokens);
        dse_tokenizer_free(tokenizer);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_TEXT), text_before);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_REQUEST), request_before);
        if (status == DSE_OK) {
            assert_true(n > 10);
            return;
        }
        assert_int_equal(status, DSE_ERR_NO_MEMORY);
    }
    fail_msg("never succeeded");
}

/* ---- hostile input ---- */

#define HOSTILE_BYTES (1u << 18)
/* A release build needs about 0.1 s for the slowest; quadratic behaviour would need minutes. */
#define HOSTILE_SECONDS 5.0

static void long_runs_of_one_thing_take_linear_time(void **state)
{
    (void)state;
    static const char *const pres[] = {"deepseek-v3", "qwen2", "llama-bpe", "deepseek-llm", "deepseek-coder", "smollm"};
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        " \n",
                                        "1",
                                        "a 1 ",
                                        "   1",
                                        "  \xF0\x9F\x98\x80",
                                        "!",
                                        "\t",
                                        "\xE4\xB8\xAD",
                                        "\xCC\x81",
                                        "\xCC\x81\xCC\x96",
                                        "<",
                                        "<tool><too",
                                        "'",
                                        "hello",
                                        "\xE2\x80\x8B",
                                        "\xEE\x80\x80"};
    char *text = malloc(HOSTILE_BYTES + 16);
    assert_non_null(text);
    for (size_t p = 0; p < sizeof pres / sizeof pres[0]; p++) {
        struct tiny_vocab vocab;
        tiny_vocab_init(&vocab);
        vocab.def.pre = pres[p];
        vocab.def.nfc = true;
        struct dse_tokenizer *tokenizer = create(&vocab);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t unit = strlen(units[u]), bytes = 0;
            for (; bytes + unit <= HOSTILE_BYTES; bytes += unit)
                memcpy(text + bytes, units[u], unit);
            struct dse_tokens tokens = {0};
            uint64_t start = dse_clock_ns();
            assert_int_equal(dse_tokenizer_encode(tokenizer, text, bytes, DSE_ENCODE_PARSE_SPECIAL, &tokens, NULL),
                             DSE_OK);
            double seconds = (double)(dse_clock_ns() - start) * 1e-9;
            if (seconds > HOSTILE_SECONDS) fail_msg("%s, \"%s\" repeated: %.1f s", pres[p], units[u], seconds);
            dse_tokens_deinit(&tokens);
        }
        dse_tokenizer_free(tokenizer);
    }
    free(text);
}

struct worker {
    const struct dse_tokenizer *tokenizer;
    int rounds_wrong;
};

static void *encode_many_times(void *argument)
{
    struct worker *worker = argument;
    static const char text[] = "hello hello, e\xCC\x81 12 <tool> \n\n  x";
    struct dse_tokens first = {0};
    if (dse_tokenizer_encode(worker->tokenizer, text, sizeof text - 1, DSE_ENCODE_PARSE_SPECIAL, &first, NULL) !=
        DSE_OK)
        worker->rounds_wrong++;
    for (int i = 0; i < 300; i++) {
        struct dse_tokens tokens = {0};
        enum dse_status status = dse_tokenizer_encode(worker->tokenizer, text, sizeof text - 1,
                                                      DSE_ENCODE_PARSE_SPECIAL, &tokens, NULL);
        if (status != DSE_OK || tokens.count != first.count ||
            memcmp(tokens.ids, first.ids, first.count * sizeof *first.ids) != 0)
            worker->rounds_wrong++;
        dse_tokens_deinit(&tokens);
    }
    dse_tokens_deinit(&first);
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    (void)state;
    struct dse_tokenizer *tokenizer = create_tiny();
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){tokenizer, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many_times, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].rounds_wrong, 0);
    }
    dse_tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_follow_rank_and_stop_where_no_pair_is_left),
        cmocka_unit_test(added_tokens_match_only_when_asked),
        cmocka_unit_test(longest_added_token_wins_at_the_leftmost_place),
        cmocka_unit_test(no_added_token_crosses_a_barrier),
        cmocka_unit_test(a_shorter_added_token_matches_where_the_longest_is_barred),
        cmocka_unit_test(a_barred_bos_text_is_not_the_bos_of_the_text),
        cmocka_unit_test(text_never_merges_into_a_control_token),
        cmocka_unit_test(ignore_merges_takes_a_whole_piece_that_is_a_token),
        cmocka_unit_test(byte_character_tokens_match_without_special_parsing),
        cmocka_unit_test(bytes_without_a_token_vanish),
        cmocka_unit_test(bos_is_added_once),
        cmocka_unit_test(nfc_composes_between_added_tokens_only),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_offset),
        cmocka_unit_test(encoding_appends_to_what_is_there),
        cmocka_unit_test(decoding_replaces_each_maximal_invalid_part),
        cmocka_unit_test(decoding_refuses_ids_outside_the_vocabulary),
        cmocka_unit_test(stop_tokens_are_eos_eot_and_known_control_texts),
        cmocka_unit_test(malformed_definitions_are_refused_by_name),
        cmocka_unit_test(an_empty_normal_token_is_harmless),
        cmocka_unit_test(every_failing_allocation_is_reported_and_nothing_leaks),
        cmocka_unit_test(long_runs_of_one_thing_take_linear_time),
        cmocka_unit_test(threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

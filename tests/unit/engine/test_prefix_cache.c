/* The prefix cache inside the KV pool: what is found, what is given up, and that no block is lost or given twice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "engine/kv_pool.h"

#define BT          DSE_KV_BLOCK_TOKENS
#define TABLE       16
#define N_SEQUENCES 6

struct fixture {
    struct dse_kv_pool pool;
    int32_t tables[N_SEQUENCES][TABLE];
    int32_t tokens[N_SEQUENCES][TABLE * BT];
    struct dse_kv_sequence sequences[N_SEQUENCES];
};

static void setup(struct fixture *f, int n_blocks, int max_parked)
{
    struct dse_kv_layout layout = {.type = DSE_KV_F16, .n_layers = 1, .n_kv_heads = 1, .head_dim = 8};
    struct dse_error error;
    dse_kv_layout_init(&layout);
    memset(f, 0, sizeof *f);
    assert_int_equal(dse_kv_pool_init(&f->pool, &layout, n_blocks, &error), DSE_OK);
    assert_int_equal(dse_kv_pool_cache(&f->pool, max_parked, &error), DSE_OK);
    for (int i = 0; i < N_SEQUENCES; i++) {
        f->sequences[i].blocks = f->tables[i];
        f->sequences[i].max_blocks = TABLE;
        f->sequences[i].chain.scope.model[0] = 7;
    }
}

/* What a model would write there: a function of every token up to the end of the block. */
static uint64_t content_of(const int32_t *tokens, int block)
{
    uint64_t sum = 0x1234;
    for (int i = 0; i < (block + 1) * BT; i++)
        sum = sum * 6364136223846793005u + (uint64_t)tokens[i] + 1;
    return sum;
}

static uint64_t *block_memory(struct fixture *f, int s, int index)
{
    return (uint64_t *)(void *)(f->pool.memory + (size_t)f->tables[s][index] * f->pool.layout.block_bytes);
}

/* Computes the sequence up to `length` and records it, as a step does. */
static bool compute(struct fixture *f, int s, int length)
{
    struct dse_kv_sequence *sequence = &f->sequences[s];
    if (!dse_kv_extend(&f->pool, sequence, length)) return false;
    for (int b = sequence->length / BT; b < length / BT; b++)
        *block_memory(f, s, b) = content_of(f->tokens[s], b);
    sequence->length = length;
    dse_kv_record(&f->pool, sequence, f->tokens[s]);
    return true;
}

static void set_tokens(struct fixture *f, int s, int from, int value)
{
    for (int i = from; i < TABLE * BT; i++)
        f->tokens[s][i] = value;
}

/* Every block is free, parked or referred to, as often as tables name it; entries stand on entries. */
static void check_invariants(struct fixture *f)
{
    struct dse_kv_pool *pool = &f->pool;
    struct dse_prefix_cache *cache = &pool->cache;
    int32_t expected[64] = {0};
    int referred = 0, parked = 0, filled = 0, promised = 0;
    bool is_free[64] = {false};
    for (int s = 0; s < N_SEQUENCES; s++) {
        promised += f->sequences[s].promised;
        for (int i = 0; i < f->sequences[s].n_blocks; i++)
            expected[f->tables[s][i]]++;
        for (int i = 0; i < f->sequences[s].length / BT; i++)
            assert_true(*block_memory(f, s, i) == content_of(f->tokens[s], i));
    }
    for (int i = 0; i < pool->n_free; i++) {
        assert_false(is_free[pool->free_blocks[i]]);
        is_free[pool->free_blocks[i]] = true;
    }
    for (int b = 0; b < pool->n_blocks; b++) {
        assert_int_equal(pool->references[b], expected[b]);
        const struct dse_prefix_entry *entry = &cache->entries[b];
        referred += expected[b] > 0;
        parked += entry->filled && entry->parked;
        filled += entry->filled;
        assert_int_equal((expected[b] > 0) + is_free[b] + (entry->filled && entry->parked), 1);
        if (!entry->filled || entry->parent.epoch == 0) continue;
        bool stands = false;
        for (int p = 0; p < pool->n_blocks; p++)
            stands |= cache->entries[p].filled && cache->entries[p].id.serial == entry->parent.serial;
        assert_true(stands);
    }
    assert_int_equal(parked, cache->n_parked);
    assert_int_equal(filled, cache->n_filled);
    assert_true(parked <= cache->max_parked);
    assert_int_equal(referred, dse_kv_pool_used(pool));
    assert_int_equal(promised, pool->n_promised);
    assert_true(pool->n_promised <= pool->n_free + cache->n_parked);
    int listed = 0;
    for (int32_t b = cache->oldest; b >= 0; b = cache->entries[b].newer)
        listed++;
    assert_int_equal(listed, parked);
}

static void prefix_cache_finds_the_longest_common_beginning(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 16, 16);
    assert_true(compute(&f, 0, 4 * BT + 5));
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 0);
    assert_int_equal(dse_kv_pool_available(&f.pool), 16);
    assert_int_equal(f.pool.cache.n_parked, 4); /* the fifth was not full */

    set_tokens(&f, 1, 2 * BT + 1, 9);
    dse_kv_attach(&f.pool, &f.sequences[1], f.tokens[1], TABLE * BT);
    assert_int_equal(f.sequences[1].length, 2 * BT);
    check_invariants(&f);
    dse_kv_attach(&f.pool, &f.sequences[2], f.tokens[2], 4 * BT - 1); /* one token short of the fourth */
    assert_int_equal(f.sequences[2].length, 3 * BT);
    assert_int_equal(f.tables[1][1], f.tables[2][1]);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_blocks_of_running_sequences_are_found_too(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 8, 8);
    assert_true(compute(&f, 0, 3 * BT));
    dse_kv_attach(&f.pool, &f.sequences[1], f.tokens[1], TABLE * BT);
    assert_int_equal(f.sequences[1].length, 3 * BT);
    assert_int_equal(dse_kv_pool_used(&f.pool), 3);
    dse_kv_release(&f.pool, &f.sequences[0]);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_gives_up_the_oldest_and_the_end_before_the_beginning(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 8, 8);
    set_tokens(&f, 1, 0, 1);
    assert_true(compute(&f, 0, 4 * BT) && compute(&f, 1, 4 * BT));
    dse_kv_release(&f.pool, &f.sequences[0]);
    dse_kv_release(&f.pool, &f.sequences[1]);
    set_tokens(&f, 2, 0, 2);
    assert_true(compute(&f, 2, 3 * BT)); /* takes three of the first one's, which is older */
    check_invariants(&f);
    dse_kv_attach(&f.pool, &f.sequences[3], f.tokens[3], TABLE * BT);
    assert_int_equal(f.sequences[3].length, BT);
    set_tokens(&f, 4, 0, 1);
    dse_kv_attach(&f.pool, &f.sequences[4], f.tokens[4], TABLE * BT);
    assert_int_equal(f.sequences[4].length, 4 * BT);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_counts_as_free_for_promises(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 8, 8);
    assert_true(compute(&f, 0, 6 * BT));
    dse_kv_release(&f.pool, &f.sequences[0]);
    assert_true(dse_kv_promise(&f.pool, &f.sequences[1], 8));
    assert_false(dse_kv_promise(&f.pool, &f.sequences[2], 1));
    set_tokens(&f, 1, 0, 1);
    assert_true(compute(&f, 1, 8 * BT));
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_keeps_no_more_than_its_cap(void **state)
{
    (void)state;
    for (int cap = 0; cap <= 3; cap++) {
        struct fixture f;
        setup(&f, 16, cap);
        for (int s = 0; s < 4; s++) {
            set_tokens(&f, s, 0, s + 1);
            assert_true(compute(&f, s, 3 * BT));
        }
        for (int s = 0; s < 4; s++)
            dse_kv_release(&f.pool, &f.sequences[s]);
        assert_int_equal(f.pool.cache.n_parked, cap);
        check_invariants(&f);
        dse_kv_pool_deinit(&f.pool);
    }
}

static void prefix_cache_never_shares_between_scopes(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 16, 16);
    assert_true(compute(&f, 0, 2 * BT));
    f.sequences[1].chain.scope.salt[1] = 1;
    f.sequences[2].chain.scope.adapter = 1;
    f.sequences[3].chain.scope.model[1] = 1;
    for (int s = 1; s < 4; s++) {
        dse_kv_attach(&f.pool, &f.sequences[s], f.tokens[s], TABLE * BT);
        assert_int_equal(f.sequences[s].length, 0);
        assert_true(compute(&f, s, 2 * BT));
    }
    assert_int_equal(dse_kv_pool_used(&f.pool), 8);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_joins_equal_blocks_that_were_computed_twice(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 8, 8);
    assert_true(dse_kv_extend(&f.pool, &f.sequences[1], 3 * BT));
    assert_true(compute(&f, 0, 3 * BT));
    assert_int_equal(dse_kv_pool_used(&f.pool), 6);
    assert_true(compute(&f, 1, 3 * BT));
    assert_int_equal(dse_kv_pool_used(&f.pool), 3);
    assert_memory_equal(f.tables[0], f.tables[1], 3 * sizeof(int32_t));
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static uint64_t constant_hash(const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    (void)chain;
    (void)tokens;
    return 42;
}

/* Two bits: most beginnings collide, some do not. */
static uint64_t poor_hash(const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    return (chain->hash + (uint64_t)tokens[0] + (uint64_t)tokens[BT - 1]) & 3;
}

static void prefix_cache_compares_tokens_when_hashes_collide(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 16, 16);
    f.pool.cache.hash = constant_hash;
    assert_true(compute(&f, 0, 4 * BT));
    assert_int_equal(f.pool.cache.n_filled, 1);
    set_tokens(&f, 1, BT - 1, 5); /* differs in the last token of the first block */
    dse_kv_attach(&f.pool, &f.sequences[1], f.tokens[1], TABLE * BT);
    assert_int_equal(f.sequences[1].length, 0);
    assert_true(compute(&f, 1, 4 * BT));
    dse_kv_attach(&f.pool, &f.sequences[2], f.tokens[2], TABLE * BT);
    assert_int_equal(f.sequences[2].length, BT); /* the second block has the same tokens, but another parent */
    f.sequences[3].chain.scope.salt[0] = 1;
    dse_kv_attach(&f.pool, &f.sequences[3], f.tokens[3], TABLE * BT);
    assert_int_equal(f.sequences[3].length, 0);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static uint64_t hash_of_first_block(const struct dse_prefix_chain *chain, const int32_t *tokens)
{
    return chain->n_blocks == 0 ? (uint64_t)tokens[0] : 99;
}

static void prefix_cache_compares_parents_when_tokens_are_equal(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 16, 16);
    f.pool.cache.hash = hash_of_first_block;
    assert_true(compute(&f, 0, 2 * BT));
    for (int i = 0; i < BT; i++)
        f.tokens[1][i] = 5;
    assert_true(compute(&f, 1, BT));
    dse_kv_attach(&f.pool, &f.sequences[1], f.tokens[1], TABLE * BT);
    assert_int_equal(f.sequences[1].length, BT);
    check_invariants(&f);
    dse_kv_pool_deinit(&f.pool);
}

static void kv_pool_adopts_a_block_only_where_it_continues(void **state)
{
    (void)state;
    struct fixture f;
    struct dse_prefix_id id = {100, 1}, second = {100, 2}, other = {100, 3}, none = {0, 0};
    setup(&f, 8, 8);
    int32_t a = dse_kv_take(&f.pool), b = dse_kv_take(&f.pool), c = dse_kv_take(&f.pool);
    assert_int_equal(dse_kv_pool_used(&f.pool), 3);
    assert_false(dse_kv_adopt(&f.pool, &f.sequences[0], f.tokens[0], a, &other, &id));
    assert_int_equal(dse_kv_pool_used(&f.pool), 2);
    assert_true(dse_kv_adopt(&f.pool, &f.sequences[0], f.tokens[0], b, &none, &id));
    assert_false(dse_kv_adopt(&f.pool, &f.sequences[0], f.tokens[0], c, &other, &second));
    assert_int_equal(f.sequences[0].length, BT);
    assert_int_equal(dse_kv_pool_used(&f.pool), 1);
    /* another sequence that read the same block meanwhile gets the one that is there */
    int32_t d = dse_kv_take(&f.pool);
    assert_true(dse_kv_adopt(&f.pool, &f.sequences[1], f.tokens[1], d, &none, &id));
    assert_int_equal(f.tables[1][0], f.tables[0][0]);
    assert_int_equal(dse_kv_pool_used(&f.pool), 1);
    assert_int_equal(dse_kv_pool_available(&f.pool), 7);
    while (dse_kv_take(&f.pool) >= 0)
        ;
    assert_int_equal(dse_kv_pool_available(&f.pool), 0);
    dse_kv_pool_deinit(&f.pool);
}

static int draw(uint64_t seed, uint64_t *at, int n)
{
    return (int)(dse_philox_uniform(seed, 3, (*at)++) * n);
}

/* A few beginnings that share beginnings, so that hits, joins, evictions and collisions all happen. */
static void random_life(uint64_t seed, int n_blocks, int cap, dse_prefix_hash_fn *hash)
{
    struct fixture f;
    uint64_t at = 0;
    setup(&f, n_blocks, cap);
    if (hash != NULL) f.pool.cache.hash = hash;
    for (int turn = 0; turn < 1500; turn++) {
        int s = draw(seed, &at, N_SEQUENCES), other = draw(seed, &at, N_SEQUENCES);
        struct dse_kv_sequence *sequence = &f.sequences[s];
        switch (draw(seed, &at, 4)) {
        case 0:
            dse_kv_release(&f.pool, sequence);
            sequence->chain.scope.salt[0] = (uint64_t)(draw(seed, &at, 4) == 0);
            for (int b = 0; b < TABLE; b++)
                for (int i = 0, value = draw(seed, &at, 2); i < BT; i++)
                    f.tokens[s][b * BT + i] = value;
            dse_kv_attach(&f.pool, sequence, f.tokens[s], draw(seed, &at, TABLE * BT));
            (void)dse_kv_promise(&f.pool, sequence, draw(seed, &at, 4));
            break;
        case 1:
            if (sequence->length + 40 <= TABLE * BT) (void)compute(&f, s, sequence->length + draw(seed, &at, 40));
            break;
        case 2:
            if (s == other) break;
            dse_kv_release(&f.pool, &f.sequences[other]);
            f.sequences[other].chain.scope = sequence->chain.scope;
            memcpy(f.tokens[other], f.tokens[s], sizeof f.tokens[s]);
            if (dse_kv_fork(&f.pool, sequence, &f.sequences[other]))
                for (int i = sequence->length; i < TABLE * BT; i++)
                    f.tokens[other][i] ^= 1;
            break;
        default: dse_kv_release(&f.pool, sequence);
        }
        check_invariants(&f);
    }
    for (int s = 0; s < N_SEQUENCES; s++)
        dse_kv_release(&f.pool, &f.sequences[s]);
    check_invariants(&f);
    assert_int_equal(dse_kv_pool_available(&f.pool), n_blocks);
    dse_kv_pool_deinit(&f.pool);
}

static void prefix_cache_loses_and_doubles_no_block_in_random_lives(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        random_life(seed, 60, 60, NULL);
        random_life(seed, 17, 9, NULL);
        random_life(seed, 24, 24, poor_hash);
        random_life(seed, 24, 24, constant_hash);
    }
}

static void prefix_cache_init_survives_failing_allocations(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        struct fixture f = {0};
        struct dse_kv_layout layout = {.type = DSE_KV_F16, .n_layers = 1, .n_kv_heads = 1, .head_dim = 8};
        struct dse_error error;
        dse_kv_layout_init(&layout);
        assert_int_equal(dse_kv_pool_init(&f.pool, &layout, 4, &error), DSE_OK);
        dse_alloc_fail_after(n);
        assert_int_equal(dse_kv_pool_cache(&f.pool, 4, &error), DSE_ERR_NO_MEMORY);
        dse_alloc_fail_after(0);
        assert_int_equal(f.pool.cache.n_blocks, 0);
        dse_kv_pool_deinit(&f.pool);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_KV), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_cache_finds_the_longest_common_beginning),
        cmocka_unit_test(prefix_cache_blocks_of_running_sequences_are_found_too),
        cmocka_unit_test(prefix_cache_gives_up_the_oldest_and_the_end_before_the_beginning),
        cmocka_unit_test(prefix_cache_counts_as_free_for_promises),
        cmocka_unit_test(prefix_cache_keeps_no_more_than_its_cap),
        cmocka_unit_test(prefix_cache_never_shares_between_scopes),
        cmocka_unit_test(prefix_cache_joins_equal_blocks_that_were_computed_twice),
        cmocka_unit_test(prefix_cache_compares_tokens_when_hashes_collide),
        cmocka_unit_test(prefix_cache_compares_parents_when_tokens_are_equal),
        cmocka_unit_test(kv_pool_adopts_a_block_only_where_it_continues),
        cmocka_unit_test(prefix_cache_loses_and_doubles_no_block_in_random_lives),
        cmocka_unit_test(prefix_cache_init_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

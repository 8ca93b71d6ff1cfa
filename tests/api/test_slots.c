/* The table of slots: tenants apart, the last one said counts, who was used least recently goes first. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "server/slots.h"

static int create(void **state)
{
    struct dse_slots *slots = NULL;
    struct dse_error error;
    if (dse_slots_create(&slots, &error) != DSE_OK) return -1;
    *state = slots;
    return 0;
}

static int destroy(void **state)
{
    dse_slots_free(*state);
    return dse_mem_live_bytes(DSE_MEM_SERVER) == 0 ? 0 : -1;
}

static void put(struct dse_slots *slots, uint64_t tenant, int id, int32_t first, size_t n_tokens)
{
    struct dse_slot_tokens held = {.n_tokens = n_tokens, .adapter_identity = tenant, .cache_salt = {(uint8_t)id}};
    held.tokens = dse_calloc(DSE_MEM_SERVER, n_tokens, sizeof *held.tokens);
    assert_non_null(held.tokens);
    held.tokens[0] = first;
    dse_slots_put(slots, tenant, id, &held);
    assert_null(held.tokens); /* taken */
}

/* The first token, -1: it holds nothing. */
static int32_t first_of(struct dse_slots *slots, uint64_t tenant, int id)
{
    struct dse_slot_tokens held;
    struct dse_error error;
    if (dse_slots_get(slots, tenant, id, &held, &error) != DSE_OK) {
        assert_int_equal(error.status, DSE_ERR_INVALID);
        assert_string_equal(error.file, "id_slot");
        return -1;
    }
    assert_int_equal(held.adapter_identity, tenant);
    assert_int_equal(held.cache_salt[0], id);
    int32_t first = held.tokens[0];
    dse_free(held.tokens);
    return first;
}

static void slots_hold_what_was_put_last_for_each_tenant(void **state)
{
    put(*state, 1, 0, 10, 5);
    put(*state, 2, 0, 20, 5);
    put(*state, 1, 3, 13, 5);
    put(*state, 1, 0, 11, 9);
    assert_int_equal(first_of(*state, 1, 0), 11);
    assert_int_equal(first_of(*state, 2, 0), 20);
    assert_int_equal(first_of(*state, 1, 3), 13);
    assert_int_equal(first_of(*state, 2, 3), -1);
    dse_slots_drop(*state, 1, 0);
    dse_slots_drop(*state, 2, 7);
    assert_int_equal(first_of(*state, 1, 0), -1);
    assert_int_equal(first_of(*state, 2, 0), 20);
}

static void the_slot_used_least_recently_makes_place(void **state)
{
    for (int id = 0; id < DSE_MAX_SLOTS; id++)
        put(*state, 1, id, id, 1);
    assert_int_equal(first_of(*state, 1, 0), 0); /* used now */
    put(*state, 2, 0, 7, 1);
    assert_int_equal(first_of(*state, 1, 1), -1);
    assert_int_equal(first_of(*state, 1, 0), 0);
    assert_int_equal(first_of(*state, 1, 2), 2);
    assert_int_equal(first_of(*state, 2, 0), 7);
}

static void slots_together_have_no_more_tokens_than_the_bound(void **state)
{
    const size_t third = DSE_MAX_SLOT_TOKENS / 3;
    put(*state, 1, 0, 10, third);
    put(*state, 1, 1, 11, third);
    put(*state, 1, 2, 12, third);
    assert_int_equal(first_of(*state, 1, 0), 10);
    put(*state, 1, 1, 21, third + 3); /* instead of what it held */
    assert_int_equal(first_of(*state, 1, 2), -1);
    assert_int_equal(first_of(*state, 1, 0), 10);
    put(*state, 1, 3, 13, DSE_MAX_SLOT_TOKENS + 1); /* the newest stays whatever it has */
    assert_int_equal(first_of(*state, 1, 0), -1);
    assert_int_equal(first_of(*state, 1, 1), -1);
    assert_int_equal(first_of(*state, 1, 3), 13);
}

static void without_memory_a_slot_is_not_lost(void **state)
{
    struct dse_slot_tokens held;
    struct dse_error error;
    put(*state, 1, 0, 10, 5);
    dse_alloc_fail_after(1);
    assert_int_equal(dse_slots_get(*state, 1, 0, &held, &error), DSE_ERR_NO_MEMORY);
    dse_alloc_fail_after(0);
    assert_int_equal(first_of(*state, 1, 0), 10);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, create, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(slots_hold_what_was_put_last_for_each_tenant),
        CASE(the_slot_used_least_recently_makes_place),
        CASE(slots_together_have_no_more_tokens_than_the_bound),
        CASE(without_memory_a_slot_is_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The order in which requests get the places of the batch, round by round, without a model: every round each active
 * request computes its prompt or produces a token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "engine/scheduler.h"

#define MS 1000000u

/* A request of the play: arrives in a round, wants so many tokens. */
struct role {
    char name;
    int arrives, tokens, priority, prompt;
    uint64_t tenant;
    bool unbounded;
};

struct play {
    struct dse_scheduler scheduler;
    struct dse_task *tasks[16];
    int n_tasks, round;
    char schedule[2048]; /* active names of each round, rounds apart by a space */
};

static void play_init(struct play *play, struct dse_engine_options options, int places, int n_blocks)
{
    struct dse_kv_layout layout = {.type = DSE_KV_F16, .n_layers = 1, .n_kv_heads = 1, .head_dim = 16};
    struct dse_error error;
    memset(play, 0, sizeof *play);
    dse_kv_layout_init(&layout);
    assert_int_equal(dse_scheduler_init(&play->scheduler, &layout, n_blocks, places, places, 16, &options, &error),
                     DSE_OK);
}

static void arrive(struct play *play, const struct role *role)
{
    struct dse_task *task = test_calloc(1, sizeof *task);
    struct dse_sequence *sequence = &task->sequences[0];
    const int prompt = role->prompt > 0 ? role->prompt : 1;
    task->id = (uint64_t)(unsigned char)role->name;
    task->n_prompt = prompt;
    task->max_new = role->tokens;
    task->n_choices = task->n_open = 1;
    task->priority = role->priority;
    task->tenant = role->tenant;
    task->unbounded = role->unbounded;
    sequence->task = task;
    sequence->n_tokens = prompt;
    sequence->tokens = test_calloc((size_t)(prompt + role->tokens), sizeof(int32_t));
    sequence->kv.max_blocks = dse_kv_blocks_for(prompt + role->tokens);
    sequence->kv.blocks = test_calloc((size_t)sequence->kv.max_blocks, sizeof(int32_t));
    task->submitted_ns = (uint64_t)play->round * MS;
    play->tasks[play->n_tasks++] = task;
    dse_scheduler_enqueue(&play->scheduler, task, (uint64_t)play->round * MS);
}

static void leave(struct play *play, struct dse_task *task)
{
    struct dse_sequence *sequence = &task->sequences[0];
    sequence->done = true;
    dse_scheduler_close_sequence(&play->scheduler, sequence);
    task->n_open = 0;
    dse_scheduler_remove(&play->scheduler, task);
    for (int i = 0; i < play->n_tasks; i++)
        if (play->tasks[i] == task) play->tasks[i] = play->tasks[--play->n_tasks];
    test_free(sequence->tokens);
    test_free(sequence->kv.blocks);
    test_free(task);
}

/* One turn: places, then a token for everyone who has one. */
static void play_round(struct play *play, const struct role *roles, int n_roles)
{
    struct dse_scheduler *s = &play->scheduler;
    char names[16] = "";
    int n_names = 0;
    for (int i = 0; i < n_roles; i++)
        if (roles[i].arrives == play->round) arrive(play, &roles[i]);
    dse_scheduler_admit(s, (uint64_t)play->round * MS);
    for (int i = 0; i < play->n_tasks; i++)
        if (play->tasks[i]->active) names[n_names++] = (char)play->tasks[i]->id;
    for (int i = 0; i < n_names; i++)
        for (int j = i + 1; j < n_names; j++)
            if (names[j] < names[i]) {
                char other = names[i];
                names[i] = names[j];
                names[j] = other;
            }
    if (play->round > 0) strncat(play->schedule, " ", sizeof play->schedule - strlen(play->schedule) - 1);
    strncat(play->schedule, n_names > 0 ? names : "-", sizeof play->schedule - strlen(play->schedule) - 1);
    for (int i = play->n_tasks - 1; i >= 0; i--) {
        struct dse_task *task = play->tasks[i];
        struct dse_sequence *sequence = &task->sequences[0];
        if (!task->active) continue;
        int rows = sequence->n_tokens - sequence->kv.length;
        while (task->active && !dse_kv_extend(&s->pool, &sequence->kv, sequence->n_tokens))
            dse_scheduler_make_room(s, task);
        if (!task->active) continue;
        task->prefilled = true;
        sequence->kv.length = sequence->n_tokens++;
        sequence->n_generated++;
        dse_policy_charge(&s->policy, task, rows);
        if (sequence->n_generated == task->max_new) leave(play, task);
    }
    play->round++;
}

static void play_until_empty(struct play *play, const struct role *roles, int n_roles)
{
    int last = 0;
    for (int i = 0; i < n_roles; i++)
        if (roles[i].arrives > last) last = roles[i].arrives;
    while (play->round <= last || play->n_tasks > 0) {
        assert_true(play->round < 1000);
        play_round(play, roles, n_roles);
    }
    for (int i = 0; i < play->scheduler.policy.n_tenants; i++)
        assert_int_equal(play->scheduler.policy.tenants[i].n_tasks + play->scheduler.policy.tenants[i].n_active, 0);
    assert_int_equal(dse_kv_pool_available(&play->scheduler.pool), play->scheduler.pool.n_blocks);
}

static void assert_schedule(struct dse_engine_options options, int places, int n_blocks, const struct role *roles,
                            int n_roles, const char *expected)
{
    struct play play;
    play_init(&play, options, places, n_blocks);
    play_until_empty(&play, roles, n_roles);
    assert_string_equal(play.schedule, expected);
    dse_scheduler_deinit(&play.scheduler);
}

#define ASSERT_SCHEDULE(options, places, blocks, roles, expected)                                                      \
    assert_schedule((struct dse_engine_options)options, places, blocks, roles, sizeof(roles) / sizeof *(roles),        \
                    expected)
#define REQUEST                                                                                                        \
    {                                                                                                                  \
        .priority_policy = DSE_POLICY_REQUEST                                                                          \
    }

static void equal_requests_run_in_order_of_arrival(void **state)
{
    static const struct role roles[] = {{'a', 0, 3}, {'b', 0, 2}, {'c', 1, 1}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "a a a b b c");
    ASSERT_SCHEDULE(REQUEST, 2, 8, roles, "ab ab ac");
}

static void an_urgent_request_waits_for_one_round_at_most_and_the_other_goes_on_where_it_was(void **state)
{
    static const struct role roles[] = {{'a', 0, 6}, {'u', 2, 2, 5}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "a a u u a a a a");
}

/* The classic conflict: a long urgent request and short ordinary ones. By request the long one keeps all others waiting
 * to its end; by token it has used up its urgency after a while, and the short ones pass. */
static void each_policy_has_its_schedule_for_a_long_urgent_request_among_short_ones(void **state)
{
    static const struct role roles[] = {{'l', 0, 10, 2}, {'s', 1, 2}, {'t', 1, 2}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "l l l l l l l l l l s s t t");
    struct dse_engine_options token = {.priority_policy = DSE_POLICY_TOKEN, .priority_quantum = 2};
    /* l falls to 1 after two tokens, to 0 after four, below the others after six */
    assert_schedule(token, 1, 8, roles, 3, "l l l l l l s s t t l l l l");
}

/* The other side of the conflict: by token, two long requests of one level take turns, and each is done late. Who has a
 * place keeps it until its level is below the other's. */
static void long_requests_of_one_level_take_turns_by_token_and_not_by_request(void **state)
{
    static const struct role roles[] = {{'a', 0, 8}, {'b', 0, 8}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "a a a a a a a a b b b b b b b b");
    struct dse_engine_options token = {.priority_policy = DSE_POLICY_TOKEN, .priority_quantum = 2};
    assert_schedule(token, 1, 8, roles, 2, "a a b b b b a a a a b b b b a a");
}

static void who_waits_long_enough_goes_before_the_next_more_urgent_one_and_interrupts_nobody(void **state)
{
    static const struct role roles[] = {{'l', 0, 2, 0}, {'u', 0, 4, 2}, {'v', 3, 4, 2}, {'w', 6, 4, 2}};
    struct dse_engine_options ageing = {.priority_ageing_ns = 3 * MS};
    (void)state;
    /* one more level every three rounds: from round 6 on l is as urgent as the others, and older than w */
    assert_schedule(ageing, 1, 8, roles, 4, "u u u u v v v v l l w w w w");
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "u u u u v v v v w w w w l l");
}

static void the_tenant_that_was_served_least_goes_first(void **state)
{
    static const struct role roles[] = {
        {'a', 0, 3, 0, 1, 7}, {'b', 0, 3, 0, 1, 7}, {'c', 0, 3, 0, 1, 7}, {'x', 1, 3, 0, 1, 8}, {'y', 1, 3, 0, 1, 8}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "a a a x x x b b b y y y c c c");
}

/* A tenant that comes late has no claim on what the others got before, but on what they get from then on. */
static void a_tenant_that_comes_late_shares_from_then_on(void **state)
{
    static const struct role roles[] = {{'a', 0, 9, 0, 1, 7}, {'b', 0, 2, 0, 1, 7}, {'c', 0, 2, 0, 1, 7},
                                        {'x', 5, 2, 0, 1, 8}, {'y', 5, 2, 0, 1, 8}, {'z', 5, 2, 0, 1, 8}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 1, 8, roles, "a a a a a a a a a x x y y b b z z c c");
}

static bool is_here(const struct play *play, char name)
{
    for (int i = 0; i < play->n_tasks; i++)
        if (play->tasks[i]->id == (uint64_t)name) return true;
    return false;
}

/* Tenants that send a request at a time and come back, or a new one each time, are not always the least served: who has
 * had more than they waits until they have had as much, no longer. */
static void a_tenant_that_had_much_waits_no_longer_than_others_take_to_have_as_much(void **state)
{
    enum { MUCH = 24, EACH = 3, OTHERS = 4 };
    for (int returning = 0; returning < 2; returning++) {
        struct play play;
        uint64_t next = 100;
        bool back = false;
        int others_had = 0;
        play_init(&play, (struct dse_engine_options){.priority_ageing_ns = MS}, 1, 8);
        arrive(&play, &(struct role){'a', 0, MUCH, 0, 1, 7});
        for (bool done = false; !done;) {
            /* every other tenant that has nothing here asks again, or somebody else in its place */
            if (play.round > 0)
                for (int i = 0; i < OTHERS; i++) {
                    if (!is_here(&play, (char)('m' + i)))
                        arrive(&play,
                               &(struct role){(char)('m' + i), 0, EACH, 0, 1, returning ? 10u + (unsigned)i : next++});
                }
            if (!back && play.round == MUCH) {
                arrive(&play, &(struct role){'z', 0, 1, 0, 1, 7});
                back = true;
            }
            play_round(&play, NULL, 0);
            const char last = play.schedule[strlen(play.schedule) - 1];
            done = last == 'z';
            others_had += back && !done;
            assert_true(others_had <= (returning ? OTHERS : 1) * (MUCH + EACH));
        }
        while (play.n_tasks > 0)
            leave(&play, play.tasks[0]);
        dse_scheduler_deinit(&play.scheduler);
    }
    (void)state;
}

/* One place is taken for long. For the other, x comes with a long prompt whenever it has nothing here, b and c of another
 * tenant wait all the time with shorter ones. The tenants get the same number of rows, not of requests. */
static void what_a_tenant_was_served_is_not_forgotten_when_it_leaves_for_a_moment(void **state)
{
    enum { ROUNDS = 100, LONG = 20, SHORT = 5 };
    struct play play;
    int rows[2] = {0};
    (void)state;
    play_init(&play, (struct dse_engine_options){.priority_policy = DSE_POLICY_REQUEST}, 2, 32);
    arrive(&play, &(struct role){'l', 0, ROUNDS + 1, 0, 1, 1});
    for (int i = 0; i < ROUNDS; i++) {
        if (!is_here(&play, 'x')) arrive(&play, &(struct role){'x', 0, 1, 0, LONG, 2});
        if (!is_here(&play, 'b')) arrive(&play, &(struct role){'b', 0, 1, 0, SHORT, 3});
        if (!is_here(&play, 'c')) arrive(&play, &(struct role){'c', 0, 1, 0, SHORT, 3});
        play_round(&play, NULL, 0);
        const char *last = play.schedule + strlen(play.schedule) - 2;
        rows[0] += strchr(last, 'x') ? LONG : 0;
        rows[1] += strchr(last, 'b') || strchr(last, 'c') ? SHORT : 0;
    }
    assert_in_range(rows[0], rows[1] - 2 * LONG, rows[1] + 2 * LONG);
    while (play.n_tasks > 0)
        leave(&play, play.tasks[0]);
    dse_scheduler_deinit(&play.scheduler);
}

static void blocks_are_taken_from_the_last_in_order_and_only_if_that_is_enough(void **state)
{
    /* 4 blocks; a and b hold two each, the urgent one wants three: b is not enough, so a goes too */
    static const struct role roles[] = {{'a', 0, 3, 0, 60}, {'b', 0, 3, 1, 60}, {'u', 1, 2, 5, 90}};
    /* five blocks are not there at all while d, which is more urgent, holds some: nobody is disturbed */
    static const struct role in_vain[] = {{'a', 0, 4, 0, 30}, {'d', 0, 4, 9, 60}, {'u', 1, 1, 5, 90}};
    (void)state;
    ASSERT_SCHEDULE(REQUEST, 4, 4, roles, "ab u u ab ab");
    ASSERT_SCHEDULE(REQUEST, 4, 4, in_vain, "ad ad ad ad u");
}

static void a_paused_request_keeps_its_blocks_until_they_are_needed(void **state)
{
    static const struct role roles[] = {{'a', 0, 4, 0, 40}, {'u', 1, 2, 5, 20}};
    struct play play;
    (void)state;
    play_init(&play, (struct dse_engine_options){0}, 1, 4);
    play_round(&play, roles, 2);
    play_round(&play, roles, 2);
    assert_string_equal(play.schedule, "a u");
    assert_false(play.tasks[0]->active);
    assert_true(play.tasks[0]->resident);
    assert_int_equal(play.tasks[0]->sequences[0].kv.length, 40);
    play_until_empty(&play, roles, 2);
    assert_string_equal(play.schedule, "a u u a a a");
    dse_scheduler_deinit(&play.scheduler);
}

/* Requests without an end grow until the pool is full; the last in order gives way, and comes back when there is room. */
static void the_pool_is_full_and_the_last_in_order_is_set_back(void **state)
{
    static const struct role roles[] = {{'a', 0, 400, 0, 1, 0, true}, {'b', 0, 400, 0, 1, 0, true}};
    struct play play;
    (void)state;
    play_init(&play, (struct dse_engine_options){0}, 2, 20);
    for (int i = 0; i < 320; i++)
        play_round(&play, roles, 2);
    assert_int_equal(play.scheduler.n_sequences, 2);
    play_round(&play, roles, 2);
    assert_int_equal(play.scheduler.n_sequences, 1);
    assert_int_equal(play.scheduler.waiting->id, 'b');
    play_until_empty(&play, roles, 2);
    assert_int_equal(play.round, 480);
    dse_scheduler_deinit(&play.scheduler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_requests_run_in_order_of_arrival),
        cmocka_unit_test(an_urgent_request_waits_for_one_round_at_most_and_the_other_goes_on_where_it_was),
        cmocka_unit_test(each_policy_has_its_schedule_for_a_long_urgent_request_among_short_ones),
        cmocka_unit_test(long_requests_of_one_level_take_turns_by_token_and_not_by_request),
        cmocka_unit_test(who_waits_long_enough_goes_before_the_next_more_urgent_one_and_interrupts_nobody),
        cmocka_unit_test(the_tenant_that_was_served_least_goes_first),
        cmocka_unit_test(a_tenant_that_comes_late_shares_from_then_on),
        cmocka_unit_test(a_tenant_that_had_much_waits_no_longer_than_others_take_to_have_as_much),
        cmocka_unit_test(what_a_tenant_was_served_is_not_forgotten_when_it_leaves_for_a_moment),
        cmocka_unit_test(blocks_are_taken_from_the_last_in_order_and_only_if_that_is_enough),
        cmocka_unit_test(a_paused_request_keeps_its_blocks_until_they_are_needed),
        cmocka_unit_test(the_pool_is_full_and_the_last_in_order_is_set_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

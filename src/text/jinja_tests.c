/* Tests: what may stand behind `is`. Each gives a BOOL. */
#include <math.h>
#include <string.h>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

#define TEST(name)                                                                                                     \
    static struct dse_jv test_##name(struct dse_jinja_run *run, struct dse_jv v, const struct dse_jv *argv,            \
                                     const struct dse_jinja_args *args)

TEST(defined)
{
    return dse_jv_of_bool(v.kind != DSE_JV_UNDEFINED);
}
TEST(undefined)
{
    return dse_jv_of_bool(v.kind == DSE_JV_UNDEFINED);
}
TEST(none)
{
    return dse_jv_of_bool(v.kind == DSE_JV_NONE);
}
TEST(string)
{
    return dse_jv_of_bool(v.kind == DSE_JV_STRING);
}
TEST(mapping)
{
    return dse_jv_of_bool(v.kind == DSE_JV_DICT);
}
TEST(sequence)
{
    return dse_jv_of_bool(v.kind == DSE_JV_STRING || dse_jv_is_sequence(v) || v.kind == DSE_JV_DICT ||
                          v.kind == DSE_JV_UNDEFINED);
}
TEST(iterable)
{
    return dse_jv_of_bool(v.kind == DSE_JV_STRING || dse_jv_is_sequence(v) || v.kind == DSE_JV_DICT ||
                          v.kind == DSE_JV_UNDEFINED || v.kind == DSE_JV_LOOP);
}
TEST(number)
{
    return dse_jv_of_bool(dse_jv_is_number(v));
}
TEST(integer)
{
    return dse_jv_of_bool(v.kind == DSE_JV_INT);
}
TEST(float)
{
    return dse_jv_of_bool(v.kind == DSE_JV_FLOAT);
}
TEST(boolean)
{
    return dse_jv_of_bool(v.kind == DSE_JV_BOOL);
}
TEST(true)
{
    return dse_jv_of_bool(v.kind == DSE_JV_BOOL && v.as.boolean);
}
TEST(false)
{
    return dse_jv_of_bool(v.kind == DSE_JV_BOOL && !v.as.boolean);
}
TEST(callable)
{
    return dse_jv_of_bool(v.kind == DSE_JV_CALLABLE);
}

static struct dse_jv remainder_is(struct dse_jinja_run *run, struct dse_jv v, int64_t divisor, int64_t rest)
{
    int64_t integer;
    if (v.kind == DSE_JV_FLOAT) return dse_jv_of_bool(fmod(fabs(v.as.real), (double)divisor) == (double)rest);
    if (!dse_jinja_want_int(run, v, "value", &integer)) return dse_jv_failed();
    if (divisor == 0) return dse_jinja_fail(run, DSE_ERR_INVALID, "division by zero");
    if (divisor == -1) divisor = 1;
    int64_t found = integer % divisor;
    return dse_jv_of_bool((found < 0 ? -found : found) == rest);
}

TEST(odd)
{
    return remainder_is(run, v, 2, 1);
}
TEST(even)
{
    return remainder_is(run, v, 2, 0);
}
TEST(divisibleby)
{
    int64_t divisor;
    if (!dse_jinja_want_int(run, argv[0], "divisor", &divisor)) return dse_jv_failed();
    return remainder_is(run, v, divisor, 0);
}

static struct dse_jv truth_of(int result, bool negate)
{
    return result < 0 ? dse_jv_failed() : dse_jv_of_bool(negate ? !result : result);
}

TEST(eq)
{
    return truth_of(dse_jv_equal(run, v, argv[0]), false);
}
TEST(ne)
{
    return truth_of(dse_jv_equal(run, v, argv[0]), true);
}
TEST(in)
{
    return truth_of(dse_jv_contains(run, argv[0], v), false);
}
TEST(lt)
{
    int order;
    return dse_jv_compare(run, v, argv[0], &order) ? dse_jv_of_bool(order == -1) : dse_jv_failed();
}
TEST(le)
{
    int order;
    return dse_jv_compare(run, v, argv[0], &order) ? dse_jv_of_bool(order == -1 || order == 0) : dse_jv_failed();
}
TEST(gt)
{
    int order;
    return dse_jv_compare(run, v, argv[0], &order) ? dse_jv_of_bool(order == 1) : dse_jv_failed();
}
TEST(ge)
{
    int order;
    return dse_jv_compare(run, v, argv[0], &order) ? dse_jv_of_bool(order == 1 || order == 0) : dse_jv_failed();
}
TEST(sameas)
{
    if (v.kind != argv[0].kind) return dse_jv_of_bool(false);
    if (dse_jv_is_sequence(v) || v.kind == DSE_JV_DICT) return dse_jv_of_bool(v.as.list == argv[0].as.list);
    return truth_of(dse_jv_equal(run, v, argv[0]), false);
}

static struct dse_jv has_case(struct dse_jinja_run *run, struct dse_jv v, enum dse_jv_case how)
{
    struct dse_jv text = dse_jv_to_string(run, v);
    if (text.kind == DSE_JV_FAIL) return text;
    struct dse_jv changed = dse_jv_change_case(run, text.as.string, how);
    struct dse_jv other = dse_jv_change_case(run, text.as.string, how == DSE_JV_UPPER ? DSE_JV_LOWER : DSE_JV_UPPER);
    if (run->failed) return dse_jv_failed();
    return dse_jv_of_bool(dse_jv_equal(run, text, changed) == 1 && dse_jv_equal(run, text, other) == 0);
}

TEST(upper)
{
    return has_case(run, v, DSE_JV_UPPER);
}
TEST(lower)
{
    return has_case(run, v, DSE_JV_LOWER);
}

const struct dse_jinja_builtin dse_jinja_tests[] = {
    {"defined", "", test_defined},
    {"undefined", "", test_undefined},
    {"none", "", test_none},
    {"string", "", test_string},
    {"mapping", "", test_mapping},
    {"sequence", "", test_sequence},
    {"iterable", "", test_iterable},
    {"number", "", test_number},
    {"integer", "", test_integer},
    {"float", "", test_float},
    {"boolean", "", test_boolean},
    {"true", "", test_true},
    {"false", "", test_false},
    {"callable", "", test_callable},
    {"odd", "", test_odd},
    {"even", "", test_even},
    {"divisibleby", "*num", test_divisibleby},
    {"eq", "*other", test_eq},
    {"equalto", "*other", test_eq},
    {"ne", "*other", test_ne},
    {"in", "*seq", test_in},
    {"lt", "*other", test_lt},
    {"lessthan", "*other", test_lt},
    {"le", "*other", test_le},
    {"gt", "*other", test_gt},
    {"greaterthan", "*other", test_gt},
    {"ge", "*other", test_ge},
    {"sameas", "*other", test_sameas},
    {"upper", "", test_upper},
    {"lower", "", test_lower},
    {NULL, NULL, NULL},
};

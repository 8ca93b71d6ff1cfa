/* Binary operators with Python's meaning. Called by jinja_eval.c. Integers have 64 bits: beyond is an error. */
#include <math.h>

#include "text/jinja_exec.h"
#include "text/jinja_text.h"

static struct dse_jv too_large(struct dse_jinja_run *run)
{
    return dse_jinja_fail(run, DSE_ERR_LIMIT, "integer too large");
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

static struct dse_jv int_power(struct dse_jinja_run *run, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0)
        return base == 0 ? dse_jinja_fail(run, DSE_ERR_INVALID, "0 cannot be raised to a negative power")
                         : dse_jv_of_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1) return dse_jv_of_int(exponent == 0 ? 1 : base);
    if (base == -1) return dse_jv_of_int(exponent % 2 ? -1 : 1);
    while (exponent-- > 0) /* at most 63 rounds before it overflows */
        if (__builtin_mul_overflow(result, base, &result)) return too_large(run);
    return dse_jv_of_int(result);
}

static struct dse_jv int_operation(struct dse_jinja_run *run, enum dse_jinja_op op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    if (b == 0 && (op == DSE_OP_DIVIDE || op == DSE_OP_FLOOR_DIVIDE || op == DSE_OP_MODULO))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "division by zero");
    switch (op) {
    case DSE_OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case DSE_OP_SUBTRACT: overflow = __builtin_sub_overflow(a, b, &result); break;
    case DSE_OP_MULTIPLY: overflow = __builtin_mul_overflow(a, b, &result); break;
    case DSE_OP_DIVIDE: return dse_jv_of_float((double)a / (double)b);
    case DSE_OP_POWER: return int_power(run, a, b);
    case DSE_OP_FLOOR_DIVIDE:
    case DSE_OP_MODULO: /* INT64_MIN / -1 does not fit, and its remainder must not be asked of the machine either */
        if (b == -1) {
            overflow = op == DSE_OP_FLOOR_DIVIDE && __builtin_sub_overflow((int64_t)0, a, &result);
            break;
        }
        result = floor_divide(a, b);
        if (op == DSE_OP_MODULO) result = a - result * b;
        break;
    default: return dse_jinja_fail(run, DSE_ERR_INTERNAL, "not an operator of numbers");
    }
    return overflow ? too_large(run) : dse_jv_of_int(result);
}

static struct dse_jv float_operation(struct dse_jinja_run *run, enum dse_jinja_op op, double a, double b)
{
    if (b == 0 && (op == DSE_OP_DIVIDE || op == DSE_OP_FLOOR_DIVIDE || op == DSE_OP_MODULO))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "division by zero");
    switch (op) {
    case DSE_OP_ADD: return dse_jv_of_float(a + b);
    case DSE_OP_SUBTRACT: return dse_jv_of_float(a - b);
    case DSE_OP_MULTIPLY: return dse_jv_of_float(a * b);
    case DSE_OP_DIVIDE: return dse_jv_of_float(a / b);
    case DSE_OP_POWER: return dse_jv_of_float(pow(a, b));
    default: break;
    }
    double rest = fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    return dse_jv_of_float(op == DSE_OP_MODULO ? rest : floor((a - rest) / b + 0.5));
}

static struct dse_jv repeat(struct dse_jinja_run *run, struct dse_jv v, int64_t times)
{
    if (v.kind == DSE_JV_STRING) return dse_jv_repeat(run, v.as.string, times);
    size_t count = v.as.list->count;
    struct dse_jv result = dse_jv_new_list(run, v.kind, 0);
    for (int64_t i = 0; result.kind != DSE_JV_FAIL && count && i < times; i++)
        for (size_t k = 0; k < count; k++)
            if (!dse_jv_push(run, result, v.as.list->items[k])) return dse_jv_failed();
    return result;
}

static struct dse_jv join_lists(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b)
{
    struct dse_jv result = dse_jv_new_list(run, a.kind, a.as.list->count + b.as.list->count);
    for (size_t i = 0; result.kind != DSE_JV_FAIL && i < a.as.list->count; i++)
        if (!dse_jv_push(run, result, a.as.list->items[i])) return dse_jv_failed();
    for (size_t i = 0; result.kind != DSE_JV_FAIL && i < b.as.list->count; i++)
        if (!dse_jv_push(run, result, b.as.list->items[i])) return dse_jv_failed();
    return result;
}

struct dse_jv dse_jinja_binary(struct dse_jinja_run *run, enum dse_jinja_op op, struct dse_jv a, struct dse_jv b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    int64_t x, y;
    if (op == DSE_OP_CONCAT) {
        a = dse_jv_to_string(run, a);
        b = dse_jv_to_string(run, b);
        if (a.kind == DSE_JV_FAIL || b.kind == DSE_JV_FAIL) return dse_jv_failed();
        return dse_jv_concat(run, a.as.string, b.as.string);
    }
    if (a.kind == DSE_JV_UNDEFINED || b.kind == DSE_JV_UNDEFINED)
        return dse_jv_use_undefined(run, a.kind == DSE_JV_UNDEFINED ? a : b);
    if (dse_jv_as_int(a, &x) && dse_jv_as_int(b, &y)) return int_operation(run, op, x, y);
    if (dse_jv_is_number(a) && dse_jv_is_number(b))
        return float_operation(run, op, dse_jv_as_double(a), dse_jv_as_double(b));
    bool text = a.kind == DSE_JV_STRING || dse_jv_is_sequence(a);
    if (op == DSE_OP_ADD && text && a.kind == b.kind)
        return a.kind == DSE_JV_STRING ? dse_jv_concat(run, a.as.string, b.as.string) : join_lists(run, a, b);
    if (op == DSE_OP_MULTIPLY && text && dse_jv_as_int(b, &y)) return repeat(run, a, y);
    if (op == DSE_OP_MULTIPLY && (b.kind == DSE_JV_STRING || dse_jv_is_sequence(b)) && dse_jv_as_int(a, &x))
        return repeat(run, b, x);
    if (op == DSE_OP_MODULO && a.kind == DSE_JV_STRING) return dse_jv_percent_format(run, a.as.string, b);
    if (op == DSE_OP_ADD && a.kind == DSE_JV_STRING)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "can only concatenate str (not \"%s\") to str",
                              dse_jv_type_name(b));
    return dse_jinja_fail(run, DSE_ERR_INVALID, "unsupported operand types for %s: '%s' and '%s'", names[op],
                          dse_jv_type_name(a), dse_jv_type_name(b));
}

struct dse_jv dse_jinja_negate(struct dse_jinja_run *run, struct dse_jv v)
{
    int64_t integer;
    if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
    if (v.kind == DSE_JV_FLOAT) return dse_jv_of_float(-v.as.real);
    if (!dse_jv_as_int(v, &integer))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "bad operand type for unary -: '%s'", dse_jv_type_name(v));
    return int_operation(run, DSE_OP_SUBTRACT, 0, integer);
}

/* Expressions -> values. Called by jinja_exec.c and by itself; recursion is counted in run->depth.
 *
 * Nothing outside the variables can be reached: attributes are dict keys, the fields of loop and namespace, and the
 * methods in our own tables.
 */
#include "text/jinja_exec.h"

#include <string.h>

#include "text/jinja_text.h"

static struct dse_jv eval_list(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv list = dse_jv_new_list(run, node->kind == DSE_NODE_TUPLE ? DSE_JV_TUPLE : DSE_JV_LIST, node->n_items);
    for (uint32_t i = 0; list.kind != DSE_JV_FAIL && i < node->n_items; i++) {
        struct dse_jv item = dse_jinja_eval(run, node->items[i]);
        if (item.kind == DSE_JV_FAIL || !dse_jv_push(run, list, item)) return dse_jv_failed();
    }
    return list;
}

static struct dse_jv eval_dict(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv dict = dse_jv_new_dict(run);
    for (uint32_t i = 0; dict.kind != DSE_JV_FAIL && i + 1 < node->n_items; i += 2) {
        struct dse_jv key = dse_jinja_eval(run, node->items[i]);
        struct dse_jv value = key.kind == DSE_JV_FAIL ? key : dse_jinja_eval(run, node->items[i + 1]);
        if (value.kind == DSE_JV_FAIL || !dse_jv_dict_set(run, dict.as.dict, key, value)) return dse_jv_failed();
    }
    return dict;
}

static struct dse_jv eval_name(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    for (struct dse_jinja_scope *scope = run->scope; scope; scope = scope->parent) {
        struct dse_jv *found = dse_jv_dict_get(run, &scope->variables, node->value);
        if (found) return *found;
    }
    if (run->failed) return dse_jv_failed();
    const struct dse_jv_string *name = node->value.as.string;
    const struct dse_jinja_builtin *global = dse_jinja_find(dse_jinja_globals, name->data, name->bytes);
    if (!global) return dse_jv_undefined(name);
    struct dse_jv_callable *callable = dse_jinja_alloc(run, sizeof(*callable));
    if (!callable) return dse_jv_failed();
    callable->builtin = global;
    return (struct dse_jv){.kind = DSE_JV_CALLABLE, .as.callable = callable};
}

/* ---- items and attributes ---- */

static struct dse_jv index_list(struct dse_jinja_run *run, struct dse_jv object, int64_t index)
{
    bool text = object.kind == DSE_JV_STRING;
    int64_t count = (int64_t)(text ? object.as.string->chars : object.as.list->count);
    if (index < 0) index += count;
    if (index < 0 || index >= count) return dse_jv_undefined(NULL);
    if (!text) return object.as.list->items[index];
    if (!dse_jinja_charge_bytes(run, object.as.string->bytes)) return dse_jv_failed();
    size_t begin = dse_jv_byte_of_char(object.as.string, (size_t)index);
    return dse_jv_substring(run, object.as.string, begin, dse_jv_byte_of_char(object.as.string, (size_t)index + 1));
}

static struct dse_jv loop_field(struct dse_jinja_run *run, const struct dse_jv_loop *loop,
                                const struct dse_jv_string *name)
{
    static const char *const names[] = {"index",  "index0", "revindex", "revindex0", "first",   "last",
                                        "length", "depth",  "depth0",   "previtem",  "nextitem"};
    size_t i = 0, n = sizeof(names) / sizeof(*names), count = loop->items->count, at = loop->index;
    while (i < n && (strlen(names[i]) != name->bytes || memcmp(names[i], name->data, name->bytes) != 0))
        i++;
    switch (i) {
    case 0: return dse_jv_of_int((int64_t)at + 1);
    case 1: return dse_jv_of_int((int64_t)at);
    case 2: return dse_jv_of_int((int64_t)(count - at));
    case 3: return dse_jv_of_int((int64_t)(count - at) - 1);
    case 4: return dse_jv_of_bool(at == 0);
    case 5: return dse_jv_of_bool(at + 1 == count);
    case 6: return dse_jv_of_int((int64_t)count);
    case 7: return dse_jv_of_int(1);
    case 8: return dse_jv_of_int(0);
    case 9: return at ? loop->items->items[at - 1] : dse_jv_undefined(name);
    case 10: return at + 1 < count ? loop->items->items[at + 1] : dse_jv_undefined(name);
    default: return dse_jv_undefined(name);
    }
}

static struct dse_jv missing(const struct dse_jv_string *name)
{
    struct dse_jv undefined = dse_jv_undefined(name);
    undefined.unsafe = name->bytes >= 2 && name->data[0] == '_' && name->data[1] == '_';
    return undefined;
}

struct dse_jv dse_jinja_get_attribute(struct dse_jinja_run *run, struct dse_jv object, const struct dse_jv_string *name)
{
    struct dse_jv key = {.kind = DSE_JV_STRING, .as.string = name};
    if (object.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, object);
    struct dse_jv method = dse_jinja_method(run, object, name); /* wins over a key of that name, as in Jinja */
    if (method.kind != DSE_JV_UNDEFINED) return method;
    if (object.kind == DSE_JV_LOOP) {
        struct dse_jv field = loop_field(run, object.as.loop, name);
        return field.kind == DSE_JV_UNDEFINED ? missing(name) : field;
    }
    if (object.kind == DSE_JV_DICT || object.kind == DSE_JV_NAMESPACE) {
        struct dse_jv *value = dse_jv_dict_get(run, object.as.dict, key);
        if (value) return *value;
    }
    return run->failed ? dse_jv_failed() : missing(name);
}

struct dse_jv dse_jinja_get_item(struct dse_jinja_run *run, struct dse_jv object, struct dse_jv key)
{
    int64_t index;
    if (object.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, object);
    if ((object.kind == DSE_JV_STRING || dse_jv_is_sequence(object)) && dse_jv_as_int(key, &index))
        return index_list(run, object, index);
    if (object.kind == DSE_JV_DICT && key.kind != DSE_JV_LIST && key.kind != DSE_JV_DICT) {
        struct dse_jv *value = dse_jv_dict_get(run, object.as.dict, key);
        if (value) return *value;
        if (run->failed) return dse_jv_failed();
    }
    if (key.kind != DSE_JV_STRING) return dse_jv_undefined(NULL);
    return dse_jinja_get_attribute(run, object, key.as.string);
}

struct dse_jv dse_jinja_get_path(struct dse_jinja_run *run, struct dse_jv object, struct dse_jv path)
{
    if (path.kind != DSE_JV_STRING) return dse_jinja_get_item(run, object, path);
    const struct dse_jv_string *text = path.as.string;
    for (size_t begin = 0, end; begin <= text->bytes && object.kind != DSE_JV_FAIL; begin = end + 1) {
        const char *dot = text->bytes > begin ? memchr(text->data + begin, '.', text->bytes - begin) : NULL;
        end = dot ? (size_t)(dot - text->data) : text->bytes;
        struct dse_jv part = dse_jv_substring(run, text, begin, end);
        if (part.kind == DSE_JV_FAIL) return part;
        bool digits = end > begin && end - begin < 18;
        int64_t index = 0;
        for (size_t i = begin; digits && i < end; i++) {
            digits = text->data[i] >= '0' && text->data[i] <= '9';
            index = index * 10 + text->data[i] - '0';
        }
        object = dse_jinja_get_item(run, object, digits ? dse_jv_of_int(index) : part);
    }
    return object;
}

/* Python's slice indices. false: failed. */
static bool slice_bound(struct dse_jinja_run *run, const struct dse_jinja_node *node, int64_t count, int64_t fallback,
                        bool backwards, int64_t *out)
{
    *out = fallback;
    if (!node) return true;
    struct dse_jv value = dse_jinja_eval(run, node);
    if (value.kind == DSE_JV_FAIL) return false;
    if (value.kind == DSE_JV_NONE) return true;
    int64_t index;
    if (!dse_jinja_want_int(run, value, "slice index", &index)) return false;
    if (index < 0) index += count;
    int64_t low = backwards ? -1 : 0, high = backwards ? count - 1 : count;
    *out = index < low ? low : index > high ? high : index;
    return true;
}

static struct dse_jv eval_slice(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv object = dse_jinja_eval(run, node->a);
    if (object.kind == DSE_JV_FAIL) return object;
    if (object.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, object);
    bool text = object.kind == DSE_JV_STRING;
    if (!text && !dse_jv_is_sequence(object)) return dse_jv_undefined(NULL);
    int64_t count = (int64_t)(text ? object.as.string->chars : object.as.list->count), step = 1, begin, end;
    if (node->items[2]) {
        struct dse_jv value = dse_jinja_eval(run, node->items[2]);
        if (value.kind == DSE_JV_FAIL) return value;
        if (value.kind != DSE_JV_NONE && !dse_jinja_want_int(run, value, "slice step", &step)) return dse_jv_failed();
        if (step == 0) return dse_jinja_fail(run, DSE_ERR_INVALID, "slice step cannot be zero");
    }
    bool backwards = step < 0;
    if (!slice_bound(run, node->items[0], count, backwards ? count - 1 : 0, backwards, &begin) ||
        !slice_bound(run, node->items[1], count, backwards ? -1 : count, backwards, &end))
        return dse_jv_failed();
    if (text && step == 1) {
        if (!dse_jinja_charge_bytes(run, object.as.string->bytes)) return dse_jv_failed();
        size_t first = dse_jv_byte_of_char(object.as.string, (size_t)begin);
        size_t last = end > begin ? dse_jv_byte_of_char(object.as.string, (size_t)end) : first;
        return dse_jv_substring(run, object.as.string, first, last);
    }
    struct dse_jv source = text ? dse_jv_characters(run, object.as.string) : object;
    struct dse_jv result = dse_jv_new_list(run, text ? DSE_JV_LIST : object.kind, 0);
    if (step > count + 1) step = count + 1;
    if (step < -count - 1) step = -count - 1;
    for (int64_t i = begin; !run->failed && (backwards ? i > end : i < end); i += step)
        dse_jv_push(run, result, source.as.list->items[i]);
    if (run->failed || !text) return run->failed ? dse_jv_failed() : result;
    struct dse_buffer buffer;
    dse_jv_buffer_init(run, &buffer);
    for (size_t i = 0; i < result.as.list->count; i++)
        dse_buffer_append(&buffer, result.as.list->items[i].as.string->data, result.as.list->items[i].as.string->bytes);
    return dse_jv_take(run, &buffer);
}

/* ---- calls ---- */

bool dse_jinja_eval_args(struct dse_jinja_run *run, const struct dse_jinja_node *node, struct dse_jinja_args *args)
{
    struct dse_jv *items = dse_jinja_alloc(run, (node->n_items + 1) * sizeof(*items));
    struct dse_jinja_named *named = node->n_keywords ? dse_jinja_alloc(run, node->n_keywords * sizeof(*named)) : NULL;
    if (!items || (node->n_keywords && !named)) return false;
    for (uint32_t i = 0; i < node->n_items; i++)
        if ((items[i] = dse_jinja_eval(run, node->items[i])).kind == DSE_JV_FAIL) return false;
    for (uint32_t i = 0; i < node->n_keywords; i++) {
        named[i].name = node->keywords[i].name.as.string;
        if ((named[i].value = dse_jinja_eval(run, node->keywords[i].node)).kind == DSE_JV_FAIL) return false;
    }
    *args = (struct dse_jinja_args){items, node->n_items, named, node->n_keywords};
    return true;
}

static struct dse_jv eval_call(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv callee = dse_jinja_eval(run, node->a);
    struct dse_jinja_args args;
    if (callee.kind == DSE_JV_FAIL) return callee;
    if (callee.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, callee);
    if (callee.kind != DSE_JV_CALLABLE)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "'%s' object is not callable", dse_jv_type_name(callee));
    if (!dse_jinja_eval_args(run, node, &args)) return dse_jv_failed();
    const struct dse_jv_callable *callable = callee.as.callable;
    run->line = node->line;
    if (callable->builtin) return dse_jinja_call_builtin(run, callable->builtin, callable->self, &args);
    return dse_jinja_call_macro(run, callable, &args);
}

static struct dse_jv apply(struct dse_jinja_run *run, const struct dse_jinja_node *node, struct dse_jv input)
{
    struct dse_jinja_args args;
    if (input.kind == DSE_JV_FAIL || !dse_jinja_eval_args(run, node, &args)) return dse_jv_failed();
    run->line = node->line;
    return dse_jinja_call_builtin(run, node->builtin, input, &args);
}

struct dse_jv dse_jinja_filter_text(struct dse_jinja_run *run, const struct dse_jinja_node *filters, struct dse_jv text)
{
    if (!filters) return text;
    return apply(run, filters, filters->a ? dse_jinja_filter_text(run, filters->a, text) : text);
}

static struct dse_jv eval_compare(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv left = dse_jinja_eval(run, node->a);
    for (uint32_t i = 0; i < node->n_items; i++) {
        struct dse_jv right = left.kind == DSE_JV_FAIL ? left : dse_jinja_eval(run, node->items[i]);
        if (right.kind == DSE_JV_FAIL) return right;
        run->line = node->line;
        enum dse_jinja_op op = node->ops[i];
        int result, order = 0;
        if (op == DSE_OP_EQ || op == DSE_OP_NE) {
            result = dse_jv_equal(run, left, right);
            if (op == DSE_OP_NE && result >= 0) result = !result;
        } else if (op == DSE_OP_IN || op == DSE_OP_NOT_IN) {
            result = dse_jv_contains(run, right, left);
            if (op == DSE_OP_NOT_IN && result >= 0) result = !result;
        } else if (!dse_jv_compare(run, left, right, &order)) {
            result = -1;
        } else {
            result = op == DSE_OP_LT   ? order == -1
                     : op == DSE_OP_LE ? order == -1 || order == 0
                     : op == DSE_OP_GT ? order == 1
                                       : order == 1 || order == 0;
        }
        if (result < 0) return dse_jv_failed();
        if (!result) return dse_jv_of_bool(false);
        left = right;
    }
    return dse_jv_of_bool(true);
}

static struct dse_jv eval_two(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv a = dse_jinja_eval(run, node->a);
    if (a.kind == DSE_JV_FAIL) return a;
    struct dse_jv b = dse_jinja_eval(run, node->b);
    if (b.kind == DSE_JV_FAIL) return b;
    run->line = node->line;
    return node->kind == DSE_NODE_ITEM ? dse_jinja_get_item(run, a, b) : dse_jinja_binary(run, node->op, a, b);
}

static struct dse_jv eval_one(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv v = dse_jinja_eval(run, node->a);
    if (v.kind == DSE_JV_FAIL) return v;
    run->line = node->line;
    switch (node->kind) {
    case DSE_NODE_ATTRIBUTE: return dse_jinja_get_attribute(run, v, node->value.as.string);
    case DSE_NODE_NOT: return dse_jv_of_bool(!dse_jv_truth(v));
    case DSE_NODE_NEGATE: return dse_jinja_negate(run, v);
    case DSE_NODE_PLUS:
        if (v.kind == DSE_JV_UNDEFINED) return dse_jv_use_undefined(run, v);
        if (v.kind == DSE_JV_BOOL) return dse_jv_of_int(v.as.boolean);
        if (dse_jv_is_number(v)) return v;
        return dse_jinja_fail(run, DSE_ERR_INVALID, "bad operand type for unary +: '%s'", dse_jv_type_name(v));
    case DSE_NODE_AND: return dse_jv_truth(v) ? dse_jinja_eval(run, node->b) : v;
    case DSE_NODE_OR: return dse_jv_truth(v) ? v : dse_jinja_eval(run, node->b);
    default: return apply(run, node, v);
    }
}

static struct dse_jv eval_if_else(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv condition = dse_jinja_eval(run, node->b);
    if (condition.kind == DSE_JV_FAIL) return condition;
    if (dse_jv_truth(condition)) return dse_jinja_eval(run, node->a);
    return node->c ? dse_jinja_eval(run, node->c) : dse_jv_undefined(NULL);
}

static struct dse_jv eval_node(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    switch (node->kind) {
    case DSE_NODE_CONSTANT: return node->value;
    case DSE_NODE_NAME: return eval_name(run, node);
    case DSE_NODE_LIST:
    case DSE_NODE_TUPLE: return eval_list(run, node);
    case DSE_NODE_DICT: return eval_dict(run, node);
    case DSE_NODE_SLICE: return eval_slice(run, node);
    case DSE_NODE_CALL: return eval_call(run, node);
    case DSE_NODE_COMPARE: return eval_compare(run, node);
    case DSE_NODE_ITEM:
    case DSE_NODE_BINARY: return eval_two(run, node);
    case DSE_NODE_IF_ELSE: return eval_if_else(run, node);
    default: return eval_one(run, node);
    }
}

struct dse_jv dse_jinja_eval(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    run->line = node->line;
    if (!dse_jinja_charge(run, 1)) return dse_jv_failed();
    if (run->depth >= DSE_JINJA_MAX_EVAL_DEPTH)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "evaluation nested deeper than %d", DSE_JINJA_MAX_EVAL_DEPTH);
    run->depth++;
    struct dse_jv value = eval_node(run, node);
    run->depth--;
    return run->failed ? dse_jv_failed() : value;
}

/* Statements of a chat template: printing, assignments, branches, loops, macros. Called by chat_template.c.
 *
 * Loops, macros, `with` and block assignments open a scope; `if` does not. What is set in a scope ends with it, which
 * is why templates carry state in namespace objects.
 */
#include "text/jinja_exec.h"

#include <string.h>

#include "text/jinja_text.h"

static struct dse_jinja_scope *open_scope(struct dse_jinja_run *run, struct dse_jinja_scope *parent)
{
    struct dse_jinja_scope *scope = dse_jinja_alloc(run, sizeof(*scope));
    if (scope) scope->parent = parent;
    return scope;
}

/* The scope of the next round of a loop: the last one emptied, unless a macro still looks at it. */
static struct dse_jinja_scope *next_scope(struct dse_jinja_run *run, struct dse_jinja_scope *last,
                                          struct dse_jinja_scope *parent)
{
    if (!last || last->captured) return open_scope(run, parent);
    last->variables.count = 0;
    if (last->variables.slots)
        memset(last->variables.slots, 0, last->variables.n_slots * sizeof(*last->variables.slots));
    return last;
}

static bool assign(struct dse_jinja_run *run, const struct dse_jinja_node *target, struct dse_jv value)
{
    if (target->kind == DSE_NODE_NAME) return dse_jv_dict_set(run, &run->scope->variables, target->value, value);
    if (target->kind == DSE_NODE_ATTRIBUTE) {
        struct dse_jv object = dse_jinja_eval(run, target->a);
        if (object.kind == DSE_JV_FAIL) return false;
        if (object.kind != DSE_JV_NAMESPACE)
            return dse_jinja_fail(run, DSE_ERR_INVALID, "cannot assign attribute on non-namespace object"), false;
        return dse_jv_dict_set(run, object.as.dict, target->value, value);
    }
    struct dse_jv items = dse_jv_iterate(run, value);
    if (items.kind == DSE_JV_FAIL) return false;
    if (items.as.list->count != target->n_items)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "expected %u values to unpack, got %zu", target->n_items,
                              items.as.list->count),
               false;
    for (uint32_t i = 0; i < target->n_items; i++)
        if (!assign(run, target->items[i], items.as.list->items[i])) return false;
    return true;
}

/* Runs a block with its output caught, in a scope of its own; gives the text. */
static struct dse_jv capture(struct dse_jinja_run *run, const struct dse_jinja_node *block,
                             struct dse_jinja_scope *scope)
{
    struct dse_buffer buffer, *out = run->out;
    struct dse_jinja_scope *outer = run->scope;
    if (!scope) return dse_jv_failed();
    dse_buffer_init(&buffer, DSE_MEM_REQUEST, run->limits->max_output_bytes);
    run->out = &buffer;
    run->scope = scope;
    enum dse_jinja_flow flow = dse_jinja_exec(run, block);
    run->out = out;
    run->scope = outer;
    if (flow == DSE_FLOW_FAIL) {
        dse_buffer_deinit(&buffer);
        return dse_jv_failed();
    }
    return dse_jv_take(run, &buffer);
}

struct dse_jv dse_jinja_call_macro(struct dse_jinja_run *run, const struct dse_jv_callable *callable,
                                   const struct dse_jinja_args *args)
{
    const struct dse_jinja_node *macro = callable->macro;
    const struct dse_jv_string *name = macro->value.as.string;
    int name_bytes = (int)(name->bytes < 60 ? name->bytes : 60);
    if (run->macro_depth >= run->limits->max_depth)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "macro '%.*s' calls nested deeper than %u", name_bytes, name->data,
                              run->limits->max_depth);
    if (args->count > macro->n_keywords)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "macro '%.*s' takes not more than %u argument(s)", name_bytes,
                              name->data, macro->n_keywords);
    struct dse_jinja_scope *scope = open_scope(run, callable->closure), *caller = run->scope;
    if (!scope) return dse_jv_failed();
    size_t used = 0;
    run->scope = scope; /* defaults may use the parameters before them */
    for (uint32_t i = 0; i < macro->n_keywords && !run->failed; i++) {
        const struct dse_jinja_keyword *parameter = &macro->keywords[i];
        struct dse_jv value = dse_jv_failed();
        for (size_t k = 0; k < args->n_named; k++)
            if (dse_jv_equal(run, (struct dse_jv){.kind = DSE_JV_STRING, .as.string = args->named[k].name},
                             parameter->name) == 1) {
                if (i < args->count) {
                    run->scope = caller;
                    return dse_jinja_fail(run, DSE_ERR_INVALID, "macro '%.*s' got two values for one argument",
                                          name_bytes, name->data);
                }
                value = args->named[k].value;
                used++;
            }
        if (i < args->count)
            value = args->items[i];
        else if (value.kind == DSE_JV_FAIL)
            value = parameter->node ? dse_jinja_eval(run, parameter->node)
                                    : dse_jv_undefined(parameter->name.as.string);
        if (value.kind != DSE_JV_FAIL) dse_jv_dict_set(run, &scope->variables, parameter->name, value);
    }
    run->scope = caller;
    if (run->failed) return dse_jv_failed();
    if (used < args->n_named)
        return dse_jinja_fail(run, DSE_ERR_INVALID, "macro '%.*s' takes no keyword argument of that name", name_bytes,
                              name->data);
    run->macro_depth++;
    struct dse_jv text = capture(run, macro->c, scope);
    run->macro_depth--;
    return text;
}

static enum dse_jinja_flow exec_macro(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv_callable *callable = dse_jinja_alloc(run, sizeof(*callable));
    if (!callable) return DSE_FLOW_FAIL;
    callable->macro = node;
    callable->closure = run->scope;
    for (struct dse_jinja_scope *scope = run->scope; scope; scope = scope->parent)
        scope->captured = true;
    struct dse_jv value = {.kind = DSE_JV_CALLABLE, .as.callable = callable};
    return dse_jv_dict_set(run, &run->scope->variables, node->value, value) ? DSE_FLOW_NEXT : DSE_FLOW_FAIL;
}

static enum dse_jinja_flow exec_if(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    for (uint32_t i = 0; i + 1 < node->n_items; i += 2) {
        struct dse_jv condition = dse_jinja_eval(run, node->items[i]);
        if (condition.kind == DSE_JV_FAIL) return DSE_FLOW_FAIL;
        if (dse_jv_truth(condition)) return dse_jinja_exec(run, node->items[i + 1]);
    }
    return node->c ? dse_jinja_exec(run, node->c) : DSE_FLOW_NEXT;
}

/* The elements for which the loop's condition holds. */
static struct dse_jv filter_items(struct dse_jinja_run *run, const struct dse_jinja_node *node, struct dse_jv items)
{
    struct dse_jinja_scope *outer = run->scope, *inner = NULL;
    struct dse_jv kept = dse_jv_new_list(run, DSE_JV_LIST, 0);
    for (size_t i = 0; i < items.as.list->count && !run->failed; i++) {
        if (!(run->scope = inner = next_scope(run, inner, outer)) || !assign(run, node->b, items.as.list->items[i]))
            break;
        struct dse_jv condition = dse_jinja_eval(run, node->items[0]);
        if (condition.kind != DSE_JV_FAIL && dse_jv_truth(condition)) dse_jv_push(run, kept, items.as.list->items[i]);
    }
    run->scope = outer;
    return run->failed ? dse_jv_failed() : kept;
}

static enum dse_jinja_flow exec_for(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv value = dse_jinja_eval(run, node->a);
    struct dse_jv items = value.kind == DSE_JV_FAIL ? value : dse_jv_iterate(run, value);
    if (items.kind != DSE_JV_FAIL && node->items[0]) items = filter_items(run, node, items);
    if (items.kind == DSE_JV_FAIL) return DSE_FLOW_FAIL;
    if (items.as.list->count == 0) return node->items[1] ? dse_jinja_exec(run, node->items[1]) : DSE_FLOW_NEXT;

    struct dse_jinja_scope *outer = run->scope, *inner = NULL;
    struct dse_jv_loop *loop = dse_jinja_alloc(run, sizeof(*loop));
    static const struct dse_jv_string loop_name = {.data = "loop", .bytes = 4, .chars = 4};
    struct dse_jv name = {.kind = DSE_JV_STRING, .as.string = &loop_name};
    if (!loop) return DSE_FLOW_FAIL;
    loop->items = items.as.list;
    enum dse_jinja_flow flow = DSE_FLOW_NEXT;
    for (; loop->index < items.as.list->count; loop->index++) {
        flow = DSE_FLOW_FAIL;
        if (!(run->scope = inner = next_scope(run, inner, outer))) break;
        if (!dse_jv_dict_set(run, &run->scope->variables, name,
                             (struct dse_jv){.kind = DSE_JV_LOOP, .as.loop = loop}) ||
            !assign(run, node->b, items.as.list->items[loop->index]))
            break;
        flow = dse_jinja_exec(run, node->c);
        if (flow == DSE_FLOW_BREAK || flow == DSE_FLOW_FAIL) break;
    }
    run->scope = outer;
    return flow == DSE_FLOW_FAIL ? flow : DSE_FLOW_NEXT;
}

static enum dse_jinja_flow exec_with(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jinja_scope *outer = run->scope, *inner = open_scope(run, outer);
    enum dse_jinja_flow flow = inner ? DSE_FLOW_NEXT : DSE_FLOW_FAIL;
    for (uint32_t i = 0; flow == DSE_FLOW_NEXT && i + 1 < node->n_items; i += 2) {
        run->scope = outer; /* the values do not see each other */
        struct dse_jv value = dse_jinja_eval(run, node->items[i + 1]);
        run->scope = inner;
        if (value.kind == DSE_JV_FAIL || !assign(run, node->items[i], value)) flow = DSE_FLOW_FAIL;
    }
    run->scope = inner;
    if (flow == DSE_FLOW_NEXT) flow = dse_jinja_exec(run, node->c);
    run->scope = outer;
    return flow;
}

static enum dse_jinja_flow print(struct dse_jinja_run *run, struct dse_jv value)
{
    if (value.kind == DSE_JV_FAIL || !dse_jv_write(run, run->out, value, false)) return DSE_FLOW_FAIL;
    return DSE_FLOW_NEXT;
}

static enum dse_jinja_flow exec_block(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    enum dse_jinja_flow flow = DSE_FLOW_NEXT;
    for (uint32_t i = 0; i < node->n_items && flow == DSE_FLOW_NEXT; i++)
        flow = dse_jinja_exec(run, node->items[i]);
    return flow;
}

static enum dse_jinja_flow exec_node(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    struct dse_jv value;
    switch (node->kind) {
    case DSE_NODE_BLOCK: return exec_block(run, node);
    case DSE_NODE_DATA: return print(run, node->value);
    case DSE_NODE_PRINT: return print(run, dse_jinja_eval(run, node->a));
    case DSE_NODE_SET:
        value = dse_jinja_eval(run, node->a);
        return value.kind != DSE_JV_FAIL && assign(run, node->b, value) ? DSE_FLOW_NEXT : DSE_FLOW_FAIL;
    case DSE_NODE_SET_BLOCK:
        value = capture(run, node->c, open_scope(run, run->scope));
        if (value.kind != DSE_JV_FAIL) value = dse_jinja_filter_text(run, node->a, value);
        return value.kind != DSE_JV_FAIL && assign(run, node->b, value) ? DSE_FLOW_NEXT : DSE_FLOW_FAIL;
    case DSE_NODE_FILTER_BLOCK:
        value = capture(run, node->c, open_scope(run, run->scope));
        return print(run, value.kind == DSE_JV_FAIL ? value : dse_jinja_filter_text(run, node->a, value));
    case DSE_NODE_IF: return exec_if(run, node);
    case DSE_NODE_FOR: return exec_for(run, node);
    case DSE_NODE_MACRO: return exec_macro(run, node);
    case DSE_NODE_WITH: return exec_with(run, node);
    case DSE_NODE_BREAK: return DSE_FLOW_BREAK;
    case DSE_NODE_CONTINUE: return DSE_FLOW_CONTINUE;
    default: dse_jinja_fail(run, DSE_ERR_INTERNAL, "not a statement"); return DSE_FLOW_FAIL;
    }
}

enum dse_jinja_flow dse_jinja_exec(struct dse_jinja_run *run, const struct dse_jinja_node *node)
{
    run->line = node->line;
    if (!dse_jinja_charge(run, 1)) return DSE_FLOW_FAIL;
    if (run->depth >= DSE_JINJA_MAX_EVAL_DEPTH) {
        dse_jinja_fail(run, DSE_ERR_LIMIT, "evaluation nested deeper than %d", DSE_JINJA_MAX_EVAL_DEPTH);
        return DSE_FLOW_FAIL;
    }
    run->depth++;
    enum dse_jinja_flow flow = exec_node(run, node);
    run->depth--;
    return run->failed ? DSE_FLOW_FAIL : flow;
}

/* Chat templates: loading (parse once) and rendering (one arena and one set of limits per call).
 *
 * Called by the model room at load and by the server per request. Never keeps anything of a request.
 */
#include "text/chat_template.h"

#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/chat_template_internal.h"
#include "text/jinja_ast.h"
#include "text/jinja_exec.h"
#include "text/jinja_json.h"
#include "text/jinja_text.h"

const struct dse_template_limits dse_template_limits_default = {
    .max_source_bytes = 1u << 20,
    .max_output_bytes = 64u << 20,
    .max_memory_bytes = 256u << 20,
    .max_steps = 20000000,
    .max_depth = 64,
    .max_ms = 5000,
};

/* Line ends become "\n", whichever the author's editor wrote. */
static size_t copy_source(char *to, const char *from, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (from[i] == '\r') {
            to[n++] = '\n';
            if (i + 1 < bytes && from[i + 1] == '\n') i++;
        } else {
            to[n++] = from[i];
        }
    }
    return n;
}

enum dse_status dse_template_parse(const char *source, size_t bytes, const struct dse_template_limits *limits,
                                   struct dse_template **out, struct dse_error *err)
{
    *out = NULL;
    if (!limits) limits = &dse_template_limits_default;
    if (bytes > limits->max_source_bytes)
        return dse_fail(err, DSE_ERR_LIMIT, "chat template has %zu bytes, at most %zu are accepted", bytes,
                        limits->max_source_bytes);
    if (!dse_utf8_valid(source, bytes)) return dse_fail(err, DSE_ERR_CORRUPT, "chat template is not valid UTF-8");
    struct dse_template *tmpl = dse_calloc(DSE_MEM_TEXT, 1, sizeof(*tmpl));
    if (!tmpl) return dse_fail_memory(err, sizeof(*tmpl), "chat template");
    tmpl->limits = *limits;
    dse_arena_init(&tmpl->arena, DSE_MEM_TEXT, limits->max_memory_bytes);
    char *copy = dse_arena_alloc(&tmpl->arena, bytes + 1);
    enum dse_status status = DSE_OK;
    struct dse_jinja_tokens tokens = {0};
    if (!copy) {
        status = dse_fail_memory(err, bytes, "chat template");
    } else {
        tmpl->source_bytes = copy_source(copy, source, bytes);
        tmpl->source = copy;
        status = dse_jinja_lex(tmpl->source, tmpl->source_bytes, &tmpl->arena, &tokens, err);
    }
    if (status == DSE_OK) status = dse_jinja_parse(&tokens, limits->max_depth, &tmpl->arena, &tmpl->root, err);
    if (status == DSE_OK)
        *out = tmpl;
    else
        dse_template_free(tmpl);
    return status;
}

void dse_template_free(struct dse_template *tmpl)
{
    if (!tmpl) return;
    dse_arena_deinit(&tmpl->arena);
    dse_free(tmpl);
}

static bool set_variable(struct dse_jinja_run *run, const char *name, struct dse_jv value)
{
    struct dse_jv key = dse_jv_borrow(run, name, strlen(name));
    return key.kind != DSE_JV_FAIL && value.kind != DSE_JV_FAIL &&
           dse_jv_dict_set(run, &run->scope->variables, key, value);
}

static bool set_text(struct dse_jinja_run *run, const char *name, const char *text)
{
    if (!text) return true; /* undefined: prints as nothing */
    if (!dse_utf8_valid(text, strlen(text)))
        return dse_jinja_fail(run, DSE_ERR_INVALID, "%s is not valid UTF-8", name), false;
    return set_variable(run, name, dse_jv_borrow(run, text, strlen(text)));
}

/* Extras first, so that they cannot replace the variables that are ours to set. */
static bool set_variables(struct dse_jinja_run *run, const struct dse_template_inputs *inputs)
{
    json_t *extra = (json_t *)inputs->extra;
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"};
    for (void *at = json_object_iter(extra); at; at = json_object_iter_next(extra, at)) {
        const char *name = json_object_iter_key(at);
        bool reserved = false;
        for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
            reserved = reserved || strcmp(name, ours[i]) == 0;
        if (!reserved && !set_variable(run, name, dse_jv_from_json(run, json_object_iter_value(at), true)))
            return false;
    }
    struct dse_jv tools = inputs->tools ? dse_jv_from_json(run, inputs->tools, true) : dse_jv_none();
    return set_variable(run, "messages", dse_jv_from_json(run, inputs->messages, true)) &&
           set_variable(run, "tools", tools) &&
           set_variable(run, "add_generation_prompt", dse_jv_of_bool(inputs->add_generation_prompt)) &&
           set_text(run, "bos_token", inputs->bos_token) && set_text(run, "eos_token", inputs->eos_token);
}

void dse_template_budget_start(struct dse_template_budget *budget, const struct dse_template *tmpl)
{
    *budget = (struct dse_template_budget){
        .limits = tmpl->limits, .deadline_ns = dse_clock_thread_ns() + (uint64_t)tmpl->limits.max_ms * 1000000u};
}

enum dse_status dse_template_render(const struct dse_template *tmpl, const struct dse_template_inputs *inputs,
                                    char **text, size_t *bytes, struct dse_error *err)
{
    struct dse_template_budget budget;
    dse_template_budget_start(&budget, tmpl);
    return dse_template_render_within(tmpl, inputs, &budget, text, bytes, err);
}

enum dse_status dse_template_render_within(const struct dse_template *tmpl, const struct dse_template_inputs *inputs,
                                           struct dse_template_budget *budget, char **text, size_t *bytes,
                                           struct dse_error *err)
{
    *text = NULL;
    *bytes = 0;
    struct dse_buffer out;
    struct dse_jinja_scope scope = {0};
    struct dse_jinja_run run = {.limits = &budget->limits, .out = &out, .scope = &scope};
    run.deadline_ns = budget->deadline_ns;
    run.steps = budget->steps;
    dse_arena_init(&run.arena, DSE_MEM_REQUEST, budget->limits.max_memory_bytes);
    dse_buffer_init(&out, DSE_MEM_REQUEST, budget->limits.max_output_bytes);
    if (set_variables(&run, inputs)) (void)dse_jinja_exec(&run, tmpl->root);
    budget->steps = run.steps;
    if (!run.failed) {
        *bytes = out.length;
        *text = dse_buffer_take(&out);
        if (!*text) dse_jinja_fail(&run, DSE_ERR_NO_MEMORY, "out of memory for the rendered text");
    }
    dse_buffer_deinit(&out);
    dse_arena_deinit(&run.arena);
    if (!run.failed) return DSE_OK;
    *bytes = 0;
    if (err) *err = run.err;
    return run.err.status;
}

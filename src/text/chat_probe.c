/* What a template wants, found out by rendering small conversations and looking for markers in the text.
 *
 * Called once when a model is loaded. A rendering that fails is an answer too; nothing here is an error.
 */
#include <string.h>

#include "text/chat_builtin.h"
#include "text/chat_template.h"
#include "text/chat_template_internal.h"

#define MARK_KEY   "probe_key_7"
#define MARK_VALUE "probe_value_7"
/* More than any template makes of conversations as small as these, and no work to fill in every rendering. */
#define MAX_BYTES ((size_t)4 << 20)
#define ARGUMENTS "{\"" MARK_KEY "\": \"" MARK_VALUE "\"}"

struct probe {
    const struct dse_template *tmpl;
    const char *bos, *eos;
    /* Steps and time are one for all renderings: a hostile template shall not cost a model's start its limits many
     * times. */
    struct dse_template_budget *budget;
};

/* Owned text, NULL when the rendering fails. Takes messages and tools. */
static char *render(const struct probe *probe, json_t *messages, json_t *tools, bool prompt)
{
    struct dse_template_inputs inputs = {.messages = messages,
                                         .tools = tools,
                                         .add_generation_prompt = prompt,
                                         .bos_token = probe->bos,
                                         .eos_token = probe->eos};
    char *text = NULL;
    size_t bytes;
    struct dse_error err;
    if (messages && dse_template_render_within(probe->tmpl, &inputs, probe->budget, &text, &bytes, &err) != DSE_OK)
        text = NULL; /* this question alone has no answer: a limit met in a call says nothing about a plain prompt */
    json_decref(messages);
    json_decref(tools);
    return text;
}

static bool has(const char *text, const char *part)
{
    return text && strstr(text, part) != NULL;
}

/* user, assistant with a call, its result. null_content: else "". */
static json_t *call_history(bool object, bool null_content)
{
    json_t *arguments = object ? json_pack("{s:s}", MARK_KEY, MARK_VALUE) : json_string(ARGUMENTS);
    json_t *content = null_content ? json_null() : json_string("");
    return json_pack("[{s:s,s:s},{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]},{s:s,s:s,s:s}]", "role", "user", "content", "Hi",
                     "role", "assistant", "content", content, "tool_calls", "id", "c1", "type", "function", "function",
                     "name", "probe", "arguments", arguments, "role", "tool", "tool_call_id", "c1", "content", "ok");
}

/* The arguments arrive as JSON text, not quoted again and not as Python's repr. */
static bool takes_arguments(const struct probe *probe, bool object, bool null_content)
{
    char *text = render(probe, call_history(object, null_content), NULL, true);
    bool good = object ? has(text, MARK_KEY) && has(text, MARK_VALUE) && !has(text, "'" MARK_KEY "'")
                       : has(text, ARGUMENTS);
    if (!object && !good) /* V3.2 writes each argument by itself */
        good = has(text, MARK_KEY "\"") && has(text, MARK_VALUE) && !has(text, "\\\"" MARK_KEY);
    dse_free(text);
    return good;
}

static void probe_calls(const struct probe *probe, struct dse_template_traits *traits)
{
    bool known = false;
    /* null first: V3's template shows calls only then. */
    for (int null_content = 1; null_content >= 0 && !known; null_content--) {
        bool object = takes_arguments(probe, true, null_content);
        traits->arguments_as_object = object || !takes_arguments(probe, false, null_content);
        known = object || !traits->arguments_as_object;
    }
    traits->has_calls = known;
    char *text = render(probe, call_history(traits->arguments_as_object, true), NULL, true);
    traits->null_content_fails = !text || has(text, "None") || has(text, "null");
    dse_free(text);
}

static void probe_tools(const struct probe *probe, struct dse_template_traits *traits)
{
    json_t *tools = json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{}}}}]", "type", "function", "function", "name",
                              "probe_tool_7", "description", "d", "parameters", "type", "object", "properties");
    char *text = render(probe, json_pack("[{s:s,s:s}]", "role", "user", "content", "Hi"), tools, true);
    traits->has_tools = has(text, "probe_tool_7");
    dse_free(text);
}

static void probe_thinking(const struct probe *probe, struct dse_template_traits *traits)
{
    const char *source = probe->tmpl->source;
    traits->has_thinking = has(source, "<think>") || has(source, "</think>") || has(source, "enable_thinking");
    char *text = render(probe, json_pack("[{s:s,s:s}]", "role", "user", "content", "Hi"), NULL, true);
    if (!text) return;
    size_t bytes = strlen(text);
    while (bytes && strchr("\n\r\t ", text[bytes - 1]))
        bytes--;
    const char tag[] = "<think>";
    traits->prompt_opens_thinking = bytes >= sizeof(tag) - 1 &&
                                    memcmp(text + bytes - (sizeof(tag) - 1), tag, sizeof(tag) - 1) == 0;
    dse_free(text);
}

void dse_template_probe(const struct dse_template *tmpl, const char *bos_token, const char *eos_token,
                        struct dse_template_traits *traits)
{
    struct dse_template_budget budget;
    struct probe probe = {.tmpl = tmpl, .bos = bos_token, .eos = eos_token, .budget = &budget};
    dse_template_budget_start(&budget, tmpl);
    if (budget.limits.max_memory_bytes > MAX_BYTES) budget.limits.max_memory_bytes = MAX_BYTES;
    if (budget.limits.max_output_bytes > MAX_BYTES) budget.limits.max_output_bytes = MAX_BYTES;
    memset(traits, 0, sizeof(*traits));
    traits->tool_format = dse_tool_format_of(tmpl->source);
    traits->older_tool_layout = dse_tool_layout_is_older(traits->tool_format, tmpl->source);
    traits->encoder_rules = dse_chat_builtin_is_encoder(tmpl->source);
    probe_calls(&probe, traits);
    probe_tools(&probe, traits);
    probe_thinking(&probe, traits);
    char *text = render(&probe,
                        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", "probe_system_7", "role",
                                  "user", "content", "Hi"),
                        NULL, true);
    traits->renders_system = has(text, "probe_system_7");
    dse_free(text);
}

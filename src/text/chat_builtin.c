/* The texts of the compiled-in chat renderings (see chat_builtin.h). Only data and its look-up.
 *
 * Newlines of the output stand inside expressions or after plain text, because a newline behind a block is dropped.
 * V3.2 and V4 reproduce what DeepSeek's encoders make of a conversation, byte for byte; variables: thinking or
 * enable_thinking (true unless given), thinking_mode ("chat", "thinking": the encoders' name for it), reasoning_effort.
 */
#include "text/chat_builtin.h"

#include <stddef.h>
#include <string.h>

#define BOS       "<｜begin▁of▁sentence｜>"
#define EOS       "<｜end▁of▁sentence｜>"
#define USER      "<｜User｜>"
#define ASSISTANT "<｜Assistant｜>"
#define DSML      "｜DSML｜"

/* ---- common to V3.2 and V4 ------------------------------------------------------------------------------------ */

#define SET_THINK                                                                                                      \
    "{% set think = thinking if thinking is defined and thinking is not none"                                          \
    " else enable_thinking if enable_thinking is defined and enable_thinking is not none"                              \
    " else thinking_mode is not defined or thinking_mode != 'chat' %}"

/* Strings as they are, everything else as JSON. A call without arguments keeps its empty line. */
#define CALLS_MACRO(block)                                                                                             \
    "{% macro calls_text(calls) %}{{ '\\n\\n' }}<" DSML block ">{{ '\\n' }}"                                           \
    "{% for call in calls %}{% set f = call['function'] %}"                                                            \
    "{% set args = f.arguments %}"                                                                                     \
    "{% if args is string %}{% set args = (args | from_json) if args else {} %}{% endif %}"                            \
    "<" DSML "invoke name=\"{{ f.name }}\">{{ '\\n' }}"                                                                \
    "{% for key, value in args | items %}"                                                                             \
    "<" DSML "parameter name=\"{{ key }}\" string=\"{{ 'true' if value is string else 'false' }}\">"                   \
    "{{ value if value is string else value | tojson }}</" DSML "parameter>{{ '\\n' }}"                                \
    "{% endfor %}{{ '' if args else '\\n' }}</" DSML "invoke>{{ '\\n' }}"                                              \
    "{% endfor %}</" DSML block ">{% endmacro %}"

#define TOOL_LINES "{% for tool in list %}{{ (tool['function'] or tool) | tojson }}{{ '\\n' }}{% endfor %}"

/* Tools belong to the first system message, or stand alone before everything. */
#define TOOLS_FIRST                                                                                                    \
    "{% if tools and (not messages or messages[0].role != 'system') %}{{ tools_text(tools) }}{% endif %}"
#define TEXT_AND_TOOLS                                                                                                 \
    "{{ content }}{% if m.tools %}{{ tools_text(m.tools) }}"                                                           \
    "{% elif tools and loop.first and m.role == 'system' %}{{ tools_text(tools) }}{% endif %}"

/* ---- V3.2 ----------------------------------------------------------------------------------------------------- */

#define V32_TOOLS_MACRO                                                                                                \
    "{% macro tools_text(list) %}{{ '\\n\\n' }}## Tools\n\n"                                                           \
    "You have access to a set of tools you can use to answer the user's question.\n"                                   \
    "You can invoke functions by writing a \"<" DSML "function_calls>\" block like the following as part of your "     \
    "reply to the user:\n"                                                                                             \
    "<" DSML "function_calls>\n"                                                                                       \
    "<" DSML "invoke name=\"$FUNCTION_NAME\">\n"                                                                       \
    "<" DSML "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" DSML "parameter>\n"         \
    "...\n"                                                                                                            \
    "</" DSML "invoke>\n"                                                                                              \
    "<" DSML "invoke name=\"$FUNCTION_NAME2\">\n"                                                                      \
    "...\n"                                                                                                            \
    "</" DSML "invoke>\n"                                                                                              \
    "</" DSML "function_calls>\n\n"                                                                                    \
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects "  \
    "should use JSON format. The \"string\" attribute should be set to \"true\" for string type parameters and "       \
    "\"false\" for other types (numbers, booleans, arrays, objects).\n\n"                                              \
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking " \
    "block. Here is an example:\n\n"                                                                                   \
    "<" DSML "function_calls>\n...\n</" DSML "function_calls>\n\n"                                                     \
    "<function_results>\n...\n</function_results>\n\n"                                                                 \
    "<think>...thinking about results</think>\n\n"                                                                     \
    "Here are the functions available in JSONSchema format:\n"                                                         \
    "<functions>\n" TOOL_LINES "</functions>\n{% endmacro %}"

static const char deepseek_v32[] = SET_THINK CALLS_MACRO("function_calls") V32_TOOLS_MACRO BOS
    "{% set n = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role in ['user', 'developer'] %}{% set n.last = loop.index0 %}{% endif %}"
    "{% endfor %}" TOOLS_FIRST "{% for m in messages %}"
    "{% set content = m.content or '' %}"
    "{% set tag = '<think>' if think and loop.index0 >= n.last else '</think>' %}"
    "{% set goes_on = add_generation_prompt or not loop.last %}"
    "{% if m.role == 'system' %}" TEXT_AND_TOOLS "{% elif m.role in ['user', 'developer'] %}" USER TEXT_AND_TOOLS
    "{% if goes_on %}" ASSISTANT "{{ tag }}{% endif %}"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}{{ '\\n\\n<function_results>' }}{% endif %}"
    "{{ '\\n' }}<result>{{ content }}</result>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}"
    "{{ '\\n</function_results>\\n\\n' }}{% if goes_on %}{{ tag }}{% endif %}{% endif %}"
    "{% elif m.role == 'assistant' %}"
    "{% if think and loop.index0 > n.last %}"
    /* The encoder takes no finished answer without its thoughts; an answer to be continued has to be possible. */
    "{% if loop.last and add_generation_prompt and not m.reasoning_content and not m.tool_calls %}"
    "{{ raise_exception('a last assistant message needs reasoning_content in thinking mode') }}{% endif %}"
    "{{ m.reasoning_content or '' }}</think>{% endif %}"
    "{{ content }}{% if m.tool_calls %}{{ calls_text(m.tool_calls) }}{% endif %}" EOS
    "{% else %}{{ raise_exception('unknown role ' ~ m.role) }}{% endif %}"
    "{% endfor %}";

/* ---- V4 ------------------------------------------------------------------------------------------------------- */

#define V4_EFFORT                                                                                                      \
    "{% if think and reasoning_effort in ['max', 'ultra'] %}"                                                          \
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"                                                \
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, " \
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"       \
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "          \
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n{% endif %}"

#define V4_TOOLS_MACRO                                                                                                 \
    "{% macro tools_text(list) %}{{ '\\n\\n' }}## Tools\n\n"                                                           \
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "         \
    "\"<" DSML "tool_calls>\" block like the following:\n\n"                                                           \
    "<" DSML "tool_calls>\n"                                                                                           \
    "<" DSML "invoke name=\"$TOOL_NAME\">\n"                                                                           \
    "<" DSML "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" DSML "parameter>\n"         \
    "...\n"                                                                                                            \
    "</" DSML "invoke>\n"                                                                                              \
    "<" DSML "invoke name=\"$TOOL_NAME2\">\n"                                                                          \
    "...\n"                                                                                                            \
    "</" DSML "invoke>\n"                                                                                              \
    "</" DSML "tool_calls>\n\n"                                                                                        \
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "  \
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"                                  \
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "              \
    "<think>...</think> BEFORE any tool calls or final response.\n\n"                                                  \
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"                                 \
    "### Available Tool Schemas\n\n" TOOL_LINES                                                                        \
    "{{ '\\n' }}You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"    \
    "{% endmacro %}"

/* Results are part of a user turn, in the order of the calls; `results` gathers them until the last of a group. */
#define V4_RESULT                                                                                                      \
    "{% set at = namespace(index=0) %}"                                                                                \
    "{% for call in n.calls %}{% if call.id == m.tool_call_id %}{% set at.index = loop.index0 %}{% endif %}"           \
    "{% endfor %}"                                                                                                     \
    "{% set n.results = n.results + [{'at': at.index, 'text': content}] %}"                                            \
    "{% if loop.last or loop.nextitem.role != 'tool' %}"                                                               \
    "{% for result in n.results | sort(attribute='at') %}"                                                             \
    "<tool_result>{{ result.text }}</tool_result>{{ '' if loop.last else '\\n\\n' }}{% endfor %}"                      \
    "{% set n.results = [] %}{% endif %}"

static const char deepseek_v4[] = SET_THINK CALLS_MACRO("tool_calls") V4_TOOLS_MACRO BOS V4_EFFORT
    /* With tools anywhere all thoughts stay, else only those after the last user turn. */
    "{% set n = namespace(last=-1, keep=tools, calls=[], results=[]) %}"
    "{% for m in messages %}{% if m.role in ['user', 'tool', 'developer'] %}{% set n.last = loop.index0 %}{% endif %}"
    "{% if m.tools %}{% set n.keep = true %}{% endif %}{% endfor %}" TOOLS_FIRST "{% for m in messages %}"
    "{% set content = m.content or '' %}"
    "{% set thinks = think and (n.keep or loop.index0 >= n.last) %}"
    "{% if m.role == 'system' %}" TEXT_AND_TOOLS
    "{% elif m.role == 'latest_reminder' %}<｜latest_reminder｜>{{ content }}"
    "{% elif m.role in ['user', 'tool', 'developer'] %}"
    "{% set joins = not loop.first and m.role != 'developer' and loop.previtem.role in ['user', 'tool'] %}"
    "{% if not joins %}" USER "{% elif m.role == 'user' or loop.previtem.role == 'user' %}{{ '\\n\\n' }}{% endif %}"
    "{% if m.role == 'tool' %}" V4_RESULT "{% else %}" TEXT_AND_TOOLS "{% endif %}"
    "{% if (loop.last and add_generation_prompt) or (not loop.last and loop.nextitem.role == 'assistant') %}" ASSISTANT
    "{{ '<think>' if thinks else '</think>' }}{% endif %}"
    "{% elif m.role == 'assistant' %}"
    "{% set n.calls = m.tool_calls or [] %}"
    "{% if thinks %}{{ m.reasoning_content or '' }}</think>{% endif %}"
    "{{ content }}{% if m.tool_calls %}{{ calls_text(m.tool_calls) }}{% endif %}" EOS
    "{% else %}{{ raise_exception('unknown role ' ~ m.role) }}{% endif %}"
    "{% endfor %}";

/* ---- older models --------------------------------------------------------------------------------------------- */

static const char deepseek_v2[] = "{{ bos_token }}{% for m in messages %}{% set content = m.content or '' %}"
                                  "{% if m.role == 'user' %}User: {{ content }}{{ '\\n\\n' }}"
                                  "{% elif m.role == 'assistant' %}Assistant: {{ content }}{{ eos_token }}"
                                  "{% elif m.role == 'system' %}{{ content }}{{ '\\n\\n' }}{% endif %}{% endfor %}"
                                  "{% if add_generation_prompt %}Assistant:{% endif %}";

/* V3 and V3.1 differ in the layout of a call and in when an answer is announced. What follows a result goes on without
 * a tag. */
#define V3_TURNS(announces, answer_tag, answer, before_arguments, after_arguments, separator, results_open,            \
                 results_close)                                                                                        \
    "{{ bos_token }}{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | "               \
    "join('\\n\\n') }}"                                                                                                \
    "{% set n = namespace(before='') %}"                                                                               \
    "{% for m in messages %}{% set content = m.content or '' %}"                                                       \
    "{% if m.role == 'user' %}" USER "{{ content }}"                                                                   \
    "{% elif m.role == 'tool' %}"                                                                                      \
    "{% if n.before != 'tool' %}" results_open "{% endif %}"                                                           \
    "<｜tool▁output▁begin｜>{{ content }}<｜tool▁output▁end｜>"                                            \
    "{% if loop.last or loop.nextitem.role != 'tool' %}" results_close "{% endif %}"                                   \
    "{% elif m.role == 'assistant' %}"                                                                                 \
    "{% if " announces " %}" ASSISTANT answer_tag "{% endif %}{{ " answer " }}"                                        \
    "{% for call in m.tool_calls or [] %}{% set f = call['function'] %}"                                               \
    "{% if loop.first %}<｜tool▁calls▁begin｜>{% else %}" separator "{% endif %}"                                      \
    "<｜tool▁call▁begin｜>" before_arguments                                                                           \
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}" after_arguments "<｜tool▁call▁end｜>" \
    "{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}{% endfor %}" EOS "{% endif %}"                                  \
    "{% if m.role != 'system' %}{% set n.before = m.role %}{% endif %}{% endfor %}"                                    \
    "{% if add_generation_prompt and " announces " %}" ASSISTANT

static const char deepseek_v3[] = V3_TURNS(
    "n.before != 'tool'", "", "content", "function<｜tool▁sep｜>{{ f.name }}{{ '\\n' }}```json{{ '\\n' }}",
    "{{ '\\n' }}```", "{{ '\\n' }}", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>") "{% endif %}";

static const char deepseek_v31[] = V3_TURNS(
    "n.before == 'user'", "</think>", "content.split('</think>', 1)[-1]", "{{ f.name }}<｜tool▁sep｜>", "", "", "",
    "") "{{ '<think>' if thinking or (thinking is not defined and enable_thinking) else '</think>' }}{% endif %}";

/* ---- look-up -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *source;
} builtins[] = {{"deepseek_v2", deepseek_v2},
                {"deepseek_v3", deepseek_v3},
                {"deepseek_v31", deepseek_v31},
                {"deepseek_v32", deepseek_v32},
                {"deepseek_v4", deepseek_v4}};

const char *dse_chat_builtin_find(const char *name)
{
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0) return builtins[i].source;
    return NULL;
}

const char *dse_chat_builtin_for(const char *architecture)
{
    static const char *const names[][2] = {{"deepseek32", "deepseek_v32"},
                                           {"deepseek_v32", "deepseek_v32"},
                                           {"deepseek4", "deepseek_v4"},
                                           {"deepseek_v4", "deepseek_v4"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], architecture) == 0) return dse_chat_builtin_find(names[i][1]);
    return NULL;
}

bool dse_chat_builtin_is_encoder(const char *source)
{
    return strcmp(source, deepseek_v32) == 0 || strcmp(source, deepseek_v4) == 0;
}

/* Any bytes as a chat template: parsed, probed by a rendering, under small limits. Must never crash, hang or leak. */
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "text/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dse_template_limits limits = {.max_source_bytes = 1u << 16,
                                                      .max_output_bytes = 1u << 18,
                                                      .max_memory_bytes = 1u << 23,
                                                      .max_steps = 100000,
                                                      .max_depth = 32,
                                                      .max_ms = 500};
    struct dse_template *tmpl;
    struct dse_error err;
    if (dse_template_parse((const char *)data, size, &limits, &tmpl, &err) != DSE_OK) return 0;
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:n,s:[{s:{s:s,s:{s:[i,f,b]}}}]},{s:s,s:s}]", "role", "user",
                                 "content", "Hi <é> 温", "role", "assistant", "content", "tool_calls", "function",
                                 "name", "f", "arguments", "a", 1, 2.5, 1, "role", "tool", "content", "{\"k\": [1]}");
    struct dse_template_inputs inputs = {.messages = messages,
                                         .tools = messages,
                                         .add_generation_prompt = true,
                                         .bos_token = "<s>",
                                         .eos_token = "</s>"};
    char *text;
    size_t bytes;
    if (dse_template_render(tmpl, &inputs, &text, &bytes, &err) == DSE_OK) dse_free(text);
    json_decref(messages);
    dse_template_free(tmpl);
    return 0;
}

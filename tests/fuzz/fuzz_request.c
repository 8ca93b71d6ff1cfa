/* Arbitrary bytes as the body of a chat completion and of a completion: JSON -> typed structs, as the server does it
 * before any model is asked. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "server/chat_request.h"
#include "server/completion_request.h"

#define N_VOCAB 49152

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dse_error err;
    json_t *root = NULL;
    if (dse_json_parse((const char *)data, size, "the request body", &root, &err) != DSE_OK) return 0;

    struct dse_chat_request chat;
    if (dse_chat_request_parse(root, N_VOCAB, &chat, &err) == DSE_OK) {
        /* What the engine relies on. */
        if (chat.params.n < 1 || chat.params.n > DSE_MAX_CHOICES || json_array_size(chat.messages) == 0) abort();
        if (chat.params.n_stops > DSE_OUTPUT_MAX_STOPS || chat.params.max_tokens < -1) abort();
        if (!(chat.params.sampling.temperature >= 0) || !(chat.params.sampling.top_p > 0)) abort();
    }
    dse_chat_request_deinit(&chat);

    struct dse_completion_request completion;
    if (dse_completion_request_parse(root, N_VOCAB, &completion, &err) == DSE_OK) {
        for (int i = 0; i < completion.n_prompts; i++) {
            const struct dse_completion_prompt *prompt = &completion.prompts[i];
            for (size_t k = 0; k < prompt->n_ids; k++)
                if (prompt->ids[k] < 0 || prompt->ids[k] >= N_VOCAB) abort();
        }
    }
    dse_completion_request_deinit(&completion);
    json_decref(root);
    return 0;
}

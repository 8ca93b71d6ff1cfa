/* Compiled-in chat renderings, by name: DeepSeek V3.2 and V4 come without a template of their own, and files of older
 * models of the family may have lost theirs.
 *
 * They are written in the template language, so that marks, limits, probing and error handling are those of every other
 * template. Official forms throughout: models/templates that llama.cpp ships for V3.1 and V3.2 differ.
 */
#ifndef DSE_TEXT_CHAT_BUILTIN_H
#define DSE_TEXT_CHAT_BUILTIN_H

#include <stdbool.h>

#define DSE_CHAT_BUILTIN_NAMES "deepseek_v2, deepseek_v3, deepseek_v31, deepseek_v32 or deepseek_v4"

/* Source of a built-in template, NULL if there is none of that name. Static. */
const char *dse_chat_builtin_find(const char *name);
/* For a model without a template: the built-in of an architecture that has only one way to be talked to, else NULL. */
const char *dse_chat_builtin_for(const char *architecture);
/* A rendering by DeepSeek's own encoder rules (V3.2, V4), told by its text. */
bool dse_chat_builtin_is_encoder(const char *source);

#endif

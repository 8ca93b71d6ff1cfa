/* A tiny DeepSeek V3.2 in both formats, with everything that the family has: latent attention, indexer, experts in groups,
 * a shared expert, a prediction layer, FP8 in the folder. Valid by default and breakable in every field. */
#ifndef TESTS_TINY_DEEPSEEK_H
#define TESTS_TINY_DEEPSEEK_H

#include "tiny_model.h"

/* 2 layers (the first one dense) and one prediction layer, D 32, H 2, R 32, Rq 32, head 32 + 8, v 32, F 160, V 32, 4 experts
 * of 32 in 2 groups, 2 used from 1 group, indexer 2 x 16 of 4 keys. architecture "deepseek32" or "deepseek2" (without the
 * indexer). Weights Q8_0. */
void tiny_deepseek_gguf(struct tiny_gguf *g, const char *architecture);

struct tiny_part {
    char name[96];
    const char *dtype;
    int n_dims, shape[2];
    float fill; /* of F32 */
};

struct tiny_folder {
    struct tiny_part parts[192];
    int n_parts;
};

json_t *tiny_deepseek_config(void); /* deepseek_v32 with FP8 */
void tiny_deepseek_folder(struct tiny_folder *folder);
struct tiny_part *tiny_part(struct tiny_folder *folder, const char *name); /* NULL if absent */
void tiny_part_remove(struct tiny_folder *folder, const char *name);
void tiny_folder_build(const struct tiny_folder *folder, struct bytes *out);

#endif

/* `show`: what a model is and what memory it needs, from its header alone; no weight is read. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/json_out.h"
#include "cli/model_arguments.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "device/device.h"
#include "model/weights.h"
#include "text/chat_builtin.h"

/* Contexts that the memory table is made for: doubled from 2048 on, and last the model's own. Returns their number. */
#define MAX_STEPS 8
static int context_steps(const struct dse_config *config, long long steps[MAX_STEPS])
{
    int n = 0;
    for (long long step = 2048; step <= 131072 && step < config->context_length; step *= 2)
        steps[n++] = step;
    steps[n++] = config->context_length;
    return n;
}

static unsigned long long kv_bytes_per_token(const struct dse_config *config)
{
    return dse_kv_layout_of(config, DSE_KV_F16).block_bytes / DSE_KV_BLOCK_TOKENS;
}

static const char *scaling_name(enum dse_rope_scaling scaling)
{
    static const char *const names[] = {"none", "linear", "llama3", "yarn"};
    return names[scaling];
}

/* DeepSeek's distilled models are named after their teacher and then after what they are built as: "DeepSeek R1 Distill
 * Qwen 7B", "DeepSeek-R1-0528-Qwen3-8B". The teacher's name, up to the first such word; "" if the model is none of
 * them. */
static void find_teacher(const struct dse_config *config, char *out, size_t bytes)
{
    static const char *const marks[] = {"distill", "qwen", "llama"};
    const char *const names[] = {config->name, config->basename};
    out[0] = '\0';
    if (strncmp(config->arch_name, "deepseek", strlen("deepseek")) == 0) return;
    for (size_t i = 0; i < 2 && out[0] == '\0'; i++) {
        const char *end = NULL;
        for (size_t m = 0; m < 3; m++) {
            const char *mark = strcasestr(names[i], marks[m]);
            if (mark != NULL && (end == NULL || mark < end)) end = mark;
        }
        if (end == NULL || strncasecmp(names[i], "DeepSeek", strlen("DeepSeek")) != 0) continue;
        while (strchr("-_ .", end[-1]) != NULL)
            end--;
        snprintf(out, bytes, "%.*s", (int)(end - names[i]), names[i]);
    }
}

static enum dse_status print_json(const struct dse_model_file *file, struct dse_error *err)
{
    const struct dse_config *c = &file->config;
    unsigned long long per_token = kv_bytes_per_token(c);
    json_t *memory = json_array();
    long long steps[MAX_STEPS];
    int n_steps = context_steps(c, steps);
    for (int i = 0; i < n_steps; i++)
        json_array_append_new(memory, json_pack("{s:I, s:I}", "context", (json_int_t)steps[i], "kv_bytes",
                                                (json_int_t)(per_token * (unsigned long long)steps[i])));
    json_t *experts = NULL, *latent = NULL;
    char teacher[sizeof c->name];
    find_teacher(c, teacher, sizeof teacher);
    if (c->moe.n_experts > 0)
        experts = json_pack("{s:i, s:i, s:i, s:i, s:i}", "count", c->moe.n_experts, "used", c->moe.n_used, "shared",
                            c->moe.n_shared, "ffn", c->moe.n_ff, "dense_layers", c->moe.n_dense_layers);
    if (c->latent.kv_rank > 0)
        latent = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:I}", "kv_rank", c->latent.kv_rank, "q_rank",
                           c->latent.q_rank, "nope", c->latent.nope, "rope", c->latent.rope, "value", c->latent.v,
                           "indexed_keys", c->indexer.top_k, "fast_numerics_bytes",
                           (json_int_t)dse_expansion_bytes(file, false));
    json_t *root = json_pack(
        "{s:o, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:b, "
        "s:b, s:I, s:I, s:o, s:o*, s:o*, s:s*}",
        "path", dse_json_lossy_string(file->path), "name", c->name, "architecture", c->arch_name, "quantization",
        dse_model_file_quantization(file), "base", c->basename, "parameters", (json_int_t)file->n_parameters,
        "active_parameters", (json_int_t)file->n_active_parameters, "context_length", (json_int_t)c->context_length,
        "layers", c->n_layers, "embedding", c->n_embd, "heads", c->n_heads, "kv_heads", c->n_kv_heads, "head_dim",
        c->head_dim, "ffn", c->n_ff, "vocabulary", c->n_vocab, "rope_scaling", scaling_name(c->rope.scaling),
        "tied_embeddings", c->tied_embeddings, "chat_template",
        file->chat_template != NULL || dse_chat_builtin_for(c->arch_name) != NULL, "weight_bytes",
        (json_int_t)file->weight_bytes, "kv_bytes_per_token", (json_int_t)per_token, "memory", memory, "experts",
        experts, "latent_attention", latent, "distilled_from", teacher[0] != '\0' ? teacher : NULL);
    return dse_print_json(root, err);
}

static void print_text(const struct dse_model_file *file)
{
    const struct dse_config *c = &file->config;
    unsigned long long per_token = kv_bytes_per_token(c);
    char a[32], b[32], teacher[sizeof c->name];
    fputs("path          ", stdout);
    dse_print_safely(stdout, file->path);
    fputc('\n', stdout);
    if (c->name[0] != '\0') printf("name          %s\n", c->name);
    if (c->basename[0] != '\0') printf("base          %s\n", c->basename);
    printf("architecture  %s", c->arch_name);
    find_teacher(c, teacher, sizeof teacher);
    if (teacher[0] != '\0') printf(", not that of %s, from which it was distilled", teacher);
    printf("\n");
    printf("parameters    %.1f M", (double)file->n_parameters * 1e-6);
    if (c->moe.n_experts > 0) printf(", of which a token uses %.1f M", (double)file->n_active_parameters * 1e-6);
    printf("\n");
    printf("quantization  %s (%s of weights)\n", dse_model_file_quantization(file),
           dse_format_bytes(file->weight_bytes, a));
    printf("context       %lld (rope scaling: %s)\n", (long long)c->context_length, scaling_name(c->rope.scaling));
    printf("shape         %d layers, %d wide, ", c->n_layers, c->n_embd);
    if (c->latent.kv_rank > 0)
        printf("%d heads of %d+%d on a latent of %d+%d", c->n_heads, c->latent.nope, c->latent.rope, c->latent.kv_rank,
               c->latent.rope);
    else
        printf("%d heads on %d kv heads of %d", c->n_heads, c->n_kv_heads, c->head_dim);
    printf(", ffn %d, vocabulary %d%s\n", c->n_ff, c->n_vocab, c->tied_embeddings ? ", tied embeddings" : "");
    if (c->moe.n_experts > 0)
        printf("experts       %d of %d used, %d shared, ffn %d, dense layers %d\n", c->moe.n_used, c->moe.n_experts,
               c->moe.n_shared, c->moe.n_ff, c->moe.n_dense_layers);
    if (c->indexer.n_heads > 0) printf("indexer       a token attends to at most %d keys\n", c->indexer.top_k);
    printf("chat          %s\n", file->chat_template != NULL                  ? "has a template"
                                 : dse_chat_builtin_for(c->arch_name) != NULL ? "built-in rendering"
                                                                              : "no template");
    printf("KV cache      %s a token\n", dse_format_bytes(per_token, a));
    if (c->latent.kv_rank > 0)
        printf("numerics      fast ones need %s of weights more\n",
               dse_format_bytes(dse_expansion_bytes(file, false), a));
    printf("\n%10s %12s %16s\n", "context", "KV", "weights + KV");
    long long steps[MAX_STEPS];
    int n_steps = context_steps(c, steps);
    for (int i = 0; i < n_steps; i++) {
        unsigned long long kv = per_token * (unsigned long long)steps[i];
        printf("%10lld %12s %16s\n", steps[i], dse_format_bytes(kv, a), dse_format_bytes(kv + file->weight_bytes, b));
    }
}

enum dse_status dse_verb_show(const struct dse_options *options, struct dse_error *err)
{
    char *path;
    struct dse_model_file *file = NULL;
    enum dse_status status = dse_model_find(dse_cli_model_name(options), &path, NULL, err);
    if (status == DSE_OK) status = dse_model_file_open(path, &file, err);
    dse_free(path);
    if (status != DSE_OK) return status;
    if (dse_opt_flag(options, DSE_OPT_JSON))
        status = print_json(file, err);
    else
        print_text(file);
    dse_model_file_close(file);
    return status;
}

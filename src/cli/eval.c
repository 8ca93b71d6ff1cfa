/* `eval --logits`: logits of every position of a list of token ids, as safetensors; with --mtp the prediction layer's
 * too. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/input.h"
#include "cli/model_arguments.h"
#include "cli/verbs.h"
#include "engine/model.h"
#include "model/safetensors.h"

#define MAX_IDS_BYTES ((size_t)64 << 20)

static enum dse_status read_ids_json(const char *path, json_t **root, struct dse_error *err)
{
    if (strcmp(path, "-") != 0) return dse_json_read(path, MAX_IDS_BYTES, root, err);
    char *text;
    size_t bytes;
    enum dse_status status = dse_read_stdin(MAX_IDS_BYTES, &text, &bytes, err);
    if (status != DSE_OK) return status;
    status = dse_json_parse(text, bytes, "standard input", root, err);
    dse_free(text);
    return status;
}

/* A JSON list of ids in the vocabulary. *ids: owned (dse_free). */
static enum dse_status read_ids(const char *path, int n_vocab, int32_t **ids, int *count, struct dse_error *err)
{
    json_t *root;
    enum dse_status status = read_ids_json(path, &root, err);
    if (status != DSE_OK) return status;
    size_t n = json_array_size(root);
    if (!json_is_array(root) || n == 0 || n > INT32_MAX)
        status = dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s: expected a JSON list of token ids, not empty", path);
    *ids = status == DSE_OK ? dse_calloc(DSE_MEM_MISC, n, sizeof **ids) : NULL;
    if (status == DSE_OK && *ids == NULL) status = dse_fail_memory(err, n * sizeof **ids, "the ids");
    for (size_t i = 0; status == DSE_OK && i < n; i++) {
        const json_t *item = json_array_get(root, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= n_vocab)
            status = dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s: element %zu is not a token id from 0 to %d", path,
                                 i, n_vocab - 1);
        else
            (*ids)[i] = (int32_t)id;
    }
    *count = (int)n;
    json_decref(root);
    if (status != DSE_OK) {
        dse_free(*ids);
        *ids = NULL;
    }
    return status;
}

/* What must not be written over: anything but a regular file, the ids, the model. Told before anything is computed. */
static enum dse_status check_output(const char *output, const char *ids, const struct dse_model *model,
                                    struct dse_error *err)
{
    enum dse_status status = dse_file_check_target(output, err);
    if (status != DSE_OK) return status;
    if (dse_file_is_same(output, ids))
        return dse_fail(err, DSE_ERR_INVALID, "--output %s is the file of --ids; name another one", output);
    if (model != NULL && dse_model_file_uses(model->file, output))
        return dse_fail(err, DSE_ERR_INVALID, "--output %s is a file of the model; name another one", output);
    return DSE_OK;
}

/* The output: one tensor, or two with the prediction layer's. */
struct results {
    struct dse_tensor tensors[2];
    size_t n;
};

static enum dse_status add_result(struct results *results, const char *name, int rows, int n_vocab, float **logits,
                                  struct dse_error *err)
{
    size_t count, bytes = 0;
    if (!dse_mul_size((size_t)rows, (size_t)n_vocab, &count) || !dse_mul_size(count, sizeof(float), &bytes) ||
        (*logits = dse_alloc(DSE_MEM_SCRATCH, bytes)) == NULL)
        return dse_fail(err, DSE_ERR_NO_MEMORY, "no memory for %s of %d ids x %d; give fewer ids", name, rows, n_vocab);
    results->tensors[results->n++] = (struct dse_tensor){.name = name,
                                                         .type = DSE_TYPE_F32,
                                                         .n_dims = 2,
                                                         .shape = {(size_t)rows, (size_t)n_vocab, 1, 1},
                                                         .data = *logits,
                                                         .bytes = bytes};
    return DSE_OK;
}

/* Logits of a sound model are finite. The file is written nevertheless: it shows where they went wrong. */
static enum dse_status check_finite(const struct dse_tensor *tensor, const char *output, struct dse_error *err)
{
    const float *logits = tensor->data;
    const size_t n_vocab = tensor->shape[1];
    for (size_t i = 0; i < tensor->shape[0] * n_vocab; i++) {
        if (!isfinite(logits[i]))
            return dse_fail(err, DSE_ERR_INTERNAL,
                            "%s of token %zu at position %zu is not finite: the model's weights are broken; %s was "
                            "written",
                            tensor->name, i % n_vocab, i / n_vocab, output);
    }
    return DSE_OK;
}

static enum dse_status evaluate(const struct dse_options *options, struct dse_model *model, const int32_t *ids,
                                int n_ids, const char *output, struct dse_error *err)
{
    const int chunk = (int)dse_opt_int(options, DSE_OPT_CHUNK);
    const bool mtp = dse_opt_flag(options, DSE_OPT_MTP);
    struct results results = {0};
    struct dse_model_info info = {0};
    float *logits = NULL, *mtp_logits = NULL;
    dse_model_get_info(model, &info);
    if (n_ids > info.context_length)
        return dse_fail(err, DSE_ERR_TOO_LONG, "%d ids are more than the model's context of %lld tokens", n_ids,
                        (long long)info.context_length);
    if (mtp && n_ids < 2)
        return dse_fail(err, DSE_ERR_INVALID, "--mtp needs at least 2 ids: it predicts the token after the next one");
    enum dse_status status = add_result(&results, "logits", n_ids, info.n_vocab, &logits, err);
    if (status == DSE_OK && mtp) status = add_result(&results, "mtp_logits", n_ids - 1, info.n_vocab, &mtp_logits, err);
    if (status == DSE_OK)
        status = mtp ? dse_eval_mtp_logits(model, ids, n_ids, chunk, logits, mtp_logits, err)
                     : dse_eval_logits(model, ids, n_ids, chunk, logits, err);
    if (status == DSE_OK) status = dse_safetensors_write(output, results.tensors, results.n, err);
    for (size_t i = 0; status == DSE_OK && i < results.n; i++)
        status = check_finite(&results.tensors[i], output, err);
    dse_free(logits);
    dse_free(mtp_logits);
    return status;
}

enum dse_status dse_verb_eval(const struct dse_options *options, struct dse_error *err)
{
    const char *ids_path = dse_opt_text(options, DSE_OPT_IDS), *output = dse_opt_text(options, DSE_OPT_OUTPUT);
    if (!dse_opt_flag(options, DSE_OPT_LOGITS))
        return dse_fail(err, DSE_ERR_INVALID, "say what to compute: --logits; try: deepseek-edge help eval");
    if (ids_path == NULL || output == NULL)
        return dse_fail(err, DSE_ERR_INVALID, "eval needs --ids FILE and --output OUT.safetensors");
    struct dse_model *model = NULL;
    int32_t *ids = NULL;
    int n_ids = 0;
    struct dse_model_info info = {0};
    enum dse_status status = check_output(output, ids_path, NULL, err);
    if (status == DSE_OK) status = dse_cli_model_open(options, dse_cli_model_name(options), &model, err);
    if (status != DSE_OK) return status;
    dse_model_get_info(model, &info);
    status = check_output(output, ids_path, model, err);
    if (status == DSE_OK) status = read_ids(ids_path, info.n_vocab, &ids, &n_ids, err);
    if (status == DSE_OK) status = evaluate(options, model, ids, n_ids, output, err);
    dse_free(ids);
    dse_model_unref(model);
    return status;
}

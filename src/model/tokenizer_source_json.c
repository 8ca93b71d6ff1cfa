/* Reads tokenizer.json and tokenizer_config.json. The pre-tokenizer is recognised by its exact structure: a regular
 * expression that we do not know is refused, because "nearly the same" yields wrong ids silently.
 */
#include <string.h>

#include "base/buffer.h"
#include "model/tokenizer_source_internal.h"
#include "text/pretokenizer.h"

#define FILE_NAME      "tokenizer.json"
#define MAX_STEPS      8
#define MAX_STEP_BYTES 4096

static enum dse_status corrupt(struct dse_error *err, const char *what)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1, "tokenizer.json: %s", what);
}

static enum dse_status unsupported(struct dse_error *err, const char *field, const char *value)
{
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, FILE_NAME, -1, "tokenizer.json: %s \"%.160s\" is not supported", field,
                       value);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool is_set(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_true(value) || json_string_length(value) > 0 ||
           (json_is_number(value) && json_number_value(value) != 0);
}

static enum dse_status check_model(const json_t *model, struct dse_error *err)
{
    if (!json_is_object(model)) return corrupt(err, "\"model\" is not an object");
    const json_t *type = json_object_get(model, "type");
    if (type && strcmp(type_of(model), "BPE") != 0) return unsupported(err, "model type", type_of(model));
    static const char *const options[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                                          "byte_fallback"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (is_set(model, options[i])) return unsupported(err, "model option", options[i]);
    if (!json_is_object(json_object_get(model, "vocab"))) return corrupt(err, "\"model.vocab\" is not an object");
    if (!json_is_array(json_object_get(model, "merges"))) return corrupt(err, "\"model.merges\" is not an array");
    return DSE_OK;
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

static bool read_id(const json_t *value, size_t *id)
{
    if (!json_is_integer(value)) return false;
    json_int_t number = json_integer_value(value);
    if (number < 0 || number >= DSE_TOKENIZER_MAX_TOKENS) return false;
    *id = (size_t)number;
    return true;
}

static enum dse_status count_tokens(const json_t *vocab, const json_t *added, size_t *count, struct dse_error *err)
{
    const char *key;
    json_t *value;
    size_t index, id;
    *count = 0;
    json_object_foreach((json_t *)vocab, key, value)
    {
        if (!read_id(value, &id))
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: id of token \"%.80s\" is not an integer from 0 to %d", key,
                               DSE_TOKENIZER_MAX_TOKENS - 1);
        if (id + 1 > *count) *count = id + 1;
    }
    json_array_foreach(added, index, value)
    {
        if (!read_id(json_object_get(value, "id"), &id))
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: \"added_tokens\"[%zu] has no id from 0 to %d", index,
                               DSE_TOKENIZER_MAX_TOKENS - 1);
        if (id + 1 > *count) *count = id + 1;
    }
    /* Holes are legal, but a few tokens with huge ids would only burn memory. */
    if (*count > 4 * (json_object_size(vocab) + json_array_size(added)) + 65536)
        return corrupt(err, "token ids are much larger than the number of tokens");
    return DSE_OK;
}

static enum dse_status fill_vocab(struct dse_tokenizer_parts *parts, const json_t *vocab, struct dse_error *err)
{
    const char *key;
    size_t key_bytes, id = 0;
    json_t *value;
    memset(parts->kinds, DSE_TOKEN_UNUSED, parts->def.n_tokens);
    json_object_keylen_foreach((json_t *)vocab, key, key_bytes, value)
    {
        if (!read_id(value, &id) || parts->kinds[id] != DSE_TOKEN_UNUSED)
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: tokens \"%.80s\" and \"%.*s\" have the same id", key,
                               (int)parts->tokens[id].bytes, parts->tokens[id].data ? parts->tokens[id].data : "");
        parts->tokens[id] = (struct dse_slice){key, key_bytes};
        parts->kinds[id] = DSE_TOKEN_NORMAL;
    }
    return DSE_OK;
}

static enum dse_status fill_added(struct dse_tokenizer_parts *parts, const json_t *added, struct dse_error *err)
{
    size_t index, id = 0;
    json_t *entry;
    json_array_foreach(added, index, entry)
    {
        const json_t *content = json_object_get(entry, "content");
        if (!read_id(json_object_get(entry, "id"), &id) || json_string_length(content) == 0)
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: \"added_tokens\"[%zu] has no text in \"content\"", index);
        static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
        for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
            if (is_set(entry, flags[i])) return unsupported(err, "option of an added token", flags[i]);
        struct dse_slice text = {json_string_value(content), json_string_length(content)};
        const struct dse_slice *old = &parts->tokens[id];
        bool is_same = old->bytes == text.bytes && old->data && memcmp(old->data, text.data, text.bytes) == 0;
        if (parts->kinds[id] != DSE_TOKEN_UNUSED && !is_same)
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: added token \"%.80s\" has the id of another token (%zu)", text.data,
                               id);
        parts->tokens[id] = text;
        parts->kinds[id] = is_set(entry, "special")                            ? DSE_TOKEN_CONTROL
                           : dse_tokenizer_is_byte_char(text.data, text.bytes) ? DSE_TOKEN_BYTE_CHAR
                                                                               : DSE_TOKEN_USER;
    }
    return DSE_OK;
}

static enum dse_status fill_merges(struct dse_tokenizer_parts *parts, const json_t *merges, struct dse_error *err)
{
    size_t index;
    json_t *merge;
    json_array_foreach(merges, index, merge)
    {
        struct dse_slice *sides = &parts->merges[2 * index];
        bool ok = false;
        if (json_is_string(merge)) {
            ok = dse_tokenizer_split_merge(json_string_value(merge), json_string_length(merge), sides);
        } else if (json_array_size(merge) == 2) {
            for (size_t i = 0; i < 2; i++) {
                const json_t *side = json_array_get(merge, i);
                sides[i] = (struct dse_slice){json_string_value(side), json_string_length(side)};
            }
            ok = sides[0].bytes > 0 && sides[1].bytes > 0;
        }
        if (!ok)
            return dse_fail_at(err, DSE_ERR_CORRUPT, FILE_NAME, -1,
                               "tokenizer.json: \"model.merges\"[%zu] is neither \"a b\" nor [\"a\", \"b\"]", index);
    }
    return DSE_OK;
}

/* ---- normaliser and pre-tokenizer ---------------------------------------------------------------------------- */

static enum dse_status read_normalizer(const json_t *normalizer, bool *nfc, struct dse_error *err)
{
    if (!normalizer || json_is_null(normalizer)) return DSE_OK;
    if (strcmp(type_of(normalizer), "NFC") == 0) {
        *nfc = true;
        return DSE_OK;
    }
    const json_t *parts = json_object_get(normalizer, "normalizers");
    if (strcmp(type_of(normalizer), "Sequence") != 0 || !json_is_array(parts))
        return unsupported(err, "normalizer", type_of(normalizer));
    size_t index;
    json_t *part;
    json_array_foreach(parts, index, part)
    {
        if (strcmp(type_of(part), "NFC") != 0) return unsupported(err, "normalizer", type_of(part));
        *nfc = true;
    }
    return DSE_OK;
}

/* Line breaks appear raw in some files and as \r, \n in others. */
static bool copy_regex(const char *regex, struct dse_buffer *out)
{
    for (; *regex; regex++) {
        if (*regex == '\r')
            dse_buffer_puts(out, "\\r");
        else if (*regex == '\n')
            dse_buffer_puts(out, "\\n");
        else
            dse_buffer_putc(out, *regex);
    }
    return dse_buffer_putc(out, '\0');
}

struct steps {
    struct dse_buffer text; /* NUL-terminated, one after the other */
    size_t count;
};

static enum dse_status add_step(struct steps *steps, const json_t *part, struct dse_error *err)
{
    const char *type = type_of(part);
    const json_t *value = NULL;
    if (strcmp(type, "ByteLevel") == 0) {
        if (is_set(part, "add_prefix_space")) return unsupported(err, "ByteLevel option", "add_prefix_space");
        value = json_object_get(part, "use_regex");
        if (json_is_false(value)) return DSE_OK;
        dse_buffer_append(&steps->text, DSE_PRETOKENIZER_BYTE_LEVEL, sizeof DSE_PRETOKENIZER_BYTE_LEVEL);
    } else if (strcmp(type, "Digits") == 0) {
        if (!is_set(part, "individual_digits")) return unsupported(err, "pre-tokenizer", "Digits not individual");
        dse_buffer_append(&steps->text, DSE_PRETOKENIZER_DIGITS, sizeof DSE_PRETOKENIZER_DIGITS);
    } else if (strcmp(type, "Split") == 0) {
        const char *behavior = json_string_value(json_object_get(part, "behavior"));
        const char *regex = json_string_value(json_object_get(json_object_get(part, "pattern"), "Regex"));
        if (!regex) return unsupported(err, "pre-tokenizer", "Split by something else than Regex");
        if (!behavior || strcmp(behavior, "Isolated") != 0 || is_set(part, "invert"))
            return unsupported(err, "Split behavior", behavior ? behavior : "");
        copy_regex(regex, &steps->text);
    } else {
        return unsupported(err, "pre-tokenizer", type);
    }
    steps->count++;
    return steps->text.failed ? corrupt(err, "a pre-tokenizer regular expression is too long") : DSE_OK;
}

static enum dse_status identify(const struct steps *steps, const char **name, struct dse_error *err)
{
    const char *texts[MAX_STEPS], *at = dse_buffer_text(&steps->text);
    for (size_t i = 0; i < steps->count; i++) {
        texts[i] = at;
        at += strlen(at) + 1;
    }
    *name = dse_pretokenizer_identify(texts, steps->count);
    return *name ? DSE_OK
                 : unsupported(err, "pre-tokenizer with the pattern", steps->count ? texts[steps->count - 1] : "");
}

static enum dse_status read_pre_tokenizer(const json_t *pre, const char **name, struct dse_error *err)
{
    if (!json_is_object(pre)) return corrupt(err, "\"pre_tokenizer\" is not an object");
    struct steps steps = {.count = 0};
    dse_buffer_init(&steps.text, DSE_MEM_TEXT, MAX_STEPS * MAX_STEP_BYTES);
    enum dse_status status = DSE_OK;
    if (strcmp(type_of(pre), "Sequence") == 0) {
        const json_t *parts = json_object_get(pre, "pretokenizers");
        if (json_array_size(parts) > MAX_STEPS) status = unsupported(err, "pre-tokenizer", "more than 8 steps");
        for (size_t i = 0; status == DSE_OK && i < json_array_size(parts); i++)
            status = add_step(&steps, json_array_get(parts, i), err);
    } else {
        status = add_step(&steps, pre, err);
    }
    if (status == DSE_OK) status = identify(&steps, name, err);
    dse_buffer_deinit(&steps.text);
    return status;
}

/* ---- special tokens -------------------------------------------------------------------------------------------- */

static int32_t find_token(const struct dse_tokenizer_parts *parts, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = parts->def.n_tokens; i-- > 0;)
        if (parts->kinds[i] != DSE_TOKEN_UNUSED && parts->tokens[i].bytes == bytes &&
            memcmp(parts->tokens[i].data, text, bytes) == 0)
            return (int32_t)i;
    return -1;
}

/* config[key] as a string or an object with "content"; absent and null leave *id alone. */
static enum dse_status read_special(const struct dse_tokenizer_parts *parts, const json_t *config, const char *key,
                                    int32_t *id, struct dse_error *err)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0)) return DSE_OK;
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_CORRUPT, "tokenizer_config.json", -1,
                           "tokenizer_config.json: \"%s\" is neither a string nor an object with \"content\"", key);
    *id = find_token(parts, json_string_value(value));
    if (*id < 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, "tokenizer_config.json", -1,
                           "tokenizer_config.json: \"%s\" is \"%.80s\", which is no token of tokenizer.json", key,
                           json_string_value(value));
    return DSE_OK;
}

/* Text of the token that a TemplateProcessing puts in front of every text, or NULL. */
static const char *template_bos(const json_t *processor)
{
    if (strcmp(type_of(processor), "Sequence") == 0) {
        size_t index;
        json_t *part;
        json_array_foreach(json_object_get(processor, "processors"), index,
                           part) if (strcmp(type_of(part), "TemplateProcessing") == 0) return template_bos(part);
        return NULL;
    }
    if (strcmp(type_of(processor), "TemplateProcessing") != 0) return NULL;
    const json_t *first = json_array_get(json_object_get(processor, "single"), 0);
    return json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
}

static enum dse_status read_specials(struct dse_tokenizer_parts *parts, const json_t *tokenizer, const json_t *config,
                                     struct dse_error *err)
{
    struct dse_tokenizer_def *def = &parts->def;
    enum dse_status status = read_special(parts, config, "bos_token", &def->bos, err);
    if (status == DSE_OK) status = read_special(parts, config, "eos_token", &def->eos, err);
    if (status == DSE_OK) status = read_special(parts, config, "pad_token", &def->pad, err);
    if (status != DSE_OK) return status;
    const char *front = template_bos(json_object_get(tokenizer, "post_processor"));
    int32_t front_id = front ? find_token(parts, front) : -1;
    if (def->bos < 0) def->bos = front_id;
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    if (add_bos && !json_is_boolean(add_bos) && !json_is_null(add_bos))
        return dse_fail_at(err, DSE_ERR_CORRUPT, "tokenizer_config.json", -1,
                           "tokenizer_config.json: \"add_bos_token\" is neither true nor false");
    def->add_bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : front_id >= 0 && front_id == def->bos;
    return DSE_OK;
}

enum dse_status dse_tokenizer_parts_from_json(const json_t *tokenizer, const json_t *config,
                                              struct dse_tokenizer_parts *parts, struct dse_error *err)
{
    const json_t *model = json_object_get(tokenizer, "model"), *added = json_object_get(tokenizer, "added_tokens");
    if (config && !json_is_object(config))
        return dse_fail_at(err, DSE_ERR_CORRUPT, "tokenizer_config.json", -1, "tokenizer_config.json: not an object");
    if (added && !json_is_array(added) && !json_is_null(added)) return corrupt(err, "\"added_tokens\" is not an array");
    enum dse_status status = check_model(model, err);
    if (status != DSE_OK) return status;
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    size_t n_tokens = 0;
    if (json_array_size(merges) > DSE_TOKENIZER_MAX_MERGES) return corrupt(err, "too many merges");
    status = count_tokens(vocab, added, &n_tokens, err);
    if (status == DSE_OK) status = dse_tokenizer_parts_allocate(parts, n_tokens, json_array_size(merges), err);
    if (status == DSE_OK) status = fill_vocab(parts, vocab, err);
    if (status == DSE_OK) status = fill_added(parts, added, err);
    if (status == DSE_OK) status = fill_merges(parts, merges, err);
    if (status == DSE_OK) status = read_normalizer(json_object_get(tokenizer, "normalizer"), &parts->def.nfc, err);
    if (status == DSE_OK)
        status = read_pre_tokenizer(json_object_get(tokenizer, "pre_tokenizer"), &parts->def.pre, err);
    if (status == DSE_OK) status = read_specials(parts, tokenizer, config, err);
    parts->def.ignore_merges = is_set(model, "ignore_merges");
    return status;
}

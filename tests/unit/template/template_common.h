/* Reading template test data; shared by the tests of this folder. */
#ifndef DSE_TESTS_TEMPLATE_COMMON_H
#define DSE_TESTS_TEMPLATE_COMMON_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

#define DS_BOS "<｜begin▁of▁sentence｜>"
#define DS_EOS "<｜end▁of▁sentence｜>"

static inline void data_path(char path[1024], const char *name)
{
    const char *root = getenv("DSE_TEST_DATA");
    assert_non_null(root);
    snprintf(path, 1024, "%s/%s", root, name);
}

static inline char *read_data(const char *name, size_t *bytes)
{
    char path[1024], *text;
    struct dse_error err;
    data_path(path, name);
    if (dse_file_read(path, 16u << 20, &text, bytes, &err) != DSE_OK) fail_msg("%s", err.message);
    return text;
}

/* Text of a template by the name that cases.jsonl uses, owned. */
static inline char *template_source(const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "chat/templates/%s.jinja", name);
    char full[1024];
    data_path(full, path);
    if (dse_file_exists(full)) return read_data(path, bytes);
    snprintf(path, sizeof(path), "tokenizers/%s/tokenizer_config.json", name);
    char *text = read_data(path, bytes);
    json_t *config;
    struct dse_error err;
    assert_int_equal(dse_json_parse(text, *bytes, path, &config, &err), DSE_OK);
    const json_t *source = json_object_get(config, "chat_template");
    assert_true(json_is_string(source));
    *bytes = json_string_length(source);
    char *copy = dse_strndup(DSE_MEM_MISC, json_string_value(source), *bytes);
    json_decref(config);
    dse_free(text);
    return copy;
}

static inline struct dse_template *load_template(const char *name)
{
    size_t bytes;
    struct dse_error err;
    struct dse_template *tmpl;
    char *source = template_source(name, &bytes);
    if (dse_template_parse(source, bytes, NULL, &tmpl, &err) != DSE_OK) fail_msg("%s: %s", name, err.message);
    dse_free(source);
    return tmpl;
}

static inline json_t *parse_json(const char *text)
{
    json_t *json;
    struct dse_error err;
    if (dse_json_parse(text, strlen(text), "test", &json, &err) != DSE_OK) fail_msg("%s", err.message);
    return json;
}

#endif

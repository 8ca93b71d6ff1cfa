/* JSON through jansson, with our limits. */
#include "base/json.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

#define CONTAINER_VALUES 8

/* jansson parses recursively up to its own fixed depth (2048) and takes about a hundred times the bytes of `[[],[],…`. A
 * quick scan refuses such texts before it starts, so that the stack and the memory needed are known. */
static enum dse_status scan(const char *text, size_t bytes, size_t max_values, const char *what, struct dse_error *err)
{
    int depth = 0;
    size_t n_values = 1;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            n_values++;
        } else if (c == '[' || c == '{') {
            n_values += CONTAINER_VALUES;
            if (++depth > DSE_JSON_MAX_DEPTH)
                return dse_fail_at(err, DSE_ERR_LIMIT, what, (int64_t)i, "%s: JSON is nested deeper than %d", what,
                                   DSE_JSON_MAX_DEPTH);
        }
        if (n_values > max_values)
            return dse_fail_at(err, DSE_ERR_LIMIT, what, (int64_t)i,
                               "%s: JSON has more than %zu values (an array or object counts as %d)", what, max_values,
                               CONTAINER_VALUES);
    }
    return DSE_OK;
}

enum dse_status dse_json_parse_limited(const char *text, size_t bytes, size_t max_values, const char *what,
                                       json_t **out, struct dse_error *err)
{
    *out = NULL;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    enum dse_status status = scan(text, bytes, max_values, what, err);
    if (status != DSE_OK) return status;
    json_error_t e;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (value == NULL) {
        if (json_error_code(&e) == json_error_out_of_memory) return dse_fail_memory(err, bytes, what);
        dse_fail_at(err, DSE_ERR_INVALID, what, e.position, "%s: not valid JSON: %s (line %d, column %d)", what, e.text,
                    e.line, e.column);
        if (err != NULL) err->line = e.line;
        return DSE_ERR_INVALID;
    }
    *out = value;
    return DSE_OK;
}

enum dse_status dse_json_parse(const char *text, size_t bytes, const char *what, json_t **out, struct dse_error *err)
{
    return dse_json_parse_limited(text, bytes, DSE_JSON_MAX_VALUES, what, out, err);
}

enum dse_status dse_json_read(const char *path, size_t max_bytes, json_t **out, struct dse_error *err)
{
    char *text;
    size_t bytes;
    *out = NULL;
    enum dse_status status = dse_file_read(path, max_bytes, &text, &bytes, err);
    if (status != DSE_OK) return status;
    status = dse_json_parse_limited(text, bytes, DSE_JSON_MAX_FILE_VALUES, path, out, err);
    dse_free(text);
    return status;
}

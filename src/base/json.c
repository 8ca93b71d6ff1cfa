/* JSON through jansson, with our limits. */
#include "base/json.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

#define CONTAINER_VALUES 8

/* jansson's lexer takes no notice when the text of a string cannot grow: it asks again for every byte that follows, and
 * then reads past the end of what it has. So no allocation of a parse is ever seen to fail: the first that does leaves the
 * parse by longjmp, and what it had taken until then is freed. */
static _Thread_local struct {
    bool active;
    jmp_buf out;
    uintptr_t *events; /* addresses given out; + 1: taken back */
    size_t n_events, capacity;
} parse;

static void reserve_event(void)
{
    if (parse.n_events < parse.capacity) return;
    size_t capacity = parse.capacity > 0 ? 2 * parse.capacity : 256;
    uintptr_t *grown = dse_realloc(DSE_MEM_MISC, parse.events, capacity * sizeof *grown);
    if (grown == NULL) longjmp(parse.out, 1);
    parse.events = grown;
    parse.capacity = capacity;
}

static void *json_malloc(size_t bytes)
{
    if (!parse.active) return dse_alloc_plain(bytes);
    reserve_event();
    void *pointer = dse_alloc_plain(bytes);
    if (pointer == NULL) longjmp(parse.out, 1);
    parse.events[parse.n_events++] = (uintptr_t)pointer;
    return pointer;
}

static void json_free(void *pointer)
{
    if (parse.active && pointer != NULL) {
        reserve_event();
        parse.events[parse.n_events++] = (uintptr_t)pointer + 1;
    }
    dse_free_plain(pointer);
}

/* Before there are threads: jansson keeps the two in plain variables. */
__attribute__((constructor)) static void set_json_memory(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

static int compare_events(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* An address that was given out once more than it was taken back is still in use. */
static void free_what_is_left(void)
{
    qsort(parse.events, parse.n_events, sizeof *parse.events, compare_events);
    for (size_t i = 0, end; i < parse.n_events; i = end) {
        uintptr_t pointer = parse.events[i] & ~(uintptr_t)1;
        size_t n_given = 0;
        for (end = i; end < parse.n_events && (parse.events[end] & ~(uintptr_t)1) == pointer; end++)
            n_given += parse.events[end] == pointer;
        if (2 * n_given > end - i) dse_free_plain((void *)pointer);
    }
}

static void end_parse(void)
{
    parse.active = false;
    dse_free(parse.events);
    parse.events = NULL;
    parse.n_events = parse.capacity = 0;
}

static json_t *load(const char *text, size_t bytes, json_error_t *e, bool *no_memory)
{
    *no_memory = false;
    if (setjmp(parse.out) != 0) {
        if (parse.n_events > 0) free_what_is_left();
        end_parse();
        *no_memory = true;
        return NULL;
    }
    parse.active = true;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
    end_parse();
    return value;
}

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
    bool no_memory;
    json_t *value = load(text, bytes, &e, &no_memory);
    if (no_memory) return dse_fail_memory(err, bytes, what);
    if (value == NULL) {
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

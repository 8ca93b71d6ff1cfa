/* JSON through jansson, with our limits. */
#include "base/json.h"

#include <setjmp.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"

#define CONTAINER_VALUES 8

/* In front of every block that jansson has. While a parse runs on this thread, what it has taken is in its ring. */
struct block {
    alignas(16) struct block *next; /* NULL: in no ring */
    struct block *previous;
};

_Static_assert(sizeof(struct block) == 16, "what jansson gets stays 16-byte aligned");

/* jansson's lexer takes no notice when the text of a string cannot grow: it asks again for every byte that follows, and
 * then reads past the end of what it has. So no allocation of a parse is ever seen to fail: the first that does leaves
 * the parse by longjmp, and what it had taken until then is freed. */
static _Thread_local struct {
    bool active;
    jmp_buf out;
    struct block ring;
} parse;

static void *json_malloc(size_t bytes)
{
    size_t total;
    struct block *block = NULL;
    if (dse_add_size(bytes, sizeof *block, &total)) block = dse_alloc(DSE_MEM_JSON, total);
    if (block == NULL) {
        if (parse.active) longjmp(parse.out, 1);
        return NULL;
    }
    *block = (struct block){NULL, NULL};
    if (parse.active) {
        *block = (struct block){parse.ring.next, &parse.ring};
        block->next->previous = parse.ring.next = block;
    }
    return block + 1;
}

static void json_free(void *pointer)
{
    if (pointer == NULL) return;
    struct block *block = (struct block *)pointer - 1;
    if (block->next != NULL) {
        block->next->previous = block->previous;
        block->previous->next = block->next;
    }
    dse_free(block);
}

json_t *dse_json_if(bool ok, json_t *value)
{
    if (ok) return value;
    json_decref(value);
    return NULL;
}

static json_t *if_whole(json_t *copy, const json_t *value)
{
    if (copy == NULL || json_equal(copy, value)) return copy;
    json_decref(copy);
    return NULL;
}

json_t *dse_json_copy(const json_t *value)
{
    return if_whole(json_copy((json_t *)value), value);
}

json_t *dse_json_deep_copy(const json_t *value)
{
    return if_whole(json_deep_copy(value), value);
}

static int append(const char *text, size_t bytes, void *out)
{
    return dse_buffer_append(out, text, bytes) ? 0 : -1;
}

bool dse_json_write(struct dse_buffer *out, const json_t *value, size_t flags)
{
    if (json_dump_callback(value, append, out, flags | JSON_ENCODE_ANY) != 0) out->failed = true;
    return !out->failed;
}

void dse_json_free_text(char *text)
{
    json_free(text);
}

/* Before there are threads: jansson keeps the two in plain variables. */
__attribute__((constructor)) static void set_json_memory(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

static void begin_parse(void)
{
    parse.ring.next = parse.ring.previous = &parse.ring;
    parse.active = true;
}

/* Empties the ring. What is kept may be freed on any thread from now on. */
static void end_parse(bool keep)
{
    parse.active = false;
    for (struct block *block = parse.ring.next, *next; block != &parse.ring; block = next) {
        next = block->next;
        block->next = block->previous = NULL;
        if (!keep) dse_free(block);
    }
}

static json_t *load(const char *text, size_t bytes, json_error_t *e, bool *no_memory)
{
    *no_memory = false;
    if (setjmp(parse.out) != 0) {
        end_parse(false);
        *no_memory = true;
        return NULL;
    }
    begin_parse();
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
    end_parse(true);
    return value;
}

/* jansson parses recursively up to its own fixed depth (2048) and takes about a hundred times the bytes of `[[],[],…`.
 * A quick scan refuses such texts before it starts, so that the stack and the memory needed are known. */
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
            n_values++;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',' || c == ':') {
            n_values++;
        } else if (c == '[' || c == '{') {
            n_values += CONTAINER_VALUES;
            if (++depth > DSE_JSON_MAX_DEPTH)
                return dse_fail_at(err, DSE_ERR_LIMIT, what, (int64_t)i, "%s: JSON is nested deeper than %d", what,
                                   DSE_JSON_MAX_DEPTH);
        }
        if (n_values > max_values)
            return dse_fail_at(err, DSE_ERR_LIMIT, what, (int64_t)i,
                               "%s: JSON has more than %zu values (a string counts as 2, an array or object as %d)",
                               what, max_values, CONTAINER_VALUES);
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

/* Template values: making, hashing, comparing, containers. Called by the rest of the interpreter.
 *
 * Must never touch anything but the arena of the run, and must charge for work that grows with the size of a value.
 */
#include "text/jinja_value.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "text/jinja_text.h"

struct dse_jv dse_jinja_fail(struct dse_jinja_run *run, enum dse_status status, const char *format, ...)
{
    if (run->failed) return dse_jv_failed();
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    run->failed = true;
    dse_fail(&run->err, status, "chat template line %u: %s", run->line, text);
    run->err.line = run->line;
    return dse_jv_failed();
}

bool dse_jinja_charge(struct dse_jinja_run *run, uint64_t steps)
{
    if (run->failed) return false;
    run->steps += steps;
    if (run->steps > run->limits->max_steps) {
        dse_jinja_fail(run, DSE_ERR_LIMIT, "rendering takes more than %llu steps",
                       (unsigned long long)run->limits->max_steps);
        return false;
    }
    if (run->steps >= run->next_clock_step) {
        run->next_clock_step = run->steps + 4096;
        if (dse_clock_thread_ns() > run->deadline_ns) {
            dse_jinja_fail(run, DSE_ERR_LIMIT, "rendering takes longer than %u ms", run->limits->max_ms);
            return false;
        }
    }
    return true;
}

void *dse_jinja_alloc(struct dse_jinja_run *run, size_t bytes)
{
    if (run->failed) return NULL;
    void *memory = NULL;
    size_t total;
    bool fits = dse_add_size(run->arena.used_bytes, bytes, &total) && total <= run->arena.max_bytes;
    if (fits) memory = dse_arena_alloc(&run->arena, bytes);
    if (memory) return memory;
    /* An arena counts alignment and chunk heads too: near its maximum it may refuse what just fits. */
    if (!fits || total > run->arena.max_bytes - run->arena.max_bytes / 16)
        dse_jinja_fail(run, DSE_ERR_LIMIT, "values take more than %zu bytes", run->arena.max_bytes);
    else
        dse_jinja_fail(run, DSE_ERR_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    return NULL;
}

double dse_jv_as_double(struct dse_jv v)
{
    if (v.kind == DSE_JV_FLOAT) return v.as.real;
    return v.kind == DSE_JV_INT ? (double)v.as.integer : (double)v.as.boolean;
}

const char *dse_jv_type_name(struct dse_jv v)
{
    static const char *const names[] = {
        [DSE_JV_FAIL] = "nothing",
        [DSE_JV_UNDEFINED] = "Undefined",
        [DSE_JV_NONE] = "NoneType",
        [DSE_JV_BOOL] = "bool",
        [DSE_JV_INT] = "int",
        [DSE_JV_FLOAT] = "float",
        [DSE_JV_STRING] = "str",
        [DSE_JV_LIST] = "list",
        [DSE_JV_TUPLE] = "tuple",
        [DSE_JV_DICT] = "dict",
        [DSE_JV_NAMESPACE] = "Namespace",
        [DSE_JV_LOOP] = "LoopContext",
        [DSE_JV_CALLABLE] = "function",
    };
    return names[v.kind];
}

bool dse_jv_truth(struct dse_jv v)
{
    switch (v.kind) {
    case DSE_JV_FAIL:
    case DSE_JV_UNDEFINED:
    case DSE_JV_NONE: return false;
    case DSE_JV_BOOL: return v.as.boolean;
    case DSE_JV_INT: return v.as.integer != 0;
    case DSE_JV_FLOAT: return v.as.real != 0;
    case DSE_JV_STRING: return v.as.string->bytes > 0;
    case DSE_JV_LIST:
    case DSE_JV_TUPLE: return v.as.list->count > 0;
    case DSE_JV_DICT: return v.as.dict->count > 0;
    default: return true;
    }
}

/* ---- lists and dicts ---- */

struct dse_jv dse_jv_new_list(struct dse_jinja_run *run, enum dse_jv_kind kind, size_t capacity)
{
    struct dse_jv_list *list = dse_jinja_alloc(run, sizeof(*list));
    size_t bytes;
    if (!list) return dse_jv_failed();
    if (capacity) {
        if (!dse_mul_size(capacity, sizeof(*list->items), &bytes))
            return dse_jinja_fail(run, DSE_ERR_LIMIT, "list of %zu elements", capacity);
        if (!(list->items = dse_jinja_alloc(run, bytes))) return dse_jv_failed();
        list->capacity = capacity;
    }
    return (struct dse_jv){.kind = kind, .as.list = list};
}

bool dse_jv_push(struct dse_jinja_run *run, struct dse_jv value, struct dse_jv item)
{
    struct dse_jv_list *list = value.as.list;
    if (!dse_jinja_charge(run, 1)) return false;
    if (list->count == list->capacity) {
        size_t capacity, bytes;
        if (!dse_mul_size(list->capacity ? list->capacity : 4, 2, &capacity) ||
            !dse_mul_size(capacity, sizeof(*list->items), &bytes))
            return dse_jinja_fail(run, DSE_ERR_LIMIT, "list too long"), false;
        struct dse_jv *items = dse_jinja_alloc(run, bytes);
        if (!items) return false;
        if (list->count) memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

struct dse_jv dse_jv_pair(struct dse_jinja_run *run, struct dse_jv first, struct dse_jv second)
{
    struct dse_jv tuple = dse_jv_new_list(run, DSE_JV_TUPLE, 2);
    if (tuple.kind == DSE_JV_FAIL) return tuple;
    tuple.as.list->items[0] = first;
    tuple.as.list->items[1] = second;
    tuple.as.list->count = 2;
    return tuple;
}

struct dse_jv dse_jv_new_dict(struct dse_jinja_run *run)
{
    struct dse_jv_dict *dict = dse_jinja_alloc(run, sizeof(*dict));
    if (!dict) return dse_jv_failed();
    return (struct dse_jv){.kind = DSE_JV_DICT, .as.dict = dict};
}

static uint64_t hash_bytes(const char *data, size_t bytes)
{
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)data[i]) * 1099511628211u;
    return hash ^ (hash >> 29);
}

/* Equal keys hash equally: 1, 1.0 and true are the same key in Python. */
static bool hash_key(struct dse_jinja_run *run, struct dse_jv key, unsigned depth, uint64_t *hash)
{
    if (key.kind == DSE_JV_STRING) {
        *hash = hash_bytes(key.as.string->data, key.as.string->bytes);
        return dse_jinja_charge_bytes(run, key.as.string->bytes);
    }
    if (dse_jv_is_number(key)) {
        double number = dse_jv_as_double(key) + 0.0; /* -0.0 becomes 0.0 */
        *hash = hash_bytes((const char *)&number, sizeof(number));
        return true;
    }
    if (key.kind == DSE_JV_TUPLE && depth < DSE_JINJA_MAX_VALUE_DEPTH) {
        *hash = 17;
        for (size_t i = 0; i < key.as.list->count; i++) {
            uint64_t part;
            if (!dse_jinja_charge(run, 1) || !hash_key(run, key.as.list->items[i], depth + 1, &part)) return false;
            *hash = *hash * 31 + part;
        }
        return true;
    }
    if (key.kind == DSE_JV_NONE || key.kind == DSE_JV_UNDEFINED) {
        *hash = (uint64_t)key.kind;
        return true;
    }
    dse_jinja_fail(run, DSE_ERR_INVALID, "unhashable type: '%s'", dse_jv_type_name(key));
    return false;
}

static bool find_entry(struct dse_jinja_run *run, const struct dse_jv_dict *dict, struct dse_jv key, uint64_t hash,
                       size_t *index)
{
    if (!dict->slots) {
        for (size_t i = 0; i < dict->count; i++)
            if (dict->entries[i].hash == hash && dse_jv_equal(run, dict->entries[i].key, key) == 1) {
                *index = i;
                return true;
            }
        return false;
    }
    for (size_t slot = hash & (dict->n_slots - 1); dict->slots[slot]; slot = (slot + 1) & (dict->n_slots - 1)) {
        size_t i = dict->slots[slot] - 1;
        if (!dse_jinja_charge(run, 1)) return false;
        if (dict->entries[i].hash == hash && dse_jv_equal(run, dict->entries[i].key, key) == 1) {
            *index = i;
            return true;
        }
    }
    return false;
}

static void index_entries(struct dse_jv_dict *dict)
{
    memset(dict->slots, 0, dict->n_slots * sizeof(*dict->slots));
    for (size_t i = 0; i < dict->count; i++) {
        size_t slot = dict->entries[i].hash & (dict->n_slots - 1);
        while (dict->slots[slot])
            slot = (slot + 1) & (dict->n_slots - 1);
        dict->slots[slot] = (uint32_t)i + 1;
    }
}

static bool grow_dict(struct dse_jinja_run *run, struct dse_jv_dict *dict)
{
    size_t capacity = dict->capacity ? dict->capacity * 2 : 8;
    if (capacity > UINT32_MAX / 4) return dse_jinja_fail(run, DSE_ERR_LIMIT, "dict too large"), false;
    struct dse_jv_entry *entries = dse_jinja_alloc(run, capacity * sizeof(*entries));
    if (!entries) return false;
    if (dict->count) memcpy(entries, dict->entries, dict->count * sizeof(*entries));
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity > 8) {
        uint32_t *slots = dse_jinja_alloc(run, capacity * 2 * sizeof(*slots));
        if (!slots) return false;
        dict->slots = slots;
        dict->n_slots = capacity * 2;
        index_entries(dict);
    }
    return true;
}

bool dse_jv_dict_set(struct dse_jinja_run *run, struct dse_jv_dict *dict, struct dse_jv key, struct dse_jv value)
{
    uint64_t hash;
    size_t index;
    if (!dse_jinja_charge(run, 1) || !hash_key(run, key, 0, &hash)) return false;
    if (find_entry(run, dict, key, hash, &index)) {
        dict->entries[index].value = value;
        return true;
    }
    if (run->failed) return false;
    if (dict->count == dict->capacity && !grow_dict(run, dict)) return false;
    dict->entries[dict->count++] = (struct dse_jv_entry){.key = key, .value = value, .hash = hash};
    if (dict->slots) {
        size_t slot = hash & (dict->n_slots - 1);
        while (dict->slots[slot])
            slot = (slot + 1) & (dict->n_slots - 1);
        dict->slots[slot] = (uint32_t)dict->count;
    }
    return true;
}

struct dse_jv *dse_jv_dict_get(struct dse_jinja_run *run, const struct dse_jv_dict *dict, struct dse_jv key)
{
    uint64_t hash;
    size_t index;
    if (!hash_key(run, key, 0, &hash)) return NULL;
    return find_entry(run, dict, key, hash, &index) ? &dict->entries[index].value : NULL;
}

struct dse_jv *dse_jv_dict_get_text(struct dse_jinja_run *run, const struct dse_jv_dict *dict, const char *key)
{
    struct dse_jv_string name = {.data = key, .bytes = strlen(key)};
    return dse_jv_dict_get(run, dict, (struct dse_jv){.kind = DSE_JV_STRING, .as.string = &name});
}

void dse_jv_dict_remove(struct dse_jv_dict *dict, size_t index)
{
    memmove(dict->entries + index, dict->entries + index + 1, (dict->count - index - 1) * sizeof(*dict->entries));
    dict->count--;
    if (dict->slots) index_entries(dict);
}

struct dse_jv dse_jv_iterate(struct dse_jinja_run *run, struct dse_jv v)
{
    struct dse_jv list;
    switch (v.kind) {
    case DSE_JV_LIST:
    case DSE_JV_TUPLE: return v;
    case DSE_JV_UNDEFINED: return dse_jv_new_list(run, DSE_JV_LIST, 0);
    case DSE_JV_DICT:
        list = dse_jv_new_list(run, DSE_JV_LIST, v.as.dict->count);
        for (size_t i = 0; list.kind != DSE_JV_FAIL && i < v.as.dict->count; i++)
            if (!dse_jv_push(run, list, v.as.dict->entries[i].key)) return dse_jv_failed();
        return list;
    case DSE_JV_STRING: return dse_jv_characters(run, v.as.string);
    default: break;
    }
    return dse_jinja_fail(run, DSE_ERR_INVALID, "'%s' object is not iterable", dse_jv_type_name(v));
}

/* ---- comparing ---- */

static int equal_at(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, unsigned depth);

static int equal_containers(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, unsigned depth)
{
    if (a.kind == DSE_JV_DICT) {
        if (a.as.dict->count != b.as.dict->count) return 0;
        for (size_t i = 0; i < a.as.dict->count; i++) {
            struct dse_jv *other = dse_jv_dict_get(run, b.as.dict, a.as.dict->entries[i].key);
            int equal = other ? equal_at(run, a.as.dict->entries[i].value, *other, depth + 1) : run->failed ? -1 : 0;
            if (equal != 1) return equal;
        }
        return 1;
    }
    if (a.as.list->count != b.as.list->count) return 0;
    for (size_t i = 0; i < a.as.list->count; i++) {
        int equal = equal_at(run, a.as.list->items[i], b.as.list->items[i], depth + 1);
        if (equal != 1) return equal;
    }
    return 1;
}

static int equal_at(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, unsigned depth)
{
    if (!dse_jinja_charge(run, 1)) return -1;
    if (depth > DSE_JINJA_MAX_VALUE_DEPTH)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "values nested too deeply to compare"), -1;
    int64_t left, right;
    if (dse_jv_as_int(a, &left) && dse_jv_as_int(b, &right)) return left == right;
    if (dse_jv_is_number(a) && dse_jv_is_number(b)) return dse_jv_as_double(a) == dse_jv_as_double(b);
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case DSE_JV_UNDEFINED:
    case DSE_JV_NONE: return 1;
    case DSE_JV_STRING:
        if (a.as.string->bytes != b.as.string->bytes) return 0;
        if (!dse_jinja_charge_bytes(run, a.as.string->bytes)) return -1;
        return a.as.string->bytes == 0 || memcmp(a.as.string->data, b.as.string->data, a.as.string->bytes) == 0;
    case DSE_JV_LIST:
    case DSE_JV_TUPLE:
    case DSE_JV_DICT: return equal_containers(run, a, b, depth);
    default: return a.as.callable == b.as.callable;
    }
}

int dse_jv_equal(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b)
{
    return equal_at(run, a, b, 0);
}

static int compare_strings(const struct dse_jv_string *a, const struct dse_jv_string *b)
{
    /* Bytes of UTF-8 have the order of the code points. */
    size_t common = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = common ? memcmp(a->data, b->data, common) : 0;
    if (order == 0) order = a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
    return order < 0 ? -1 : order > 0;
}

static bool compare_at(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, unsigned depth, int *order)
{
    if (!dse_jinja_charge(run, 1)) return false;
    if (depth > DSE_JINJA_MAX_VALUE_DEPTH)
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "values nested too deeply to compare"), false;
    int64_t left, right;
    if (dse_jv_as_int(a, &left) && dse_jv_as_int(b, &right)) {
        *order = left < right ? -1 : left > right;
        return true;
    }
    if (dse_jv_is_number(a) && dse_jv_is_number(b)) {
        double x = dse_jv_as_double(a), y = dse_jv_as_double(b);
        *order = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; /* 2: NaN, neither */
        return true;
    }
    if (a.kind == DSE_JV_STRING && b.kind == DSE_JV_STRING) {
        if (!dse_jinja_charge_bytes(run, a.as.string->bytes)) return false;
        *order = compare_strings(a.as.string, b.as.string);
        return true;
    }
    if (dse_jv_is_sequence(a) && a.kind == b.kind) {
        const struct dse_jv_list *x = a.as.list, *y = b.as.list;
        for (size_t i = 0; i < x->count && i < y->count; i++) {
            int equal = equal_at(run, x->items[i], y->items[i], depth + 1);
            if (equal < 0) return false;
            if (equal == 0) return compare_at(run, x->items[i], y->items[i], depth + 1, order);
        }
        *order = x->count < y->count ? -1 : x->count > y->count;
        return true;
    }
    if (a.kind == DSE_JV_UNDEFINED || b.kind == DSE_JV_UNDEFINED)
        return dse_jv_use_undefined(run, a.kind == DSE_JV_UNDEFINED ? a : b), false;
    dse_jinja_fail(run, DSE_ERR_INVALID, "'%s' and '%s' have no order", dse_jv_type_name(a), dse_jv_type_name(b));
    return false;
}

bool dse_jv_compare(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, int *order)
{
    return compare_at(run, a, b, 0, order);
}

int dse_jv_contains(struct dse_jinja_run *run, struct dse_jv container, struct dse_jv item)
{
    if (container.kind == DSE_JV_STRING) {
        if (item.kind != DSE_JV_STRING)
            return dse_jinja_fail(run, DSE_ERR_INVALID, "'in <string>' requires string as left operand, not %s",
                                  dse_jv_type_name(item)),
                   -1;
        if (!dse_jinja_charge_bytes(run, container.as.string->bytes)) return -1;
        return dse_jv_find(container.as.string, item.as.string, 0) != SIZE_MAX;
    }
    if (container.kind == DSE_JV_DICT) {
        bool found = dse_jv_dict_get(run, container.as.dict, item) != NULL;
        return run->failed ? -1 : found;
    }
    struct dse_jv list = dse_jv_iterate(run, container);
    if (list.kind == DSE_JV_FAIL) return -1;
    for (size_t i = 0; i < list.as.list->count; i++) {
        int equal = dse_jv_equal(run, list.as.list->items[i], item);
        if (equal != 0) return equal;
    }
    return 0;
}

/* ---- sorting ---- */

/* Merge sort, bottom up: stable, no recursion. Going backwards keeps equal elements in order, as Python's reverse. */
bool dse_jv_sort(struct dse_jinja_run *run, struct dse_jv *keys, struct dse_jv *items, size_t count, bool reverse)
{
    size_t bytes;
    if (count < 2) return true;
    if (!dse_mul_size(count, 2 * sizeof(*keys), &bytes))
        return dse_jinja_fail(run, DSE_ERR_LIMIT, "list too long"), false;
    struct dse_jv *spare = dse_jinja_alloc(run, bytes);
    if (!spare) return false;
    struct dse_jv *from[2] = {keys, items}, *to[2] = {spare, spare + count};
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            size_t i = begin, j = middle;
            for (size_t k = begin; k < end; k++) {
                bool right = i == middle;
                if (!right && j < end) {
                    int order;
                    if (!dse_jv_compare(run, from[0][i], from[0][j], &order)) return false;
                    right = reverse ? order == -1 : order == 1;
                }
                size_t source = right ? j++ : i++;
                to[0][k] = from[0][source];
                to[1][k] = from[1][source];
            }
        }
        for (int side = 0; side < 2; side++) {
            struct dse_jv *swap = from[side];
            from[side] = to[side];
            to[side] = swap;
        }
    }
    if (from[0] != keys) {
        memcpy(keys, from[0], count * sizeof(*keys));
        memcpy(items, from[1], count * sizeof(*items));
    }
    return true;
}

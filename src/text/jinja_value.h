/* Values of the template interpreter, with Python's truth, equality, order and printing.
 *
 * Used by the jinja_*.c files only. Values are small and passed by value; what they point to lives in the arena of the
 * rendering (or of the template, for constants, which are never written to after parsing). Nothing is freed singly, and
 * the arena's maximum is the template's memory limit.
 *
 * A failed operation returns a value of kind DSE_JV_FAIL, with the reason in the run; callers hand it on at once.
 */
#ifndef DSE_TEXT_JINJA_VALUE_H
#define DSE_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "text/chat_template.h"

enum dse_jv_kind {
    DSE_JV_FAIL, /* also: an argument that was not given */
    DSE_JV_UNDEFINED,
    DSE_JV_NONE,
    DSE_JV_BOOL,
    DSE_JV_INT,
    DSE_JV_FLOAT,
    DSE_JV_STRING,
    DSE_JV_LIST,
    DSE_JV_TUPLE,
    DSE_JV_DICT,
    DSE_JV_NAMESPACE,
    DSE_JV_LOOP,
    DSE_JV_CALLABLE,
};

struct dse_jv_string;
struct dse_jv_list;
struct dse_jv_dict;
struct dse_jv_loop;
struct dse_jv_callable;

struct dse_jv {
    enum dse_jv_kind kind;
    bool unsafe; /* UNDEFINED: a name such as __class__, which the message of a failed use then says */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const struct dse_jv_string *string; /* UNDEFINED: the name that was not found, may be NULL */
        struct dse_jv_list *list;           /* LIST, TUPLE */
        struct dse_jv_dict *dict;           /* DICT, NAMESPACE */
        struct dse_jv_loop *loop;
        const struct dse_jv_callable *callable;
    } as;
};

/* Room behind a string into which a longer copy of it may grow: `s = s + x` in a loop stays linear. */
struct dse_jv_tail {
    char *data;
    size_t used, capacity;
};

struct dse_jv_string {
    const char *data; /* valid UTF-8, not NUL-terminated */
    size_t bytes, chars;
    struct dse_jv_tail *tail; /* NULL: cannot grow in place */
};

struct dse_jv_list {
    struct dse_jv *items;
    size_t count, capacity;
};

struct dse_jv_entry {
    struct dse_jv key, value;
    uint64_t hash;
};

/* Insertion order; `slots` (power of two, entry index + 1) exists from 9 entries on. */
struct dse_jv_dict {
    struct dse_jv_entry *entries;
    size_t count, capacity;
    uint32_t *slots;
    size_t n_slots;
};

struct dse_jv_loop {
    const struct dse_jv_list *items;
    size_t index;
};

struct dse_jinja_scope {
    struct dse_jv_dict variables;
    struct dse_jinja_scope *parent;
    bool captured; /* a macro was defined in here or below: must not be used again */
};

/* State of one rendering. */
struct dse_jinja_run {
    const struct dse_template_limits *limits;
    struct dse_arena arena;
    struct dse_buffer *out; /* where printing goes at present */
    struct dse_jinja_scope *scope;
    uint64_t steps, next_clock_step;
    uint64_t deadline_ns; /* in processor time of the rendering thread: a busy machine refuses no template */
    unsigned depth, macro_depth;
    uint32_t line;
    bool failed;
    struct dse_error err;
};

#define DSE_JINJA_MAX_EVAL_DEPTH  1000 /* nested evaluations of one rendering: bounds the C stack */
#define DSE_JINJA_MAX_VALUE_DEPTH 150  /* nesting of lists and dicts when printed or compared */
#define DSE_JINJA_MAX_RANGE       100000

/* First failure wins. The message gets the line in front. */
struct dse_jv dse_jinja_fail(struct dse_jinja_run *run, enum dse_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Counts work; false (and failed) when steps or processor time are used up. */
bool dse_jinja_charge(struct dse_jinja_run *run, uint64_t steps);
static inline bool dse_jinja_charge_bytes(struct dse_jinja_run *run, size_t bytes)
{
    return dse_jinja_charge(run, 1 + bytes / 64);
}
/* For work that looks at every character. */
static inline bool dse_jinja_charge_chars(struct dse_jinja_run *run, size_t bytes)
{
    return dse_jinja_charge(run, 1 + bytes / 8);
}
void *dse_jinja_alloc(struct dse_jinja_run *run, size_t bytes); /* zeroed; NULL: failed */

static inline struct dse_jv dse_jv_of_bool(bool b)
{
    return (struct dse_jv){.kind = DSE_JV_BOOL, .as.boolean = b};
}
static inline struct dse_jv dse_jv_of_int(int64_t i)
{
    return (struct dse_jv){.kind = DSE_JV_INT, .as.integer = i};
}
static inline struct dse_jv dse_jv_of_float(double f)
{
    return (struct dse_jv){.kind = DSE_JV_FLOAT, .as.real = f};
}
static inline struct dse_jv dse_jv_none(void)
{
    return (struct dse_jv){.kind = DSE_JV_NONE};
}
static inline struct dse_jv dse_jv_undefined(const struct dse_jv_string *name)
{
    return (struct dse_jv){.kind = DSE_JV_UNDEFINED, .as.string = name};
}
static inline struct dse_jv dse_jv_failed(void)
{
    return (struct dse_jv){.kind = DSE_JV_FAIL};
}
static inline bool dse_jv_is_number(struct dse_jv v)
{
    return v.kind == DSE_JV_BOOL || v.kind == DSE_JV_INT || v.kind == DSE_JV_FLOAT;
}
static inline bool dse_jv_is_sequence(struct dse_jv v)
{
    return v.kind == DSE_JV_LIST || v.kind == DSE_JV_TUPLE;
}
/* BOOL and INT as integer (Python's bool is an int). */
static inline bool dse_jv_as_int(struct dse_jv v, int64_t *out)
{
    if (v.kind == DSE_JV_BOOL)
        *out = v.as.boolean;
    else if (v.kind == DSE_JV_INT)
        *out = v.as.integer;
    else
        return false;
    return true;
}
double dse_jv_as_double(struct dse_jv v); /* of a number */

const char *dse_jv_type_name(struct dse_jv v); /* as Python calls it: "str", "NoneType" */
bool dse_jv_truth(struct dse_jv v);
/* 1, 0, or -1 after a failure. */
int dse_jv_equal(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b);
/* -1, 0, 1 into *order; false after a failure (types without an order). */
bool dse_jv_compare(struct dse_jinja_run *run, struct dse_jv a, struct dse_jv b, int *order);
int dse_jv_contains(struct dse_jinja_run *run, struct dse_jv container, struct dse_jv item); /* as dse_jv_equal */
/* Elements of anything that can be iterated, as a list value (lists come back themselves, not copied). */
struct dse_jv dse_jv_iterate(struct dse_jinja_run *run, struct dse_jv v);

struct dse_jv dse_jv_new_list(struct dse_jinja_run *run, enum dse_jv_kind kind, size_t capacity);
bool dse_jv_push(struct dse_jinja_run *run, struct dse_jv list, struct dse_jv item);
struct dse_jv dse_jv_pair(struct dse_jinja_run *run, struct dse_jv first, struct dse_jv second); /* a tuple */
struct dse_jv dse_jv_new_dict(struct dse_jinja_run *run);
bool dse_jv_dict_set(struct dse_jinja_run *run, struct dse_jv_dict *dict, struct dse_jv key, struct dse_jv value);
/* NULL: not there, or failed (unhashable key): look at run->failed. */
struct dse_jv *dse_jv_dict_get(struct dse_jinja_run *run, const struct dse_jv_dict *dict, struct dse_jv key);
struct dse_jv *dse_jv_dict_get_text(struct dse_jinja_run *run, const struct dse_jv_dict *dict, const char *key);
void dse_jv_dict_remove(struct dse_jv_dict *dict, size_t index); /* keeps the order */

/* Stable. keys[i] belongs to items[i]; both are reordered. */
bool dse_jv_sort(struct dse_jinja_run *run, struct dse_jv *keys, struct dse_jv *items, size_t count, bool reverse);

#endif

/* Strings of the template interpreter, and values as text (Python's str and repr). Used by the jinja_*.c files only. */
#ifndef DSE_TEXT_JINJA_TEXT_H
#define DSE_TEXT_JINJA_TEXT_H

#include "text/jinja_value.h"

/* Copies. */
struct dse_jv dse_jv_text(struct dse_jinja_run *run, const char *data, size_t bytes);
/* Points to data, which must outlive the run. */
struct dse_jv dse_jv_borrow(struct dse_jinja_run *run, const char *data, size_t bytes);
/* Takes a buffer's content as a string and releases the buffer; a failed buffer means a limit was reached. */
struct dse_jv dse_jv_take(struct dse_jinja_run *run, struct dse_buffer *buffer);
void dse_jv_buffer_init(struct dse_jinja_run *run, struct dse_buffer *buffer);

size_t dse_jv_count_chars(const char *data, size_t bytes);
/* Byte position of `needle` at or after `from`, SIZE_MAX if none. */
size_t dse_jv_find(const struct dse_jv_string *text, const struct dse_jv_string *needle, size_t from);
struct dse_jv dse_jv_concat(struct dse_jinja_run *run, const struct dse_jv_string *a, const struct dse_jv_string *b);
struct dse_jv dse_jv_repeat(struct dse_jinja_run *run, const struct dse_jv_string *text, int64_t times);
struct dse_jv dse_jv_characters(struct dse_jinja_run *run, const struct dse_jv_string *text); /* list of strings */
size_t dse_jv_byte_of_char(const struct dse_jv_string *text, size_t index);
struct dse_jv dse_jv_substring(struct dse_jinja_run *run, const struct dse_jv_string *text, size_t begin, size_t end);
bool dse_jv_is_space(uint32_t code_point); /* as str.isspace */
/* Without leading or trailing characters of `set` (NULL: white space). */
struct dse_jv dse_jv_strip(struct dse_jinja_run *run, const struct dse_jv_string *text, const struct dse_jv_string *set,
                           bool left, bool right);
enum dse_jv_case { DSE_JV_UPPER, DSE_JV_LOWER, DSE_JV_CAPITALIZE, DSE_JV_TITLE, DSE_JV_TITLE_FILTER };
struct dse_jv dse_jv_change_case(struct dse_jinja_run *run, const struct dse_jv_string *text, enum dse_jv_case how);
struct dse_jv dse_jv_replace(struct dse_jinja_run *run, const struct dse_jv_string *text,
                             const struct dse_jv_string *old, const struct dse_jv_string *with, int64_t count);
/* Python's `text % arguments` for s, r, d, i, f, x and %%. */
struct dse_jv dse_jv_percent_format(struct dse_jinja_run *run, const struct dse_jv_string *text,
                                    struct dse_jv arguments);

/* str(v); the empty string for undefined. */
struct dse_jv dse_jv_to_string(struct dse_jinja_run *run, struct dse_jv v);
/* repr selects quotes around strings. Failures go to run. */
bool dse_jv_write(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v, bool repr);
void dse_jv_format_float(double value, char out[40]); /* as Python prints it */
/* Fails: "'x' is undefined". */
struct dse_jv dse_jv_use_undefined(struct dse_jinja_run *run, struct dse_jv undefined);

#endif

/* JSON in and out of template values. Used by the jinja_*.c files, chat_template.c and chat_messages.c. */
#ifndef DSE_TEXT_JINJA_JSON_H
#define DSE_TEXT_JINJA_JSON_H

#include <jansson.h>

#include "text/jinja_value.h"

/* borrow: strings point into `json`, which must then outlive the run. */
struct dse_jv dse_jv_from_json(struct dse_jinja_run *run, const json_t *json, bool borrow);
struct dse_jv dse_jv_parse_json(struct dse_jinja_run *run, const struct dse_jv_string *text);

struct dse_json_style {
    const char *indent; /* text of one level, NULL: one line */
    const char *item_separator, *key_separator;
    size_t item_separator_bytes, key_separator_bytes;
    bool ascii, sort_keys;
};
extern const struct dse_json_style dse_json_style_default; /* Python's json.dumps(ensure_ascii=False) */
bool dse_jv_write_json(struct dse_jinja_run *run, struct dse_buffer *buffer, struct dse_jv v,
                       const struct dse_json_style *style);
/* The same for a JSON value outside a template, owned (dse_free); NULL without memory or when it is too large. */
char *dse_json_text(const json_t *json);

#endif

/* JSON Schema -> grammar of the texts that satisfy it. Called by the server, the tools' grammar and the command line.
 *
 * Draft 2020-12, as clients of structured output use it. Every text of the grammar is valid under the schema; whatever
 * cannot be held exactly is refused with the path of its keyword, never ignored. What the texts look like:
 *  - properties come in the order of the schema; optional ones may be missing. Where `properties` stands without
 *    `additionalProperties`, there are no others. Names that additionalProperties allows come last and may recur.
 *  - between tokens: nothing, one space, or a new line and up to DSE_SCHEMA_MAX_INDENT spaces.
 *  - integers and numbers as in json_number.h, strings as in json_text.h.
 *  - oneOf needs branches of which it can be seen that they exclude each other, by type, values or a property.
 */
#ifndef DSE_TEXT_JSON_SCHEMA_H
#define DSE_TEXT_JSON_SCHEMA_H

#include <jansson.h>

#include "text/grammar.h"

#define DSE_SCHEMA_MAX_INDENT     20
#define DSE_SCHEMA_MAX_DEPTH      64    /* of keywords that combine schemas, in one place: $ref, allOf, anyOf, oneOf */
#define DSE_SCHEMA_MAX_PARTS      64    /* schemas that hold for one value at once */
#define DSE_SCHEMA_MAX_BRANCHES   8192  /* of anyOf and oneOf, after they are multiplied out */
#define DSE_SCHEMA_MAX_PROPERTIES 2048  /* of one object */
#define DSE_SCHEMA_MAX_NAME_BYTES 512   /* of a property */
#define DSE_SCHEMA_MAX_VALUES     16384 /* of one enum */
#define DSE_SCHEMA_MAX_COUNT      65536 /* minLength, maxLength, minItems, maxItems */
#define DSE_SCHEMA_MAX_PREFIX     256   /* prefixItems */
#define DSE_SCHEMA_MAX_STEPS      (1u << 20) /* keywords looked at, all in all */

enum dse_schema_flags {
    DSE_SCHEMA_COMPACT = 1, /* no white space at all */
    /* The answer begins inside a thought that ends with the text `</think>`, behind which all this holds: for models
     * that have no token for that. */
    DSE_SCHEMA_AFTER_THINKING = 2,
};

/* field: what the schema is called in messages ("response_format.json_schema.schema"); err->file gets the path below
 * it. *out is owned. */
DSE_MUST_CHECK enum dse_status dse_json_schema_compile(const json_t *schema, const char *field, unsigned flags,
                                                       struct dse_grammar **out, struct dse_error *err);
/* Any JSON object. */
DSE_MUST_CHECK enum dse_status dse_json_object_compile(const char *field, unsigned flags, struct dse_grammar **out,
                                                       struct dse_error *err);
/* Texts that match the pattern as a whole (regex_grammar.h). */
DSE_MUST_CHECK enum dse_status dse_regex_compile(const char *pattern, size_t bytes, const char *field, unsigned flags,
                                                 struct dse_grammar **out, struct dse_error *err);
/* One of these strings: an array of DSE_SCHEMA_MAX_VALUES at most. */
DSE_MUST_CHECK enum dse_status dse_choice_compile(const json_t *strings, const char *field, unsigned flags,
                                                  struct dse_grammar **out, struct dse_error *err);

#endif

/* The option table: every flag of every verb, once. Parsing, help, the man page, environment names and docs/options.md
 * are all made from it.
 *
 * Value of an option: flag on the command line > environment variable DEEPSEEK_EDGE_<NAME> > default.
 */
#ifndef DSE_CLI_OPTIONS_H
#define DSE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "cli/option_table.h"

enum dse_verb {
    DSE_VERB_RUN,
    DSE_VERB_SERVE,
    DSE_VERB_SHOW,
    DSE_VERB_BENCH,
    DSE_VERB_EVAL,
    DSE_VERB_TOKENIZE,
    DSE_VERB_TEMPLATE,
    DSE_VERB_CACHE,
    DSE_VERB_DEVICES,
    DSE_VERB_VERSION,
    DSE_VERB_TOP,
    DSE_VERB_ADAPTERS,
    DSE_VERB_HELP,
    DSE_VERB_COUNT
};

enum dse_option_kind {
    DSE_OPTION_FLAG, /* --name, --no-name */
    DSE_OPTION_STRING,
    DSE_OPTION_INT,  /* between minimum and maximum */
    DSE_OPTION_SIZE, /* bytes or tokens with K M G (1024) or k m g (1000) */
    DSE_OPTION_REAL,
    DSE_OPTION_CHOICE, /* one of the words in `choices` */
    DSE_OPTION_INTS,   /* "1,4,8" */
    DSE_OPTION_LIST,   /* may be given several times; kept in order */
};

enum dse_option {
#define X(id, ...) DSE_OPT_##id,
    DSE_OPTIONS(X)
#undef X
        DSE_OPTION_COUNT
};

#define DSE_MAX_POSITIONAL 8
#define DSE_MAX_LIST       16
#define DSE_MAX_INTS       32

struct dse_option_value {
    bool given;       /* on the command line or in the environment */
    const char *text; /* STRING, CHOICE; the raw text of others */
    int64_t integer;  /* INT, SIZE; FLAG 0 or 1 */
    double real;
    int count; /* LIST, INTS */
    const char *list[DSE_MAX_LIST];
    int64_t ints[DSE_MAX_INTS];
};

struct dse_options {
    enum dse_verb verb;
    struct dse_option_value values[DSE_OPTION_COUNT];
    const char *positional[DSE_MAX_POSITIONAL];
    int n_positional;
    bool help; /* --help was given */
};

/* arguments: those after the verb. All texts are borrowed. Wrong use is DSE_ERR_INVALID with a suggestion. */
DSE_MUST_CHECK enum dse_status dse_options_parse(enum dse_verb verb, int count, char **arguments,
                                                 struct dse_options *options, struct dse_error *err);

static inline const char *dse_opt_text(const struct dse_options *o, enum dse_option id)
{
    return o->values[id].text;
}
static inline int64_t dse_opt_int(const struct dse_options *o, enum dse_option id)
{
    return o->values[id].integer;
}
static inline bool dse_opt_flag(const struct dse_options *o, enum dse_option id)
{
    return o->values[id].integer != 0;
}
static inline double dse_opt_real(const struct dse_options *o, enum dse_option id)
{
    return o->values[id].real;
}

struct dse_verb_info {
    const char *name, *usage, *summary, *details;
    int max_arguments; /* without flags, the model included: it takes no place there when --model names it */
};
extern const struct dse_verb_info dse_verbs[DSE_VERB_COUNT];

/* DSE_VERB_COUNT if there is none of that name; *nearest then names the closest one or is NULL. */
enum dse_verb dse_verb_find(const char *name, const char **nearest);

void dse_help_short(FILE *out);
void dse_help_verb(FILE *out, enum dse_verb verb);
void dse_help_search(FILE *out, const char *word);
void dse_help_markdown(FILE *out);
void dse_help_man(FILE *out);
void dse_help_metrics(FILE *out); /* docs/metrics.md */

#endif

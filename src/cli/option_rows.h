/* The option table as data, for the parser and the help writers. */
#ifndef DSE_CLI_OPTION_ROWS_H
#define DSE_CLI_OPTION_ROWS_H

#include "cli/options.h"

struct dse_option_row {
    const char *long_name, *aliases;
    enum dse_option_kind kind;
    const char *value_name, *fallback;
    double minimum, maximum;
    const char *choices;
    unsigned verbs; /* bit per enum dse_verb */
    const char *help;
};

extern const struct dse_option_row dse_option_rows[DSE_OPTION_COUNT];

/* DEEPSEEK_EDGE_MAX_MODEL_LEN for "max-model-len". */
void dse_option_env_name(int index, char *out, size_t bytes);

#endif

/* One function per verb. Each prints its result on standard output, talks on standard error, and returns the status
 * whose exit code the process ends with. */
#ifndef DSE_CLI_VERBS_H
#define DSE_CLI_VERBS_H

#include "cli/options.h"

#define DSE_VERB_FUNCTION(name)                                                                                        \
    DSE_MUST_CHECK enum dse_status dse_verb_##name(const struct dse_options *options, struct dse_error *err)

DSE_VERB_FUNCTION(run);
DSE_VERB_FUNCTION(serve);
DSE_VERB_FUNCTION(show);
DSE_VERB_FUNCTION(bench);
DSE_VERB_FUNCTION(eval);
DSE_VERB_FUNCTION(tokenize);
DSE_VERB_FUNCTION(template);
DSE_VERB_FUNCTION(cache);
DSE_VERB_FUNCTION(devices);
DSE_VERB_FUNCTION(version);
DSE_VERB_FUNCTION(top);
DSE_VERB_FUNCTION(adapters);

#endif

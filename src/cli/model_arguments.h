/* From flags to an open model: finds the file, refuses what this version cannot honour, opens. */
#ifndef DSE_CLI_MODEL_ARGUMENTS_H
#define DSE_CLI_MODEL_ARGUMENTS_H

#include <dse/dse.h>

#include "cli/options.h"

/* Finds what a name means: an existing file or folder, or a model of the Hugging Face cache ("org/name", any case).
 * name NULL: the demo model, if it was fetched before. Returns owned text (dse_free). canonical (may be NULL) gets the
 * id as the cache spells it, "" for plain paths. */
DSE_MUST_CHECK enum dse_status dse_model_find(const char *name, char **path, char canonical[256],
                                              struct dse_error *err);

/* Flags that ask for what cannot be had here are errors by the rules of the exit codes: device 6, quantize 2 or 4.
 * dse_cli_model_open does all of it; a verb that has something to do before may ask first. */
DSE_MUST_CHECK enum dse_status dse_cli_check_flags(const struct dse_options *options, struct dse_error *err);
/* --quantize against what the file holds. Reads the file's header if the flag was given, and none of its weights. */
DSE_MUST_CHECK enum dse_status dse_cli_check_quantize(const struct dse_options *options, const char *path,
                                                      struct dse_error *err);

/* name: --model or the first positional argument (may be NULL). */
DSE_MUST_CHECK enum dse_status dse_cli_model_open(const struct dse_options *options, const char *name,
                                                  struct dse_model **model, struct dse_error *err);

/* Positional argument `index` unless --model was given, which shifts them by one. NULL if absent. */
const char *dse_cli_model_name(const struct dse_options *options);
const char *dse_cli_positional(const struct dse_options *options, int after_model);

/* $XDG_CACHE_HOME/deepseek-edge/SUB or ~/.cache/…; NULL if neither variable is set. Returns owned (dse_free). */
char *dse_cache_folder(const char *sub);

#endif

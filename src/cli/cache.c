/* `cache wipe`: removes the prompts and answers that a prefix cache keeps on disk. */
#include <dse/dse.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

enum dse_status dse_verb_cache(const struct dse_options *options, struct dse_error *err)
{
    const char *folder = options->n_positional > 1 ? options->positional[1]
                                                   : dse_opt_text(options, DSE_OPT_PREFIX_DISK);
    if (options->n_positional == 0 || strcmp(options->positional[0], "wipe") != 0)
        return dse_fail(err, DSE_ERR_INVALID, "cache: say what to do: deepseek-edge cache wipe DIR");
    if (folder == NULL || folder[0] == '\0')
        return dse_fail_at(err, DSE_ERR_INVALID, "--prefix-cache-disk", -1,
                           "cache wipe: name the folder: deepseek-edge cache wipe DIR, or --prefix-cache-disk DIR");
    uint64_t n_files, bytes;
    char text[32];
    enum dse_status status = dse_prefix_cache_wipe(folder, &n_files, &bytes, err);
    if (status == DSE_OK || n_files > 0)
        fprintf(stderr, "removed %llu blocks, %s\n", (unsigned long long)n_files, dse_format_bytes(bytes, text));
    return status;
}

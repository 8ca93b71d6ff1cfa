/* Adapters that the flags of `run` and `serve` name: --lora, --lora-scaled, --lora-modules. */
#ifndef DSE_CLI_LORA_H
#define DSE_CLI_LORA_H

#include <dse/dse.h>

#include "cli/options.h"

#define DSE_CLI_MAX_ADAPTERS 32
#define DSE_CLI_ADAPTER_NAME 129 /* bytes of a name with its end */

struct dse_cli_adapter {
    char *path; /* owned */
    char name[DSE_CLI_ADAPTER_NAME];
    float scale; /* of requests that name no adapter; 0 for --lora-modules */
    struct dse_adapter *adapter;
};

struct dse_cli_adapters {
    struct dse_cli_adapter list[DSE_CLI_MAX_ADAPTERS];
    int count;
    int rank; /* of all together */
};

/* Reads the flags; opens nothing. */
DSE_MUST_CHECK enum dse_status dse_cli_adapters_parse(const struct dse_options *options,
                                                      struct dse_cli_adapters *adapters, struct dse_error *err);
DSE_MUST_CHECK enum dse_status dse_cli_adapters_open(struct dse_cli_adapters *adapters, struct dse_model *model,
                                                     struct dse_error *err);
void dse_cli_adapters_close(struct dse_cli_adapters *adapters); /* safe on a zeroed struct */

#endif

/* A folder of files that prompts can be read out of: opened only if no other user can look into it. Called for the
 * prefix cache on disk and for saved slots. */
#ifndef DSE_ENGINE_PRIVATE_FOLDER_H
#define DSE_ENGINE_PRIVATE_FOLDER_H

#include <dirent.h>
#include <stddef.h>

#include "base/error.h"

/* Made if missing, with its parents, for its user only. what: "a prefix cache", for messages. *fd: of the directory,
 * the caller's to close, -1 on failure. */
DSE_MUST_CHECK enum dse_status dse_private_folder_open(const char *path, const char *what, int *fd,
                                                       struct dse_error *err);

/* Its entries, the caller's to close; what: "list the prefix cache", for the message of a failure. */
DSE_MUST_CHECK enum dse_status dse_private_folder_list(int fd, const char *field, const char *what, DIR **listing,
                                                       struct dse_error *err);

#endif

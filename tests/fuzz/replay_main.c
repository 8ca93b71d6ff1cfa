/* Runs a fuzz target over each file of a corpus folder: what the fuzzers found once stays found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *folder = opendir(argv[1]);
    if (folder == NULL) {
        perror(argv[1]);
        return 1;
    }
    int replayed = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        char *path = dse_path_join(argv[1], entry->d_name), *data;
        size_t bytes;
        struct dse_error err;
        if (dse_file_read(path, 16u << 20, &data, &bytes, &err) != DSE_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)data, bytes);
        dse_free(data);
        dse_free(path);
        replayed++;
    }
    closedir(folder);
    printf("replayed %d inputs\n", replayed);
    return replayed > 0 ? 0 : 1;
}

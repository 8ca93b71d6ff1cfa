/* Writes the cases of malformed_gguf.c, malformed_hugging_face.c and malformed_deepseek.c to disk. */
#include "malformed.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL) return false;
    bool ok = bytes == 0 || fwrite(data, 1, bytes, f) == bytes;
    return fclose(f) == 0 && ok;
}

bool malformed_write(const char *folder, const struct malformed_case *bad, char *path, size_t path_bytes)
{
    char file[1024], home[768];
    snprintf(home, sizeof home, "%s/%s", folder, bad->name);
    mkdir(home, 0755);
    for (int i = 0; i < bad->n_files; i++) {
        snprintf(file, sizeof file, "%s/%s", home, bad->files[i].name);
        char *slash = strrchr(file, '/');
        *slash = '\0';
        mkdir(file, 0755);
        *slash = '/';
        if (!write_file(file, bad->files[i].data, bad->files[i].bytes)) return false;
    }
    int n = bad->open[0] != '\0' ? snprintf(path, path_bytes, "%s/%s", home, bad->open)
                                 : snprintf(path, path_bytes, "%s", home);
    return n > 0 && (size_t)n < path_bytes;
}

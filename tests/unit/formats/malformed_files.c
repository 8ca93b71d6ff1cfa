/* malformed_files OUTDIR: writes every broken model below OUTDIR, and OUTDIR/manifest.tsv with two columns: the path to
 * open, relative to OUTDIR, and a word that the error must contain (empty if there is none). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "malformed.h"

struct output {
    const char *folder;
    FILE *manifest;
    int count;
};

static void write_case(void *user, const struct malformed_case *bad)
{
    struct output *out = user;
    char path[1024];
    if (!malformed_write(out->folder, bad, path, sizeof path)) {
        fprintf(stderr, "cannot write %s\n", bad->name);
        exit(1);
    }
    fprintf(out->manifest, "%s\t%s\n", path + strlen(out->folder) + 1, bad->expected);
    out->count++;
}

int main(int argc, char **argv)
{
    char path[1024];
    if (argc != 2) {
        fprintf(stderr, "usage: malformed_files OUTDIR\n");
        return 2;
    }
    mkdir(argv[1], 0755);
    snprintf(path, sizeof path, "%s/manifest.tsv", argv[1]);
    struct output out = {argv[1], fopen(path, "w"), 0};
    if (out.manifest == NULL) {
        perror(path);
        return 1;
    }
    malformed_gguf(write_case, &out);
    malformed_hugging_face(write_case, &out);
    malformed_deepseek(write_case, &out);
    if (fclose(out.manifest) != 0) return 1;
    printf("%d cases\n", out.count);
    return 0;
}

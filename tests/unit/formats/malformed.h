/* Hundreds of broken model files, made from one valid tiny model by one change each: every class of bad input that
 * readers of model files meet, and its neighbours. Used by test_malformed.c, and by the program malformed_files, which
 * writes them to a folder for tests of the command line. */
#ifndef TESTS_MALFORMED_H
#define TESTS_MALFORMED_H

#include <stdbool.h>
#include <stddef.h>

struct malformed_file {
    const char *name; /* relative to the case's folder */
    const void *data;
    size_t bytes;
};

struct malformed_case {
    const char *name;     /* unique, a file name */
    const char *expected; /* word that the error must contain; "" if nothing beyond the file can be named */
    const char *open;     /* file of the case to open; "" opens the folder itself */
    struct malformed_file files[4];
    int n_files;
};

typedef void malformed_fn(void *user, const struct malformed_case *bad);

/* Each calls fn once per case; what a case points to lives during the call. */
void malformed_gguf(malformed_fn *fn, void *user);
void malformed_hugging_face(malformed_fn *fn, void *user);
void malformed_deepseek(malformed_fn *fn, void *user); /* both formats */

/* Writes the files of a case below folder and gives the path to open. Returns false on an I/O error. */
bool malformed_write(const char *folder, const struct malformed_case *bad, char *path, size_t path_bytes);

#endif

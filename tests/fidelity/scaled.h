/* Copies of reference models with chosen weights multiplied by a power of two, made while a test runs. */
#ifndef DSE_TEST_SCALED_H
#define DSE_TEST_SCALED_H

#include <stddef.h>

/* Weights whose name contains `part` are multiplied by 2^exponent; several rules for one tensor add up. With a period
 * only rows r with first <= r % period < last. */
struct scaling {
    const char *part;
    int exponent;
    size_t period, first, last;
};

/* Writes the copy of a folder below the reference models into a new temporary folder and returns its path, which the
 * caller frees after scaled_model_remove. Fails the test if a rule matches no tensor. */
char *scaled_model_write(const char *model, const struct scaling *rules, size_t n_rules);
void scaled_model_remove(char *folder);

#endif

/* A measured value that follows the last few: for chunk.c and speculate.c, which go by what steps cost lately. */
#ifndef DSE_ENGINE_SMOOTHED_H
#define DSE_ENGINE_SMOOTHED_H

/* old 0: nothing was measured yet. */
static inline double dse_smoothed(double old, double now)
{
    return old > 0 ? 0.75 * old + 0.25 * now : now;
}

#endif

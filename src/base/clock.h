#ifndef DSE_BASE_CLOCK_H
#define DSE_BASE_CLOCK_H

#include <stdint.h>

uint64_t dse_clock_ns(void);        /* monotonic */
uint64_t dse_clock_thread_ns(void); /* processor time of the calling thread */
int64_t dse_clock_unix_s(void);     /* wall clock */

#endif

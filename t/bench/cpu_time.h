/*
 * cpu_time.h - CPU time of this process, all threads, in seconds.
 */

#ifndef DI_BENCH_CPU_TIME_H
#define DI_BENCH_CPU_TIME_H

#include <time.h>

static inline double
cpu_s(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

#endif

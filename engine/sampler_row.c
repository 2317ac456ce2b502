/*
 * sampler_row.c - passes over a row of logits, for each instruction set.
 *
 * The passes are written once, in sampler_row_vec.h, in the compilers' vector
 * extension, and compiled for registers of 16, 32 and 64 bytes.  Intrinsics
 * would say the same three times over; the compilers' own vectorisers find
 * neither the maximum with its index nor the selection.  Vectors wider than
 * the registers compile too, but GCC 12 makes scalar code of comparisons.
 */

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "sampler_row.h"

#define LANES   16              /* accumulators of a sum                    */
#define RUN     1024            /* terms of a sum in float                  */

static const int32_t zero_to_15[16] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
};

#define VEC_BYTES   16
#define VEC_NAME(x) x##_plain
#define VEC_TARGET
#include "sampler_row_vec.h"

#if defined(__x86_64__)

#define VEC_BYTES   32
#define VEC_NAME(x) x##_avx2
#define VEC_TARGET  __attribute__((target("avx2")))
#include "sampler_row_vec.h"

#define VEC_BYTES   64
#define VEC_NAME(x) x##_avx512
#define VEC_TARGET  __attribute__((target("avx512f,avx512dq")))
#include "sampler_row_vec.h"

#endif


const di_row_ops_t *
di_row_ops_at(unsigned i)
{
    if (i == 0)
        return &ops_plain;
#if defined(__x86_64__)
    if (i == 1 && __builtin_cpu_supports("avx2"))
        return &ops_avx2;
    if (i == 2 && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512dq"))
        return &ops_avx512;
#endif
    return NULL;
}


const di_row_ops_t *
di_row_ops(void)
{
    const di_row_ops_t *ops = di_row_ops_at(2);

    if (ops == NULL)
        ops = di_row_ops_at(1);
    return ops != NULL ? ops : di_row_ops_at(0);
}

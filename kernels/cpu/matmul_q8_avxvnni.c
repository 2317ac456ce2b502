/*
 * matmul_q8_avxvnni.c - matrix product of DI_ARITH_Q8 on AVX2 with AVX-VNNI.
 */

#include "matmul_q8_256.h"

void
di_q8_matmul_avxvnni(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                     size_t p0, size_t p1, size_t r0, size_t r1,
                     void *scratch)
{
    matmul(a, part, p0, p1, r0, r1, scratch);
}

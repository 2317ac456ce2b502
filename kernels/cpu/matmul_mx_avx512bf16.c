/*
 * matmul_mx_avx512bf16.c - matrix product of DI_ARITH_MX with micro formats on
 * AVX-512 with BF16.  Float weights' is that of AVX-512 alone.
 */

#include "matmul_mx_512.h"

void
di_mx_micro_avx512bf16(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                       size_t p0, size_t p1, size_t r0, size_t r1,
                       void *scratch)
{
    matmul_micro(a, part, p0, p1, r0, r1, scratch);
}

/*
 * amx.h - inside of the AMX kernels of DI_ARITH_BF16.
 *
 * An activation row of k values is
 *
 *     bfloat16 x[k]
 *     bfloat16 sum[k / 32][4]      each block's sum of x as {h, l, h, l}:
 *                                  h = bfloat16(sum), l = bfloat16(sum - h);
 *                                  zeros up to a multiple of 64 bytes
 *
 * so that 8 blocks' sums are a row of a tile's first operand, against minima
 * laid out as {h, h, l, l}.
 */

#ifndef DI_CPU_AMX_H
#define DI_CPU_AMX_H

#include "cpu.h"

#include <immintrin.h>
#include <string.h>

#define DI_AMX_INLINE static inline __attribute__((always_inline))

typedef struct {
    uint8_t  palette;            /* 1                                       */
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} di_amx_tiles_t;

_Static_assert(sizeof(di_amx_tiles_t) == 64, "LDTILECFG reads 64 bytes");

DI_AMX_INLINE void
di_amx_tile(di_amx_tiles_t *t, int i, size_t rows, size_t row_bytes)
{
    t->rows[i] = (uint8_t) rows;
    t->row_bytes[i] = (uint16_t) row_bytes;
}

/* The compilers' intrinsic claims to read a pointer's worth of memory only,
 * so that they drop the stores before it. */
DI_AMX_INLINE void
di_amx_configure(di_amx_tiles_t *t)
{
    t->palette = 1;
    __asm__ volatile("ldtilecfg %0" : : "m"(*t));
}

/* One barrier keeps plain stores before tile loads of the same memory: the
 * intrinsics don't say that they read or write it. */
DI_AMX_INLINE void
di_amx_fence(void)
{
    __asm__ volatile("" : : : "memory");
}

size_t di_amx_act_bytes(size_t k);
DI_AMX_INLINE size_t
di_amx_sum_bytes(size_t k)
{
    return (k / 32 * 8 + 63) & ~(size_t) 63;
}

void di_amx_matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                   size_t p0, size_t p1, size_t r0, size_t r1,
                   void *scratch);
size_t di_amx_panel_bytes(di_wtype_t type, size_t k);
void di_amx_pack(const di_cpu_wpart_t *part, size_t k, size_t p);

#endif

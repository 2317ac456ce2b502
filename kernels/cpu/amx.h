/*
 * amx.h - inside of the AMX kernels.
 *
 * In DI_ARITH_BF16 an activation row of k values is
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
#include "vec512.h"

#include <string.h>

/* Bytes of a thread's scratch that any kernel may use; what matmul keeps from
 * call to call lies behind them. */
#define DI_AMX_SCRATCH_FREE (2u << 20)

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
 * so that they would drop the stores before it. */
DI_AMX_INLINE void
di_amx_configure(di_amx_tiles_t *t)
{
    t->palette = 1;
    __asm__ volatile("" : : "m"(*t));
    _tile_loadconfig(t);
}

/* One barrier keeps plain stores before tile loads of the same memory: the
 * intrinsics don't say that they read or write it. */
DI_AMX_INLINE void
di_amx_fence(void)
{
    __asm__ volatile("" : : : "memory");
}

DI_AMX_INLINE size_t
di_amx_sum_bytes(size_t k)
{
    return (k / 32 * 8 + 63) & ~(size_t) 63;
}

DI_AMX_INLINE size_t
di_amx_act_bytes(size_t k)
{
    return 2 * k + di_amx_sum_bytes(k);
}

/* Block b of an activation row of k values: its values and their sum. */
DI_AMX_INLINE void
di_amx_put_block(uint8_t *row, size_t k, size_t b, __m512 x0, __m512 x1)
{
    __m512i v = (__m512i) _mm512_cvtne2ps_pbh(x1, x0);
    uint16_t *sum = (uint16_t *) (void *) (row + 2 * k + b * 8);
    float total, high;

    _mm512_storeu_si512(row + b * 64, v);
    x0 = _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16));
    x1 = _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16));
    total = di_sum512(_mm512_add_ps(x0, x1));
    sum[0] = sum[2] = di_f32_to_bf16(total);
    high = di_bf16_to_f32(sum[0]);
    sum[1] = sum[3] = di_f32_to_bf16(total - high);
}

/* The zeros behind the sums. */
DI_AMX_INLINE void
di_amx_pad_sums(uint8_t *row, size_t k)
{
    memset(row + 2 * k + k / 32 * 8, 0, di_amx_sum_bytes(k) - k / 32 * 8);
}

void di_amx_norm(const di_cpu_norm_t *a, size_t r0, size_t r1);
void di_amx_silu_mul(const di_cpu_silu_t *a, size_t r0, size_t r1);
void di_amx_convert(const di_cpu_convert_t *a, size_t r0, size_t r1);
void di_amx_rope_store(const di_cpu_rope_t *a, const int32_t *table,
                       size_t r0, size_t r1);
void di_amx_kv_copy(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,
                    uint32_t n_tokens);
void di_amx_attention(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
                      void *scratch);
size_t di_amx_partial_floats(size_t n_queries, size_t head_dim);
void di_amx_merge(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
                  void *scratch);

void di_amx_matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                   size_t p0, size_t p1, size_t r0, size_t r1,
                   void *scratch);
size_t di_amx_panel_bytes(di_wtype_t type, size_t k);
void di_amx_pack(const di_cpu_wpart_t *part, size_t k, size_t p);

#endif

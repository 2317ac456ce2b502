/*
 * mx.h - inside of the vector kernels of DI_ARITH_MX.
 *
 * An activation row of k values is
 *
 *     bfloat16 m[k]     the values as E4M3 with a scale for each 32, which is
 *                       exact in bfloat16: for weights in micro formats
 *     bfloat16 high[k]  bfloat16(x), and
 *     bfloat16 low[k]   bfloat16(x - high): for float weights; their sum is
 *                       exact in float32
 *
 * Float weights are packed as those of q8.h.
 */

#ifndef DI_CPU_MX_H
#define DI_CPU_MX_H

#include "cpu.h"

static inline size_t
di_mx_high_at(size_t k)
{
    return 2 * k;
}

static inline size_t
di_mx_low_at(size_t k)
{
    return 4 * k;
}

static inline size_t
di_mx_act_bytes(size_t k)
{
    return 6 * k;                /* k is a multiple of 32                   */
}

/* Entry points of an instruction set; see di_cpu_kern_t. */
#define DI_MX_ROWS(isa)                                                     \
void di_mx_norm_##isa(const di_cpu_norm_t *a, size_t r0, size_t r1);        \
void di_mx_silu_mul_##isa(const di_cpu_silu_t *a, size_t r0, size_t r1);    \
void di_mx_convert_##isa(const di_cpu_convert_t *a, size_t r0, size_t r1);  \
void di_mx_rope_store_##isa(const di_cpu_rope_t *a, const int32_t *table,   \
                            size_t r0, size_t r1);                          \
void di_mx_attention_##isa(const di_cpu_attn_t *a,                          \
                           const di_cpu_attn_item_t *item, void *scratch);  \
void di_mx_kv_copy_##isa(const di_cpu_kv_t *kv, uint8_t *dst,               \
                         const uint8_t *src, uint32_t n_tokens);

#define DI_MX_MATMUL(name)                                                  \
void di_mx_##name(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,     \
                  size_t p0, size_t p1, size_t r0, size_t r1,               \
                  void *scratch);

DI_MX_ROWS(avx2)
DI_MX_ROWS(avx512)
DI_MX_MATMUL(matmul_avx2)
DI_MX_MATMUL(matmul_avx512)
DI_MX_MATMUL(micro_avx2)
DI_MX_MATMUL(micro_avx512)
DI_MX_MATMUL(micro_avx512bf16)
DI_MX_MATMUL(micro_amx)

#endif

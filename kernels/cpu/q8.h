/*
 * q8.h - inside of the vector kernels of DI_ARITH_Q8: how panels are packed.
 *
 * Weights keep the width that they have in the file: decode is bound by
 * reading them.  A panel of 16 output columns is a stream of blocks of 32
 * input values, each with everything that it needs:
 *
 *     codes   256 bytes (8-bit codes: 512), 4 bits of 32 x 16 weights
 *     high    64 bytes for each bit above the fourth (5- and 6-bit codes)
 *     scale   16 (32 if they are per 16 values) float16 or float32
 *     min     16 float16 or float32, or absent
 *
 * Four consecutive input values of 16 columns are a group, 64 bytes once
 * expanded: byte 4 * column + value % 4.  That is the operand of a product of
 * unsigned by signed bytes that adds fours (VPDPBUSD, or VPMADDUBSW and
 * VPMADDWD), against four activations broadcast.  Groups 2i and 2i + 1 are
 * the low and high nibbles of the same 64 bytes.  Bit g of a byte of the
 * fifth bits belongs to group g; bits 2i and 2i + 1 of byte set s of the
 * fifth and sixth to group 4s + i.
 *
 * Codes are stored unsigned: those of symmetric formats with 2^(bits - 1)
 * added, which costs nothing to undo, since a block's integer sum may start
 * at minus that times the sum of the activations.
 *
 * Float weights are plain: 16 columns of input value 0, of 1, ...
 */

#ifndef DI_CPU_Q8_H
#define DI_CPU_Q8_H

#include "cpu.h"

#define DI_Q8_GROUPS (DI_WBLOCK / 4)

typedef struct {
    uint8_t  bits;               /* of a code: 4, 5, 6, 8; 0: plain values  */
    uint8_t  bias;               /* added to codes, 0: they are unsigned    */
    bool     f16;                /* scales and minima are float16           */
    bool     half;               /* a scale per 16 values                   */
    uint16_t scale_at;           /* in a block                              */
    uint16_t min_at;             /* 0: none                                 */
    uint16_t block_bytes;
} di_q8_format_t;

di_q8_format_t di_q8_format(di_wtype_t type);
size_t di_q8_panel_bytes(di_wtype_t type, size_t k);
void di_q8_pack(const di_cpu_wpart_t *part, size_t k, size_t p);

/* An activation row's bytes, and where in it what lies behind the values
 * begins; see ref.h. */
static inline size_t
di_q8_scales_at(size_t k)
{
    return k;
}

static inline size_t
di_q8_sums_at(size_t k)
{
    return k + k / DI_WBLOCK * 4;
}

static inline size_t
di_q8_halves_at(size_t k)
{
    return k + k / DI_WBLOCK * 8;
}

static inline size_t
di_q8_act_bytes(size_t k)
{
    return (k + k / DI_WBLOCK * 12 + 63) & ~(size_t) 63;
}

/* Entry points of an instruction set; see di_cpu_kern_t. */
#define DI_Q8_ATTENTION(isa)                                                \
void di_q8_attention_##isa(const di_cpu_attn_t *a,                          \
                           const di_cpu_attn_item_t *item, void *scratch);

#define DI_Q8_ROWS(isa)                                                     \
void di_q8_norm_##isa(const di_cpu_norm_t *a, size_t r0, size_t r1);        \
void di_q8_silu_mul_##isa(const di_cpu_silu_t *a, size_t r0, size_t r1);    \
void di_q8_convert_##isa(const di_cpu_convert_t *a, size_t r0, size_t r1);  \
void di_q8_rope_store_##isa(const di_cpu_rope_t *a, const int32_t *table,   \
                            size_t r0, size_t r1);                          \
void di_q8_kv_copy_##isa(const di_cpu_kv_t *kv, uint8_t *dst,               \
                         const uint8_t *src, uint32_t n_tokens);

#define DI_Q8_MATMUL(isa)                                                   \
void di_q8_matmul_##isa(const di_cpu_matmul_t *a,                           \
                        const di_cpu_wpart_t *part, size_t p0, size_t p1,   \
                        size_t r0, size_t r1, void *scratch);

DI_Q8_ROWS(avx2)
DI_Q8_ROWS(avx512)
DI_Q8_ATTENTION(avx2)
DI_Q8_ATTENTION(avx512)
DI_Q8_ATTENTION(avx512bf16)
DI_Q8_MATMUL(avx2)
DI_Q8_MATMUL(avxvnni)
DI_Q8_MATMUL(avx512)

#endif

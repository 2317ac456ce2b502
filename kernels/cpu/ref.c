/*
 * ref.c - the reference kernels' tables, one for each arithmetic.
 *
 * They run on every CPU, read weights as the file has them, and are what the
 * unit test holds all others to.
 */

#include "ref.h"

static bool
usable(void)
{
    return true;
}

static size_t
panel_bytes(di_wtype_t type, size_t k)
{
    (void) type;
    (void) k;
    return 0;
}

#define REF_KERN(arith_, lower, value_bytes, micro)                         \
                                                                            \
static size_t                                                               \
act_bytes_##lower(size_t k)                                                 \
{                                                                           \
    return di_ref_act_bytes(arith_, k);                                     \
}                                                                           \
                                                                            \
static void                                                                 \
norm_##lower(const di_cpu_norm_t *a, size_t r0, size_t r1)                  \
{                                                                           \
    di_ref_norm(arith_, a, r0, r1);                                         \
}                                                                           \
                                                                            \
static void                                                                 \
silu_mul_##lower(const di_cpu_silu_t *a, size_t r0, size_t r1)              \
{                                                                           \
    di_ref_silu_mul(arith_, a, r0, r1);                                     \
}                                                                           \
                                                                            \
static void                                                                 \
convert_##lower(const di_cpu_convert_t *a, size_t r0, size_t r1)            \
{                                                                           \
    di_ref_convert(arith_, a, r0, r1);                                      \
}                                                                           \
                                                                            \
static void                                                                 \
rope_store_##lower(const di_cpu_rope_t *a, const int32_t *table, size_t r0, \
                   size_t r1)                                               \
{                                                                           \
    di_ref_rope_store(arith_, a, table, r0, r1);                            \
}                                                                           \
                                                                            \
static void                                                                 \
attention_##lower(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,   \
                  void *scratch)                                            \
{                                                                           \
    (void) scratch;                                                         \
    di_ref_attention(arith_, a, item);                                      \
}                                                                           \
                                                                            \
static void                                                                 \
kv_copy_##lower(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,    \
                uint32_t n_tokens)                                          \
{                                                                           \
    di_ref_kv_copy(arith_, kv, dst, src, n_tokens);                         \
}                                                                           \
                                                                            \
const di_cpu_kern_t di_cpu_##lower##_ref = {                                \
    .name = #lower "-ref",                                                  \
    .ops = "ref",                                                           \
    .arith = arith_,                                                        \
    .kv_value_bytes = value_bytes,                                          \
    .vec = &di_cpu_vec_ref,                                                 \
    .usable = usable,                                                       \
    .act_bytes = act_bytes_##lower,                                         \
    .panel_bytes = panel_bytes,                                             \
    .norm = norm_##lower,                                                   \
    .silu_mul = silu_mul_##lower,                                           \
    .convert = convert_##lower,                                             \
    .rope_store = rope_store_##lower,                                       \
    .matmul = di_ref_matmul_##lower,                                        \
    .matmul_micro = micro,                                                  \
    .attention = attention_##lower,                                         \
    .kv_copy = kv_copy_##lower,                                             \
};

REF_KERN(DI_ARITH_F32, f32, 4, di_ref_matmul_f32)
REF_KERN(DI_ARITH_BF16, bf16, 2, NULL)
REF_KERN(DI_ARITH_Q8, q8, 2, NULL)
REF_KERN(DI_ARITH_MX, mx, 2, di_ref_matmul_mx)

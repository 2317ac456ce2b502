/*
 * q8.c - tables of the kernels of DI_ARITH_Q8 and DI_ARITH_MX.
 *
 * Compiled without vector flags: what asks whether this CPU has an
 * instruction set must not use it.
 */

#include "mx.h"
#include "q8.h"

#include <cpuid.h>

/* FMA and F16C came with or before AVX2, but are bits of their own. */
static bool
usable_avx2(void)
{
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
           && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* AVX-VNNI has registers of 256 bits and no need of AVX-512. */
static bool
usable_avxvnni(void)
{
    unsigned a, b, c, d;

    return usable_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d)
           && (a & 1u << 4);
}

static bool
usable_avx512(void)
{
    return __builtin_cpu_supports("avx512f")
           && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq")
           && __builtin_cpu_supports("avx512vl")
           && __builtin_cpu_supports("avx512vnni")
           && __builtin_cpu_supports("avx512vbmi");
}

static bool
usable_avx512bf16(void)
{
    return usable_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool
usable_amx(void)
{
    return usable_avx512bf16() && di_amx_usable();
}

static size_t
act_bytes_q8(size_t k)
{
    return di_q8_act_bytes(k);
}

static size_t
act_bytes_mx(size_t k)
{
    return di_mx_act_bytes(k);
}

/* An instruction set, with the product, the rows and the attention of ones
 * that it includes. */
#define Q8_KERN(isa, product, rows, attn)                                   \
                                                                            \
const di_cpu_kern_t di_cpu_q8_##isa = {                                     \
    .name = "q8-" #isa,                                                     \
    .ops = #isa,                                                            \
    .arith = DI_ARITH_Q8,                                                   \
    .kv_value_bytes = 2,                                                    \
    .vec = &di_cpu_vec_##rows,                                              \
    .usable = usable_##isa,                                                 \
    .act_bytes = act_bytes_q8,                                              \
    .panel_bytes = di_q8_panel_bytes,                                       \
    .pack = di_q8_pack,                                                     \
    .norm = di_q8_norm_##rows,                                              \
    .silu_mul = di_q8_silu_mul_##rows,                                      \
    .convert = di_q8_convert_##rows,                                        \
    .rope_store = di_q8_rope_store_##rows,                                  \
    .matmul = di_q8_matmul_##product,                                       \
    .attention = di_q8_attention_##attn,                                    \
    .kv_copy = di_q8_kv_copy_##rows,                                        \
};

Q8_KERN(avx512bf16, avx512, avx512, avx512bf16)
Q8_KERN(avx512, avx512, avx512, avx512)
Q8_KERN(avxvnni, avxvnni, avx2, avx2)
Q8_KERN(avx2, avx2, avx2, avx2)

/* An instruction set's products with micro formats, and all else. */
#define MX_KERN(isa, rest)                                                  \
                                                                            \
const di_cpu_kern_t di_cpu_mx_##isa = {                                     \
    .name = "mx-" #isa,                                                     \
    .ops = #isa,                                                            \
    .arith = DI_ARITH_MX,                                                   \
    .kv_value_bytes = 2,                                                    \
    .vec = &di_cpu_vec_##rest,                                              \
    .usable = usable_##isa,                                                 \
    .act_bytes = act_bytes_mx,                                              \
    .panel_bytes = di_q8_panel_bytes,                                       \
    .pack = di_q8_pack,                                                     \
    .norm = di_mx_norm_##rest,                                              \
    .silu_mul = di_mx_silu_mul_##rest,                                      \
    .convert = di_mx_convert_##rest,                                        \
    .rope_store = di_mx_rope_store_##rest,                                  \
    .matmul = di_mx_matmul_##rest,                                          \
    .matmul_micro = di_mx_micro_##isa,                                      \
    .attention = di_mx_attention_##rest,                                    \
    .kv_copy = di_mx_kv_copy_##rest,                                        \
};

MX_KERN(amx, avx512)
MX_KERN(avx512bf16, avx512)
MX_KERN(avx512, avx512)
MX_KERN(avx2, avx2)

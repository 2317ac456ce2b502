/*
 * q8.c - tables of the kernels of DI_ARITH_Q8.
 *
 * Compiled without vector flags: what asks whether this CPU has an
 * instruction set must not use it.
 */

#include "q8.h"

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

static size_t
act_bytes(size_t k)
{
    return di_q8_act_bytes(k);
}

#define Q8_KERN(isa)                                                        \
                                                                            \
const di_cpu_kern_t di_cpu_q8_##isa = {                                     \
    .name = "q8-" #isa,                                                     \
    .ops = #isa,                                                            \
    .arith = DI_ARITH_Q8,                                                   \
    .kv_value_bytes = 2,                                                    \
    .usable = usable_##isa,                                                 \
    .act_bytes = act_bytes,                                                 \
    .panel_bytes = di_q8_panel_bytes,                                       \
    .pack = di_q8_pack,                                                     \
    .norm = di_q8_norm_##isa,                                               \
    .silu_mul = di_q8_silu_mul_##isa,                                       \
    .rope_store = di_q8_rope_store_##isa,                                   \
    .matmul = di_q8_matmul_##isa,                                           \
    .attention = di_q8_attention_##isa,                                     \
    .kv_copy = di_q8_kv_copy_##isa,                                         \
};

Q8_KERN(avx512)

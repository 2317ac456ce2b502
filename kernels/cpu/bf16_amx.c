/*
 * bf16_amx.c - table of the AMX kernels, and leave to use AMX.
 *
 * The operating system hands the tile registers to a process that asks for
 * them; before that their first use kills it.
 */

#include "amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18

bool
di_amx_usable(void)
{
    unsigned a, b, c, d;

    if (!__builtin_cpu_supports("avx512f")
        || !__builtin_cpu_supports("avx512bw")
        || !__builtin_cpu_supports("avx512dq")
        || !__builtin_cpu_supports("avx512vl")
        || !__builtin_cpu_supports("avx512vbmi")
        || !__builtin_cpu_supports("avx512bf16")
        || !__builtin_cpu_supports("bmi2")
        || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if ((d & (1u << 22)) == 0 || (d & (1u << 24)) == 0)
        return false;                            /* AMX-BF16, AMX-TILE      */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
           == 0;
}

static size_t
act_bytes(size_t k)
{
    return di_amx_act_bytes(k);
}

const di_cpu_kern_t di_cpu_bf16_amx = {
    .name = "bf16-amx",
    .ops = "amx",
    .arith = DI_ARITH_BF16,
    .kv_value_bytes = 2,
    .vec = &di_cpu_vec_avx512,
    .usable = di_amx_usable,
    .act_bytes = act_bytes,
    .panel_bytes = di_amx_panel_bytes,
    .pack = di_amx_pack,
    .norm = di_amx_norm,
    .silu_mul = di_amx_silu_mul,
    .convert = di_amx_convert,
    .rope_store = di_amx_rope_store,
    .matmul = di_amx_matmul,
    .attention = di_amx_attention,
    .partial_floats = di_amx_partial_floats,
    .merge = di_amx_merge,
    .kv_copy = di_amx_kv_copy,
};

/*
 * bf16_amx.c - table of the AMX kernels, and leave to use AMX.
 *
 * The operating system hands the tile registers to a process that asks for
 * them; before that their first use kills it.
 */

#include "amx.h"
#include "ref.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18

static bool
usable(void)
{
    unsigned a, b, c, d;

    if (!__builtin_cpu_supports("avx512f")
        || !__builtin_cpu_supports("avx512bw")
        || !__builtin_cpu_supports("avx512dq")
        || !__builtin_cpu_supports("avx512vl")
        || !__builtin_cpu_supports("avx512bf16")
        || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if ((d & (1u << 22)) == 0 || (d & (1u << 24)) == 0)
        return false;                            /* AMX-BF16, AMX-TILE      */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
           == 0;
}

static void
norm(const di_cpu_norm_t *a, size_t r0, size_t r1)
{
    di_ref_norm(DI_ARITH_BF16, a, r0, r1);
}

static void
silu_mul(const di_cpu_silu_t *a, size_t r0, size_t r1)
{
    di_ref_silu_mul(DI_ARITH_BF16, a, r0, r1);
}

static void
rope_store(const di_cpu_rope_t *a, const int32_t *table, size_t r0,
           size_t r1)
{
    di_ref_rope_store(DI_ARITH_BF16, a, table, r0, r1);
}

static void
attention(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
          void *scratch)
{
    (void) scratch;
    di_ref_attention(DI_ARITH_BF16, a, item);
}

static void
kv_copy(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,
        uint32_t n_tokens)
{
    di_ref_kv_copy(DI_ARITH_BF16, kv, dst, src, n_tokens);
}

size_t
di_amx_act_bytes(size_t k)
{
    return (2 * k + 63) / 64 * 64 + di_amx_sum_bytes(k);
}

const di_cpu_kern_t di_cpu_bf16_amx = {
    .name = "bf16-amx",
    .ops = "amx",
    .arith = DI_ARITH_BF16,
    .kv_value_bytes = 2,
    .usable = usable,
    .act_bytes = di_amx_act_bytes,
    .panel_bytes = di_amx_panel_bytes,
    .pack = di_amx_pack,
    .norm = norm,
    .silu_mul = silu_mul,
    .rope_store = rope_store,
    .matmul = di_amx_matmul,
    .attention = attention,
    .kv_copy = kv_copy,
};

/*
 * f32_avx512.c - kernels of DI_ARITH_F32 on AVX-512: f32_kern.h with vectors
 * of 16 floats.
 */

#include "cpu.h"
#include "vec512.h"

#define W      16
#define ROWS   6
#define PANELS 4

typedef __m512 v_t;

#define v_load(p)       _mm512_loadu_ps(p)
#define v_store(p, v)   _mm512_storeu_ps(p, v)
#define v_set1(f)       _mm512_set1_ps(f)
#define v_add(a, b)     _mm512_add_ps(a, b)
#define v_sub(a, b)     _mm512_sub_ps(a, b)
#define v_mul(a, b)     _mm512_mul_ps(a, b)
#define v_div(a, b)     _mm512_div_ps(a, b)
#define v_fma(a, b, c)  _mm512_fmadd_ps(a, b, c)
#define v_max(a, b)     _mm512_max_ps(a, b)
#define v_min(a, b)     _mm512_min_ps(a, b)
#define v_round(a)      _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT   \
                                                | _MM_FROUND_NO_EXC)
#define v_scale(p, n)   _mm512_scalef_ps(p, n)
#define v_sum(a)        di_sum512(a)
#define v_maximum(a)    _mm512_reduce_max_ps(a)

static bool
usable(void)
{
    return __builtin_cpu_supports("avx512f")
           && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq")
           && __builtin_cpu_supports("avx512vl")
           && __builtin_cpu_supports("avx512vnni")
           && __builtin_cpu_supports("avx512vbmi");
}

#define KERN        di_cpu_f32_avx512
#define KERN_NAME   "f32-avx512"
#define KERN_OPS    "avx512"
#define KERN_VEC    di_cpu_vec_avx512
#define KERN_USABLE usable

#include "f32_kern.h"

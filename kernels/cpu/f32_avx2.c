/*
 * f32_avx2.c - kernels of DI_ARITH_F32 on AVX2 and FMA: f32_kern.h with
 * vectors of 8 floats.
 */

#include <immintrin.h>

#include "cpu.h"

#define W      8
#define ROWS   4
#define PANELS 1

typedef __m256 v_t;

#define v_load(p)       _mm256_loadu_ps(p)
#define v_store(p, v)   _mm256_storeu_ps(p, v)
#define v_set1(f)       _mm256_set1_ps(f)
#define v_add(a, b)     _mm256_add_ps(a, b)
#define v_sub(a, b)     _mm256_sub_ps(a, b)
#define v_mul(a, b)     _mm256_mul_ps(a, b)
#define v_div(a, b)     _mm256_div_ps(a, b)
#define v_fma(a, b, c)  _mm256_fmadd_ps(a, b, c)
#define v_max(a, b)     _mm256_max_ps(a, b)
#define v_min(a, b)     _mm256_min_ps(a, b)
#define v_round(a)      _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT        \
                                           | _MM_FROUND_NO_EXC)

/* p * 2^n for |n| <= 185: by halves, since 2^n itself need not be normal. */
static inline __m256
v_scale(__m256 p, __m256 n)
{
    __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1);
    const __m256i bias = _mm256_set1_epi32(127);

    e = _mm256_sub_epi32(e, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    e = _mm256_slli_epi32(_mm256_add_epi32(e, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)),
                         _mm256_castsi256_ps(e));
}

static inline float
v_sum(__m256 v)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(v),
                          _mm256_extractf128_ps(v, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

static inline float
v_maximum(__m256 v)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(v),
                          _mm256_extractf128_ps(v, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    b = _mm_max_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

static bool
usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#define KERN        di_cpu_f32_avx2
#define KERN_NAME   "f32-avx2"
#define KERN_OPS    "avx2"
#define KERN_VEC    di_cpu_vec_avx2
#define KERN_USABLE usable

#include "f32_kern.h"

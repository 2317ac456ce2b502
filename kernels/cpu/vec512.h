/*
 * vec512.h - elementary functions on 16 floats, for the AVX-512 kernels.
 *
 * Errors (against double, whole range): di_exp512 and di_exp2_512 3 ulp,
 * di_exp2_coarse512 7.5e-5 relative (for what is rounded to bfloat16 next).
 */

#ifndef DI_CPU_VEC512_H
#define DI_CPU_VEC512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DI_VEC_INLINE static inline __attribute__((always_inline))
#define DI_NEAREST512 (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Lanes added as a tree: halves, quarters, ...; the order is part of the
 * results' bits. */
DI_VEC_INLINE float
di_sum512(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v),
                             _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a),
                          _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

/* 2^f for |f| <= 1/2 by a polynomial of degree 5 (minimax, 7.5e-8). */
DI_VEC_INLINE __m512
di_exp2_part512(__m512 f)
{
    __m512 p = _mm512_set1_ps(1.327647217e-3f);

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.675541331e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550713273e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2402211972f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931469671f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return p;
}

/* e^x: 2^n * 2^f. */
DI_VEC_INLINE __m512
di_exp512(__m512 x)
{
    const __m512 log2e = _mm512_set1_ps(0x1.715476p+0f);
    const __m512 log2e_low = _mm512_set1_ps(0x1.4ae0cp-26f);
    __m512 n, f, p;

    n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), DI_NEAREST512);
    f = _mm512_fmsub_ps(x, log2e, n);
    f = _mm512_fmadd_ps(x, log2e_low, f);
    p = di_exp2_part512(f);
    /* Beyond the range of float x * log2e is no longer a small number, and
     * f may be anything: the limits are those of 2^n alone. */
    p = _mm512_max_ps(_mm512_min_ps(p, _mm512_set1_ps(2)),
                      _mm512_set1_ps(0.5f));
    return _mm512_scalef_ps(p, n);
}

/* 2^x, likewise; -inf gives 0. */
DI_VEC_INLINE __m512
di_exp2_512(__m512 x)
{
    return _mm512_scalef_ps(
        di_exp2_part512(_mm512_reduce_ps(x, DI_NEAREST512)),
        _mm512_roundscale_ps(x, DI_NEAREST512));
}

/* 2^x by a polynomial of degree 3 on the fraction; -inf gives 0. */
DI_VEC_INLINE __m512
di_exp2_coarse512(__m512 x)
{
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    __m512 p;

    p = _mm512_set1_ps(0.0780245227f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2260671554f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6958335405f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999252186f));
    return _mm512_scalef_ps(p, x);
}

/* -- small floats ---------------------------------------------------------- */

/* The 128 magnitudes of E4M3 as bfloat16, which is exact. */
typedef struct {
    __m512i low[2];              /* their lower bytes                       */
    __m512i high[2];             /* and upper ones                          */
} di_e4m3_t;

/* A normal one is 0x3c00 and 16 times its code.  The first 8 are subnormal,
 * and the last is not a number. */
DI_VEC_INLINE di_e4m3_t
di_e4m3_tables(void)
{
    const __m512i codes = _mm512_set_epi64(
        0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928,
        0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
        0x0f0e0d0c0b0a0908, 0x0706050403020100);
    const __m512i low = _mm512_and_si512(_mm512_slli_epi16(codes, 4),
                                         _mm512_set1_epi8((char) 0xf0));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(codes, 4),
                                          _mm512_set1_epi8(0x0f));

    return (di_e4m3_t) {
        .low[0] = _mm512_mask_set1_epi64(low, 1, 0x60402000c0800000),
        .low[1] = _mm512_mask_set1_epi8(low, 1ull << 63, (char) 0xc0),
        .high[0] = _mm512_mask_set1_epi64(
            _mm512_add_epi8(high, _mm512_set1_epi8(0x3c)), 1,
            0x3c3c3c3c3b3b3b00),
        .high[1] = _mm512_mask_set1_epi8(
            _mm512_add_epi8(high, _mm512_set1_epi8(0x40)), 1ull << 63, 0x7f),
    };
}

/* Bytes of E4M3 to the two bytes of bfloat16. */
DI_VEC_INLINE void
di_e4m3_bytes(const di_e4m3_t *t, __m512i x, __m512i *low, __m512i *high)
{
    __m512i sign = _mm512_and_si512(x, _mm512_set1_epi8((char) 0x80));

    *low = _mm512_permutex2var_epi8(t->low[0], x, t->low[1]);
    *high = _mm512_or_si512(sign, _mm512_permutex2var_epi8(t->high[0], x,
                                                           t->high[1]));
}

/* 16 x 16 dwords, turned. */
DI_VEC_INLINE void
di_transpose16(__m512i *v)
{
    __m512i t[16];

#pragma GCC unroll 8
    for (size_t i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* v[4 g + c]: of rows 4 g to 4 g + 3, columns c, 4 + c, 8 + c, 12 + c. */
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(v[c], v[c + 4], 0x88);
        t[c + 4] = _mm512_shuffle_i32x4(v[c], v[c + 4], 0xdd);
        t[c + 8] = _mm512_shuffle_i32x4(v[c + 8], v[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_i32x4(v[c + 8], v[c + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        v[c] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0x88);
        v[c + 8] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0xdd);
        v[c + 4] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0x88);
        v[c + 12] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0xdd);
    }
}

#endif

/*
 * vec16.h - sixteen floats, as one register of AVX-512 or two of AVX2.
 *
 * The row-wise operators and attention are written once with these
 * (rows16.h, attention16.h) and compiled for both: the same operations on the
 * same lanes in the same order, so that both give the same bits.
 *
 * Errors (against double): di_exp16 and di_exp2_16 3 ulp, results below
 * 2^-125 are 0; di_sincos16 2e-7 absolute for angles up to 2^20.
 */

#ifndef DI_CPU_VEC16_H
#define DI_CPU_VEC16_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DI_INLINE16 static inline __attribute__((always_inline))
#define DI_ROUND16  (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* NAME(a, b): one instruction for each lane of the operands. */
#ifdef __AVX512F__

typedef __m512  di_v16_t;
typedef __m512i di_i16_t;

#define DI_V16_QUERIES 8         /* whose sums attention keeps in registers */
#define DI_AGAIN16(p)            /* registers for all that was loaded       */

#define DI_OP1(name, type, of, intrinsic)                                   \
DI_INLINE16 type                                                            \
name(of a)                                                                  \
{                                                                           \
    return _mm512_##intrinsic(a);                                           \
}

#define DI_OP2(name, type, intrinsic)                                       \
DI_INLINE16 type                                                            \
name(type a, type b)                                                        \
{                                                                           \
    return _mm512_##intrinsic(a, b);                                        \
}

#define DI_OP3(name, intrinsic)                                             \
DI_INLINE16 di_v16_t                                                        \
name(di_v16_t a, di_v16_t b, di_v16_t c)                                    \
{                                                                           \
    return _mm512_##intrinsic(a, b, c);                                     \
}

#else

typedef struct { __m256 a, b; }  di_v16_t;
typedef struct { __m256i a, b; } di_i16_t;

#define DI_V16_QUERIES 3
/* What was read from p is read again, rather than kept: a compiler would keep
 * it and have sums on the stack. */
#define DI_AGAIN16(p)  __asm__ volatile("" : "+r" (p) : : "memory")

#define DI_OP1(name, type, of, intrinsic)                                   \
DI_INLINE16 type                                                            \
name(of a)                                                                  \
{                                                                           \
    return (type) { _mm256_##intrinsic(a.a), _mm256_##intrinsic(a.b) };     \
}

#define DI_OP2(name, type, intrinsic)                                       \
DI_INLINE16 type                                                            \
name(type a, type b)                                                        \
{                                                                           \
    return (type) { _mm256_##intrinsic(a.a, b.a),                           \
                    _mm256_##intrinsic(a.b, b.b) };                         \
}

#define DI_OP3(name, intrinsic)                                             \
DI_INLINE16 di_v16_t                                                        \
name(di_v16_t a, di_v16_t b, di_v16_t c)                                    \
{                                                                           \
    return (di_v16_t) { _mm256_##intrinsic(a.a, b.a, c.a),                  \
                        _mm256_##intrinsic(a.b, b.b, c.b) };                \
}

#endif

DI_OP2(di_add16, di_v16_t, add_ps)
DI_OP2(di_sub16, di_v16_t, sub_ps)
DI_OP2(di_mul16, di_v16_t, mul_ps)
DI_OP2(di_div16, di_v16_t, div_ps)
DI_OP2(di_max16, di_v16_t, max_ps)           /* b where one is not a number */
DI_OP2(di_min16, di_v16_t, min_ps)
DI_OP3(di_fma16, fmadd_ps)                   /* a * b + c                   */
DI_OP3(di_fms16, fmsub_ps)                   /* a * b - c                   */
DI_OP3(di_fnma16, fnmadd_ps)                 /* c - a * b                   */
DI_OP1(di_to_int16, di_i16_t, di_v16_t, cvtps_epi32)     /* nearest even    */
DI_OP1(di_from_int16, di_v16_t, di_i16_t, cvtepi32_ps)
DI_OP2(di_iadd16, di_i16_t, add_epi32)
DI_OP2(di_imax16, di_i16_t, max_epi32)

#ifdef __AVX512F__

DI_INLINE16 di_v16_t
di_load16(const float *p)
{
    return _mm512_loadu_ps(p);
}

DI_INLINE16 void
di_store16(float *p, di_v16_t v)
{
    _mm512_storeu_ps(p, v);
}

DI_INLINE16 di_i16_t
di_iload16(const void *p)
{
    return _mm512_loadu_si512(p);
}

DI_INLINE16 void
di_istore16(void *p, di_i16_t v)
{
    _mm512_storeu_si512(p, v);
}

DI_INLINE16 di_v16_t
di_set16(float x)
{
    return _mm512_set1_ps(x);
}

DI_INLINE16 di_i16_t
di_iset16(int32_t x)
{
    return _mm512_set1_epi32(x);
}

/* The lanes' bits as those of the other type. */
DI_INLINE16 di_v16_t
di_as_float16(di_i16_t x)
{
    return _mm512_castsi512_ps(x);
}

DI_INLINE16 di_i16_t
di_as_int16(di_v16_t x)
{
    return _mm512_castps_si512(x);
}

DI_INLINE16 di_i16_t
di_iand16(di_i16_t a, di_i16_t b)
{
    return _mm512_and_si512(a, b);
}

DI_INLINE16 di_i16_t
di_ixor16(di_i16_t a, di_i16_t b)
{
    return _mm512_xor_si512(a, b);
}

DI_INLINE16 di_i16_t
di_shl16(di_i16_t x, const int n)
{
    return _mm512_slli_epi32(x, (unsigned) n);
}

DI_INLINE16 di_i16_t
di_shr16(di_i16_t x, const int n)
{
    return _mm512_srli_epi32(x, (unsigned) n);
}

DI_INLINE16 di_v16_t
di_round16(di_v16_t x)
{
    return _mm512_roundscale_ps(x, DI_ROUND16);
}

/* Neighbours swapped. */
DI_INLINE16 di_v16_t
di_swap16(di_v16_t x)
{
    return _mm512_permute_ps(x, 0xb1);
}

/* v, and 0 in lanes where x < limit. */
DI_INLINE16 di_v16_t
di_zero_below16(di_v16_t v, di_v16_t x, di_v16_t limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}

/* b in lanes where sign is negative, else a. */
DI_INLINE16 di_v16_t
di_choose16(di_v16_t a, di_v16_t b, di_i16_t sign)
{
    return _mm512_mask_mov_ps(a, _mm512_movepi32_mask(sign), b);
}

/* v in lanes below n, else other. */
DI_INLINE16 di_v16_t
di_first16(di_v16_t v, size_t n, di_v16_t other)
{
    return _mm512_mask_mov_ps(other, (__mmask16) ((1u << n) - 1), v);
}

/* The lower and upper eight lanes. */
DI_INLINE16 __m256
di_low16(di_v16_t v)
{
    return _mm512_castps512_ps256(v);
}

DI_INLINE16 __m256
di_high16(di_v16_t v)
{
    return _mm512_extractf32x8_ps(v, 1);
}

/* The lanes' lowest bytes. */
DI_INLINE16 __m128i
di_bytes16(di_i16_t x)
{
    return _mm512_cvtepi32_epi8(x);
}

/* 16 unsigned bytes. */
DI_INLINE16 di_i16_t
di_load_bytes16(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *) p));
}

/* Lanes below 2^16, as words. */
DI_INLINE16 void
di_store_words16(void *p, di_i16_t x)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(x));
}

#else

DI_INLINE16 di_v16_t
di_load16(const float *p)
{
    return (di_v16_t) { _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

DI_INLINE16 void
di_store16(float *p, di_v16_t v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

DI_INLINE16 di_i16_t
di_iload16(const void *p)
{
    const __m256i *from = p;

    return (di_i16_t) { _mm256_loadu_si256(from),
                        _mm256_loadu_si256(from + 1) };
}

DI_INLINE16 void
di_istore16(void *p, di_i16_t v)
{
    _mm256_storeu_si256((__m256i *) p, v.a);
    _mm256_storeu_si256((__m256i *) p + 1, v.b);
}

DI_INLINE16 di_v16_t
di_set16(float x)
{
    return (di_v16_t) { _mm256_set1_ps(x), _mm256_set1_ps(x) };
}

DI_INLINE16 di_i16_t
di_iset16(int32_t x)
{
    return (di_i16_t) { _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}

DI_INLINE16 di_v16_t
di_as_float16(di_i16_t x)
{
    return (di_v16_t) { _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b) };
}

DI_INLINE16 di_i16_t
di_as_int16(di_v16_t x)
{
    return (di_i16_t) { _mm256_castps_si256(x.a), _mm256_castps_si256(x.b) };
}

DI_INLINE16 di_i16_t
di_iand16(di_i16_t a, di_i16_t b)
{
    return (di_i16_t) { _mm256_and_si256(a.a, b.a),
                        _mm256_and_si256(a.b, b.b) };
}

DI_INLINE16 di_i16_t
di_ixor16(di_i16_t a, di_i16_t b)
{
    return (di_i16_t) { _mm256_xor_si256(a.a, b.a),
                        _mm256_xor_si256(a.b, b.b) };
}

DI_INLINE16 di_i16_t
di_shl16(di_i16_t x, const int n)
{
    return (di_i16_t) { _mm256_slli_epi32(x.a, n),
                        _mm256_slli_epi32(x.b, n) };
}

DI_INLINE16 di_i16_t
di_shr16(di_i16_t x, const int n)
{
    return (di_i16_t) { _mm256_srli_epi32(x.a, n),
                        _mm256_srli_epi32(x.b, n) };
}

DI_INLINE16 di_v16_t
di_round16(di_v16_t x)
{
    return (di_v16_t) { _mm256_round_ps(x.a, DI_ROUND16),
                        _mm256_round_ps(x.b, DI_ROUND16) };
}

DI_INLINE16 di_v16_t
di_swap16(di_v16_t x)
{
    return (di_v16_t) { _mm256_permute_ps(x.a, 0xb1),
                        _mm256_permute_ps(x.b, 0xb1) };
}

DI_INLINE16 di_v16_t
di_zero_below16(di_v16_t v, di_v16_t x, di_v16_t limit)
{
    return (di_v16_t) {
        _mm256_and_ps(v.a, _mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ)),
        _mm256_and_ps(v.b, _mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ)),
    };
}

DI_INLINE16 di_v16_t
di_choose16(di_v16_t a, di_v16_t b, di_i16_t sign)
{
    return (di_v16_t) {
        _mm256_blendv_ps(a.a, b.a, _mm256_castsi256_ps(sign.a)),
        _mm256_blendv_ps(a.b, b.b, _mm256_castsi256_ps(sign.b)),
    };
}

DI_INLINE16 di_v16_t
di_first16(di_v16_t v, size_t n, di_v16_t other)
{
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    __m256i last = _mm256_set1_epi32((int) n);

    return di_choose16(other, v, (di_i16_t) {
        _mm256_cmpgt_epi32(last, lane),
        _mm256_cmpgt_epi32(last, _mm256_add_epi32(lane,
                                                  _mm256_set1_epi32(8))),
    });
}

DI_INLINE16 __m256
di_low16(di_v16_t v)
{
    return v.a;
}

DI_INLINE16 __m256
di_high16(di_v16_t v)
{
    return v.b;
}

DI_INLINE16 __m128i
di_bytes16(di_i16_t x)
{
    const __m256i pick = _mm256_set1_epi32(0x0c080400);
    __m256i v = _mm256_unpacklo_epi32(_mm256_shuffle_epi8(x.a, pick),
                                      _mm256_shuffle_epi8(x.b, pick));

    /* a's lanes 0 to 3, b's, ...; then a's lanes 4 to 7, b's, ... */
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(v),
                              _mm256_extracti128_si256(v, 1));
}

DI_INLINE16 di_i16_t
di_load_bytes16(const uint8_t *p)
{
    return (di_i16_t) {
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *) p)),
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *) (p + 8))),
    };
}

DI_INLINE16 void
di_store_words16(void *p, di_i16_t x)
{
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(
        _mm256_packus_epi32(x.a, x.b), 0xd8));
}

#endif

/* The sum of the lanes: halves, quarters, ...; and the largest. */
DI_INLINE16 float
di_sum16(di_v16_t v)
{
    __m256 a = _mm256_add_ps(di_low16(v), di_high16(v));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a),
                          _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

DI_INLINE16 float
di_largest16(di_v16_t v)
{
    __m256 a = _mm256_max_ps(di_low16(v), di_high16(v));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a),
                          _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    b = _mm_max_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

DI_INLINE16 di_v16_t
di_abs16(di_v16_t x)
{
    return di_as_float16(di_iand16(di_as_int16(x), di_iset16(0x7fffffff)));
}

/* The two bfloat16 of each lane. */
DI_INLINE16 di_v16_t
di_lower_bf16(di_i16_t x)
{
    return di_as_float16(di_shl16(x, 16));
}

DI_INLINE16 di_v16_t
di_upper_bf16(di_i16_t x)
{
    return di_as_float16(di_iand16(x, di_iset16((int) 0xffff0000u)));
}

/* To bfloat16 in the lanes' lower halves: nearest even, NaN stays one. */
DI_INLINE16 di_i16_t
di_to_bf16_16(di_v16_t x)
{
    const di_i16_t one = di_iset16(1);
    di_i16_t u = di_as_int16(x), r, nan;

    r = di_iadd16(u, di_iadd16(di_iset16(0x7fff),
                               di_iand16(di_shr16(u, 16), one)));
    /* The magnitude less that of infinity is positive for NaN alone. */
    nan = di_iadd16(di_iset16(0x7f800000),
                    di_ixor16(di_iand16(u, di_iset16(0x7fffffff)),
                              di_iset16(-1)));
    nan = di_iadd16(nan, one);
    u = di_as_int16(di_choose16(di_as_float16(r), di_as_float16(u), nan));
    r = di_iand16(di_shr16(nan, 31), one);       /* 1: not a number         */
    u = di_shr16(u, 16);
    /* A NaN's quiet bit may be all that is left of it. */
    return di_iadd16(u, di_iand16(di_shl16(r, 6),
                                  di_ixor16(u, di_iset16(-1))));
}

/* 2^x for x up to 128: 2^n * 2^f, |f| <= 1/2, the latter by a polynomial of
 * degree 5 (minimax, 7.5e-8). */
DI_INLINE16 di_v16_t
di_scale16(di_v16_t n, di_v16_t f)
{
    di_v16_t p = di_set16(1.327647217e-3f);

    p = di_fma16(p, f, di_set16(9.675541331e-3f));
    p = di_fma16(p, f, di_set16(5.550713273e-2f));
    p = di_fma16(p, f, di_set16(0.2402211972f));
    p = di_fma16(p, f, di_set16(0.6931469671f));
    p = di_fma16(p, f, di_set16(1.0f));
    return di_mul16(p, di_as_float16(di_shl16(
        di_iadd16(di_to_int16(n), di_iset16(127)), 23)));
}

DI_INLINE16 di_v16_t
di_exp2_16(di_v16_t x)
{
    di_v16_t n = di_round16(x);

    return di_zero_below16(di_scale16(n, di_sub16(x, n)), x,
                           di_set16(-125.0f));
}

/* e^x; infinite from 2^127.5 on. */
DI_INLINE16 di_v16_t
di_exp16(di_v16_t x)
{
    di_v16_t n, f;

    x = di_min16(di_set16(88.7f), x);
    n = di_round16(di_mul16(x, di_set16(0x1.715476p+0f)));
    f = di_fms16(x, di_set16(0x1.715476p+0f), n);
    f = di_fma16(x, di_set16(0x1.4ae0cp-26f), f);
    return di_zero_below16(di_scale16(n, f), x, di_set16(-86.5f));
}

/* Quadrant and remainder by three parts of pi / 2, then the usual minimax
 * polynomials on [-pi / 4, pi / 4]. */
DI_INLINE16 void
di_sincos16(di_v16_t x, di_v16_t *sine, di_v16_t *cosine)
{
    const di_i16_t sign = di_iset16((int) 0x80000000u);
    di_v16_t n, r, r2, s, c;
    di_i16_t q, odd, upper;

    n = di_round16(di_mul16(x, di_set16(0x1.45f306p-1f)));
    r = di_fnma16(n, di_set16(0x1.921fb6p+0f), x);
    r = di_fnma16(n, di_set16(-0x1.777a5cp-25f), r);
    r = di_fnma16(n, di_set16(-0x1.ee59dap-50f), r);
    r2 = di_mul16(r, r);

    s = di_set16(-1.9515295891e-4f);
    s = di_fma16(s, r2, di_set16(8.3321608736e-3f));
    s = di_fma16(s, r2, di_set16(-1.6666654611e-1f));
    s = di_fma16(di_mul16(s, r2), r, r);
    c = di_set16(2.443315711809948e-5f);
    c = di_fma16(c, r2, di_set16(-1.388731625493765e-3f));
    c = di_fma16(c, r2, di_set16(4.166664568298827e-2f));
    c = di_fma16(c, r2, di_set16(-0.5f));
    c = di_fma16(c, r2, di_set16(1.0f));

    /* Odd quadrants swap the two; 2 and 3 negate sin, 1 and 2 cos. */
    q = di_to_int16(n);
    odd = di_shl16(q, 31);
    upper = di_iand16(di_shl16(q, 30), sign);
    *sine = di_as_float16(di_ixor16(di_as_int16(di_choose16(s, c, odd)),
                                    upper));
    *cosine = di_as_float16(di_ixor16(di_as_int16(di_choose16(c, s, odd)),
                                      di_ixor16(upper, odd)));
}

#endif

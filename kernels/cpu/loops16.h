/*
 * loops16.h - the loops of vec.h on vec16.h, compiled for each instruction set,
 * with the bits of vec_ref.c.
 *
 * Tiles of several chains hide their latency and make each load serve many
 * products.  Keys are the outer loop of both products: there are hundreds of
 * them, which only the second-level cache holds, and few vectors on the other
 * side.
 */

#ifndef DI_CPU_LOOPS16_H
#define DI_CPU_LOOPS16_H

#include "vec.h"
#include "vec16.h"

#include <math.h>

#ifdef __AVX512F__
#define TILE_A    4              /* vectors of a tile on either side        */
#define TILE_B    4
#define WEIGH_X   4              /* registers of a vector, likewise         */
#else
#define TILE_A    2
#define TILE_B    2
#define WEIGH_X   2
#endif
#define WEIGH_KEYS 32            /* that go on with sums kept in memory     */
#define UNROLL    _Pragma("GCC unroll 4")

/* -- products -------------------------------------------------------------- */

/* Of 4 x 4 vectors the sums of lanes, each in the order of di_sum16(). */
#ifdef __AVX512F__
DI_INLINE16 void
put_sums4(float *out, size_t stride, di_v16_t (*acc)[TILE_B])
{
    __m512 v[4], low, high;

    UNROLL
    for (size_t j = 0; j < 4; j++) {
        low = _mm512_add_ps(
            _mm512_shuffle_f32x4(acc[0][j], acc[1][j], 0x44),
            _mm512_shuffle_f32x4(acc[0][j], acc[1][j], 0xee));
        high = _mm512_add_ps(
            _mm512_shuffle_f32x4(acc[2][j], acc[3][j], 0x44),
            _mm512_shuffle_f32x4(acc[2][j], acc[3][j], 0xee));
        v[j] = _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                             _mm512_shuffle_f32x4(low, high, 0xdd));
    }
    /* Lane i of v[j]: the product with b[j] of a[i], in four parts. */
    low = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]),
                        _mm512_unpackhi_ps(v[0], v[1]));
    high = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]),
                         _mm512_unpackhi_ps(v[2], v[3]));
    low = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44),
                        _mm512_shuffle_ps(low, high, 0xee));
    _mm_storeu_ps(out, _mm512_castps512_ps128(low));
    _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(low, 1));
    _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(low, 2));
    _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(low, 3));
}
#endif

/* `na` by `nb` products. */
DI_INLINE16 void
dots_tile(const float *a, const float *b, size_t k, float *out,
          size_t stride, const size_t na, const size_t nb)
{
    di_v16_t acc[TILE_A][TILE_B], x[TILE_A], y;

    UNROLL
    for (size_t i = 0; i < na; i++)
        UNROLL
        for (size_t j = 0; j < nb; j++)
            acc[i][j] = di_set16(0);
    for (size_t d = 0; d < k; d += 16) {
        UNROLL
        for (size_t i = 0; i < na; i++)
            x[i] = di_load16(a + i * k + d);
        UNROLL
        for (size_t j = 0; j < nb; j++) {
            y = di_load16(b + j * k + d);
            UNROLL
            for (size_t i = 0; i < na; i++)
                acc[i][j] = di_fma16(x[i], y, acc[i][j]);
        }
    }
#ifdef __AVX512F__
    if (na == 4 && nb == 4) {
        put_sums4(out, stride, acc);
        return;
    }
#endif
    UNROLL
    for (size_t i = 0; i < na; i++)
        UNROLL
        for (size_t j = 0; j < nb; j++)
            out[i * stride + j] = di_sum16(acc[i][j]);
}

DI_INLINE16 void
dots_keys(const float *a, size_t n_a, const float *b, size_t k, float *out,
          size_t stride, const size_t nb)
{
    size_t i = 0;

    for (; i + TILE_A <= n_a; i += TILE_A)
        dots_tile(a + i * k, b, k, out + i * stride, stride, TILE_A, nb);
    for (; i < n_a; i++)
        dots_tile(a + i * k, b, k, out + i * stride, stride, 1, nb);
}

static void
dots(const float *a, size_t n_a, const float *b, size_t n_b, size_t k,
     float *out, size_t stride)
{
    size_t j = 0;

    for (; j + TILE_B <= n_b; j += TILE_B)
        dots_keys(a, n_a, b + j * k, k, out + j, stride, TILE_B);
    for (; j < n_b; j++)
        dots_keys(a, n_a, b + j * k, k, out + j, stride, 1);
}

/* 16 * `vecs` values of `rows` rows of y; `more`: y has sums already. */
DI_INLINE16 void
weigh_tile(float *y, const float *w, size_t stride, const float *b,
           size_t n_b, size_t k, bool more, const size_t rows,
           const size_t vecs)
{
    di_v16_t acc[TILE_A][WEIGH_X], x[WEIGH_X], f;

    UNROLL
    for (size_t i = 0; i < rows; i++)
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            acc[i][v] = more ? di_load16(y + i * k + v * 16) : di_set16(0);
    for (size_t j = 0; j < n_b; j++, b += k) {
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            x[v] = di_load16(b + v * 16);
        UNROLL
        for (size_t i = 0; i < rows; i++) {
            f = di_set16(w[i * stride + j]);
            UNROLL
            for (size_t v = 0; v < vecs; v++)
                acc[i][v] = di_fma16(f, x[v], acc[i][v]);
        }
    }
    UNROLL
    for (size_t i = 0; i < rows; i++)
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            di_store16(y + i * k + v * 16, acc[i][v]);
}

DI_INLINE16 void
weigh_rows(float *y, const float *w, size_t stride, const float *b,
           size_t n_b, size_t k, bool more, const size_t rows)
{
    size_t d = 0;

    for (; d + 16 * WEIGH_X <= k; d += 16 * WEIGH_X)
        weigh_tile(y + d, w, stride, b + d, n_b, k, more, rows, WEIGH_X);
    for (; d < k; d += 16)
        weigh_tile(y + d, w, stride, b + d, n_b, k, more, rows, 1);
}

static void
weigh(float *y, size_t n_y, const float *w, size_t stride, const float *b,
      size_t n_b, size_t k)
{
    size_t j = 0, n, i;

    do {
        n = n_b - j < WEIGH_KEYS ? n_b - j : WEIGH_KEYS;
        for (i = 0; i + TILE_A <= n_y; i += TILE_A)
            weigh_rows(y + i * k, w + i * stride + j, stride, b + j * k, n,
                       k, j > 0, TILE_A);
        for (; i < n_y; i++)
            weigh_rows(y + i * k, w + i * stride + j, stride, b + j * k, n,
                       k, j > 0, 1);
        j += n;
    } while (j < n_b);
}

static void
remix(float *t, const float *post, const float *comb, const float *o,
      size_t m, size_t k)
{
    di_v16_t in[8], sum, x;

    for (size_t d = 0; d < k; d += 16) {
        x = di_load16(o + d);
        for (size_t i = 0; i < m; i++)
            in[i] = di_load16(t + i * k + d);
        for (size_t j = 0; j < m; j++) {
            sum = di_mul16(di_set16(post[j]), x);
            for (size_t i = 0; i < m; i++)
                sum = di_fma16(di_set16(comb[i * m + j]), in[i], sum);
            di_store16(t + j * k + d, sum);
        }
    }
}

/* -- exponentials ---------------------------------------------------------- */

DI_INLINE16 di_v16_t
exp_part(di_v16_t v)
{
    di_v16_t power, r, p;

    power = di_round16(di_mul16(v, di_set16(DI_EXP_LOG2E)));
    r = di_fnma16(power, di_set16(DI_EXP_HIGH), v);
    r = di_fnma16(power, di_set16(DI_EXP_LOW), r);
    p = di_fma16(di_set16(DI_EXP_C6), r, di_set16(DI_EXP_C5));
    p = di_fma16(p, r, di_set16(DI_EXP_C4));
    p = di_fma16(p, r, di_set16(DI_EXP_C3));
    p = di_fma16(p, r, di_set16(DI_EXP_C2));
    p = di_fma16(p, di_mul16(r, r), di_add16(r, di_set16(1.0f)));
    p = di_mul16(p, di_as_float16(di_shl16(
        di_iadd16(di_to_int16(power), di_iset16(127)), 23)));
    return di_zero_below16(p, v, di_set16(DI_EXP_LEAST));
}

/* The values behind the last multiple of 16 are taken apart, with others that
 * are neither the largest nor count. */
static void
softmax(float *x, size_t n, float s, float sink)
{
    const size_t whole = n / 16 * 16, rest = n - whole;
    const di_v16_t scale = di_set16(s);
    di_v16_t top = di_set16(sink), sum = di_set16(0), v;
    float last[16], factor;

    for (size_t i = 0; i < whole; i += 16) {
        v = di_mul16(di_load16(x + i), scale);
        di_store16(x + i, v);
        top = di_max16(v, top);
    }
    memset(last, 0, sizeof(last));
    memcpy(last, x + whole, rest * sizeof(float));
    v = di_first16(di_mul16(di_load16(last), scale), rest,
                   di_set16(-__builtin_inff()));
    di_store16(last, v);
    top = di_set16(di_largest16(di_max16(v, top)));

    for (size_t i = 0; i < whole; i += 16) {
        v = exp_part(di_sub16(di_load16(x + i), top));
        di_store16(x + i, v);
        sum = di_add16(sum, v);
    }
    v = exp_part(di_sub16(di_load16(last), top));
    sum = di_add16(sum, v);
    factor = 1 / (di_sum16(sum) + expf(sink - di_largest16(top)));
    di_store16(last, di_mul16(v, di_set16(factor)));
    memcpy(x + whole, last, rest * sizeof(float));
    for (size_t i = 0; i < whole; i += 16)
        di_store16(x + i, di_mul16(di_load16(x + i), di_set16(factor)));
}

static void
gate(float *y, const float *w, const float *x, size_t n, size_t stride)
{
    di_v16_t sum = di_set16(0);

    for (size_t i = 0; i < n; i++, x += stride)
        sum = di_fma16(di_set16(w[i]), di_max16(di_load16(x), di_set16(0)),
                       sum);
    di_store16(y, sum);
}

/* -- caches ---------------------------------------------------------------- */

/* Shifted to its place in a float, and the exponent put right.  Caches hold
 * no NaN codes but for values that were none; they stay that. */
DI_INLINE16 di_v16_t
e4m3_floats(const uint8_t *p)
{
    di_i16_t b = di_load_bytes16(p);
    di_i16_t magnitude = di_iand16(b, di_iset16(0x7f));
    di_v16_t x = di_as_float16(di_iadd16(
        di_shl16(magnitude, 20), di_shl16(di_ixor16(b, magnitude), 24)));

    return di_choose16(di_mul16(x, di_set16(0x1p120f)),
                       di_set16(__builtin_nanf("")),
                       di_shl16(di_iadd16(magnitude, di_iset16(1)), 24));
}

/* 2^(b - 127): 0 is a subnormal, 255 not a number. */
DI_INLINE16 di_v16_t
ue8m0_floats(const uint8_t *p)
{
    di_i16_t b = di_load_bytes16(p), x = di_shl16(b, 23), odd;

    /* b + 1, a byte, is 0 or 1: above it is what a subtraction borrows. */
    odd = di_iadd16(di_iand16(di_iadd16(b, di_iset16(1)), di_iset16(255)),
                    di_iset16(-2));
    return di_choose16(di_as_float16(x),
                       di_as_float16(di_iadd16(x, di_iset16(0x00400000))),
                       odd);
}

#ifdef __AVX512F__

/* Each byte also 4 bits to the right, in the lane above: its low 4 bits
 * choose from 16 floats. */
DI_INLINE16 di_v16_t
e2m1_floats(const uint8_t *p)
{
    const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f,
                                         -.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512i b = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *) p));

    return _mm512_permutexvar_ps(
        _mm512_or_si512(b, _mm512_slli_epi64(b, 28)), values);
}

#else

/* 16 codes of 8 bytes to floats, whose upper halves are two tables. */
DI_INLINE16 di_v16_t
e2m1_floats(const uint8_t *p)
{
    const __m128i low = _mm_setr_epi8(
        0, 0, (char) 0x80, (char) 0xc0, 0, 0x40, (char) 0x80, (char) 0xc0,
        0, 0, (char) 0x80, (char) 0xc0, 0, 0x40, (char) 0x80, (char) 0xc0);
    const __m128i high = _mm_setr_epi8(
        0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char) 0x80,
        (char) 0xbf, (char) 0xbf, (char) 0xbf, (char) 0xc0, (char) 0xc0,
        (char) 0xc0, (char) 0xc0);
    const __m128i mask = _mm_set1_epi8(15);
    __m128i b = _mm_loadl_epi64((const void *) p), c, h, l;

    c = _mm_unpacklo_epi8(_mm_and_si128(b, mask),
                          _mm_and_si128(_mm_srli_epi16(b, 4), mask));
    h = _mm_shuffle_epi8(high, c);
    l = _mm_shuffle_epi8(low, c);
    return di_as_float16((di_i16_t) {
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, h)), 16),
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpackhi_epi8(l, h)), 16)
    });
}

#endif

/* Scales of 16 runs of 16 or 32 values at a time. */
static void
cast_get(di_cast_t cast, const uint8_t *data, const uint8_t *scales,
         size_t n, float *x)
{
    const size_t run = cast == DI_CAST_E2M1_16 ? 16 : 32;
    uint8_t bytes[16] = { 0 };
    float scale[16];
    size_t runs;

    for (size_t i = 0; i < n; i += 16 * run, scales += 16) {
        runs = (n - i) / run < 16 ? (n - i) / run : 16;
        memcpy(bytes, scales, runs);
        di_store16(scale, cast == DI_CAST_E2M1_16 ? e4m3_floats(bytes)
                                                  : ue8m0_floats(bytes));
        for (size_t v = i; v < i + runs * run; v += 16)
            di_store16(x + v, di_mul16(
                di_set16(scale[(v - i) / run]),
                cast == DI_CAST_E4M3_32 ? e4m3_floats(data + v)
                                        : e2m1_floats(data + v / 2)));
    }
}

#endif

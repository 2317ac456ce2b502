/*
 * vec_avx2.c - the loops of vec.h on AVX2, with the bits of vec_ref.c: hence
 * products and sums apart.  Several chains run side by side, so that neither
 * their latency nor reading counts.
 */

#include "vec.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE float
sum8(__m256 v)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(v),
                          _mm256_extractf128_ps(v, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* `na` by `nb` products. */
INLINE void
dots_tile(const float *a, const float *b, size_t k, float *out,
          size_t stride, const size_t na, const size_t nb)
{
    __m256 acc[2][4], x[2], y;

    UNROLL
    for (size_t i = 0; i < na; i++)
        UNROLL
        for (size_t j = 0; j < nb; j++)
            acc[i][j] = _mm256_setzero_ps();
    for (size_t d = 0; d < k; d += 8) {
        UNROLL
        for (size_t i = 0; i < na; i++)
            x[i] = _mm256_loadu_ps(a + i * k + d);
        UNROLL
        for (size_t j = 0; j < nb; j++) {
            y = _mm256_loadu_ps(b + j * k + d);
            UNROLL
            for (size_t i = 0; i < na; i++)
                acc[i][j] = _mm256_add_ps(acc[i][j], _mm256_mul_ps(x[i], y));
        }
    }
    UNROLL
    for (size_t i = 0; i < na; i++)
        UNROLL
        for (size_t j = 0; j < nb; j++)
            out[i * stride + j] = sum8(acc[i][j]);
}

INLINE void
dots_rows(const float *a, const float *b, size_t n_b, size_t k, float *out,
          size_t stride, const size_t na)
{
    size_t j = 0;

    for (; j + 4 <= n_b; j += 4)
        dots_tile(a, b + j * k, k, out + j, stride, na, 4);
    for (; j < n_b; j++)
        dots_tile(a, b + j * k, k, out + j, stride, na, 1);
}

static void
dots(const float *a, size_t n_a, const float *b, size_t n_b, size_t k,
     float *out, size_t stride)
{
    size_t i = 0;

    for (; i + 2 <= n_a; i += 2)
        dots_rows(a + i * k, b, n_b, k, out + i * stride, stride, 2);
    if (i < n_a)
        dots_rows(a + i * k, b, n_b, k, out + i * stride, stride, 1);
}

/* 8 * `vecs` values of `rows` rows of y. */
INLINE void
weigh_tile(float *y, const float *w, size_t stride, const float *b,
           size_t n_b, size_t k, const size_t rows, const size_t vecs)
{
    __m256 acc[2][4], x[4], f;

    UNROLL
    for (size_t i = 0; i < rows; i++)
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            acc[i][v] = _mm256_setzero_ps();
    for (size_t j = 0; j < n_b; j++, b += k) {
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            x[v] = _mm256_loadu_ps(b + v * 8);
        UNROLL
        for (size_t i = 0; i < rows; i++) {
            f = _mm256_broadcast_ss(w + i * stride + j);
            UNROLL
            for (size_t v = 0; v < vecs; v++)
                acc[i][v] = _mm256_add_ps(acc[i][v], _mm256_mul_ps(f, x[v]));
        }
    }
    UNROLL
    for (size_t i = 0; i < rows; i++)
        UNROLL
        for (size_t v = 0; v < vecs; v++)
            _mm256_storeu_ps(y + i * k + v * 8, acc[i][v]);
}

INLINE void
weigh_rows(float *y, const float *w, size_t stride, const float *b,
           size_t n_b, size_t k, const size_t rows)
{
    size_t d = 0;

    for (; d + 32 <= k; d += 32)
        weigh_tile(y + d, w, stride, b + d, n_b, k, rows, 4);
    for (; d < k; d += 8)
        weigh_tile(y + d, w, stride, b + d, n_b, k, rows, 1);
}

static void
weigh(float *y, size_t n_y, const float *w, size_t stride, const float *b,
      size_t n_b, size_t k)
{
    size_t i = 0;

    for (; i + 2 <= n_y; i += 2)
        weigh_rows(y + i * k, w + i * stride, stride, b, n_b, k, 2);
    if (i < n_y)
        weigh_rows(y + i * k, w + i * stride, stride, b, n_b, k, 1);
}

static void
remix(float *t, const float *post, const float *comb, const float *o,
      size_t m, size_t k)
{
    __m256 in[8], sum, x;

    for (size_t d = 0; d < k; d += 8) {
        x = _mm256_loadu_ps(o + d);
        for (size_t i = 0; i < m; i++)
            in[i] = _mm256_loadu_ps(t + i * k + d);
        for (size_t j = 0; j < m; j++) {
            sum = _mm256_mul_ps(_mm256_broadcast_ss(post + j), x);
            for (size_t i = 0; i < m; i++)
                sum = _mm256_add_ps(sum, _mm256_mul_ps(
                    _mm256_broadcast_ss(comb + i * m + j), in[i]));
            _mm256_storeu_ps(t + j * k + d, sum);
        }
    }
}

INLINE __m256
times_plus(__m256 a, __m256 b, float c)
{
    return _mm256_add_ps(_mm256_mul_ps(a, b), _mm256_set1_ps(c));
}

INLINE __m256
exp8(__m256 v)
{
    __m256 power, r, p, scale;

    power = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(DI_EXP_LOG2E)),
                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_sub_ps(v, _mm256_mul_ps(power, _mm256_set1_ps(DI_EXP_HIGH)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(power, _mm256_set1_ps(DI_EXP_LOW)));
    p = times_plus(_mm256_set1_ps(DI_EXP_C6), r, DI_EXP_C5);
    p = times_plus(p, r, DI_EXP_C4);
    p = times_plus(p, r, DI_EXP_C3);
    p = times_plus(p, r, DI_EXP_C2);
    p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)),
                      _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(
        _mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23));
    return _mm256_andnot_ps(
        _mm256_cmp_ps(v, _mm256_set1_ps(DI_EXP_LEAST), _CMP_LT_OQ),
        _mm256_mul_ps(p, scale));
}

static void
exps(float *x, size_t n, float top)
{
    const __m256 from = _mm256_set1_ps(top);
    float last[8] = { 0 };
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i),
                                                   from)));
    memcpy(last, x + i, (n - i) * sizeof(float));
    _mm256_storeu_ps(last, exp8(_mm256_sub_ps(_mm256_loadu_ps(last), from)));
    memcpy(x + i, last, (n - i) * sizeof(float));
}

/* Shifted to its place in a float, and the exponent put right.  Caches hold
 * no NaN codes but for values that were none; they stay that. */
INLINE __m256
e4m3_floats(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *) p)), x;
    __m256i magnitude = _mm256_and_si256(b, _mm256_set1_epi32(0x7f)), nan;

    nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    x = _mm256_or_si256(
        _mm256_slli_epi32(magnitude, 20),
        _mm256_slli_epi32(_mm256_xor_si256(b, magnitude), 24));
    return _mm256_or_ps(
        _mm256_mul_ps(_mm256_castsi256_ps(x), _mm256_set1_ps(0x1p120f)),
        _mm256_castsi256_ps(nan));
}

/* 16 codes of 8 bytes to floats, whose upper halves are two tables. */
INLINE void
e2m1_floats(const uint8_t *p, __m256 *x)
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
    x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, h)), 16));
    x[1] = _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_unpackhi_epi8(l, h)), 16));
}

static void
cast_get(di_cast_t cast, const uint8_t *data, const uint8_t *scales,
         size_t n, float *x)
{
    __m256 v[2], scale;

    for (size_t i = 0; i < n; i += 16) {
        scale = _mm256_set1_ps(cast == DI_CAST_E2M1_16
                               ? di_e4m3_to_f32(scales[i / 16])
                               : di_ue8m0_to_f32(scales[i / 32]));
        if (cast == DI_CAST_E4M3_32) {
            v[0] = e4m3_floats(data + i);
            v[1] = e4m3_floats(data + i + 8);
        } else {
            e2m1_floats(data + i / 2, v);
        }
        _mm256_storeu_ps(x + i, _mm256_mul_ps(scale, v[0]));
        _mm256_storeu_ps(x + i + 8, _mm256_mul_ps(scale, v[1]));
    }
}

const di_cpu_vec_t di_cpu_vec_avx2 = { dots, weigh, remix, exps, cast_get };

/*
 * index16.h - the indexer's loops of vec.h on vec16.h, compiled for each
 * instruction set, with the bits of vec_ref.c; included behind loops16.h.
 *
 * 16 keys' codes are turned once, so that a group (four values of each key,
 * side by side) is one operand of a product of unsigned by signed bytes:
 * twice a value is an integer of at most 12, and 12 more makes it unsigned.
 * All heads then go over them, some at a time.  A run of 32 values fits in 16
 * bits with AVX2 (8 groups of 2 * 24 * 12), which adds them by twos.
 */

#ifndef DI_CPU_INDEX16_H
#define DI_CPU_INDEX16_H

#include "../cast.h"
#ifdef __AVX512F__
#include "vec512.h"
#endif

#define GROUPS     8             /* of a run of 32 values                   */
#define GROUPS_MAX (DI_VEC_DIM / 4)
#ifdef __AVX512F__
#define TILE_HEADS 8
#else
#define TILE_HEADS 2
#endif

typedef struct {
    _Alignas(64) uint8_t codes[GROUPS_MAX][64];
    float                scale[DI_VEC_DIM / 32][16];
} keys16_t;

/* -- queries --------------------------------------------------------------- */

/* Twice x, at most 6, as E2M1 has it: adding a number whose last place is that
 * of the result, and taking it away again, rounds to nearest even. */
DI_INLINE16 di_i16_t
twice_e2m1(di_v16_t x)
{
    di_i16_t exponent = di_iand16(di_as_int16(x), di_iset16(0x7f800000));
    di_v16_t big;

    exponent = di_imax16(exponent, di_iset16(127 << 23));
    big = di_as_float16(di_iadd16(exponent, di_iset16(22 << 23 | 1 << 22)));
    x = di_sub16(di_add16(x, big), big);
    return di_to_int16(di_add16(x, x));
}

/* 16 of them to their places; returns their sum. */
DI_INLINE16 int32_t
put_queries(int8_t *to, di_i16_t q)
{
    const __m128i sorted = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12,
                                         14, 9, 11, 13, 15);
    __m128i bytes = _mm_shuffle_epi8(di_bytes16(q), sorted), sums;

    _mm_storeu_si128((void *) to, bytes);
    sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8((char) 0x80)),
                        _mm_setzero_si128());
    return _mm_extract_epi16(sums, 0) + _mm_extract_epi16(sums, 4)
           - 16 * 128;
}

static void
queries(const di_cpu_queries_t *to, const float *x)
{
    const size_t n = to->n_heads * to->dim / 32;
    di_v16_t     x0, x1, down;
    uint8_t      scale;
    int32_t      sum;

    for (size_t b = 0; b < n; b++, x += 32) {
        x0 = di_load16(x);
        x1 = di_load16(x + 16);
        scale = di_cast_scale(DI_CAST_E2M1_32, di_largest16(
            di_max16(di_abs16(x0), di_abs16(x1))));
        down = di_as_float16(di_iset16((254 - scale) << 23));
        sum = put_queries(to->q + b * 32,
                          twice_e2m1(di_mul16(x0, down)));
        sum += put_queries(to->q + b * 32 + 16,
                           twice_e2m1(di_mul16(x1, down)));
        to->start[b] = -12 * sum;
        to->scale[b] = di_ue8m0_to_f32(scale) * 0.25f;
    }
}

/* -- keys ------------------------------------------------------------------ */

#ifdef __AVX512F__

DI_INLINE16 __m512i
unsigned_codes(__m512i x)
{
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

    return _mm512_permutexvar_epi8(x, table);
}

/* A dword of each key is two groups: even values, then odd ones. */
static void
turn_keys(keys16_t *k, const uint8_t *const *data, size_t bytes)
{
    __m512i v[16];
    size_t n;

    for (size_t at = 0; at < bytes; at += 64) {
        n = bytes - at < 64 ? bytes - at : 64;
#pragma GCC unroll 16
        for (size_t j = 0; j < 16; j++)
            v[j] = _mm512_maskz_loadu_epi32(
                (__mmask16) (0xffffu >> (16 - n / 4)), data[j] + at);
        di_transpose16(v);
        for (size_t g = 0; g < n / 4; g++) {
            uint8_t *to = k->codes[at / 2 + g * 2];

            _mm512_store_si512(to, unsigned_codes(v[g]));
            _mm512_store_si512(to + 64, unsigned_codes(
                _mm512_srli_epi16(v[g], 4)));
        }
    }
}

#else

DI_INLINE16 __m256i
unsigned_codes(__m256i x)
{
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

    return _mm256_shuffle_epi8(table, _mm256_and_si256(x,
                                                       _mm256_set1_epi8(15)));
}

DI_INLINE16 void
turn_dwords(__m256i *v)
{
    __m256i t[4];

    t[0] = _mm256_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm256_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm256_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm256_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm256_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm256_unpackhi_epi64(t[1], t[3]);
}

/* A dword of each key is two groups: even values, then odd ones. */
static void
turn_keys(keys16_t *k, const uint8_t *const *data, size_t bytes)
{
    __m256i v[4];

    for (size_t at = 0; at < bytes; at += 16) {
        for (size_t h = 0; h < 2; h++) {
            for (size_t i = 0; i < 4; i++)
                v[i] = _mm256_set_m128i(
                    _mm_loadu_si128((const void *) (data[h * 8 + i + 4]
                                                    + at)),
                    _mm_loadu_si128((const void *) (data[h * 8 + i] + at)));
            turn_dwords(v);
            for (size_t g = 0; g < 4; g++) {
                uint8_t *to = k->codes[at / 2 + g * 2] + h * 32;

                _mm256_store_si256((void *) to, unsigned_codes(v[g]));
                _mm256_store_si256((void *) (to + 64), unsigned_codes(
                    _mm256_srli_epi16(v[g], 4)));
            }
        }
    }
}

#endif

static void
turn_scales(keys16_t *k, const uint8_t *const *scales, size_t blocks)
{
    uint8_t bytes[16];

    for (size_t b = 0; b < blocks; b++) {
        for (size_t j = 0; j < 16; j++)
            bytes[j] = scales[j][b];
        di_store16(k->scale[b], ue8m0_floats(bytes));
    }
}

/* -- scores ---------------------------------------------------------------- */

DI_INLINE16 int32_t
four_queries(const int8_t *q)
{
    int32_t x;

    memcpy(&x, q, 4);
    return x;
}

/* Sums of run b for n heads: of 16 keys each. */
#ifdef __AVX512F__
DI_INLINE16 void
run_sums(di_i16_t *sum, const keys16_t *k, const di_cpu_queries_t *q,
         size_t h, size_t b, const size_t n)
{
    const size_t  blocks = q->dim / 32;
    const int8_t *x = q->q + h * q->dim + b * 32;
    __m512i       w;

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        sum[i] = _mm512_set1_epi32(q->start[(h + i) * blocks + b]);
#pragma GCC unroll 8
    for (size_t g = 0; g < GROUPS; g++) {
        w = _mm512_load_si512(k->codes[b * GROUPS + g]);
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, _mm512_set1_epi32(
                four_queries(x + i * q->dim + g * 4)));
    }
}
#else
DI_INLINE16 void
run_sums(di_i16_t *sum, const keys16_t *k, const di_cpu_queries_t *q,
         size_t h, size_t b, const size_t n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const size_t  blocks = q->dim / 32;
    const int8_t *x = q->q + h * q->dim + b * 32;
    __m256i       w0, w1, y, start;

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        sum[i] = di_iset16(0);
#pragma GCC unroll 8
    for (size_t g = 0; g < GROUPS; g++) {
        w0 = _mm256_load_si256((const void *) k->codes[b * GROUPS + g]);
        w1 = _mm256_load_si256((const void *) (k->codes[b * GROUPS + g]
                                               + 32));
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++) {
            y = _mm256_set1_epi32(four_queries(x + i * q->dim + g * 4));
            sum[i].a = _mm256_add_epi16(sum[i].a,
                                        _mm256_maddubs_epi16(w0, y));
            sum[i].b = _mm256_add_epi16(sum[i].b,
                                        _mm256_maddubs_epi16(w1, y));
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++) {
        start = _mm256_set1_epi32(q->start[(h + i) * blocks + b]);
        sum[i].a = _mm256_add_epi32(_mm256_madd_epi16(sum[i].a, ones),
                                    start);
        sum[i].b = _mm256_add_epi32(_mm256_madd_epi16(sum[i].b, ones),
                                    start);
    }
}
#endif

/* Add the scores of n heads from h on. */
DI_INLINE16 di_v16_t
add_heads(di_v16_t y, const keys16_t *k, const di_cpu_queries_t *q, size_t h,
          const size_t n)
{
    const size_t blocks = q->dim / 32;
    di_v16_t     dot[TILE_HEADS], scale;
    di_i16_t     sum[TILE_HEADS];

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        dot[i] = di_set16(0);
    for (size_t b = 0; b < blocks; b++) {
        run_sums(sum, k, q, h, b, n);
        scale = di_load16(k->scale[b]);
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            dot[i] = di_fma16(di_from_int16(sum[i]), di_mul16(
                scale, di_set16(q->scale[(h + i) * blocks + b])), dot[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        y = di_fma16(di_set16(q->w[h + i]), di_max16(dot[i], di_set16(0)), y);
    return y;
}

static void
score(float *y, const di_cpu_queries_t *q, const uint8_t *const *data,
      const uint8_t *const *scales)
{
    di_v16_t sum = di_set16(0);
    keys16_t k;
    size_t   h = 0;

    turn_keys(&k, data, q->dim / 2);
    turn_scales(&k, scales, q->dim / 32);
    for (; h + TILE_HEADS <= q->n_heads; h += TILE_HEADS)
        sum = add_heads(sum, &k, q, h, TILE_HEADS);
    for (; h < q->n_heads; h++)
        sum = add_heads(sum, &k, q, h, 1);
    di_store16(y, sum);
}

#endif

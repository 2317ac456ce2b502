/*
 * rows16.h - row-wise operators on vec16.h: conversion to activation rows,
 * RMS norm, gated SiLU, rotation, storing of K and V.
 *
 * They are written for an arithmetic given as a constant (F32, Q8 or MX) and
 * compiled once for each and each instruction set.  Layouts: ref.h.
 */

#ifndef DI_CPU_ROWS16_H
#define DI_CPU_ROWS16_H

#include "mx.h"
#include "q8.h"
#include "vec16.h"

#include <math.h>

/* 32 values as int8 with their scale; the same bits as the reference's. */
DI_INLINE16 void
di_q8_put_block16(uint8_t *row, size_t k, size_t b, di_v16_t x0, di_v16_t x1)
{
    const __m256i sign = _mm256_set1_epi8((char) 0x80);
    di_v16_t m = di_max16(di_abs16(x0), di_set16(0));
    float amax = di_largest16(di_max16(di_abs16(x1), m));
    float scale = amax / 127.0f, sum;
    di_v16_t inverse = di_set16(amax < 0x1p-120f ? 0.0f : 127.0f / amax);
    int16_t half[2];
    __m256i q, t;

    q = _mm256_set_m128i(di_bytes16(di_to_int16(di_mul16(x1, inverse))),
                         di_bytes16(di_to_int16(di_mul16(x0, inverse))));
    _mm256_storeu_si256((void *) (row + b * DI_WBLOCK), q);

    /* Bytes plus 128, added by eights, then by sixteens. */
    t = _mm256_sad_epu8(_mm256_xor_si256(q, sign), _mm256_setzero_si256());
    t = _mm256_add_epi64(t, _mm256_unpackhi_epi64(t, t));
    half[0] = (int16_t) (_mm256_extract_epi16(t, 0) - 16 * 128);
    half[1] = (int16_t) (_mm256_extract_epi16(t, 8) - 16 * 128);

    sum = scale * (float) (half[0] + half[1]);
    memcpy(row + di_q8_scales_at(k) + b * 4, &scale, 4);
    memcpy(row + di_q8_sums_at(k) + b * 4, &sum, 4);
    memcpy(row + di_q8_halves_at(k) + b * 4, half, 4);
}

/* x, at most 448, as E4M3 has it: adding a number whose last place is that of
 * the result, and taking it away again, rounds to nearest even. */
DI_INLINE16 di_v16_t
di_round_e4m3_16(di_v16_t x)
{
    const di_i16_t least = di_iset16((127 - 6) << 23);   /* normal ones     */
    di_i16_t exponent;
    di_v16_t big;

    exponent = di_iand16(di_as_int16(x), di_iset16(0x7f800000));
    exponent = di_imax16(exponent, least);
    big = di_as_float16(di_iadd16(exponent, di_iset16(20 << 23 | 1 << 22)));
    return di_sub16(di_add16(x, big), big);
}

/* 32 values as E4M3 times a power of two; the same bits as the reference's. */
DI_INLINE16 void
di_mx_put_micro16(uint8_t *to, di_v16_t x0, di_v16_t x1)
{
    di_v16_t m = di_max16(di_abs16(x0), di_set16(0));
    float amax = di_largest16(di_max16(di_abs16(x1), m));
    di_v16_t down, up;
    uint8_t scale = di_cast_scale(DI_CAST_E4M3_32, amax);

    up = di_as_float16(di_iset16(scale << 23));
    down = di_as_float16(di_iset16((254 - scale) << 23));
    x0 = di_mul16(di_round_e4m3_16(di_mul16(x0, down)), up);
    x1 = di_mul16(di_round_e4m3_16(di_mul16(x1, down)), up);
    di_store_words16(to, di_shr16(di_as_int16(x0), 16));
    di_store_words16(to + 32, di_shr16(di_as_int16(x1), 16));
}

DI_INLINE16 void
di_mx_put_block16(uint8_t *row, size_t k, size_t b, di_v16_t x0, di_v16_t x1)
{
    uint8_t *high = row + di_mx_high_at(k) + b * DI_WBLOCK * 2;
    uint8_t *low = row + di_mx_low_at(k) + b * DI_WBLOCK * 2;
    di_i16_t h0 = di_to_bf16_16(x0), h1 = di_to_bf16_16(x1);

    di_mx_put_micro16(row + b * DI_WBLOCK * 2, x0, x1);
    di_store_words16(high, h0);
    di_store_words16(high + 32, h1);
    x0 = di_sub16(x0, di_lower_bf16(h0));
    x1 = di_sub16(x1, di_lower_bf16(h1));
    di_store_words16(low, di_to_bf16_16(x0));
    di_store_words16(low + 32, di_to_bf16_16(x1));
}

DI_INLINE16 void
di_put_block16(const di_arith_t arith, uint8_t *row, size_t k, size_t b,
               di_v16_t x0, di_v16_t x1)
{
    float *y = (float *) (void *) row + b * DI_WBLOCK;

    if (arith == DI_ARITH_Q8) {
        di_q8_put_block16(row, k, b, x0, x1);
        return;
    }
    if (arith == DI_ARITH_MX) {
        di_mx_put_block16(row, k, b, x0, x1);
        return;
    }
    di_store16(y, x0);
    di_store16(y + 16, x1);
}

DI_INLINE16 void
di_norm16(const di_arith_t arith, const di_cpu_norm_t *a, size_t r0,
          size_t r1)
{
    di_v16_t v0, v1, s0, s1, factor;
    const float *add, *w = a->w;
    uint8_t *y;
    size_t row;
    float *x;

    for (size_t r = r0; r < r1; r++) {
        row = a->rows ? (size_t) a->rows[r] : r;
        x = a->x + row * a->k;
        add = a->add ? a->add + row * a->k : NULL;
        s0 = s1 = di_set16(0);
        for (size_t i = 0; i < a->k; i += 32) {
            v0 = di_load16(x + i);
            v1 = di_load16(x + i + 16);
            if (add) {
                v0 = di_add16(v0, di_load16(add + i));
                v1 = di_add16(v1, di_load16(add + i + 16));
                di_store16(x + i, v0);
                di_store16(x + i + 16, v1);
            }
            s0 = di_fma16(v0, v0, s0);
            s1 = di_fma16(v1, v1, s1);
        }
        factor = di_set16(1.0f / sqrtf(di_sum16(di_add16(s0, s1))
                                       / (float) a->k + a->eps));

        y = a->y + r * a->y_stride;
        for (size_t i = 0; i < a->k; i += 32) {
            v0 = di_mul16(di_load16(x + i), factor);
            v1 = di_mul16(di_load16(x + i + 16), factor);
            di_put_block16(arith, y, a->k, i / 32,
                           di_mul16(v0, di_load16(w + i)),
                           di_mul16(v1, di_load16(w + i + 16)));
        }
    }
}

/* The bounds come first: what is not a number stays that. */
DI_INLINE16 di_v16_t
di_gated16(const float *gate, const float *up, di_v16_t limit, di_v16_t c)
{
    di_v16_t g = di_min16(limit, di_load16(gate)), e, u;

    u = di_max16(di_sub16(di_set16(0), limit),
                 di_min16(limit, di_load16(up)));
    e = di_exp16(di_sub16(di_set16(0), g));
    g = di_div16(g, di_add16(e, di_set16(1.0f)));
    return di_mul16(di_mul16(g, u), c);
}

DI_INLINE16 void
di_silu_mul16(const di_arith_t arith, const di_cpu_silu_t *a, size_t r0,
              size_t r1)
{
    di_v16_t limit = di_set16(a->limit), c;
    const float *gate, *up;

    for (size_t r = r0; r < r1; r++) {
        gate = a->gu + r * 2 * a->k;
        up = gate + a->k;
        c = di_set16(a->c ? a->c[r] : 1.0f);
        for (size_t i = 0; i < a->k; i += 32)
            di_put_block16(arith, a->y + r * a->y_stride, a->k, i / 32,
                           di_gated16(gate + i, up + i, limit, c),
                           di_gated16(gate + i + 16, up + i + 16, limit, c));
    }
}

DI_INLINE16 void
di_convert16(const di_arith_t arith, const di_cpu_convert_t *a, size_t r0,
             size_t r1)
{
    const float *x;

    for (size_t r = r0; r < r1; r++) {
        x = a->x + r * a->k;
        for (size_t i = 0; i < a->k; i += 32)
            di_put_block16(arith, a->y + r * a->y_stride, a->k, i / 32,
                           di_load16(x + i), di_load16(x + i + 16));
    }
}

/* cos and sin of a row's angles, spread for rotation: [head_dim] each.
 * Pairs: each twice in turn, sin with the sign of its term.  Halves: the
 * lower half of the arrays only. */
DI_INLINE16 void
di_angles16(int32_t position, const float *freqs, size_t half, bool pairs,
            float *cosines, float *sines)
{
    float c[DI_CPU_HEAD_MAX / 2], s[DI_CPU_HEAD_MAX / 2];
    float *to_c = pairs ? c : cosines, *to_s = pairs ? s : sines;
    di_v16_t p = di_set16((float) position), sine, cosine;

    for (size_t i = 0; i < half; i += 16) {
        di_sincos16(di_mul16(p, di_load16(freqs + i)), &sine, &cosine);
        di_store16(to_c + i, cosine);
        di_store16(to_s + i, sine);
    }
    for (size_t i = 0; pairs && i < half; i++) {
        cosines[2 * i] = cosines[2 * i + 1] = c[i];
        sines[2 * i] = -s[i];
        sines[2 * i + 1] = s[i];
    }
}

/* Rotate one head in place. */
DI_INLINE16 void
di_rotate16(float *x, size_t head_dim, bool pairs, const float *cosines,
            const float *sines)
{
    size_t half = head_dim / 2;
    di_v16_t a, b, c, s;

    if (pairs) {
        for (size_t i = 0; i < head_dim; i += 16) {
            a = di_load16(x + i);
            b = di_swap16(a);
            a = di_mul16(a, di_load16(cosines + i));
            di_store16(x + i, di_fma16(b, di_load16(sines + i), a));
        }
        return;
    }
    for (size_t i = 0; i < half; i += 16) {
        a = di_load16(x + i);
        b = di_load16(x + half + i);
        c = di_load16(cosines + i);
        s = di_load16(sines + i);
        di_store16(x + i, di_fnma16(b, s, di_mul16(a, c)));
        di_store16(x + half + i, di_fma16(a, s, di_mul16(b, c)));
    }
}

/* Stores K and V of token t of a block, from places next to each other to
 * strides of a token. */
typedef void (*di_store_token_t)(uint8_t *region, size_t region_bytes,
                                 size_t head_dim, size_t t, const float *k,
                                 const float *v);

DI_INLINE16 void
di_store_f32_16(uint8_t *region, size_t region_bytes, size_t head_dim,
                size_t t, const float *k, const float *v)
{
    uint32_t *to_k = (uint32_t *) (void *) region + t;

    for (size_t d = 0; d < head_dim; d++)
        memcpy(to_k + d * DI_CPU_KV_TOKENS, k + d, 4);
    memcpy(region + region_bytes + t * head_dim * 4, v, head_dim * 4);
}

DI_INLINE16 void
di_store_bf16_16(uint8_t *region, size_t region_bytes, size_t head_dim,
                 size_t t, const float *k, const float *v)
{
    uint32_t *to_k = (uint32_t *) (void *) region + t, x[16];
    uint16_t *to_v = (uint16_t *) (void *) (region + region_bytes)
                     + t / 2 * 2 * head_dim + t % 2;

    for (size_t d = 0; d < head_dim; d += 16) {
        di_istore16(x, di_to_bf16_16(di_load16(k + d)));
        for (size_t i = 0; i < 16; i += 2)
            to_k[(d + i) / 2 * DI_CPU_KV_TOKENS] = x[i] | x[i + 1] << 16;
        di_istore16(x, di_to_bf16_16(di_load16(v + d)));
        for (size_t i = 0; i < 16; i++)
            to_v[(d + i) * 2] = (uint16_t) x[i];
    }
}

/* Rotate rows [r0, r1) in place, and store their K and V. */
DI_INLINE16 void
di_rope_store16(di_store_token_t store, const di_cpu_rope_t *a,
                const int32_t *table, size_t r0, size_t r1)
{
    float cosines[DI_CPU_HEAD_MAX], sines[DI_CPU_HEAD_MAX], *row, *k;
    size_t hd = a->kv.head_dim, n_kv = a->kv.n_kv_heads;
    size_t width = (a->n_heads + 2 * n_kv) * hd;
    bool pairs = a->style == DI_ROPE_PAIRS;
    int32_t position;

    for (size_t r = r0; r < r1; r++) {
        row = a->qkv + r * width;
        position = a->positions[r];
        di_angles16(position, a->freqs, hd / 2, pairs, cosines, sines);
        for (size_t h = 0; h < a->n_heads + n_kv; h++)
            di_rotate16(row + h * hd, hd, pairs, cosines, sines);

        for (size_t h = 0; h < n_kv; h++) {
            k = row + (a->n_heads + h) * hd;
            store(di_cpu_kv_region(&a->kv, table[position / DI_CPU_KV_TOKENS],
                                   (uint32_t) h),
                  a->kv.region_bytes, hd,
                  (size_t) position % DI_CPU_KV_TOKENS, k, k + n_kv * hd);
        }
    }
}

/* The first n tokens of one head's regions. */
DI_INLINE16 void
di_kv_copy16(const di_arith_t arith, const di_cpu_kv_t *kv, uint8_t *dst,
             const uint8_t *src, uint32_t n)
{
    const uint8_t *v = src + kv->region_bytes;
    uint8_t *to = dst + kv->region_bytes;
    size_t row = kv->head_dim * 4;

    for (size_t i = 0; i < kv->region_bytes; i += 64)
        memcpy(dst + i, src + i, n * 4);
    if (arith == DI_ARITH_F32) {
        memcpy(to, v, n * row);
        return;
    }
    memcpy(to, v, n / 2 * row);
    for (size_t i = n / 2 * row; n % 2 && i < (n / 2 + 1) * row; i += 4)
        memcpy(to + i, v + i, 2);
}

#endif

/*
 * attention16.h - attention on vec16.h, for F32 and Q8: float32 FMA.
 *
 * Queries that share a KV head (rows of a sequence times heads of the group)
 * go over their keys in segments of 256, aligned to positions, a few at a
 * time so that every K and V loaded serves them all.  Per segment: all
 * products q.k, 16 keys in the lanes, even and odd dimensions in two chains;
 * each query's largest product, weights 2^(product - largest) and their sum;
 * weights times V, 32 dimensions at a time, a chain over the keys.  Then the
 * segment is merged into what the earlier ones gave, scaled to the larger of
 * both maxima.  What a query does depends on its own keys alone, so neither
 * the batch nor its neighbours change its bits.
 *
 * Keys behind a query's own have weight 0; the tokens that no row has written
 * yet, which may hold anything, are not multiplied at all.
 */

#ifndef DI_CPU_ATTENTION16_H
#define DI_CPU_ATTENTION16_H

#include "rows16.h"

typedef struct {
    float   q[DI_V16_QUERIES][DI_CPU_HEAD_MAX];
    float   w[DI_V16_QUERIES][DI_CPU_KV_SEGMENT];  /* products, weights     */
    float   sums[DI_V16_QUERIES][DI_CPU_HEAD_MAX]; /* of segments so far    */
    float   values[DI_V16_QUERIES][DI_CPU_HEAD_MAX];   /* of this segment   */
    float   max[DI_V16_QUERIES]; /* of products so far, in powers of 2      */
    float   total[DI_V16_QUERIES];       /* of weights so far               */
    float   seg_max[DI_V16_QUERIES];
    float   seg_total[DI_V16_QUERIES];
    size_t  keys[DI_V16_QUERIES];        /* that each query has             */
    size_t  row[DI_V16_QUERIES];
    size_t  head[DI_V16_QUERIES];
} di_attn16_t;

_Static_assert(sizeof(di_attn16_t) <= DI_CPU_SCRATCH, "scratch is too small");

/* Values 2i of 16 places, and 2i + 1: dimensions of K, tokens of V. */
DI_INLINE16 di_v16_t
di_load_even16(const di_arith_t arith, const uint8_t *pair)
{
    if (arith == DI_ARITH_F32)
        return di_load16((const float *) (const void *) pair);
    return di_lower_bf16(di_iload16(pair));
}

DI_INLINE16 di_v16_t
di_load_odd16(const di_arith_t arith, const uint8_t *pair, size_t bytes)
{
    if (arith == DI_ARITH_F32)
        return di_load16((const float *) (const void *) (pair + bytes));
    return di_upper_bf16(di_iload16(pair));
}

/* Products of n queries with the 16 keys of a block. */
DI_INLINE16 void
di_products16(di_attn16_t *s, const di_arith_t arith, const uint8_t *k,
              size_t hd, float *out, di_v16_t factor, const size_t n)
{
    const size_t bytes = arith == DI_ARITH_F32 ? 128 : 64;
    di_v16_t even[DI_V16_QUERIES], odd[DI_V16_QUERIES], x;

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        even[i] = odd[i] = di_set16(0);
    for (size_t d = 0; d < hd; d += 2, k += bytes) {
        x = di_load_even16(arith, k);
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            even[i] = di_fma16(di_set16(s->q[i][d]), x, even[i]);
        DI_AGAIN16(k);
        x = di_load_odd16(arith, k, 64);
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            odd[i] = di_fma16(di_set16(s->q[i][d + 1]), x, odd[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        di_store16(out + i * DI_CPU_KV_SEGMENT,
                   di_mul16(di_add16(even[i], odd[i]), factor));
}

/* Products of query i to weights: its n keys of the segment (0: it has none),
 * then zeros up to n_all. */
DI_INLINE16 void
di_weights16(di_attn16_t *s, size_t i, size_t n, size_t n_all)
{
    const di_v16_t low = di_set16(-INFINITY);
    di_v16_t max = low, total = di_set16(0), x;
    float *w = s->w[i];
    size_t left;

    for (size_t j = 0; j < n; j += 16) {
        left = n - j < 16 ? n - j : 16;
        max = di_max16(max, di_first16(di_load16(w + j), left, low));
    }
    s->seg_max[i] = di_largest16(max);
    max = di_set16(s->seg_max[i]);
    for (size_t j = 0; j < n_all; j += 16) {
        left = j >= n ? 0 : n - j < 16 ? n - j : 16;
        x = di_first16(di_sub16(di_load16(w + j), max), left, low);
        x = di_exp2_16(x);
        total = di_add16(total, x);
        di_store16(w + j, x);
    }
    s->seg_total[i] = di_sum16(total);
}

/* A token's values of 32 dimensions, times its n weights. */
DI_INLINE16 void
di_token16(di_attn16_t *s, const di_arith_t arith, const uint8_t *v,
           size_t hd, size_t t, const bool odd, di_v16_t (*acc)[2],
           const size_t n)
{
    di_v16_t x;

#pragma GCC unroll 2
    for (size_t h = 0; h < 2; h++, v += 64) {
        DI_AGAIN16(v);
        x = odd ? di_load_odd16(arith, v, hd * 4) : di_load_even16(arith, v);
#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            acc[i][h] = di_fma16(di_set16(s->w[i][t]), x, acc[i][h]);
    }
}

/* Weights of n queries times V, for dimensions d to d + 31: n_keys keys in
 * blocks from the item's block first on. */
DI_INLINE16 void
di_values16(di_attn16_t *s, const di_arith_t arith, const di_cpu_attn_t *a,
            const di_cpu_attn_item_t *item, size_t first, size_t n_keys,
            size_t d, const size_t n)
{
    const size_t size = arith == DI_ARITH_F32 ? 4 : 2, hd = a->kv.head_dim;
    di_v16_t acc[DI_V16_QUERIES][2];
    const uint8_t *v;

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        acc[i][0] = acc[i][1] = di_set16(0);

    for (size_t j = 0; j < n_keys; j += DI_CPU_KV_TOKENS) {
        v = di_cpu_kv_region(&a->kv,
                             item->table[first + j / DI_CPU_KV_TOKENS],
                             item->kv_head)
            + a->kv.region_bytes + d * 4;
        for (size_t t = j; t < j + DI_CPU_KV_TOKENS && t < n_keys;
             t += 2, v += hd * size * 2) {
            di_token16(s, arith, v, hd, t, false, acc, n);
            if (t + 1 < n_keys)
                di_token16(s, arith, v, hd, t + 1, true, acc, n);
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++) {
        di_store16(&s->values[i][d], acc[i][0]);
        di_store16(&s->values[i][d + 16], acc[i][1]);
    }
}

/* The segment's values of query i into its sums. */
DI_INLINE16 void
di_merge16(di_attn16_t *s, size_t i, size_t hd)
{
    float max = s->seg_max[i] > s->max[i] ? s->seg_max[i] : s->max[i];
    di_v16_t before = di_exp2_16(di_set16(s->max[i] - max)), x;
    di_v16_t now = di_exp2_16(di_set16(s->seg_max[i] - max));

    s->total[i] = s->total[i] * _mm256_cvtss_f32(di_low16(before))
                  + s->seg_total[i] * _mm256_cvtss_f32(di_low16(now));
    s->max[i] = max;
    for (size_t d = 0; d < hd; d += 16) {
        x = di_mul16(di_load16(&s->sums[i][d]), before);
        x = di_fma16(di_load16(&s->values[i][d]), now, x);
        di_store16(&s->sums[i][d], x);
    }
}

DI_INLINE16 void
di_attend16(di_attn16_t *s, const di_arith_t arith, const di_cpu_attn_t *a,
            const di_cpu_attn_item_t *item, const size_t n)
{
    di_v16_t factor = di_set16(a->scale * 0x1.715476p+0f);
    size_t hd = a->kv.head_dim, keys = 0, count, own;

    for (size_t i = 0; i < n; i++)
        keys = s->keys[i] > keys ? s->keys[i] : keys;

    for (size_t k0 = 0; k0 < keys; k0 += DI_CPU_KV_SEGMENT) {
        count = keys - k0 < DI_CPU_KV_SEGMENT ? keys - k0
                                              : DI_CPU_KV_SEGMENT;
        for (size_t j = 0; j < count; j += DI_CPU_KV_TOKENS)
            di_products16(s, arith,
                          di_cpu_kv_region(
                              &a->kv,
                              item->table[(k0 + j) / DI_CPU_KV_TOKENS],
                              item->kv_head),
                          hd, &s->w[0][j], factor, n);
        for (size_t i = 0; i < n; i++) {
            own = s->keys[i] < k0 ? 0 : s->keys[i] - k0;
            di_weights16(s, i, own < count ? own : count, count);
        }
        for (size_t d = 0; d < hd; d += 32)
            di_values16(s, arith, a, item, k0 / DI_CPU_KV_TOKENS, count, d,
                        n);
        for (size_t i = 0; i < n; i++)
            if (s->keys[i] > k0)
                di_merge16(s, i, hd);
    }
}

DI_INLINE16 void
di_load_query16(di_attn16_t *s, const di_cpu_attn_t *a, size_t i, size_t row,
                size_t head)
{
    size_t hd = a->kv.head_dim;
    size_t width = (a->n_heads + 2 * a->kv.n_kv_heads) * hd;

    s->row[i] = row;
    s->head[i] = head;
    s->keys[i] = (size_t) a->positions[row] + 1;
    s->max[i] = -INFINITY;
    s->total[i] = 0;
    memcpy(s->q[i], a->qkv + row * width + head * hd, hd * sizeof(float));
    memset(s->sums[i], 0, hd * sizeof(float));
}

DI_INLINE16 void
di_put_query16(const di_attn16_t *s, const di_arith_t arith,
               const di_cpu_attn_t *a, size_t i)
{
    size_t hd = a->kv.head_dim;
    di_v16_t factor = di_set16(1.0f / s->total[i]);

    for (size_t d = 0; d < hd; d += 32)
        di_put_block16(arith, a->y + s->row[i] * a->y_stride,
                       a->n_heads * hd, (s->head[i] * hd + d) / 32,
                       di_mul16(di_load16(&s->sums[i][d]), factor),
                       di_mul16(di_load16(&s->sums[i][d + 16]), factor));
}

DI_INLINE16 void
di_attention16(const di_arith_t arith, const di_cpu_attn_t *a,
               const di_cpu_attn_item_t *item, void *scratch)
{
    size_t group = a->n_heads / a->kv.n_kv_heads;
    size_t all = item->n_rows * group, n;
    di_attn16_t *s = scratch;

    for (size_t q = 0; q < all; q += n) {
        n = all - q < DI_V16_QUERIES ? all - q : DI_V16_QUERIES;
        for (size_t i = 0; i < n; i++)
            di_load_query16(s, a, i, item->first_row + (q + i) / group,
                            item->kv_head * group + (q + i) % group);
        /* A constant for the compiler: so many chains of sums. */
        switch (n) {
        case 1: di_attend16(s, arith, a, item, 1); break;
        case 2: di_attend16(s, arith, a, item, 2); break;
#if DI_V16_QUERIES > 3
        case 3: di_attend16(s, arith, a, item, 3); break;
        case 4: di_attend16(s, arith, a, item, 4); break;
        case 5: di_attend16(s, arith, a, item, 5); break;
        case 6: di_attend16(s, arith, a, item, 6); break;
        case 7: di_attend16(s, arith, a, item, 7); break;
#endif
        default:
            di_attend16(s, arith, a, item, DI_V16_QUERIES);
            break;
        }
        for (size_t i = 0; i < n; i++)
            di_put_query16(s, arith, a, i);
    }
}

/* The entry points of an arithmetic for the file's instruction set. */
#define DI_OPS16(arith, name, isa)                                          \
                                                                            \
void                                                                        \
di_##name##_norm_##isa(const di_cpu_norm_t *a, size_t r0, size_t r1)        \
{                                                                           \
    di_norm16(arith, a, r0, r1);                                            \
}                                                                           \
                                                                            \
void                                                                        \
di_##name##_silu_mul_##isa(const di_cpu_silu_t *a, size_t r0, size_t r1)    \
{                                                                           \
    di_silu_mul16(arith, a, r0, r1);                                        \
}                                                                           \
                                                                            \
void                                                                        \
di_##name##_convert_##isa(const di_cpu_convert_t *a, size_t r0, size_t r1)  \
{                                                                           \
    di_convert16(arith, a, r0, r1);                                         \
}                                                                           \
                                                                            \
void                                                                        \
di_##name##_rope_store_##isa(const di_cpu_rope_t *a, const int32_t *table,  \
                             size_t r0, size_t r1)                          \
{                                                                           \
    di_rope_store16((arith) == DI_ARITH_F32 ? di_store_f32_16               \
                                            : di_store_bf16_16,             \
                    a, table, r0, r1);                                      \
}                                                                           \
                                                                            \
void                                                                        \
di_##name##_attention_##isa(const di_cpu_attn_t *a,                         \
                            const di_cpu_attn_item_t *item, void *scratch)  \
{                                                                           \
    di_attention16(arith, a, item, scratch);                                \
}                                                                           \
                                                                            \
void                                                                        \
di_##name##_kv_copy_##isa(const di_cpu_kv_t *kv, uint8_t *dst,              \
                          const uint8_t *src, uint32_t n_tokens)            \
{                                                                           \
    di_kv_copy16(arith, kv, dst, src, n_tokens);                            \
}

#endif

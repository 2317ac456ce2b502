/*
 * attention_ref.c - reference of rotation, KV cache and attention.
 *
 * Softmax in double over all keys of a row at once.  Only the inputs are
 * rounded as the arithmetic says: K and V when they are stored, and in BF16
 * the query, which enters a bfloat16 product.
 */

#include "mx.h"
#include "ref.h"

#include <math.h>
#include <string.h>

static size_t
k_index(di_arith_t arith, size_t t, size_t d)
{
    if (arith == DI_ARITH_F32)
        return d * DI_CPU_KV_TOKENS + t;
    return d / 2 * (2 * DI_CPU_KV_TOKENS) + t * 2 + d % 2;
}

static size_t
v_index(di_arith_t arith, size_t head_dim, size_t t, size_t d)
{
    if (arith == DI_ARITH_F32)
        return t * head_dim + d;
    return t / 2 * (2 * head_dim) + d * 2 + t % 2;
}

static void
put(di_arith_t arith, uint8_t *region, size_t i, float x)
{
    if (arith == DI_ARITH_F32)
        ((float *) (void *) region)[i] = x;
    else
        ((uint16_t *) (void *) region)[i] = di_f32_to_bf16(x);
}

static float
get(di_arith_t arith, const uint8_t *region, size_t i)
{
    if (arith == DI_ARITH_F32)
        return ((const float *) (const void *) region)[i];
    return di_bf16_to_f32(((const uint16_t *) (const void *) region)[i]);
}

/* Angles are float32 products, as the models were trained with. */
static void
rotate(float *x, size_t head_dim, int32_t position, const float *freqs,
       di_rope_style_t style)
{
    size_t half = head_dim / 2, a, b;
    double c, s;
    float x0, x1;

    for (size_t i = 0; i < half; i++) {
        a = style == DI_ROPE_PAIRS ? 2 * i : i;
        b = style == DI_ROPE_PAIRS ? 2 * i + 1 : i + half;
        c = cos((double) ((float) position * freqs[i]));
        s = sin((double) ((float) position * freqs[i]));
        x0 = x[a];
        x1 = x[b];
        x[a] = (float) (x0 * c - x1 * s);
        x[b] = (float) (x0 * s + x1 * c);
    }
}

void
di_ref_rope_store(di_arith_t arith, const di_cpu_rope_t *a,
                  const int32_t *table, size_t r0, size_t r1)
{
    size_t hd = a->kv.head_dim, n_kv = a->kv.n_kv_heads;
    size_t width = (a->n_heads + 2 * n_kv) * hd;
    float *row, *k, *v;
    uint8_t *region;
    size_t t;

    for (size_t r = r0; r < r1; r++) {
        row = a->qkv + r * width;
        for (size_t h = 0; h < a->n_heads + n_kv; h++)
            rotate(row + h * hd, hd, a->positions[r], a->freqs, a->style);

        t = (size_t) a->positions[r] % DI_CPU_KV_TOKENS;
        for (size_t h = 0; h < n_kv; h++) {
            k = row + (a->n_heads + h) * hd;
            v = k + n_kv * hd;
            region = di_cpu_kv_region(
                &a->kv, table[a->positions[r] / DI_CPU_KV_TOKENS],
                (uint32_t) h);
            for (size_t d = 0; d < hd; d++) {
                put(arith, region, k_index(arith, t, d), k[d]);
                put(arith, region + a->kv.region_bytes,
                    v_index(arith, hd, t, d), v[d]);
            }
        }
    }
}

/* One row and query head.  Two passes over the keys: the largest product,
 * then the sums. */
static void
attend(di_arith_t arith, const di_cpu_attn_t *a,
       const di_cpu_attn_item_t *item, const float *q, int32_t last,
       float *out)
{
    size_t hd = a->kv.head_dim;
    double sums[DI_CPU_HEAD_MAX] = { 0 };
    double max = -INFINITY, total = 0, p = 0;
    const uint8_t *region;

    for (int pass = 0; pass < 2; pass++) {
        for (int32_t t = 0; t <= last; t++) {
            double dot = 0;

            region = di_cpu_kv_region(
                &a->kv, item->table[t / DI_CPU_KV_TOKENS], item->kv_head);
            for (size_t d = 0; d < hd; d++)
                dot += (double) q[d]
                       * get(arith, region,
                             k_index(arith, t % DI_CPU_KV_TOKENS, d));
            dot *= (double) a->scale;

            if (pass == 0) {
                max = dot > max ? dot : max;
                continue;
            }
            p = exp(dot - max);
            total += p;
            region += a->kv.region_bytes;
            for (size_t d = 0; d < hd; d++)
                sums[d] += p * get(arith, region,
                                   v_index(arith, hd, t % DI_CPU_KV_TOKENS,
                                           d));
        }
    }

    for (size_t d = 0; d < hd; d++)
        out[d] = (float) (sums[d] / total);
}

/* A head's part of an activation row: what is behind the values (sums,
 * scales) lies behind those of all heads; the last one pads it. */
static void
put_head(di_arith_t arith, const float *x, size_t head, size_t hd, size_t k,
         uint8_t *row)
{
    uint8_t piece[DI_CPU_HEAD_MAX * 6 + 64];
    size_t b = hd / 32, end = k / 32 * 8;

    di_ref_act(arith, x, hd, piece);
    if (arith == DI_ARITH_F32) {
        memcpy(row + head * hd * 4, piece, hd * 4);
    } else if (arith == DI_ARITH_MX) {
        memcpy(row + head * hd * 2, piece, hd * 2);
        memcpy(row + di_mx_high_at(k) + head * hd * 2,
               piece + di_mx_high_at(hd), hd * 2);
        memcpy(row + di_mx_low_at(k) + head * hd * 2,
               piece + di_mx_low_at(hd), hd * 2);
    } else if (arith == DI_ARITH_BF16) {
        memcpy(row + head * hd * 2, piece, hd * 2);
        memcpy(row + k * 2 + head * b * 8, piece + hd * 2, b * 8);
        if ((head + 1) * hd == k)
            memset(row + k * 2 + end, 0, (end + 63) / 64 * 64 - end);
    } else {
        memcpy(row + head * hd, piece, hd);
        memcpy(row + k + head * b * 4, piece + hd, b * 4);
        memcpy(row + k + k / 32 * 4 + head * b * 4, piece + hd + b * 4,
               b * 4);
        memcpy(row + k + k / 32 * 8 + head * b * 4, piece + hd + b * 8,
               b * 4);
    }
}

void
di_ref_attention(di_arith_t arith, const di_cpu_attn_t *a,
                 const di_cpu_attn_item_t *item)
{
    size_t hd = a->kv.head_dim, group = a->n_heads / a->kv.n_kv_heads;
    size_t width = (a->n_heads + 2 * a->kv.n_kv_heads) * hd;
    float q[DI_CPU_HEAD_MAX], out[DI_CPU_HEAD_MAX];
    size_t row, head;

    for (size_t i = 0; i < item->n_rows; i++) {
        row = item->first_row + i;
        for (size_t h = 0; h < group; h++) {
            head = item->kv_head * group + h;
            for (size_t d = 0; d < hd; d++) {
                q[d] = a->qkv[row * width + head * hd + d];
                if (arith == DI_ARITH_BF16)
                    q[d] = di_bf16_to_f32(di_f32_to_bf16(q[d]));
            }
            attend(arith, a, item, q, a->positions[row], out);
            put_head(arith, out, head, hd, a->n_heads * hd,
                     a->y + row * a->y_stride);
        }
    }
}

void
di_ref_kv_copy(di_arith_t arith, const di_cpu_kv_t *kv, uint8_t *dst,
               const uint8_t *src, uint32_t n_tokens)
{
    size_t size = arith == DI_ARITH_F32 ? 4 : 2, i;

    for (size_t t = 0; t < n_tokens; t++) {
        for (size_t d = 0; d < kv->head_dim; d++) {
            i = k_index(arith, t, d) * size;
            memcpy(dst + i, src + i, size);
            i = v_index(arith, kv->head_dim, t, d) * size + kv->region_bytes;
            memcpy(dst + i, src + i, size);
        }
    }
}

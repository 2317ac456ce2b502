/*
 * rows_bf16_amx.c - row-wise operators of DI_ARITH_BF16 for CPUs with AMX:
 * RMS norm, gated SiLU, rotation and storing of K and V.
 *
 * Plain AVX-512; they read and write a few KB per row.
 */

#include "amx.h"
#include "rows16.h"

#include <math.h>

void
di_amx_norm(const di_cpu_norm_t *a, size_t r0, size_t r1)
{
    __m512 v0, v1, s0, s1, factor;
    const float *add, *w = a->w;
    uint8_t *y;
    size_t row;
    float *x;

    for (size_t r = r0; r < r1; r++) {
        row = a->rows ? (size_t) a->rows[r] : r;
        x = a->x + row * a->k;
        s0 = s1 = _mm512_setzero_ps();
        add = a->add ? a->add + row * a->k : NULL;
        for (size_t i = 0; i < a->k; i += 32) {
            v0 = _mm512_loadu_ps(x + i);
            v1 = _mm512_loadu_ps(x + i + 16);
            if (add) {
                v0 = _mm512_add_ps(v0, _mm512_loadu_ps(add + i));
                v1 = _mm512_add_ps(v1, _mm512_loadu_ps(add + i + 16));
                _mm512_storeu_ps(x + i, v0);
                _mm512_storeu_ps(x + i + 16, v1);
            }
            s0 = _mm512_fmadd_ps(v0, v0, s0);
            s1 = _mm512_fmadd_ps(v1, v1, s1);
        }
        factor = _mm512_set1_ps(
            1.0f / sqrtf(di_sum512(_mm512_add_ps(s0, s1)) / (float) a->k
                         + a->eps));

        y = a->y + r * a->y_stride;
        for (size_t i = 0; i < a->k; i += 32) {
            v0 = _mm512_mul_ps(_mm512_loadu_ps(x + i), factor);
            v1 = _mm512_mul_ps(_mm512_loadu_ps(x + i + 16), factor);
            v0 = _mm512_mul_ps(v0, _mm512_loadu_ps(w + i));
            v1 = _mm512_mul_ps(v1, _mm512_loadu_ps(w + i + 16));
            di_amx_put_block(y, a->k, i / 32, v0, v1);
        }
        di_amx_pad_sums(y, a->k);
    }
}

/* The bounds come first: what is not a number stays that. */
DI_AMX_INLINE __m512
silu_mul(const float *gate, const float *up, __m512 limit, __m512 c)
{
    __m512 g = _mm512_min_ps(limit, _mm512_loadu_ps(gate)), e, u;

    u = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit),
                      _mm512_min_ps(limit, _mm512_loadu_ps(up)));
    e = di_exp512(_mm512_sub_ps(_mm512_setzero_ps(), g));
    g = _mm512_div_ps(g, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
    return _mm512_mul_ps(_mm512_mul_ps(g, u), c);
}

void
di_amx_silu_mul(const di_cpu_silu_t *a, size_t r0, size_t r1)
{
    __m512 limit = _mm512_set1_ps(a->limit), c;
    const float *gate, *up;
    uint8_t *y;

    for (size_t r = r0; r < r1; r++) {
        gate = a->gu + r * 2 * a->k;
        up = gate + a->k;
        c = _mm512_set1_ps(a->c ? a->c[r] : 1.0f);
        y = a->y + r * a->y_stride;
        for (size_t i = 0; i < a->k; i += 32)
            di_amx_put_block(y, a->k, i / 32,
                             silu_mul(gate + i, up + i, limit, c),
                             silu_mul(gate + i + 16, up + i + 16, limit, c));
        di_amx_pad_sums(y, a->k);
    }
}

void
di_amx_convert(const di_cpu_convert_t *a, size_t r0, size_t r1)
{
    const float *x;
    uint8_t *y;

    for (size_t r = r0; r < r1; r++) {
        x = a->x + r * a->k;
        y = a->y + r * a->y_stride;
        for (size_t i = 0; i < a->k; i += 32)
            di_amx_put_block(y, a->k, i / 32, _mm512_loadu_ps(x + i),
                             _mm512_loadu_ps(x + i + 16));
        di_amx_pad_sums(y, a->k);
    }
}

/* Token t of a block: pairs of K values go to the rows of its tiles, V
 * values to every second place of a row. */
static void
store_token(uint8_t *region, size_t region_bytes, size_t head_dim, size_t t,
            const float *k, const float *v)
{
    const __m512i rows = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1,
                         0),
        _mm512_set1_epi32(DI_CPU_KV_TOKENS));
    __mmask32 mask = t % 2 ? 0xaaaaaaaau : 0x55555555u;
    uint32_t *to_k = (uint32_t *) (void *) region + t;
    uint16_t *to_v = (uint16_t *) (void *) (region + region_bytes)
                     + t / 2 * 2 * head_dim;
    __m512i x;

    for (size_t d = 0; d < head_dim; d += 32) {
        x = (__m512i) _mm512_cvtne2ps_pbh(_mm512_loadu_ps(k + d + 16),
                                          _mm512_loadu_ps(k + d));
        _mm512_i32scatter_epi32(to_k + d / 2 * DI_CPU_KV_TOKENS, rows, x, 4);
    }
    for (size_t d = 0; d < head_dim; d += 16) {
        x = _mm512_cvtepu16_epi32(
            (__m256i) _mm512_cvtneps_pbh(_mm512_loadu_ps(v + d)));
        if (t % 2)
            x = _mm512_slli_epi32(x, 16);
        _mm512_mask_storeu_epi16(to_v + d * 2, mask, x);
    }
}

void
di_amx_rope_store(const di_cpu_rope_t *a, const int32_t *table, size_t r0,
                  size_t r1)
{
    di_rope_store16(store_token, a, table, r0, r1);
}

/* Whole rows of tiles where the tokens fill them, else by mask. */
void
di_amx_kv_copy(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,
               uint32_t n_tokens)
{
    __mmask16 mask = (__mmask16) ((1u << n_tokens) - 1);
    size_t pair_bytes = kv->head_dim * 4;
    const uint8_t *v = src + kv->region_bytes;
    uint8_t *to = dst + kv->region_bytes;

    for (size_t i = 0; i < kv->region_bytes; i += 64)
        _mm512_mask_storeu_epi32(dst + i, mask,
                                 _mm512_maskz_loadu_epi32(mask, src + i));
    memcpy(to, v, n_tokens / 2 * pair_bytes);
    if (n_tokens % 2 == 0)
        return;
    v += n_tokens / 2 * pair_bytes;
    to += n_tokens / 2 * pair_bytes;
    for (size_t i = 0; i < pair_bytes; i += 64)
        _mm512_mask_storeu_epi16(to + i, 0x55555555u,
                                 _mm512_maskz_loadu_epi16(0x55555555u,
                                                          v + i));
}

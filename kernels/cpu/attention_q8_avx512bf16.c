/*
 * attention_q8_avx512bf16.c - attention of DI_ARITH_Q8 with products of
 * bfloat16 (VDPBF16PS), which are twice as many as those of float32.
 *
 * K and V are bfloat16 in the cache, in pairs as that instruction takes them
 * (ref.h): dimensions of K, tokens of V.  Queries and weights are rounded to
 * it as well, sums are float32.
 *
 * Queries that share a KV head (rows of a sequence times heads of the group)
 * go over their keys a tile at a time, in segments of 256 keys aligned to
 * positions.  Per segment: all products q.k, in powers of 2; weights
 * 2^(product - the largest so far) and their sum; then V times the weights is
 * added to the sums so far, which are first scaled to the new largest.  Each
 * sum is one chain over dimensions or keys, for any number of queries in the
 * tile, so neither the batch nor its neighbours change a query's bits.
 *
 * Keys behind a query's own have weight 0; what no row has written yet may be
 * anything and is never multiplied by V's weights.
 */

#include "rows16.h"
#include "vec512.h"

#define QUERIES  12              /* of a tile: 24 sums in registers         */
#define SEGMENT  DI_CPU_KV_SEGMENT
#define TOKENS   DI_CPU_KV_TOKENS
#define UNROLL   _Pragma("GCC unroll 12")

typedef struct {
    uint32_t q[DI_CPU_HEAD_MAX / 2][QUERIES];    /* pairs of bfloat16       */
    float    products[QUERIES][SEGMENT];
    uint32_t weights[QUERIES][SEGMENT / 2];      /* pairs of bfloat16       */
    float    sums[QUERIES][DI_CPU_HEAD_MAX];     /* of weights times V      */
    float    max[QUERIES];       /* of products so far                      */
    float    total[QUERIES];     /* of weights so far                       */
    float    scale[QUERIES];     /* of sums, to the segment's largest       */
    size_t   keys[QUERIES];      /* that each query has                     */
    size_t   row[QUERIES];
    size_t   head[QUERIES];
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_CPU_SCRATCH, "scratch is too small");

static const uint8_t *
block_of(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item, size_t b)
{
    return di_cpu_kv_region(&a->kv, item->table[b], item->kv_head);
}

DI_INLINE16 __m512
dot(__m512 sum, uint32_t pair, __m512i x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh) _mm512_set1_epi32((int) pair),
                            (__m512bh) x);
}

/* Products of n queries with the 32 keys of two blocks, times factor. */
DI_INLINE16 void
make_products(scratch_t *s, const uint8_t *k0, const uint8_t *k1, size_t hd,
              size_t at, __m512 factor, const size_t n)
{
    __m512 sum[QUERIES][2];
    __m512i x0, x1;

    UNROLL
    for (size_t i = 0; i < n; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (size_t d = 0; d < hd / 2; d++) {
        x0 = _mm512_loadu_si512(k0 + d * 64);
        x1 = _mm512_loadu_si512(k1 + d * 64);
        UNROLL
        for (size_t i = 0; i < n; i++) {
            sum[i][0] = dot(sum[i][0], s->q[d][i], x0);
            sum[i][1] = dot(sum[i][1], s->q[d][i], x1);
        }
    }
    UNROLL
    for (size_t i = 0; i < n; i++) {
        _mm512_storeu_ps(&s->products[i][at],
                         _mm512_mul_ps(sum[i][0], factor));
        _mm512_storeu_ps(&s->products[i][at + 16],
                         _mm512_mul_ps(sum[i][1], factor));
    }
}

/* Products of query i to weights: its n keys of the segment (0: it has none),
 * then zeros up to n_all. */
static void
make_weights(scratch_t *s, size_t i, size_t n, size_t n_all)
{
    const __m512 low = _mm512_set1_ps(s->max[i]);
    __m512 max = low, total = _mm512_setzero_ps(), w[2];
    const float *x = s->products[i];
    size_t j, left;

    for (j = 0; j + 16 <= n; j += 16)
        max = _mm512_max_ps(max, _mm512_loadu_ps(x + j));
    if (j < n)
        max = _mm512_max_ps(max, di_first16(_mm512_loadu_ps(x + j), n - j,
                                            low));
    max = _mm512_set1_ps(di_largest16(max));
    s->scale[i] = _mm512_cvtss_f32(di_exp2_512(_mm512_sub_ps(low, max)));
    s->max[i] = _mm512_cvtss_f32(max);

    for (j = 0; j < n_all; j += 32) {
        for (size_t h = 0; h < 2; h++) {
            left = j + h * 16 >= n ? 0 : n - j - h * 16;
            w[h] = di_exp2_512(_mm512_sub_ps(_mm512_loadu_ps(x + j + h * 16),
                                             max));
            if (left < 16)
                w[h] = di_first16(w[h], left, _mm512_setzero_ps());
            total = _mm512_add_ps(total, w[h]);
        }
        _mm512_storeu_si512(&s->weights[i][j / 2],
                            (__m512i) _mm512_cvtne2ps_pbh(w[1], w[0]));
    }
    s->total[i] = s->total[i] * s->scale[i] + di_sum16(total);
}

/* A pair of tokens' values of 32 dimensions, times their weights; tokens: a
 * mask of both or the first alone. */
DI_INLINE16 void
add_pair(const scratch_t *s, const uint8_t *v, size_t pair, __mmask32 tokens,
         __m512 (*sum)[2], const size_t n)
{
    __m512i x0 = _mm512_maskz_loadu_epi16(tokens, v);
    __m512i x1 = _mm512_maskz_loadu_epi16(tokens, v + 64);

    UNROLL
    for (size_t i = 0; i < n; i++) {
        sum[i][0] = dot(sum[i][0], s->weights[i][pair], x0);
        sum[i][1] = dot(sum[i][1], s->weights[i][pair], x1);
    }
}

/* Weights of n queries times V, for dimensions d to d + 31: n_keys keys in
 * blocks from the item's block first on. */
DI_INLINE16 void
add_values(scratch_t *s, const di_cpu_attn_t *a,
           const di_cpu_attn_item_t *item, size_t first, size_t n_keys,
           size_t d, const size_t n)
{
    const size_t pair_bytes = a->kv.head_dim * 4, n_pairs = n_keys / 2;
    __m512 sum[QUERIES][2], scale;
    const uint8_t *v = NULL;

    UNROLL
    for (size_t i = 0; i < n; i++) {
        scale = _mm512_set1_ps(s->scale[i]);
        sum[i][0] = _mm512_mul_ps(_mm512_loadu_ps(&s->sums[i][d]), scale);
        sum[i][1] = _mm512_mul_ps(_mm512_loadu_ps(&s->sums[i][d + 16]),
                                  scale);
    }
    for (size_t p = 0; p < (n_keys + 1) / 2; p++, v += pair_bytes) {
        if (p % (TOKENS / 2) == 0)
            v = block_of(a, item, first + p / (TOKENS / 2))
                + a->kv.region_bytes + d * 4;
        if (p == n_pairs)
            add_pair(s, v, p, 0x55555555u, sum, n);
        else
            add_pair(s, v, p, 0xffffffffu, sum, n);
    }
    UNROLL
    for (size_t i = 0; i < n; i++) {
        _mm512_storeu_ps(&s->sums[i][d], sum[i][0]);
        _mm512_storeu_ps(&s->sums[i][d + 16], sum[i][1]);
    }
}

DI_INLINE16 void
attend(scratch_t *s, const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
       const size_t n)
{
    const __m512 factor = _mm512_set1_ps(a->scale * 0x1.715476p+0f);
    size_t hd = a->kv.head_dim, keys = 0, count, own, blocks, first;

    for (size_t i = 0; i < n; i++)
        keys = s->keys[i] > keys ? s->keys[i] : keys;

    for (size_t k0 = 0; k0 < keys; k0 += SEGMENT) {
        count = keys - k0 < SEGMENT ? keys - k0 : SEGMENT;
        blocks = (count + TOKENS - 1) / TOKENS;
        first = k0 / TOKENS;
        /* The second of the last two, if there is none, is the first. */
        for (size_t j = 0; j < blocks; j += 2)
            make_products(s, block_of(a, item, first + j),
                          block_of(a, item, first + (j + 1 < blocks ? j + 1
                                                                    : j)),
                          hd, j * TOKENS, factor, n);
        for (size_t i = 0; i < n; i++) {
            own = s->keys[i] < k0 ? 0 : s->keys[i] - k0;
            make_weights(s, i, own < count ? own : count, count);
        }
        for (size_t d = 0; d < hd; d += 32)
            add_values(s, a, item, first, count, d, n);
    }
}

/* Query i of the tile. */
static void
load_query(scratch_t *s, const di_cpu_attn_t *a, size_t i, size_t row,
           size_t head)
{
    const size_t hd = a->kv.head_dim;
    const float *q = a->qkv
                     + row * (a->n_heads + 2 * a->kv.n_kv_heads) * hd
                     + head * hd;
    uint32_t pairs[16];

    s->row[i] = row;
    s->head[i] = head;
    s->keys[i] = (size_t) a->positions[row] + 1;
    s->max[i] = -INFINITY;
    s->total[i] = 0;
    memset(s->sums[i], 0, hd * sizeof(float));
    for (size_t d = 0; d < hd; d += 32) {
        _mm512_storeu_si512(pairs, (__m512i) _mm512_cvtne2ps_pbh(
                                _mm512_loadu_ps(q + d + 16),
                                _mm512_loadu_ps(q + d)));
        for (size_t j = 0; j < 16; j++)
            s->q[d / 2 + j][i] = pairs[j];
    }
}

static void
put_query(const scratch_t *s, const di_cpu_attn_t *a, size_t i)
{
    const size_t hd = a->kv.head_dim;
    const __m512 factor = _mm512_set1_ps(1.0f / s->total[i]);

    for (size_t d = 0; d < hd; d += 32)
        di_q8_put_block16(a->y + s->row[i] * a->y_stride, a->n_heads * hd,
                          (s->head[i] * hd + d) / 32,
                          _mm512_mul_ps(_mm512_loadu_ps(&s->sums[i][d]),
                                        factor),
                          _mm512_mul_ps(_mm512_loadu_ps(&s->sums[i][d + 16]),
                                        factor));
}

/* A constant for the compiler: so many chains of sums. */
#define ATTEND(n)                                                           \
    case n:                                                                 \
        attend(s, a, item, n);                                              \
        break

static void
attend_tile(scratch_t *s, const di_cpu_attn_t *a,
            const di_cpu_attn_item_t *item, size_t n)
{
    switch (n) {
    ATTEND(1);
    ATTEND(2);
    ATTEND(3);
    ATTEND(4);
    ATTEND(5);
    ATTEND(6);
    ATTEND(7);
    ATTEND(8);
    ATTEND(9);
    ATTEND(10);
    ATTEND(11);
    default:
    ATTEND(QUERIES);
    }
}

void
di_q8_attention_avx512bf16(const di_cpu_attn_t *a,
                           const di_cpu_attn_item_t *item, void *scratch)
{
    size_t group = a->n_heads / a->kv.n_kv_heads;
    size_t all = item->n_rows * group, n;
    scratch_t *s = scratch;

    for (size_t q = 0; q < all; q += n) {
        n = all - q < QUERIES ? all - q : QUERIES;
        for (size_t i = 0; i < n; i++)
            load_query(s, a, i, item->first_row + (q + i) / group,
                       item->kv_head * group + (q + i) % group);
        attend_tile(s, a, item, n);
        for (size_t i = 0; i < n; i++)
            put_query(s, a, i);
    }
}

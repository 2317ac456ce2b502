/*
 * attention_bf16_amx.c - attention of DI_ARITH_BF16 on AMX.
 *
 * A tile of up to 16 queries (rows of a sequence times query heads that share
 * a KV head) goes over its keys in segments of 256, aligned to positions.
 * Per segment: all products q.k, by tiles of 16 keys; each query's largest
 * product, weights 2^(product - largest) in bfloat16 and their sum; weights
 * times V, summed over the segment in AMX tiles.  Then the segment is merged
 * into what the earlier ones gave, scaled to the larger of both maxima.  Since
 * segments are the same for every row, chunk and batch, so are the bits.
 *
 * K and V of a block lie in memory as tiles of the second operand (ref.h).
 * Tokens of the last block that no row has written yet may hold anything:
 * their weights are zero, and V is copied with zeros in their place, since
 * zero times infinity is not zero.
 */

#include "amx.h"

#include <math.h>

#define SEGMENT     DI_CPU_KV_SEGMENT
#define TOKENS      DI_CPU_KV_TOKENS
#define BLOCKS      (SEGMENT / TOKENS)
#define QUERIES     16
#define FETCH       3            /* blocks ahead                            */

typedef struct {
    uint16_t q[QUERIES][DI_CPU_HEAD_MAX];        /* bfloat16                */
    float    products[QUERIES][SEGMENT];
    uint16_t weights[QUERIES][SEGMENT];          /* bfloat16                */
    float    values[QUERIES][DI_CPU_HEAD_MAX];   /* of the segment          */
    float    sums[QUERIES][DI_CPU_HEAD_MAX];     /* of segments so far      */
    uint8_t  tail[TOKENS * DI_CPU_HEAD_MAX * 2]; /* V of the last block     */
    float    max[QUERIES];       /* of products so far, in powers of 2      */
    float    total[QUERIES];     /* of weights so far                       */
    float    seg_max[QUERIES];
    float    seg_total[QUERIES];
    int32_t  last[QUERIES];      /* position of each query                  */
    size_t   row[QUERIES];       /* its row and head                        */
    size_t   head[QUERIES];
    size_t   n;                  /* queries                                 */
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_AMX_SCRATCH_FREE, "scratch is too big");

/* Sums in tiles 0 to 3; 4 and 5 multiply q and K, 6 and 7 weights and V. */
static void
configure(size_t n)
{
    di_amx_tiles_t t = { 0 };

    for (int i = 0; i < 4; i++)
        di_amx_tile(&t, i, n, 64);
    di_amx_tile(&t, 4, n, 64);
    di_amx_tile(&t, 5, 16, 64);
    di_amx_tile(&t, 6, n, 32);
    di_amx_tile(&t, 7, 8, 64);
    di_amx_configure(&t);
}

static const uint8_t *
block_of(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item, size_t b)
{
    return di_cpu_kv_region(&a->kv, item->table[b], item->kv_head);
}

/* Fetch the V values of a block, and the K values of one further on. */
static inline void
fetch(const uint8_t *v, const uint8_t *k, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *) v + i, _MM_HINT_T1);
        _mm_prefetch((const char *) k + i, _MM_HINT_T1);
    }
}

#define PRODUCT_STEP(C, C_OLD)                                              \
    do {                                                                    \
        if (j < n) {                                                        \
            k = block_of(a, item, first + j);                               \
            if (few)                                                        \
                fetch(k + a->kv.region_bytes,                               \
                      block_of(a, item,                                     \
                               first + (j + FETCH < n ? j + FETCH : j)),    \
                      a->kv.region_bytes);                                  \
            _tile_zero(C);                                                  \
            for (size_t d = 0; d < hd; d += 32) {                           \
                _tile_loadd(4, &s->q[0][d], sizeof(s->q[0]));               \
                _tile_loadd(5, k + d * 32, 64);                             \
                _tile_dpbf16ps(C, 4, 5);                                    \
            }                                                               \
        }                                                                   \
        if (j >= 2)                                                         \
            _tile_stored(C_OLD, &s->products[0][(j - 2) * 16],              \
                         sizeof(s->products[0]));                           \
        if (++j == n + 2)                                                   \
            return;                                                         \
    } while (0)

/* q.k for n blocks from block first; sums are stored two blocks late, which
 * keeps AMX busy. */
static void
make_products(scratch_t *s, const di_cpu_attn_t *a,
              const di_cpu_attn_item_t *item, size_t first, size_t n)
{
    size_t hd = a->kv.head_dim, j = 0;
    bool few = s->n < QUERIES / 2;               /* bound by reading        */
    const uint8_t *k;

    for (;;) {
        PRODUCT_STEP(0, 1);
        PRODUCT_STEP(1, 2);
        PRODUCT_STEP(2, 0);
    }
}

/* Weights of query i over its n keys of the segment (0: it has none), zeros
 * up to n_all keys. */
static void
make_weights(scratch_t *s, size_t i, size_t n, size_t n_all, __m512 factor)
{
    const float *x = s->products[i];
    __m512 max = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    __m512 w[2], low;
    __mmask16 mask;
    size_t j;

    low = max;
    for (j = 0; j + 16 <= n; j += 16)
        max = _mm512_max_ps(max,
                            _mm512_mul_ps(_mm512_load_ps(x + j), factor));
    if (j < n) {
        mask = (__mmask16) ((1u << (n - j)) - 1);
        max = _mm512_mask_max_ps(max, mask, max,
                                 _mm512_mul_ps(_mm512_load_ps(x + j),
                                               factor));
    }
    s->seg_max[i] = _mm512_reduce_max_ps(max);
    max = _mm512_set1_ps(s->seg_max[i]);

    for (j = 0; j < n_all; j += 32) {
        for (size_t h = 0; h < 2; h++) {
            if (j + h * 16 >= n) {
                w[h] = _mm512_setzero_ps();
                continue;
            }
            w[h] = _mm512_fmsub_ps(_mm512_load_ps(x + j + h * 16), factor,
                                   max);
            if (j + h * 16 + 16 > n)
                w[h] = _mm512_mask_mov_ps(
                    low, (__mmask16) ((1u << (n - j - h * 16)) - 1), w[h]);
            w[h] = di_exp2_coarse512(w[h]);
            total = _mm512_add_ps(total, w[h]);
        }
        _mm512_store_si512(&s->weights[i][j],
                           (__m512i) _mm512_cvtne2ps_pbh(w[1], w[0]));
    }
    s->seg_total[i] = di_sum512(total);
}

/* V of the last block with zeros for tokens from n on. */
static const uint8_t *
clean_tail(scratch_t *s, const uint8_t *v, size_t n, size_t hd)
{
    __mmask32 mask = n % 2 ? 0x55555555u : 0;
    __m512i x;

    for (size_t p = 0; p < TOKENS / 2; p++) {
        for (size_t i = 0; i < hd * 4; i += 64) {
            x = _mm512_loadu_si512(v + p * hd * 4 + i);
            if (p >= n / 2)
                x = p == n / 2 ? _mm512_maskz_mov_epi16(mask, x)
                               : _mm512_setzero_si512();
            _mm512_store_si512(s->tail + p * hd * 4 + i, x);
        }
    }
    return s->tail;
}

/* Weights times V: up to 64 dimensions at a time, a tile for each 16. */
static void
make_values(scratch_t *s, const di_cpu_attn_t *a,
            const di_cpu_attn_item_t *item, size_t first, size_t n,
            size_t n_keys)
{
    size_t hd = a->kv.head_dim, stride = hd * 4;
    const uint8_t *v;

    for (size_t d = 0; d < hd; d += 64) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t j = 0; j < n; j++) {
            v = block_of(a, item, first + j) + a->kv.region_bytes;
            if ((j + 1) * TOKENS > n_keys)
                v = clean_tail(s, v, n_keys - j * TOKENS, hd);
            di_amx_fence();
            v += d * 4;
            _tile_loadd(6, &s->weights[0][j * TOKENS], sizeof(s->weights[0]));
            _tile_loadd(7, v, stride);
            _tile_dpbf16ps(0, 6, 7);
            _tile_loadd(7, v + 64, stride);
            _tile_dpbf16ps(1, 6, 7);
            if (d + 32 < hd) {
                _tile_loadd(7, v + 128, stride);
                _tile_dpbf16ps(2, 6, 7);
                _tile_loadd(7, v + 192, stride);
                _tile_dpbf16ps(3, 6, 7);
            }
        }
        _tile_stored(0, &s->values[0][d], sizeof(s->values[0]));
        _tile_stored(1, &s->values[0][d + 16], sizeof(s->values[0]));
        if (d + 32 < hd) {
            _tile_stored(2, &s->values[0][d + 32], sizeof(s->values[0]));
            _tile_stored(3, &s->values[0][d + 48], sizeof(s->values[0]));
        }
    }
    di_amx_fence();
}

/* A segment's values into the sums: both scaled to the larger maximum. */
static void
merge(scratch_t *s, size_t i, size_t hd)
{
    float max = fmaxf(s->max[i], s->seg_max[i]);
    __m512 scale[2], v;
    __m128 e;

    v = di_exp2_coarse512(_mm512_set1_ps(s->max[i] - max));
    scale[0] = v;
    e = _mm512_castps512_ps128(v);
    v = di_exp2_coarse512(_mm512_set1_ps(s->seg_max[i] - max));
    scale[1] = v;
    s->total[i] = s->total[i] * _mm_cvtss_f32(e)
                  + s->seg_total[i]
                    * _mm_cvtss_f32(_mm512_castps512_ps128(v));
    s->max[i] = max;
    for (size_t d = 0; d < hd; d += 16) {
        v = _mm512_mul_ps(_mm512_load_ps(&s->sums[i][d]), scale[0]);
        v = _mm512_fmadd_ps(_mm512_load_ps(&s->values[i][d]), scale[1], v);
        _mm512_store_ps(&s->sums[i][d], v);
    }
}

/* Query i: its row, its head of the group, and q rounded. */
static void
load_query(scratch_t *s, const di_cpu_attn_t *a, size_t i, size_t row,
           size_t head)
{
    size_t hd = a->kv.head_dim;
    const float *q = a->qkv
                     + row * (a->n_heads + 2 * a->kv.n_kv_heads) * hd
                     + head * hd;

    s->row[i] = row;
    s->head[i] = head;
    s->last[i] = a->positions[row];
    s->max[i] = -INFINITY;
    s->total[i] = 0;
    for (size_t d = 0; d < hd; d += 32) {
        _mm512_store_si512(&s->q[i][d],
                           (__m512i) _mm512_cvtne2ps_pbh(
                               _mm512_loadu_ps(q + d + 16),
                               _mm512_loadu_ps(q + d)));
        _mm512_store_ps(&s->sums[i][d], _mm512_setzero_ps());
        _mm512_store_ps(&s->sums[i][d + 16], _mm512_setzero_ps());
    }
}

static void
put_query(const scratch_t *s, const di_cpu_attn_t *a, size_t i)
{
    size_t hd = a->kv.head_dim, k = a->n_heads * hd;
    uint8_t *y = a->y + s->row[i] * a->y_stride;
    __m512 factor = _mm512_set1_ps(1.0f / s->total[i]);

    for (size_t d = 0; d < hd; d += 32)
        di_amx_put_block(y, k, (s->head[i] * hd + d) / 32,
                         _mm512_mul_ps(_mm512_load_ps(&s->sums[i][d]),
                                       factor),
                         _mm512_mul_ps(_mm512_load_ps(&s->sums[i][d + 16]),
                                       factor));
    if (s->head[i] + 1 == a->n_heads)
        di_amx_pad_sums(y, k);
}

/* All keys of segment g that a query of the tile sees: weights and values. */
static void
do_segment(scratch_t *s, const di_cpu_attn_t *a,
           const di_cpu_attn_item_t *item, size_t g, size_t keys)
{
    __m512 factor = _mm512_set1_ps(a->scale * 0x1.715476p+0f);
    size_t k0 = g * SEGMENT, own;
    size_t count = keys - k0 < SEGMENT ? keys - k0 : SEGMENT;
    size_t blocks = (count + TOKENS - 1) / TOKENS;

    di_amx_fence();
    make_products(s, a, item, k0 / TOKENS, blocks);
    di_amx_fence();
    for (size_t i = 0; i < s->n; i++) {
        own = (size_t) s->last[i] + 1;
        own = own < k0 ? 0 : own - k0;
        make_weights(s, i, own < count ? own : count, count, factor);
    }
    make_values(s, a, item, k0 / TOKENS, blocks, count);
}

/* Queries of the item, all heads of the group: row by row. */
static void
load_group(scratch_t *s, const di_cpu_attn_t *a,
           const di_cpu_attn_item_t *item)
{
    size_t group = a->n_heads / a->kv.n_kv_heads;

    s->n = 0;
    for (size_t r = 0; r < item->n_rows; r++)
        for (size_t h = 0; h < group; h++, s->n++)
            load_query(s, a, s->n, item->first_row + r,
                       item->kv_head * group + h);
}

/* Keys that the last of the queries sees. */
static size_t
count_keys(const scratch_t *s)
{
    size_t keys = 0;

    for (size_t i = 0; i < s->n; i++)
        if ((size_t) s->last[i] + 1 > keys)
            keys = (size_t) s->last[i] + 1;
    return keys;
}

static void
attend(scratch_t *s, const di_cpu_attn_t *a, const di_cpu_attn_item_t *item)
{
    size_t hd = a->kv.head_dim, keys = count_keys(s);

    configure(s->n);
    for (size_t g = 0; g * SEGMENT < keys; g++) {
        do_segment(s, a, item, g, keys);
        for (size_t i = 0; i < s->n; i++)
            if ((size_t) s->last[i] >= g * SEGMENT)
                merge(s, i, hd);
    }
    for (size_t i = 0; i < s->n; i++)
        put_query(s, a, i);
}

/* A segment's result: per query its largest product, its sum of weights, 14
 * unused, and the values. */
size_t
di_amx_partial_floats(size_t n_queries, size_t head_dim)
{
    return n_queries <= QUERIES ? n_queries * (head_dim + 16) : 0;
}

static void
attend_segment(scratch_t *s, const di_cpu_attn_t *a,
               const di_cpu_attn_item_t *item)
{
    size_t hd = a->kv.head_dim;
    float *to = item->partial
                + item->segment * di_amx_partial_floats(s->n, hd);

    configure(s->n);
    do_segment(s, a, item, item->segment, count_keys(s));
    for (size_t i = 0; i < s->n; i++, to += hd + 16) {
        to[0] = s->seg_max[i];
        to[1] = s->seg_total[i];
        memcpy(to + 16, s->values[i], hd * sizeof(float));
    }
}

/* All segments of a split item are done: merge them as attend() does. */
void
di_amx_merge(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
             void *scratch)
{
    const float *from = item->partial;
    size_t hd = a->kv.head_dim;
    scratch_t *s = scratch;

    load_group(s, a, item);
    for (size_t g = 0; g < item->n_segments; g++) {
        for (size_t i = 0; i < s->n; i++, from += hd + 16) {
            s->seg_max[i] = from[0];
            s->seg_total[i] = from[1];
            memcpy(s->values[i], from + 16, hd * sizeof(float));
            if ((size_t) s->last[i] >= g * SEGMENT)
                merge(s, i, hd);
        }
    }
    for (size_t i = 0; i < s->n; i++)
        put_query(s, a, i);
}

/* Few rows: all heads of the group in one tile.  More: a head at a time. */
void
di_amx_attention(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
                 void *scratch)
{
    size_t group = a->n_heads / a->kv.n_kv_heads;
    scratch_t *s = scratch;

    if (item->n_rows * group <= QUERIES) {
        load_group(s, a, item);
        if (item->partial)
            attend_segment(s, a, item);
        else
            attend(s, a, item);
    } else {
        for (size_t h = 0; h < group; h++) {
            s->n = item->n_rows;
            for (size_t r = 0; r < item->n_rows; r++)
                load_query(s, a, r, item->first_row + r,
                           item->kv_head * group + h);
            attend(s, a, item);
        }
    }
    _tile_release();
}

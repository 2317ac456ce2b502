/*
 * index.c - the indexer: which compressed entries a row attends to.
 *
 * A row scores every entry of its sequence, or those of the candidate blocks
 * that an earlier layer kept, and takes the best.  Keys as they are stored
 * are small integers times powers of two, and so are queries, rounded like
 * them: vec.h has a loop of int8 products for these.
 *
 * The best are kept in a pool as scores go by: when it is full, the k-th best
 * in it becomes the bar for all that follow, so that of many scores few are
 * looked at twice.  It is found by its bits, eight at a time, from the top:
 * no order but the entries' own, so that equal scores go to smaller entries
 * and the result comes out ascending.  0 and -0 are one score.
 *
 * Many rows are one part each, with scores in scratch.  The entries of few
 * rows, as in decoding, are scored by all threads into memory of the device,
 * which a second op chooses from.
 */

#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUERY_MAX (64u << 10)    /* values of a row's queries               */
#define HEADS_MAX 1024           /* heads of these                          */
#define KEY_MAX   DI_VEC_DIM     /* values of a key                         */
#define ROWS_FEW  8              /* rows whose scores are shared at most    */
#define PART_KEYS 2048           /* entries of a part of these              */
#define KEYS      16             /* scored at a time, as many as gate() has */
#define BEST_MAX  8192           /* entries or blocks that are wanted       */
#define POOL_MIN  1024           /* best so far, beyond twice the wanted    */
#define POOL_BYTES ((2 * BEST_MAX + POOL_MIN) \
                    * (sizeof(float) + sizeof(int32_t)))

/* Scratch of a part. */
typedef struct {
    float   q[QUERY_MAX];
    int8_t  small[QUERY_MAX];            /* queries of vec.h                */
    float   scale[QUERY_MAX / 32];
    int32_t start[QUERY_MAX / 32];
    float   keys[KEYS * KEY_MAX];
    float   dots[HEADS_MAX * KEYS];      /* of head, of key                 */
    uint8_t pool[POOL_BYTES];            /* of select_best()                */
    float   score[];                       /* entries', to KEYS more than there
                                          * are, then blocks'               */
} scratch_t;

#define SCORES_MAX \
    ((DI_CPU_SCRATCH - sizeof(scratch_t)) / sizeof(float) / 9 * 8 - KEYS)

/* ------------------------------------------------------------- selection -- */

/* Bits in the order of the floats. */
static uint32_t
order_bits(float score)
{
    union { float f; uint32_t u; } v = { .f = score + 0.0f };

    return v.u >> 31 ? ~v.u : v.u | 0x80000000u;
}

/* The best scores so far, in order of their entries. */
typedef struct {
    float   *score;              /* [max]                                   */
    int32_t *entry;
    size_t   n;
    size_t   max;                /* more than k                             */
    size_t   k;
    float    bar;                /* entries from here on must be above it   */
} pool_t;

/* Order of the k-th largest of n scores (1 <= k <= n); *n_equal: how many of
 * that order are among the k. */
static uint32_t
kth_order(const float *score, size_t n, size_t k, size_t *n_equal)
{
    uint32_t prefix = 0, mask = 0, count[256], digit, order;

    for (int shift = 24; shift >= 0; shift -= 8) {
        memset(count, 0, sizeof(count));
        for (size_t i = 0; i < n; i++) {
            order = order_bits(score[i]);
            if ((order & mask) == prefix)
                count[order >> shift & 255]++;
        }
        for (digit = 255; count[digit] < k; digit--)
            k -= count[digit];
        prefix |= digit << shift;
        mask |= 255u << shift;
    }
    *n_equal = k;
    return prefix;
}

/* Leave the k best; the least of them is the bar. */
static void
pool_cut(pool_t *p)
{
    size_t   n_equal, found = 0;
    uint32_t kth, order;

    if (p->n <= p->k)
        return;
    kth = kth_order(p->score, p->n, p->k, &n_equal);
    for (size_t i = 0; i < p->n && found < p->k; i++) {
        order = order_bits(p->score[i]);
        if (order < kth || (order == kth && n_equal == 0))
            continue;
        if (order == kth) {
            n_equal--;
            p->bar = p->score[i];
        }
        p->score[found] = p->score[i];
        p->entry[found++] = p->entry[i];
    }
    p->n = found;
}

/* The k best of n, ascending; returns how many there are.  `memory` has room
 * for a pool of them. */
static size_t
select_best(const float *score, size_t n, size_t k, void *memory,
            int32_t *best)
{
    const size_t max = 2 * k + POOL_MIN;
    pool_t p = { .score = memory, .max = max, .k = k, .bar = -INFINITY };

    if (n <= k) {
        for (size_t i = 0; i < n; i++)
            best[i] = (int32_t) i;
        return n;
    }
    p.entry = (void *) (p.score + max);
    for (size_t i = 0; i < n; i++) {
        /* Until there is a bar, all are taken. */
        if (!(score[i] > p.bar) && i >= max)
            continue;
        p.score[p.n] = score[i];
        p.entry[p.n++] = (int32_t) i;
        if (p.n == max)
            pool_cut(&p);
    }
    pool_cut(&p);
    memcpy(best, p.entry, p.n * sizeof(*best));
    return p.n;
}

/* --------------------------------------------------------------- scoring -- */

/* A row's entries: all, or those of its candidate blocks, the i-th of which
 * is entry entry_at(i). */
typedef struct {
    const int32_t *table;        /* the sequence's KV blocks                */
    const int32_t *blocks;       /* candidates, NULL: all entries           */
    size_t         size;         /* entries of a candidate block            */
    size_t         n;
} scope_t;

static size_t
entry_at(const scope_t *s, size_t i)
{
    return s->blocks == NULL
           ? i : (size_t) s->blocks[i / s->size] * s->size + i % s->size;
}

static scope_t
scope_of(const di_cpu_index_t *a, size_t row)
{
    const int32_t *c = a->candidates;
    size_t         len = ((size_t) a->rows.positions[row] + 1) / a->ratio;
    scope_t        s = { .size = a->cand_size, .n = len };

    s.table = a->rows.tables
              + di_cpu_seq_of(&a->rows, row) * a->rows.table_stride;
    if (c == NULL || a->makes)
        return s;
    /* Only the last block of all may be short, and it is always there. */
    c += row * (1 + a->cand_blocks);
    s.blocks = c + 1;
    s.n = (size_t) c[0] * s.size;
    if (len % s.size != 0)
        s.n -= s.size - len % s.size;
    return s;
}

/* Queries as the keys are rounded. */
static void
round_queries(const di_cpu_index_t *a, size_t row, float *q)
{
    const size_t dim = a->keys.dim;
    uint8_t      data[4096], scales[512];

    memcpy(q, a->q + row * a->n_heads * dim,
           a->n_heads * dim * sizeof(float));
    if (a->keys.exact)
        return;
    for (size_t h = 0; h < a->n_heads; h++, q += dim) {
        di_cast_put(a->keys.cast, q, dim, data, scales);
        di_cast_get(a->keys.cast, data, scales, dim, q);
    }
}

/* Entries [i, i + n) of the scope, 1 to KEYS, as floats. */
static void
score_some(const di_cpu_index_t *a, const scope_t *s, const float *w,
           size_t i, size_t n, scratch_t *x, float *score)
{
    const size_t dim = a->keys.dim;

    assert(n >= 1 && n <= KEYS);
    for (size_t e = 0; e < n; e++) {
        size_t j = entry_at(s, i + e);

        di_cpu_cache_get(&a->keys, s->table[j / a->keys.n], j % a->keys.n,
                         x->keys + e * dim);
    }
    di_cpu_vec->dots(x->q, a->n_heads, x->keys, n, dim, x->dots, KEYS);
    di_cpu_vec->gate(score + i, w, x->dots, a->n_heads, KEYS);
}

/* Where entries [i, i + n) of the scope lie, 1 to KEYS; others: as the last.
 * Those of a block are found together. */
static void
find_some(const di_cpu_index_t *a, const scope_t *s, size_t i, size_t n,
          const uint8_t **data, const uint8_t **scales)
{
    size_t run, j, at;

    for (size_t e = 0; e < n; e += run) {
        j = entry_at(s, i + e);
        at = j % a->keys.n;
        run = a->keys.n - at < n - e ? a->keys.n - at : n - e;
        if (s->blocks != NULL && run > s->size - (i + e) % s->size)
            run = s->size - (i + e) % s->size;
        data[e] = a->keys.data
                  + (size_t) s->table[j / a->keys.n] * a->keys.stride;
        scales[e] = data[e] + a->keys.scales_at + at * a->keys.scales_step;
        data[e] += at * a->keys.step;
        for (size_t r = 1; r < run; r++) {
            data[e + r] = data[e + r - 1] + a->keys.step;
            scales[e + r] = scales[e + r - 1] + a->keys.scales_step;
        }
    }
    for (size_t e = n; e < KEYS; e++) {
        data[e] = data[n - 1];
        scales[e] = scales[n - 1];
    }
}

/* As records. */
static void
score_records(const di_cpu_index_t *a, size_t row, const scope_t *s,
              size_t i, size_t end, scratch_t *x, float *score)
{
    const di_cpu_queries_t q = {
        .n_heads = a->n_heads, .dim = a->keys.dim, .q = x->small,
        .scale = x->scale, .start = x->start, .w = a->w + row * a->n_heads };
    const uint8_t *data[KEYS], *scales[KEYS];
    size_t n;

    di_cpu_vec->queries(&q, a->q + row * a->n_heads * a->keys.dim);
    for (; i < end; i += n) {
        n = end - i < KEYS ? end - i : KEYS;
        find_some(a, s, i, n, data, scales);
        di_cpu_vec->score(score + i, &q, data, scales);
    }
}

/* Entries [i, end); up to KEYS behind the last one are written. */
static void
score_entries(const di_cpu_index_t *a, size_t row, const scope_t *s,
              size_t i, size_t end, scratch_t *x, float *score)
{
    const float *w = a->w + row * a->n_heads;
    size_t       n;

    if (!a->keys.exact && a->keys.cast == DI_CAST_E2M1_32) {
        score_records(a, row, s, i, end, x, score);
        return;
    }
    round_queries(a, row, x->q);
    for (; i < end; i += n) {
        n = end - i < KEYS ? end - i : KEYS;
        score_some(a, s, w, i, n, x, score);
    }
}

/* Is there anything to choose, or anybody to choose for? */
static bool
needs_scores(const di_cpu_index_t *a, const scope_t *s)
{
    return s->n > a->top_k || (a->makes && s->n > 0);
}

static size_t
parts_of(const di_cpu_index_t *a, size_t row)
{
    scope_t s = scope_of(a, row);

    return needs_scores(a, &s) ? (s.n + PART_KEYS - 1) / PART_KEYS : 0;
}

static size_t
score_plan(const di_cpu_op_t *op)
{
    size_t n = 0;

    for (size_t row = 0; row < op->n_rows; row++)
        n += parts_of(&op->u.index, row);
    return n;
}

static void
score_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_index_t *a = &op->u.index;
    size_t                row = 0, n, end;
    scope_t               s;

    for (; i >= (n = parts_of(a, row)); row++)
        i -= n;
    s = scope_of(a, row);
    end = (i + 1) * PART_KEYS;
    score_entries(a, row, &s, i * PART_KEYS, end < s.n ? end : s.n,
                  worker->scratch, op->dev->scores + row * a->scores);
}

/* Blocks with the best entry; the last one, which may be short, is kept. */
static void
make_candidates(const di_cpu_index_t *a, size_t row, const float *score,
                size_t n, float *best, void *pool)
{
    size_t   n_blocks = (n + a->cand_size - 1) / a->cand_size;
    int32_t *c = a->candidates + row * (1 + a->cand_blocks);

    for (size_t b = 0; b < n_blocks; b++) {
        size_t end = (b + 1) * a->cand_size;

        best[b] = -INFINITY;
        for (size_t i = b * a->cand_size; i < end && i < n; i++)
            best[b] = score[i] > best[b] ? score[i] : best[b];
    }
    if (n_blocks > 0)
        best[n_blocks - 1] = INFINITY;
    c[0] = (int32_t) select_best(best, n_blocks, a->cand_blocks, pool,
                                 c + 1);
}

static void
index_run(const di_cpu_op_t *op, size_t row, di_cpu_worker_t *worker)
{
    const di_cpu_index_t *a = &op->u.index;
    int32_t              *selected = a->selected + row * (1 + a->top_k);
    scope_t               s = scope_of(a, row);
    scratch_t            *x = worker->scratch;
    float                *score = x->score, *best = score;

    if (a->scores > 0) {
        score = op->dev->scores + row * a->scores;
    } else {
        assert(s.n <= SCORES_MAX);
        best += s.n;
        if (needs_scores(a, &s))
            score_entries(a, row, &s, 0, s.n, x, score);
    }
    selected[0] = (int32_t) select_best(score, s.n, a->top_k, x->pool,
                                        selected + 1);
    for (int32_t i = 1; s.blocks != NULL && i <= selected[0]; i++)
        selected[i] = (int32_t) entry_at(&s, (size_t) selected[i]);
    if (a->makes)
        make_candidates(a, row, score, s.n, best, x->pool);
}

/* Room for n floats in the device's scores. */
static bool
reserve(di_dev_t *dev, size_t n)
{
    float *p;

    if (n <= dev->scores_max)
        return true;
    p = realloc(dev->scores, n * sizeof(*p));
    if (p == NULL)
        return false;
    dev->scores = p;
    dev->scores_max = n;
    return true;
}

void
di_cpu_index_select(di_stream_t *s, const di_index_t *x,
                    const di_rows_t *rows)
{
    di_cpu_op_t op = { .run = index_run, .n_parts = rows->n_rows,
                       .n_rows = rows->n_rows };
    di_cpu_op_t score = { .run = score_run, .plan = score_plan,
                          .n_rows = rows->n_rows };

    assert((size_t) x->n_heads * x->keys.dim <= QUERY_MAX);
    assert(x->n_heads <= HEADS_MAX);
    assert(x->keys.dim <= KEY_MAX);
    assert(x->top_k <= BEST_MAX && x->cand_blocks <= BEST_MAX);
    op.u.index = (di_cpu_index_t) {
        .keys = di_cpu_cache(&x->keys), .rows = di_cpu_rows(rows),
        .q = di_cpu_at(x->q), .w = di_cpu_at(x->w),
        .selected = di_cpu_at(x->selected),
        .candidates = di_cpu_at(x->candidates), .n_heads = x->n_heads,
        .top_k = x->top_k, .ratio = x->ratio,
        .cand_blocks = x->cand_blocks, .cand_size = x->cand_size,
        .makes = x->makes };
    if (rows->n_rows <= ROWS_FEW) {
        /* Parts end at multiples of KEYS, all but the last. */
        op.u.index.scores = (size_t) rows->table_stride * x->keys.n + KEYS;
        if (!reserve(di_cpu_stream_dev(s), rows->n_rows * op.u.index.scores))
        {
            di_cpu_stream_fault(s, DI_ENOMEM);
            return;
        }
        score.u.index = op.u.index;
        di_cpu_launch(s, &score);
    }
    di_cpu_launch(s, &op);
}

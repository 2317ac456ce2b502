/*
 * index.c - the indexer: which compressed entries a row attends to.
 *
 * A row scores every entry of its sequence, or those of the candidate blocks
 * that an earlier layer kept, and takes the best.  The k-th best score is
 * found by its bits, eight at a time, from the top: no copy of the scores, no
 * order but the entries' own, so that equal scores go to smaller entries and
 * the result comes out ascending.  0 and -0 are one score.
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
#define KEY_MAX   1024           /* values of a key                         */
#define ROWS_FEW  8              /* rows whose scores are shared at most    */
#define PART_KEYS 2048           /* entries of a part of these              */
#define KEYS      16             /* scored at a time, as many as gate() has */

/* Scratch of a part. */
typedef struct {
    float q[QUERY_MAX];
    float keys[KEYS * KEY_MAX];
    float dots[HEADS_MAX * KEYS];        /* of head, of key                 */
    float score[];                       /* entries', to KEYS more than there
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

/* The k best of n, ascending; returns how many there are. */
static size_t
select_best(const float *score, size_t n, size_t k, int32_t *best)
{
    size_t   n_equal, found = 0;
    uint32_t kth, order;

    if (n <= k) {
        for (size_t i = 0; i < n; i++)
            best[i] = (int32_t) i;
        return n;
    }
    kth = kth_order(score, n, k, &n_equal);
    for (size_t i = 0; i < n && found < k; i++) {
        order = order_bits(score[i]);
        if (order > kth || (order == kth && n_equal > 0)) {
            n_equal -= order == kth;
            best[found++] = (int32_t) i;
        }
    }
    return found;
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

/* Entries [i, i + n) of the scope, 1 to KEYS. */
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

/* Entries [i, end); up to KEYS behind the last one are written. */
static void
score_entries(const di_cpu_index_t *a, size_t row, const scope_t *s,
              size_t i, size_t end, scratch_t *x, float *score)
{
    const float *w = a->w + row * a->n_heads;
    size_t       n;

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
                size_t n, float *best)
{
    size_t   n_blocks = (n + a->cand_size - 1) / a->cand_size;
    int32_t *c = a->candidates + row * (1 + a->cand_blocks);

    for (size_t b = 0; b < n_blocks; b++) {
        size_t end = (b + 1) * a->cand_size;

        best[b] = -INFINITY;
        for (size_t i = b * a->cand_size; i < end && i < n; i++)
            best[b] = fmaxf(best[b], score[i]);
    }
    if (n_blocks > 0)
        best[n_blocks - 1] = INFINITY;
    c[0] = (int32_t) select_best(best, n_blocks, a->cand_blocks, c + 1);
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
    selected[0] = (int32_t) select_best(score, s.n, a->top_k, selected + 1);
    for (int32_t i = 1; s.blocks != NULL && i <= selected[0]; i++)
        selected[i] = (int32_t) entry_at(&s, (size_t) selected[i]);
    if (a->makes)
        make_candidates(a, row, score, s.n, best);
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

/*
 * cache.c - latent attention's vectors on their way into the caches: norm,
 * rotation, rounding, and where a record lies.
 *
 * A record is written by the one row that makes it.  Rows of a launch read
 * what launches before it stored, never each other's: rings are written when
 * all rows of the step have been attended to, because a long chunk overwrites
 * slots that its first rows still read.
 */

#include "cpu.h"

#include <math.h>
#include <string.h>

#define HEAD_MAX 1024            /* values of a cached vector               */

/* ----------------------------------------------------------------- views -- */

di_cpu_cache_t
di_cpu_cache(const di_cache_t *c)
{
    di_cpu_cache_t a = { .n = c->n, .dim = c->dim, .cast = c->cast,
                         .exact = c->exact, .stride = c->stride };

    if (c->base.buf == NULL)
        return a;
    a.data = (uint8_t *) di_cpu_at(c->base) + c->at;
    a.data_bytes = c->exact ? c->dim * sizeof(float)
                            : di_cast_data_bytes(c->cast, c->dim);
    a.scale_bytes = c->exact ? 0 : di_cast_scale_bytes(c->cast, c->dim);
    a.step = c->apart ? a.data_bytes : a.data_bytes + a.scale_bytes;
    a.scales_at = c->apart ? c->n * a.data_bytes : a.data_bytes;
    a.scales_step = c->apart ? a.scale_bytes : a.step;
    return a;
}

di_cpu_rows_t
di_cpu_rows(const di_rows_t *r)
{
    return (di_cpu_rows_t) {
        .n_rows = r->n_rows,
        .n_seqs = r->n_seqs,
        .table_stride = r->table_stride,
        .positions = di_cpu_at(r->positions),
        .seq_first = di_cpu_at(r->seq_first),
        .tables = di_cpu_at(r->tables),
        .slots = di_cpu_at(r->slots),
        .floors = di_cpu_at(r->floors),
    };
}

di_cpu_rotation_t
di_cpu_rotation(const di_rotation_t *r)
{
    return (di_cpu_rotation_t) { di_cpu_at(r->freqs), r->rope_dim };
}

size_t
di_cpu_seq_of(const di_cpu_rows_t *rows, size_t row)
{
    size_t lo = 0, hi = rows->n_seqs;

    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;

        if ((size_t) rows->seq_first[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* --------------------------------------------------------------- vectors -- */

void
di_cpu_cache_get(const di_cpu_cache_t *c, int32_t unit, size_t i, float *x)
{
    const uint8_t *base = c->data + (size_t) unit * c->stride;
    const uint8_t *data = base + i * c->step;

    if (c->exact)
        memcpy(x, data, c->data_bytes);
    else
        di_cpu_vec->cast_get(c->cast, data,
                             base + c->scales_at + i * c->scales_step,
                             c->dim, x);
}

void
di_cpu_cache_put(const di_cpu_cache_t *c, int32_t unit, size_t i,
                 const float *x)
{
    uint8_t *base = c->data + (size_t) unit * c->stride;
    uint8_t *data = base + i * c->step;

    if (c->exact)
        memcpy(data, x, c->data_bytes);
    else
        di_cast_put(c->cast, x, c->dim, data,
                    base + c->scales_at + i * c->scales_step);
}

float
di_cpu_dot(const float *a, const float *b, size_t n)
{
    float dot;

    di_cpu_vec->dots(a, 1, b, 1, n, &dot, 1);
    return dot;
}

void
di_cpu_rms(float *x, const float *w, size_t n, float eps)
{
    double sum = 0, factor;

    for (size_t i = 0; i < n; i++)
        sum += (double) x[i] * x[i];
    factor = 1 / sqrt(sum / (double) n + (double) eps);
    for (size_t i = 0; i < n; i++)
        x[i] = (float) (x[i] * factor * (w != NULL ? w[i] : 1));
}

/* Angles are float32 products, as the model was made with. */
void
di_cpu_turn(const di_cpu_rotation_t *r, float *x, size_t n, size_t dim,
            int32_t position, bool back)
{
    float c[HEAD_MAX / 2], s[HEAD_MAX / 2], *t, angle, a, b;

    for (size_t i = 0; i < r->rope_dim / 2; i++) {
        angle = (float) position * r->freqs[i];
        c[i] = cosf(angle);
        s[i] = back ? -sinf(angle) : sinf(angle);
    }
    for (size_t h = 0; h < n; h++) {
        t = x + (h + 1) * dim - r->rope_dim;
        for (size_t i = 0; i < r->rope_dim / 2; i++) {
            a = t[2 * i];
            b = t[2 * i + 1];
            t[2 * i] = a * c[i] - b * s[i];
            t[2 * i + 1] = a * s[i] + b * c[i];
        }
    }
}

/* ---------------------------------------------------------------- rotate -- */

static void
rotate_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    size_t                 end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++)
        di_cpu_turn(&a->rotation, a->x + r * a->n_heads * a->dim, a->n_heads,
                    a->dim, a->rows.positions[r], false);
}

void
di_cpu_rotate(di_stream_t *s, di_view_t x, uint32_t n_heads, uint32_t dim,
              const di_rows_t *rows, const di_rotation_t *rotation)
{
    di_cpu_op_t op = { .run = rotate_run };

    di_cpu_cut_rows(&op, rows->n_rows, (size_t) n_heads * dim);
    op.u.latent = (di_cpu_latent_t) {
        .rows = di_cpu_rows(rows), .rotation = di_cpu_rotation(rotation),
        .x = di_cpu_at(x), .n_heads = n_heads, .dim = dim };
    di_cpu_launch(s, &op);
}

/* ---------------------------------------------------------------- window -- */

/* The rows' own records lie like one unit of n_rows of the ring's. */
static di_cpu_cache_t
fresh_of(const di_cpu_latent_t *a)
{
    di_cpu_cache_t c = a->cache;

    c.data = a->fresh;
    c.stride = 0;
    return c;
}

static void
window_make_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    const di_cpu_cache_t   fresh = fresh_of(a);
    size_t                 end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++) {
        float *x = a->x + r * a->cache.dim;

        di_cpu_rms(x, a->w, a->cache.dim, a->eps);
        di_cpu_turn(&a->rotation, x, 1, a->cache.dim, a->rows.positions[r],
                    false);
        di_cpu_cache_put(&fresh, 0, r, x);
    }
}

void
di_cpu_window_make(di_stream_t *s, di_view_t fresh, di_view_t x, di_view_t w,
                   float eps, const di_cache_t *ring, const di_rows_t *rows,
                   const di_rotation_t *rotation)
{
    di_cpu_op_t op = { .run = window_make_run };

    di_cpu_cut_rows(&op, rows->n_rows, ring->dim);
    op.u.latent = (di_cpu_latent_t) {
        .cache = di_cpu_cache(ring), .rows = di_cpu_rows(rows),
        .rotation = di_cpu_rotation(rotation), .x = di_cpu_at(x),
        .w = di_cpu_at(w), .fresh = di_cpu_at(fresh), .eps = eps };
    di_cpu_launch(s, &op);
}

/* Is the row among the last n of its sequence?  Others would be overwritten
 * by those. */
static bool
is_recent(const di_cpu_rows_t *rows, size_t row, size_t seq, size_t n)
{
    return (size_t) rows->seq_first[seq + 1] - row <= n;
}

static void
window_store_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    const di_cpu_cache_t  *c = &a->cache;
    size_t                 end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++) {
        size_t  seq = di_cpu_seq_of(&a->rows, r);
        int32_t p = a->rows.positions[r];

        if (is_recent(&a->rows, r, seq, c->n) && p >= a->rows.floors[seq])
            memcpy(c->data + (size_t) a->rows.slots[seq] * c->stride
                       + (size_t) p % c->n * c->step,
                   a->fresh + r * c->step, c->step);
    }
}

void
di_cpu_window_store(di_stream_t *s, const di_cache_t *ring, di_view_t fresh,
                    const di_rows_t *rows)
{
    di_cpu_op_t op = { .run = window_store_run };

    di_cpu_cut_rows(&op, rows->n_rows, ring->dim);
    op.u.latent = (di_cpu_latent_t) { .cache = di_cpu_cache(ring),
                                      .rows = di_cpu_rows(rows),
                                      .fresh = di_cpu_at(fresh) };
    di_cpu_launch(s, &op);
}

/* ------------------------------------------------------------ compressor -- */

/* Entry that a row completes, or -1. */
static int64_t
entry_of(int32_t position, size_t ratio)
{
    return ((size_t) position + 1) % ratio == 0
           ? position / (int64_t) ratio : -1;
}

/* Softmax over the two tokens of an entry, value by value. */
static void
merge_pair(float *y, const float *g0, const float *v0, const float *g1,
           const float *v1, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        float top = g0[i] > g1[i] ? g0[i] : g1[i];
        float e0 = expf(g0[i] - top), e1 = expf(g1[i] - top);

        y[i] = (e0 * v0[i] + e1 * v1[i]) / (e0 + e1);
    }
}

/* A ring's pair is a record of twice the values: gate, then value. */
static void
compress_pair(const di_cpu_latent_t *a, size_t r, float *y)
{
    const size_t  dim = a->dim, seq = di_cpu_seq_of(&a->rows, r);
    const float  *g = a->g + r * dim, *v = a->x + r * dim;
    float         pair[2 * HEAD_MAX];

    if (r > (size_t) a->rows.seq_first[seq]) {
        merge_pair(y, g - dim, v - dim, g, v, dim);
        return;
    }
    di_cpu_cache_get(&a->cache, a->rows.slots[seq],
                     (size_t) (a->rows.positions[r] - 1) % a->cache.n, pair);
    merge_pair(y, pair, pair + dim, g, v, dim);
}

static void
compress_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    size_t                 end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++) {
        float *y = a->y + r * a->dim;

        if (entry_of(a->rows.positions[r], a->ratio) < 0) {
            memset(y, 0, a->dim * sizeof(float));
            continue;
        }
        if (a->ratio == 1)
            memcpy(y, a->x + r * a->dim, a->dim * sizeof(float));
        else
            compress_pair(a, r, y);
        di_cpu_rms(y, a->w, a->dim, a->eps);
    }
}

void
di_cpu_compress(di_stream_t *s, di_view_t y, di_view_t v, di_view_t g,
                di_view_t w, float eps, uint32_t dim, const di_cache_t *pairs,
                const di_rows_t *rows)
{
    di_cpu_op_t op = { .run = compress_run };

    di_cpu_cut_rows(&op, rows->n_rows, dim);
    op.u.latent = (di_cpu_latent_t) {
        .cache = di_cpu_cache(pairs), .rows = di_cpu_rows(rows),
        .x = di_cpu_at(v), .g = di_cpu_at(g), .w = di_cpu_at(w),
        .y = di_cpu_at(y), .dim = dim, .eps = eps,
        .ratio = pairs->base.buf != NULL ? 2 : 1 };
    di_cpu_launch(s, &op);
}

static void
pairs_store_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    const di_cpu_cache_t  *c = &a->cache;
    const size_t           dim = c->dim / 2, bytes = dim * sizeof(float);
    size_t                 end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++) {
        size_t   seq = di_cpu_seq_of(&a->rows, r);
        uint8_t *pair = c->data + (size_t) a->rows.slots[seq] * c->stride
                        + (size_t) a->rows.positions[r] % c->n * c->step;

        if (!is_recent(&a->rows, r, seq, c->n))
            continue;
        memcpy(pair, a->g + r * dim, bytes);
        memcpy(pair + bytes, a->x + r * dim, bytes);
    }
}

void
di_cpu_pairs_store(di_stream_t *s, const di_cache_t *pairs, di_view_t v,
                   di_view_t g, const di_rows_t *rows)
{
    di_cpu_op_t op = { .run = pairs_store_run };

    di_cpu_cut_rows(&op, rows->n_rows, pairs->dim);
    op.u.latent = (di_cpu_latent_t) {
        .cache = di_cpu_cache(pairs), .rows = di_cpu_rows(rows),
        .x = di_cpu_at(v), .g = di_cpu_at(g) };
    di_cpu_launch(s, &op);
}

static void
entry_store_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_latent_t *a = &op->u.latent;
    const di_cpu_cache_t  *c = &a->cache;
    size_t                 end = (i + 1) * op->step;
    float                  x[HEAD_MAX];

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++) {
        int64_t j = entry_of(a->rows.positions[r], a->ratio);
        size_t  seq = di_cpu_seq_of(&a->rows, r);

        if (j < 0)
            continue;
        memcpy(x, a->x + r * c->dim, c->dim * sizeof(float));
        if (a->w != NULL)
            di_cpu_rms(x, a->w, c->dim, a->eps);
        di_cpu_turn(&a->rotation, x, 1, c->dim,
                    (int32_t) (j * (int64_t) a->ratio), false);
        di_cpu_cache_put(c, a->rows.tables[seq * a->rows.table_stride
                                           + (size_t) j / c->n],
                         (size_t) j % c->n, x);
    }
}

void
di_cpu_entry_store(di_stream_t *s, const di_cache_t *cache, di_view_t x,
                   di_view_t w, float eps, uint32_t ratio,
                   const di_rows_t *rows, const di_rotation_t *rotation)
{
    di_cpu_op_t op = { .run = entry_store_run };

    di_cpu_cut_rows(&op, rows->n_rows, cache->dim);
    op.u.latent = (di_cpu_latent_t) {
        .cache = di_cpu_cache(cache), .rows = di_cpu_rows(rows),
        .rotation = di_cpu_rotation(rotation), .x = di_cpu_at(x),
        .w = di_cpu_at(w), .eps = eps, .ratio = ratio };
    di_cpu_launch(s, &op);
}

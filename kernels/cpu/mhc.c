/*
 * mhc.c - hyper-connections: a trunk of several streams, mixed anew around
 * every sub-layer, and what only moves rows.
 *
 * A row's trunk is m k values, a sub-layer's matrix (2 + m) m times as many:
 * for DeepSeek-V4.1-Flash 2 MB, read once per row of a part and kept in
 * cache between them.  Sums run in eight chains of fixed order.
 */

#include "cpu.h"

#include <math.h>
#include <string.h>

static di_cpu_hc_t
args(const di_hc_t *hc)
{
    return (di_cpu_hc_t) {
        .fn = di_cpu_at(hc->fn), .base = di_cpu_at(hc->base),
        .scale = di_cpu_at(hc->scale), .norm = di_cpu_at(hc->norm),
        .m = hc->m, .k = hc->k, .n_iters = hc->n_iters, .eps = hc->eps,
        .hc_eps = hc->hc_eps };
}

/* Rows [*r, the result) of part i. */
static size_t
part_rows(const di_cpu_op_t *op, size_t i, size_t *r)
{
    size_t end = (i + 1) * op->step;

    *r = i * op->step;
    return end < op->n_rows ? end : op->n_rows;
}

static void
launch(di_stream_t *s, di_cpu_part_fn run, const di_cpu_hc_t *a,
       size_t n_rows)
{
    di_cpu_op_t op = { .run = run };

    di_cpu_cut_rows(&op, n_rows, a->m * a->k);
    op.u.hc = *a;
    di_cpu_launch(s, &op);
}

/* ----------------------------------------------------------- start, post -- */

static void
start_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_hc_t *a = &op->u.hc;
    size_t             r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++) {
        float *c = a->c + r * DI_HC_COEFS(a->m);

        for (size_t j = 0; j < a->m; j++) {
            memcpy(a->t + (r * a->m + j) * a->k, a->x + r * a->k,
                   a->k * sizeof(float));
            c[j] = j == 0 ? 1.0f : 0.0f;
        }
    }
}

void
di_cpu_hc_start(di_stream_t *s, di_view_t t, di_view_t c, di_view_t x,
                size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.t = di_cpu_at(t);
    a.c = di_cpu_at(c);
    a.x = di_cpu_at(x);
    launch(s, start_run, &a, n_rows);
}

static void
post_row(const di_cpu_hc_t *a, size_t r)
{
    const float *post = a->c + r * DI_HC_COEFS(a->m) + a->m;

    di_cpu_vec->remix(a->t + r * a->m * a->k, post, post + a->m,
                      a->x + r * a->k, a->m, a->k);
}

static void
post_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    size_t r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++)
        post_row(&op->u.hc, r);
}

void
di_cpu_hc_post(di_stream_t *s, di_view_t t, di_view_t c, di_view_t o,
               size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.t = di_cpu_at(t);
    a.c = di_cpu_at(c);
    a.x = di_cpu_at(o);
    launch(s, post_run, &a, n_rows);
}

/* ------------------------------------------------------------------- mix -- */

static float
sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* y = sum_j pre_j t_j */
static void
mix_streams(const float *t, const float *pre, size_t m, size_t k, float *y)
{
    di_cpu_vec->weigh(y, 1, pre, m, t, m, k);
}

static void
scale_rows(float *y, size_t m, float eps)
{
    for (size_t i = 0; i < m; i++) {
        float sum = 0;

        for (size_t j = 0; j < m; j++)
            sum += y[i * m + j];
        for (size_t j = 0; j < m; j++)
            y[i * m + j] /= sum + eps;
    }
}

static void
scale_columns(float *y, size_t m, float eps)
{
    for (size_t j = 0; j < m; j++) {
        float sum = 0;

        for (size_t i = 0; i < m; i++)
            sum += y[i * m + j];
        for (size_t i = 0; i < m; i++)
            y[i * m + j] /= sum + eps;
    }
}

/* A matrix whose rows and columns sum to about 1, by turns. */
static void
sinkhorn(float *y, size_t m, uint32_t n_iters, float eps)
{
    for (size_t i = 0; i < m; i++) {
        float top = y[i * m], sum = 0;

        for (size_t j = 1; j < m; j++)
            top = fmaxf(top, y[i * m + j]);
        for (size_t j = 0; j < m; j++) {
            y[i * m + j] = expf(y[i * m + j] - top);
            sum += y[i * m + j];
        }
        for (size_t j = 0; j < m; j++)
            y[i * m + j] = y[i * m + j] / sum + eps;
    }
    scale_columns(y, m, eps);
    for (uint32_t i = 1; i < n_iters; i++) {
        scale_rows(y, m, eps);
        scale_columns(y, m, eps);
    }
}

static void
new_coefs(const di_cpu_hc_t *a, const float *t, float *c)
{
    const size_t m = a->m, n = m * a->k;
    float        factor = 1.0f / sqrtf(di_cpu_dot(t, t, n) / (float) n
                                       + a->eps);

    di_cpu_vec->dots(t, 1, a->fn, DI_HC_COEFS(m), n, c, DI_HC_COEFS(m));
    for (size_t i = 0; i < DI_HC_COEFS(m); i++) {
        size_t part = i < m ? 0 : i < 2 * m ? 1 : 2;

        c[i] = c[i] * factor * a->scale[part] + a->base[i];
    }
    for (size_t j = 0; j < m; j++) {
        c[j] = sigmoid(c[j]) + a->hc_eps;
        c[m + j] = 2 * sigmoid(c[m + j]);
    }
    sinkhorn(c + 2 * m, m, a->n_iters, a->hc_eps);
}

static void
mix_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_hc_t *a = &op->u.hc;
    size_t             r, end = part_rows(op, i, &r);
    float             *u = worker->scratch;

    for ( ; r < end; r++) {
        const float *t = a->t + r * a->m * a->k;
        float       *c = a->c + r * DI_HC_COEFS(a->m);

        di_cpu_convert_t y = { .y = (uint8_t *) a->y + r * a->y_stride,
                               .x = u, .k = a->k };

        mix_streams(t, c, a->m, a->k, u);
        di_cpu_rms(u, a->norm, a->k, a->eps);
        op->dev->kern->convert(&y, 0, 1);
        new_coefs(a, t, c);
    }
}

void
di_cpu_hc_mix(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
              size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.y = di_cpu_at(y);
    a.y_stride = di_cpu_stream_dev(s)->kern->act_bytes(hc->k);
    a.t = di_cpu_at(t);
    a.c = di_cpu_at(c);
    launch(s, mix_run, &a, n_rows);
}

/* ------------------------------------------------------------------- end -- */

static void
end_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_hc_t *a = &op->u.hc;
    size_t             r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++) {
        size_t row = a->rows != NULL ? (size_t) a->rows[r] : r;

        mix_streams(a->t + row * a->m * a->k,
                    a->c + row * DI_HC_COEFS(a->m), a->m, a->k,
                    (float *) a->y + r * a->k);
    }
}

void
di_cpu_hc_end(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
              di_view_t rows, size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.y = di_cpu_at(y);
    a.t = di_cpu_at(t);
    a.c = di_cpu_at(c);
    a.rows = di_cpu_at(rows);
    launch(s, end_run, &a, n_rows);
}

static void
mean_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_hc_t *a = &op->u.hc;
    size_t             r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++) {
        const float *t = a->t + r * a->m * a->k;
        float       *y = (float *) a->y + r * a->y_stride + a->at;

        for (size_t d = 0; d < a->k; d++) {
            y[d] = 0;
            for (size_t j = 0; j < a->m; j++)
                y[d] += t[j * a->k + d];
            y[d] /= (float) a->m;
        }
    }
}

void
di_cpu_hc_mean(di_stream_t *s, di_view_t y, size_t width, size_t at,
               di_view_t t, size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.y = di_cpu_at(y);
    a.y_stride = width;
    a.at = at;
    a.t = di_cpu_at(t);
    launch(s, mean_run, &a, n_rows);
}

static void
gather_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_gather_t *a = &op->u.gather;
    size_t                 r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++)
        memcpy(a->y + r * a->bytes, a->x + (size_t) a->rows[r] * a->bytes,
               a->bytes);
}

void
di_cpu_gather(di_stream_t *s, di_view_t y, di_view_t x, di_view_t rows,
              size_t n_rows, size_t bytes)
{
    di_cpu_op_t op = { .run = gather_run };

    di_cpu_cut_rows(&op, n_rows, bytes / sizeof(float) + 1);
    op.u.gather = (di_cpu_gather_t) { di_cpu_at(y), di_cpu_at(x),
                                      di_cpu_at(rows), bytes };
    di_cpu_launch(s, &op);
}

/* ---------------------------------------------------------------- Engram -- */

static void
table_rows_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_table_t *a = &op->u.table;
    size_t                r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++) {
        for (size_t j = r * a->n; j < (r + 1) * a->n; j++)
            di_wpart_row(&a->table, (size_t) a->ids[j], a->k,
                         a->y + j * a->k);
    }
}

void
di_cpu_table_rows(di_stream_t *s, di_view_t y, const di_wpart_t *table,
                  di_view_t ids, size_t n_rows, size_t n, size_t k)
{
    di_cpu_op_t op = { .run = table_rows_run };

    di_cpu_cut_rows(&op, n_rows, n * k);
    op.u.table = (di_cpu_table_t) { di_cpu_at(y), *table, di_cpu_at(ids), n,
                                    k };
    di_cpu_launch(s, &op);
}

/* sign(g) sqrt(|g|), with a step at 0. */
static float
signed_root(float g)
{
    float root = sqrtf(fmaxf(fabsf(g), 1e-6f));

    return g > 0 ? root : g < 0 ? -root : 0;
}

/* The norms divide, so that the sum is not scaled by tiny numbers. */
static void
add_stream(const di_cpu_hc_t *a, float *t, const float *key, const float *qk,
           const float *value)
{
    const float n = (float) a->k;
    float       dot = 0, g;

    for (size_t d = 0; d < a->k; d++)
        dot += t[d] * qk[d] * key[d];
    g = dot / sqrtf(di_cpu_dot(t, t, a->k) / n + a->eps)
        / sqrtf(di_cpu_dot(key, key, a->k) / n + a->eps) / sqrtf(n);
    g = sigmoid(signed_root(g));
    for (size_t d = 0; d < a->k; d++)
        t[d] += g * value[d];
}

static void
engram_add_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_hc_t *a = &op->u.hc;
    size_t             r, end = part_rows(op, i, &r);

    (void) worker;
    for ( ; r < end; r++) {
        const float *kv = a->x + r * (a->m + 1) * a->k;

        for (size_t j = 0; j < a->m; j++)
            add_stream(a, a->t + (r * a->m + j) * a->k, kv + j * a->k,
                       a->norm + j * a->k, kv + a->m * a->k);
    }
}

void
di_cpu_engram_add(di_stream_t *s, di_view_t t, di_view_t kv, di_view_t qk,
                  size_t n_rows, const di_hc_t *hc)
{
    di_cpu_hc_t a = args(hc);

    a.t = di_cpu_at(t);
    a.x = di_cpu_at(kv);
    a.norm = di_cpu_at(qk);
    launch(s, engram_add_run, &a, n_rows);
}

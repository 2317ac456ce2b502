/*
 * experts.c - mixtures of experts: the router, the product of rows with the
 * expert that each picked, and the sum of the results.
 *
 * An expert is a weight like any other.  When a product's turn comes, one
 * thread sorts its outputs by experts (a counting sort, which keeps their
 * order) and cuts each expert's into items of up to DI_CPU_EXPERT_ROWS; a
 * part is an item and a range of panels.  A single row, as in decoding, is
 * multiplied where it lies.  More rows are first copied next to each other
 * into the thread's own memory, and their results back: some hundredths of
 * what the product takes, and the kernels need not know of any of it.
 *
 * Which rows share an item changes nothing in a row's bits: that is what the
 * kernels promise of any range.
 */

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PART_BYTES   (64u << 10) /* of weights at least, when rows are few  */
#define PANELS_MIN   8           /* panels at least, when they are many     */
#define EXPERTS_MAX  1024        /* that a row chooses from                 */

/* -- weights --------------------------------------------------------------- */

void
di_cpu_experts_close(di_dev_t *dev, di_experts_t *experts)
{
    if (experts == NULL)
        return;
    for (size_t e = 0; e < experts->n; e++)
        di_cpu_weight_close(dev, experts->w[e]);
    free(experts);
}

int
di_cpu_experts_open(di_dev_t *dev, const di_wpart_t *parts, size_t n_parts,
                    size_t n_experts, size_t k, di_experts_t **out,
                    di_err_t *err)
{
    di_experts_t *experts;
    int rc;

    if (n_experts == 0)
        return di_err_set(err, DI_EINVAL, 0, "no experts");
    experts = calloc(1, sizeof(*experts) + n_experts * sizeof(di_weight_t *));
    if (experts == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for %zu experts",
                          n_experts);

    experts->n = n_experts;
    for (size_t e = 0; e < n_experts; e++) {
        rc = di_cpu_weight_open(dev, parts + e * n_parts, n_parts, k,
                                &experts->w[e], err);
        if (rc != DI_OK)
            goto failed;
        if (experts->w[e]->n != experts->w[0]->n) {
            rc = di_err_set(err, DI_EINVAL, 0,
                            "expert %zu has %zu outputs, not %zu", e,
                            experts->w[e]->n, experts->w[0]->n);
            goto failed;
        }
        experts->bytes += experts->w[e]->bytes;
    }
    *out = experts;
    return DI_OK;

failed:
    di_cpu_experts_close(dev, experts);
    return rc;
}

size_t
di_cpu_experts_bytes(const di_experts_t *experts)
{
    return experts->bytes;
}

/* -- router ---------------------------------------------------------------- */

/* In double: a score's bits don't depend on who computes it. */
static float
score(float logit)
{
    double x = (double) logit;

    return (float) sqrt(x > 20 ? x : log1p(exp(x)));
}

/* The largest score with its bias that is not taken; the first of equals. */
static size_t
best_of(const float *biased, size_t n)
{
    size_t best = 0;

    for (size_t e = 1; e < n; e++)
        if (biased[e] > biased[best])
            best = e;
    return best;
}

static void
route_row(const di_cpu_route_t *a, size_t r)
{
    const float *logits = a->logits + r * a->n;
    int32_t *ids = a->ids + r * a->top_k;
    float *weights = a->weights + r * a->top_k;
    float scores[EXPERTS_MAX], biased[EXPERTS_MAX], total = 0;

    for (size_t e = 0; e < a->n; e++) {
        scores[e] = score(logits[e]);
        biased[e] = scores[e] + a->bias[e];
    }
    for (size_t i = 0; i < a->top_k; i++) {
        ids[i] = (int32_t) best_of(biased, a->n);
        biased[ids[i]] = -INFINITY;
        weights[i] = scores[ids[i]];
        total += weights[i];
    }
    for (size_t i = 0; i < a->top_k; i++)
        weights[i] = weights[i] / (total + 1e-20f) * a->scale;
}

static void
route_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    size_t end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++)
        route_row(&op->u.route, r);
}

void
di_cpu_route(di_stream_t *s, di_view_t ids, di_view_t weights,
             di_view_t logits, di_view_t bias, float scale, size_t n_rows,
             size_t n, size_t top_k)
{
    di_cpu_op_t op = { .run = route_run };

    if (n > EXPERTS_MAX || top_k > n) {
        di_cpu_stream_fault(s, DI_EINVAL);
        return;
    }
    di_cpu_cut_rows(&op, n_rows, n * 16);
    op.u.route = (di_cpu_route_t) {
        .ids = di_cpu_at(ids), .weights = di_cpu_at(weights),
        .logits = di_cpu_at(logits), .bias = di_cpu_at(bias),
        .scale = scale, .n = n, .top_k = top_k,
    };
    di_cpu_launch(s, &op);
}

/* -- product --------------------------------------------------------------- */

void
di_cpu_expert_plan_free(di_cpu_expert_plan_t *plan)
{
    free(plan->order);
    free(plan->first);
    free(plan->items);
}

/* Room for any product of so many outputs and experts. */
static bool
reserve(di_cpu_expert_plan_t *plan, size_t n_outs, size_t n_experts)
{
    void *p;

    if (n_outs > plan->order_max) {
        p = realloc(plan->order, n_outs * sizeof(*plan->order));
        if (p == NULL)
            return false;
        plan->order = p;
        p = realloc(plan->items, n_outs * sizeof(*plan->items));
        if (p == NULL)
            return false;
        plan->items = p;
        plan->order_max = n_outs;
    }
    if (n_experts + 1 > plan->first_max) {
        p = realloc(plan->first, (n_experts + 1) * sizeof(*plan->first));
        if (p == NULL)
            return false;
        plan->first = p;
        plan->first_max = n_experts + 1;
    }
    return true;
}

/* Sort the outputs by experts: first[e] is where those of e begin. */
static void
sort_outputs(di_cpu_expert_plan_t *plan, const di_cpu_experts_t *a)
{
    uint32_t *first = plan->first, at;
    size_t n = a->w->n;

    memset(first, 0, (n + 1) * sizeof(*first));
    for (size_t i = 0; i < a->n_outs; i++)
        first[a->ids[i] + 1]++;
    for (size_t e = 0; e < n; e++)
        first[e + 1] += first[e];

    /* Each expert's count moves its beginning to its end: one place on. */
    for (size_t i = 0; i < a->n_outs; i++) {
        at = first[a->ids[i]]++;
        plan->order[at] = (uint32_t) i;
    }
    memmove(first + 1, first, n * sizeof(*first));
    first[0] = 0;
}

/* Rows that fit into a thread's memory with their results. */
static size_t
rows_max(const di_cpu_experts_t *a)
{
    size_t row = a->act_stride + a->w->w[0]->n * sizeof(float);
    size_t n = DI_CPU_GATHER / row;

    return n < 1 ? 1 : n > DI_CPU_EXPERT_ROWS ? DI_CPU_EXPERT_ROWS : n;
}

static void
cut_items(di_cpu_expert_plan_t *plan, const di_cpu_experts_t *a)
{
    size_t max = rows_max(a), n;
    uint32_t at;

    plan->n_items = 0;
    for (size_t e = 0; e < a->w->n; e++) {
        for (at = plan->first[e]; at < plan->first[e + 1]; at += n) {
            n = plan->first[e + 1] - at;
            n = n < max ? n : max;
            plan->items[plan->n_items++] = (di_cpu_expert_item_t) {
                (uint32_t) e, at, (uint32_t) n
            };
        }
    }
}

static size_t
experts_plan(const di_cpu_op_t *op)
{
    const di_cpu_experts_t *a = &op->u.experts;
    di_cpu_expert_plan_t *plan = &op->dev->expert_plan;
    size_t panels = a->w->w[0]->n_panels, n;

    sort_outputs(plan, a);
    cut_items(plan, a);
    plan->step = PART_BYTES / (a->w->w[0]->bytes / panels + 1) + 1;
    if (a->n_outs > 4 * a->w->n && plan->step < PANELS_MIN)
        plan->step = PANELS_MIN;
    plan->step = (plan->step + 1) & ~(size_t) 1;
    plan->ranges = (panels + plan->step - 1) / plan->step;
    n = plan->n_items * plan->ranges;
    return n < DI_CPU_PARTS_MAX ? n : DI_CPU_PARTS_MAX;
}

/* Rows of an item next to each other, and their results back. */
static void
multiply_rows(const di_cpu_experts_t *a, di_cpu_matmul_t *m,
              const di_cpu_kern_t *kern, const uint32_t *order, size_t n,
              size_t p0, size_t p1, di_cpu_worker_t *worker)
{
    size_t col = p0 * DI_CPU_PANEL, end = p1 * DI_CPU_PANEL;
    uint8_t *rows = worker->gather;
    float *out = (float *) (void *) (rows + n * a->act_stride);

    for (size_t i = 0; i < n; i++)
        memcpy(rows + i * a->act_stride,
               a->act + order[i] / a->per_row * a->act_stride,
               a->act_stride);
    m->act = rows;
    m->out = out;
    di_cpu_matmul_panels(kern, m, p0, p1, 0, n, worker->scratch);
    end = end < m->w->n ? end : m->w->n;
    for (size_t i = 0; i < n; i++)
        memcpy(a->out + order[i] * m->w->n + col, out + i * m->w->n + col,
               (end - col) * sizeof(*out));
}

static void
multiply_item(const di_cpu_op_t *op, const di_cpu_expert_item_t *item,
              size_t p0, size_t p1, di_cpu_worker_t *worker)
{
    const di_cpu_experts_t *a = &op->u.experts;
    const uint32_t *order = op->dev->expert_plan.order + item->first;
    di_cpu_matmul_t m = { .act_stride = a->act_stride,
                          .w = a->w->w[item->expert] };

    if (item->n > 1) {
        multiply_rows(a, &m, op->dev->kern, order, item->n, p0, p1, worker);
        return;
    }
    m.act = a->act + order[0] / a->per_row * a->act_stride;
    m.out = a->out + order[0] * m.w->n;
    di_cpu_matmul_panels(op->dev->kern, &m, p0, p1, 0, 1, worker->scratch);
}

static void
experts_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_expert_plan_t *plan = &op->dev->expert_plan;
    size_t n = plan->n_items * plan->ranges, p0, p1;
    size_t panels = op->u.experts.w->w[0]->n_panels;

    for (; i < n; i += DI_CPU_PARTS_MAX) {
        p0 = i % plan->ranges * plan->step;
        p1 = p0 + plan->step < panels ? p0 + plan->step : panels;
        multiply_item(op, &plan->items[i / plan->ranges], p0, p1, worker);
    }
}

void
di_cpu_matmul_experts(di_stream_t *s, di_view_t out, di_view_t act,
                      const di_experts_t *w, di_view_t ids, size_t n_outs,
                      size_t per_row)
{
    di_cpu_op_t op = { .run = experts_run, .plan = experts_plan };
    di_dev_t *dev = di_cpu_stream_dev(s);

    if (!reserve(&dev->expert_plan, n_outs, w->n)) {
        di_cpu_stream_fault(s, DI_ENOMEM);
        return;
    }
    op.u.experts = (di_cpu_experts_t) {
        .out = di_cpu_at(out), .act = di_cpu_at(act),
        .act_stride = dev->kern->act_bytes(w->w[0]->k), .w = w,
        .ids = di_cpu_at(ids), .n_outs = n_outs, .per_row = per_row,
    };
    di_cpu_launch(s, &op);
}

/* -- sum ------------------------------------------------------------------- */

/* 16 columns at a time, which compilers keep in registers. */
static void
sum_row(const di_cpu_sum_t *a, size_t r)
{
    const float *x = a->x + r * a->n * a->k;
    const float *add = a->add ? a->add + r * a->k : NULL;
    float *y = a->y + r * a->k, acc[16];

    for (size_t i = 0; i < a->k; i += 16) {
        memcpy(acc, x + i, sizeof(acc));
        for (size_t j = 1; j < a->n; j++)
            for (size_t c = 0; c < 16; c++)
                acc[c] += x[j * a->k + i + c];
        for (size_t c = 0; add && c < 16; c++)
            acc[c] += add[i + c];
        memcpy(y + i, acc, sizeof(acc));
    }
}

static void
sum_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    size_t end = (i + 1) * op->step;

    (void) worker;
    for (size_t r = i * op->step; r < end && r < op->n_rows; r++)
        sum_row(&op->u.sum, r);
}

void
di_cpu_sum_rows(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
                size_t n_rows, size_t n, size_t k)
{
    di_cpu_op_t op = { .run = sum_run };

    di_cpu_cut_rows(&op, n_rows, n * k);
    op.u.sum = (di_cpu_sum_t) {
        .y = di_cpu_at(y), .x = di_cpu_at(x), .add = di_cpu_at(add),
        .n = n, .k = k,
    };
    di_cpu_launch(s, &op);
}

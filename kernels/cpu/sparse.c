/*
 * sparse.c - latent attention over a window and selected entries.
 *
 * An item is one row and, where rows are few, one group of heads: it reads the
 * row's keys once into scratch, as float32, and all its heads go over them.
 * The order of keys is fixed (window by position, then entries ascending), and
 * a head's sums take no others' part, so bits depend on the row alone.  A
 * group is also a row of the product that follows, so its activations are
 * converted here.
 */

#include "cpu.h"

#include <assert.h>
#define ROWS_WHOLE 16            /* from here on all heads are one item     */

/* The window of a row: ring positions [first, own), then fresh rows. */
typedef struct {
    size_t  seq;
    int32_t first;               /* first position in the window            */
    int32_t own;                 /* first position of the sequence's rows   */
    size_t  fresh;               /* first of its rows in the window         */
    size_t  fresh_end;
} window_t;

static window_t
window_of(const di_cpu_sparse_t *a, size_t row)
{
    window_t w = { .seq = di_cpu_seq_of(&a->rows, row) };
    size_t   first_row = (size_t) a->rows.seq_first[w.seq];
    int32_t  p = a->rows.positions[row], floor = a->rows.floors[w.seq];

    w.own = a->rows.positions[first_row];
    w.first = (a->drafts ? w.own : p + 1) - (int32_t) a->window;
    if (w.first < floor)
        w.first = floor;
    if (w.first < 0)
        w.first = 0;
    w.fresh = first_row;
    if (w.first > w.own)
        w.fresh += (size_t) (w.first - w.own);
    w.fresh_end = a->drafts ? (size_t) a->rows.seq_first[w.seq + 1]
                            : row + 1;
    return w;
}

/* All keys of a row, one after another; returns how many. */
static size_t
gather_keys(const di_cpu_sparse_t *a, size_t row, float *keys)
{
    const size_t    dim = a->ring.dim;
    const window_t  w = window_of(a, row);
    di_cpu_cache_t  fresh = a->ring;
    const int32_t  *sel = a->selected, *table;
    size_t          n = 0;

    for (int32_t p = w.first; p < w.own; p++, n++)
        di_cpu_cache_get(&a->ring, a->rows.slots[w.seq],
                         (size_t) p % a->ring.n, keys + n * dim);
    fresh.data = (uint8_t *) (uintptr_t) a->fresh;
    for (size_t r = w.fresh; r < w.fresh_end; r++, n++)
        di_cpu_cache_get(&fresh, 0, r, keys + n * dim);

    if (a->kv.data == NULL)
        return n;
    sel += row * (1 + a->top_k);
    table = a->rows.tables + w.seq * a->rows.table_stride;
    for (int32_t i = 1; i <= sel[0]; i++, n++)
        di_cpu_cache_get(&a->kv, table[(size_t) sel[i] / a->kv.n],
                         (size_t) sel[i] % a->kv.n, keys + n * dim);
    return n;
}

/* Keys of a row at most. */
static size_t
keys_max(const di_cpu_sparse_t *a)
{
    return a->window + a->ring.n + a->top_k;
}

/* Item i of a->items of each row: its groups' heads, one after another. */
static void
sparse_item(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_sparse_t *a = &op->u.sparse;
    const size_t row = i / a->items, groups = a->n_groups / a->items;
    const size_t dim = a->ring.dim, wide = a->n_heads / a->n_groups * dim;
    const size_t heads = a->n_heads / a->items, h0 = i % a->items * heads;
    const size_t n_max = keys_max(a);
    float *keys = worker->scratch, *weight = keys + n_max * dim;
    float *out = weight + heads * n_max;
    size_t n = gather_keys(a, row, keys);
    di_cpu_convert_t y = { .y = a->y + i * groups * a->y_stride,
                           .y_stride = a->y_stride, .x = out, .k = wide };

    di_cpu_vec->dots(a->q + (row * a->n_heads + h0) * dim, heads, keys, n,
                     dim, weight, n_max);
    for (size_t h = 0; h < heads; h++)
        di_cpu_vec->softmax(weight + h * n_max, n, a->scale,
                            a->sinks[h0 + h]);
    di_cpu_vec->weigh(out, heads, weight, n_max, keys, n, dim);
    di_cpu_turn(&a->rotation, out, heads, dim, a->rows.positions[row], true);
    op->dev->kern->convert(&y, 0, groups);
}

static void
sparse_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_sparse_t *a = &op->u.sparse;

    for (; i < a->rows.n_rows * a->items; i += op->n_parts)
        sparse_item(op, i, worker);
}

void
di_cpu_sparse_attention(di_stream_t *s, di_view_t y, const di_sparse_t *x,
                        const di_rows_t *rows)
{
    size_t      wide = (size_t) x->n_heads / x->n_groups * x->ring.dim;
    size_t      items = rows->n_rows < ROWS_WHOLE ? x->n_groups : 1;
    size_t      n = rows->n_rows * items;
    di_cpu_op_t op = { .run = sparse_run };

    op.n_parts = n < DI_CPU_PARTS_MAX ? n : DI_CPU_PARTS_MAX;
    op.u.sparse = (di_cpu_sparse_t) {
        .ring = di_cpu_cache(&x->ring), .kv = di_cpu_cache(&x->kv),
        .rows = di_cpu_rows(rows), .rotation = di_cpu_rotation(&x->rotation),
        .y = di_cpu_at(y), .q = di_cpu_at(x->q),
        .y_stride = di_cpu_stream_dev(s)->kern->act_bytes(wide),
        .sinks = di_cpu_at(x->sinks), .fresh = di_cpu_at(x->fresh),
        .selected = di_cpu_at(x->selected), .top_k = x->top_k,
        .n_heads = x->n_heads, .n_groups = x->n_groups, .items = items,
        .window = x->window, .scale = x->scale, .drafts = x->drafts };
    assert((keys_max(&op.u.sparse) * (x->ring.dim + x->n_heads)
            + (size_t) x->n_heads * x->ring.dim)
           * sizeof(float) <= DI_CPU_SCRATCH);
    di_cpu_launch(s, &op);
}

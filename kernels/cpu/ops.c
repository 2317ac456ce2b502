/*
 * ops.c - the operators' launches: from views to plain pointers, and how each
 * op is cut into parts.
 *
 * Parts are about PART_BYTES of weights or a few rows: a part takes some
 * microseconds, against a tenth of one to hand it out, and at the end of an
 * op no thread waits long for another.  What would be one part anyway runs on
 * the thread that finished the op before, without waking anybody.
 */

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PART_BYTES   (12u << 10)  /* of weights at least, when rows are few */
#define PANELS_MIN   8            /* and when they are many                 */
#define ROWS_CHUNK   256          /* rows whose activations stay in cache   */
#define SPLIT_ITEMS  4            /* fewer items per thread: split them     */
#define SPLIT_ROWS   16           /* rows of a launch that may be split     */
#define ROW_VALUES   4096         /* values of row-wise ops per part        */

void *
di_cpu_at(di_view_t view)
{
    return view.buf ? (uint8_t *) view.buf->data + view.offset : NULL;
}

static size_t
min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void
di_cpu_cut_rows(di_cpu_op_t *op, size_t n, size_t k)
{
    op->n_rows = n;
    op->step = ROW_VALUES / k + 1;
    while (n / op->step >= DI_CPU_PARTS_MAX)
        op->step *= 2;
    op->n_parts = (n + op->step - 1) / op->step;
}

static void
embed_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_weight_t *t = op->u.embed.table;
    size_t end = min_size(op->n_rows, (i + 1) * op->step);
    const di_cpu_wpart_t *part;
    size_t id;

    (void) worker;
    for (size_t r = i * op->step; r < end; r++) {
        id = (size_t) op->u.embed.ids[r];
        for (part = t->parts; id >= part->n; part++)
            id -= part->n;
        di_wpart_row(&(di_wpart_t) { part->type, part->data, part->n,
                                     part->scales },
                     id, t->k, op->u.embed.x + r * t->k);
    }
}

void
di_cpu_embed(di_stream_t *s, di_view_t x, const di_weight_t *table,
             di_view_t ids, size_t n_rows)
{
    di_cpu_op_t op = { .run = embed_run };

    di_cpu_cut_rows(&op, n_rows, table->k);
    op.u.embed.x = di_cpu_at(x);
    op.u.embed.table = table;
    op.u.embed.ids = di_cpu_at(ids);
    di_cpu_launch(s, &op);
}

static void
norm_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    (void) worker;
    op->dev->kern->norm(&op->u.norm, i * op->step,
                        min_size(op->n_rows, (i + 1) * op->step));
}

void
di_cpu_norm(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
            di_view_t w, float eps, di_view_t rows, size_t n_rows, size_t k)
{
    di_cpu_op_t op = { .run = norm_run };

    di_cpu_cut_rows(&op, n_rows, k);
    op.u.norm.y = di_cpu_at(y);
    op.u.norm.y_stride = di_cpu_stream_dev(s)->kern->act_bytes(k);
    op.u.norm.x = di_cpu_at(x);
    op.u.norm.add = di_cpu_at(add);
    op.u.norm.w = di_cpu_at(w);
    op.u.norm.rows = di_cpu_at(rows);
    op.u.norm.k = k;
    op.u.norm.eps = eps;
    di_cpu_launch(s, &op);
}

static void
silu_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    (void) worker;
    op->dev->kern->silu_mul(&op->u.silu, i * op->step,
                            min_size(op->n_rows, (i + 1) * op->step));
}

void
di_cpu_swiglu(di_stream_t *s, di_view_t y, di_view_t gu, di_view_t c,
              float limit, size_t n_rows, size_t k)
{
    di_cpu_op_t op = { .run = silu_run };

    di_cpu_cut_rows(&op, n_rows, k);
    op.u.silu.y = di_cpu_at(y);
    op.u.silu.y_stride = di_cpu_stream_dev(s)->kern->act_bytes(k);
    op.u.silu.gu = di_cpu_at(gu);
    op.u.silu.c = di_cpu_at(c);
    op.u.silu.limit = limit;
    op.u.silu.k = k;
    di_cpu_launch(s, &op);
}

void
di_cpu_silu_mul(di_stream_t *s, di_view_t y, di_view_t gu, size_t n_rows,
                size_t k)
{
    di_view_t none = { NULL, 0 };

    di_cpu_swiglu(s, y, gu, none, INFINITY, n_rows, k);
}

static void
convert_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    (void) worker;
    op->dev->kern->convert(&op->u.convert, i * op->step,
                           min_size(op->n_rows, (i + 1) * op->step));
}

void
di_cpu_convert(di_stream_t *s, di_view_t y, di_view_t x, size_t n_rows,
               size_t k)
{
    di_cpu_op_t op = { .run = convert_run };

    di_cpu_cut_rows(&op, n_rows, k);
    op.u.convert.y = di_cpu_at(y);
    op.u.convert.y_stride = di_cpu_stream_dev(s)->kern->act_bytes(k);
    op.u.convert.x = di_cpu_at(x);
    op.u.convert.k = k;
    di_cpu_launch(s, &op);
}

/* Panel ranges, long ones first: a range is a 2n-th of what is left for n
 * threads, at least step panels, and all of it for one.  Long runs suit
 * prefetching, short ones at the end let the threads finish together.
 * Returns where range i begins, the number of panels if there is none; *end is
 * where it ends. */
static size_t
range_begin(const di_cpu_op_t *op, size_t i, size_t *end)
{
    size_t n = op->u.matmul.w->n_panels, at = 0, step;
    size_t threads = di_cpu_pool_threads(op->dev->pool);

    for (;;) {
        step = threads == 1 ? n - at : (n - at) / (2 * threads);
        step = (step < op->step ? op->step : step) + 1;
        step &= ~(size_t) 1;     /* kernels may take two at a time          */
        if (step > n - at)
            step = n - at;
        *end = at + step;
        if (i-- == 0 || at == n)
            return at;
        at += step;
    }
}

/* The range may cross from one part of the weight into the next. */
void
di_cpu_matmul_panels(const di_cpu_kern_t *kern, const di_cpu_matmul_t *a,
                     size_t p0, size_t p1, size_t r0, size_t r1,
                     void *scratch)
{
    const di_cpu_wpart_t *part = a->w->parts;
    size_t end;

    while (p0 < p1) {
        while (p0 >= part->first_panel + part->n_panels)
            part++;
        end = min_size(p1, part->first_panel + part->n_panels);
        (di_wtype_is_micro(part->type) ? kern->matmul_micro : kern->matmul)(
            a, part, p0 - part->first_panel, end - part->first_panel, r0, r1,
            scratch);
        p0 = end;
    }
}

/* Parts are panel ranges for each chunk of rows. */
static void
matmul_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    size_t p1, p0 = range_begin(op, i % op->ranges, &p1);
    size_t r0 = i / op->ranges * ROWS_CHUNK;
    size_t r1 = min_size(op->n_rows, r0 + ROWS_CHUNK);

    di_cpu_matmul_panels(op->dev->kern, &op->u.matmul, p0, p1, r0, r1,
                         worker->scratch);
}

void
di_cpu_matmul(di_stream_t *s, di_view_t out, di_view_t act,
              const di_weight_t *w, di_view_t bias, size_t n_rows)
{
    di_cpu_op_t op = { .run = matmul_run, .n_rows = n_rows };
    size_t tiles = (min_size(n_rows, ROWS_CHUNK) + DI_CPU_ROW_TILE - 1)
                   / DI_CPU_ROW_TILE;
    size_t chunks = (n_rows + ROWS_CHUNK - 1) / ROWS_CHUNK, end;

    op.dev = di_cpu_stream_dev(s);
    op.u.matmul.out = di_cpu_at(out);
    op.u.matmul.act = di_cpu_at(act);
    op.u.matmul.act_stride = op.dev->kern->act_bytes(w->k);
    op.u.matmul.w = w;
    op.u.matmul.bias = di_cpu_at(bias);

    op.step = PART_BYTES / ((w->bytes / w->n_panels + 1) * tiles) + 1;
    if (tiles > 1 && op.step < PANELS_MIN)
        op.step = PANELS_MIN;
    do {
        op.ranges = 0;
        while (range_begin(&op, op.ranges, &end) < w->n_panels)
            op.ranges++;
        op.step *= 2;
    } while (op.ranges * chunks > DI_CPU_PARTS_MAX);
    op.step /= 2;
    op.n_parts = op.ranges * chunks;
    di_cpu_launch(s, &op);
}

static di_cpu_kv_t
kv_layer(di_stream_t *s, di_view_t kv, const di_kv_geom_t *geom,
         uint32_t layer)
{
    di_cpu_kv_t a;

    a.region_bytes = (size_t) DI_CPU_KV_TOKENS * geom->head_dim
                     * di_cpu_stream_dev(s)->kern->kv_value_bytes;
    a.block_bytes = a.region_bytes * 2 * geom->n_kv_heads * geom->n_layers;
    a.data = (uint8_t *) di_cpu_at(kv)
             + (size_t) layer * geom->n_kv_heads * 2 * a.region_bytes;
    a.n_kv_heads = geom->n_kv_heads;
    a.head_dim = geom->head_dim;
    return a;
}

/* Rows [r0, r1) cut where a sequence ends. */
static void
rope_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const int32_t *first = di_cpu_at(op->rows.seq_first);
    const int32_t *tables = di_cpu_at(op->rows.tables);
    size_t r = i * op->step;
    size_t r1 = min_size(op->n_rows, r + op->step);
    size_t seq = 0, end;

    (void) worker;
    while (r < r1) {
        while ((size_t) first[seq + 1] <= r)
            seq++;
        end = min_size(r1, (size_t) first[seq + 1]);
        op->dev->kern->rope_store(&op->u.rope,
                                  tables + seq * op->rows.table_stride,
                                  r, end);
        r = end;
    }
}

void
di_cpu_rope_store(di_stream_t *s, di_view_t qkv, uint32_t n_heads,
                  di_view_t kv, const di_kv_geom_t *geom, uint32_t layer,
                  const di_rows_t *rows, di_view_t freqs,
                  di_rope_style_t style)
{
    di_cpu_op_t op = { .run = rope_run, .rows = *rows };

    di_cpu_cut_rows(&op, rows->n_rows,
             (size_t) (n_heads + 2 * geom->n_kv_heads) * geom->head_dim);
    op.u.rope.qkv = di_cpu_at(qkv);
    op.u.rope.n_heads = n_heads;
    op.u.rope.kv = kv_layer(s, kv, geom, layer);
    op.u.rope.positions = di_cpu_at(rows->positions);
    op.u.rope.freqs = di_cpu_at(freqs);
    op.u.rope.style = style;
    di_cpu_launch(s, &op);
}

/* One item per tile of rows of a sequence and KV head. */
static size_t
plan_tiles(const di_cpu_op_t *op)
{
    const int32_t *first = di_cpu_at(op->rows.seq_first);
    const int32_t *tables = di_cpu_at(op->rows.tables);
    const int32_t *positions = di_cpu_at(op->rows.positions);
    di_cpu_attn_item_t *item = op->dev->items;
    size_t end, n;

    for (size_t seq = 0; seq < op->rows.n_seqs; seq++) {
        end = (size_t) first[seq + 1];
        for (size_t r = (size_t) first[seq]; r < end; r += n) {
            n = min_size(end - r, DI_CPU_ROW_TILE);
            for (uint32_t h = 0; h < op->u.attn.kv.n_kv_heads; h++, item++) {
                memset(item, 0, sizeof(*item));
                item->table = tables + seq * op->rows.table_stride;
                item->first_row = (uint32_t) r;
                item->n_rows = (uint32_t) n;
                item->kv_head = h;
                item->n_segments = 1 + (uint32_t) positions[r + n - 1]
                                       / DI_CPU_KV_SEGMENT;
            }
        }
    }
    return (size_t) (item - op->dev->items);
}

/* Make an item of each segment, from the last tile on: the array is filled
 * from its end, where there is room for all. */
static size_t
plan_segments(const di_cpu_op_t *op, size_t n_tiles)
{
    const di_cpu_attn_t *a = &op->u.attn;
    const di_cpu_kern_t *kern = op->dev->kern;
    size_t group = a->n_heads / a->kv.n_kv_heads, floats, used = 0;
    di_cpu_attn_item_t *to = op->dev->items + op->dev->items_max, tile;

    for (size_t i = n_tiles; i-- > 0;) {
        tile = op->dev->items[i];
        floats = kern->partial_floats(tile.n_rows * group, a->kv.head_dim);
        if (tile.n_segments == 1 || floats == 0) {
            *--to = tile;
            continue;
        }
        tile.partial = op->dev->partials + used;
        tile.left = &op->dev->lefts[i];
        atomic_store_explicit(tile.left, tile.n_segments,
                              memory_order_relaxed);
        used += floats * tile.n_segments;
        for (uint32_t s = 0; s < tile.n_segments; s++) {
            *--to = tile;
            to->segment = s;
        }
    }

    n_tiles = (size_t) (op->dev->items + op->dev->items_max - to);
    memmove(op->dev->items, to, n_tiles * sizeof(*to));
    return n_tiles;
}

/* Few items for the threads? */
static bool
are_few(const di_dev_t *dev, size_t n_items)
{
    size_t n_threads = di_cpu_pool_threads(dev->pool);

    return n_threads > 1 && n_items < SPLIT_ITEMS * n_threads;
}

static size_t
attn_plan(const di_cpu_op_t *op)
{
    size_t n = plan_tiles(op);

    if (op->may_split && are_few(op->dev, n))
        n = plan_segments(op, n);
    op->dev->n_items = n;
    return min_size(n, DI_CPU_PARTS_MAX);
}

/* Later rows have more keys: they go first, so that the last parts are
 * short. */
static void
attn_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    size_t n = op->dev->n_items, parts = min_size(n, DI_CPU_PARTS_MAX);
    const di_cpu_kern_t *kern = op->dev->kern;
    const di_cpu_attn_item_t *item;

    for (; i < n; i += parts) {
        item = &op->dev->items[n - 1 - i];
        kern->attention(&op->u.attn, item, worker->scratch);
        /* The last one acquires what the others wrote before theirs. */
        if (item->left != NULL
            && atomic_fetch_sub_explicit(item->left, 1, memory_order_acq_rel)
               == 1)
            kern->merge(&op->u.attn, item, worker->scratch);
    }
}

/* Room for the plan of an attention: an item per row and KV head, or, where
 * tiles may be split, per segment of these, and their results.  A launch
 * leaves room for what any smaller one may need, split or not, so that a step
 * allocates nothing once the device has had the largest. */
static bool
reserve_plan(di_stream_t *s, const di_kv_geom_t *geom, uint32_t n_heads,
             const di_rows_t *rows, bool *may_split)
{
    di_dev_t *dev = di_cpu_stream_dev(s);
    size_t n = (size_t) rows->n_rows * geom->n_kv_heads, floats = 0, split;
    size_t segments = (size_t) rows->table_stride * DI_CPU_KV_TOKENS
                      / DI_CPU_KV_SEGMENT + 1;
    void *p;

    *may_split = dev->kern->partial_floats != NULL
                 && rows->n_rows <= SPLIT_ROWS
                 && are_few(dev, (size_t) rows->n_seqs * geom->n_kv_heads);
    if (dev->kern->partial_floats != NULL && are_few(dev, geom->n_kv_heads)) {
        split = min_size(rows->n_rows, SPLIT_ROWS) * geom->n_kv_heads
                * segments;
        floats = split * dev->kern->partial_floats(n_heads / geom->n_kv_heads,
                                                   geom->head_dim);
        n = n > split ? n : split;
    }
    if (n > dev->items_max) {
        p = realloc(dev->items, n * sizeof(*dev->items));
        if (p == NULL)
            goto no_memory;
        dev->items = p;
        p = realloc(dev->lefts, n * sizeof(*dev->lefts));
        if (p == NULL)
            goto no_memory;
        dev->lefts = p;
        dev->items_max = n;
    }
    if (floats > dev->partials_max) {
        p = realloc(dev->partials, floats * sizeof(float));
        if (p == NULL)
            goto no_memory;
        dev->partials = p;
        dev->partials_max = floats;
    }
    return true;

no_memory:
    di_cpu_stream_fault(s, DI_ENOMEM);
    return false;
}

void
di_cpu_attention(di_stream_t *s, di_view_t y, di_view_t qkv,
                 uint32_t n_heads, di_view_t kv, const di_kv_geom_t *geom,
                 uint32_t layer, const di_rows_t *rows, float scale)
{
    di_cpu_op_t op = { .run = attn_run, .plan = attn_plan, .rows = *rows };

    if (!reserve_plan(s, geom, n_heads, rows, &op.may_split))
        return;

    op.u.attn.y = di_cpu_at(y);
    op.u.attn.y_stride = di_cpu_stream_dev(s)->kern->act_bytes(
        (size_t) n_heads * geom->head_dim);
    op.u.attn.qkv = di_cpu_at(qkv);
    op.u.attn.n_heads = n_heads;
    op.u.attn.kv = kv_layer(s, kv, geom, layer);
    op.u.attn.positions = di_cpu_at(rows->positions);
    op.u.attn.scale = scale;
    di_cpu_launch(s, &op);
}

static void
kv_copy_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const di_cpu_kv_t *kv = &op->u.kv_copy.kv;
    size_t at_region = i * 2 * kv->region_bytes;

    (void) worker;
    op->dev->kern->kv_copy(
        kv, kv->data + op->u.kv_copy.dst * kv->block_bytes + at_region,
        kv->data + op->u.kv_copy.src * kv->block_bytes + at_region,
        op->u.kv_copy.n_tokens);
}

void
di_cpu_kv_copy(di_stream_t *s, di_view_t kv, const di_kv_geom_t *geom,
               uint32_t dst, uint32_t src, uint32_t n_tokens)
{
    di_cpu_op_t op = { .run = kv_copy_run };

    op.n_parts = (size_t) geom->n_layers * geom->n_kv_heads;
    op.u.kv_copy.kv = kv_layer(s, kv, geom, 0);
    op.u.kv_copy.dst = dst;
    op.u.kv_copy.src = src;
    op.u.kv_copy.n_tokens = n_tokens;
    di_cpu_launch(s, &op);
}

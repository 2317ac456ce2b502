/*
 * f32_kern.h - kernels of DI_ARITH_F32, included once by each instruction
 * set's file (f32_avx2.c, f32_avx512.c) after it has defined:
 *
 *   W                 floats of a vector, 8 or 16
 *   v_t               the vector; v_load v_store v_set1 v_add v_sub v_mul v_div
 *                     v_fma(a, b, c) = a * b + c, v_max, v_min, v_round,
 *                     v_scale(p, n) = p * 2^n; v_sum and v_maximum of lanes
 *   ROWS, PANELS      of the product's block of sums in registers
 *   KERN              the table's name; KERN_NAME, KERN_OPS, KERN_USABLE
 *
 * Weights are repacked as float32 panels of 16 columns: [k][16].  That is up
 * to eight times the file's size: this arithmetic is for checking.  Each
 * output is one FMA chain over k, so that the number of rows at a time can't
 * matter.
 */

#include <math.h>
#include <string.h>

#define VECS (DI_CPU_PANEL / W)  /* vectors of a panel's row                */

#define F32_INLINE static inline __attribute__((always_inline))

static size_t
act_bytes(size_t k)
{
    return (4 * k + 63) & ~(size_t) 63;
}

static size_t
panel_bytes(di_wtype_t type, size_t k)
{
    (void) type;
    return k * DI_CPU_PANEL * sizeof(float);
}

static void
pack(const di_cpu_wpart_t *part, size_t k, size_t p)
{
    size_t block = di_wtype_block(part->type);
    size_t step = block > DI_WBLOCK ? block : DI_WBLOCK;
    float *panel = (float *) (void *) (part->packed + p * part->panel_bytes);
    const uint8_t *row;
    float value[256];

    for (size_t c = 0; c < DI_CPU_PANEL; c++) {
        if (p * DI_CPU_PANEL + c >= part->n)
            break;
        row = (const uint8_t *) part->data
              + (p * DI_CPU_PANEL + c) * part->row_bytes;
        for (size_t i = 0; i < k; i += step) {
            di_dequantise(part->type, row + di_wtype_bytes(part->type, i),
                          step, value);
            for (size_t j = 0; j < step; j++)
                panel[(i + j) * DI_CPU_PANEL + c] = value[j];
        }
    }
}

/* -- elementary functions -------------------------------------------------- */

/* As di_exp512(): 2^n * 2^f, a polynomial of degree 5 for the latter, which
 * is kept in its range where x is far outside that of the result. */
F32_INLINE v_t
v_exp(v_t x)
{
    v_t n, f, p;

    x = v_max(v_min(x, v_set1(128.0f)), v_set1(-128.0f));
    n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    f = v_fma(x, v_set1(0x1.715476p+0f), v_sub(v_set1(0), n));
    f = v_fma(x, v_set1(0x1.4ae0cp-26f), f);
    p = v_set1(1.327647217e-3f);
    p = v_fma(p, f, v_set1(9.675541331e-3f));
    p = v_fma(p, f, v_set1(5.550713273e-2f));
    p = v_fma(p, f, v_set1(0.2402211972f));
    p = v_fma(p, f, v_set1(0.6931469671f));
    p = v_fma(p, f, v_set1(1.0f));
    return v_scale(p, n);
}

/* -- row-wise operators ---------------------------------------------------- */

static void
norm(const di_cpu_norm_t *a, size_t r0, size_t r1)
{
    const float *add;
    float *x, *y;
    v_t v, sum, factor;
    size_t row;

    for (size_t r = r0; r < r1; r++) {
        row = a->rows ? (size_t) a->rows[r] : r;
        x = a->x + row * a->k;
        y = (float *) (void *) (a->y + r * a->y_stride);
        add = a->add ? a->add + row * a->k : NULL;
        sum = v_set1(0);
        for (size_t i = 0; i < a->k; i += W) {
            v = v_load(x + i);
            if (add) {
                v = v_add(v, v_load(add + i));
                v_store(x + i, v);
            }
            sum = v_fma(v, v, sum);
        }
        factor = v_set1(1.0f / sqrtf(v_sum(sum) / (float) a->k + a->eps));
        for (size_t i = 0; i < a->k; i += W)
            v_store(y + i, v_mul(v_mul(v_load(x + i), factor),
                                 v_load(a->w + i)));
    }
}

static void
silu_mul(const di_cpu_silu_t *a, size_t r0, size_t r1)
{
    v_t g, e, u, c, limit = v_set1(a->limit), least = v_set1(-a->limit);
    const float *gate;
    float *y;

    for (size_t r = r0; r < r1; r++) {
        gate = a->gu + r * 2 * a->k;
        c = v_set1(a->c ? a->c[r] : 1.0f);
        y = (float *) (void *) (a->y + r * a->y_stride);
        for (size_t i = 0; i < a->k; i += W) {
            /* The bounds come first: what is not a number stays that. */
            g = v_min(limit, v_load(gate + i));
            u = v_max(least, v_min(limit, v_load(gate + a->k + i)));
            e = v_exp(v_sub(v_set1(0), g));
            g = v_div(g, v_add(e, v_set1(1.0f)));
            v_store(y + i, v_mul(v_mul(g, u), c));
        }
    }
}

static void
convert(const di_cpu_convert_t *a, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        memcpy(a->y + r * a->y_stride, a->x + r * a->k,
               a->k * sizeof(float));
}

/* -- matrix product -------------------------------------------------------- */

F32_INLINE const float *
packed(const di_cpu_wpart_t *part, size_t p)
{
    return (const float *) (const void *)
           (part->packed + p * part->panel_bytes);
}

/* `rows` rows by `panels` panels, from w on: all sums in registers. */
F32_INLINE void
multiply(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, const float *w,
         size_t p, size_t r, const size_t rows, const size_t panels)
{
    const float *x = (const float *) (const void *)
                     (a->act + r * a->act_stride);
    size_t k = a->w->k, panel = k * DI_CPU_PANEL;
    size_t x_stride = a->act_stride / sizeof(float), left;
    v_t acc[ROWS][PANELS * VECS], v[PANELS * VECS], xi;
    float row[PANELS * DI_CPU_PANEL], *out;

#pragma GCC unroll 8
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t j = 0; j < panels * VECS; j++)
            acc[i][j] = v_set1(0);

    for (size_t i = 0; i < k; i++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < panels * VECS; j++)
            v[j] = v_load(w + j / VECS * panel + i * DI_CPU_PANEL
                          + j % VECS * W);
#pragma GCC unroll 8
        for (size_t h = 0; h < rows; h++) {
            xi = v_set1(x[h * x_stride + i]);
#pragma GCC unroll 8
            for (size_t j = 0; j < panels * VECS; j++)
                acc[h][j] = v_fma(xi, v[j], acc[h][j]);
        }
    }

    left = part->n - p * DI_CPU_PANEL;
    if (left > panels * DI_CPU_PANEL)
        left = panels * DI_CPU_PANEL;
#pragma GCC unroll 8
    for (size_t h = 0; h < rows; h++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < panels * VECS; j++)
            v_store(row + j * W, acc[h][j]);
        out = a->out + (r + h) * a->w->n + part->first + p * DI_CPU_PANEL;
        for (size_t i = 0; i < left; i++)
            out[i] = row[i] + (a->bias ? a->bias[part->first
                                                 + p * DI_CPU_PANEL + i]
                                       : 0.0f);
    }
}

/* Panels that don't lie packed are made one by one: as the arithmetic is for
 * checking, without vectors. */
static void
matmul_micro(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
             size_t p1, size_t r0, size_t r1, void *scratch)
{
    size_t k = a->w->k, r, row;
    float *panel = scratch, value[DI_WBLOCK], scale;
    di_wpart_t in = { part->type, part->data, part->n, part->scales };

    for (; p0 < p1; p0++) {
        for (size_t c = 0; c < DI_CPU_PANEL; c++) {
            row = p0 * DI_CPU_PANEL + c;
            for (size_t b = 0; row < part->n && b < k / DI_WBLOCK; b++) {
                scale = di_wmicro_get(&in, row, k, b, value);
                for (size_t i = 0; i < DI_WBLOCK; i++)
                    panel[(b * DI_WBLOCK + i) * DI_CPU_PANEL + c]
                        = value[i] * scale;
            }
        }
        for (r = r0; r + ROWS <= r1; r += ROWS)
            multiply(a, part, panel, p0, r, ROWS, 1);
        for (; r < r1; r++)
            multiply(a, part, panel, p0, r, 1, 1);
    }
}

static void
matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
       size_t p1, size_t r0, size_t r1, void *scratch)
{
    const float *w;
    size_t r;

    (void) scratch;
    for (; p0 + PANELS <= p1; p0 += PANELS) {
        w = packed(part, p0);
        for (r = r0; r + ROWS <= r1; r += ROWS)
            multiply(a, part, w, p0, r, ROWS, PANELS);
        for (; r < r1; r++)
            multiply(a, part, w, p0, r, 1, PANELS);
    }
    for (; p0 < p1; p0++) {
        w = packed(part, p0);
        for (r = r0; r + ROWS <= r1; r += ROWS)
            multiply(a, part, w, p0, r, ROWS, 1);
        for (; r < r1; r++)
            multiply(a, part, w, p0, r, 1, 1);
    }
}

/* -- rotation, KV cache, attention ----------------------------------------- */

/* Keys lie as [head_dim][16 tokens], values as [16 tokens][head_dim]. */

/* Sine and cosine in double by the C library: exact, and few per row. */
static void
angles(int32_t position, const float *freqs, size_t half, float *cosines,
       float *sines)
{
    double angle;

    for (size_t i = 0; i < half; i++) {
        angle = (double) ((float) position * freqs[i]);
        cosines[i] = (float) cos(angle);
        sines[i] = (float) sin(angle);
    }
}

static void
rotate(float *x, size_t head_dim, di_rope_style_t style,
       const float *cosines, const float *sines)
{
    size_t half = head_dim / 2, a, b;
    float x0, x1;

    for (size_t i = 0; i < half; i++) {
        a = style == DI_ROPE_PAIRS ? 2 * i : i;
        b = style == DI_ROPE_PAIRS ? 2 * i + 1 : i + half;
        x0 = x[a];
        x1 = x[b];
        x[a] = x0 * cosines[i] - x1 * sines[i];
        x[b] = x0 * sines[i] + x1 * cosines[i];
    }
}

static void
rope_store(const di_cpu_rope_t *a, const int32_t *table, size_t r0,
           size_t r1)
{
    float cosines[DI_CPU_HEAD_MAX / 2], sines[DI_CPU_HEAD_MAX / 2];
    size_t hd = a->kv.head_dim, n_kv = a->kv.n_kv_heads, t;
    float *row, *k, *v, *to;
    int32_t position;

    for (size_t r = r0; r < r1; r++) {
        row = a->qkv + r * (a->n_heads + 2 * n_kv) * hd;
        position = a->positions[r];
        angles(position, a->freqs, hd / 2, cosines, sines);
        for (size_t h = 0; h < a->n_heads + n_kv; h++)
            rotate(row + h * hd, hd, a->style, cosines, sines);

        t = (size_t) position % DI_CPU_KV_TOKENS;
        for (size_t h = 0; h < n_kv; h++) {
            k = row + (a->n_heads + h) * hd;
            v = k + n_kv * hd;
            to = (float *) (void *)
                 di_cpu_kv_region(&a->kv, table[position / DI_CPU_KV_TOKENS],
                                  (uint32_t) h);
            for (size_t d = 0; d < hd; d++)
                to[d * DI_CPU_KV_TOKENS + t] = k[d];
            to += a->kv.region_bytes / sizeof(float);
            memcpy(to + t * hd, v, hd * sizeof(float));
        }
    }
}

/* A query: softmax by segments, merged in order. */
typedef struct {
    const di_cpu_attn_t      *a;
    const di_cpu_attn_item_t *item;
    const float              *q;
    float                     max;
    float                     total;
    float                     sums[DI_CPU_HEAD_MAX];
    float                     weights[DI_CPU_KV_SEGMENT];
} query_t;

static const float *
region(const query_t *s, size_t key)
{
    return (const float *) (const void *)
           di_cpu_kv_region(&s->a->kv,
                            s->item->table[key / DI_CPU_KV_TOKENS],
                            s->item->kv_head);
}

/* Products of the n keys from key k0 on; -inf up to a whole block. */
static void
products(query_t *s, size_t k0, size_t n)
{
    size_t hd = s->a->kv.head_dim;
    v_t acc[VECS], scale = v_set1(s->a->scale), qi;
    const float *k;

    for (size_t j = 0; j < n; j += DI_CPU_KV_TOKENS) {
        k = region(s, k0 + j);
        for (size_t i = 0; i < VECS; i++)
            acc[i] = v_set1(0);
        for (size_t d = 0; d < hd; d++) {
            qi = v_set1(s->q[d]);
            for (size_t i = 0; i < VECS; i++)
                acc[i] = v_fma(qi, v_load(k + d * DI_CPU_KV_TOKENS + i * W),
                               acc[i]);
        }
        for (size_t i = 0; i < VECS; i++)
            v_store(s->weights + j + i * W, v_mul(acc[i], scale));
    }
    for (size_t j = n; j % DI_CPU_KV_TOKENS != 0; j++)
        s->weights[j] = -INFINITY;
}

/* Products to weights; returns their largest one, and the weights' sum. */
static float
softmax(query_t *s, size_t n, float *total)
{
    v_t max = v_set1(-INFINITY), sum = v_set1(0), v;

    for (size_t j = 0; j < n; j += W)
        max = v_max(max, v_load(s->weights + j));
    max = v_set1(v_maximum(max));
    for (size_t j = 0; j < n; j += W) {
        v = v_exp(v_sub(v_load(s->weights + j), max));
        v_store(s->weights + j, v);
        sum = v_add(sum, v);
    }
    *total = v_sum(sum);
    return v_maximum(max);
}

static void
segment(query_t *s, size_t k0, size_t n)
{
    size_t hd = s->a->kv.head_dim;
    float max, seg_max, seg_total, own, old;
    const float *v;
    v_t acc[4];

    products(s, k0, n);
    seg_max = softmax(s, n, &seg_total);
    max = seg_max > s->max ? seg_max : s->max;
    own = expf(seg_max - max);
    old = expf(s->max - max);
    s->max = max;
    s->total = s->total * old + seg_total * own;

    for (size_t d = 0; d < hd; d += 4 * W) {
        size_t m = hd - d < 4 * W ? (hd - d) / W : 4;

        for (size_t i = 0; i < m; i++)
            acc[i] = v_set1(0);
        for (size_t j = 0; j < n; j++) {
            v = region(s, k0 + j) + s->a->kv.region_bytes / sizeof(float)
                + j % DI_CPU_KV_TOKENS * hd + d;
            for (size_t i = 0; i < m; i++)
                acc[i] = v_fma(v_set1(s->weights[j]), v_load(v + i * W),
                               acc[i]);
        }
        for (size_t i = 0; i < m; i++)
            v_store(s->sums + d + i * W,
                    v_fma(acc[i], v_set1(own),
                          v_mul(v_load(s->sums + d + i * W), v_set1(old))));
    }
}

static void
attention(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
          void *scratch)
{
    size_t hd = a->kv.head_dim, group = a->n_heads / a->kv.n_kv_heads;
    size_t row, head, keys;
    query_t s = { .a = a, .item = item };
    float *y;

    (void) scratch;
    for (size_t i = 0; i < item->n_rows * group; i++) {
        row = item->first_row + i / group;
        head = item->kv_head * group + i % group;
        s.q = a->qkv + (row * (a->n_heads + 2 * a->kv.n_kv_heads) + head)
                       * hd;
        s.max = -INFINITY;
        s.total = 0;
        memset(s.sums, 0, hd * sizeof(float));
        keys = (size_t) a->positions[row] + 1;
        for (size_t k0 = 0; k0 < keys; k0 += DI_CPU_KV_SEGMENT)
            segment(&s, k0, keys - k0 < DI_CPU_KV_SEGMENT
                            ? keys - k0 : DI_CPU_KV_SEGMENT);
        y = (float *) (void *) (a->y + row * a->y_stride) + head * hd;
        for (size_t d = 0; d < hd; d++)
            y[d] = s.sums[d] / s.total;
    }
}

static void
kv_copy(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,
        uint32_t n_tokens)
{
    size_t hd = kv->head_dim;

    for (size_t d = 0; d < hd; d++)
        memcpy(dst + d * DI_CPU_KV_TOKENS * 4,
               src + d * DI_CPU_KV_TOKENS * 4, n_tokens * sizeof(float));
    memcpy(dst + kv->region_bytes, src + kv->region_bytes,
           n_tokens * hd * sizeof(float));
}

const di_cpu_kern_t KERN = {
    .name = KERN_NAME,
    .ops = KERN_OPS,
    .arith = DI_ARITH_F32,
    .kv_value_bytes = 4,
    .vec = &KERN_VEC,
    .usable = KERN_USABLE,
    .act_bytes = act_bytes,
    .panel_bytes = panel_bytes,
    .pack = pack,
    .norm = norm,
    .silu_mul = silu_mul,
    .convert = convert,
    .rope_store = rope_store,
    .matmul = matmul,
    .matmul_micro = matmul_micro,
    .attention = attention,
    .kv_copy = kv_copy,
};

/*
 * sampler_row.c - passes over a row of logits.
 *
 * Each pass is written once, on vectors of 16 floats in the compilers'
 * vector extension, and compiled for several instruction sets; the compiler
 * splits a vector into the registers that there are.  Sixteen accumulators
 * whatever the register, no fused multiply-add (the build turns contraction
 * off): so every set gives the same bits.  The rest of a row that does not
 * fill a vector is padded with -inf, which changes none of the results.
 */

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "sampler_row.h"

#define W       16              /* floats of a vector                       */
#define INLINE  static inline __attribute__((always_inline))

typedef float    vf_t __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t  vi_t __attribute__((vector_size(W * 4), aligned(4)));
typedef uint32_t vu_t __attribute__((vector_size(W * 4), aligned(4)));

/* mask ? a : b, bit by bit; masks are 0 or -1. */
#define SELECT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))


/* The vector at x, of which n >= 1 floats exist. */
INLINE void
load(vf_t *v, const float *x, size_t n)
{
    float padded[W];
    int   i;

    if (n >= W) {
        memcpy(v, x, sizeof(*v));
        return;
    }
    for (i = 0; i < W; i++)
        padded[i] = (size_t) i < n ? x[i] : -INFINITY;
    memcpy(v, padded, sizeof(*v));
}


INLINE void
max_body(const float *x, size_t n, di_row_max_t *out)
{
    vf_t    v, m = (vf_t) { 0 } - INFINITY;
    vi_t    at = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    vi_t    best = at, bad = { 0 }, gt;
    float   lane_max[W];
    int32_t lane_best[W], lane_bad[W];
    size_t  i;
    int     k;

    for (i = 0; i < n; i += W) {
        load(&v, x + i, n - i);
        gt = v > m;
        bad |= v != v;
        m = (vf_t) SELECT(gt, (vi_t) v, (vi_t) m);
        best = SELECT(gt, at, best);
        at += W;
    }

    memcpy(lane_max, &m, sizeof(m));
    memcpy(lane_best, &best, sizeof(best));
    memcpy(lane_bad, &bad, sizeof(bad));
    *out = (di_row_max_t) { .max = -INFINITY };
    for (k = 0; k < W; k++) {
        out->bad |= lane_bad[k] != 0;
        if (lane_max[k] > out->max
            || (lane_max[k] == out->max
                && (uint32_t) lane_best[k] < out->index))
        {
            out->max = lane_max[k];
            out->index = (uint32_t) lane_best[k];
        }
    }
}


/* v = e^v for v <= 0.  2^n by the exponent's bits, e^f by the Taylor
 * polynomial of degree 7 on |f| <= ln 2 / 2. */
INLINE void
exp_vector(vf_t *v)
{
    const float round = 0x1.8p23f;
    vf_t        x, t, f, p;
    vi_t        big;

    big = *v >= -87.0f;
    x = (vf_t) (big & (vi_t) *v);
    t = x * 0x1.715476p0f + round;
    f = t - round;
    f = (x - f * 0x1.62e4p-1f) - f * 0x1.7f7d1cp-20f;

    p = f * (1.0f / 5040) + (1.0f / 720);
    p = p * f + (1.0f / 120);
    p = p * f + (1.0f / 24);
    p = p * f + (1.0f / 6);
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    *v = (vf_t) (big & ((vi_t) p + ((vi_t) t << 23)));
}


INLINE double
exp_body(const float *x, size_t n, float max, float scale, float *e)
{
    vf_t   v, sum;
    float  lane_sum[W];
    double total = 0;
    size_t i, end;
    int    k;

    for (i = 0; i < n; ) {
        sum = (vf_t) { 0 };
        end = n - i > 64 * W ? i + 64 * W : n;
        for ( ; i < end; i += W) {
            load(&v, x + i, n - i);
            v = (v - max) * scale;
            exp_vector(&v);
            sum += v;
            if (e != NULL)
                memcpy(e + i, &v, n - i < W ? (n - i) * 4 : sizeof(v));
        }
        memcpy(lane_sum, &sum, sizeof(sum));
        for (k = 0; k < W; k++)
            total += (double) lane_sum[k];
    }
    return total;
}


/* Is one of the 64 floats at x above (or at, if `equal`) the bound? */
INLINE bool
any_above(const float *x, float bound, bool equal)
{
    vf_t     v;
    vi_t     any = { 0 };
    uint64_t w[W / 2];
    int      k;

    for (k = 0; k < 4 * W; k += W) {
        memcpy(&v, x + k, sizeof(v));
        any |= equal ? v >= bound : v > bound;
    }
    memcpy(w, &any, sizeof(w));
    return (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]) != 0;
}


INLINE size_t
above_body(const float *x, size_t from, size_t n, float bound)
{
    size_t i = from;

    while (i + 4 * W <= n && !any_above(x + i, bound, false))
        i += 4 * W;
    while (i < n && !(x[i] > bound))
        i++;
    return i;
}


INLINE uint32_t
select_body(const float *x, size_t n, float bound, uint32_t *ids)
{
    size_t   i = 0, end;
    uint32_t n_ids = 0;

    while (i < n) {
        end = i + 4 * W;
        if (end > n) {
            end = n;
        } else if (!any_above(x + i, bound, true)) {
            i = end;
            continue;
        }
        for ( ; i < end; i++) {
            ids[n_ids] = (uint32_t) i;
            n_ids += x[i] >= bound;
        }
    }
    return n_ids;
}


INLINE void
lanes_body(const float *p, size_t n, float scale, uint32_t *lanes)
{
    vf_t   v;
    vu_t   sum;
    size_t i, at;

    for (i = 0; i + W <= n; i += W) {
        at = i % DI_ROW_LANES;
        load(&v, p + i, W);
        memcpy(&sum, lanes + at, sizeof(sum));
        sum += __builtin_convertvector(v * scale * 0x1p31f, vu_t);
        memcpy(lanes + at, &sum, sizeof(sum));
    }
    for ( ; i < n; i++)
        lanes[i % DI_ROW_LANES] += di_row_weight(p[i], scale);
}


#define VARIANT(name, attributes)                                           \
    attributes static void                                                  \
    max_##name(const float *x, size_t n, di_row_max_t *out)                 \
    {                                                                       \
        max_body(x, n, out);                                                \
    }                                                                       \
    attributes static double                                                \
    exp_##name(const float *x, size_t n, float max, float scale, float *e)  \
    {                                                                       \
        return exp_body(x, n, max, scale, e);                               \
    }                                                                       \
    attributes static size_t                                                \
    above_##name(const float *x, size_t from, size_t n, float bound)        \
    {                                                                       \
        return above_body(x, from, n, bound);                               \
    }                                                                       \
    attributes static uint32_t                                              \
    select_##name(const float *x, size_t n, float bound, uint32_t *ids)     \
    {                                                                       \
        return select_body(x, n, bound, ids);                               \
    }                                                                       \
    attributes static void                                                  \
    lanes_##name(const float *p, size_t n, float scale, uint32_t *lanes)    \
    {                                                                       \
        lanes_body(p, n, scale, lanes);                                     \
    }                                                                       \
    static const di_row_ops_t ops_##name = {                                \
        max_##name, exp_##name, above_##name, select_##name, lanes_##name   \
    };

VARIANT(plain, )

#if defined(__x86_64__)
VARIANT(avx2, __attribute__((target("avx2"))))
VARIANT(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))))
#endif


const di_row_ops_t *
di_row_ops_at(unsigned i)
{
    if (i == 0)
        return &ops_plain;
#if defined(__x86_64__)
    if (i == 1 && __builtin_cpu_supports("avx2"))
        return &ops_avx2;
    if (i == 2 && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl"))
        return &ops_avx512;
#endif
    return NULL;
}


const di_row_ops_t *
di_row_ops(void)
{
    const di_row_ops_t *ops = di_row_ops_at(2);

    if (ops == NULL)
        ops = di_row_ops_at(1);
    return ops != NULL ? ops : di_row_ops_at(0);
}

/*
 * sampler_row_vec.h - the passes over a row on vectors of VEC_BYTES.
 *
 * Included once per instruction set by sampler_row.c, with
 *
 *     VEC_BYTES       of a register: 16, 32 or 64
 *     VEC_NAME(x)     x with the set's suffix
 *     VEC_TARGET      the functions' target attribute
 *
 * Sums are kept in 16 accumulators whatever the register, and nothing is
 * fused (the build turns contraction off), so every set gives the same bits.
 */

#define VEC_N       (VEC_BYTES / 4)         /* floats of a register         */
#define VEC_REGS    (LANES / VEC_N)         /* registers of a stride        */
#define VEC_FN      VEC_TARGET static inline __attribute__((always_inline))

/* Loads and stores go through these types: memcpy() of 32 bytes becomes two
 * halves that a load of the whole then waits for. */
#define VEC_TYPE __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias))

typedef float    VEC_NAME(vf) VEC_TYPE;
typedef int32_t  VEC_NAME(vi) VEC_TYPE;
typedef uint32_t VEC_NAME(vu) VEC_TYPE;

#define vf VEC_NAME(vf)
#define vi VEC_NAME(vi)
#define vu VEC_NAME(vu)


VEC_TARGET static void
VEC_NAME(max)(const float *x, size_t n, di_row_max_t *out)
{
    vf      v, m = (vf) { 0 } - INFINITY;
    vi      at = *(const vi *) zero_to_15, best, bad = { 0 }, gt;
    float   lane_max[VEC_N];
    int32_t lane_best[VEC_N], lane_bad[VEC_N];
    size_t  i, k;

    best = at;
    for (i = 0; i + VEC_N <= n; i += VEC_N) {
        v = *(const vf *) (x + i);
        gt = v > m;
        bad |= v != v;
        m = (vf) ((gt & (vi) v) | (~gt & (vi) m));
        best = (gt & at) | (~gt & best);
        at += VEC_N;
    }
    memcpy(lane_max, &m, sizeof(m));
    memcpy(lane_best, &best, sizeof(best));
    memcpy(lane_bad, &bad, sizeof(bad));

    *out = (di_row_max_t) { .max = -INFINITY };
    for (k = 0; k < VEC_N; k++) {
        out->bad |= lane_bad[k] != 0;
        if (lane_max[k] > out->max
            || (lane_max[k] == out->max
                && (uint32_t) lane_best[k] < out->index))
        {
            out->max = lane_max[k];
            out->index = (uint32_t) lane_best[k];
        }
    }
    for ( ; i < n; i++) {
        out->bad |= x[i] != x[i];
        if (x[i] > out->max) {
            out->max = x[i];
            out->index = (uint32_t) i;
        }
    }
}


/* v = e^v for v <= 0.  2^n by the exponent's bits, e^f by the Taylor
 * polynomial of degree 7 on |f| <= ln 2 / 2. */
VEC_FN void
VEC_NAME(exp_vector)(vf *v)
{
    const float round = 0x1.8p23f;
    vf          x, t, f, p;
    vi          big;

    big = *v >= -87.0f;
    x = (vf) (big & (vi) *v);
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
    *v = (vf) (big & ((vi) p + ((vi) t << 23)));
}


/* Whole strides, few enough for sums in float. */
VEC_FN double
VEC_NAME(exp_run)(const float *x, size_t n, float max, float scale, float *e)
{
    vf     v, sum[VEC_REGS];
    float  lane_sum[LANES];
    double total = 0;
    size_t i, k;

    memset(sum, 0, sizeof(sum));
    for (i = 0; i < n; i += LANES) {
        for (k = 0; k < VEC_REGS; k++) {
            v = *(const vf *) (x + i + k * VEC_N);
            v = (v - max) * scale;
            VEC_NAME(exp_vector)(&v);
            sum[k] += v;
            if (e != NULL)
                *(vf *) (e + i + k * VEC_N) = v;
        }
    }
    memcpy(lane_sum, sum, sizeof(sum));
    for (k = 0; k < LANES; k++)
        total += (double) lane_sum[k];
    return total;
}


VEC_TARGET static double
VEC_NAME(exp)(const float *x, size_t n, float max, float scale, float *e)
{
    float  rest[LANES], rest_e[LANES];
    double total = 0;
    size_t i, k, run;

    for (i = 0; n - i >= LANES; i += run) {
        run = n - i > RUN ? RUN : (n - i) / LANES * LANES;
        total += VEC_NAME(exp_run)(x + i, run, max, scale,
                                   e == NULL ? NULL : e + i);
    }
    if (i == n)
        return total;

    for (k = 0; k < LANES; k++)
        rest[k] = i + k < n ? x[i + k] : -INFINITY;
    total += VEC_NAME(exp_run)(rest, LANES, max, scale, rest_e);
    if (e != NULL)
        memcpy(e + i, rest_e, (n - i) * sizeof(float));
    return total;
}


/* Is one of the 64 floats at x above (or at, if `equal`) the bound? */
VEC_FN bool
VEC_NAME(any_above)(const float *x, float bound, bool equal)
{
    vf       v;
    vi       any = { 0 };
    uint64_t w[VEC_BYTES / 8], all = 0;
    size_t   k;

    for (k = 0; k < 64; k += VEC_N) {
        v = *(const vf *) (x + k);
        any |= equal ? v >= bound : v > bound;
    }
    memcpy(w, &any, sizeof(w));
    for (k = 0; k < VEC_BYTES / 8; k++)
        all |= w[k];
    return all != 0;
}


VEC_TARGET static size_t
VEC_NAME(above)(const float *x, size_t from, size_t n, float bound)
{
    size_t i = from;

    while (i + 64 <= n && !VEC_NAME(any_above)(x + i, bound, false))
        i += 64;
    while (i < n && !(x[i] > bound))
        i++;
    return i;
}


VEC_TARGET static uint32_t
VEC_NAME(select)(const float *x, size_t n, float bound, uint32_t *ids)
{
    size_t   i = 0, end;
    uint32_t n_ids = 0;

    while (i < n) {
        end = i + 64;
        if (end > n) {
            end = n;
        } else if (!VEC_NAME(any_above)(x + i, bound, true)) {
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


VEC_TARGET static void
VEC_NAME(lanes)(const float *p, size_t n, float scale, uint32_t *lanes)
{
    vf     v;
    vu     sum;
    size_t i, at;

    for (i = 0; i + VEC_N <= n; i += VEC_N) {
        at = i % DI_ROW_LANES;
        v = *(const vf *) (p + i) * scale * 0x1p31f;
        sum = *(const vu *) (lanes + at);
        *(vu *) (lanes + at) = sum + __builtin_convertvector(v, vu);
    }
    for ( ; i < n; i++)
        lanes[i % DI_ROW_LANES] += di_row_weight(p[i], scale);
}


static const di_row_ops_t VEC_NAME(ops) = {
    VEC_NAME(max), VEC_NAME(exp), VEC_NAME(above), VEC_NAME(select),
    VEC_NAME(lanes)
};

#undef vf
#undef vi
#undef vu
#undef VEC_TYPE
#undef VEC_N
#undef VEC_REGS
#undef VEC_FN
#undef VEC_BYTES
#undef VEC_NAME
#undef VEC_TARGET

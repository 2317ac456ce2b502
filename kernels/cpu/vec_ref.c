/*
 * vec_ref.c - the loops of vec.h, plainly.
 */

#include "vec.h"

#include <math.h>

const di_cpu_vec_t *di_cpu_vec = &di_cpu_vec_ref;

static float
tree(float *sum)
{
    for (size_t m = 8; m > 0; m /= 2)
        for (size_t j = 0; j < m; j++)
            sum[j] += sum[j + m];
    return sum[0];
}

static float
dot(const float *a, const float *b, size_t n)
{
    float sum[16] = { 0 };

    for (size_t i = 0; i < n; i += 16)
        for (size_t j = 0; j < 16; j++)
            sum[j] = fmaf(a[i + j], b[i + j], sum[j]);
    return tree(sum);
}

static void
dots(const float *a, size_t n_a, const float *b, size_t n_b, size_t k,
     float *out, size_t stride)
{
    for (size_t i = 0; i < n_a; i++)
        for (size_t j = 0; j < n_b; j++)
            out[i * stride + j] = dot(a + i * k, b + j * k, k);
}

static void
weigh(float *y, size_t n_y, const float *w, size_t stride, const float *b,
      size_t n_b, size_t k)
{
    for (size_t i = 0; i < n_y; i++, y += k, w += stride) {
        for (size_t d = 0; d < k; d++)
            y[d] = 0;
        for (size_t j = 0; j < n_b; j++)
            for (size_t d = 0; d < k; d++)
                y[d] = fmaf(w[j], b[j * k + d], y[d]);
    }
}

static void
remix(float *t, const float *post, const float *comb, const float *o,
      size_t m, size_t k)
{
    float in[8], sum;

    for (size_t d = 0; d < k; d++) {
        for (size_t i = 0; i < m; i++)
            in[i] = t[i * k + d];
        for (size_t j = 0; j < m; j++) {
            sum = post[j] * o[d];
            for (size_t i = 0; i < m; i++)
                sum = fmaf(comb[i * m + j], in[i], sum);
            t[j * k + d] = sum;
        }
    }
}

/* e^v for v <= 0. */
static float
power_of(float v)
{
    float power = rintf(v * DI_EXP_LOG2E), r, p;

    r = fmaf(-power, DI_EXP_HIGH, v);
    r = fmaf(-power, DI_EXP_LOW, r);
    p = fmaf(DI_EXP_C6, r, DI_EXP_C5);
    p = fmaf(p, r, DI_EXP_C4);
    p = fmaf(p, r, DI_EXP_C3);
    p = fmaf(p, r, DI_EXP_C2);
    p = fmaf(p, r * r, r + 1.0f);
    return v < DI_EXP_LEAST ? 0.0f : ldexpf(p, (int) power);
}

static void
softmax(float *x, size_t n, float s, float sink)
{
    float top = sink, sum[16] = { 0 }, factor;

    for (size_t i = 0; i < n; i++) {
        x[i] *= s;
        top = x[i] > top ? x[i] : top;
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = power_of(x[i] - top);
        sum[i % 16] += x[i];
    }
    factor = 1 / (tree(sum) + expf(sink - top));
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void
gate(float *y, const float *w, const float *x, size_t n, size_t stride)
{
    for (size_t j = 0; j < 16; j++)
        y[j] = 0;
    for (size_t i = 0; i < n; i++, x += stride)
        for (size_t j = 0; j < 16; j++)
            y[j] = fmaf(w[i], x[j] > 0 ? x[j] : 0, y[j]);
}

/* Where value i of a record is among a query's. */
static size_t
place_of(size_t i)
{
    return i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
}

static void
queries(const di_cpu_queries_t *to, const float *x)
{
    const size_t n = to->n_heads * to->dim / 32;
    uint8_t      data[16], scale;
    int8_t      *q = to->q;

    for (size_t b = 0; b < n; b++, x += 32, q += 32) {
        di_cast_put(DI_CAST_E2M1_32, x, 32, data, &scale);
        to->scale[b] = di_ue8m0_to_f32(scale) * 0.25f;
        to->start[b] = 0;
        for (size_t i = 0; i < 32; i++) {
            q[place_of(i)] = (int8_t) (2 * di_e2m1_to_f32(
                (uint8_t) (data[i / 2] >> i % 2 * 4)));
            to->start[b] -= 12 * q[place_of(i)];
        }
    }
}

static float
key_dot(const di_cpu_queries_t *q, size_t head, const uint8_t *data,
        const uint8_t *scales)
{
    const size_t  blocks = q->dim / 32;
    const int8_t *x = q->q + head * q->dim;
    float         dot = 0;

    for (size_t b = 0; b < blocks; b++, x += 32, data += 16) {
        int32_t sum = q->start[head * blocks + b];

        for (size_t i = 0; i < 32; i++)
            sum += x[place_of(i)]
                   * (int32_t) (12 + 2 * di_e2m1_to_f32(
                         (uint8_t) (data[i / 2] >> i % 2 * 4)));
        dot = fmaf((float) sum, di_ue8m0_to_f32(scales[b])
                                * q->scale[head * blocks + b], dot);
    }
    return dot;
}

static void
score(float *y, const di_cpu_queries_t *q, const uint8_t *const *data,
      const uint8_t *const *scales)
{
    float dot;

    for (size_t j = 0; j < 16; j++) {
        y[j] = 0;
        for (size_t h = 0; h < q->n_heads; h++) {
            dot = key_dot(q, h, data[j], scales[j]);
            y[j] = fmaf(q->w[h], dot > 0 ? dot : 0, y[j]);
        }
    }
}

const di_cpu_vec_t di_cpu_vec_ref = { dots, weigh, remix, softmax, gate,
                                      queries, score, di_cast_get };

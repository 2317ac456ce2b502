/*
 * vec_ref.c - the loops of vec.h, plainly.
 */

#include "vec.h"

#include <math.h>

const di_cpu_vec_t *di_cpu_vec = &di_cpu_vec_ref;

static float
dot(const float *a, const float *b, size_t n)
{
    float sum[8] = { 0 };

    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] += a[i + j] * b[i + j];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6]))
           + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
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
                y[d] += w[j] * b[j * k + d];
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
                sum += comb[i * m + j] * in[i];
            t[j * k + d] = sum;
        }
    }
}

static void
exps(float *x, size_t n, float top)
{
    float v, r, p, power;

    for (size_t i = 0; i < n; i++) {
        v = x[i] - top;
        power = rintf(v * DI_EXP_LOG2E);
        r = v - power * DI_EXP_HIGH;
        r -= power * DI_EXP_LOW;
        p = DI_EXP_C6 * r + DI_EXP_C5;
        p = p * r + DI_EXP_C4;
        p = p * r + DI_EXP_C3;
        p = p * r + DI_EXP_C2;
        p = p * (r * r) + (r + 1.0f);
        x[i] = v < DI_EXP_LEAST ? 0.0f : ldexpf(p, (int) power);
    }
}

const di_cpu_vec_t di_cpu_vec_ref = { dots, weigh, remix, exps, di_cast_get };

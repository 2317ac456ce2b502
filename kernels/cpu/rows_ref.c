/*
 * rows_ref.c - reference of the row-wise operators: conversion to activation
 * rows, RMS norm, gated SiLU.
 */

#include "mx.h"
#include "ref.h"

#include <math.h>
#include <string.h>

static size_t
align64(size_t n)
{
    return (n + 63) & ~(size_t) 63;
}

size_t
di_ref_act_bytes(di_arith_t arith, size_t k)
{
    switch (arith) {
    case DI_ARITH_BF16: return 2 * k + align64(k / 32 * 8);
    case DI_ARITH_Q8:   return align64(k + k / 32 * 12);
    case DI_ARITH_MX:   return di_mx_act_bytes(k);
    default:            return align64(4 * k);
    }
}

float
di_ref_sum32(const float *x)
{
    float t[16];

    for (size_t i = 0; i < 16; i++)
        t[i] = x[i] + x[i + 16];
    for (size_t n = 8; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++)
            t[i] += t[i + n];
    return t[0];
}

static void
act_bf16(const float *x, size_t k, uint8_t *row)
{
    uint16_t *y = (uint16_t *) (void *) row, *sum = y + k;
    float rounded[32], total;

    memset(sum, 0, align64(k / 32 * 8));
    for (size_t b = 0; b < k / 32; b++) {
        for (size_t i = 0; i < 32; i++) {
            y[b * 32 + i] = di_f32_to_bf16(x[b * 32 + i]);
            rounded[i] = di_bf16_to_f32(y[b * 32 + i]);
        }
        total = di_ref_sum32(rounded);
        sum[b * 4] = sum[b * 4 + 2] = di_f32_to_bf16(total);
        total -= di_bf16_to_f32(sum[b * 4]);
        sum[b * 4 + 1] = sum[b * 4 + 3] = di_f32_to_bf16(total);
    }
}

/* scale = amax / 127; a run of zeros (or one so small that 127 / amax is not
 * finite) is all zeros. */
static void
act_q8(const float *x, size_t k, uint8_t *row)
{
    int8_t *q = (int8_t *) row;
    float *scale = (float *) (void *) (row + k);
    float *sum = scale + k / 32;
    int16_t *half = (int16_t *) (void *) (sum + k / 32);
    float amax, inverse;

    for (size_t b = 0; b < k / 32; b++, x += 32, q += 32) {
        amax = 0;
        for (size_t i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        scale[b] = amax / 127.0f;
        inverse = amax < 0x1p-120f ? 0.0f : 127.0f / amax;
        half[2 * b] = half[2 * b + 1] = 0;
        for (size_t i = 0; i < 32; i++) {
            q[i] = (int8_t) lrintf(x[i] * inverse);
            half[2 * b + i / 16] = (int16_t) (half[2 * b + i / 16] + q[i]);
        }
        sum[b] = scale[b] * (float) (half[2 * b] + half[2 * b + 1]);
    }
}

/* Micro formats round what isn't finite to something: it stays NaN here. */
static void
act_micro(const float *x, uint16_t *y)
{
    uint8_t data[32], scale;
    float back[32];

    di_cast_put(DI_CAST_E4M3_32, x, 32, data, &scale);
    di_cast_get(DI_CAST_E4M3_32, data, &scale, 32, back);
    for (size_t i = 0; i < 32; i++)
        y[i] = di_f32_to_bf16(isfinite(x[i]) ? back[i] + 0.0f : NAN);
}

static void
act_mx(const float *x, size_t k, uint8_t *row)
{
    uint16_t *high = (uint16_t *) (void *) (row + di_mx_high_at(k));
    uint16_t *low = (uint16_t *) (void *) (row + di_mx_low_at(k));

    for (size_t i = 0; i < k; i += 32)
        act_micro(x + i, (uint16_t *) (void *) row + i);
    for (size_t i = 0; i < k; i++) {
        high[i] = di_f32_to_bf16(x[i]);
        low[i] = di_f32_to_bf16(x[i] - di_bf16_to_f32(high[i]));
    }
}

void
di_ref_act(di_arith_t arith, const float *x, size_t k, uint8_t *row)
{
    switch (arith) {
    case DI_ARITH_BF16: act_bf16(x, k, row); break;
    case DI_ARITH_Q8:   act_q8(x, k, row); break;
    case DI_ARITH_MX:   act_mx(x, k, row); break;
    default:            memcpy(row, x, k * sizeof(*x)); break;
    }
}

void
di_ref_norm(di_arith_t arith, const di_cpu_norm_t *a, size_t r0, size_t r1)
{
    float y[DI_CPU_K_MAX], *x;
    const float *add;
    double sum, factor;
    size_t row;

    for (size_t r = r0; r < r1; r++) {
        row = a->rows ? (size_t) a->rows[r] : r;
        x = a->x + row * a->k;
        add = a->add ? a->add + row * a->k : NULL;

        sum = 0;
        for (size_t i = 0; i < a->k; i++) {
            if (add)
                x[i] += add[i];
            sum += (double) x[i] * x[i];
        }
        factor = 1.0 / sqrt(sum / (double) a->k + (double) a->eps);

        for (size_t i = 0; i < a->k; i++)
            y[i] = (float) (x[i] * factor * a->w[i]);
        di_ref_act(arith, y, a->k, a->y + r * a->y_stride);
    }
}

void
di_ref_silu_mul(di_arith_t arith, const di_cpu_silu_t *a, size_t r0,
                size_t r1)
{
    float y[DI_CPU_K_MAX], g, u, c;
    const float *gate, *up;

    for (size_t r = r0; r < r1; r++) {
        gate = a->gu + r * 2 * a->k;
        up = gate + a->k;
        c = a->c ? a->c[r] : 1.0f;
        for (size_t i = 0; i < a->k; i++) {
            g = gate[i] > a->limit ? a->limit : gate[i];
            u = up[i] > a->limit ? a->limit
                : up[i] < -a->limit ? -a->limit : up[i];
            y[i] = (float) (g / (1.0 + exp(-(double) g)) * u * c);
        }
        di_ref_act(arith, y, a->k, a->y + r * a->y_stride);
    }
}

void
di_ref_convert(di_arith_t arith, const di_cpu_convert_t *a, size_t r0,
               size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        di_ref_act(arith, a->x + r * a->k, a->k, a->y + r * a->y_stride);
}

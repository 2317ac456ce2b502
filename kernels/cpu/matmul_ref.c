/*
 * matmul_ref.c - reference of the matrix product in all arithmetics.
 *
 * The numbers are those of di_kernels.h.  In BF16 and Q8 a row's result is
 *
 *     sum_b (block_b . x_b) * scale_b   +   sum_b min_b * sum(x_b)   (+ bias)
 *
 * the first sum a float32 FMA chain in order of blocks.  So is Q8's second
 * one, which is added at the end.  BF16 multiplies codes with an offset, which
 * makes them cheap to expand to bfloat16 (dot_codes below, matmul_bf16_amx.c),
 * and subtracts it with the minimum.  Its sum of minima is a bfloat16 product
 * too, of depth 4 per block and 8 blocks at a time, which go on with the
 * chain: both factors are split in two bfloat16 values, which loses 2^-16 of a
 * minimum and 2^-17 of a sum.
 */

#include "mx.h"
#include "ref.h"

#include <math.h>
#include <string.h>

static float
bias_of(const di_cpu_matmul_t *a, size_t col)
{
    return a->bias ? a->bias[col] : 0.0f;
}

static di_wpart_t
wpart_of(const di_cpu_wpart_t *part)
{
    return (di_wpart_t) { part->type, part->data, part->n, part->scales };
}

/* Walk the columns of panels [p0, p1) and the rows: fn makes one value. */
typedef float (*dot_fn)(const di_cpu_wpart_t *part, size_t n,
                        const uint8_t *act, size_t k);

static void
each_value(dot_fn dot, const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
           size_t p0, size_t p1, size_t r0, size_t r1)
{
    size_t end = p1 * DI_CPU_PANEL;

    for (size_t n = p0 * DI_CPU_PANEL; n < end && n < part->n; n++)
        for (size_t r = r0; r < r1; r++)
            a->out[r * a->w->n + part->first + n]
                = dot(part, n, a->act + r * a->act_stride, a->w->k)
                  + bias_of(a, part->first + n);
}

static const uint8_t *
row_of(const di_cpu_wpart_t *part, size_t n)
{
    return (const uint8_t *) part->data + n * part->row_bytes;
}

static float
dot_f32(const di_cpu_wpart_t *part, size_t n, const uint8_t *act, size_t k)
{
    const float *x = (const float *) (const void *) act;
    di_wpart_t in = wpart_of(part);
    float value[DI_CPU_K_MAX];
    double sum = 0;

    di_wpart_row(&in, n, k, value);
    for (size_t i = 0; i < k; i++)
        sum += (double) value[i] * x[i];
    return (float) sum;
}

/* Denormals are zeros to AMX, as inputs and as results. */
static float
flush(float x)
{
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}

/* TDPBF16PS for one value: c + (even chain + odd chain). */
static float
tdp(float c, const uint16_t *x, const float *w, size_t n)
{
    float even = 0, odd = 0;

    for (size_t i = 0; i < n; i += 2) {
        even = flush(fmaf(flush(di_bf16_to_f32(x[i])), w[i], even));
        odd = flush(fmaf(flush(di_bf16_to_f32(x[i + 1])), w[i + 1], odd));
    }
    return flush(c + flush(even + odd));
}

/* What an expanded code is above its value (see dot_codes). */
static float
code_offset(const di_wcodes_t *codes)
{
    int centre = codes->is_signed ? 1 << (codes->bits - 1) : 0;

    return codes->bits == 8 ? 16.0f + 256.0f + (float) centre
                            : (float) ((1 << codes->bits) + centre);
}

/* Sum of the expanded codes of n values times x.  Codes of 4 and 5 bits, made
 * unsigned, are added to 2^bits; 8 bits are two such planes of 4, the upper
 * one times 16; 6 bits (scales per 16 values) two planes without an offset. */
static float
dot_codes(const di_wcodes_t *codes, const int8_t *code, const uint16_t *x,
          size_t n)
{
    int centre = codes->is_signed ? 1 << (codes->bits - 1) : 0, c;
    float high[32], low[32];

    for (size_t i = 0; i < n; i++) {
        c = code[i] + centre;
        high[i] = codes->bits == 8 ? (float) ((c & ~15) + 256)
                                   : (float) ((c & ~15) - centre);
        low[i] = codes->bits == 8 ? (float) ((c & 15) + 16)
                 : codes->bits == 6 ? (float) (c & 15)
                 : (float) (c + (1 << codes->bits));
    }
    return tdp(codes->bits >= 6 ? tdp(0, x, high, n) : 0.0f, x, low, n);
}

static float
dot_bf16_plain(const di_cpu_wpart_t *part, const uint8_t *w,
               const uint16_t *x, size_t k)
{
    float value[32], c = 0;

    for (size_t i = 0; i < k; i += 32) {
        di_dequantise(part->type, w + di_wtype_bytes(part->type, i), 32,
                      value);
        for (size_t j = 0; j < 32; j++)
            value[j] = flush(di_bf16_to_f32(di_f32_to_bf16(value[j])));
        c = tdp(c, x + i, value, 32);
    }
    return c;
}

static float
truncate_bf16(float f)
{
    union { float f; uint32_t u; } v = { .f = f };

    v.u &= 0xffff0000u;
    return v.f;
}

/* Product of the blocks' sums with what is added to each value: 4 values of
 * depth per block, 8 blocks at a time. */
static float
add_minima(float acc, const di_cpu_wpart_t *part, const uint8_t *w,
           const uint16_t *sum, size_t n_blocks)
{
    const di_wcodes_t *codes = di_wtype_codes(part->type);
    float min[32], value;
    di_wblock_t wb;

    for (size_t b = 0; b < n_blocks; b++) {
        if (b % 8 == 0)
            memset(min, 0, sizeof(min));
        di_wblock_get(part->type, w, b, &wb);
        value = fmaf(-wb.scale[0], code_offset(codes), wb.min);
        min[b % 8 * 4] = min[b % 8 * 4 + 1] = flush(truncate_bf16(value));
        value = flush(truncate_bf16(value - truncate_bf16(value)));
        min[b % 8 * 4 + 2] = min[b % 8 * 4 + 3] = value;
        if (b % 8 == 7 || b + 1 == n_blocks)
            acc += tdp(0, sum + b / 8 * 32, min, 32);
    }
    return acc;
}

static float
dot_bf16(const di_cpu_wpart_t *part, size_t n, const uint8_t *act, size_t k)
{
    const uint16_t *x = (const uint16_t *) (const void *) act;
    const di_wcodes_t *codes = di_wtype_codes(part->type);
    const uint8_t *w = row_of(part, n);
    di_wblock_t wb;
    float acc = 0;

    if (codes == NULL)
        return dot_bf16_plain(part, w, x, k);

    for (size_t b = 0; b < k / 32; b++) {
        di_wblock_get(part->type, w, b, &wb);
        if (codes->half_scales) {
            for (size_t h = 0; h < 2; h++)
                acc = fmaf(dot_codes(codes, wb.code + 16 * h,
                                     x + 32 * b + 16 * h, 16),
                           wb.scale[h], acc);
        } else {
            acc = fmaf(dot_codes(codes, wb.code, x + 32 * b, 32),
                       wb.scale[0], acc);
        }
    }
    return codes->half_scales ? acc
                              : add_minima(acc, part, w, x + k, k / 32);
}

/* float weights: their products with the int8 values are summed as they are,
 * 32 at a time in one FMA chain, and scaled. */
static float
dot_q8_plain(const di_cpu_wpart_t *part, const uint8_t *w, const int8_t *q,
             const float *scale, size_t k)
{
    float value[32], acc = 0, sum;

    for (size_t b = 0; b < k / 32; b++, q += 32) {
        di_dequantise(part->type, w + di_wtype_bytes(part->type, b * 32), 32,
                      value);
        sum = 0;
        for (size_t j = 0; j < 32; j++)
            sum = fmaf(value[j], (float) q[j], sum);
        acc = fmaf(sum, scale[b], acc);
    }
    return acc;
}

static float
dot_q8(const di_cpu_wpart_t *part, size_t n, const uint8_t *act, size_t k)
{
    const int8_t *q = (const int8_t *) act;
    const float *scale = (const float *) (const void *) (act + k);
    const float *sum = scale + k / 32;
    const di_wcodes_t *codes = di_wtype_codes(part->type);
    const uint8_t *w = row_of(part, n);
    float acc = 0, acc_min = 0;
    int32_t dot[2];
    di_wblock_t wb;

    if (codes == NULL)
        return dot_q8_plain(part, w, q, scale, k);

    for (size_t b = 0; b < k / 32; b++, q += 32) {
        di_wblock_get(part->type, w, b, &wb);
        dot[0] = dot[1] = 0;
        for (size_t i = 0; i < 32; i++)
            dot[i / 16] += wb.code[i] * q[i];
        if (codes->half_scales) {
            acc = fmaf((float) dot[0], wb.scale[0] * scale[b], acc);
            acc = fmaf((float) dot[1], wb.scale[1] * scale[b], acc);
        } else {
            acc = fmaf((float) (dot[0] + dot[1]), wb.scale[0] * scale[b],
                       acc);
        }
        acc_min = fmaf(sum[b], wb.min, acc_min);
    }
    return codes->has_min ? acc + acc_min : acc;
}

/* By pairs, as VDPBF16PS takes them: the second, then the first. */
static float
dot_mx_micro(const di_cpu_wpart_t *part, size_t n, const uint16_t *x,
             size_t k)
{
    float value[32], scale, sum, acc = 0;
    di_wpart_t in = wpart_of(part);

    for (size_t b = 0; b < k / 32; b++, x += 32) {
        scale = di_wmicro_get(&in, n, k, b, value);
        sum = 0;
        for (size_t j = 0; j < 32; j++)
            sum = fmaf(value[j ^ 1], di_bf16_to_f32(x[j ^ 1]), sum);
        acc = fmaf(sum, scale, acc);
    }
    return acc;
}

/* Float weights: 32 at a time in one FMA chain. */
static float
dot_mx(const di_cpu_wpart_t *part, size_t n, const uint8_t *act, size_t k)
{
    const uint16_t *high = (const uint16_t *) (const void *)
                           (act + di_mx_high_at(k));
    const uint16_t *low = (const uint16_t *) (const void *)
                          (act + di_mx_low_at(k));
    const uint8_t *w = row_of(part, n);
    float value[32], sum, acc = 0;

    if (di_wtype_is_micro(part->type))
        return dot_mx_micro(part, n, (const uint16_t *) (const void *) act,
                            k);
    for (size_t i = 0; i < k; i += 32) {
        di_dequantise(part->type, w + di_wtype_bytes(part->type, i), 32,
                      value);
        sum = 0;
        for (size_t j = 0; j < 32; j++)
            sum = fmaf(value[j], di_bf16_to_f32(high[i + j])
                                 + di_bf16_to_f32(low[i + j]), sum);
        acc += sum;
    }
    return acc;
}

void
di_ref_matmul_f32(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                  size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    (void) scratch;
    each_value(dot_f32, a, part, p0, p1, r0, r1);
}

void
di_ref_matmul_bf16(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                   size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    (void) scratch;
    each_value(dot_bf16, a, part, p0, p1, r0, r1);
}

void
di_ref_matmul_q8(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                 size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    (void) scratch;
    each_value(dot_q8, a, part, p0, p1, r0, r1);
}

void
di_ref_matmul_mx(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                 size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    (void) scratch;
    each_value(dot_mx, a, part, p0, p1, r0, r1);
}

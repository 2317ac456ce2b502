/*
 * kernels_test.h - what the tests of the CPU backend share: numbers, weights
 * in every format with their values, devices, buffers with guard bytes, and
 * comparisons.
 */

#ifndef KERNELS_TEST_H
#define KERNELS_TEST_H

#include "../../kernels/di_kernels.h"
#include "../../kernels/wtype.h"
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 256                /* bytes behind every buffer               */

static const di_ops_t *ops;
static uint64_t seed = 20261130;

static inline uint32_t
rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33);
}

/* Uniform in [-1, 1). */
static inline float
rnd_float(void)
{
    return (float) (rnd() % 65536) / 32768.0f - 1.0f;
}

/* Mostly small values, some zeros, some far outliers: what activations of
 * real models look like. */
static inline float
rnd_activation(void)
{
    switch (rnd() % 64) {
    case 0:  return 0.0f;
    case 1:  return rnd_float() * 100.0f;
    case 2:  return rnd_float() * 1e-6f;
    default: return rnd_float() * 2.0f;
    }
}

static inline uint16_t
rnd_f16(float range)
{
    return di_f32_to_f16(rnd_float() * range);
}

static inline void
put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t) v;
    p[1] = (uint8_t) (v >> 8);
}

/* -- formats --------------------------------------------------------------- */

static const di_wtype_t types[] = {
    DI_W_F32, DI_W_F16, DI_W_BF16, DI_W_Q4_0, DI_W_Q4_1, DI_W_Q5_0,
    DI_W_Q5_1, DI_W_Q8_0, DI_W_Q4_K, DI_W_Q5_K, DI_W_Q6_K,
    DI_W_E4M3_B32, DI_W_E4M3_R32, DI_W_E2M1_R32,
};

#define N_TYPES (sizeof(types) / sizeof(types[0]))

/* Does an arithmetic have products with a type? */
static inline bool
has_product(di_arith_t arith, di_wtype_t type)
{
    if (di_wtype_is_micro(type))
        return arith == DI_ARITH_F32 || arith == DI_ARITH_MX;
    return arith != DI_ARITH_MX || di_wtype_codes(type) == NULL;
}

/* Random blocks of a type: any bits are valid codes, scales are finite. */
static inline void
fill_weights(di_wtype_t type, uint8_t *p, size_t n)
{
    size_t bytes = di_wtype_bytes(type, n);
    size_t block = di_wtype_bytes(type, di_wtype_block(type));
    float f;

    for (size_t i = 0; i < bytes; i++) {
        p[i] = (uint8_t) rnd();
        if (type == DI_W_E4M3_B32 || type == DI_W_E4M3_R32)
            p[i] = (p[i] & 0x7f) == 0x7f ? 0 : p[i];
    }
    if (di_wtype_is_micro(type))
        return;
    for (; bytes > 0; bytes -= block, p += block) {
        switch (type) {
        case DI_W_F32:
            f = rnd_float();
            memcpy(p, &f, sizeof(f));
            break;
        case DI_W_F16:
            put16(p, rnd_f16(1));
            break;
        case DI_W_BF16:
            put16(p, di_f32_to_bf16(rnd_float()));
            break;
        case DI_W_Q6_K:
            put16(p + 208, rnd_f16(0.001f));
            break;
        case DI_W_Q4_K:
        case DI_W_Q5_K:
            put16(p, rnd_f16(0.002f));
            put16(p + 2, rnd_f16(0.02f));
            break;
        case DI_W_Q4_1:
        case DI_W_Q5_1:
            put16(p, rnd_f16(0.05f));
            put16(p + 2, rnd_f16(0.5f));
            break;
        default:
            put16(p, rnd_f16(0.05f));
            break;
        }
    }
}

/* Scales of a micro format: most within 2^6 of each other, the smallest and
 * zero-like ones too. */
static inline void
fill_scales(uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t) (rnd() % 16 ? 118 + rnd() % 6 : rnd() % 8);
}

static inline float
f16_at(const uint8_t *p)
{
    int h = p[0] | p[1] << 8, exp = h >> 10 & 31;
    double f = exp ? ldexp(1024 + (h & 1023), exp - 25)
                   : ldexp(h & 1023, -24);

    return (float) (h >> 15 ? -f : f);
}

/* Value i of a row, by a formula of its own for each format. */
static inline float
value_at(di_wtype_t type, const uint8_t *row, size_t i)
{
    size_t j = i % 32, s = i % 256 / 32;
    const uint8_t *p, *sc;
    int scale, min, q;
    uint32_t u;
    float f;

    switch (type) {
    case DI_W_F32:
        memcpy(&f, row + 4 * i, 4);
        return f;
    case DI_W_F16:
        return f16_at(row + 2 * i);
    case DI_W_BF16:
        u = (uint32_t) (row[2 * i] | row[2 * i + 1] << 8) << 16;
        memcpy(&f, &u, 4);
        return f;
    case DI_W_Q4_0:
        p = row + i / 32 * 18;
        q = j < 16 ? p[2 + j] & 15 : p[2 + j - 16] >> 4;
        return (float) (q - 8) * f16_at(p);
    case DI_W_Q4_1:
        p = row + i / 32 * 20;
        q = j < 16 ? p[4 + j] & 15 : p[4 + j - 16] >> 4;
        return (float) q * f16_at(p) + f16_at(p + 2);
    case DI_W_Q5_0:
        p = row + i / 32 * 22;
        q = (j < 16 ? p[6 + j] & 15 : p[6 + j - 16] >> 4)
            + 16 * (p[2 + j / 8] >> j % 8 & 1);
        return (float) (q - 16) * f16_at(p);
    case DI_W_Q5_1:
        p = row + i / 32 * 24;
        q = (j < 16 ? p[8 + j] & 15 : p[8 + j - 16] >> 4)
            + 16 * (p[4 + j / 8] >> j % 8 & 1);
        return (float) q * f16_at(p) + f16_at(p + 2);
    case DI_W_Q8_0:
        p = row + i / 32 * 34;
        return (float) (int8_t) p[2 + j] * f16_at(p);
    case DI_W_Q4_K:
    case DI_W_Q5_K:
        p = row + i / 256 * (type == DI_W_Q4_K ? 144 : 176);
        sc = p + 4;
        scale = s < 4 ? sc[s] & 63 : (sc[s + 4] & 15) | (sc[s - 4] & 192) >> 2;
        min = s < 4 ? sc[s + 4] & 63 : sc[s + 4] >> 4 | (sc[s] & 192) >> 2;
        q = p[(type == DI_W_Q4_K ? 16 : 48) + s / 2 * 32 + j];
        q = s % 2 ? q >> 4 : q & 15;
        if (type == DI_W_Q5_K)
            q += p[16 + j] >> s & 1 ? 16 : 0;
        return (float) q * (f16_at(p) * (float) scale)
               - f16_at(p + 2) * (float) min;
    case DI_W_Q6_K:
        p = row + i / 256 * 210;
        q = p[s / 4 * 64 + s % 2 * 32 + j];
        q = s % 4 < 2 ? q & 15 : q >> 4;
        q += 16 * (p[128 + s / 4 * 32 + j] >> s % 4 * 2 & 3);
        return (float) (q - 32)
               * (f16_at(p + 208) * (float) (int8_t) p[192 + i % 256 / 16]);
    default:
        break;
    }
    return NAN;
}

/* Value [row][i] of a part of a micro format, by formulas of its own. */
static inline float
micro_at(const di_wpart_t *part, size_t row, size_t k, size_t i)
{
    const uint8_t *p = part->data, *s = part->scales;
    static const int e2m1[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
    int code, exp;

    if (part->type == DI_W_E2M1_R32) {
        code = p[(row * k + i) / 2] >> i % 2 * 4 & 15;
        exp = s[row * (k / 32) + i / 32] - 128;
        return (float) ldexp(code & 8 ? -e2m1[code & 7] : e2m1[code], exp);
    }
    code = p[row * k + i];
    row = part->type == DI_W_E4M3_B32 ? row / 32 : row;
    exp = s[row * (k / 32) + i / 32] - 127 - 10;
    exp += code & 0x78 ? code >> 3 & 15 : 1;
    code = (code & 0x80 ? -1 : 1) * ((code & 7) + (code & 0x78 ? 8 : 0));
    return (float) ldexp(code, exp);
}

/* -- devices under test ---------------------------------------------------- */

static inline di_dev_t *
open_dev(di_arith_t arith, const char *name, uint32_t n_threads,
         di_err_t *err)
{
    di_dev_conf_t conf = { .arith = arith, .ops = name,
                           .n_threads = n_threads, .spin_us = 20 };
    di_dev_t *dev = NULL;

    if (ops->dev_open(&conf, &dev, err) != DI_OK)
        return NULL;
    return dev;
}

typedef struct {
    di_dev_t    *dev;
    di_stream_t *stream;
    di_arith_t   arith;
    const char  *name;           /* "bf16-amx"                              */
} side_t;

static inline bool
side_open(side_t *side, di_arith_t arith, const char *name,
          uint32_t n_threads, di_err_t *err)
{
    side->dev = open_dev(arith, name, n_threads, err);
    if (side->dev == NULL)
        return false;
    side->arith = arith;
    side->name = ops->dev_info(side->dev)->arith_name;
    CHECK_EQ_INT(ops->stream_open(side->dev, &side->stream), DI_OK);
    return true;
}

static inline void
side_close(side_t *side)
{
    ops->stream_close(side->stream);
    ops->dev_close(side->dev);
}

/* A buffer whose last bytes are guards; the contents begin as 0xAA. */
static inline di_view_t
buf(side_t *side, size_t bytes, void **host)
{
    di_view_t view = { NULL, 0 };

    CHECK_EQ_INT(ops->buf_alloc(side->dev, bytes + GUARD, &view.buf), DI_OK);
    *host = ops->buf_map(view.buf);
    memset(*host, 0xaa, bytes + GUARD);
    return view;
}

static inline void
buf_done(side_t *side, di_view_t view, const void *host, size_t bytes)
{
    const uint8_t *p = (const uint8_t *) host + bytes;
    size_t bad = 0;

    for (size_t i = 0; i < GUARD; i++)
        bad += p[i] != 0xaa;
    CHECK_EQ_INT(bad, 0);
    ops->buf_free(side->dev, view.buf);
}

/* Copy data into a new buffer. */
static inline di_view_t
buf_of(side_t *side, const void *data, size_t bytes)
{
    void *host;
    di_view_t view = buf(side, bytes, &host);

    memcpy(host, data, bytes);
    return view;
}

/* a and b within rel * size, where size is the largest value around; NaN and
 * infinities must agree. */
static inline size_t
count_far(const float *a, const float *b, size_t n, double rel, double *worst)
{
    double max = 0, diff;
    size_t far = 0;

    for (size_t i = 0; i < n; i++)
        if (isfinite(b[i]))
            max = fmax(max, fabs((double) b[i]));
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            far += isnan(a[i]) != isnan(b[i])
                   || (!isnan(a[i]) && a[i] != b[i]);
            continue;
        }
        diff = fabs((double) a[i] - b[i]);
        *worst = fmax(*worst, max > 0 ? diff / max : diff);
        far += diff > rel * max;
    }
    return far;
}

static inline void
check_near(const side_t *side, const char *what, const float *a,
           const float *b, size_t n, double rel)
{
    double worst = 0;
    size_t far = count_far(a, b, n, rel, &worst);

    if (far)
        printf("%s %s: %zu of %zu beyond %g, worst %g\n", side->name, what,
               far, n, rel, worst);
    CHECK_EQ_INT(far, 0);
}

static inline void
check_same(const side_t *side, const char *what, const void *a,
           const void *b, size_t bytes)
{
    bool same = memcmp(a, b, bytes) == 0;

    if (!same)
        printf("%s %s: bits differ\n", side->name, what);
    CHECK(same);
}

static inline float
bf16_at(const uint8_t *row, size_t i)
{
    uint16_t h;

    memcpy(&h, row + 2 * i, 2);
    return di_bf16_to_f32(h);
}

/* Value i of an activation row, as kernels/cpu/ref.h lays it out. */
static inline float
act_value(di_arith_t arith, const uint8_t *row, size_t k, size_t i)
{
    float f;

    switch (arith) {
    case DI_ARITH_MX:
        return bf16_at(row, k + i) + bf16_at(row, 2 * k + i);
    case DI_ARITH_BF16:
        return bf16_at(row, i);
    case DI_ARITH_Q8:
        memcpy(&f, row + k + i / 32 * 4, 4);
        return f * (float) (int8_t) row[i];
    default:
        memcpy(&f, row + 4 * i, 4);
        return f;
    }
}

static inline void
act_values(const side_t *side, const uint8_t *act, size_t n_rows, size_t k,
           float *out)
{
    size_t stride = ops->act_bytes(side->dev, k);

    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < k; i++)
            out[r * k + i] = act_value(side->arith, act + r * stride, k, i);
}

/* Bytes of a row that have a meaning: the rest is padding. */
static inline size_t
act_used(di_arith_t arith, size_t k)
{
    return arith == DI_ARITH_F32 ? 4 * k
           : arith == DI_ARITH_MX ? 6 * k
           : arith == DI_ARITH_BF16 ? 2 * k + k / 4 : k + k / 8 * 3;
}

/* Relative to the largest value: one step of the format. */
static inline double
act_step(di_arith_t arith)
{
    return arith == DI_ARITH_F32 ? 2e-6
           : arith == DI_ARITH_MX ? 2e-5
           : arith == DI_ARITH_BF16 ? 1.0 / 128 : 1.1 / 127;
}

/* MX: the values as E4M3 are half a step away at most: a 16th of the value,
 * or half of the smallest step. */
static inline void
check_act_micro(const side_t *side, const uint8_t *act, size_t n_rows,
                size_t k)
{
    size_t stride = ops->act_bytes(side->dev, k), bad = 0;
    float amax, x;

    for (size_t r = 0; r < n_rows; r++, act += stride) {
        for (size_t b = 0; b < k; b += 32) {
            amax = 1e-4f;
            for (size_t i = b; i < b + 32; i++)
                amax = fmaxf(amax, fabsf(act_value(side->arith, act, k, i)));
            for (size_t i = b; i < b + 32; i++) {
                x = act_value(side->arith, act, k, i);
                bad += isfinite(amax)
                       && !(fabsf(bf16_at(act, i) - x)
                            <= fabsf(x) / 16 * 1.0001f + amax / 448 / 512);
            }
        }
    }
    CHECK_EQ_INT(bad, 0);
}

/* The sums (and scales) behind the values fit the values. */
static inline void
check_act_sums(const side_t *side, const uint8_t *act, size_t n_rows,
               size_t k)
{
    size_t stride = ops->act_bytes(side->dev, k);
    double sum, total, far = 0;
    uint16_t half[4];
    float got, v;

    if (side->arith == DI_ARITH_MX)
        check_act_micro(side, act, n_rows, k);
    if (side->arith == DI_ARITH_F32 || side->arith == DI_ARITH_MX)
        return;
    for (size_t r = 0; r < n_rows; r++, act += stride) {
        for (size_t b = 0; b < k / 32; b++) {
            sum = total = 0;
            for (size_t i = 0; i < 32; i++) {
                v = act_value(side->arith, act, k, b * 32 + i);
                sum += v;
                total += fabsf(v);
            }
            if (side->arith == DI_ARITH_BF16) {
                memcpy(half, act + 2 * k + b * 8, 8);
                CHECK(half[0] == half[2] && half[1] == half[3]);
                got = di_bf16_to_f32(half[0]) + di_bf16_to_f32(half[1]);
            } else {
                memcpy(&got, act + k + k / 32 * 4 + b * 4, 4);
            }
            if (isfinite(sum))
                far = fmax(far, total > 0 ? fabs(got - sum) / total : got);
        }
    }
    CHECK(far < 2e-5);
}

#endif

/*
 * cast.c - the small floating-point formats, and records of them.
 *
 * Scalar: what a step casts is a few hundred values per row and layer,
 * against millions of weights.
 */

#include "cast.h"

#include <math.h>
#include <string.h>

/* Its bits in those of a float have an exponent 120 too small. */
float
di_e4m3_to_f32(uint8_t b)
{
    union { uint32_t u; float f; } v = { .u = (b & 0x7fu) << 20 };

    if ((b & 0x7f) == 0x7f)
        return NAN;
    v.f *= 0x1p120f;
    return b & 0x80 ? -v.f : v.f;
}

float
di_e2m1_to_f32(uint8_t code)
{
    static const float value[16] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };

    return value[code & 15];
}

/* The code of a magnitude in a format with frac_bits of fraction whose
 * smallest normal value is 2^exp_min.  A normal one is rounded in its bits, a
 * smaller one in units of the last place; a carry into the next power of two
 * comes out right by itself, since codes are in the order of their values. */
static uint8_t
to_code(float x, unsigned frac_bits, int exp_min)
{
    union { float f; uint32_t u; } v = { .f = x };
    unsigned drop = 23 - frac_bits;
    uint32_t first = (uint32_t) (exp_min + 127);     /* its exponent's bits */

    if (v.u >> 23 < first) {
        v.u = (127 + frac_bits - (uint32_t) exp_min) << 23;
        return (uint8_t) lrintf(x * v.f);
    }
    v.u += (1u << (drop - 1)) - 1 + (v.u >> drop & 1);
    return (uint8_t) ((v.u >> drop) - ((first - 1) << frac_bits));
}

uint8_t
di_f32_to_e4m3(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;

    if (isnan(x))
        return sign | 0x7f;
    return sign | to_code(fminf(fabsf(x), 448.0f), 3, -6);
}

uint8_t
di_f32_to_e2m1(float x)
{
    return (signbit(x) ? 8 : 0) | to_code(fminf(fabsf(x), 6.0f), 1, 0);
}

size_t
di_cast_data_bytes(di_cast_t cast, size_t n)
{
    return cast == DI_CAST_E4M3_32 ? n : n / 2;
}

static size_t
run_of(di_cast_t cast)
{
    return cast == DI_CAST_E2M1_16 ? 16 : 32;
}

size_t
di_cast_scale_bytes(di_cast_t cast, size_t n)
{
    return n / run_of(cast);
}

/* The smallest power of two that is not less than x, as its UE8M0 byte. */
static uint8_t
power_above(float x)
{
    int exp;
    float frac = frexpf(x, &exp);

    exp += frac == 0.5f ? 126 : 127;
    return (uint8_t) (exp < 0 ? 0 : exp > 254 ? 254 : exp);
}

uint8_t
di_cast_scale(di_cast_t cast, float amax)
{
    switch (cast) {
    case DI_CAST_E4M3_32:
        return power_above(fmaxf(amax, 1e-4f) / 448.0f);
    case DI_CAST_E2M1_32:
        return power_above(fmaxf(amax, 6 * 0x1p-126f) / 6.0f);
    default:
        return di_f32_to_e4m3(fmaxf(amax, 6 * 0x1p-9f) / 6.0f);
    }
}

static float
scale_value(di_cast_t cast, uint8_t b)
{
    return cast == DI_CAST_E2M1_16 ? di_e4m3_to_f32(b) : di_ue8m0_to_f32(b);
}

void
di_cast_put(di_cast_t cast, const float *x, size_t n, uint8_t *data,
            uint8_t *scales)
{
    size_t run = run_of(cast);
    float amax, scale;
    uint8_t code;

    for (size_t i = 0; i < n; i += run, x += run) {
        amax = 0;
        for (size_t j = 0; j < run; j++)
            amax = fmaxf(amax, fabsf(x[j]));
        scales[i / run] = di_cast_scale(cast, amax);
        scale = scale_value(cast, scales[i / run]);
        for (size_t j = 0; j < run; j++) {
            if (cast == DI_CAST_E4M3_32) {
                data[i + j] = di_f32_to_e4m3(x[j] / scale);
                continue;
            }
            code = di_f32_to_e2m1(x[j] / scale);
            if (j % 2 == 0)
                data[(i + j) / 2] = code;
            else
                data[(i + j) / 2] |= (uint8_t) (code << 4);
        }
    }
}

void
di_cast_get(di_cast_t cast, const uint8_t *data, const uint8_t *scales,
            size_t n, float *x)
{
    size_t run = run_of(cast);
    float scale = 0;

    for (size_t i = 0; i < n; i++) {
        if (i % run == 0)
            scale = scale_value(cast, scales[i / run]);
        x[i] = scale * (cast == DI_CAST_E4M3_32
                        ? di_e4m3_to_f32(data[i])
                        : di_e2m1_to_f32(data[i / 2] >> i % 2 * 4));
    }
}

/*
 * cast.h - the small floating-point formats, and records of them.
 *
 * E4M3 is a sign, 4 bits of exponent and 3 of fraction (448 at most, 0x7f is
 * NaN, no infinities), E2M1 a sign, 2 and 1 (0, 0.5, 1, 1.5, 2, 3, 4, 6),
 * UE8M0 an exponent alone: 2^(b - 127), 255 is NaN.  All conversions round to
 * nearest even.
 *
 * A record is a vector of n values cast to one of these with a scale for
 * each run of 16 or 32; caches are made of records.  Values and scales are
 * given apart, since some caches keep them in different places.  A run whose
 * values are not all finite has no meaning, but casts to something.
 * Source: OCP Microscaling Formats 1.0; scales as DeepSeek-V4.1 makes them.
 */

#ifndef DI_CAST_H
#define DI_CAST_H

#include <stddef.h>
#include <stdint.h>

float di_e4m3_to_f32(uint8_t b);
uint8_t di_f32_to_e4m3(float x);             /* saturates at 448            */
float di_e2m1_to_f32(uint8_t code);          /* of the low 4 bits           */
uint8_t di_f32_to_e2m1(float x);             /* saturates at 6              */

/* 2^(b - 127). */
static inline float
di_ue8m0_to_f32(uint8_t b)
{
    union { uint32_t u; float f; } v = { .u = (uint32_t) b << 23 };

    if (b == 0 || b == 255)      /* a subnormal; NaN                        */
        v.u |= 0x00400000u;
    return v.f;
}

typedef enum {
    DI_CAST_E4M3_32,             /* E4M3, a UE8M0 scale per 32: windows     */
    DI_CAST_E2M1_32,             /* E2M1, a UE8M0 scale per 32: index keys  */
    DI_CAST_E2M1_16,             /* E2M1, an E4M3 scale per 16: compressed  */
} di_cast_t;

/* Bytes of the values and of the scales of n values, a multiple of 32. */
size_t di_cast_data_bytes(di_cast_t cast, size_t n);
size_t di_cast_scale_bytes(di_cast_t cast, size_t n);

/* The scale of a run whose largest magnitude is amax, as its byte. */
uint8_t di_cast_scale(di_cast_t cast, float amax);

void di_cast_put(di_cast_t cast, const float *x, size_t n, uint8_t *data,
                 uint8_t *scales);
void di_cast_get(di_cast_t cast, const uint8_t *data, const uint8_t *scales,
                 size_t n, float *x);

#endif

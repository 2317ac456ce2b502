/*
 * wtype.h - weight formats taken apart, for the backends that repack them.
 *
 * Every quantised format here is, for a run of 32 values of one row, integer
 * codes with one or two scales and one minimum:
 *
 *     value[i] = code[i] * scale[i / 16] + min
 *
 * with scale[0] == scale[1] unless the format scales runs of 16 (Q6_K).
 * di_wblock_get() yields that form; all arithmetics start from it, so the
 * bit layouts of GGUF's files are known in kernels/wtype.c alone.
 *
 * The formats with scales apart ("micro": E4M3 and E2M1) are floats with one
 * power of two for 32 of them.  Kernels read these as they lie in the file.
 */

#ifndef DI_WTYPE_H
#define DI_WTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "di_kernels.h"

#define DI_WBLOCK 32             /* values of one di_wblock_t               */

typedef struct {
    int8_t code[DI_WBLOCK];      /* centred where the format is symmetric   */
    float  scale[2];             /* of values 0..15 and 16..31              */
    float  min;                  /* added to each value, 0 if none          */
} di_wblock_t;

/* What a repacker must know about a quantised type. */
typedef struct {
    uint8_t bits;                /* 4, 5, 6 or 8: width of a code           */
    bool    is_signed;           /* codes are centred on 0                  */
    bool    has_min;             /* min is not always 0                     */
    bool    half_scales;         /* scale[0] and scale[1] differ            */
    bool    f16_scales;          /* scale and min are float16 in the file   */
} di_wcodes_t;

/* NULL for types that are not quantised (F32, F16, BF16) or unknown. */
const di_wcodes_t *di_wtype_codes(di_wtype_t type);

/* The b-th run of 32 values of a row that starts at row; quantised types. */
void di_wblock_get(di_wtype_t type, const void *row, size_t b,
                   di_wblock_t *out);

/* Is it one of the formats with scales apart? */
static inline bool
di_wtype_is_micro(di_wtype_t type)
{
    return type >= DI_W_E4M3_B32;
}

/* The b-th run of 32 values of a row of k, without its scale: returned. */
float di_wmicro_get(const di_wpart_t *part, size_t row, size_t k, size_t b,
                    float *value);

/* float16 and bfloat16, by value; to bfloat16 rounds to nearest even and
 * keeps NaN. */
float di_f16_to_f32(uint16_t h);
uint16_t di_f32_to_f16(float f);

static inline float
di_bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = { .u = (uint32_t) h << 16 };

    return v.f;
}

static inline uint16_t
di_f32_to_bf16(float f)
{
    union { float f; uint32_t u; } v = { .f = f };

    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t) (v.u >> 16 | 0x40);
    return (uint16_t) ((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

#endif

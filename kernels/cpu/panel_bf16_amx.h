/*
 * panel_bf16_amx.h - packed panels of DI_ARITH_BF16 on AMX.
 *
 * Weights keep the width that they have in the file: decode is bound by
 * reading them.  A panel of 16 output columns is a stream of blocks of 32
 * input values, each with everything that it needs:
 *
 *     plane[4]   256 bytes   4-bit codes of 32 x 16 weights
 *     plane[b]   b * 64      the codes' bits above the fourth (b: 0, 1, 2, 4)
 *     scale      16 (32 if they are per 16 values) float16 or float32
 *     min        16 float16 or float32, or absent
 */

#ifndef DI_CPU_PANEL_BF16_AMX_H
#define DI_CPU_PANEL_BF16_AMX_H

#include "amx.h"

/* How blocks of a type are packed. */
typedef struct {
    uint16_t high_bytes;         /* of the second plane, 0: none            */
    uint16_t scale_at;           /* in a block; the planes are at 0         */
    uint16_t min_at;             /* 0: none                                 */
    uint16_t block_bytes;
    uint8_t  bits;               /* of a code; 0: plain bfloat16            */
    uint8_t  high_bits;          /* of them in the second plane             */
    uint8_t  centre;             /* code + centre is what is packed         */
    bool     f16;                /* scales and minima are float16           */
    bool     half;               /* a scale per 16 values (Q6_K)            */
    float    offset;             /* of an expanded code to its value        */
} di_amx_format_t;

di_amx_format_t di_amx_format(di_wtype_t type);

#endif

/*
 * wtype.c - weight formats of files: sizes, and values.
 *
 * One function per quantised format takes a run of 32 values apart
 * (di_wblock_t); dequantisation is built on it: value = code * scale + min,
 * product and sum rounded to float32 separately, which is what the formats
 * define.  Scalar code: repacking at open is bound by memory, not by this.
 * Source: the GGUF and ggml documentation of the block layouts; those with
 * scales apart are DeepSeek-V4.1's, see cast.h for their numbers.
 */

#include "wtype.h"

#include "cast.h"

#include <math.h>
#include <string.h>

typedef struct {
    di_wtype_t  type;
    const char *name;
    uint16_t    block;           /* values per block                        */
    uint16_t    bytes;           /* bytes per block                         */
    di_wcodes_t codes;           /* bits == 0: plain values                 */
} wtype_t;

static const wtype_t wtypes[] = {
    { DI_W_F32,  "F32",    1,   4, { 0 } },
    { DI_W_F16,  "F16",    1,   2, { 0 } },
    { DI_W_BF16, "BF16",   1,   2, { 0 } },
    { DI_W_Q4_0, "Q4_0",  32,  18, { 4, true,  false, false, true  } },
    { DI_W_Q4_1, "Q4_1",  32,  20, { 4, false, true,  false, true  } },
    { DI_W_Q5_0, "Q5_0",  32,  22, { 5, true,  false, false, true  } },
    { DI_W_Q5_1, "Q5_1",  32,  24, { 5, false, true,  false, true  } },
    { DI_W_Q8_0, "Q8_0",  32,  34, { 8, true,  false, false, true  } },
    { DI_W_Q4_K, "Q4_K", 256, 144, { 4, false, true,  false, false } },
    { DI_W_Q5_K, "Q5_K", 256, 176, { 5, false, true,  false, false } },
    { DI_W_Q6_K, "Q6_K", 256, 210, { 6, true,  false, true,  false } },
    { DI_W_E4M3_B32, "E4M3", 32, 32, { 0 } },
    { DI_W_E4M3_R32, "E4M3", 32, 32, { 0 } },
    { DI_W_E2M1_R32, "E2M1", 32, 16, { 0 } },
};

static const wtype_t *
wtype_find(di_wtype_t type)
{
    for (size_t i = 0; i < sizeof(wtypes) / sizeof(wtypes[0]); i++)
        if (wtypes[i].type == type)
            return &wtypes[i];
    return NULL;
}

size_t
di_wtype_bytes(di_wtype_t type, size_t n)
{
    const wtype_t *t = wtype_find(type);

    return t ? n / t->block * t->bytes : 0;
}

size_t
di_wtype_block(di_wtype_t type)
{
    const wtype_t *t = wtype_find(type);

    return t ? t->block : 0;
}

const char *
di_wtype_name(di_wtype_t type)
{
    const wtype_t *t = wtype_find(type);

    return t ? t->name : "unknown";
}

size_t
di_wtype_scale_bytes(di_wtype_t type, size_t n, size_t k)
{
    switch (type) {
    case DI_W_E4M3_B32: return (n + 31) / 32 * ((k + 31) / 32);
    case DI_W_E4M3_R32:
    case DI_W_E2M1_R32: return n * (k / 32);
    default:            return 0;
    }
}

const di_wcodes_t *
di_wtype_codes(di_wtype_t type)
{
    const wtype_t *t = wtype_find(type);

    return t && t->codes.bits ? &t->codes : NULL;
}

float
di_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t) (h & 0x8000) << 16;
    uint32_t exp = h >> 10 & 31, frac = h & 0x3ff;
    union { uint32_t u; float f; } v;

    if (exp == 0) {
        v.f = (float) frac * 0x1p-24f;
        v.u |= sign;
    } else if (exp == 31) {
        v.u = sign | 0x7f800000u | frac << 13;
    } else {
        v.u = sign | (exp + 112) << 23 | frac << 13;
    }
    return v.f;
}

uint16_t
di_f32_to_f16(float f)
{
    union { float f; uint32_t u; } v = { .f = f };
    uint16_t sign = (uint16_t) (v.u >> 16 & 0x8000);
    uint32_t a = v.u & 0x7fffffffu;

    if (a > 0x7f800000u)
        return sign | 0x7e00;
    if (a >= 0x477ff000u)                  /* rounds to 65536 or above      */
        return sign | 0x7c00;
    if (a < 0x38800000u) {                 /* subnormal: units of 2^-24     */
        v.u = a;
        return sign | (uint16_t) lrintf(v.f * 0x1p24f);
    }
    a += 0xfff + (a >> 13 & 1);
    return sign | (uint16_t) ((a - 0x38000000u) >> 13);
}

static uint16_t
load_u16(const uint8_t *p)
{
    return (uint16_t) (p[0] | p[1] << 8);
}

static uint32_t
load_u32(const uint8_t *p)
{
    return (uint32_t) load_u16(p) | (uint32_t) load_u16(p + 2) << 16;
}

static void
set_scale(di_wblock_t *out, float scale, float min)
{
    out->scale[0] = out->scale[1] = scale;
    out->min = min;
}

/* 16 bytes hold 32 codes: low nibbles first, then high ones. */
static void
nibbles(const uint8_t *restrict q, int8_t *restrict code, int centre)
{
    for (size_t i = 0; i < 16; i++) {
        code[i] = (int8_t) ((q[i] & 15) - centre);
        code[i + 16] = (int8_t) ((q[i] >> 4) - centre);
    }
}

static void
fifth_bits(uint32_t bits, int8_t *code)
{
    for (size_t i = 0; i < 32; i++)
        code[i] = (int8_t) (code[i] + (int) (bits >> i & 1) * 16);
}

static void
get_q4_0(const uint8_t *p, di_wblock_t *out)
{
    set_scale(out, di_f16_to_f32(load_u16(p)), 0);
    nibbles(p + 2, out->code, 8);
}

static void
get_q4_1(const uint8_t *p, di_wblock_t *out)
{
    set_scale(out, di_f16_to_f32(load_u16(p)),
              di_f16_to_f32(load_u16(p + 2)));
    nibbles(p + 4, out->code, 0);
}

static void
get_q5_0(const uint8_t *p, di_wblock_t *out)
{
    set_scale(out, di_f16_to_f32(load_u16(p)), 0);
    nibbles(p + 6, out->code, 16);
    fifth_bits(load_u32(p + 2), out->code);
}

static void
get_q5_1(const uint8_t *p, di_wblock_t *out)
{
    set_scale(out, di_f16_to_f32(load_u16(p)),
              di_f16_to_f32(load_u16(p + 2)));
    nibbles(p + 8, out->code, 0);
    fifth_bits(load_u32(p + 4), out->code);
}

static void
get_q8_0(const uint8_t *p, di_wblock_t *out)
{
    set_scale(out, di_f16_to_f32(load_u16(p)), 0);
    memcpy(out->code, p + 2, 32);
}

/* Scale and minimum of run s of a K-quant block: 8 pairs of 6-bit values in
 * 12 bytes, the last four pairs with their upper bits in the first bytes. */
static void
k_scales(const uint8_t *p, size_t s, di_wblock_t *out)
{
    const uint8_t *q = p + 4;
    unsigned scale, min;

    if (s < 4) {
        scale = q[s] & 63;
        min = q[s + 4] & 63;
    } else {
        scale = (q[s + 4] & 15u) | (unsigned) q[s - 4] >> 6 << 4;
        min = (unsigned) q[s + 4] >> 4 | (unsigned) q[s] >> 6 << 4;
    }
    set_scale(out, di_f16_to_f32(load_u16(p)) * (float) scale,
              -(di_f16_to_f32(load_u16(p + 2)) * (float) min));
}

/* Runs 2i and 2i + 1 share 32 bytes: low and high nibbles. */
static void
k_nibbles(const uint8_t *restrict q, size_t s, int8_t *restrict code)
{
    for (size_t i = 0; i < 32; i++)
        code[i] = (int8_t) (q[s / 2 * 32 + i] >> s % 2 * 4 & 15);
}

static void
get_q4_k(const uint8_t *p, size_t s, di_wblock_t *out)
{
    k_scales(p, s, out);
    k_nibbles(p + 16, s, out->code);
}

static void
get_q5_k(const uint8_t *p, size_t s, di_wblock_t *out)
{
    k_scales(p, s, out);
    k_nibbles(p + 48, s, out->code);
    for (size_t i = 0; i < 32; i++)
        out->code[i] = (int8_t) (out->code[i] + (p[16 + i] >> s & 1) * 16);
}

/* Two halves of 128 values; in each, run j takes nibble j / 2 of 64 bytes
 * and bits 2j of 32 bytes; scales are per 16 values. */
static void
get_q6_k(const uint8_t *p, size_t s, di_wblock_t *out)
{
    size_t half = s / 4, j = s % 4;
    const uint8_t *low = p + half * 64 + j % 2 * 32;
    const uint8_t *high = p + 128 + half * 32;
    float d = di_f16_to_f32(load_u16(p + 208));

    for (size_t i = 0; i < 32; i++)
        out->code[i] = (int8_t) (((low[i] >> j / 2 * 4 & 15)
                                  | (high[i] >> 2 * j & 3) << 4) - 32);
    for (size_t i = 0; i < 2; i++)
        out->scale[i] = d * (float) (int8_t) p[192 + s * 2 + i];
    out->min = 0;
}

void
di_wblock_get(di_wtype_t type, const void *row, size_t b, di_wblock_t *out)
{
    const uint8_t *p = row;

    switch (type) {
    case DI_W_Q4_0: get_q4_0(p + b * 18, out); break;
    case DI_W_Q4_1: get_q4_1(p + b * 20, out); break;
    case DI_W_Q5_0: get_q5_0(p + b * 22, out); break;
    case DI_W_Q5_1: get_q5_1(p + b * 24, out); break;
    case DI_W_Q8_0: get_q8_0(p + b * 34, out); break;
    case DI_W_Q4_K: get_q4_k(p + b / 8 * 144, b % 8, out); break;
    case DI_W_Q5_K: get_q5_k(p + b / 8 * 176, b % 8, out); break;
    case DI_W_Q6_K: get_q6_k(p + b / 8 * 210, b % 8, out); break;
    default: memset(out, 0, sizeof(*out)); break;
    }
}

static void
dequantise_blocks(di_wtype_t type, const void *src, size_t n, float *dst)
{
    di_wblock_t w;

    for (size_t b = 0; b < n / DI_WBLOCK; b++, dst += DI_WBLOCK) {
        di_wblock_get(type, src, b, &w);
        for (size_t i = 0; i < DI_WBLOCK; i++)
            dst[i] = (float) w.code[i] * w.scale[i / 16] + w.min;
    }
}

void
di_dequantise(di_wtype_t type, const void *src, size_t n, float *dst)
{
    const uint8_t *p = src;

    switch (type) {
    case DI_W_F32:
        memcpy(dst, src, n * sizeof(float));
        break;
    case DI_W_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = di_f16_to_f32(load_u16(p + 2 * i));
        break;
    case DI_W_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = di_bf16_to_f32(load_u16(p + 2 * i));
        break;
    default:
        dequantise_blocks(type, src, n, dst);
        break;
    }
}

float
di_wmicro_get(const di_wpart_t *part, size_t row, size_t k, size_t b,
              float *value)
{
    const uint8_t *p = part->data, *scales = part->scales;
    size_t scale_row = part->type == DI_W_E4M3_B32 ? row / 32 : row;

    if (part->type == DI_W_E2M1_R32) {
        p += row * (k / 2) + b * 16;
        for (size_t i = 0; i < 32; i++)
            value[i] = di_e2m1_to_f32(p[i / 2] >> i % 2 * 4);
    } else {
        p += row * k + b * 32;
        for (size_t i = 0; i < 32; i++)
            value[i] = di_e4m3_to_f32(p[i]);
    }
    return di_ue8m0_to_f32(scales[scale_row * (k / 32) + b]);
}

void
di_wpart_row(const di_wpart_t *part, size_t row, size_t k, float *dst)
{
    const uint8_t *p = part->data;
    float scale;

    if (!di_wtype_is_micro(part->type)) {
        di_dequantise(part->type, p + row * di_wtype_bytes(part->type, k), k,
                      dst);
        return;
    }
    for (size_t b = 0; b < k / 32; b++, dst += 32) {
        scale = di_wmicro_get(part, row, k, b, dst);
        for (size_t i = 0; i < 32; i++)
            dst[i] *= scale;
    }
}

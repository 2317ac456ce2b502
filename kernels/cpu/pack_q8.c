/*
 * pack_q8.c - weights repacked for the vector kernels of DI_ARITH_Q8, as q8.h
 * describes.  Scalar: it runs once, and the same for all of them.
 */

#include "q8.h"

#include <string.h>

di_q8_format_t
di_q8_format(di_wtype_t type)
{
    const di_wcodes_t *codes = di_wtype_codes(type);
    size_t number, bytes;
    di_q8_format_t f = { 0 };

    if (codes == NULL) {
        f.block_bytes = (uint16_t) (di_wtype_bytes(type, 1) * DI_WBLOCK
                                    * DI_CPU_PANEL);
        return f;
    }

    f.bits = codes->bits;
    f.bias = codes->is_signed ? (uint8_t) (1u << (codes->bits - 1)) : 0;
    f.f16 = codes->f16_scales;
    f.half = codes->half_scales;
    number = f.f16 ? 2 : 4;

    f.scale_at = (uint16_t) (f.bits * 64);
    bytes = f.scale_at + number * DI_CPU_PANEL * (f.half ? 2 : 1);
    if (codes->has_min) {
        f.min_at = (uint16_t) bytes;
        bytes += number * DI_CPU_PANEL;
    }
    f.block_bytes = (uint16_t) bytes;
    return f;
}

size_t
di_q8_panel_bytes(di_wtype_t type, size_t k)
{
    return k / DI_WBLOCK * di_q8_format(type).block_bytes;
}

static uint32_t
load_four(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Or four bytes into p. */
static void
add_four(uint8_t *p, uint32_t v)
{
    v |= load_four(p);
    memcpy(p, &v, sizeof(v));
}

/* The 32 codes of column col: four bytes of a group lie side by side. */
static void
put_codes(uint8_t *block, unsigned bits, size_t col, const uint8_t *codes)
{
    uint32_t four;

    block += col * 4;
    for (size_t g = 0; g < DI_Q8_GROUPS; g++) {
        four = load_four(codes + g * 4);
        if (bits == 8) {
            add_four(block + g * 64, four);
            continue;
        }
        add_four(block + g / 2 * 64, (four & 0x0f0f0f0fu) << g % 2 * 4);
        four = four >> 4 & 0x0f0f0f0fu;
        if (bits == 5)
            add_four(block + 256, four << g);
        else if (bits == 6)
            add_four(block + 256 + g / 4 * 64, four << g % 4 * 2);
    }
}

/* Block b of column n of the part. */
static void
pack_codes(const di_cpu_wpart_t *part, const di_q8_format_t *f, size_t n,
           size_t b, uint8_t *block)
{
    size_t col = n % DI_CPU_PANEL;
    uint8_t codes[DI_WBLOCK];
    di_wblock_t w;

    di_wblock_get(part->type,
                  (const uint8_t *) part->data + n * part->row_bytes, b, &w);
    for (size_t i = 0; i < DI_WBLOCK; i++)
        codes[i] = (uint8_t) (w.code[i] + f->bias);
    put_codes(block, f->bits, col, codes);

    di_cpu_put_number(block + f->scale_at, col, f->f16, w.scale[0]);
    if (f->half)
        di_cpu_put_number(block + f->scale_at, DI_CPU_PANEL + col, f->f16,
                          w.scale[1]);
    if (f->min_at)
        di_cpu_put_number(block + f->min_at, col, f->f16, w.min);
}

static void
pack_plain(const di_cpu_wpart_t *part, size_t n, size_t b, uint8_t *block)
{
    size_t size = di_wtype_bytes(part->type, 1);
    const uint8_t *from = (const uint8_t *) part->data + n * part->row_bytes
                          + b * DI_WBLOCK * size;

    for (size_t i = 0; i < DI_WBLOCK; i++)
        memcpy(block + (i * DI_CPU_PANEL + n % DI_CPU_PANEL) * size,
               from + i * size, size);
}

/* The packed memory is zero before: columns behind the last stay so. */
void
di_q8_pack(const di_cpu_wpart_t *part, size_t k, size_t p)
{
    di_q8_format_t f = di_q8_format(part->type);
    uint8_t *panel = part->packed + p * part->panel_bytes;
    size_t end = (p + 1) * DI_CPU_PANEL;

    for (size_t n = p * DI_CPU_PANEL; n < end && n < part->n; n++) {
        for (size_t b = 0; b < k / DI_WBLOCK; b++) {
            if (f.bits)
                pack_codes(part, &f, n, b, panel + b * f.block_bytes);
            else
                pack_plain(part, n, b, panel + b * f.block_bytes);
        }
    }
}

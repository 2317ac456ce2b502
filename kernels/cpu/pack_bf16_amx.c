/*
 * pack_bf16_amx.c - repacking of weights for the AMX kernels: rows of the file
 * to the panels of panel_bf16_amx.h.
 */

#include "panel_bf16_amx.h"

/* Byte sizes of a block, from what the type's codes are. */
di_amx_format_t
di_amx_format(di_wtype_t type)
{
    const di_wcodes_t *codes = di_wtype_codes(type);
    size_t number, scales;
    di_amx_format_t f = { 0 };

    if (codes == NULL) {
        f.block_bytes = 1024;
        return f;
    }

    number = codes->f16_scales ? 2 : 4;
    scales = codes->half_scales ? 32 : 16;
    f.bits = codes->bits;
    f.high_bits = (uint8_t) (codes->bits - 4);
    f.high_bytes = (uint16_t) (f.high_bits * 64);
    f.centre = codes->is_signed ? (uint8_t) (1u << (codes->bits - 1)) : 0;
    f.f16 = codes->f16_scales;
    f.half = codes->half_scales;
    f.offset = f.centre + (f.bits == 8 ? 16.0f + 256.0f
                                       : (float) (1u << f.bits));
    f.scale_at = (uint16_t) (256 + f.high_bytes);
    f.block_bytes = (uint16_t) (f.scale_at + number * scales);
    if (codes->has_min) {
        f.min_at = f.block_bytes;
        f.block_bytes = (uint16_t) (f.block_bytes + number * 16);
    }
    return f;
}

size_t
di_amx_panel_bytes(di_wtype_t type, size_t k)
{
    return k / DI_WBLOCK * di_amx_format(type).block_bytes;
}

/* Code c of column col and value i in a plane of codes of so many bits: the
 * word of column and parity, at the shift of the tile's row. */
static void
put_code(uint8_t *plane, unsigned bits, size_t col, size_t i, unsigned c)
{
    size_t row = i / 2, per_word = 16 / bits;
    size_t word = row / per_word * 32 + col * 2 + i % 2;
    unsigned at = (unsigned) (row % per_word) * bits;

    plane[word * 2 + at / 8] |= (uint8_t) (c << at % 8);
}

/* 4-bit codes of a column: a word has those of 4 rows of the tile, which are
 * every second byte of 8 codes. */
__attribute__((target("bmi2")))
static void
put_nibbles(uint8_t *plane, size_t col, const uint8_t *code, unsigned shift)
{
    uint16_t word[2];
    uint64_t x;

    for (size_t v = 0; v < 4; v++) {
        memcpy(&x, code + v * 8, sizeof(x));
        word[0] = (uint16_t) _pext_u64(x, 0x000f000f000f000full << shift);
        word[1] = (uint16_t) _pext_u64(x, 0x0f000f000f000f00ull << shift);
        memcpy(plane + (v * 32 + col * 2) * 2, word, sizeof(word));
    }
}

/* Block b of one column, into the packed block. */
static void
pack_codes(const di_cpu_wpart_t *part, const di_amx_format_t *f, size_t n,
           size_t b, uint8_t *block)
{
    size_t col = n % DI_CPU_PANEL;
    uint8_t code[DI_WBLOCK];
    di_wblock_t w;

    di_wblock_get(part->type,
                  (const uint8_t *) part->data + n * part->row_bytes, b, &w);
    for (size_t i = 0; i < DI_WBLOCK; i++)
        code[i] = (uint8_t) (w.code[i] + f->centre);

    put_nibbles(block, col, code, 0);
    if (f->high_bits == 4)
        put_nibbles(block + 256, col, code, 4);
    else if (f->high_bits > 0)
        for (size_t i = 0; i < DI_WBLOCK; i++)
            put_code(block + 256, f->high_bits, col, i, code[i] >> 4);
    di_cpu_put_number(block + f->scale_at, col, f->f16, w.scale[0]);
    if (f->half)
        di_cpu_put_number(block + f->scale_at, 16 + col, f->f16, w.scale[1]);
    if (f->min_at)
        di_cpu_put_number(block + f->min_at, col, f->f16, w.min);
}

/* Plain values become tiles as they are read. */
static void
pack_plain(const di_cpu_wpart_t *part, size_t n, size_t b, uint8_t *block)
{
    size_t col = n % DI_CPU_PANEL;
    uint16_t *tile = (uint16_t *) (void *) block;
    float value[DI_WBLOCK];

    di_dequantise(part->type,
                  (const uint8_t *) part->data + n * part->row_bytes
                  + di_wtype_bytes(part->type, b * DI_WBLOCK),
                  DI_WBLOCK, value);
    for (size_t i = 0; i < DI_WBLOCK; i++)
        tile[i / 2 * 32 + col * 2 + i % 2] = di_f32_to_bf16(value[i]);
}

/* The packed memory is zero before: columns behind the last stay so. */
void
di_amx_pack(const di_cpu_wpart_t *part, size_t k, size_t p)
{
    di_amx_format_t f = di_amx_format(part->type);
    uint8_t *panel = part->packed + p * part->panel_bytes;
    size_t end = (p + 1) * DI_CPU_PANEL;

    for (size_t n = p * DI_CPU_PANEL; n < end && n < part->n; n++) {
        for (size_t b = 0; b < k / DI_WBLOCK; b++) {
            if (di_wtype_codes(part->type))
                pack_codes(part, &f, n, b, panel + b * f.block_bytes);
            else
                pack_plain(part, n, b, panel + b * f.block_bytes);
        }
    }
}

/*
 * expand_bf16_amx.h - blocks of packed panels to AMX's tiles.
 *
 * A block is expanded to a tile of AMX's second operand (16 pairs of input
 * values x 16 columns x 2, bfloat16) by a shift and a three-operand logic
 * instruction per 32 weights: bfloat16 has 7 bits of fraction, so a code of
 * b <= 7 bits put at the top of the fraction of 2^b is the number 2^b + code,
 * exactly.  What is too much, (2^b + centre) * scale * (sum of x), goes to
 * the minimum.  8-bit codes are two planes of 4 bits, hence two products
 * into the same sums.  (Word permutations of a table of 16 codes, without an
 * offset, were twice as slow: they take two micro-operations each.  Q6_K
 * keeps them, since its scales per 16 values would need sums per 16.)
 */

#ifndef DI_CPU_EXPAND_BF16_AMX_H
#define DI_CPU_EXPAND_BF16_AMX_H

#include "panel_bf16_amx.h"

/* Tables of Q6_K: 32 bfloat16, repeated so that bits above a code don't
 * matter. */
typedef struct {
    __m512i low;                 /* code & 15, not centred                  */
    __m512i high;                /* 16 * (code >> 4), centred               */
} tables_t;

static __m512i
make_table(int n, int factor, int centre)
{
    uint16_t t[32];

    for (int i = 0; i < 32; i++)
        t[i] = di_f32_to_bf16((float) (i % n * factor - centre));
    return _mm512_loadu_si512(t);
}

static tables_t
make_tables(void)
{
    tables_t t;

    t.low = make_table(16, 1, 0);
    t.high = make_table(4, 16, 32);
    return t;
}

/* Bits [at, at + n) of words to bits [to, to + n), the others anything. */
#define MOVE_BITS(x, at, to)                                                \
    ((at) > (to) ? _mm512_srli_epi16(x, (at) > (to) ? (at) - (to) : 0)      \
                 : _mm512_slli_epi16(x, (to) > (at) ? (to) - (at) : 0))

#define SELECT_OR 0xea           /* ternary logic: (a & b) | c              */

/* 4-bit codes to a tile, each with its lowest bit at bit `to`; one is the
 * word of a code of zeros. */
DI_AMX_INLINE void
expand_nibbles(const uint8_t *plane, uint8_t *tile, const unsigned to,
               const unsigned one)
{
    const __m512i mask = _mm512_set1_epi16((short) (15u << to));
    const __m512i base = _mm512_set1_epi16((short) one);
    __m512i x;

#pragma GCC unroll 4
    for (unsigned v = 0; v < 4; v++) {
        x = _mm512_loadu_si512(plane + v * 64);
#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++)
            _mm512_store_si512(tile + (v * 4 + s) * 64,
                               _mm512_ternarylogic_epi64(
                                   MOVE_BITS(x, s * 4, to), mask, base,
                                   SELECT_OR));
    }
}

/* 5-bit codes: the fifth bits of all 16 rows are one vector. */
DI_AMX_INLINE void
expand_five(const uint8_t *block, uint8_t *tile)
{
    const __m512i mask = _mm512_set1_epi16(15 << 2);
    const __m512i mask5 = _mm512_set1_epi16(1 << 6);
    const __m512i base = _mm512_set1_epi16(0x4200);       /* 32             */
    __m512i fifth = _mm512_loadu_si512(block + 256), x, y;

#pragma GCC unroll 4
    for (unsigned v = 0; v < 4; v++) {
        x = _mm512_loadu_si512(block + v * 64);
#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++) {
            y = _mm512_ternarylogic_epi64(MOVE_BITS(x, s * 4, 2), mask, base,
                                          SELECT_OR);
            y = _mm512_ternarylogic_epi64(MOVE_BITS(fifth, v * 4 + s, 6),
                                          mask5, y, SELECT_OR);
            _mm512_store_si512(tile + (v * 4 + s) * 64, y);
        }
    }
}

/* Q6_K: upper two bits, then the lower four, by tables. */
DI_AMX_INLINE void
expand_six(const uint8_t *block, const tables_t *t, uint8_t *tile)
{
    __m512i x;

    for (unsigned v = 0; v < 2; v++) {
        x = _mm512_loadu_si512(block + 256 + v * 64);
        for (unsigned s = 0; s < 8; s++) {
            _mm512_store_si512(tile + (v * 8 + s) * 64,
                               _mm512_permutexvar_epi16(x, t->high));
            x = _mm512_srli_epi16(x, 2);
        }
    }
    for (unsigned v = 0; v < 4; v++) {
        x = _mm512_loadu_si512(block + v * 64);
        for (unsigned s = 0; s < 4; s++) {
            _mm512_store_si512(tile + 1024 + (v * 4 + s) * 64,
                               _mm512_permutexvar_epi16(x, t->low));
            x = _mm512_srli_epi16(x, 4);
        }
    }
}

/* Shapes of blocks: what is expanded how, and multiplied how often. */
enum { SHAPE_4, SHAPE_5, SHAPE_8, SHAPE_6, N_SHAPES };

#define IS_WIDE(shape) ((shape) >= SHAPE_8)      /* two tiles per block     */
#define IS_HALF(shape) ((shape) == SHAPE_6)      /* two units per block     */

static int
shape_of(const di_amx_format_t *f)
{
    return f->bits == 4 ? SHAPE_4 : f->bits == 5 ? SHAPE_5
           : f->bits == 6 ? SHAPE_6 : SHAPE_8;
}

/* A block to its tile or, if it is wide, two: high codes first. */
DI_AMX_INLINE void
expand_block(const uint8_t *block, const tables_t *t, uint8_t *tile,
             const int shape)
{
    switch (shape) {
    case SHAPE_4:
        expand_nibbles(block, tile, 3, 0x4180);           /* 16             */
        break;
    case SHAPE_5:
        expand_five(block, tile);
        break;
    case SHAPE_8:
        expand_nibbles(block + 256, tile, 3, 0x4380);     /* 256            */
        expand_nibbles(block, tile + 1024, 3, 0x4180);
        break;
    default:
        expand_six(block, t, tile);
        break;
    }
}

/* 16 scales or minima. */
DI_AMX_INLINE __m512
load_numbers(const uint8_t *p, size_t i, bool f16)
{
    return f16
        ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *) (p + i * 32)))
        : _mm512_loadu_ps(p + i * 64);
}

/* Minima of block b to its place in the tiles of minima: two rows, {h, h} and
 * {l, l}. */
DI_AMX_INLINE void
expand_min(uint8_t *min_tiles, const uint8_t *block, const di_amx_format_t *f,
           size_t b)
{
    const __m512i upper = _mm512_set1_epi32((int) 0xffff0000u);
    __m512 m = _mm512_setzero_ps();
    __m512i h, l;

    if (f->min_at)
        m = load_numbers(block + f->min_at, 0, f->f16);
    m = _mm512_fnmadd_ps(load_numbers(block + f->scale_at, 0, f->f16),
                         _mm512_set1_ps(f->offset), m);
    h = _mm512_and_si512(_mm512_castps_si512(m), upper);
    l = _mm512_castps_si512(_mm512_sub_ps(m, _mm512_castsi512_ps(h)));
    l = _mm512_and_si512(l, upper);
    _mm512_store_si512(min_tiles + b * 128,
                       _mm512_or_si512(h, _mm512_srli_epi32(h, 16)));
    _mm512_store_si512(min_tiles + b * 128 + 64,
                       _mm512_or_si512(l, _mm512_srli_epi32(l, 16)));
}

#endif

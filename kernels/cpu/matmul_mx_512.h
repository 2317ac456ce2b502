/*
 * matmul_mx_512.h - matrix product of DI_ARITH_MX on AVX-512, with or without
 * AVX512_BF16: E2M1 and E4M3 weights from rows as they lie in the file, and
 * float weights.
 *
 * 64 bytes of each of 16 rows fill 16 registers; turned, these are dwords of
 * 16 columns: eight codes of E2M1 or four values of E4M3.  Tables make pairs
 * of bfloat16 of them, which VDPBF16PS takes, the second of each first.
 * Without it the same is two FMAs on the halves as floats.
 *
 * A single row of activations, as in decoding, is bound by these instructions
 * more than by memory.  So blocks of a weight's row stay in quarters of their
 * registers, and only what lies in a quarter is turned, which is half the
 * work: a register then has dwords of 4 rows and 4 blocks, and 4 such
 * registers are 4 independent chains, whose products take turns.  (One chain
 * behind the other fills the schedulers with what waits: half as fast.)
 *
 * A few rows multiply pairs where they are made, more rows an expanded piece.
 *
 * 16 rows are more streams than the hardware follows: a panel is prefetched
 * while the one before it is read, in the order of its bytes.  In that of its
 * use, row by row, memory gives half as much.
 */

#ifndef DI_CPU_MATMUL_MX_512_H
#define DI_CPU_MATMUL_MX_512_H

#include "matmul_q8_512.h"

#define UNROLL16     _Pragma("GCC unroll 16")
#define MICRO_AHEAD  4096        /* bytes prefetched of the panel after the
                                  * next                                    */
#define MICRO_SCALES 16          /* blocks whose scales are turned at once  */
#define MICRO_PIECE  8           /* blocks of an expanded piece             */
#define MICRO_ROWS   72          /* and rows: twice the bytes of int8 ones  */

_Static_assert(MICRO_SCALES <= PIECE, "scales of few rows are too many");
_Static_assert(MICRO_PIECE <= PIECE / 2, "pairs of a piece are too many");
_Static_assert(MICRO_ROWS <= ROWS_MAX, "sums of rows are too many");

/* Tables of a format's bfloat16. */
typedef struct {
    di_e4m3_t e4m3;
    __m512i   e2m1;              /* of 16 codes, twice                      */
} tables_t;

/* -- rows and scales ------------------------------------------------------- */

/* The last row of panel p that there is: it stands for those behind it. */
DI_VEC_INLINE size_t
micro_last(const job_t *j, size_t p)
{
    size_t left = j->part->n - p * DI_CPU_PANEL;

    return (left < DI_CPU_PANEL ? left : DI_CPU_PANEL) - 1;
}

DI_VEC_INLINE const uint8_t *
micro_rows(const job_t *j, size_t p)
{
    return (const uint8_t *) j->part->data
           + p * DI_CPU_PANEL * j->part->row_bytes;
}

/* n bytes of each row from byte at on, at most 64, to dwords of 16 rows. */
DI_VEC_INLINE void
micro_load(const job_t *j, size_t p, size_t at, size_t n, __m512i *v)
{
    const size_t stride = j->part->row_bytes, last = micro_last(j, p);
    const uint8_t *from = micro_rows(j, p);
    const char *ahead = (const char *) from + DI_CPU_PANEL * (stride + at)
                        + MICRO_AHEAD;
    __mmask16 mask = (__mmask16) (n < 64 ? (1u << n / 4) - 1 : 0xffff);

    from += at;
    UNROLL16
    for (size_t i = 0; i < 16; i++) {
        v[i] = _mm512_maskz_loadu_epi32(mask, from);
        _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
        from += i < last ? stride : 0;
    }
    di_transpose16(v);
}

/* Bytes of n blocks from b0 on, at most 16, of 16 rows: those of block i at
 * to[i].  True: one of them is 255, not a number. */
DI_VEC_INLINE bool
micro_scale_bytes(const job_t *j, size_t p, size_t b0, size_t n,
                  uint8_t (*to)[16])
{
    /* Byte 4 i + r of quarter q: block 4 q + i of the r-th of four rows. */
    const __m512i turn = _mm512_set_epi64(
        0x3f2f1f0f3e2e1e0e, 0x3d2d1d0d3c2c1c0c, 0x3b2b1b0b3a2a1a0a,
        0x3929190938281808, 0x3727170736261606, 0x3525150534241404,
        0x3323130332221202, 0x3121110130201000);
    const uint8_t *scales = (const uint8_t *) j->part->scales + b0
                            + p * DI_CPU_PANEL * j->n_blocks;
    const size_t last = micro_last(j, p);
    __mmask16 mask = (__mmask16) ((1u << n) - 1);
    __m512i v[4], t[4];
    __mmask64 none = 0;
    __m128i x[16];

    UNROLL16
    for (size_t i = 0; i < 16; i++) {
        x[i] = _mm_maskz_loadu_epi8(mask, scales);
        scales += i < last ? j->n_blocks : 0;
    }
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        v[i] = _mm512_inserti32x4(_mm512_castsi128_si512(x[4 * i]),
                                  x[4 * i + 1], 1);
        v[i] = _mm512_inserti32x4(v[i], x[4 * i + 2], 2);
        v[i] = _mm512_inserti32x4(v[i], x[4 * i + 3], 3);
        none |= _mm512_cmpeq_epi8_mask(v[i], _mm512_set1_epi8(-1));
        v[i] = _mm512_permutexvar_epi8(turn, v[i]);
    }
    t[0] = _mm512_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm512_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm512_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm512_unpackhi_epi64(t[1], t[3]);
    UNROLL
    for (size_t i = 0; i < 4; i++) {             /* of blocks i, i + 4, ... */
        _mm_store_si128((void *) to[i], _mm512_castsi512_si128(v[i]));
        _mm_store_si128((void *) to[i + 4],
                        _mm512_extracti32x4_epi32(v[i], 1));
        _mm_store_si128((void *) to[i + 8],
                        _mm512_extracti32x4_epi32(v[i], 2));
        _mm_store_si128((void *) to[i + 12],
                        _mm512_extracti32x4_epi32(v[i], 3));
    }
    return none != 0;
}

/* 2^(x - 127) of 16 bytes: 0 makes a subnormal number.  None: one of them is
 * 255, not a number. */
DI_VEC_INLINE __m512
micro_powers(__m128i bytes, bool none)
{
    const __m512i least = _mm512_set1_epi32(0x00400000);
    __m512i x = _mm512_cvtepu8_epi32(bytes);
    __m512i power = _mm512_max_epu32(_mm512_slli_epi32(x, 23), least);

    if (none)
        power = _mm512_mask_or_epi32(
            power, _mm512_cmpeq_epi32_mask(x, _mm512_set1_epi32(255)), power,
            least);
    return _mm512_castsi512_ps(power);
}

/* Scales of n blocks from b0 on, at most MICRO_SCALES, of panel p, the i-th
 * of two. */
DI_VEC_INLINE void
micro_scales(const job_t *j, size_t p, size_t i, size_t b0, size_t n)
{
    const uint8_t *all = (const uint8_t *) j->part->scales
                         + p / 2 * j->n_blocks + b0;
    _Alignas(16) uint8_t bytes[MICRO_SCALES][16];
    bool none;

    if (j->part->type == DI_W_E4M3_B32) {
        for (size_t b = 0; b < n; b++)
            _mm512_store_ps(j->s->scales[b][0][i],
                            _mm512_set1_ps(di_ue8m0_to_f32(all[b])));
        return;
    }
    none = micro_scale_bytes(j, p, b0, n, bytes);
    for (size_t b = 0; b < n; b++)
        _mm512_store_ps(j->s->scales[b][0][i], micro_powers(
            _mm_load_si128((void *) bytes[b]), none));
}

/* -- values ---------------------------------------------------------------- */

DI_VEC_INLINE tables_t
make_tables(void)
{
    const __m512i values = _mm512_broadcast_i32x4(_mm_set_epi16(
        0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0x0000));

    return (tables_t) {
        .e4m3 = di_e4m3_tables(),
        .e2m1 = _mm512_mask_or_epi32(values, 0xf0f0, values,
                                     _mm512_set1_epi32((int) 0x80008000u)),
    };
}

/* A dword's eight codes: four pairs of bfloat16 for each column.  A word's
 * code lies in its lowest bits; what is above it doesn't matter. */
DI_VEC_INLINE void
e2m1_pairs(const tables_t *t, __m512i x, __m512i *pair)
{
    const __m512i first = _mm512_set1_epi64(0x2c2428200c040800);
    const __m512i step = _mm512_set1_epi8(16);
    __m512i codes;

    UNROLL
    for (size_t i = 0; i < 4; i += 2) {
        codes = _mm512_multishift_epi64_epi8(
            i == 0 ? first : _mm512_add_epi8(first, step), x);
        pair[i] = _mm512_permutexvar_epi16(codes, t->e2m1);
        pair[i + 1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8),
                                               t->e2m1);
    }
}

/* A dword's four values: two pairs of bfloat16 for each column. */
DI_VEC_INLINE void
e4m3_pairs(const tables_t *t, __m512i x, __m512i *pair)
{
    const __m512i step = _mm512_set_epi32(
        0x3c3c3c3c, 0x38383838, 0x34343434, 0x30303030, 0x2c2c2c2c,
        0x28282828, 0x24242424, 0x20202020, 0x1c1c1c1c, 0x18181818,
        0x14141414, 0x10101010, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    __m512i low, high;

    di_e4m3_bytes(&t->e4m3, x, &low, &high);
    pair[0] = _mm512_permutex2var_epi8(
        low, _mm512_add_epi8(step, _mm512_set1_epi32(0x41014000)), high);
    pair[1] = _mm512_permutex2var_epi8(
        low, _mm512_add_epi8(step, _mm512_set1_epi32(0x43034202)), high);
}

/* sum += the pairs' products, the second one first. */
DI_VEC_INLINE __m512
add_pairs(__m512 sum, __m512i w, __m512i x)
{
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh) w, (__m512bh) x);
#else
    const __m512i upper = _mm512_set1_epi32((int) 0xffff0000u);

    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(w, upper)),
                          _mm512_castsi512_ps(_mm512_and_si512(x, upper)),
                          sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                           sum);
#endif
}

/* A dword's pairs: PAIRS of its format. */
#define PAIRS(e2m1) ((e2m1) ? (size_t) 4 : (size_t) 2)

DI_VEC_INLINE void
micro_pairs(const tables_t *t, __m512i x, __m512i *pair, const bool e2m1)
{
    if (e2m1)
        e2m1_pairs(t, x, pair);
    else
        e4m3_pairs(t, x, pair);
}

/* -- one row --------------------------------------------------------------- */

/* The row's pairs of n blocks, four at most: pair q of block i in quarter i
 * of to[q]. */
DI_VEC_INLINE void
one_spread(const uint8_t *x, size_t n, __m512i *to)
{
    __m512i v[4], t[4], u;

    UNROLL
    for (size_t i = 0; i < 4; i++)
        v[i] = i < n ? _mm512_loadu_si512(x + i * DI_WBLOCK * 2)
                     : _mm512_setzero_si512();
    t[0] = _mm512_shuffle_i32x4(v[0], v[1], 0x88);
    t[1] = _mm512_shuffle_i32x4(v[0], v[1], 0xdd);
    t[2] = _mm512_shuffle_i32x4(v[2], v[3], 0x88);
    t[3] = _mm512_shuffle_i32x4(v[2], v[3], 0xdd);
    UNROLL
    for (size_t i = 0; i < 4; i++, to += 4) {
        u = i < 2 ? _mm512_shuffle_i32x4(t[i], t[i + 2], 0x88)
                  : _mm512_shuffle_i32x4(t[i - 2], t[i], 0xdd);
        _mm512_store_si512(to, _mm512_shuffle_epi32(u, 0x00));
        _mm512_store_si512(to + 1, _mm512_shuffle_epi32(u, 0x55));
        _mm512_store_si512(to + 2, _mm512_shuffle_epi32(u, 0xaa));
        _mm512_store_si512(to + 3, _mm512_shuffle_epi32(u, 0xff));
    }
}

/* 64 bytes of a row that has n left. */
DI_VEC_INLINE __m512i
one_load(const uint8_t *from, size_t n)
{
    return _mm512_maskz_loadu_epi32(
        (__mmask16) (n < 64 ? (1u << n / 4) - 1 : 0xffff), from);
}

/* Four blocks' codes of four rows, the first half of them or the second, to
 * dwords: quarter h of v[g] has dword g of block h of each. */
DI_VEC_INLINE void
one_turn(const uint8_t *from, size_t stride, size_t n, const size_t half,
         const bool e2m1, __m512i *v)
{
    __m512i a[4], t[4];

    UNROLL
    for (size_t i = 0; i < 4; i++, from += stride) {
        a[i] = one_load(from, n);
        if (!e2m1) {
            t[0] = one_load(from + 64, n < 64 ? 0 : n - 64);
            a[i] = half == 0 ? _mm512_shuffle_i32x4(a[i], t[0], 0x88)
                             : _mm512_shuffle_i32x4(a[i], t[0], 0xdd);
        }
    }
    t[0] = _mm512_unpacklo_epi32(a[0], a[1]);
    t[1] = _mm512_unpackhi_epi32(a[0], a[1]);
    t[2] = _mm512_unpacklo_epi32(a[2], a[3]);
    t[3] = _mm512_unpackhi_epi32(a[2], a[3]);
    v[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

/* A pair of each of the four registers. */
DI_VEC_INLINE void
one_add(__m512 *sum, __m512i (*pair)[4], const size_t i, __m512i x)
{
    UNROLL
    for (size_t k = 0; k < 4; k++)
        sum[k] = add_pairs(sum[k], pair[k][i], x);
}

/* What half a block's codes, or all, add to the sums of four blocks of 16
 * rows: quarter h of sum[k] has those of block h of rows 4 k to 4 k + 3. */
DI_VEC_INLINE void
one_sums(const tables_t *t, const uint8_t *from, size_t stride, size_t n,
         const size_t half, const __m512i *x, __m512 *sum, const bool e2m1)
{
    __m512i v[4][4], pair[4][4];

    UNROLL
    for (size_t k = 0; k < 4; k++)
        one_turn(from + 4 * k * stride, stride, n, half, e2m1, v[k]);
    UNROLL
    for (size_t g = 0; g < 4; g++, x += PAIRS(e2m1)) {
        UNROLL
        for (size_t k = 0; k < 4; k++)
            micro_pairs(t, v[k][g], pair[k], e2m1);
        one_add(sum, pair, 0, x[0]);
        one_add(sum, pair, 1, x[1]);
        if (e2m1) {
            one_add(sum, pair, 2, x[2]);
            one_add(sum, pair, 3, x[3]);
        }
    }
}

/* Those of n blocks, if all rows have the same. */
DI_VEC_INLINE void
one_scales(const job_t *j, size_t p, size_t b0, size_t n)
{
    const uint8_t *all = (const uint8_t *) j->part->scales
                         + p / 2 * j->n_blocks + b0;

    _mm512_store_ps(j->s->scales[0][0][0], micro_powers(
        _mm_maskz_loadu_epi8((__mmask16) ((1u << n) - 1), all), true));
}

/* Scale and add n blocks' sums, four at most, in the order of the blocks. */
DI_VEC_INLINE __m512
one_scale(const job_t *j, const __m512 *sum, size_t b, size_t n, __m512 acc,
          const bool e2m1)
{
    const size_t at = b % MICRO_SCALES;
    __m512 t[4], of, d;

    t[0] = _mm512_shuffle_f32x4(sum[0], sum[1], 0x88);
    t[1] = _mm512_shuffle_f32x4(sum[0], sum[1], 0xdd);
    t[2] = _mm512_shuffle_f32x4(sum[2], sum[3], 0x88);
    t[3] = _mm512_shuffle_f32x4(sum[2], sum[3], 0xdd);
    UNROLL
    for (size_t h = 0; h < 4; h++) {
        if (h == n)
            break;
        of = h < 2 ? _mm512_shuffle_f32x4(t[h], t[h + 2], 0x88)
                   : _mm512_shuffle_f32x4(t[h - 2], t[h], 0xdd);
        d = e2m1 ? _mm512_load_ps(j->s->scales[at + h][0][0])
                 : _mm512_set1_ps(j->s->scales[0][0][0][at + h]);
        acc = _mm512_fmadd_ps(of, d, acc);
    }
    return acc;
}

/* A full panel. */
DI_VEC_INLINE void
micro_one(const job_t *j, const tables_t *t, size_t p, const bool e2m1)
{
    const size_t bytes = DI_WBLOCK * 2 / PAIRS(e2m1);
    const size_t stride = j->part->row_bytes;
    const __m512i *x = (const void *) j->s->x;
    const uint8_t *from = micro_rows(j, p);
    const char *ahead = (const char *) from + DI_CPU_PANEL * stride
                        + MICRO_AHEAD;
    __m512 acc = _mm512_setzero_ps(), sum[4];
    size_t left, n;

    for (size_t b = 0; b < j->n_blocks; b += 4, x += DI_WBLOCK / 2) {
        left = j->n_blocks - b;
        n = left < MICRO_SCALES ? left : MICRO_SCALES;
        if (b % MICRO_SCALES == 0 && e2m1)
            micro_scales(j, p, 0, b, n);
        else if (b % MICRO_SCALES == 0)
            one_scales(j, p, b, n);
        UNROLL16
        for (size_t i = 0; i < bytes; i++)
            _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
        ahead += bytes * 64;
        sum[0] = sum[1] = sum[2] = sum[3] = _mm512_setzero_ps();
        one_sums(t, from + b * bytes, stride, left * bytes, 0, x, sum, e2m1);
        if (!e2m1)
            one_sums(t, from + b * bytes, stride, left * bytes, 1, x + 8, sum,
                     e2m1);
        acc = one_scale(j, sum, b, left < 4 ? left : 4, acc, e2m1);
    }
    put(j, p, 0, acc);
}

/* -- few rows -------------------------------------------------------------- */

/* Blocks [b, b + side) of those in v, side by side: what is behind the last
 * one is zeros, and not added. */
DI_VEC_INLINE void
micro_blocks(const job_t *j, const tables_t *t, const __m512i *v, size_t b,
             const size_t side, __m512 *acc, const size_t rows,
             const bool e2m1)
{
    const size_t n = PAIRS(e2m1), dwords = DI_WBLOCK / 2 / n;
    __m512 sum[FEW_ROWS][4], d;
    __m512i pair[4];
    const uint8_t *x;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
        for (size_t h = 0; h < side; h++)
            sum[r][h] = _mm512_setzero_ps();
    UNROLL
    for (size_t g = 0; g < dwords; g++) {
        UNROLL
        for (size_t h = 0; h < side; h++) {
            micro_pairs(t, v[h * dwords + g], pair, e2m1);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = row_of(j, r) + (b + h) * DI_WBLOCK * 2 + g * n * 4;
                UNROLL
                for (size_t i = 0; i < n; i++)
                    sum[r][h] = add_pairs(sum[r][h], pair[i],
                                          four(x + i * 4));
            }
        }
    }
    UNROLL
    for (size_t h = 0; h < side; h++) {
        if (b + h >= j->n_blocks)
            break;
        d = _mm512_load_ps(j->s->scales[(b + h) % MICRO_SCALES][0][0]);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            acc[r] = _mm512_fmadd_ps(sum[r][h], d, acc[r]);
    }
}

DI_VEC_INLINE void
micro_few(const job_t *j, const tables_t *t, size_t p, const size_t rows,
          const bool e2m1)
{
    const size_t bytes = DI_WBLOCK * 2 / PAIRS(e2m1), blocks = 64 / bytes;
    const size_t side = e2m1 && rows <= 2 ? 4 : 2;
    __m512 acc[FEW_ROWS];
    __m512i v[16];
    size_t left;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < j->n_blocks; b += blocks) {
        left = j->n_blocks - b;
        if (b % MICRO_SCALES == 0)
            micro_scales(j, p, 0, b, left < MICRO_SCALES ? left
                                                         : MICRO_SCALES);
        micro_load(j, p, b * bytes, left * bytes, v);
        UNROLL
        for (size_t h = 0; h < blocks; h += side)
            micro_blocks(j, t, v + h * (16 / blocks), b + h, side, acc,
                         rows, e2m1);
    }
    for (size_t r = 0; r < rows; r++)
        put(j, p, r, acc[r]);
}

/* One row.  Panels that are partly empty are taken as of few rows, and so is
 * E4M3 with a scale for each row, which only tables have. */
DI_VEC_INLINE void
micro_ones(const job_t *j, const tables_t *t, size_t p0, size_t p1,
           const bool e2m1)
{
    const size_t full = j->part->type == DI_W_E4M3_R32
                        ? 0 : j->part->n / DI_CPU_PANEL;
    __m512i *x = (void *) j->s->x;

    for (size_t b = 0; b < j->n_blocks; b += 4, x += DI_WBLOCK / 2)
        one_spread(j->act + b * DI_WBLOCK * 2, j->n_blocks - b, x);
    for (; p0 < p1 && p0 < full; p0++)
        micro_one(j, t, p0, e2m1);
    for (; p0 < p1; p0++)
        micro_few(j, t, p0, 1, e2m1);
}

/* -- many rows ------------------------------------------------------------- */

/* n blocks of panel p, as the i-th of two. */
DI_VEC_INLINE void
micro_expand(const job_t *j, const tables_t *t, size_t p, size_t i,
             size_t b0, size_t n, const bool e2m1)
{
    const size_t bytes = DI_WBLOCK * 2 / PAIRS(e2m1), blocks = 64 / bytes;
    const size_t pairs = PAIRS(e2m1), dwords = 16 / blocks;
    __m512i v[16], pair[4];

    for (size_t b = 0; b < n; b += blocks) {
        micro_load(j, p, (b0 + b) * bytes, (n - b) * bytes, v);
        for (size_t h = 0; h < blocks && b + h < n; h++) {
            UNROLL
            for (size_t g = 0; g < dwords; g++) {
                micro_pairs(t, v[h * dwords + g], pair, e2m1);
                UNROLL
                for (size_t k = 0; k < pairs; k++)
                    _mm512_store_si512(j->s->pairs[b + h][i][g * pairs + k],
                                       pair[k]);
            }
        }
    }
    micro_scales(j, p, i, b0, n);
}

/* What lies expanded, for a tile of rows: a block's sum is a chain over its
 * values, then scaled and added. */
DI_VEC_INLINE void
micro_tile(const job_t *j, const piece_t *c, size_t r0, const size_t rows)
{
    const size_t b0 = c->b0, n = c->n;
    __m512 acc[TILE_ROWS][2], sum[TILE_ROWS][2], d0, d1;
    const uint8_t *x[TILE_ROWS];
    scratch_t *s = j->s;
    const char *ahead = s->ahead;
    const size_t step = ahead < s->ahead_end ? AHEAD_LINES * 64 : 0;
    __m512i w0, w1, q;

    if (c->last)
        prefetch_out(j, c, r0, rows);
    load_sums(&s->acc[r0], acc, b0 == 0, rows);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        x[r] = row_of(j, r0 + r) + b0 * DI_WBLOCK * 2;
    for (size_t b = 0; b < n; b++) {
        ahead = prefetch_some(ahead, step);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm512_setzero_ps();
        UNROLL16
        for (size_t g = 0; g < DI_WBLOCK / 2; g++) {
            w0 = _mm512_load_si512(s->pairs[b][0][g]);
            w1 = _mm512_load_si512(s->pairs[b][1][g]);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                q = four(x[r] + b * DI_WBLOCK * 2 + g * 4);
                sum[r][0] = add_pairs(sum[r][0], w0, q);
                sum[r][1] = add_pairs(sum[r][1], w1, q);
            }
        }
        d0 = _mm512_load_ps(s->scales[b][0][0]);
        d1 = _mm512_load_ps(s->scales[b][0][1]);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            acc[r][0] = _mm512_fmadd_ps(sum[r][0], d0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(sum[r][1], d1, acc[r][1]);
        }
    }
    end_sums(j, c, r0, acc, rows, false);
    s->ahead = ahead;
}

static void
micro_tiles(const job_t *j, const piece_t *c)
{
    size_t r = 0;

    for (; r + 6 <= j->n; r += 6)
        micro_tile(j, c, r, 6);
    if (r + 4 <= j->n) {
        micro_tile(j, c, r, 4);
        r += 4;
    }
    if (r + 2 <= j->n) {
        micro_tile(j, c, r, 2);
        r += 2;
    }
    if (r < j->n)
        micro_tile(j, c, r, 1);
}

/* Panels p and p + 1; of the latter, if there is none, whatever lies in the
 * scratch is multiplied, and left there. */
DI_VEC_INLINE void
micro_many(const job_t *j, const tables_t *t, size_t p, size_t n_panels,
           const bool e2m1)
{
    piece_t c = { .p = p, .n_panels = n_panels };

    j->s->ahead = (const char *) micro_rows(j, p + 2);
    j->s->ahead_end = j->s->ahead
                      + 2 * DI_CPU_PANEL * j->part->row_bytes;
    while (next_piece(j, &c, MICRO_PIECE)) {
        for (size_t i = 0; i < n_panels; i++)
            micro_expand(j, t, p + i, i, c.b0, c.n, e2m1);
        micro_tiles(j, &c);
    }
}

/* -- panels ---------------------------------------------------------------- */

#define MICRO_FEW(rows)                                                     \
    case rows:                                                              \
        for (size_t p = p0; p < p1; p++)                                    \
            micro_few(j, t, p, rows, e2m1);                                 \
        break

DI_VEC_INLINE void
micro_panels(const job_t *j, const tables_t *t, size_t p0, size_t p1,
             const bool e2m1)
{
    switch (j->n) {
    case 1:
        micro_ones(j, t, p0, p1, e2m1);
        break;
    MICRO_FEW(2);
    MICRO_FEW(3);
    MICRO_FEW(4);
    default:
        for (size_t p = p0; p < p1; p += 2)
            micro_many(j, t, p, p1 - p < 2 ? 1 : 2, e2m1);
    }
}

static void
e2m1_panels(const job_t *j, const tables_t *t, size_t p0, size_t p1)
{
    micro_panels(j, t, p0, p1, true);
}

static void
e4m3_panels(const job_t *j, const tables_t *t, size_t p0, size_t p1)
{
    micro_panels(j, t, p0, p1, false);
}

DI_VEC_INLINE void
matmul_micro(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
             size_t p1, size_t r0, size_t r1, void *scratch)
{
    const tables_t t = make_tables();
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .n_blocks = a->w->k / DI_WBLOCK,
                .act_stride = a->act_stride };

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < MICRO_ROWS ? r1 - j.r0 : MICRO_ROWS;
        j.act = a->act + j.r0 * a->act_stride;
        if (part->type == DI_W_E2M1_R32)
            e2m1_panels(&j, &t, p0, p1);
        else
            e4m3_panels(&j, &t, p0, p1);
    }
}

/* -- float weights --------------------------------------------------------- */

DI_VEC_INLINE void
matmul_mx(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
          size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = di_q8_format(part->type),
                .n_blocks = a->w->k / DI_WBLOCK, .n = r1 - r0,
                .act = a->act + r0 * a->act_stride,
                .act_stride = a->act_stride };

    switch (part->type) {
    case DI_W_F32:  panels_plain(&j, p0, p1, DI_W_F32, true); break;
    case DI_W_F16:  panels_plain(&j, p0, p1, DI_W_F16, true); break;
    default:        panels_plain(&j, p0, p1, DI_W_BF16, true); break;
    }
}

#endif

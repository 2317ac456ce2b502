/*
 * matmul_q8_512.h - matrix product of DI_ARITH_Q8 on AVX-512 VNNI; that of
 * DI_ARITH_MX (matmul_mx_512.h) goes on from here.
 *
 * VPDPBUSD multiplies 64 unsigned codes (4 input values of 16 columns) by 4
 * activations broadcast from memory; 8 of them make a block's sums for one
 * row and panel, which are scaled and added by three more instructions, and a
 * fourth for the minima.  Two thirds of the product's peak is therefore the
 * most that there can be; the formats' own scales cost the rest.
 *
 * Few rows (decode): codes are expanded in registers as they are read, by
 * two or three instructions a group, and used for all rows at once: reading
 * the weights is the limit.
 *
 * Many rows (prefill): a piece of two panels is expanded once to bytes that
 * stay in the first-level cache.  A tile of 6 rows by 2 panels keeps its 12
 * sums of integers and 12 of floats in registers, so that each broadcast
 * serves two products and each load of weights six: a register short of all
 * 32, and two loads for three products.
 *
 * What is expanded next is prefetched bit by bit by the products of the first
 * tiles: memory has nothing to do meanwhile.
 *
 * Output rows are some 10 KB apart: each is a page and, often, the same set of
 * a cache, so that a store waits for its line.  A tile therefore fetches its
 * lines before its last piece, and stores its sums itself behind it: as a loop
 * of their own behind all tiles they took a tenth of the product.
 *
 * Rows are taken 144 at a time: fewer expand more often, more gain nothing.
 *
 * All paths do the same operations in the same order as the reference: the
 * results have its bits.
 */

#ifndef DI_CPU_MATMUL_Q8_512_H
#define DI_CPU_MATMUL_Q8_512_H

#include "mx.h"
#include "q8.h"
#include "vec512.h"

#include <string.h>

#define FEW_ROWS   4             /* up to here codes are expanded as used   */
#define TILE_ROWS  6
#define PIECE      24            /* blocks of an expanded piece             */
#define ROWS_MAX   144           /* rows of an expanded piece, see above    */
#define AHEAD_LINES 4            /* prefetched with each block of a tile     */
#define UNROLL     _Pragma("GCC unroll 8")

typedef struct {
    union {
        uint8_t  codes[PIECE][2][DI_Q8_GROUPS * 64];
        uint32_t pairs[PIECE / 2][2][DI_WBLOCK / 2][16];  /* DI_ARITH_MX    */
    };
    float   scales[PIECE][2][2][16];     /* of unit, of panel               */
    float   mins[PIECE][2][16];
    float   acc[ROWS_MAX][2][16];        /* sums of products so far         */
    float   acc_min[ROWS_MAX][2][16];    /* sums of minima so far           */
    float   x[TILE_ROWS][DI_CPU_K_MAX];  /* activations, for float weights  */
    const char *ahead;                   /* what to prefetch next, up to    */
    const char *ahead_end;               /* and with some lines more        */
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_CPU_SCRATCH, "scratch is too small");

typedef struct {
    scratch_t             *s;
    const di_cpu_matmul_t *a;
    const di_cpu_wpart_t  *part;
    di_q8_format_t         f;
    size_t                 n_blocks;
    const uint8_t         *act;  /* of row r0                               */
    size_t                 act_stride;
    size_t                 r0;   /* rows [r0, r0 + n)                       */
    size_t                 n;
} job_t;

/* Blocks of two panels that lie expanded. */
typedef struct {
    size_t p;                    /* the first of the panels                 */
    size_t n_panels;             /* 1 or 2                                  */
    size_t b0;                   /* blocks [b0, b0 + n)                     */
    size_t n;
    bool   last;                 /* of the panels' pieces                   */
} piece_t;

static const uint8_t *
panel_of(const job_t *j, size_t p)
{
    return j->part->packed + p * j->part->panel_bytes;
}

static const uint8_t *
row_of(const job_t *j, size_t r)
{
    return j->act + r * j->act_stride;
}

/* -- pieces of arithmetic -------------------------------------------------- */

/* Group g of a block's codes, a byte each. */
DI_VEC_INLINE __m512i
group(const uint8_t *block, const size_t g, const unsigned bits)
{
    const __m512i low = _mm512_set1_epi8(15);
    const unsigned at = (unsigned) (bits == 6 ? g % 4 * 2 : g);
    __m512i x, high;

    if (bits == 8)
        return _mm512_loadu_si512(block + g * 64);
    x = _mm512_loadu_si512(block + g / 2 * 64);
    if (g % 2)
        x = _mm512_srli_epi16(x, 4);
    x = _mm512_and_si512(x, low);
    if (bits == 4)
        return x;

    /* The bits above, moved to where they belong: (high & mask) | x. */
    high = _mm512_loadu_si512(block + 256 + (bits == 6 ? g / 4 * 64 : 0));
    high = at < 4 ? _mm512_slli_epi16(high, 4 - at)
                  : _mm512_srli_epi16(high, at - 4);
    return _mm512_ternarylogic_epi32(
        high, _mm512_set1_epi8(bits == 5 ? 0x10 : 0x30), x, 0xea);
}

/* Four activations, from the broadcast of 32 bits. */
DI_VEC_INLINE __m512i
four(const uint8_t *p)
{
    int32_t x;

    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

DI_VEC_INLINE __m512
number(const uint8_t *p)
{
    float x;

    memcpy(&x, p, 4);
    return _mm512_set1_ps(x);
}

/* 16 scales or minima. */
DI_VEC_INLINE __m512
numbers(const uint8_t *p, size_t i, bool f16)
{
    return f16
        ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *) (p + i * 32)))
        : _mm512_loadu_ps(p + i * 64);
}

/* What unit u of a block multiplies its row's sums of 16 with: minus the bias
 * for those that it covers. */
DI_VEC_INLINE __m512i
minus(int bias, const bool half, const size_t u)
{
    int low = -bias & 0xffff, high = (int) ((unsigned) -bias << 16);

    return _mm512_set1_epi32(!half ? low | high : u == 0 ? low : high);
}

/* Where integer sums start: at minus the bias times the sum of activations. */
DI_VEC_INLINE __m512i
start(const uint8_t *halves, __m512i factor, const bool has_bias)
{
    return has_bias ? _mm512_dpwssd_epi32(_mm512_setzero_si512(),
                                          four(halves), factor)
                    : _mm512_setzero_si512();
}

/* Columns of one panel and row to the output. */
DI_VEC_INLINE void
put(const job_t *j, size_t p, size_t r, __m512 v)
{
    const di_cpu_matmul_t *a = j->a;
    size_t col = p * DI_CPU_PANEL, left = j->part->n - col;
    __mmask16 mask = left < 16 ? (__mmask16) ((1u << left) - 1) : 0xffff;
    __m512 bias = _mm512_setzero_ps();

    col += j->part->first;
    if (a->bias)
        bias = _mm512_maskz_loadu_ps(mask, a->bias + col);
    _mm512_mask_storeu_ps(a->out + (j->r0 + r) * a->w->n + col, mask,
                          _mm512_add_ps(v, bias));
}

/* -- few rows -------------------------------------------------------------- */

DI_VEC_INLINE void
few(const job_t *j, size_t p, const size_t rows, const unsigned bits,
    const int bias, const bool half)
{
    const size_t units = half ? 2 : 1, groups = DI_Q8_GROUPS / units;
    const size_t k = j->a->w->k;
    const uint8_t *block = panel_of(j, p), *x[FEW_ROWS];
    __m512 acc[FEW_ROWS], acc_min[FEW_ROWS], d, m;
    __m512i dot[FEW_ROWS], w;

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        x[r] = row_of(j, r);
        acc[r] = acc_min[r] = _mm512_setzero_ps();
    }

    for (size_t b = 0; b < j->n_blocks; b++, block += j->f.block_bytes) {
        UNROLL
        for (size_t u = 0; u < units; u++) {
            UNROLL
            for (size_t r = 0; r < rows; r++)
                dot[r] = start(x[r] + di_q8_halves_at(k) + b * 4,
                               minus(bias, half, u), bias != 0);
            UNROLL
            for (size_t g = u * groups; g < (u + 1) * groups; g++) {
                w = group(block, g, bits);
                UNROLL
                for (size_t r = 0; r < rows; r++)
                    dot[r] = _mm512_dpbusd_epi32(dot[r], w,
                                                 four(x[r] + b * 32 + g * 4));
            }
            d = numbers(block + j->f.scale_at, u, j->f.f16);
            UNROLL
            for (size_t r = 0; r < rows; r++)
                acc[r] = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(dot[r]),
                    _mm512_mul_ps(d, number(x[r] + di_q8_scales_at(k)
                                            + b * 4)), acc[r]);
        }
        if (bias)
            continue;
        m = numbers(block + j->f.min_at, 0, j->f.f16);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            acc_min[r] = _mm512_fmadd_ps(
                number(x[r] + di_q8_sums_at(k) + b * 4), m, acc_min[r]);
    }

    for (size_t r = 0; r < rows; r++)
        put(j, p, r, bias ? acc[r] : _mm512_add_ps(acc[r], acc_min[r]));
}

/* -- many rows ------------------------------------------------------------- */

/* Blocks [b0, b0 + n) of panel p to bytes and floats, as the i-th of two. */
DI_VEC_INLINE void
expand(const job_t *j, size_t p, size_t i, size_t b0, size_t n,
       const unsigned bits)
{
    const uint8_t *block = panel_of(j, p) + b0 * j->f.block_bytes;
    scratch_t *s = j->s;

    for (size_t b = 0; b < n; b++, block += j->f.block_bytes) {
        UNROLL
        for (size_t g = 0; g < DI_Q8_GROUPS; g++)
            _mm512_store_si512(&s->codes[b][i][g * 64],
                               group(block, g, bits));
        for (size_t u = 0; u < (j->f.half ? 2 : 1); u++)
            _mm512_store_ps(s->scales[b][u][i],
                            numbers(block + j->f.scale_at, u, j->f.f16));
        if (j->f.min_at)
            _mm512_store_ps(s->mins[b][i],
                            numbers(block + j->f.min_at, 0, j->f.f16));
    }
}

/* The next n blocks of panels p and p + 1; false: there are no more. */
DI_VEC_INLINE bool
next_piece(const job_t *j, piece_t *c, size_t n)
{
    c->b0 += c->n;
    c->n = j->n_blocks - c->b0 < n ? j->n_blocks - c->b0 : n;
    c->last = c->b0 + c->n == j->n_blocks;
    return c->n > 0;
}

/* Sums of a tile from or to the scratch. */
DI_VEC_INLINE void
load_sums(float (*from)[2][16], __m512 (*acc)[2], bool begin,
          const size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        acc[r][0] = begin ? _mm512_setzero_ps() : _mm512_load_ps(from[r][0]);
        acc[r][1] = begin ? _mm512_setzero_ps() : _mm512_load_ps(from[r][1]);
    }
}

DI_VEC_INLINE void
store_sums(float (*to)[2][16], __m512 (*acc)[2], const size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(to[r][0], acc[r][0]);
        _mm512_store_ps(to[r][1], acc[r][1]);
    }
}

/* Output rows are far apart, and no prefetcher sees what comes next. */
DI_VEC_INLINE void
prefetch_out(const job_t *j, const piece_t *c, size_t r0, const size_t rows)
{
    const size_t n = j->a->w->n;
    const float *out = j->a->out + (j->r0 + r0) * n + j->part->first
                       + c->p * DI_CPU_PANEL;

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        __builtin_prefetch(out + r * n, 1);
        __builtin_prefetch(out + r * n + DI_CPU_PANEL, 1);
    }
}

/* Sums of a tile to the output, behind the last piece, or to the scratch. */
DI_VEC_INLINE void
end_sums(const job_t *j, const piece_t *c, size_t r0, __m512 (*acc)[2],
         const size_t rows, const bool has_mins)
{
    scratch_t *s = j->s;

    if (!c->last) {
        store_sums(&s->acc[r0], acc, rows);
        return;
    }
    UNROLL
    for (size_t i = 0; i < 2; i++) {
        if (i == c->n_panels)
            return;
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            if (has_mins)
                acc[r][i] = _mm512_add_ps(
                    acc[r][i], _mm512_load_ps(s->acc_min[r0 + r][i]));
            put(j, c->p + i, r0 + r, acc[r][i]);
        }
    }
}

/* Sums of minima of a tile. */
DI_VEC_INLINE void
tile_mins(const job_t *j, const piece_t *c, size_t r0, const size_t rows)
{
    const uint8_t *x = row_of(j, r0) + di_q8_sums_at(j->a->w->k) + c->b0 * 4;
    const size_t stride = j->act_stride;
    __m512 acc[TILE_ROWS][2], m0, m1, sum;
    scratch_t *s = j->s;

    load_sums(&s->acc_min[r0], acc, c->b0 == 0, rows);
    for (size_t b = 0; b < c->n; b++, x += 4) {
        m0 = _mm512_load_ps(s->mins[b][0]);
        m1 = _mm512_load_ps(s->mins[b][1]);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            sum = number(x + r * stride);
            acc[r][0] = _mm512_fmadd_ps(sum, m0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(sum, m1, acc[r][1]);
        }
    }
    store_sums(&s->acc_min[r0], acc, rows);
}

/* Lines of what is next, for a block of a tile. */
DI_VEC_INLINE const char *
prefetch_some(const char *ahead, size_t step)
{
    UNROLL
    for (size_t i = 0; i < AHEAD_LINES; i++)
        _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
    return ahead + step;
}

/* Sums of products of a tile; those of minima are there. */
DI_VEC_INLINE void
tile(const job_t *j, const piece_t *c, size_t r0, const size_t rows,
     const bool has_bias, const bool half)
{
    const size_t units = half ? 2 : 1, groups = DI_Q8_GROUPS / units;
    const size_t b0 = c->b0, n = c->n;
    const size_t scales_at = di_q8_scales_at(j->a->w->k);
    const size_t halves_at = di_q8_halves_at(j->a->w->k);
    __m512i dot[TILE_ROWS][2], factor[2], w0, w1, q;
    const uint8_t *row[TILE_ROWS], *codes;
    __m512 acc[TILE_ROWS][2], d0, d1, x;
    scratch_t *s = j->s;
    const char *ahead = s->ahead;
    const size_t step = ahead < s->ahead_end ? AHEAD_LINES * 64 : 0;

    if (c->last)
        prefetch_out(j, c, r0, rows);
    load_sums(&s->acc[r0], acc, b0 == 0, rows);
    factor[0] = minus(j->f.bias, half, 0);
    factor[1] = minus(j->f.bias, half, 1);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        row[r] = row_of(j, r0 + r);

    for (size_t b = 0; b < n; b++) {
        ahead = prefetch_some(ahead, step);
        UNROLL
        for (size_t u = 0; u < units; u++) {
            UNROLL
            for (size_t r = 0; r < rows; r++)
                dot[r][0] = dot[r][1] = start(row[r] + halves_at
                                              + (b0 + b) * 4, factor[u],
                                              has_bias);
            codes = s->codes[b][0];
            UNROLL
            for (size_t g = u * groups; g < (u + 1) * groups; g++) {
                w0 = _mm512_load_si512(codes + g * 64);
                w1 = _mm512_load_si512(codes + sizeof(s->codes[b][0])
                                       + g * 64);
                UNROLL
                for (size_t r = 0; r < rows; r++) {
                    q = four(row[r] + (b0 + b) * 32 + g * 4);
                    dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w0, q);
                    dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], w1, q);
                }
            }
            d0 = _mm512_load_ps(s->scales[b][u][0]);
            d1 = _mm512_load_ps(s->scales[b][u][1]);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = number(row[r] + scales_at + (b0 + b) * 4);
                acc[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][0]),
                                            _mm512_mul_ps(x, d0), acc[r][0]);
                acc[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][1]),
                                            _mm512_mul_ps(x, d1), acc[r][1]);
            }
        }
    }
    end_sums(j, c, r0, acc, rows, !has_bias);
    s->ahead = ahead;
}

#define TILE(rows)                                                          \
    do {                                                                    \
        if (!has_bias)                                                      \
            tile_mins(j, c, r, rows);                                       \
        tile(j, c, r, rows, has_bias, half);                                \
        r += rows;                                                          \
    } while (0)

/* All rows for what lies expanded. */
DI_VEC_INLINE void
tiles(const job_t *j, const piece_t *c, const bool has_bias, const bool half)
{
    size_t r = 0;

    while (r + 6 <= j->n)
        TILE(6);
    if (r + 4 <= j->n)
        TILE(4);
    if (r + 2 <= j->n)
        TILE(2);
    if (r < j->n)
        TILE(1);
}

static void
tiles_unsigned(const job_t *j, const piece_t *c)
{
    tiles(j, c, false, false);
}

static void
tiles_signed(const job_t *j, const piece_t *c)
{
    tiles(j, c, true, false);
}

static void
tiles_half(const job_t *j, const piece_t *c)
{
    tiles(j, c, true, true);
}

/* Panels p and p + 1; of the latter, if there is none, whatever lies in the
 * scratch is multiplied, and left there. */
DI_VEC_INLINE void
many(const job_t *j, size_t p, size_t n_panels, const unsigned bits)
{
    piece_t c = { .p = p, .n_panels = n_panels };
    scratch_t *s = j->s;

    s->ahead = (const char *) panel_of(j, p + 2);
    s->ahead_end = s->ahead + 2 * j->part->panel_bytes;
    while (next_piece(j, &c, PIECE)) {
        for (size_t i = 0; i < n_panels; i++)
            expand(j, p + i, i, c.b0, c.n, bits);
        if (j->f.half)
            tiles_half(j, &c);
        else if (j->f.bias)
            tiles_signed(j, &c);
        else
            tiles_unsigned(j, &c);
    }
}

/* -- float weights --------------------------------------------------------- */

DI_VEC_INLINE __m512
bf16_floats(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(
        _mm256_loadu_si256((const void *) p)), 16));
}

DI_VEC_INLINE __m512
plain_numbers(const uint8_t *p, size_t i, di_wtype_t type)
{
    if (type != DI_W_BF16)
        return numbers(p, i, type == DI_W_F16);
    return bf16_floats(p + i * 32);
}

/* A panel for a tile of rows whose values are in s->x: each block's sum is a
 * chain over its values, then scaled (mx: they have no scales) and added. */
DI_VEC_INLINE void
plain(const job_t *j, size_t p, size_t r0, const size_t rows,
      const di_wtype_t type, const bool mx)
{
    const uint8_t *block = panel_of(j, p);
    const size_t scales_at = di_q8_scales_at(j->a->w->k);
    __m512 acc[TILE_ROWS], sum[TILE_ROWS], w;
    scratch_t *s = j->s;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < j->n_blocks; b++, block += j->f.block_bytes) {
        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] = _mm512_setzero_ps();
        for (size_t i = 0; i < DI_WBLOCK; i++) {
            w = plain_numbers(block, i, type);
            UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r] = _mm512_fmadd_ps(
                    w, _mm512_set1_ps(s->x[r][b * DI_WBLOCK + i]), sum[r]);
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            acc[r] = mx ? _mm512_add_ps(acc[r], sum[r])
                        : _mm512_fmadd_ps(
                              sum[r], number(row_of(j, r0 + r) + scales_at
                                             + b * 4), acc[r]);
    }
    for (size_t r = 0; r < rows; r++)
        put(j, p, r0 + r, acc[r]);
}

/* High and low parts of the rows' values, added. */
static void
spread_mx(const job_t *j, size_t r0, size_t rows)
{
    const size_t k = j->a->w->k;
    const uint8_t *x;

    for (size_t r = 0; r < rows; r++) {
        x = row_of(j, r0 + r);
        for (size_t i = 0; i < k; i += 16)
            _mm512_store_ps(&j->s->x[r][i], _mm512_add_ps(
                bf16_floats(x + di_mx_high_at(k) + i * 2),
                bf16_floats(x + di_mx_low_at(k) + i * 2)));
    }
}

static void
spread_q8(const job_t *j, size_t r0, size_t rows)
{
    const uint8_t *x;

    for (size_t r = 0; r < rows; r++) {
        x = row_of(j, r0 + r);
        for (size_t i = 0; i < j->a->w->k; i += 16)
            _mm512_store_ps(&j->s->x[r][i], _mm512_cvtepi32_ps(
                _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)
                                                     (x + i)))));
    }
}

#define PLAIN(rows)                                                         \
    case rows:                                                              \
        for (size_t p = p0; p < p1; p++)                                    \
            plain(j, p, r, rows, type, mx);                                 \
        break

DI_VEC_INLINE void
panels_plain(const job_t *j, size_t p0, size_t p1, const di_wtype_t type,
             const bool mx)
{
    for (size_t r = 0; r < j->n; r += TILE_ROWS) {
        (mx ? spread_mx : spread_q8)(j, r, j->n - r < TILE_ROWS ? j->n - r
                                                                : TILE_ROWS);
        switch (j->n - r) {
        PLAIN(1);
        PLAIN(2);
        PLAIN(3);
        PLAIN(4);
        PLAIN(5);
        default:
        PLAIN(6);
        }
    }
}

/* -- panels ---------------------------------------------------------------- */

#define FEW(rows)                                                           \
    case rows:                                                              \
        for (size_t p = p0; p < p1; p++)                                    \
            few(j, p, rows, bits, bias, half);                              \
        break

DI_VEC_INLINE void
panels(const job_t *j, size_t p0, size_t p1, const unsigned bits,
       const int bias, const bool half)
{
    switch (j->n) {
    FEW(1);
    FEW(2);
    FEW(3);
    FEW(4);
    default:
        for (size_t p = p0; p < p1; p += 2)
            many(j, p, p1 - p < 2 ? 1 : 2, bits);
    }
}

DI_VEC_INLINE void
matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
       size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = di_q8_format(part->type),
                .n_blocks = a->w->k / DI_WBLOCK,
                .act_stride = a->act_stride };

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        j.act = a->act + j.r0 * a->act_stride;
        switch (part->type) {
        case DI_W_F32:  panels_plain(&j, p0, p1, DI_W_F32, false); break;
        case DI_W_F16:  panels_plain(&j, p0, p1, DI_W_F16, false); break;
        case DI_W_BF16: panels_plain(&j, p0, p1, DI_W_BF16, false); break;
        case DI_W_Q4_0: panels(&j, p0, p1, 4, 8, false); break;
        case DI_W_Q4_1:
        case DI_W_Q4_K: panels(&j, p0, p1, 4, 0, false); break;
        case DI_W_Q5_0: panels(&j, p0, p1, 5, 16, false); break;
        case DI_W_Q5_1:
        case DI_W_Q5_K: panels(&j, p0, p1, 5, 0, false); break;
        case DI_W_Q6_K: panels(&j, p0, p1, 6, 32, true); break;
        case DI_W_Q8_0: panels(&j, p0, p1, 8, 128, false); break;
        default:        break;   /* not of this arithmetic          */
        }
    }
}

#endif

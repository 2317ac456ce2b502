/*
 * matmul_q8_256.h - matrix product of DI_ARITH_Q8 on 256-bit registers, with
 * AVX-VNNI or with AVX2 alone.
 *
 * The layout of q8.h, a panel's 16 columns as two halves of 8.  AVX-VNNI has
 * one instruction for a group's products.  AVX2 adds them by twos to 16 bits
 * (VPMADDUBSW), where so many groups fit as their codes are narrow: all 8 of
 * a block at 4 bits, 4 at 5, 2 at 6; then to 32 bits.  Codes of 8 bits would
 * not fit even once (255 * 127 * 2): they are taken as magnitudes, and the
 * activations get their signs, which fits (128 * 127 * 2).
 *
 * Few rows read the packed codes, more rows a piece of a panel that has been
 * expanded to bytes.  Either way a tile of up to 4 rows uses each load of
 * weights.  All do the same operations in the same order as the reference:
 * the results have its bits.
 */

#ifndef DI_CPU_MATMUL_Q8_256_H
#define DI_CPU_MATMUL_Q8_256_H

#include "mx.h"
#include "q8.h"

#include <immintrin.h>
#include <string.h>

#ifdef __AVXVNNI__
#define VNNI 1
#else
#define VNNI 0
#endif

#define INLINE     static inline __attribute__((always_inline))
#define UNROLL     _Pragma("GCC unroll 8")
#define UNROLL32   _Pragma("GCC unroll 32")
/* The value is made here: without it a compiler makes all products of a
 * block first and adds them later, from the stack. */
#define HOLD(v)    __asm__ ("" : "+x" (v))
#define TILE_ROWS  4
#define AHEAD      2048          /* bytes of weights that are asked for
                                  * before they are read                    */
#define PIECE      32            /* blocks of an expanded piece             */
#define ROWS_MAX   64            /* rows between two pieces: few pages of
                                  * output, see matmul_q8_avx512.c          */

typedef struct {
    _Alignas(64) uint8_t codes[PIECE][DI_Q8_GROUPS * 64];
    float scales[PIECE][2][16];          /* of unit                         */
    float mins[PIECE][16];
    float acc[ROWS_MAX][16];             /* sums of products so far         */
    float acc_min[ROWS_MAX][16];         /* sums of minima so far           */
    float x[TILE_ROWS][DI_CPU_K_MAX];    /* activations for float weights   */
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_CPU_SCRATCH, "scratch is too small");

typedef struct {
    scratch_t             *s;
    const di_cpu_matmul_t *a;
    const di_cpu_wpart_t  *part;
    di_q8_format_t         f;
    size_t                 n_blocks;
    size_t                 r0;   /* rows [r0, r0 + n)                       */
    size_t                 n;
} job_t;

/* What the code is made for, all constant. */
typedef struct {
    unsigned bits;
    bool     has_bias;           /* sums may have to begin at minus a bias  */
    bool     half;               /* a scale per 16 values                   */
    bool     packed;             /* read packed blocks, not the piece       */
} kind_t;

static const uint8_t *
row_of(const job_t *j, size_t r)
{
    return j->a->act + (j->r0 + r) * j->a->act_stride;
}

/* -- pieces of arithmetic -------------------------------------------------- */

INLINE __m256i
load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *) p);
}

/* Half h of group g of a packed block, a byte for each code. */
INLINE __m256i
group(const uint8_t *block, const size_t g, const size_t h,
      const unsigned bits)
{
    const unsigned at = (unsigned) (bits == 6 ? g % 4 * 2 : g);
    __m256i x, high;

    if (bits == 8) {
        x = load(block + g * 64 + h * 32);
        return VNNI ? x : _mm256_xor_si256(x, _mm256_set1_epi8((char) 0x80));
    }
    x = load(block + g / 2 * 64 + h * 32);
    if (g % 2)
        x = _mm256_srli_epi16(x, 4);
    x = _mm256_and_si256(x, _mm256_set1_epi8(15));
    if (bits == 4)
        return x;

    high = load(block + 256 + (bits == 6 ? g / 4 * 64 : 0) + h * 32);
    high = at < 4 ? _mm256_slli_epi16(high, (int) (4 - at))
                  : _mm256_srli_epi16(high, (int) (at - 4));
    high = _mm256_and_si256(high, _mm256_set1_epi8(bits == 5 ? 0x10 : 0x30));
    return _mm256_or_si256(x, high);
}

INLINE __m256i
four(const uint8_t *p)
{
    int32_t x;

    memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}

INLINE __m256
number(const uint8_t *p)
{
    float x;

    memcpy(&x, p, 4);
    return _mm256_set1_ps(x);
}

/* Half h of 16 scales or minima, the i-th such. */
INLINE __m256
numbers(const uint8_t *p, size_t i, size_t h, bool f16)
{
    p += i * (f16 ? 32 : 64) + h * (f16 ? 16 : 32);
    return f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const void *) p))
               : _mm256_loadu_ps((const float *) (const void *) p);
}

/* What unit u of a block multiplies its row's sums of 16 with: minus the bias
 * for those that it covers. */
INLINE __m256i
minus(int bias, const bool half, const size_t u)
{
    int low = -bias & 0xffff, high = (int) ((unsigned) -bias << 16);

    return _mm256_set1_epi32(!half ? low | high : u == 0 ? low : high);
}

/* Products of codes and activations, added by twos in 16 bits. */
INLINE __m256i
twos(__m256i w, __m256i x, const unsigned bits)
{
    if (bits == 8)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w),
                                    _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* Groups whose products fit into 16 bits: 2^(bits - 1) * 127 * 2 each. */
INLINE size_t
span_of(const unsigned bits)
{
    return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

/* -- tiles ----------------------------------------------------------------- */

/* Have n bytes come nearer.  Panels follow each other; asking for what lies
 * behind the last one is harmless. */
INLINE void
ask(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *) p + i, _MM_HINT_T0);
}

INLINE void
load_sums(float (*from)[16], __m256 (*acc)[2], bool begin, const size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        acc[r][0] = begin ? _mm256_setzero_ps() : _mm256_load_ps(from[r]);
        acc[r][1] = begin ? _mm256_setzero_ps() : _mm256_load_ps(from[r] + 8);
    }
}

INLINE void
store_sums(float (*to)[16], __m256 (*acc)[2], const size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        _mm256_store_ps(to[r], acc[r][0]);
        _mm256_store_ps(to[r] + 8, acc[r][1]);
    }
}

/* Integer sums of unit u of block b of the piece, which is the row's block
 * at. */
INLINE void
dots(const job_t *j, const uint8_t *const *row, const uint8_t *block,
     size_t b, size_t at, const size_t u, __m256i (*dot)[2],
     const size_t rows, const kind_t k)
{
    const size_t groups = k.half ? DI_Q8_GROUPS / 2 : DI_Q8_GROUPS;
    const size_t span = VNNI ? groups : span_of(k.bits);
    const size_t halves_at = di_q8_halves_at(j->a->w->k);
    const uint8_t *codes = j->s->codes[b];
    __m256i factor = minus(j->f.bias, k.half, u), sum[TILE_ROWS][2], w, q;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        dot[r][0] = dot[r][1] = k.has_bias
            ? _mm256_madd_epi16(four(row[r] + halves_at + at * 4), factor)
            : _mm256_setzero_si256();

    UNROLL
    for (size_t c = 0; c < groups / span; c++) {
        UNROLL
        for (size_t i = 0; i < span; i++) {
            const size_t g = u * groups + c * span + i;

            UNROLL
            for (size_t h = 0; h < 2; h++) {
                w = k.packed ? group(block, g, h, k.bits)
                             : load(codes + g * 64 + h * 32);
                UNROLL
                for (size_t r = 0; r < rows; r++) {
                    q = four(row[r] + at * 32 + g * 4);
#if VNNI
                    (void) sum;
                    dot[r][h] = _mm256_dpbusd_avx_epi32(dot[r][h], w, q);
#else
                    q = twos(w, q, k.bits);
                    sum[r][h] = i == 0 ? q : _mm256_add_epi16(sum[r][h], q);
                    HOLD(sum[r][h]);
#endif
                }
            }
        }
#if !VNNI
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            UNROLL
            for (size_t h = 0; h < 2; h++)
                dot[r][h] = _mm256_add_epi32(
                    dot[r][h],
                    _mm256_madd_epi16(sum[r][h], _mm256_set1_epi16(1)));
        }
#endif
    }
}

/* Sums of products of a tile: n blocks from block b0 of panel on. */
INLINE void
tile(const job_t *j, const uint8_t *panel, size_t r0, size_t b0, size_t n,
     const size_t rows, const kind_t k)
{
    const size_t scales_at = di_q8_scales_at(j->a->w->k);
    const size_t units = k.half ? 2 : 1;
    const uint8_t *row[TILE_ROWS], *block = panel + b0 * j->f.block_bytes;
    __m256 acc[TILE_ROWS][2], d[2], x;
    scratch_t *s = j->s;
    __m256i dot[TILE_ROWS][2];

    load_sums(&s->acc[r0], acc, b0 == 0, rows);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        row[r] = row_of(j, r0 + r);

    for (size_t b = 0; b < n; b++, block += j->f.block_bytes) {
        if (k.packed)
            ask(block + AHEAD, j->f.block_bytes);
        UNROLL
        for (size_t u = 0; u < units; u++) {
            dots(j, row, block, b, b0 + b, u, dot, rows, k);
            UNROLL
            for (size_t h = 0; h < 2; h++)
                d[h] = k.packed ? numbers(block + j->f.scale_at, u, h,
                                          j->f.f16)
                                : _mm256_load_ps(&s->scales[b][u][h * 8]);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = number(row[r] + scales_at + (b0 + b) * 4);
                UNROLL
                for (size_t h = 0; h < 2; h++)
                    acc[r][h] = _mm256_fmadd_ps(
                        _mm256_cvtepi32_ps(dot[r][h]),
                        _mm256_mul_ps(x, d[h]), acc[r][h]);
            }
        }
    }
    store_sums(&s->acc[r0], acc, rows);
}

/* Sums of minima of a tile. */
INLINE void
tile_mins(const job_t *j, const uint8_t *panel, size_t r0, size_t b0,
          size_t n, const size_t rows, const kind_t k)
{
    const uint8_t *x = row_of(j, r0) + di_q8_sums_at(j->a->w->k) + b0 * 4;
    const uint8_t *min = panel + b0 * j->f.block_bytes + j->f.min_at;
    const size_t stride = j->a->act_stride;
    __m256 acc[TILE_ROWS][2], m[2];
    scratch_t *s = j->s;

    load_sums(&s->acc_min[r0], acc, b0 == 0, rows);
    for (size_t b = 0; b < n; b++, x += 4, min += j->f.block_bytes) {
        UNROLL
        for (size_t h = 0; h < 2; h++)
            m[h] = k.packed ? numbers(min, 0, h, j->f.f16)
                            : _mm256_load_ps(&s->mins[b][h * 8]);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            UNROLL
            for (size_t h = 0; h < 2; h++)
                acc[r][h] = _mm256_fmadd_ps(number(x + r * stride), m[h],
                                            acc[r][h]);
        }
    }
    store_sums(&s->acc_min[r0], acc, rows);
}

#define TILE(rows)                                                          \
    do {                                                                    \
        tile(j, panel, r, b0, n, rows, k);                                  \
        if (j->f.min_at)                                                    \
            tile_mins(j, panel, r, b0, n, rows, k);                         \
        r += rows;                                                          \
    } while (0)

/* All rows for the n blocks from b0 on. */
INLINE void
tiles(const job_t *j, const uint8_t *panel, size_t b0, size_t n,
      const kind_t k)
{
    size_t r = 0;

    while (r + 4 <= j->n)
        TILE(4);
    if (r + 2 <= j->n)
        TILE(2);
    if (r < j->n)
        TILE(1);
}

/* -- panels ---------------------------------------------------------------- */

/* Columns of one panel and row to the output. */
INLINE void
put(const job_t *j, size_t p, size_t r, const __m256 *v)
{
    const di_cpu_matmul_t *a = j->a;
    size_t col = p * DI_CPU_PANEL, left = j->part->n - col;
    float bias[16] = { 0 }, value[16], *out;

    col += j->part->first;
    left = left < 16 ? left : 16;
    out = a->out + (j->r0 + r) * a->w->n + col;
    if (a->bias)
        memcpy(bias, a->bias + col, left * sizeof(*bias));
    _mm256_storeu_ps(value, _mm256_add_ps(v[0], _mm256_loadu_ps(bias)));
    _mm256_storeu_ps(value + 8,
                     _mm256_add_ps(v[1], _mm256_loadu_ps(bias + 8)));
    memcpy(out, value, left * sizeof(*out));
}

INLINE void
expand(const job_t *j, const uint8_t *block, size_t n, const unsigned bits)
{
    scratch_t *s = j->s;

    for (size_t b = 0; b < n; b++, block += j->f.block_bytes) {
        for (size_t h = 0; h < 2; h++) {
            UNROLL
            for (size_t g = 0; g < DI_Q8_GROUPS; g++)
                _mm256_store_si256((void *) &s->codes[b][g * 64 + h * 32],
                                   group(block, g, h, bits));
            for (size_t u = 0; u < (j->f.half ? 2 : 1); u++)
                _mm256_store_ps(&s->scales[b][u][h * 8],
                                numbers(block + j->f.scale_at, u, h,
                                        j->f.f16));
            if (j->f.min_at)
                _mm256_store_ps(&s->mins[b][h * 8],
                                numbers(block + j->f.min_at, 0, h,
                                        j->f.f16));
        }
    }
}

INLINE void
panel_codes(const job_t *j, size_t p, const unsigned bits,
            const bool has_bias, const bool half)
{
    const kind_t packed = { bits, has_bias, half, true };
    const kind_t bytes = { bits, has_bias, half, false };
    const uint8_t *panel = j->part->packed + p * j->part->panel_bytes;
    scratch_t *s = j->s;
    __m256 v[2];
    size_t n;

    if (j->n <= TILE_ROWS) {
        tiles(j, panel, 0, j->n_blocks, packed);
    } else {
        for (size_t b = 0; b < j->n_blocks; b += PIECE) {
            n = j->n_blocks - b < PIECE ? j->n_blocks - b : PIECE;
            expand(j, panel + b * j->f.block_bytes, n, bits);
            tiles(j, panel, b, n, bytes);
        }
    }
    for (size_t r = 0; r < j->n; r++) {
        for (size_t h = 0; h < 2; h++) {
            v[h] = _mm256_load_ps(s->acc[r] + h * 8);
            if (j->f.min_at)
                v[h] = _mm256_add_ps(v[h],
                                     _mm256_load_ps(s->acc_min[r] + h * 8));
        }
        put(j, p, r, v);
    }
}

INLINE void
panels(const job_t *j, size_t p0, size_t p1, const unsigned bits,
       const bool has_bias, const bool half)
{
    for (size_t p = p0; p < p1; p++)
        panel_codes(j, p, bits, has_bias, half);
}

/* -- float weights --------------------------------------------------------- */

/* 8 values of bfloat16. */
INLINE __m256
bf16_floats(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(
        _mm_loadu_si128((const void *) p)), 16));
}

INLINE __m256
plain_numbers(const uint8_t *p, size_t i, size_t h, di_wtype_t type)
{
    if (type != DI_W_BF16)
        return numbers(p, i, h, type == DI_W_F16);
    return bf16_floats(p + i * 32 + h * 16);
}

/* A panel for a tile of rows whose values are in s->x: each block's sum is a
 * chain over its values, then scaled (mx: they have no scales) and added. */
INLINE void
plain(const job_t *j, size_t p, size_t r0, const size_t rows,
      const di_wtype_t type, const bool mx)
{
    const uint8_t *block = j->part->packed + p * j->part->panel_bytes;
    const size_t scales_at = di_q8_scales_at(j->a->w->k);
    __m256 acc[TILE_ROWS][2], sum[TILE_ROWS][2], w[2], x;
    scratch_t *s = j->s;

    load_sums(NULL, acc, true, rows);
    for (size_t b = 0; b < j->n_blocks; b++, block += j->f.block_bytes) {
        load_sums(NULL, sum, true, rows);
        for (size_t i = 0; i < DI_WBLOCK; i++) {
            w[0] = plain_numbers(block, i, 0, type);
            w[1] = plain_numbers(block, i, 1, type);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = _mm256_set1_ps(s->x[r][b * DI_WBLOCK + i]);
                sum[r][0] = _mm256_fmadd_ps(w[0], x, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(w[1], x, sum[r][1]);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            x = mx ? _mm256_set1_ps(1.0f)
                   : number(row_of(j, r0 + r) + scales_at + b * 4);
            acc[r][0] = _mm256_fmadd_ps(sum[r][0], x, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(sum[r][1], x, acc[r][1]);
        }
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
        for (size_t i = 0; i < k; i += 8)
            _mm256_store_ps(&j->s->x[r][i], _mm256_add_ps(
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
        for (size_t i = 0; i < j->a->w->k; i += 8)
            _mm256_store_ps(&j->s->x[r][i], _mm256_cvtepi32_ps(
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)
                                                     (x + i)))));
    }
}

#define PLAIN(rows)                                                         \
    do {                                                                    \
        (mx ? spread_mx : spread_q8)(j, r, rows);                           \
        for (size_t p = p0; p < p1; p++)                                    \
            plain(j, p, r, rows, type, mx);                                 \
        r += rows;                                                          \
    } while (0)

INLINE void
panels_plain(const job_t *j, size_t p0, size_t p1, const di_wtype_t type,
             const bool mx)
{
    size_t r = 0;

    while (r + 4 <= j->n)
        PLAIN(4);
    if (r + 2 <= j->n)
        PLAIN(2);
    if (r < j->n)
        PLAIN(1);
}

/* -- entry ----------------------------------------------------------------- */

INLINE void
matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
       size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = di_q8_format(part->type),
                .n_blocks = a->w->k / DI_WBLOCK };

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        switch (part->type) {
        case DI_W_F32:  panels_plain(&j, p0, p1, DI_W_F32, false); break;
        case DI_W_F16:  panels_plain(&j, p0, p1, DI_W_F16, false); break;
        case DI_W_BF16: panels_plain(&j, p0, p1, DI_W_BF16, false); break;
        case DI_W_Q4_0: panels(&j, p0, p1, 4, true, false); break;
        case DI_W_Q4_1:
        case DI_W_Q4_K: panels(&j, p0, p1, 4, false, false); break;
        case DI_W_Q5_0:
        case DI_W_Q5_1:
        case DI_W_Q5_K: panels(&j, p0, p1, 5, true, false); break;
        case DI_W_Q6_K: panels(&j, p0, p1, 6, true, true); break;
        case DI_W_Q8_0: panels(&j, p0, p1, 8, VNNI, false); break;
        default:        break;   /* not of this arithmetic          */
        }
    }
}

#endif

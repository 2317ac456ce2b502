/*
 * matmul_mx_256.h - matrix product of DI_ARITH_MX on 256-bit registers: E2M1
 * and E4M3 weights from rows as they lie in the file, and float weights.
 *
 * 16 rows (a panel) are expanded a piece at a time to scratch memory that
 * stays in the first-level cache, in the layout that the products want: the
 * values of 16 rows next to each other.  That takes a transposition, which
 * costs less than a second copy of a model of hundreds of gigabytes.
 *
 * Values become float32: shifted to their place in the bits of one, with an
 * exponent 120 (E4M3) or 126 (E2M1) too small.  Powers of two put that right:
 * one in the activations, one in a block's sum.  Subnormal values are
 * subnormal floats, products with which are not, so that the bits are those
 * of the reference.  Few rows use the floats where they are made, more rows
 * an expanded piece.  A block's sum is one chain of FMAs, the second of each
 * pair first; halves of a panel, rows, and blocks are summed side by side to
 * hide its latency.
 *
 * Rows lie powers of two apart, so that some lines of 16 rows may not be in
 * the first-level cache at once: a piece is first copied, line by line.  The
 * next panel's is prefetched meanwhile, since 16 rows at a time are more
 * streams than the hardware follows.
 */

#ifndef DI_CPU_MATMUL_MX_256_H
#define DI_CPU_MATMUL_MX_256_H

#include "matmul_q8_256.h"

#define MICRO_VALUES 256         /* of each row in a piece                  */
#define MICRO_BLOCKS (MICRO_VALUES / DI_WBLOCK)
#define MICRO_PANELS 8           /* that use a piece of the activations     */
#define X_FACTOR     0x1p60f     /* of the activations; of sums, what the   */
#define E4M3_FACTOR  0x1p60f     /* exponents are too small by beyond that  */
#define E2M1_FACTOR  0x1p66f

typedef struct {
    _Alignas(64) float w[MICRO_VALUES][16];
    float scales[MICRO_BLOCKS][16];
    float acc[MICRO_PANELS][ROWS_MAX][16];   /* sums of products so far     */
    float x[ROWS_MAX][MICRO_VALUES];         /* activations of the piece,
                                              * times X_FACTOR              */
} micro_t;

_Static_assert(sizeof(micro_t) <= DI_CPU_SCRATCH, "scratch is too small");

/* A piece of 16 rows as they are in the file. */
typedef struct {
    _Alignas(64) uint8_t row[DI_CPU_PANEL][MICRO_VALUES];
} stage_t;

/* -- rows and scales ------------------------------------------------------- */

/* Where the i-th row of a panel lies: behind the last row, the last. */
INLINE size_t
micro_row(const job_t *j, size_t p, size_t i)
{
    size_t row = p * DI_CPU_PANEL + i;

    return row < j->part->n ? row : j->part->n - 1;
}

INLINE const uint8_t *
micro_data(const job_t *j, size_t p, size_t i)
{
    return (const uint8_t *) j->part->data
           + micro_row(j, p, i) * j->part->row_bytes;
}

INLINE const uint8_t *
micro_scales(const job_t *j, size_t p, size_t i)
{
    size_t row = micro_row(j, p, i);

    row = j->part->type == DI_W_E4M3_B32 ? row / 32 : row;
    return (const uint8_t *) j->part->scales + row * j->n_blocks;
}

/* n bytes of each row of a panel, from byte at on: a multiple of 16. */
INLINE void
micro_stage(const job_t *j, size_t p, size_t at, size_t n, stage_t *to)
{
    size_t ahead = DI_CPU_PANEL * j->part->row_bytes;
    const uint8_t *from;

    for (size_t i = 0; i < DI_CPU_PANEL; i++) {
        from = micro_data(j, p, i) + at;
        for (size_t b = 0; b < n; b += 64)
            _mm_prefetch((const char *) from + ahead + b, _MM_HINT_T1);
        for (size_t b = 0; b < n; b += 16)
            _mm_store_si128((void *) &to->row[i][b],
                            _mm_loadu_si128((const void *) (from + b)));
    }
}

/* 8 rows of 8 dwords to columns. */
INLINE void
transpose8(__m256 *v)
{
    __m256 t[8];

    UNROLL
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL
    for (size_t i = 0; i < 8; i += 4) {
        v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    memcpy(v, t, sizeof(t));
}

/* 2^(b - 127) for 8 bytes b. */
INLINE __m256
micro_powers(uint64_t bytes)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) bytes));
    __m256i odd = _mm256_or_si256(
        _mm256_cmpeq_epi32(b, _mm256_setzero_si256()),
        _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)));

    odd = _mm256_and_si256(odd, _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_slli_epi32(b, 23), odd));
}

/* Scales of n blocks from b0 on, of 16 rows. */
INLINE void
micro_expand_scales(const job_t *j, size_t p, size_t b0, size_t n,
                    float (*to)[16])
{
    const uint8_t *from;
    uint64_t bytes;
    __m256 v[8];
    size_t m;

    for (size_t b = 0; b < n; b += 8) {
        m = n - b < 8 ? n - b : 8;
        for (size_t h = 0; h < 2; h++) {
            UNROLL
            for (size_t i = 0; i < 8; i++) {
                from = micro_scales(j, p, h * 8 + i) + b0 + b;
                bytes = 0;
                if (m == 8)          /* a load, not a call                  */
                    memcpy(&bytes, from, 8);
                else
                    memcpy(&bytes, from, m);
                v[i] = micro_powers(bytes);
            }
            transpose8(v);
            for (size_t i = 0; i < m; i++)
                _mm256_store_ps(to[b + i] + h * 8, v[i]);
        }
    }
}

/* 16 bytes of each of 8 rows, rows i and i + 4 in a register. */
INLINE __m256i
micro_load(const stage_t *rows, size_t i, size_t at)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_load_si128((const void *)
                                              &rows->row[i][at])),
        _mm_load_si128((const void *) &rows->row[i + 4][at]), 1);
}

/* Those to columns: dwords of 8 rows. */
INLINE void
transpose4(__m256i *v)
{
    __m256i t[4];

    t[0] = _mm256_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm256_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm256_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm256_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm256_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm256_unpackhi_epi64(t[1], t[3]);
}

/* -- values ---------------------------------------------------------------- */

/* Byte i of 8 dwords as float32, times 2^-120. */
INLINE __m256
e4m3_floats(__m256i x, const size_t i)
{
    if (i < 3)
        x = _mm256_slli_epi32(x, (int) (24 - 8 * i));
    return _mm256_castsi256_ps(_mm256_and_si256(
        _mm256_srai_epi32(x, 4), _mm256_set1_epi32((int) 0x87f00000u)));
}

/* Code i of 8 dwords as float32, times 2^-126. */
INLINE __m256
e2m1_floats(__m256i x, const size_t i)
{
    if (i < 7)
        x = _mm256_slli_epi32(x, (int) (28 - 4 * i));
    return _mm256_castsi256_ps(_mm256_and_si256(
        _mm256_srai_epi32(x, 6), _mm256_set1_epi32((int) 0x81c00000u)));
}

INLINE __m256
micro_floats(__m256i x, const size_t i, const bool e2m1)
{
    return e2m1 ? e2m1_floats(x, i) : e4m3_floats(x, i);
}

/* micro_stage(), and is there a NaN among the bytes?  e4m3_floats() makes 480
 * of it. */
INLINE bool
e4m3_stage(const job_t *j, size_t p, size_t at, size_t n, stage_t *to)
{
    const __m256i sign = _mm256_set1_epi8((char) 0x80);
    const __m256i ones = _mm256_set1_epi8((char) 0xff);
    size_t ahead = DI_CPU_PANEL * j->part->row_bytes;
    __m256i nan = _mm256_setzero_si256(), x;
    const uint8_t *from;

    for (size_t i = 0; i < DI_CPU_PANEL; i++) {
        from = micro_data(j, p, i) + at;
        for (size_t b = 0; b < n; b += 64)
            _mm_prefetch((const char *) from + ahead + b, _MM_HINT_T1);
        for (size_t b = 0; b < n; b += 32) {
            x = load(from + b);
            _mm256_store_si256((void *) &to->row[i][b], x);
            x = _mm256_cmpeq_epi8(_mm256_or_si256(x, sign), ones);
            nan = _mm256_or_si256(nan, x);
        }
    }
    return !_mm256_testz_si256(nan, nan);
}

static __attribute__((noinline)) void
e4m3_put_nans(const stage_t *rows, size_t n, float (*to)[16])
{
    for (size_t c = 0; c < DI_CPU_PANEL; c++)
        for (size_t i = 0; i < n; i++)
            if ((rows->row[c][i] & 0x7f) == 0x7f)
                to[i][c] = __builtin_nanf("");
}

/* Values of a dword, and bytes of a block. */
#define DWORD(e2m1)       ((e2m1) ? (size_t) 8 : (size_t) 4)
#define BLOCK_BYTES(e2m1) (DI_WBLOCK * 4 / DWORD(e2m1))

/* A piece as it lies in the file; is there a NaN in it? */
INLINE bool
micro_fetch(const job_t *j, size_t p, size_t b0, size_t n, stage_t *to,
            const bool e2m1)
{
    const size_t bytes = BLOCK_BYTES(e2m1);

    if (!e2m1)
        return e4m3_stage(j, p, b0 * bytes, n * bytes, to);
    micro_stage(j, p, b0 * bytes, n * bytes, to);
    return false;
}

INLINE void
micro_expand(const job_t *j, size_t p, size_t b0, size_t n, const bool e2m1)
{
    const size_t per = DWORD(e2m1), bytes = n * BLOCK_BYTES(e2m1);
    micro_t *s = (micro_t *) (void *) j->s;
    __m256i v[4];
    stage_t rows;
    bool has_nan = micro_fetch(j, p, b0, n, &rows, e2m1);

    for (size_t at = 0; at < bytes; at += 16) {
        for (size_t h = 0; h < 2; h++) {
            UNROLL
            for (size_t i = 0; i < 4; i++)
                v[i] = micro_load(&rows, h * 8 + i, at);
            transpose4(v);
            UNROLL32
            for (size_t i = 0; i < 4 * per; i++)
                _mm256_store_ps(&s->w[at / 4 * per + i][h * 8],
                                micro_floats(v[i / per], i % per, e2m1));
        }
    }
    if (has_nan)
        e4m3_put_nans(&rows, bytes, s->w);
    micro_expand_scales(j, p, b0, n, s->scales);
}

/* Scale a block's sums and add them to acc. */
INLINE void
micro_add(const job_t *j, float (*acc)[16], size_t r0, size_t b,
          __m256 (*sum)[2], const size_t rows, const bool e2m1)
{
    const __m256 factor = _mm256_set1_ps(e2m1 ? E2M1_FACTOR : E4M3_FACTOR);
    micro_t *s = (micro_t *) (void *) j->s;
    __m256 v;

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            v = _mm256_fmadd_ps(_mm256_mul_ps(sum[r][h], factor),
                                _mm256_load_ps(s->scales[b] + h * 8),
                                _mm256_load_ps(acc[r0 + r] + h * 8));
            _mm256_store_ps(acc[r0 + r] + h * 8, v);
        }
    }
}

/* The expanded piece of n blocks for a tile of rows. */
INLINE void
micro_tile(const job_t *j, float (*acc)[16], size_t r0, size_t n,
           const size_t rows, const bool e2m1)
{
    micro_t *s = (micro_t *) (void *) j->s;
    const float *w, *x;
    __m256 sum[6][2], v[2], xi;

    for (size_t b = 0; b < n; b++) {
        load_sums(NULL, sum, true, rows);
        for (size_t k = b * DI_WBLOCK; k < (b + 1) * DI_WBLOCK; k++) {
            w = s->w[k ^ 1];
            x = s->x[r0] + (k ^ 1);
            v[0] = _mm256_load_ps(w);
            v[1] = _mm256_load_ps(w + 8);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                xi = _mm256_broadcast_ss(x + r * MICRO_VALUES);
                sum[r][0] = _mm256_fmadd_ps(v[0], xi, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(v[1], xi, sum[r][1]);
            }
        }
        micro_add(j, acc, r0, b, sum, rows, e2m1);
    }
}

INLINE void
micro_tiles(const job_t *j, float (*acc)[16], size_t n, const bool e2m1)
{
    size_t r = 0;

    for (; r + 6 <= j->n; r += 6)
        micro_tile(j, acc, r, n, 6, e2m1);
    for (; r + 3 <= j->n; r += 3)
        micro_tile(j, acc, r, n, 3, e2m1);
    for (; r < j->n; r++)
        micro_tile(j, acc, r, n, 1, e2m1);
}

/* 16 bytes of each row for the sums of few rows: a block of E2M1, half of one
 * of E4M3. */
INLINE void
micro_some(const stage_t *rows, size_t at, const float *x, __m256 (*sum)[2],
           const size_t n, const bool e2m1)
{
    const size_t per = DWORD(e2m1);
    __m256i v[2][4];
    __m256 w[2], xi;

    UNROLL
    for (size_t h = 0; h < 2; h++) {
        UNROLL
        for (size_t i = 0; i < 4; i++)
            v[h][i] = micro_load(rows, h * 8 + i, at);
        transpose4(v[h]);
    }
    UNROLL32
    for (size_t i = 0; i < 4 * per; i++) {
        w[0] = micro_floats(v[0][i / per], (i ^ 1) % per, e2m1);
        w[1] = micro_floats(v[1][i / per], (i ^ 1) % per, e2m1);
        UNROLL
        for (size_t r = 0; r < n; r++) {
            xi = _mm256_broadcast_ss(x + r * MICRO_VALUES + (i ^ 1));
            sum[r][0] = _mm256_fmadd_ps(w[0], xi, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(w[1], xi, sum[r][1]);
        }
    }
}

/* `side` blocks of a piece, from block b on, for few rows. */
INLINE void
micro_blocks(const job_t *j, const stage_t *rows, float (*acc)[16], size_t b,
             const size_t side, const size_t n_rows, const bool e2m1)
{
    const size_t bytes = BLOCK_BYTES(e2m1);
    micro_t *s = (micro_t *) (void *) j->s;
    __m256 sum[2][TILE_ROWS][2];

    UNROLL
    for (size_t i = 0; i < side; i++)
        load_sums(NULL, sum[i], true, n_rows);
    for (size_t at = 0; at < bytes; at += 16) {
        UNROLL
        for (size_t i = 0; i < side; i++)
            micro_some(rows, (b + i) * bytes + at,
                       s->x[0] + (b + i) * DI_WBLOCK
                       + at / 4 * DWORD(e2m1), sum[i], n_rows, e2m1);
    }
    UNROLL
    for (size_t i = 0; i < side; i++)
        micro_add(j, acc, 0, b + i, sum[i], n_rows, e2m1);
}

/* A piece for few rows; false: there is a NaN in it, nothing is done. */
INLINE bool
micro_few(const job_t *j, size_t p, float (*acc)[16], size_t b0, size_t n,
          const size_t n_rows, const bool e2m1)
{
    const size_t side = n_rows <= 2 ? 2 : 1;     /* blocks side by side     */
    micro_t *s = (micro_t *) (void *) j->s;
    stage_t rows;
    size_t b = 0;

    if (micro_fetch(j, p, b0, n, &rows, e2m1))
        return false;
    micro_expand_scales(j, p, b0, n, s->scales);
    for (; b + side <= n; b += side)
        micro_blocks(j, &rows, acc, b, side, n_rows, e2m1);
    if (b < n)
        micro_blocks(j, &rows, acc, b, 1, n_rows, e2m1);
    return true;
}

INLINE bool
micro_piece_few(const job_t *j, size_t p, float (*acc)[16], size_t b0,
                size_t n, const bool e2m1)
{
    switch (j->n) {
    case 1:  return micro_few(j, p, acc, b0, n, 1, e2m1);
    case 2:  return micro_few(j, p, acc, b0, n, 2, e2m1);
    case 3:  return micro_few(j, p, acc, b0, n, 3, e2m1);
    case 4:  return micro_few(j, p, acc, b0, n, 4, e2m1);
    default: return false;
    }
}

/* The rows' values of the piece as float32. */
INLINE void
micro_spread(const job_t *j, size_t b0, size_t n)
{
    micro_t *s = (micro_t *) (void *) j->s;
    const uint8_t *x;

    for (size_t r = 0; r < j->n; r++) {
        x = row_of(j, r) + b0 * DI_WBLOCK * 2;
        for (size_t i = 0; i < n * DI_WBLOCK; i += 8)
            _mm256_store_ps(&s->x[r][i],
                            _mm256_mul_ps(bf16_floats(x + i * 2),
                                          _mm256_set1_ps(X_FACTOR)));
    }
}

/* At most MICRO_PANELS panels. */
INLINE void
micro_panels(const job_t *j, size_t p0, size_t n_panels, const bool e2m1)
{
    micro_t *s = (micro_t *) (void *) j->s;
    __m256 v[2];
    size_t n;

    memset(s->acc, 0, n_panels * sizeof(s->acc[0]));
    for (size_t b = 0; b < j->n_blocks; b += MICRO_BLOCKS) {
        n = j->n_blocks - b < MICRO_BLOCKS ? j->n_blocks - b : MICRO_BLOCKS;
        micro_spread(j, b, n);
        for (size_t p = 0; p < n_panels; p++) {
            if (micro_piece_few(j, p0 + p, s->acc[p], b, n, e2m1))
                continue;
            micro_expand(j, p0 + p, b, n, e2m1);
            micro_tiles(j, s->acc[p], n, e2m1);
        }
    }
    for (size_t p = 0; p < n_panels; p++) {
        for (size_t r = 0; r < j->n; r++) {
            v[0] = _mm256_load_ps(s->acc[p][r]);
            v[1] = _mm256_load_ps(s->acc[p][r] + 8);
            put(j, p0 + p, r, v);
        }
    }
}

static void
e4m3_panels(const job_t *j, size_t p0, size_t n_panels)
{
    micro_panels(j, p0, n_panels, false);
}

static void
e2m1_panels(const job_t *j, size_t p0, size_t n_panels)
{
    micro_panels(j, p0, n_panels, true);
}

/* -- entry ----------------------------------------------------------------- */

INLINE void
matmul_micro(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
             size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .n_blocks = a->w->k / DI_WBLOCK };
    size_t n, group;

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        group = j.n > TILE_ROWS ? MICRO_PANELS : 1;
        for (size_t p = p0; p < p1; p += n) {
            n = p1 - p < group ? p1 - p : group;
            (part->type == DI_W_E2M1_R32 ? e2m1_panels
                                         : e4m3_panels)(&j, p, n);
        }
    }
}

/* -- float weights --------------------------------------------------------- */

INLINE void
matmul_mx(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
          size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = di_q8_format(part->type), .n = r1 - r0,
                .n_blocks = a->w->k / DI_WBLOCK };

    switch (part->type) {
    case DI_W_F32:  panels_plain(&j, p0, p1, DI_W_F32, true); break;
    case DI_W_F16:  panels_plain(&j, p0, p1, DI_W_F16, true); break;
    default:        panels_plain(&j, p0, p1, DI_W_BF16, true); break;
    }
}

#endif

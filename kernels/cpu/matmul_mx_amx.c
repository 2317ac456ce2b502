/*
 * matmul_mx_amx.c - matrix product of DI_ARITH_MX with E2M1 and E4M3 weights
 * on AMX, from rows as they lie in the file.
 *
 * The weights are the first operand: its rows are 32 values of 16 output
 * columns, which is how rows of the file lie.  So they need no transposition:
 * 32 values become bfloat16 by a table of all codes and are stored.  The
 * activations are the second operand, whose rows are pairs of values of up
 * to 16 rows.  For one row that is how it lies; for more it is transposed
 * once, for all panels of the call.  The sums come out with a row for each
 * column, to be turned at the end.
 *
 * TDPBF16PS makes a block's sum as two chains, over even and odd values: the
 * last bits are not those of other instruction sets, which have one chain.
 *
 * A piece of some blocks is expanded, then multiplied block by block, then
 * the stored sums are scaled and added: nothing waits for what was just
 * stored.
 */

#include "amx.h"
#include "mx.h"

#define BLOCKS     8             /* of a piece, even                        */
#define ROWS_MAX   256           /* whose activations are transposed        */
#define X_BYTES    (1536u << 10) /* of these                                */

typedef struct {
    _Alignas(64) uint8_t tiles[BLOCKS][1024];    /* weights: [16][32]       */
    float    sums[BLOCKS][256];
    float    scales[BLOCKS][16];
    float    acc[ROWS_MAX / 16][16][16];         /* of column, of row       */
    uint8_t  x[X_BYTES];         /* [n_blocks][rows / 16][16][16] pairs     */
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_AMX_SCRATCH_FREE,
               "matmul's memory begins there");

typedef struct {
    scratch_t             *s;
    const di_cpu_matmul_t *a;
    const di_cpu_wpart_t  *part;
    di_e4m3_t              e4m3;
    __m512i                e2m1; /* bfloat16 of 16 codes, twice             */
    size_t                 n_blocks;
    size_t                 r0;   /* rows [r0, r0 + n)                       */
    size_t                 n;
} job_t;

/* -- weights --------------------------------------------------------------- */

static __m512i
e2m1_table(void)
{
    static const uint16_t value[8] = { 0x0000, 0x3f00, 0x3f80, 0x3fc0,
                                       0x4000, 0x4040, 0x4080, 0x40c0 };
    _Alignas(64) uint16_t all[32];

    for (unsigned c = 0; c < 32; c++)
        all[c] = (uint16_t) (value[c % 8] | (c & 8) << 12);
    return _mm512_load_si512(all);
}

/* 16 bytes of E2M1: each to a dword, its upper code to the upper word.  The
 * table has each code twice, so that the bit above a code doesn't matter. */
DI_AMX_INLINE void
expand_e2m1(const job_t *j, const uint8_t *from, uint8_t *to)
{
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *) from));

    x = _mm512_or_si512(x, _mm512_slli_epi32(x, 12));
    _mm512_store_si512(to, _mm512_permutexvar_epi16(x, j->e2m1));
}

/* 64 bytes of E4M3, two blocks: quarters are put where the unpacking of lanes
 * brings them in order. */
DI_AMX_INLINE void
expand_e4m3(const job_t *j, __m512i x, uint8_t *first, uint8_t *second)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i low, high;

    di_e4m3_bytes(&j->e4m3, _mm512_permutexvar_epi64(order, x), &low, &high);
    _mm512_store_si512(first, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(second, _mm512_unpackhi_epi8(low, high));
}

/* n blocks of E4M3 of one row of the panel. */
DI_AMX_INLINE void
expand_row_e4m3(const job_t *j, const uint8_t *from, size_t n, size_t row)
{
    scratch_t *s = j->s;
    size_t b = 0;

    for (; b + 2 <= n; b += 2)
        expand_e4m3(j, _mm512_loadu_si512(from + b * 32),
                    s->tiles[b] + row * 64, s->tiles[b + 1] + row * 64);
    if (b < n)                   /* the second half goes to a spare tile    */
        expand_e4m3(j, _mm512_castsi256_si512(_mm256_loadu_si256(
                           (const void *) (from + b * 32))),
                    s->tiles[b] + row * 64,
                    s->tiles[b + 1] + row * 64);
}

/* 2^(b - 127) of n bytes b, the i-th to to[i][0]. */
DI_AMX_INLINE void
expand_scales(const uint8_t *from, size_t n, float (*to)[16])
{
    union { uint32_t u; float f; } v;

    for (size_t i = 0; i < n; i++) {
        v.u = (uint32_t) from[i] << 23;
        if (from[i] == 0 || from[i] == 255)      /* a subnormal; NaN        */
            v.u |= 0x00400000u;
        to[i][0] = v.f;
    }
}

/* Blocks [b0, b0 + n) of panel p to tiles and scales; behind the last row,
 * the last.  The next panel's are prefetched. */
static void
expand(const job_t *j, size_t p, size_t b0, size_t n)
{
    const di_cpu_wpart_t *part = j->part;
    bool is_e2m1 = part->type == DI_W_E2M1_R32;
    size_t bytes = is_e2m1 ? 16 : 32, row, scale_row;
    const uint8_t *from;

    for (size_t i = 0; i < DI_CPU_PANEL; i++) {
        row = p * DI_CPU_PANEL + i;
        row = row < part->n ? row : part->n - 1;
        from = (const uint8_t *) part->data + row * part->row_bytes
               + b0 * bytes;
        for (size_t at = 0; at < n * bytes; at += 64)
            _mm_prefetch((const char *) from + at
                         + DI_CPU_PANEL * part->row_bytes, _MM_HINT_T1);
        if (is_e2m1)
            for (size_t b = 0; b < n; b++)
                expand_e2m1(j, from + b * 16, j->s->tiles[b] + i * 64);
        else
            expand_row_e4m3(j, from, n, i);
        scale_row = part->type == DI_W_E4M3_B32 ? row / 32 : row;
        expand_scales((const uint8_t *) part->scales
                      + scale_row * j->n_blocks + b0, n,
                      (float (*)[16]) (void *) &j->s->scales[0][i]);
    }
    di_amx_fence();
}

/* -- activations ----------------------------------------------------------- */

static const uint8_t *
row_of(const job_t *j, size_t r)
{
    return j->a->act + (j->r0 + r) * j->a->act_stride;
}

/* All rows to pairs of 16 rows; there are zeros behind the last. */
static void
transpose_rows(const job_t *j)
{
    size_t tiles = (j->n + 15) / 16;
    __m512i v[16];
    uint8_t *to;

    for (size_t b = 0; b < j->n_blocks; b++) {
        for (size_t t = 0; t < tiles; t++) {
            for (size_t i = 0; i < 16; i++)
                v[i] = t * 16 + i < j->n
                       ? _mm512_loadu_si512(row_of(j, t * 16 + i) + b * 64)
                       : _mm512_setzero_si512();
            di_transpose16(v);
            to = j->s->x + (b * tiles + t) * 1024;
            for (size_t i = 0; i < 16; i++)
                _mm512_store_si512(to + i * 64, v[i]);
        }
    }
    di_amx_fence();
}

/* -- products -------------------------------------------------------------- */

/* Sums of 16 columns for `columns` rows of activations. */
DI_AMX_INLINE void
configure(size_t columns)
{
    di_amx_tiles_t t = { 0 };

    for (int i = 0; i < 4; i++)
        di_amx_tile(&t, i, 16, columns * 4);      /* sums                   */
    di_amx_tile(&t, 4, 16, 64);                   /* weights                */
    di_amx_tile(&t, 5, 16, 64);
    di_amx_tile(&t, 6, 16, columns * 4);          /* activations            */
    di_amx_tile(&t, 7, 16, columns * 4);
    di_amx_configure(&t);
}

/* The sums of n blocks of the piece: activations of block i at x + i * step,
 * rows of the operand and of the sums `stride` bytes apart.  Two products are
 * under way at a time. */
DI_AMX_INLINE void
multiply(const job_t *j, const uint8_t *x, size_t step, size_t n,
         const size_t stride)
{
    scratch_t *s = j->s;
    size_t b = 0;

    for (; b + 2 <= n; b += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, s->tiles[b], 64);
        _tile_loadd(6, x + b * step, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, s->tiles[b + 1], 64);
        _tile_loadd(7, x + (b + 1) * step, stride);
        _tile_dpbf16ps(1, 5, 7);
        _tile_stored(0, s->sums[b], stride);
        _tile_stored(1, s->sums[b + 1], stride);
    }
    if (b < n) {
        _tile_zero(0);
        _tile_loadd(4, s->tiles[b], 64);
        _tile_loadd(6, x + b * step, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stored(0, s->sums[b], stride);
    }
    di_amx_fence();
}

static __mmask16
columns_left(const job_t *j, size_t p)
{
    size_t left = j->part->n - p * DI_CPU_PANEL;

    return left < 16 ? (__mmask16) ((1u << left) - 1) : 0xffff;
}

/* Columns of panel p of row r. */
DI_AMX_INLINE void
put(const job_t *j, size_t p, size_t r, __m512 v)
{
    const di_cpu_matmul_t *a = j->a;
    size_t col = j->part->first + p * DI_CPU_PANEL;
    __mmask16 mask = columns_left(j, p);

    if (a->bias)
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, a->bias + col));
    _mm512_mask_storeu_ps(a->out + (j->r0 + r) * a->w->n + col, mask, v);
}

/* One row: a block's sums are one vector of 16 columns. */
static void
panel_one(const job_t *j, size_t p)
{
    __m512 acc = _mm512_setzero_ps();
    scratch_t *s = j->s;
    size_t n;

    for (size_t b0 = 0; b0 < j->n_blocks; b0 += BLOCKS) {
        n = j->n_blocks - b0 < BLOCKS ? j->n_blocks - b0 : BLOCKS;
        expand(j, p, b0, n);
        multiply(j, row_of(j, 0) + b0 * 64, 64, n, 4);
        for (size_t b = 0; b < n; b++)
            acc = _mm512_fmadd_ps(_mm512_load_ps(s->sums[b]),
                                  _mm512_load_ps(s->scales[b]), acc);
    }
    put(j, p, 0, acc);
}

/* Scale the sums of n blocks and add them to those of a tile of rows. */
DI_AMX_INLINE void
add_scaled(const job_t *j, float (*to)[16], size_t n)
{
    scratch_t *s = j->s;
    __m512 acc[16];

#pragma GCC unroll 16
    for (size_t c = 0; c < 16; c++)
        acc[c] = _mm512_load_ps(to[c]);
    for (size_t b = 0; b < n; b++) {
#pragma GCC unroll 16
        for (size_t c = 0; c < 16; c++)
            acc[c] = _mm512_fmadd_ps(_mm512_load_ps(s->sums[b] + c * 16),
                                     _mm512_set1_ps(s->scales[b][c]),
                                     acc[c]);
    }
#pragma GCC unroll 16
    for (size_t c = 0; c < 16; c++)
        _mm512_store_ps(to[c], acc[c]);
}

static void
panel_many(const job_t *j, size_t p)
{
    size_t tiles = (j->n + 15) / 16, n;
    scratch_t *s = j->s;
    __m512i v[16];

    memset(s->acc, 0, tiles * sizeof(s->acc[0]));
    for (size_t b0 = 0; b0 < j->n_blocks; b0 += BLOCKS) {
        n = j->n_blocks - b0 < BLOCKS ? j->n_blocks - b0 : BLOCKS;
        expand(j, p, b0, n);
        for (size_t t = 0; t < tiles; t++) {
            multiply(j, s->x + (b0 * tiles + t) * 1024, tiles * 1024, n, 64);
            add_scaled(j, s->acc[t], n);
        }
    }
    for (size_t t = 0; t < tiles; t++) {
        for (size_t c = 0; c < 16; c++)
            v[c] = _mm512_load_si512(s->acc[t][c]);
        di_transpose16(v);
        for (size_t i = 0; i < 16 && t * 16 + i < j->n; i++)
            put(j, p, t * 16 + i, _mm512_castsi512_ps(v[i]));
    }
}

/* Rows whose activations there is room for: a multiple of 16, or none. */
static size_t
rows_max(size_t k)
{
    size_t n = X_BYTES / (k * 2);

    return n > ROWS_MAX ? ROWS_MAX : n & ~(size_t) 15;
}

void
di_mx_micro_amx(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .n_blocks = a->w->k / DI_WBLOCK };
    size_t max = rows_max(a->w->k);

    if (part->type == DI_W_E2M1_R32)
        j.e2m1 = e2m1_table();
    else
        j.e4m3 = di_e4m3_tables();

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < max ? r1 - j.r0 : max;
        j.n = j.n == 0 ? 1 : j.n;        /* too long to be transposed       */
        configure(j.n == 1 ? 1 : 16);
        if (j.n > 1)
            transpose_rows(&j);
        for (size_t p = p0; p < p1; p++)
            (j.n == 1 ? panel_one : panel_many)(&j, p);
    }
    _tile_release();
}

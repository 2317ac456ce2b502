/*
 * matmul_bf16_amx.c - matrix product of DI_ARITH_BF16 on AMX.
 *
 * Weights keep the width that they have in the file: decode is bound by
 * reading them.  A panel of 16 output columns is a stream of blocks of 32
 * input values, each with everything that it needs:
 *
 *     plane[4]   256 bytes   4-bit codes of 32 x 16 weights
 *     plane[b]   b * 64      the codes' bits above the fourth (b: 0, 1, 2, 4)
 *     scale      16 (32 if they are per 16 values) float16 or float32
 *     min        16 float16 or float32, or absent
 *
 * A block is expanded to a tile of AMX's second operand (16 pairs of input
 * values x 16 columns x 2, bfloat16) by one word permutation per 32 weights.
 * The table has the codes' values, which are exact in bfloat16, repeated so
 * that the bits above the code don't matter: there is no masking.  Wider
 * codes are two planes, hence two products into the same sums.
 *
 * TDPBF16PS then makes the block's sums for all rows, which are scaled by
 * float32 FMAs and added in order of blocks.  Minima are a product of their
 * own, of the rows' block sums with the minima, each split in two bfloat16
 * halves: four values of depth per block, eight blocks per TDPBF16PS.
 *
 * Few rows (decode): an AMX product takes 16 cycles and storing its sums 16
 * more whatever the number of rows, so that one row would waste most of it.
 * Hence GROUP blocks share one tile of sums: the first operand of block i
 * has the rows at i * ROWS and zeros elsewhere.  Zeros add nothing, so the
 * bits are those of a product of its own.
 *
 * Many rows (prefill): a piece of a panel is expanded once, to a size that
 * stays in the first-level cache, and used for all tiles of rows.  A tile of
 * sums is stored two products after it was made: stored at once it would
 * stall the next one (26 cycles per product instead of 19, measured).
 */

#include "amx.h"

#include <string.h>

/* -- formats of packed panels ---------------------------------------------- */

typedef struct {
    uint16_t high_bytes;         /* of the second plane, 0: none            */
    uint16_t scale_at;           /* in a block; the planes are at 0         */
    uint16_t min_at;             /* 0: none                                 */
    uint16_t block_bytes;
    uint8_t  high_bits;          /* width of the second plane's codes       */
    bool     is_signed;          /* the (upper) codes are signed            */
    bool     f16;                /* scales and minima are float16           */
    bool     half;               /* a scale per 16 values                   */
} format_t;

/* Byte sizes of a block, from what the type's codes are. */
static format_t
format_of(di_wtype_t type)
{
    const di_wcodes_t *codes = di_wtype_codes(type);
    size_t number, scales;
    format_t f = { 0 };

    if (codes == NULL) {
        f.block_bytes = 1024;
        return f;
    }

    number = codes->f16_scales ? 2 : 4;
    scales = codes->half_scales ? 32 : 16;
    f.high_bits = codes->bits == 5 ? 1 : codes->bits == 6 ? 2
                  : codes->bits == 8 ? 4 : 0;
    f.high_bytes = (uint16_t) (f.high_bits * 64);
    f.is_signed = codes->is_signed;
    f.f16 = codes->f16_scales;
    f.half = codes->half_scales;
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
    return k / DI_WBLOCK * format_of(type).block_bytes;
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

static void
put_number(uint8_t *p, size_t i, bool f16, float value)
{
    uint16_t h = di_f32_to_f16(value);

    if (f16)
        memcpy(p + 2 * i, &h, 2);
    else
        memcpy(p + 4 * i, &value, 4);
}

/* Block b of one column, into the packed block. */
static void
pack_codes(const di_cpu_wpart_t *part, const format_t *f, size_t n, size_t b,
           uint8_t *block)
{
    size_t col = n % DI_CPU_PANEL;
    unsigned c, high_mask = (1u << f->high_bits) - 1;
    di_wblock_t w;

    di_wblock_get(part->type,
                  (const uint8_t *) part->data + n * part->row_bytes, b, &w);
    for (size_t i = 0; i < DI_WBLOCK; i++) {
        c = (unsigned) w.code[i];
        put_code(block, 4, col, i, c & 15);
        if (f->high_bits)
            put_code(block + 256, f->high_bits, col, i,
                     c >> 4 & high_mask);
    }
    put_number(block + f->scale_at, col, f->f16, w.scale[0]);
    if (f->half)
        put_number(block + f->scale_at, 16 + col, f->f16, w.scale[1]);
    if (f->min_at)
        put_number(block + f->min_at, col, f->f16, w.min);
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
    format_t f = format_of(part->type);
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

/* -- expansion ------------------------------------------------------------- */

typedef struct {
    __m512i low;                 /* 32 bfloat16: value of the low 4 bits    */
    __m512i high;                /* of the codes of the second plane        */
} tables_t;

static __m512i
make_table(unsigned bits, bool is_signed, int factor)
{
    int n = 1 << bits, v;
    uint16_t t[32];

    for (int i = 0; i < 32; i++) {
        v = i % n;
        if (is_signed && v >= n / 2)
            v -= n;
        t[i] = di_f32_to_bf16((float) (v * factor));
    }
    return _mm512_loadu_si512(t);
}

static tables_t
make_tables(const format_t *f)
{
    tables_t t;

    t.low = make_table(4, f->is_signed && !f->high_bits, 1);
    t.high = make_table(f->high_bits ? f->high_bits : 4, f->is_signed, 16);
    return t;
}

/* A plane of codes of BITS bits to a tile of 16 rows. */
DI_AMX_INLINE void
expand_plane(const uint8_t *plane, __m512i table, uint8_t *tile,
             const unsigned bits)
{
    const unsigned per_word = 16 / bits;
    __m512i x;

#pragma GCC unroll 4
    for (unsigned v = 0; v < bits; v++) {
        x = _mm512_loadu_si512(plane + v * 64);
#pragma GCC unroll 16
        for (unsigned s = 0; s < per_word; s++) {
            _mm512_store_si512(tile + (v * per_word + s) * 64,
                               _mm512_permutexvar_epi16(x, table));
            x = _mm512_srli_epi16(x, bits);
        }
    }
}

/* A block to its tile or, with a second plane, two: high codes first. */
DI_AMX_INLINE void
expand_block(const uint8_t *block, const format_t *f, const tables_t *t,
             uint8_t *tile, const bool two)
{
    if (!two) {
        expand_plane(block, t->low, tile, 4);
        return;
    }
    if (f->high_bits == 4)
        expand_plane(block + 256, t->high, tile, 4);
    else if (f->high_bits == 2)
        expand_plane(block + 256, t->high, tile, 2);
    else
        expand_plane(block + 256, t->high, tile, 1);
    expand_plane(block, t->low, tile + 1024, 4);
}

/* 16 scales or minima. */
DI_AMX_INLINE __m512
load_numbers(const uint8_t *p, size_t i, bool f16)
{
    return f16
        ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *) (p + i * 32)))
        : _mm512_loadu_ps(p + i * 64);
}

/* Minima of 8 blocks to a tile: per block two rows, {h, h} and {l, l}. */
static void
expand_min(const uint8_t *block, const format_t *f, size_t n_blocks,
           uint8_t *tile)
{
    const __m512i upper = _mm512_set1_epi32((int) 0xffff0000u);
    __m512i m, h, l;

    for (size_t i = 0; i < n_blocks; i++, block += f->block_bytes) {
        m = _mm512_castps_si512(load_numbers(block + f->min_at, 0, f->f16));
        h = _mm512_and_si512(m, upper);
        l = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(m),
                                              _mm512_castsi512_ps(h)));
        l = _mm512_and_si512(l, upper);
        _mm512_store_si512(tile + i * 128,
                           _mm512_or_si512(h, _mm512_srli_epi32(h, 16)));
        _mm512_store_si512(tile + i * 128 + 64,
                           _mm512_or_si512(l, _mm512_srli_epi32(l, 16)));
    }
    memset(tile + n_blocks * 128, 0, 1024 - n_blocks * 128);
}

/* -- scratch --------------------------------------------------------------- */

#define PIECE_BLOCKS  16         /* blocks expanded at once for many rows   */
#define ROWS_MAX      256        /* rows whose sums are kept                */
#define FEW_ROWS      16         /* up to here a block is expanded as used  */
#define K_BLOCKS_MAX  (DI_CPU_K_MAX / DI_WBLOCK)

typedef struct {
    uint8_t  tiles[PIECE_BLOCKS * 2048];         /* expanded blocks         */
    float    scales[PIECE_BLOCKS * 32];          /* of them                 */
    float    sums[4][256];                       /* stored tiles of sums    */
    float    min_sums[256];
    float    acc[ROWS_MAX * 16];
    uint8_t  min_tiles[K_BLOCKS_MAX / 8 * 1024]; /* of a panel              */
    /* The first operand for GROUP blocks at once, see above: rows of a
     * block, then zeros.  It survives from call to call: pad_blocks blocks
     * of it are zero but for rows [0, pad_rows) of each. */
    size_t   pad_slots;          /* rows that a block has, used or not      */
    size_t   pad_rows;
    size_t   pad_blocks;
    _Alignas(64) uint8_t pad[(K_BLOCKS_MAX + 1) * 512];
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_CPU_SCRATCH, "scratch is too small");
_Static_assert(offsetof(scratch_t, pad_slots) >= DI_AMX_SCRATCH_FREE,
               "others write here");

/* -- few rows: GROUP blocks share a tile of sums --------------------------- */

/* Lay out rows [r0, r0 + n) in slots of `slots` rows, 8 rows per block. */
static void
fill_pad(scratch_t *s, const di_cpu_matmul_t *a, size_t r0, size_t n,
         size_t slots)
{
    size_t n_blocks = a->w->k / DI_WBLOCK;
    uint8_t *to;
    const uint8_t *x;

    if (s->pad_slots != slots || s->pad_rows != n) {
        s->pad_slots = slots;
        s->pad_rows = n;
        s->pad_blocks = 0;
    }
    if (s->pad_blocks < n_blocks) {
        memset(s->pad, 0, (n_blocks + 1) * 512);
        s->pad_blocks = n_blocks;
    }
    for (size_t r = 0; r < n; r++) {
        x = a->act + (r0 + r) * a->act_stride;
        to = s->pad + 512 - slots * 64 + r * 64;
        for (size_t b = 0; b < n_blocks; b++)
            _mm512_store_si512(to + b * 512, _mm512_load_si512(x + b * 64));
    }
}

DI_AMX_INLINE void
configure_few(size_t n_rows, const bool half)
{
    di_amx_tiles_t t = { 0 };

    for (int i = 0; i < 3; i++)
        di_amx_tile(&t, i, 8, 64);                /* sums                   */
    di_amx_tile(&t, 4, 8, half ? 32 : 64);
    di_amx_tile(&t, 6, half ? 8 : 16, 64);
    di_amx_tile(&t, 3, n_rows, 64);               /* minima                 */
    di_amx_tile(&t, 5, n_rows, 64);
    di_amx_tile(&t, 7, 16, 64);
    di_amx_configure(&t);
}

/* acc[r] += sums of unit i and row r, scaled. */
DI_AMX_INLINE void
scale_group(__m512 *acc, const float *sums, const uint8_t *block,
            const format_t *f, size_t first, size_t n, const size_t slots,
            const bool half)
{
    const uint8_t *scale;
    __m512 d;

    for (size_t i = 0; i < n; i++) {
        scale = block + (half ? (first + i) / 2 : first + i) * f->block_bytes
                + f->scale_at;
        d = load_numbers(scale, half ? (first + i) % 2 : 0, f->f16);
#pragma GCC unroll 4
        for (size_t r = 0; r < slots; r++)
            acc[r] = _mm512_fmadd_ps(
                _mm512_load_ps(sums + (i * slots + r) * 16), d, acc[r]);
    }
}

/* A unit is what one scale covers: a block, or half of one. */
DI_AMX_INLINE void
panel_few(scratch_t *s, const uint8_t *panel, const format_t *f,
          const tables_t *t, size_t n_blocks, const size_t slots,
          const bool two, const bool half)
{
    const size_t group = 8 / slots, tile_bytes = two ? 2048 : 1024;
    const size_t n = half ? 2 * n_blocks : n_blocks;
    const size_t blocks = half ? (group + 1) / 2 : group;
    const uint8_t *x = s->pad + 512 - slots * 64;
    __m512 acc[4];
    size_t b, h, count, turn = 0, last = 0, last_n = 0;
    uint8_t *tile;

    for (size_t r = 0; r < slots; r++)
        acc[r] = _mm512_setzero_ps();

    for (size_t u = 0; u < n; u += group, turn ^= 1) {
        count = n - u < group ? n - u : group;
        tile = s->tiles + turn * 8 * 2048;
        b = half ? u / 2 : u;
        for (size_t i = 0; i < blocks && b + i < n_blocks; i++)
            expand_block(panel + (b + i) * f->block_bytes, f, t,
                         tile + i * tile_bytes, two);
        di_amx_fence();

        _tile_zero(0);
        for (size_t i = 0; i < count; i++) {
            b = half ? (u + i) / 2 : u + i;
            h = half ? (u + i) % 2 : 0;
            _tile_loadd(4, x + b * 512 - i * slots * 64 + h * 32, 64);
            b -= half ? u / 2 : u;
            _tile_loadd(6, tile + b * tile_bytes + h * 512, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (two) {
                _tile_loadd(6, tile + b * tile_bytes + 1024 + h * 512, 64);
                _tile_dpbf16ps(0, 4, 6);
            }
        }
        _tile_stored(0, s->sums[turn], 64);
        di_amx_fence();
        if (last_n > 0)
            scale_group(acc, s->sums[turn ^ 1], panel, f, last, last_n,
                        slots, half);
        last = u;
        last_n = count;
    }
    scale_group(acc, s->sums[turn ^ 1], panel, f, last, last_n, slots, half);

    for (size_t r = 0; r < slots; r++)
        _mm512_store_ps(s->acc + r * 16, acc[r]);
}

/* -- more rows: a pipeline over the units of a panel ----------------------- */

DI_AMX_INLINE void
configure_many(size_t n_rows, const bool half)
{
    di_amx_tiles_t t = { 0 };

    for (int i = 0; i < 4; i++)
        di_amx_tile(&t, i, n_rows, 64);           /* sums, sums of minima   */
    di_amx_tile(&t, 4, n_rows, half ? 32 : 64);
    di_amx_tile(&t, 5, n_rows, 64);
    di_amx_tile(&t, 6, half ? 8 : 16, 64);
    di_amx_tile(&t, 7, 16, 64);
    di_amx_configure(&t);
}

typedef struct {
    scratch_t      *s;
    const uint8_t  *x;           /* first operand: rows at the first unit   */
    size_t          x_stride;
    const uint8_t  *tiles;       /* expanded blocks, or a ring of 4 ...     */
    const uint8_t  *panel;       /* ... filled from here (NULL: expanded)   */
    const format_t *f;
    const tables_t *t;
    size_t          n;           /* units                                   */
} pipe_t;

/* Product of unit u into tile C of sums. */
#define PIPE_PRODUCT(C)                                                     \
    do {                                                                    \
        _tile_zero(C);                                                      \
        _tile_loadd(4, x + (half ? u * 32 : u * 64), p->x_stride);          \
        _tile_loadd(6, tile, 64);                                           \
        _tile_dpbf16ps(C, 4, 6);                                            \
        if (two) {                                                          \
            _tile_loadd(6, tile + 1024, 64);                                \
            _tile_dpbf16ps(C, 4, 6);                                        \
        }                                                                   \
    } while (0)

/* One step: expand the block of unit u + 1, multiply unit u, store the sums
 * of unit u - 2, scale and add those of unit u - 3. */
#define PIPE_STEP(C, C_OLD)                                                 \
    do {                                                                    \
        if (expand && u + 1 < n && (!half || u % 2)) {                      \
            b = half ? (u + 1) / 2 : u + 1;                                 \
            expand_block(p->panel + b * p->f->block_bytes, p->f, p->t,      \
                         s->tiles + b % 4 * 2048, two);                     \
            di_amx_fence();                                                 \
        }                                                                   \
        if (u < n) {                                                        \
            b = half ? u / 2 : u;                                           \
            tile = p->tiles + (expand ? b % 4 * 2048 : b * tile_bytes)      \
                   + (half ? u % 2 * 512 : 0);                              \
            PIPE_PRODUCT(C);                                                \
        }                                                                   \
        if (u >= 2 && u - 2 < n)                                            \
            _tile_stored(C_OLD, s->sums[(u - 2) % 4], 64);                  \
        di_amx_fence();                                                     \
        if (u >= 3) {                                                       \
            b = half ? (u - 3) / 2 : u - 3;                                 \
            d = expand ? load_numbers(p->panel + b * p->f->block_bytes      \
                                      + p->f->scale_at,                     \
                                      half ? (u - 3) % 2 : 0, p->f->f16)    \
                       : _mm512_load_ps(s->scales + (u - 3) * 16);          \
            add_scaled(acc, s->sums[(u - 3) % 4], d, slots);                \
        }                                                                   \
        if (++u == n + 3)                                                   \
            goto done;                                                      \
    } while (0)

DI_AMX_INLINE void
add_scaled(__m512 *acc, const float *sums, __m512 d, const size_t slots)
{
#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        acc[r] = _mm512_fmadd_ps(_mm512_load_ps(sums + r * 16), d, acc[r]);
}

/* Rows of sums in out: begun at zero, or gone on with. */
DI_AMX_INLINE void
pipe_run(const pipe_t *p, float *out, bool go_on, const size_t slots,
         const bool two, const bool half, const bool expand)
{
    const size_t n = p->n, tile_bytes = two ? 2048 : 1024;
    const uint8_t *x = p->x, *tile;
    scratch_t *s = p->s;
    __m512 acc[16], d;
    size_t u = 0, b;

#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        acc[r] = go_on ? _mm512_load_ps(out + r * 16) : _mm512_setzero_ps();

    if (expand) {
        expand_block(p->panel, p->f, p->t, s->tiles, two);
        di_amx_fence();
    }
    for (;;) {
        PIPE_STEP(0, 1);
        PIPE_STEP(1, 2);
        PIPE_STEP(2, 0);
    }

done:
#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        _mm512_store_ps(out + r * 16, acc[r]);
}

/* -- minima and output ----------------------------------------------------- */

/* Sums of minima of up to 16 rows: s->min_tiles is filled. */
DI_AMX_INLINE void
min_rows(scratch_t *s, const di_cpu_matmul_t *a, size_t r0)
{
    size_t n_tiles = di_amx_sum_bytes(a->w->k) / 64;
    const uint8_t *x = a->act + r0 * a->act_stride + 2 * a->w->k;

    _tile_zero(3);
    for (size_t i = 0; i < n_tiles; i++) {
        _tile_loadd(5, x + i * 64, a->act_stride);
        _tile_loadd(7, s->min_tiles + i * 1024, 64);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(3, s->min_sums, 64);
    di_amx_fence();
}

static void
fill_min_tiles(scratch_t *s, const uint8_t *panel, const format_t *f,
               size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b += 8)
        expand_min(panel + b * f->block_bytes, f,
                   n_blocks - b < 8 ? n_blocks - b : 8,
                   s->min_tiles + b * 128);
    di_amx_fence();
}

/* Columns of panel p of rows [r0, r0 + n), whose sums are in acc. */
DI_AMX_INLINE void
put_rows(const scratch_t *s, const di_cpu_matmul_t *a,
         const di_cpu_wpart_t *part, size_t p, size_t r0, size_t n,
         const float *acc, bool has_min)
{
    size_t col = p * DI_CPU_PANEL, left = part->n - col;
    __mmask16 mask = left < 16 ? (__mmask16) ((1u << left) - 1) : 0xffff;
    float *out = a->out + r0 * a->w->n + part->first + col;
    __m512 v, bias = _mm512_setzero_ps();

    if (a->bias)
        bias = _mm512_maskz_loadu_ps(mask, a->bias + part->first + col);
    for (size_t r = 0; r < n; r++, out += a->w->n) {
        v = _mm512_load_ps(acc + r * 16);
        if (has_min)
            v = _mm512_add_ps(v, _mm512_load_ps(s->min_sums + r * 16));
        if (a->bias)
            v = _mm512_add_ps(v, bias);
        _mm512_mask_storeu_ps(out, mask, v);
    }
}

/* -- panels ---------------------------------------------------------------- */

typedef struct {
    scratch_t             *s;
    const di_cpu_matmul_t *a;
    const di_cpu_wpart_t  *part;
    format_t               f;
    tables_t               t;
    size_t                 n_blocks;
    size_t                 r0;
    size_t                 n;    /* rows                                    */
} job_t;

/* Up to 16 rows: panels are expanded as they are read. */
DI_AMX_INLINE void
panels_few(const job_t *j, size_t p0, size_t p1, const size_t slots,
           const bool two, const bool half)
{
    scratch_t *s = j->s;
    const uint8_t *panel;
    pipe_t pipe = { .s = s, .x = j->a->act + j->r0 * j->a->act_stride,
                    .x_stride = j->a->act_stride, .tiles = s->tiles,
                    .f = &j->f, .t = &j->t,
                    .n = half ? 2 * j->n_blocks : j->n_blocks };

    if (slots < 8) {
        fill_pad(s, j->a, j->r0, j->n, slots);
        configure_few(j->n, half);
    } else {
        configure_many(j->n, half);
    }

    for (size_t p = p0; p < p1; p++) {
        panel = j->part->packed + p * j->part->panel_bytes;
        if (slots < 8) {
            panel_few(s, panel, &j->f, &j->t, j->n_blocks, slots, two, half);
        } else {
            pipe.panel = panel;
            pipe_run(&pipe, s->acc, false, slots, two, half, true);
        }
        if (j->f.min_at) {
            fill_min_tiles(s, panel, &j->f, j->n_blocks);
            min_rows(s, j->a, j->r0);
        }
        put_rows(s, j->a, j->part, p, j->r0, j->n, s->acc,
                 j->f.min_at != 0);
    }
}

/* Blocks [b0, b0 + n) of a panel to s->tiles and s->scales. */
DI_AMX_INLINE void
expand_piece(const job_t *j, const uint8_t *panel, size_t b0, size_t n,
             const bool two, const bool half)
{
    scratch_t *s = j->s;

    panel += b0 * j->f.block_bytes;
    for (size_t b = 0; b < n; b++, panel += j->f.block_bytes) {
        expand_block(panel, &j->f, &j->t, s->tiles + b * (two ? 2048 : 1024),
                     two);
        for (size_t i = 0; i < (half ? 2 : 1); i++)
            _mm512_store_ps(s->scales + (half ? 2 * b + i : b) * 16,
                            load_numbers(panel + j->f.scale_at, i,
                                         j->f.f16));
    }
    di_amx_fence();
}

/* Any number of rows up to ROWS_MAX: piece by piece, all rows. */
DI_AMX_INLINE void
panels_many(const job_t *j, size_t p0, size_t p1, const bool two,
            const bool half)
{
    scratch_t *s = j->s;
    size_t full = j->n / 16 * 16, rows, count;
    const uint8_t *panel;
    pipe_t pipe = { .s = s, .x_stride = j->a->act_stride,
                    .tiles = s->tiles };

    for (size_t p = p0; p < p1; p++) {
        panel = j->part->packed + p * j->part->panel_bytes;
        configure_many(16, half);
        for (size_t b = 0; b < j->n_blocks; b += PIECE_BLOCKS) {
            count = j->n_blocks - b < PIECE_BLOCKS ? j->n_blocks - b
                                                   : PIECE_BLOCKS;
            expand_piece(j, panel, b, count, two, half);
            pipe.n = half ? 2 * count : count;
            for (size_t r = 0; r < j->n; r += 16) {
                if (r == full)
                    configure_many(j->n - full, half);
                pipe.x = j->a->act + (j->r0 + r) * j->a->act_stride + b * 64;
                pipe_run(&pipe, s->acc + r * 16, b > 0, 16, two, half, false);
            }
            if (full < j->n)
                configure_many(16, half);
        }

        if (j->f.min_at)
            fill_min_tiles(s, panel, &j->f, j->n_blocks);
        for (size_t r = 0; r < j->n; r += 16) {
            rows = j->n - r < 16 ? j->n - r : 16;
            if (r == full)
                configure_many(rows, half);
            if (j->f.min_at)
                min_rows(s, j->a, j->r0 + r);
            put_rows(s, j->a, j->part, p, j->r0 + r, rows, s->acc + r * 16,
                     j->f.min_at != 0);
        }
    }
}

/* Plain bfloat16 tiles: their sums stay in tiles.  Up to 3 tiles of rows use
 * a tile of weights while it is loaded. */
static void
panels_plain(const job_t *j, size_t p0, size_t p1)
{
    scratch_t *s = j->s;
    size_t full = j->n / 16 * 16, rows, tiles;
    const uint8_t *w, *x;
    size_t stride = j->a->act_stride;

    for (size_t p = p0; p < p1; p++) {
        configure_many(16, false);
        for (size_t r = 0; r < j->n; r += 16 * tiles) {
            if (r == full)
                configure_many(j->n - full, false);
            tiles = (full - r) / 16;
            tiles = r == full || tiles == 0 ? 1 : tiles > 3 ? 3 : tiles;
            w = j->part->packed + p * j->part->panel_bytes;
            x = j->a->act + (j->r0 + r) * stride;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            for (size_t b = 0; b < j->n_blocks; b++, w += 1024, x += 64) {
                _tile_loadd(6, w, 64);
                _tile_loadd(4, x, stride);
                _tile_dpbf16ps(0, 4, 6);
                if (tiles > 1) {
                    _tile_loadd(4, x + 16 * stride, stride);
                    _tile_dpbf16ps(1, 4, 6);
                }
                if (tiles > 2) {
                    _tile_loadd(5, x + 32 * stride, stride);
                    _tile_dpbf16ps(2, 5, 6);
                }
            }
            _tile_stored(0, s->acc, 64);
            _tile_stored(1, s->acc + 256, 64);
            _tile_stored(2, s->acc + 512, 64);
            di_amx_fence();
            rows = r == full ? j->n - full : 16 * tiles;
            put_rows(s, j->a, j->part, p, j->r0 + r, rows, s->acc, false);
        }
    }
}

/* Code for each number of rows and shape of block, chosen per call. */
#define PANELS(two, half)                                                   \
    do {                                                                    \
        if (j.n == 1)                                                       \
            panels_few(&j, p0, p1, 1, two, half);                           \
        else if (j.n == 2)                                                  \
            panels_few(&j, p0, p1, 2, two, half);                           \
        else if (j.n <= 4)                                                  \
            panels_few(&j, p0, p1, 4, two, half);                           \
        else if (j.n <= 8)                                                  \
            panels_few(&j, p0, p1, 8, two, half);                           \
        else if (j.n <= FEW_ROWS)                                           \
            panels_few(&j, p0, p1, 16, two, half);                          \
        else                                                                \
            panels_many(&j, p0, p1, two, half);                             \
    } while (0)

void
di_amx_matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
              size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = format_of(part->type),
                .n_blocks = a->w->k / DI_WBLOCK };

    if (di_wtype_codes(part->type))
        j.t = make_tables(&j.f);

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        if (di_wtype_codes(part->type) == NULL)
            panels_plain(&j, p0, p1);
        else if (j.f.half)
            PANELS(true, true);
        else if (j.f.high_bits)
            PANELS(true, false);
        else
            PANELS(false, false);
    }
    _tile_release();
}

/*
 * matmul_bf16_amx.c - matrix product of DI_ARITH_BF16 on AMX.
 *
 * Weights are read as panel_bf16_amx.h has them and expanded to tiles
 * (expand_bf16_amx.h).  TDPBF16PS makes a block's sums for all rows, which are
 * scaled by float32 FMAs and added in order of blocks.  Minima are a product
 * of their own, of the rows' block sums with the minima, each split in two
 * bfloat16 halves: four values of depth per block, eight blocks per TDPBF16PS.
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
 * stall the next one (26 cycles per product instead of 19, measured).  The
 * number of rows and the shape of a block choose a function of its own:
 * inlined side by side they would leave the compiler no registers.
 */

#include "expand_bf16_amx.h"

/* -- scratch --------------------------------------------------------------- */

#define GROUP_ROWS    4          /* rows of a shared tile of sums           */
#define PIECE_BLOCKS  12         /* blocks expanded at once for many rows   */
#define PANELS_MAX    8          /* panels expanded at once                 */
#define ROWS_MAX      256        /* rows whose sums are kept                */
#define FEW_ROWS      16         /* up to here a block is expanded as used  */
#define PREFETCH      8192       /* bytes ahead of what is expanded         */
#define RING          8          /* blocks expanded ahead, and sums behind  */
#define K_BLOCKS_MAX  (DI_CPU_K_MAX / DI_WBLOCK)
#define MIN_UNITS_MAX (K_BLOCKS_MAX / 8)

typedef struct {
    uint8_t  tiles[RING * 2048];                 /* few rows: of blocks     */
    float    sums[RING][256];                    /* stored tiles of sums    */
    uint8_t  piece[PANELS_MAX][PIECE_BLOCKS * 2048 + 1024];
    float    scales[PANELS_MAX][PIECE_BLOCKS * 32 + MIN_UNITS_MAX * 16];
    float    acc[ROWS_MAX / 16][PANELS_MAX][256];
    uint8_t  min_tiles[PANELS_MAX][MIN_UNITS_MAX * 1024 + 1024];
    /* The first operand for groups of units: the rows of a unit, then zeros.
     * It survives from call to call: pad_units units of it are zero but for
     * rows [0, pad_rows) of each. */
    size_t   pad_slots;          /* rows that a unit has, used or not       */
    size_t   pad_rows;
    size_t   pad_units;
    _Alignas(64) uint8_t pad[(K_BLOCKS_MAX + MIN_UNITS_MAX + 1)
                             * GROUP_ROWS * 2 * 64];
} scratch_t;

_Static_assert(sizeof(scratch_t) <= DI_CPU_SCRATCH, "scratch is too small");
_Static_assert(offsetof(scratch_t, pad_slots) >= DI_AMX_SCRATCH_FREE,
               "others write here");

/* A call's work.  A unit is what is multiplied at once: a block, or half of
 * one, and behind the blocks 8 blocks' minima.  An activation row has the
 * blocks' sums behind its values, so that units lie 64 (halves 32) bytes
 * apart there throughout. */
typedef struct {
    scratch_t             *s;
    const di_cpu_matmul_t *a;
    const di_cpu_wpart_t  *part;
    di_amx_format_t        f;
    tables_t               t;
    size_t                 n_blocks;
    size_t                 n_mins;       /* units of minima                 */
    size_t                 r0;
    size_t                 n;            /* rows                            */
    size_t                 p0;           /* panels [p0, p1)                 */
    size_t                 p1;
    /* Many rows: */
    size_t                 piece_first;  /* blocks of the piece             */
    size_t                 piece_blocks;
    size_t                 piece_units;  /* with minima, if it is the last  */
    size_t                 r;            /* rows [r, r + rows) of the n     */
    size_t                 rows;
} job_t;

DI_AMX_INLINE void
configure(size_t rows, const bool half)
{
    di_amx_tiles_t t = { 0 };

    for (int i = 0; i < 3; i++)
        di_amx_tile(&t, i, rows, 64);             /* sums                   */
    di_amx_tile(&t, 4, rows, half ? 32 : 64);     /* rows, or their units   */
    di_amx_tile(&t, 5, rows, half ? 32 : 64);
    di_amx_tile(&t, 6, half ? 8 : 16, 64);        /* weights                */
    di_amx_tile(&t, 7, half ? 8 : 16, 64);
    di_amx_configure(&t);
}

/* The last tile of minima has zeros behind the last block. */
static void
pad_min_tiles(uint8_t *tiles, size_t n_blocks)
{
    memset(tiles + n_blocks * 128, 0, (8 - n_blocks % 8) % 8 * 128);
}

/* acc[r] += sums of one unit, scaled. */
DI_AMX_INLINE void
add_scaled(__m512 *acc, const float *sums, __m512 d, const size_t slots)
{
#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        acc[r] = _mm512_fmadd_ps(_mm512_load_ps(sums + r * 16), d, acc[r]);
}

/* Columns of panel p of n rows from row r on. */
DI_AMX_INLINE void
put_rows(const job_t *j, size_t p, size_t r, size_t n, const __m512 *acc,
         const size_t slots)
{
    const di_cpu_matmul_t *a = j->a;
    size_t col = p * DI_CPU_PANEL, left = j->part->n - col;
    __mmask16 mask = left < 16 ? (__mmask16) ((1u << left) - 1) : 0xffff;
    float *out = a->out + r * a->w->n + j->part->first + col;
    __m512 bias = _mm512_setzero_ps();

    if (a->bias)
        bias = _mm512_maskz_loadu_ps(mask, a->bias + j->part->first + col);
#pragma GCC unroll 16
    for (size_t i = 0; i < slots; i++, out += a->w->n)
        if (i < n)
            _mm512_mask_storeu_ps(out, mask,
                                  a->bias ? _mm512_add_ps(acc[i], bias)
                                          : acc[i]);
}

/* -- few rows: the stream of blocks --------------------------------------- */

/* Blocks of panels lie in a row; expansion runs ahead of the products. */
typedef struct {
    const uint8_t *block;        /* next to expand                          */
    size_t         b;            /* in its panel                            */
    size_t         panel;        /* from p0 on                              */
    size_t         turn;         /* blocks so far: place in the ring        */
} ahead_t;

DI_AMX_INLINE void
expand_ahead(const job_t *j, ahead_t *e, const int shape)
{
    scratch_t *s = j->s;

    if (e->panel == j->p1 - j->p0)
        return;
    for (size_t i = 0; i < j->f.block_bytes; i += 64)
        _mm_prefetch((const char *) e->block + PREFETCH + i, _MM_HINT_T1);
    expand_block(e->block, &j->t, s->tiles + e->turn % RING * 2048, shape);
    if (!IS_HALF(shape))
        expand_min(s->min_tiles[e->panel % PANELS_MAX], e->block, &j->f, e->b);
    e->block += j->f.block_bytes;
    e->turn++;
    if (++e->b == j->n_blocks) {
        e->b = 0;
        e->panel++;
    }
    di_amx_fence();
}

/* Scale of unit u of a panel; minima have none. */
DI_AMX_INLINE __m512
scale_of(const job_t *j, const uint8_t *panel, size_t u, const int shape)
{
    size_t b = IS_HALF(shape) ? u / 2 : u;

    if (b >= j->n_blocks)
        return _mm512_set1_ps(1.0f);
    return load_numbers(panel + b * j->f.block_bytes + j->f.scale_at,
                        IS_HALF(shape) ? u % 2 : 0, j->f.f16);
}

/* -- up to 4 rows: groups of units share a tile of sums -------------------- */

/* Rows of the tile of sums: a slot of rows for each unit of a group. */
DI_AMX_INLINE size_t
group_rows(size_t slots)
{
    return slots == 1 ? GROUP_ROWS : GROUP_ROWS * 2;
}

/* Lay out the rows, `lines` lines of 64 bytes per 32 values. */
static void
fill_pad(const job_t *j, size_t slots, size_t lines)
{
    scratch_t *s = j->s;
    size_t n_units = j->n_blocks + j->n_mins;
    const uint8_t *x;
    uint8_t *to;

    if (s->pad_slots != slots || s->pad_rows != j->n) {
        s->pad_slots = slots;
        s->pad_rows = j->n;
        s->pad_units = 0;
    }
    if (s->pad_units < n_units) {
        memset(s->pad, 0, (n_units + 1) * lines * 64);
        s->pad_units = n_units;
    }
    for (size_t r = 0; r < j->n; r++) {
        x = j->a->act + (j->r0 + r) * j->a->act_stride;
        to = s->pad + (lines - slots + r) * 64;
        for (size_t u = 0; u < n_units; u++)
            _mm512_store_si512(to + u * lines * 64,
                               _mm512_load_si512(x + u * 64));
    }
}

/* Unit u + i into the tile of sums C, at slot i. */
#define GROUP_PRODUCT(C)                                                    \
    do {                                                                    \
        b = half ? (u + i) / 2 : u + i;                                     \
        if (b < j->n_blocks) {                                              \
            if (!half || (u + i) % 2 == 0)                                  \
                expand_ahead(j, &e, shape);                                 \
            tile = s->tiles + turn % RING * 2048                            \
                   + (half ? (u + i) % 2 * 512 : 0);                        \
            turn += !half || (u + i) % 2;                                   \
        } else {                                                            \
            tile = s->min_tiles[p % PANELS_MAX]                             \
                   + (b - j->n_blocks) * 1024;                              \
        }                                                                   \
        _tile_loadd(4, x + (b * rows - i * slots) * 64                      \
                       + (half ? (u + i) % 2 * 32 : 0), 64);                \
        _tile_loadd(6, tile, 64);                                           \
        _tile_dpbf16ps(C, 4, 6);                                            \
        if (two && b < j->n_blocks) {                                       \
            _tile_loadd(6, tile + 1024, 64);                                \
            _tile_dpbf16ps(C, 4, 6);                                        \
        }                                                                   \
    } while (0)

/* A group makes its sums in tile C; those of the group before are stored, and
 * those of the one before that, which have left the store buffer, are scaled
 * and added: AVX-512 loads can't be forwarded from a tile store. */
#define GROUP_STEP(C, C_OLD)                                                \
    do {                                                                    \
        if (p < n_panels) {                                                 \
            _tile_zero(C);                                                  \
            if (n - u >= group) {                                           \
                for (size_t i = 0; i < group; i++)                          \
                    GROUP_PRODUCT(C);                                       \
                u += group;                                                 \
            } else {                                                        \
                for (size_t i = 0; i < n - u; i++)                          \
                    GROUP_PRODUCT(C);                                       \
                u = n;                                                      \
            }                                                               \
            if (u == n) {                                                   \
                u = 0;                                                      \
                p++;                                                        \
            }                                                               \
        }                                                                   \
        if (g >= 1)                                                         \
            _tile_stored(C_OLD, s->sums[(g - 1) % 4], 64);                  \
        di_amx_fence();                                                     \
        if (g >= 2) {                                                       \
            for (size_t i = 0; i < group && ua < n; i++, ua++)              \
                add_scaled(acc, s->sums[(g - 2) % 4] + i * slots * 16,      \
                           scale_of(j, panel, ua, shape), slots);           \
            if (ua == n) {                                                  \
                put_rows(j, j->p0 + pa, j->r0, j->n, acc, slots);           \
                for (size_t r = 0; r < slots; r++)                          \
                    acc[r] = _mm512_setzero_ps();                           \
                panel += j->part->panel_bytes;                              \
                ua = 0;                                                     \
                if (++pa == n_panels)                                       \
                    return;                                                 \
            }                                                               \
        }                                                                   \
        g++;                                                                \
    } while (0)

DI_AMX_INLINE void
group_run(const job_t *j, const size_t slots, const int shape)
{
    const bool two = IS_WIDE(shape), half = IS_HALF(shape);
    const size_t rows = group_rows(slots), group = rows / slots;
    const size_t n = half ? 2 * j->n_blocks : j->n_blocks + j->n_mins;
    const size_t n_panels = j->p1 - j->p0;
    const uint8_t *x = j->s->pad + (rows - slots) * 64, *tile;
    const uint8_t *panel = j->part->packed + j->p0 * j->part->panel_bytes;
    ahead_t e = { panel, 0, 0, 0 };
    scratch_t *s = j->s;
    size_t u = 0, p = 0;         /* next product                            */
    size_t ua = 0, pa = 0;       /* next addition                           */
    size_t g = 0, turn = 0, b;
    __m512 acc[4];

    for (size_t r = 0; r < slots; r++)
        acc[r] = _mm512_setzero_ps();
    for (b = 0; b < RING / 2; b++)
        expand_ahead(j, &e, shape);

    for (;;) {
        GROUP_STEP(0, 1);
        GROUP_STEP(1, 0);
    }
}

/* -- more rows: a pipeline over the units of all panels -------------------- */

#define STORE_LATE  2            /* units from a product to its store       */
#define ADD_LATE    4            /* and to scaling and adding it            */

/* Product of a unit into tile C; store of an earlier one, in tile C_OLD;
 * scaling and adding of a still earlier one. */
#define PIPE_STEP(C, C_OLD)                                                 \
    do {                                                                    \
        if (p < n_panels) {                                                 \
            b = half ? u / 2 : u;                                           \
            if (b >= n_blocks) {                                            \
                tile = s->min_tiles[p % PANELS_MAX]                         \
                       + (b - n_blocks) * 1024;                             \
            } else if (few) {                                               \
                if (!half || u % 2 == 0)                                    \
                    expand_ahead(j, &e, shape);                             \
                tile = s->tiles + turn % RING * 2048                        \
                       + (half ? u % 2 * 512 : 0);                          \
                turn += !half || u % 2;                                     \
            }                                                               \
            _tile_zero(C);                                                  \
            _tile_loadd(4, x, x_stride);                                    \
            _tile_loadd(6, tile, 64);                                       \
            _tile_dpbf16ps(C, 4, 6);                                        \
            if (two && b < n_blocks) {                                      \
                _tile_loadd(6, tile + 1024, 64);                            \
                _tile_dpbf16ps(C, 4, 6);                                    \
            }                                                               \
            x += half ? 32 : 64;                                            \
            tile += !half ? (two ? 2048 : 1024) : u % 2 ? 1536 : 512;       \
            if (++u == n) {                                                 \
                u = 0;                                                      \
                x = x0;                                                     \
                tile = s->piece[++p];                                       \
            }                                                               \
        }                                                                   \
        if (t >= STORE_LATE)                                                \
            _tile_stored(C_OLD, s->sums[(t - STORE_LATE) % RING], 64);      \
        di_amx_fence();                                                     \
        if (t >= ADD_LATE) {                                                \
            if (few) {                                                      \
                d = scale_of(j, panel, ua, shape);                          \
            } else {                                                        \
                d = _mm512_load_ps(scale);                                  \
                scale += 16;                                                \
            }                                                               \
            add_scaled(acc, s->sums[(t - ADD_LATE) % RING], d, slots);      \
            if (++ua == n) {                                                \
                pipe_put(j, pa, acc, slots, few);                           \
                if (++pa == n_panels)                                       \
                    return;                                                 \
                ua = 0;                                                     \
                panel += j->part->panel_bytes;                              \
                scale = s->scales[pa];                                      \
                pipe_begin(j, pa, acc, slots, few);                         \
            }                                                               \
        }                                                                   \
        t++;                                                                \
    } while (0)

/* Sums of panel i (from p0 on) at its first unit, and at its last. */
DI_AMX_INLINE void
pipe_begin(const job_t *j, size_t i, __m512 *acc, const size_t slots,
           const bool few)
{
    const float *from = j->s->acc[j->r / 16][i];
    bool go_on = !few && j->piece_first > 0;

#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        acc[r] = go_on ? _mm512_load_ps(from + r * 16)
                       : _mm512_setzero_ps();
}

DI_AMX_INLINE void
pipe_put(const job_t *j, size_t i, const __m512 *acc, const size_t slots,
         const bool few)
{
    float *to = j->s->acc[j->r / 16][i];

    if (few || j->piece_first + j->piece_blocks == j->n_blocks) {
        put_rows(j, j->p0 + i, j->r0 + j->r, j->rows, acc, slots);
        return;
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < slots; r++)
        _mm512_store_ps(to + r * 16, acc[r]);
}

DI_AMX_INLINE void
pipe_run(const job_t *j, const size_t slots, const int shape, const bool few)
{
    const bool two = IS_WIDE(shape), half = IS_HALF(shape);
    const size_t n_blocks = few ? j->n_blocks : j->piece_blocks;
    const size_t n = j->piece_units, n_panels = j->p1 - j->p0;
    const size_t x_stride = j->a->act_stride;
    const uint8_t *x0 = j->a->act + (j->r0 + j->r) * x_stride
                        + j->piece_first * 64, *x = x0;
    const uint8_t *panel = j->part->packed + j->p0 * j->part->panel_bytes;
    scratch_t *s = j->s;
    const uint8_t *tile = s->piece[0];
    const float *scale = s->scales[0];
    ahead_t e = { panel, 0, 0, 0 };
    size_t u = 0, p = 0;         /* next product                            */
    size_t ua = 0, pa = 0;       /* next addition                           */
    size_t t = 0, turn = 0, b;
    __m512 acc[16], d;

    pipe_begin(j, 0, acc, slots, few);
    for (b = 0; few && b < RING / 2; b++)
        expand_ahead(j, &e, shape);

    for (;;) {
        PIPE_STEP(0, 1);
        PIPE_STEP(1, 2);
        PIPE_STEP(2, 0);
    }
}

/* -- the shapes ------------------------------------------------------------ */

typedef void (*run_fn)(const job_t *j);

#define RUN(name, call)                                                     \
static __attribute__((noinline)) void                                       \
name(const job_t *j)                                                        \
{                                                                           \
    call;                                                                   \
}

#define RUNS(n)                                                             \
RUN(few_##n##_1, group_run(j, 1, SHAPE_##n))                                \
RUN(few_##n##_2, group_run(j, 2, SHAPE_##n))                                \
RUN(few_##n##_4, group_run(j, 4, SHAPE_##n))                                \
RUN(few_##n##_8, pipe_run(j, 8, SHAPE_##n, true))                           \
RUN(few_##n##_16, pipe_run(j, 16, SHAPE_##n, true))                         \
RUN(many_##n, pipe_run(j, 16, SHAPE_##n, false))

RUNS(4)
RUNS(5)
RUNS(6)
RUNS(8)

#define FEW(n) { few_##n##_1, few_##n##_2, few_##n##_4, few_##n##_8,        \
                 few_##n##_16 }

static const run_fn few_runs[N_SHAPES][5] = {
    [SHAPE_4] = FEW(4), [SHAPE_5] = FEW(5), [SHAPE_6] = FEW(6),
    [SHAPE_8] = FEW(8),
};

static const run_fn many_runs[N_SHAPES] = {
    [SHAPE_4] = many_4, [SHAPE_5] = many_5, [SHAPE_6] = many_6,
    [SHAPE_8] = many_8,
};

/* -- panels ---------------------------------------------------------------- */

/* Up to 16 rows: panels are expanded as they are read. */
static void
panels_few(job_t *j)
{
    unsigned log2 = j->n > 8 ? 4 : j->n > 4 ? 3 : j->n > 2 ? 2 : j->n > 1;
    size_t rows = group_rows((size_t) 1 << log2);

    j->piece_first = j->r = 0;
    j->piece_units = j->f.half ? 2 * j->n_blocks : j->n_blocks + j->n_mins;
    j->rows = j->n;
    if (log2 < 3)
        fill_pad(j, (size_t) 1 << log2, rows);
    configure(log2 < 3 ? rows : j->n, j->f.half);
    for (size_t i = 0; i < PANELS_MAX; i++)
        pad_min_tiles(j->s->min_tiles[i], j->n_blocks);
    few_runs[shape_of(&j->f)][log2](j);
}

/* The piece of panel i (from p0 on) to s->piece, s->scales, s->min_tiles. */
static void
expand_piece(const job_t *j, size_t i)
{
    scratch_t *s = j->s;
    const uint8_t *block = j->part->packed
                           + (j->p0 + i) * j->part->panel_bytes
                           + j->piece_first * j->f.block_bytes;
    float *scale = s->scales[i];
    uint8_t *tile = s->piece[i];
    int shape = shape_of(&j->f);

    for (size_t b = 0; b < j->piece_blocks; b++, block += j->f.block_bytes) {
        switch (shape) {
        case SHAPE_4: expand_block(block, &j->t, tile, SHAPE_4); break;
        case SHAPE_5: expand_block(block, &j->t, tile, SHAPE_5); break;
        case SHAPE_8: expand_block(block, &j->t, tile, SHAPE_8); break;
        default:      expand_block(block, &j->t, tile, SHAPE_6); break;
        }
        tile += IS_WIDE(shape) ? 2048 : 1024;
        for (size_t h = 0; h < 1u + j->f.half; h++, scale += 16)
            _mm512_store_ps(scale, load_numbers(block + j->f.scale_at, h,
                                                j->f.f16));
        if (!j->f.half)
            expand_min(s->min_tiles[i], block, &j->f, j->piece_first + b);
    }
    for (size_t u = 0; u < j->n_mins; u++, scale += 16)
        _mm512_store_ps(scale, _mm512_set1_ps(1.0f));
    pad_min_tiles(s->min_tiles[i], j->n_blocks);
    di_amx_fence();
}

/* At most PANELS_MAX panels and ROWS_MAX rows.  A piece of all panels is
 * expanded, to the second-level cache; then a tile of rows, which stays in
 * the first level, meets one panel after another: so what streams from the
 * second level lies in a row. */
static void
panels_many(job_t *j)
{
    run_fn run = many_runs[shape_of(&j->f)];
    size_t pieces = (j->n_blocks + PIECE_BLOCKS - 1) / PIECE_BLOCKS;
    size_t step = (j->n_blocks + pieces - 1) / pieces, left;

    for (size_t b = 0; b < j->n_blocks; b += step) {
        left = j->n_blocks - b;
        j->piece_first = b;
        j->piece_blocks = left < step ? left : step;
        j->piece_units = j->f.half ? 2 * j->piece_blocks
                         : j->piece_blocks + (left <= step ? j->n_mins : 0);
        for (size_t i = 0; i < j->p1 - j->p0; i++)
            expand_piece(j, i);

        configure(16, j->f.half);
        for (j->r = 0; j->r < j->n; j->r += 16) {
            j->rows = j->n - j->r < 16 ? j->n - j->r : 16;
            if (j->rows < 16)
                configure(j->rows, j->f.half);
            run(j);
        }
    }
}

/* Plain bfloat16 tiles: their sums stay in tiles.  Up to 3 tiles of rows use
 * a tile of weights while it is loaded. */
static void
panels_plain(const job_t *j)
{
    scratch_t *s = j->s;
    size_t full = j->n / 16 * 16, rows, tiles;
    size_t stride = j->a->act_stride;
    const uint8_t *w, *x;
    __m512 acc[16];

    for (size_t p = j->p0; p < j->p1; p++) {
        configure(16, false);
        for (size_t r = 0; r < j->n; r += 16 * tiles) {
            if (r == full)
                configure(j->n - full, false);
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
            _tile_stored(0, s->sums[0], 64);
            _tile_stored(1, s->sums[1], 64);
            _tile_stored(2, s->sums[2], 64);
            di_amx_fence();
            for (size_t i = 0; i < tiles; i++) {
                rows = j->n - r - i * 16;
                memcpy(acc, s->sums[i], sizeof(acc));
                put_rows(j, p, j->r0 + r + i * 16, rows < 16 ? rows : 16,
                         acc, 16);
            }
        }
    }
}

void
di_amx_matmul(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
              size_t p0, size_t p1, size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = di_amx_format(part->type),
                .n_blocks = a->w->k / DI_WBLOCK };

    if (j.f.half)
        j.t = make_tables();
    else
        j.n_mins = (j.n_blocks + 7) / 8;

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        j.p0 = p0;
        j.p1 = p1;
        if (j.f.bits == 0) {
            panels_plain(&j);
        } else if (j.n <= FEW_ROWS) {
            panels_few(&j);
        } else {
            for (; j.p0 < p1; j.p0 = j.p1) {
                j.p1 = p1 - j.p0 < PANELS_MAX ? p1 : j.p0 + PANELS_MAX;
                panels_many(&j);
            }
        }
    }
    _tile_release();
}

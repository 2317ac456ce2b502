/*
 * micro_q8_512.h - the product with E2M1 and E4M3 weights of
 * matmul_q8_avx512.c, which includes it at its end, from rows as they lie in
 * the file.  micro_q8_256.h with registers of 16 columns, two panels at a
 * time; E4M3 becomes float32 by the tables of vec512.h.
 */

#define MICRO_BYTES  128         /* of each row in a piece                  */
#define MICRO_VALUES MICRO_BYTES /* the same in E4M3                        */
#define MICRO_BLOCKS (MICRO_VALUES / DI_WBLOCK)
#define E2M1_BLOCKS  (2 * MICRO_BLOCKS)

typedef struct {
    float w[2][MICRO_VALUES][16];        /* of panel                        */
    float scales[2][MICRO_BLOCKS][16];
    float acc[ROWS_MAX][2][16];          /* sums of products so far         */
    float x[ROWS_MAX][MICRO_VALUES];     /* activations of the piece        */
} micro_t;

_Static_assert(sizeof(micro_t) <= DI_CPU_SCRATCH, "scratch is too small");
_Static_assert(E2M1_BLOCKS <= PIECE, "codes of a piece are too many");

/* A piece of 16 rows as they are in the file. */
typedef struct {
    _Alignas(64) uint8_t row[DI_CPU_PANEL][MICRO_BYTES];
} stage_t;

/* -- rows and scales ------------------------------------------------------- */

/* Where the i-th row of a panel lies: behind the last row, the last. */
DI_VEC_INLINE size_t
micro_row(const job_t *j, size_t p, size_t i)
{
    size_t row = p * DI_CPU_PANEL + i;

    return row < j->part->n ? row : j->part->n - 1;
}

/* n bytes of each row of a panel, from byte at on: a multiple of 16.  What is
 * two panels on is prefetched. */
DI_VEC_INLINE void
micro_stage(const job_t *j, size_t p, size_t at, size_t n, stage_t *to)
{
    size_t ahead = 2 * DI_CPU_PANEL * j->part->row_bytes;
    const uint8_t *from;

    for (size_t i = 0; i < DI_CPU_PANEL; i++) {
        from = (const uint8_t *) j->part->data
               + micro_row(j, p, i) * j->part->row_bytes + at;
        for (size_t b = 0; b < n; b += 64)
            _mm_prefetch((const char *) from + ahead + b, _MM_HINT_T1);
        for (size_t b = 0; b < n; b += 16)
            _mm_store_si128((void *) &to->row[i][b],
                            _mm_loadu_si128((const void *) (from + b)));
    }
}

/* Scales of n blocks from b0 on, at most 16, of 16 rows, times unit: those of
 * block i at to + i * stride. */
DI_VEC_INLINE void
micro_scales(const job_t *j, size_t p, size_t b0, size_t n, float unit,
             float *to, size_t stride)
{
    const __m512i odd = _mm512_set1_epi32(0x00400000);
    __mmask16 mask = (__mmask16) ((1u << n) - 1), is_odd;
    const uint8_t *scales = j->part->scales;
    __m512i v[16], x;
    size_t row;

    for (size_t i = 0; i < 16; i++) {
        row = micro_row(j, p, i);
        row = j->part->type == DI_W_E4M3_B32 ? row / 32 : row;
        x = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(
            mask, scales + row * j->n_blocks + b0));
        is_odd = _mm512_cmpeq_epi32_mask(x, _mm512_setzero_si512())
                 | _mm512_cmpeq_epi32_mask(x, _mm512_set1_epi32(255));
        x = _mm512_slli_epi32(x, 23);            /* 2^(x - 127)             */
        x = _mm512_mask_or_epi32(x, is_odd, x, odd);
        v[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(x),
                                                 _mm512_set1_ps(unit)));
    }
    di_transpose16(v);
    for (size_t i = 0; i < n; i++)
        _mm512_store_si512(to + i * stride, v[i]);
}

/* 16 bytes of each of 16 rows, to columns: dwords of 16 rows. */
DI_VEC_INLINE void
micro_load(const stage_t *rows, size_t at, __m512i *v)
{
    __m512i t[4];

    UNROLL
    for (size_t i = 0; i < 4; i++) {
        v[i] = _mm512_castsi128_si512(
            _mm_load_si128((const void *) &rows->row[i][at]));
        v[i] = _mm512_inserti32x4(v[i], _mm_load_si128(
            (const void *) &rows->row[i + 4][at]), 1);
        v[i] = _mm512_inserti32x4(v[i], _mm_load_si128(
            (const void *) &rows->row[i + 8][at]), 2);
        v[i] = _mm512_inserti32x4(v[i], _mm_load_si128(
            (const void *) &rows->row[i + 12][at]), 3);
    }
    t[0] = _mm512_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm512_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm512_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

/* -- E2M1 ------------------------------------------------------------------ */

/* A dword of 8 codes of each column: twice their values plus 12, in two
 * groups. */
DI_VEC_INLINE void
e2m1_groups(__m512i x, uint8_t *to)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi8(
        0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
    const __m512i second = _mm512_broadcast_i32x4(_mm_setr_epi8(
        2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15));
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaaull;
    __m512i even_codes, odd_codes;

    odd_codes = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    odd_codes = _mm512_shuffle_epi8(table, odd_codes);
    even_codes = _mm512_shuffle_epi8(table, _mm512_and_si512(x, low));
    x = _mm512_shuffle_epi8(even_codes, first);
    x = _mm512_mask_shuffle_epi8(x, odd, odd_codes, first);
    _mm512_store_si512(to, x);
    x = _mm512_shuffle_epi8(even_codes, second);
    x = _mm512_mask_shuffle_epi8(x, odd, odd_codes, second);
    _mm512_store_si512(to + 64, x);
}

/* n blocks of panel p, as the i-th of two. */
DI_VEC_INLINE void
e2m1_expand(const job_t *j, size_t p, size_t i, size_t b0, size_t n)
{
    scratch_t *s = j->s;
    stage_t rows;
    __m512i v[4];

    micro_stage(j, p, b0 * 16, n * 16, &rows);
    for (size_t b = 0; b < n; b++) {
        micro_load(&rows, b * 16, v);
        UNROLL
        for (size_t g = 0; g < 4; g++)
            e2m1_groups(v[g], s->codes[b][i] + g * 128);
    }
    micro_scales(j, p, b0, n, 0.5f, s->scales[0][0][i],
                 sizeof(s->scales[0]) / sizeof(float));
}

/* -- E4M3 ------------------------------------------------------------------ */

/* n blocks of panel p, as the i-th of two: a value's two bytes go to the
 * upper half of a float. */
DI_VEC_INLINE void
e4m3_expand(const job_t *j, const di_e4m3_t *t, size_t p, size_t i,
            size_t b0, size_t n)
{
    const __m512i lower = _mm512_set1_epi32(0x00ff0000);
    const __m512i upper = _mm512_set1_epi32((int) 0xff000000u);
    micro_t *s = (micro_t *) (void *) j->s;
    __m512i v[4], low, high, x;
    stage_t rows;

    micro_stage(j, p, b0 * DI_WBLOCK, n * DI_WBLOCK, &rows);
    for (size_t k = 0; k < n * DI_WBLOCK; k += 16) {
        micro_load(&rows, k, v);
        UNROLL
        for (size_t g = 0; g < 4; g++) {
            di_e4m3_bytes(t, v[g], &low, &high);
            UNROLL
            for (unsigned c = 0; c < 4; c++) {
                x = c == 3 ? _mm512_srli_epi32(low, 8)
                           : _mm512_slli_epi32(low, c < 3 ? 16 - 8 * c : 0);
                x = _mm512_and_si512(x, lower);
                x = _mm512_or_si512(x, _mm512_and_si512(
                    _mm512_slli_epi32(high, 24 - 8 * c), upper));
                _mm512_store_si512(s->w[i][k + g * 4 + c], x);
            }
        }
    }
    micro_scales(j, p, b0, n, 1.0f, s->scales[i][0], 16);
}

/* The rows' values of the piece as float32. */
static void
e4m3_spread(const job_t *j, size_t b0, size_t n)
{
    micro_t *s = (micro_t *) (void *) j->s;
    const uint8_t *x;

    for (size_t r = 0; r < j->n; r++) {
        x = row_of(j, r) + b0 * DI_WBLOCK;
        for (size_t i = 0; i < n * DI_WBLOCK; i += 16)
            _mm512_store_ps(&s->x[r][i], _mm512_cvtepi32_ps(
                _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)
                                                     (x + i)))));
    }
}

/* The piece of n blocks for a tile of rows: a block's sum is a chain over its
 * values, then scaled and added. */
DI_VEC_INLINE void
e4m3_tile(const job_t *j, size_t r0, size_t b0, size_t n, const size_t rows)
{
    const size_t scales_at = di_q8_scales_at(j->a->w->k);
    micro_t *s = (micro_t *) (void *) j->s;
    __m512 sum[TILE_ROWS][2], w0, w1, x;

    for (size_t b = 0; b < n; b++) {
        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm512_setzero_ps();
        for (size_t k = b * DI_WBLOCK; k < (b + 1) * DI_WBLOCK; k++) {
            w0 = _mm512_load_ps(s->w[0][k]);
            w1 = _mm512_load_ps(s->w[1][k]);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = _mm512_set1_ps(s->x[r0 + r][k]);
                sum[r][0] = _mm512_fmadd_ps(w0, x, sum[r][0]);
                sum[r][1] = _mm512_fmadd_ps(w1, x, sum[r][1]);
            }
        }
        w0 = _mm512_load_ps(s->scales[0][b]);
        w1 = _mm512_load_ps(s->scales[1][b]);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *acc = s->acc[r0 + r][0];

            x = number(row_of(j, r0 + r) + scales_at + (b0 + b) * 4);
            _mm512_store_ps(acc, _mm512_fmadd_ps(
                sum[r][0], _mm512_mul_ps(x, w0), _mm512_load_ps(acc)));
            _mm512_store_ps(acc + 16, _mm512_fmadd_ps(
                sum[r][1], _mm512_mul_ps(x, w1), _mm512_load_ps(acc + 16)));
        }
    }
}

static void
e4m3_tiles(const job_t *j, size_t b0, size_t n)
{
    size_t r = 0;

    for (; r + 6 <= j->n; r += 6)
        e4m3_tile(j, r, b0, n, 6);
    if (r + 4 <= j->n) {
        e4m3_tile(j, r, b0, n, 4);
        r += 4;
    }
    if (r + 2 <= j->n) {
        e4m3_tile(j, r, b0, n, 2);
        r += 2;
    }
    if (r < j->n)
        e4m3_tile(j, r, b0, n, 1);
}

/* -- panels ---------------------------------------------------------------- */

/* Panels p and p + 1; of the latter, if there is none, whatever lies in the
 * scratch is multiplied, and left there. */
static void
e2m1_panels(const job_t *j, size_t p, size_t n_panels)
{
    size_t n;

    for (size_t b = 0; b < j->n_blocks; b += E2M1_BLOCKS) {
        n = j->n_blocks - b < E2M1_BLOCKS ? j->n_blocks - b : E2M1_BLOCKS;
        for (size_t i = 0; i < n_panels; i++)
            e2m1_expand(j, p + i, i, b, n);
        tiles_signed(j, b, n);
    }
    for (size_t r = 0; r < j->n; r++)
        for (size_t i = 0; i < n_panels; i++)
            put(j, p + i, r, _mm512_load_ps(j->s->acc[r][i]));
}

static void
e4m3_panels(const job_t *j, const di_e4m3_t *t, size_t p, size_t n_panels)
{
    micro_t *s = (micro_t *) (void *) j->s;
    size_t n;

    memset(s->acc, 0, j->n * sizeof(s->acc[0]));
    for (size_t b = 0; b < j->n_blocks; b += MICRO_BLOCKS) {
        n = j->n_blocks - b < MICRO_BLOCKS ? j->n_blocks - b : MICRO_BLOCKS;
        e4m3_spread(j, b, n);
        for (size_t i = 0; i < n_panels; i++)
            e4m3_expand(j, t, p + i, i, b, n);
        e4m3_tiles(j, b, n);
    }
    for (size_t r = 0; r < j->n; r++)
        for (size_t i = 0; i < n_panels; i++)
            put(j, p + i, r, _mm512_load_ps(s->acc[r][i]));
}

void
di_q8_matmul_micro_avx512(const di_cpu_matmul_t *a,
                          const di_cpu_wpart_t *part, size_t p0, size_t p1,
                          size_t r0, size_t r1, void *scratch)
{
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = { .bias = 12 }, .n_blocks = a->w->k / DI_WBLOCK };
    di_e4m3_t t = di_e4m3_tables();

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < ROWS_MAX ? r1 - j.r0 : ROWS_MAX;
        for (size_t p = p0; p < p1; p += 2) {
            if (part->type == DI_W_E2M1_R32)
                e2m1_panels(&j, p, p1 - p < 2 ? 1 : 2);
            else
                e4m3_panels(&j, &t, p, p1 - p < 2 ? 1 : 2);
        }
    }
}

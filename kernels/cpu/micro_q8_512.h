/*
 * micro_q8_512.h - the product with E2M1 and E4M3 weights of
 * matmul_q8_512.h, which includes it at its end, from rows as they lie in the
 * file.
 *
 * 64 bytes of each of 16 rows fill 16 registers; turned, these are dwords of
 * 16 columns.  A dword holds
 *
 *   E2M1  eight codes.  VPERMB makes 12 plus twice its value of each even one
 *         and, shifted, of each odd one, ignoring the bits above: two groups
 *         of VPDPBUSD, and nothing to sort, since the activations are in that
 *         order (e2m1_spread()).  From there on they are codes with a bias.
 *   E4M3  four values.  Tables give both bytes of their bfloat16, another
 *         permutation the two pairs that VDPBF16PS takes, the second of each
 *         first.  Without it the same is two FMAs on the halves as floats.
 *
 * Few rows multiply them where they are made, more rows an expanded piece.
 *
 * 16 rows are more streams than the hardware follows: a panel is prefetched
 * while the one before it is read, in the order of its bytes.  In that of its
 * use, row by row, memory gives half as much.
 */

#define UNROLL16     _Pragma("GCC unroll 16")
#define MICRO_AHEAD  4096        /* bytes prefetched of the panel after the
                                  * next                                    */
#define MICRO_SCALES 16          /* blocks whose scales are turned at once  */
#define MICRO_PIECE  8           /* blocks of an expanded piece             */

_Static_assert(MICRO_SCALES <= PIECE, "scales of few rows are too many");
_Static_assert(MICRO_PIECE <= PIECE / 2, "pairs of a piece are too many");

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
 * to[i]. */
DI_VEC_INLINE void
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
}

/* Scales of n blocks from b0 on, at most MICRO_SCALES, of panel p, the i-th
 * of two, times unit. */
DI_VEC_INLINE void
micro_scales(const job_t *j, size_t p, size_t i, size_t b0, size_t n,
             float unit)
{
    const uint8_t *rows = (const uint8_t *) j->part->scales
                          + p / 2 * j->n_blocks + b0;
    const __m512i odd = _mm512_set1_epi32(0x00400000);
    _Alignas(16) uint8_t bytes[MICRO_SCALES][16];
    __m512i x;

    if (j->part->type != DI_W_E4M3_B32)
        micro_scale_bytes(j, p, b0, n, bytes);
    for (size_t b = 0; b < n; b++) {
        x = j->part->type == DI_W_E4M3_B32
            ? _mm512_set1_epi32(rows[b])
            : _mm512_cvtepu8_epi32(_mm_load_si128((void *) bytes[b]));
        /* 2^(x - 127): 0 is a subnormal, 255 not a number. */
        x = _mm512_mask_or_epi32(
            _mm512_slli_epi32(x, 23),
            _mm512_cmplt_epi32_mask(_mm512_and_si512(
                _mm512_add_epi32(x, _mm512_set1_epi32(1)),
                _mm512_set1_epi32(255)), _mm512_set1_epi32(2)),
            _mm512_slli_epi32(x, 23), odd);
        _mm512_store_ps(j->s->scales[b][0][i],
                        _mm512_mul_ps(_mm512_castsi512_ps(x),
                                      _mm512_set1_ps(unit)));
    }
}

/* -- E2M1 ------------------------------------------------------------------ */

#define E2M1_BYTES (DI_WBLOCK / 2)

/* Twice the values of 64 codes in the lower halves of bytes, plus 12. */
DI_VEC_INLINE __m512i
e2m1_codes(__m512i x)
{
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

    return _mm512_permutexvar_epi8(x, table);
}

/* The job with rows of its own, whose values are sorted by eights: even ones,
 * then odd ones. */
static void
e2m1_spread(job_t *j)
{
    const __m128i sorted = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12,
                                         14, 9, 11, 13, 15);
    const size_t k = j->a->w->k;
    uint8_t *to = j->s->spread;
    const uint8_t *from;

    for (size_t r = 0; r < j->n; r++, to += j->act_stride) {
        from = row_of(j, r);
        for (size_t i = 0; i < k; i += 16)
            _mm_storeu_si128((void *) (to + i), _mm_shuffle_epi8(
                _mm_loadu_si128((const void *) (from + i)), sorted));
        memcpy(to + k, from + k, j->act_stride - k);
    }
    j->act = j->s->spread;
}

/* Blocks [b, b + side) of the four in v, side by side: what is behind the last
 * one is zeros, and not added. */
DI_VEC_INLINE void
e2m1_blocks(const job_t *j, const __m512i *v, size_t b, const size_t side,
            __m512 *acc, const size_t rows)
{
    const size_t halves_at = di_q8_halves_at(j->a->w->k) + b * 4;
    const size_t scales_at = di_q8_scales_at(j->a->w->k) + b * 4;
    const __m512i factor = minus(j->f.bias, false, 0);
    __m512i dot[FEW_ROWS][4], even, odd;
    const uint8_t *x;
    __m512 d;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
        for (size_t h = 0; h < side; h++)
            dot[r][h] = start(row_of(j, r) + halves_at + h * 4, factor, true);
    UNROLL
    for (size_t g = 0; g < 4; g++) {
        UNROLL
        for (size_t h = 0; h < side; h++) {
            even = e2m1_codes(v[h * 4 + g]);
            odd = e2m1_codes(_mm512_srli_epi16(v[h * 4 + g], 4));
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = row_of(j, r) + (b + h) * DI_WBLOCK + g * 8;
                dot[r][h] = _mm512_dpbusd_epi32(dot[r][h], even, four(x));
                dot[r][h] = _mm512_dpbusd_epi32(dot[r][h], odd, four(x + 4));
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
            acc[r] = _mm512_fmadd_ps(
                _mm512_cvtepi32_ps(dot[r][h]),
                _mm512_mul_ps(d, number(row_of(j, r) + scales_at + h * 4)),
                acc[r]);
    }
}

DI_VEC_INLINE void
e2m1_few(const job_t *j, size_t p, const size_t rows)
{
    const size_t side = rows <= 2 ? 4 : 2;
    __m512 acc[FEW_ROWS];
    __m512i v[16];
    size_t left;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < j->n_blocks; b += 4) {
        left = j->n_blocks - b;
        if (b % MICRO_SCALES == 0)
            micro_scales(j, p, 0, b, left < MICRO_SCALES ? left
                                                         : MICRO_SCALES,
                         0.5f);
        micro_load(j, p, b * E2M1_BYTES, left * E2M1_BYTES, v);
        UNROLL
        for (size_t h = 0; h < 4; h += side)
            e2m1_blocks(j, v + h * 4, b + h, side, acc, rows);
    }
    for (size_t r = 0; r < rows; r++)
        put(j, p, r, acc[r]);
}

/* n blocks of panel p, as the i-th of two. */
DI_VEC_INLINE void
e2m1_expand(const job_t *j, size_t p, size_t i, size_t b0, size_t n)
{
    __m512i v[16];
    uint8_t *to;

    for (size_t b = 0; b < n; b += 4) {
        micro_load(j, p, (b0 + b) * E2M1_BYTES, (n - b) * E2M1_BYTES, v);
        for (size_t h = 0; h < 4 && b + h < n; h++) {
            to = j->s->codes[b + h][i];
            UNROLL
            for (size_t g = 0; g < 4; g++) {
                _mm512_store_si512(to + g * 128, e2m1_codes(v[h * 4 + g]));
                _mm512_store_si512(to + g * 128 + 64, e2m1_codes(
                    _mm512_srli_epi16(v[h * 4 + g], 4)));
            }
        }
    }
    micro_scales(j, p, i, b0, n, 0.5f);
}

/* Panels p and p + 1; of the latter, if there is none, whatever lies in the
 * scratch is multiplied, and left there. */
static void
e2m1_many(const job_t *j, size_t p, size_t n_panels)
{
    size_t n;

    j->s->ahead = (const char *) micro_rows(j, p + 2);
    j->s->ahead_end = j->s->ahead
                      + 2 * DI_CPU_PANEL * j->part->row_bytes;
    for (size_t b = 0; b < j->n_blocks; b += MICRO_PIECE) {
        n = j->n_blocks - b < MICRO_PIECE ? j->n_blocks - b : MICRO_PIECE;
        for (size_t i = 0; i < n_panels; i++)
            e2m1_expand(j, p + i, i, b, n);
        tiles_signed(j, b, n);
    }
    for (size_t r = 0; r < j->n; r++)
        for (size_t i = 0; i < n_panels; i++)
            put(j, p + i, r, _mm512_load_ps(j->s->acc[r][i]));
}

/* -- E4M3 ------------------------------------------------------------------ */

/* The rows' values as bfloat16, [n][k]. */
static void
e4m3_spread(const job_t *j)
{
    const size_t k = j->a->w->k;
    uint8_t *to = j->s->spread;
    __m512 x;

    for (size_t r = 0; r < j->n; r++, to += k * 2) {
        for (size_t i = 0; i < k; i += 16) {
            x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
                (const void *) (row_of(j, r) + i))));
            _mm256_storeu_si256((void *) (to + i * 2), _mm512_cvtepi32_epi16(
                _mm512_srli_epi32(_mm512_castps_si512(x), 16)));
        }
    }
}

/* A dword's four values: two pairs of bfloat16 for each column. */
DI_VEC_INLINE void
e4m3_pairs(const di_e4m3_t *t, __m512i x, __m512i *first, __m512i *second)
{
    const __m512i step = _mm512_set_epi32(
        0x3c3c3c3c, 0x38383838, 0x34343434, 0x30303030, 0x2c2c2c2c,
        0x28282828, 0x24242424, 0x20202020, 0x1c1c1c1c, 0x18181818,
        0x14141414, 0x10101010, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    __m512i low, high;

    di_e4m3_bytes(t, x, &low, &high);
    *first = _mm512_permutex2var_epi8(
        low, _mm512_add_epi8(step, _mm512_set1_epi32(0x41014000)), high);
    *second = _mm512_permutex2var_epi8(
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

/* The two blocks in v, side by side: a second one that there isn't is zeros,
 * and not added. */
DI_VEC_INLINE void
e4m3_blocks(const job_t *j, const di_e4m3_t *t, const __m512i *v, size_t b,
            __m512 *acc, const size_t rows)
{
    const size_t k = j->a->w->k, scales_at = di_q8_scales_at(k) + b * 4;
    __m512 sum[FEW_ROWS][2], d;
    __m512i first, second;
    const uint8_t *x;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    UNROLL
    for (size_t g = 0; g < 8; g++) {
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            e4m3_pairs(t, v[h * 8 + g], &first, &second);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                x = j->s->spread + (r * k + (b + h) * DI_WBLOCK + g * 4) * 2;
                sum[r][h] = add_pairs(sum[r][h], first, four(x));
                sum[r][h] = add_pairs(sum[r][h], second, four(x + 4));
            }
        }
    }
    UNROLL
    for (size_t h = 0; h < 2; h++) {
        if (b + h == j->n_blocks)
            break;
        d = _mm512_load_ps(j->s->scales[(b + h) % MICRO_SCALES][0][0]);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            acc[r] = _mm512_fmadd_ps(
                sum[r][h],
                _mm512_mul_ps(d, number(row_of(j, r) + scales_at + h * 4)),
                acc[r]);
    }
}

DI_VEC_INLINE void
e4m3_few(const job_t *j, const di_e4m3_t *t, size_t p, const size_t rows)
{
    __m512 acc[FEW_ROWS];
    __m512i v[16];
    size_t left;

    UNROLL
    for (size_t r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < j->n_blocks; b += 2) {
        left = j->n_blocks - b;
        if (b % MICRO_SCALES == 0)
            micro_scales(j, p, 0, b, left < MICRO_SCALES ? left
                                                         : MICRO_SCALES,
                         1.0f);
        micro_load(j, p, b * DI_WBLOCK, left * DI_WBLOCK, v);
        e4m3_blocks(j, t, v, b, acc, rows);
    }
    for (size_t r = 0; r < rows; r++)
        put(j, p, r, acc[r]);
}

/* n blocks of panel p, as the i-th of two. */
DI_VEC_INLINE void
e4m3_expand(const job_t *j, const di_e4m3_t *t, size_t p, size_t i,
            size_t b0, size_t n)
{
    __m512i v[16], first, second;
    uint32_t (*to)[16];

    for (size_t b = 0; b < n; b += 2) {
        micro_load(j, p, (b0 + b) * DI_WBLOCK, (n - b) * DI_WBLOCK, v);
        for (size_t h = 0; h < 2 && b + h < n; h++) {
            to = j->s->pairs[b + h][i];
            UNROLL
            for (size_t g = 0; g < 8; g++) {
                e4m3_pairs(t, v[h * 8 + g], &first, &second);
                _mm512_store_si512(to[g * 2], first);
                _mm512_store_si512(to[g * 2 + 1], second);
            }
        }
    }
    micro_scales(j, p, i, b0, n, 1.0f);
}

/* The n blocks from b0 on that lie expanded, for a tile of rows: a block's sum
 * is a chain over its values, then scaled and added. */
DI_VEC_INLINE void
e4m3_tile(const job_t *j, size_t r0, size_t b0, size_t n, const size_t rows)
{
    const size_t k = j->a->w->k, scales_at = di_q8_scales_at(k);
    __m512 acc[TILE_ROWS][2], sum[TILE_ROWS][2], d0, d1, f;
    const uint8_t *x[TILE_ROWS];
    scratch_t *s = j->s;
    const char *ahead = s->ahead;
    const size_t step = ahead < s->ahead_end ? AHEAD_LINES * 64 : 0;
    __m512i w0, w1, q;

    load_sums(&s->acc[r0], acc, b0 == 0, rows);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        x[r] = s->spread + ((r0 + r) * k + b0 * DI_WBLOCK) * 2;
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
            f = number(row_of(j, r0 + r) + scales_at + (b0 + b) * 4);
            acc[r][0] = _mm512_fmadd_ps(sum[r][0], _mm512_mul_ps(f, d0),
                                        acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(sum[r][1], _mm512_mul_ps(f, d1),
                                        acc[r][1]);
        }
    }
    store_sums(&s->acc[r0], acc, rows);
    s->ahead = ahead;
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

static void
e4m3_many(const job_t *j, const di_e4m3_t *t, size_t p, size_t n_panels)
{
    size_t n;

    j->s->ahead = (const char *) micro_rows(j, p + 2);
    j->s->ahead_end = j->s->ahead
                      + 2 * DI_CPU_PANEL * j->part->row_bytes;
    for (size_t b = 0; b < j->n_blocks; b += MICRO_PIECE) {
        n = j->n_blocks - b < MICRO_PIECE ? j->n_blocks - b : MICRO_PIECE;
        for (size_t i = 0; i < n_panels; i++)
            e4m3_expand(j, t, p + i, i, b, n);
        e4m3_tiles(j, b, n);
    }
    for (size_t r = 0; r < j->n; r++)
        for (size_t i = 0; i < n_panels; i++)
            put(j, p + i, r, _mm512_load_ps(j->s->acc[r][i]));
}

/* -- panels ---------------------------------------------------------------- */

#define MICRO_FEW(rows, ...)                                                \
    case rows:                                                              \
        for (size_t p = p0; p < p1; p++)                                    \
            __VA_ARGS__;                                                    \
        break

static void
e2m1_panels(const job_t *j, size_t p0, size_t p1)
{
    switch (j->n) {
    MICRO_FEW(1, e2m1_few(j, p, 1));
    MICRO_FEW(2, e2m1_few(j, p, 2));
    MICRO_FEW(3, e2m1_few(j, p, 3));
    MICRO_FEW(4, e2m1_few(j, p, 4));
    default:
        for (size_t p = p0; p < p1; p += 2)
            e2m1_many(j, p, p1 - p < 2 ? 1 : 2);
    }
}

static void
e4m3_panels(const job_t *j, size_t p0, size_t p1)
{
    di_e4m3_t t = di_e4m3_tables();

    switch (j->n) {
    MICRO_FEW(1, e4m3_few(j, &t, p, 1));
    MICRO_FEW(2, e4m3_few(j, &t, p, 2));
    MICRO_FEW(3, e4m3_few(j, &t, p, 3));
    MICRO_FEW(4, e4m3_few(j, &t, p, 4));
    default:
        for (size_t p = p0; p < p1; p += 2)
            e4m3_many(j, &t, p, p1 - p < 2 ? 1 : 2);
    }
}

DI_VEC_INLINE void
matmul_micro(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part, size_t p0,
             size_t p1, size_t r0, size_t r1, void *scratch)
{
    const size_t fit = SPREAD_BYTES / (2 * a->w->k);
    const size_t max = fit < ROWS_MAX ? fit : ROWS_MAX;
    job_t j = { .s = scratch, .a = a, .part = part, .r0 = r0,
                .f = { .bias = 12 }, .n_blocks = a->w->k / DI_WBLOCK };

    for (; j.r0 < r1; j.r0 += j.n) {
        j.n = r1 - j.r0 < max ? r1 - j.r0 : max;
        j.act = a->act + j.r0 * a->act_stride;
        j.act_stride = a->act_stride;
        if (part->type == DI_W_E2M1_R32) {
            e2m1_spread(&j);
            e2m1_panels(&j, p0, p1);
        } else {
            e4m3_spread(&j);
            e4m3_panels(&j, p0, p1);
        }
    }
}

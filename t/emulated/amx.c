/*
 * amx.c - AMX's tiles in software: what Intel's manual has of palette 1 and of
 * TDPBF16PS, and where a CPU would fault, abort.
 */

#include "amx.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES      8
#define ROWS       16
#define ROW_BYTES  64

/* What LDTILECFG reads. */
typedef struct {
    uint8_t  palette;
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} config_t;

_Static_assert(sizeof(config_t) == 64, "as in the manual");

typedef struct {
    config_t config;             /* palette 0: none                         */
    _Alignas(64) uint8_t tile[TILES][ROWS][ROW_BYTES];
} tiles_t;

static _Thread_local tiles_t tiles;

static void
need(bool is, const char *what)
{
    if (is)
        return;
    fprintf(stderr, "emulated AMX: %s\n", what);
    abort();
}

void
emulated_loadconfig(const void *config)
{
    tiles_t *t = &tiles;
    bool empty;

    memset(t, 0, sizeof(*t));
    memcpy(&t->config, config, sizeof(t->config));
    need(t->config.palette == 1, "palette");
    need(t->config.start_row == 0, "start row");
    for (size_t i = 0; i < sizeof(t->config.reserved); i++)
        need(t->config.reserved[i] == 0, "reserved bytes");
    for (size_t i = 0; i < 16; i++) {
        empty = t->config.rows[i] == 0;
        need(empty == (t->config.row_bytes[i] == 0), "rows without bytes");
        need(empty || i < TILES, "more tiles than there are");
        need(t->config.rows[i] <= ROWS, "too many rows");
        need(t->config.row_bytes[i] <= ROW_BYTES, "rows too long");
    }
}

void
emulated_release(void)
{
    memset(&tiles, 0, sizeof(tiles));
}

/* Tile i of those of this thread. */
static tiles_t *
with_tile(int i)
{
    need(i >= 0 && i < TILES, "no such tile");
    need(tiles.config.palette == 1, "tiles are not configured");
    need(tiles.config.rows[i] > 0, "a tile without rows");
    return &tiles;
}

void
emulated_zero(int to)
{
    memset(with_tile(to)->tile[to], 0, sizeof(tiles.tile[to]));
}

/* What lies behind the tile's rows and their bytes becomes zero. */
void
emulated_loadd(int to, const void *base, size_t stride)
{
    tiles_t *t = with_tile(to);

    memset(t->tile[to], 0, sizeof(t->tile[to]));
    for (size_t r = 0; r < t->config.rows[to]; r++)
        memcpy(t->tile[to][r], (const uint8_t *) base + r * stride,
               t->config.row_bytes[to]);
}

void
emulated_stored(int from, void *base, size_t stride)
{
    tiles_t *t = with_tile(from);

    for (size_t r = 0; r < t->config.rows[from]; r++)
        memcpy((uint8_t *) base + r * stride, t->tile[from][r],
               t->config.row_bytes[from]);
}

/* Zeros, with their signs, where there are denormals. */
static __m512
flush(__m512 x)
{
    const __m512 least = _mm512_set1_ps(0x1p-126f);
    __mmask16 small = _mm512_cmp_ps_mask(_mm512_abs_ps(x), least, _CMP_LT_OQ);

    return _mm512_mask_and_ps(x, small, x, _mm512_set1_ps(-0.0f));
}

/* The lower bfloat16 of each pair, or the upper. */
static __m512
lower(__m512i pairs)
{
    return flush(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
}

static __m512
upper(__m512i pairs)
{
    return flush(_mm512_castsi512_ps(_mm512_and_si512(
        pairs, _mm512_set1_epi32((int) 0xffff0000u))));
}

/* A row of sums: two chains, of the pairs' lower and upper values. */
static void
sum_row(float *to, const uint8_t *row, const __m512 b[ROWS][2], size_t pairs,
        __mmask16 columns)
{
    __m512 even = _mm512_setzero_ps(), odd = even, sum;
    __m512i a;
    int pair;

    for (size_t k = 0; k < pairs; k++) {
        memcpy(&pair, row + k * 4, sizeof(pair));
        a = _mm512_set1_epi32(pair);
        even = flush(_mm512_fmadd_ps(lower(a), b[k][0], even));
        odd = flush(_mm512_fmadd_ps(upper(a), b[k][1], odd));
    }
    sum = flush(_mm512_add_ps(even, odd));
    sum = flush(_mm512_add_ps(flush(_mm512_load_ps(to)), sum));
    _mm512_store_ps(to, _mm512_maskz_mov_ps(columns, sum));
}

void
emulated_dpbf16ps(int to, int a, int b)
{
    const config_t *c = &with_tile(to)->config;
    size_t columns = c->row_bytes[to] / 4, pairs = c->row_bytes[a] / 4;
    __m512 second[ROWS][2];
    __m512i row;

    with_tile(a);
    with_tile(b);
    need(to != a && to != b && a != b, "a tile twice in a product");
    need(c->row_bytes[to] % 4 == 0 && c->row_bytes[a] % 4 == 0
         && c->row_bytes[b] % 4 == 0, "half a pair");
    need(c->rows[to] == c->rows[a], "sums and first operand: other rows");
    need(c->row_bytes[to] == c->row_bytes[b],
         "sums and second operand: other columns");
    need(pairs == c->rows[b], "operands that don't fit");

    for (size_t k = 0; k < pairs; k++) {
        row = _mm512_load_si512(tiles.tile[b][k]);
        second[k][0] = lower(row);
        second[k][1] = upper(row);
    }
    for (size_t r = 0; r < c->rows[to]; r++)
        sum_row((float *) (void *) tiles.tile[to][r], tiles.tile[a][r],
                second, pairs, (__mmask16) ((1u << columns) - 1));
}

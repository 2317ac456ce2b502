/*
 * kernels_index.c - test of the indexer: entries of a row, scored in several
 * parts or in one, against scores in double; as floats and as records.
 *
 * What a model chooses is compared with golden outputs in v41.c; those prompts
 * are too short for several parts.
 */

#include "kernels_test.h"

enum { INDEX_ROWS = 10, INDEX_KEYS = 5000, INDEX_DIM = 32, INDEX_HEADS = 4,
       INDEX_TOP = 100, INDEX_BLOCK = 128, INDEX_BLOCKS = 40 };

typedef struct {
    float keys[INDEX_BLOCKS * INDEX_BLOCK][INDEX_DIM];
    uint8_t records[INDEX_BLOCKS][INDEX_BLOCK * (INDEX_DIM / 2 + 1)];
    bool exact;
    float q[INDEX_ROWS][INDEX_HEADS * INDEX_DIM];
    float w[INDEX_ROWS][INDEX_HEADS];
} index_case_t;

/* Rows [first, first + n), the last of all at the last entry. */
static void
run_index(side_t *side, const index_case_t *c, size_t first, size_t n,
          int32_t (*selected)[1 + INDEX_TOP])
{
    int32_t positions[INDEX_ROWS], ends[2] = { 0, (int32_t) n };
    int32_t table[INDEX_BLOCKS];
    di_rows_t rows = { .n_rows = (uint32_t) n, .n_seqs = 1,
                       .table_stride = INDEX_BLOCKS };
    di_index_t x = { .n_heads = INDEX_HEADS, .top_k = INDEX_TOP, .ratio = 1 };
    di_view_t keys;
    void *host;

    for (size_t i = 0; i < n; i++)
        positions[i] = (int32_t) (INDEX_KEYS - INDEX_ROWS + first + i);
    for (int32_t i = 0; i < INDEX_BLOCKS; i++)
        table[i] = i;
    rows.positions = buf_of(side, positions, n * sizeof(int32_t));
    rows.seq_first = buf_of(side, ends, sizeof(ends));
    rows.tables = buf_of(side, table, sizeof(table));
    keys = c->exact ? buf_of(side, c->keys, sizeof(c->keys))
                    : buf_of(side, c->records, sizeof(c->records));
    x.keys = (di_cache_t) {
        .base = keys, .stride = (c->exact ? sizeof(c->keys)
                                          : sizeof(c->records))
                                / INDEX_BLOCKS,
        .n = INDEX_BLOCK, .dim = INDEX_DIM, .cast = DI_CAST_E2M1_32,
        .exact = c->exact, .apart = !c->exact
    };
    x.q = buf_of(side, c->q[first], n * sizeof(c->q[0]));
    x.w = buf_of(side, c->w[first], n * sizeof(c->w[0]));
    x.selected = buf(side, n * sizeof(selected[0]), &host);
    ops->index_select(side->stream, &x, &rows);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(selected, host, n * sizeof(selected[0]));
    buf_done(side, x.selected, host, n * sizeof(selected[0]));
    ops->buf_free(side->dev, rows.positions.buf);
    ops->buf_free(side->dev, rows.seq_first.buf);
    ops->buf_free(side->dev, rows.tables.buf);
    ops->buf_free(side->dev, keys.buf);
    ops->buf_free(side->dev, x.q.buf);
    ops->buf_free(side->dev, x.w.buf);
}

static double
index_score(const index_case_t *c, size_t row, size_t entry)
{
    double score = 0, dot;

    for (size_t h = 0; h < INDEX_HEADS; h++) {
        dot = 0;
        for (size_t d = 0; d < INDEX_DIM; d++)
            dot += (double) c->q[row][h * INDEX_DIM + d]
                   * c->keys[entry][d];
        score += dot > 0 ? dot * c->w[row][h] : 0;
    }
    return score;
}

static void
cast_back(float *x, uint8_t *data, uint8_t *scale)
{
    di_cast_put(DI_CAST_E2M1_32, x, INDEX_DIM, data, scale);
    di_cast_get(DI_CAST_E2M1_32, data, scale, INDEX_DIM, x);
}

/* Records: keys and queries are what they round to.  The scores of row 0 are
 * all equal, and many of row 1. */
static void
fill_index(index_case_t *c, bool exact)
{
    const size_t bytes = INDEX_DIM / 2;
    uint8_t data[INDEX_DIM / 2], scale;

    c->exact = exact;
    for (size_t i = 0; i < INDEX_BLOCKS * INDEX_BLOCK; i++) {
        uint8_t *block = c->records[i / INDEX_BLOCK];

        for (size_t d = 0; d < INDEX_DIM; d++)
            c->keys[i][d] = rnd_float();
        if (!exact)
            cast_back(c->keys[i], block + i % INDEX_BLOCK * bytes,
                      block + INDEX_BLOCK * bytes + i % INDEX_BLOCK);
    }
    for (size_t r = 0; r < INDEX_ROWS; r++) {
        for (size_t h = 0; h < INDEX_HEADS; h++) {
            float *q = &c->q[r][h * INDEX_DIM];

            c->w[r][h] = r == 0 ? 0 : r == 1 ? h == 1 : rnd_float();
            for (size_t d = 0; d < INDEX_DIM; d++)
                q[d] = rnd_float();
            if (!exact)
                cast_back(q, data, &scale);
        }
    }
}

/* Of a row whose scores are exact: entries that are not chosen and better
 * than one that is, or as good and before it. */
static size_t
not_first(const index_case_t *c, size_t r, const int32_t *selected)
{
    double least = INFINITY, score;
    int32_t last = 0;
    size_t wrong = 0;

    for (size_t i = 1; i <= INDEX_TOP; i++) {
        score = index_score(c, r, (size_t) selected[i]);
        if (score <= least) {
            least = score;
            last = selected[i];
        }
    }
    for (int32_t e = 0, i = 1; e <= (int32_t) (INDEX_KEYS - INDEX_ROWS + r);
         e++) {
        if (i <= INDEX_TOP && selected[i] == e) {
            i++;
            continue;
        }
        score = index_score(c, r, (size_t) e);
        wrong += score > least || (score == least && e < last);
    }
    return wrong;
}

/* The best entries, in order; the same for a row alone, whose entries are
 * scored in several parts, and among more than are. */
static void
test_index(side_t *side, bool exact)
{
    static int32_t all[INDEX_ROWS][1 + INDEX_TOP], one[1][1 + INDEX_TOP];
    static index_case_t c;
    double least, score;
    size_t wrong = 0;

    fill_index(&c, exact);
    run_index(side, &c, 0, INDEX_ROWS, all);
    for (size_t r = 0; r < INDEX_ROWS; r++) {
        run_index(side, &c, r, 1, one);
        check_same(side, "index_select, a row alone", one, all[r],
                   sizeof(one));
        CHECK_EQ_INT(all[r][0], INDEX_TOP);
        if (r == 0 || (r == 1 && !exact))
            CHECK_EQ_INT(not_first(&c, r, all[r]), 0);
        least = INFINITY;
        for (size_t i = 1; i <= INDEX_TOP; i++) {
            score = index_score(&c, r, (size_t) all[r][i]);
            least = score < least ? score : least;
            wrong += i > 1 && all[r][i] <= all[r][i - 1];
        }
        for (size_t e = 0, i = 1; e <= INDEX_KEYS - INDEX_ROWS + r; e++) {
            if (i <= INDEX_TOP && (size_t) all[r][i] == e)
                i++;
            else
                wrong += index_score(&c, r, e) > least + 1e-5;
        }
    }
    CHECK_EQ_INT(wrong, 0);
}

int
main(void)
{
    static const char *const names[] = { "ref", "avx2", "avx512" };
    di_err_t err = { 0 };
    side_t side;

    ops = di_ops_cpu();
    printf("seed %llu\n", (unsigned long long) seed);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!side_open(&side, DI_ARITH_F32, names[i], 2, &err)) {
            printf("SKIP f32-%s: %s\n", names[i], err.text);
            continue;
        }
        test_index(&side, true);
        test_index(&side, false);
        side_close(&side);
    }
    return check_done("kernels_index");
}

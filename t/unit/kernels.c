/*
 * kernels.c - test of the CPU backend: every variant of every operator
 * against the reference of its arithmetic.
 *
 * A case fills device buffers from a seeded generator, runs one operator on
 * the reference device and on the variant's, and compares within the bound
 * that the operator's arithmetic allows; then it runs the same rows in other
 * batches and with other thread counts and wants the same bits.  Outputs have
 * guard bytes behind them.  Activation rows and KV regions have the layout of
 * kernels/cpu/ref.h in every variant, so they are copied between devices.
 */

#include "kernels_test.h"

/* -- row-wise operators ---------------------------------------------------- */

typedef struct {
    size_t  n_rows;
    size_t  k;
    float  *x;                   /* [n_rows][2 k]                           */
    float  *add;                 /* [n_rows][k]                             */
    float  *w;                   /* [k]                                     */
    int32_t rows[64];
    bool    residual;
    bool    gather;
} rowcase_t;

static void
rowcase_fill(rowcase_t *c, size_t n_rows, size_t k)
{
    c->n_rows = n_rows;
    c->k = k;
    c->x = malloc(n_rows * 2 * k * sizeof(float));
    c->add = malloc(n_rows * k * sizeof(float));
    c->w = malloc(k * sizeof(float));
    CHECK(c->x && c->add && c->w);
    for (size_t i = 0; i < n_rows * 2 * k; i++)
        c->x[i] = rnd_activation();
    for (size_t i = 0; i < n_rows * k; i++)
        c->add[i] = rnd_activation();
    for (size_t i = 0; i < k; i++)
        c->w[i] = rnd_float() + 1.0f;
    for (size_t i = 0; i < 64; i++)
        c->rows[i] = (int32_t) ((n_rows - 1) - i % n_rows);
    if (n_rows > 2)                              /* a row of zeros         */
        memset(c->x + 2 * k, 0, 2 * k * sizeof(float));
    c->residual = rnd() % 2;
    c->gather = rnd() % 2;
}

static void
rowcase_free(rowcase_t *c)
{
    free(c->x);
    free(c->add);
    free(c->w);
}

/* Norm of rows [first, first + n) of the case, as one launch. */
static void
run_norm(side_t *side, const rowcase_t *c, size_t first, size_t n, float *x,
         uint8_t *y)
{
    size_t kb = c->k * sizeof(float);
    size_t stride = ops->act_bytes(side->dev, c->k);
    size_t all = c->n_rows * kb;
    di_view_t none = { NULL, 0 }, vx, vadd, vw, vrows, vy;
    int32_t order[64] = { 0 };
    void *host;

    for (size_t i = 0; c->gather && i < n; i++)
        order[i] = c->rows[first + i];
    vx = buf_of(side, c->x, all);
    vadd = buf_of(side, c->add, all);
    vw = buf_of(side, c->w, kb);
    vrows = buf_of(side, order, sizeof(order));
    vy = buf(side, n * stride, &host);
    if (!c->gather) {
        memcpy(ops->buf_map(vx.buf), c->x + first * c->k, n * kb);
        memcpy(ops->buf_map(vadd.buf), c->add + first * c->k, n * kb);
    }

    ops->norm(side->stream, vy, vx, c->residual ? vadd : none, vw, 1e-5f,
              c->gather ? vrows : none, n, c->k);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(y, host, n * stride);
    memcpy(x, ops->buf_map(vx.buf), n * kb);

    buf_done(side, vy, host, n * stride);
    buf_done(side, vx, ops->buf_map(vx.buf), all);
    buf_done(side, vadd, ops->buf_map(vadd.buf), all);
    buf_done(side, vw, ops->buf_map(vw.buf), kb);
    buf_done(side, vrows, ops->buf_map(vrows.buf), sizeof(order));
}

static void
run_silu(side_t *side, const rowcase_t *c, size_t first, size_t n,
         uint8_t *y)
{
    size_t stride = ops->act_bytes(side->dev, c->k);
    di_view_t vgu, vy;
    void *host;

    vgu = buf_of(side, c->x + first * 2 * c->k, n * 2 * c->k * sizeof(float));
    vy = buf(side, n * stride, &host);
    ops->silu_mul(side->stream, vy, vgu, n, c->k);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(y, host, n * stride);
    buf_done(side, vy, host, n * stride);
    buf_done(side, vgu, ops->buf_map(vgu.buf), n * 2 * c->k * sizeof(float));
}

static void
compare_acts(side_t *side, const char *what, const uint8_t *got,
             const uint8_t *want, size_t n_rows, size_t k)
{
    size_t stride = ops->act_bytes(side->dev, k);
    float *a = malloc(k * sizeof(float)), *b = malloc(k * sizeof(float));

    CHECK(a && b);
    for (size_t r = 0; r < n_rows; r++) {
        act_values(side, got + r * stride, 1, k, a);
        act_values(side, want + r * stride, 1, k, b);
        check_near(side, what, a, b, k, act_step(side->arith));
    }
    check_act_sums(side, got, n_rows, k);
    free(a);
    free(b);
}

static void
test_rows(side_t *ref, side_t *side, side_t *alt, size_t n_rows, size_t k)
{
    size_t stride = ops->act_bytes(side->dev, k);
    float *x = malloc(2 * n_rows * k * sizeof(float)), *x1 = x + n_rows * k;
    uint8_t *y = malloc(3 * n_rows * stride);
    uint8_t *want = y + n_rows * stride, *one = want + n_rows * stride;
    rowcase_t c;

    CHECK(x && y);
    CHECK_EQ_INT(stride, ops->act_bytes(ref->dev, k));
    CHECK_EQ_INT(stride % ops->dev_info(side->dev)->act_align, 0);
    rowcase_fill(&c, n_rows, k);

    run_norm(ref, &c, 0, n_rows, x1, want);
    run_norm(side, &c, 0, n_rows, x, y);
    check_same(side, "residual", x, x1, n_rows * k * sizeof(float));
    compare_acts(side, "norm", y, want, n_rows, k);
    for (size_t r = 0; r < n_rows; r++) {
        run_norm(alt, &c, r, 1, x1, one);
        check_same(side, "norm, a row alone", one, y + r * stride,
                   act_used(side->arith, k));
    }

    run_silu(ref, &c, 0, n_rows, want);
    run_silu(side, &c, 0, n_rows, y);
    compare_acts(side, "silu_mul", y, want, n_rows, k);
    for (size_t r = 0; r < n_rows; r++) {
        run_silu(alt, &c, r, 1, one);
        check_same(side, "silu_mul, a row alone", one, y + r * stride,
                   act_used(side->arith, k));
    }

    rowcase_free(&c);
    free(x);
    free(y);
}

typedef struct {
    float *x;                    /* [n_rows][2 k]                           */
    float *c;                    /* [n_rows], NULL: none                    */
    float  limit;
    size_t k;
} swiglu_t;

/* Rows [first, first + n) as one launch. */
static void
run_swiglu(side_t *side, const swiglu_t *c, size_t first, size_t n,
           uint8_t *y)
{
    size_t stride = ops->act_bytes(side->dev, c->k);
    size_t bytes = n * 2 * c->k * sizeof(float);
    di_view_t vgu, vy, vc = { NULL, 0 };
    void *host;

    vgu = buf_of(side, c->x + first * 2 * c->k, bytes);
    vy = buf(side, n * stride, &host);
    if (c->c)
        vc = buf_of(side, c->c + first, n * sizeof(float));
    ops->swiglu(side->stream, vy, vgu, vc, c->limit, n, c->k);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(y, host, n * stride);
    buf_done(side, vy, host, n * stride);
    buf_done(side, vgu, ops->buf_map(vgu.buf), bytes);
    if (c->c)
        ops->buf_free(side->dev, vc.buf);
}

static void
run_convert(side_t *side, const float *x, size_t n, size_t k, uint8_t *y)
{
    size_t stride = ops->act_bytes(side->dev, k);
    di_view_t vx = buf_of(side, x, n * k * sizeof(float)), vy;
    void *host;

    vy = buf(side, n * stride, &host);
    ops->convert(side->stream, vy, vx, n, k);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(y, host, n * stride);
    buf_done(side, vy, host, n * stride);
    buf_done(side, vx, ops->buf_map(vx.buf), n * k * sizeof(float));
}

/* Values far beyond the limit, with and without weights of rows; what is not
 * a number must not be bounded away. */
static void
test_swiglu(side_t *ref, side_t *side, side_t *alt, size_t n_rows, size_t k)
{
    size_t stride = ops->act_bytes(side->dev, k);
    uint8_t *y = malloc(3 * n_rows * stride);
    uint8_t *want = y + n_rows * stride, *one = want + n_rows * stride;
    float weights[64], value[4];
    rowcase_t rows;
    swiglu_t c;

    CHECK(y != NULL);
    rowcase_fill(&rows, n_rows, k);
    for (size_t i = 0; i < n_rows; i++)
        weights[i] = rnd_float();
    c = (swiglu_t) { rows.x, k > 64 ? weights : NULL, 1.5f, k };
    run_swiglu(ref, &c, 0, n_rows, want);
    run_swiglu(side, &c, 0, n_rows, y);
    compare_acts(side, "swiglu", y, want, n_rows, k);
    for (size_t r = 0; r < n_rows; r++) {
        run_swiglu(alt, &c, r, 1, one);
        check_same(side, "swiglu, a row alone", one, y + r * stride,
                   act_used(side->arith, k));
    }

    run_convert(ref, rows.x, n_rows, k, want);
    run_convert(side, rows.x, n_rows, k, y);
    compare_acts(side, "convert", y, want, n_rows, k);
    for (size_t r = 0; r < n_rows && side->arith != DI_ARITH_BF16; r++)
        check_same(side, "convert", y + r * stride, want + r * stride,
                   act_used(side->arith, k));
    run_convert(alt, rows.x + k, 1, k, one);
    check_same(side, "convert, a row alone", one, y + stride,
               act_used(side->arith, k));

    if (side->arith != DI_ARITH_Q8) {
        rows.x[1] = NAN;
        rows.x[k + 2] = NAN;
        c.c = NULL;
        run_swiglu(side, &c, 0, 1, y);
        for (size_t i = 0; i < 4; i++)
            value[i] = act_value(side->arith, y, k, i);
        CHECK(!isnan(value[0]) && isnan(value[1]) && isnan(value[2]));
    }
    rowcase_free(&rows);
    free(y);
}

/* The value of one element, by double arithmetic. */
static void
test_swiglu_values(side_t *side)
{
    enum { K = 32 };
    static const float gate[] = { 3, 20, -20, 0, 10 };
    static const float up[] = { -2, -30, 30, 5, 10 };
    float x[2 * K] = { 0 }, c = 0.5f;
    swiglu_t a = { x, &c, 10, K };
    double g, u, worst = 0, want;
    uint8_t y[1024];

    for (size_t i = 0; i < 5; i++) {
        x[i] = gate[i];
        x[K + i] = up[i];
    }
    run_swiglu(side, &a, 0, 1, y);
    for (size_t i = 0; i < 5; i++) {
        g = fmin(gate[i], 10);
        u = fmax(fmin(up[i], 10), -10);
        want = g / (1 + exp(-g)) * u * 0.5;
        worst = fmax(worst, fabs(want - act_value(side->arith, y, K, i)));
    }
    CHECK(worst <= 50 * act_step(side->arith));
}

/* -- matmul ---------------------------------------------------------------- */

typedef struct {
    di_wpart_t parts[3];
    uint8_t   *bytes[3];
    uint8_t   *scales[3];
    size_t     n_parts;
    size_t     n;
    size_t     k;
    size_t     n_rows;
    size_t     act_bytes;        /* of all rows                             */
    uint8_t   *act;
    float     *bias;             /* NULL: none                              */
} mmcase_t;

/* Activation rows that the reference makes of random values. */
static uint8_t *
make_acts(side_t *ref, size_t n_rows, size_t k)
{
    uint8_t *act = malloc(n_rows * ops->act_bytes(ref->dev, k));
    float *x = malloc(n_rows * k * sizeof(float));
    rowcase_t c;

    CHECK(act && x);
    rowcase_fill(&c, n_rows, k);
    c.gather = false;
    run_norm(ref, &c, 0, n_rows, x, act);
    rowcase_free(&c);
    free(x);
    return act;
}

static void
mmcase_fill(mmcase_t *c, side_t *ref, const di_wtype_t *part_types,
            const size_t *part_n, size_t n_parts, size_t k, size_t n_rows)
{
    size_t scale_bytes;

    memset(c, 0, sizeof(*c));
    c->n_parts = n_parts;
    c->k = k;
    c->n_rows = n_rows;
    for (size_t i = 0; i < n_parts; i++) {
        c->bytes[i] = malloc(di_wtype_bytes(part_types[i], part_n[i] * k));
        CHECK(c->bytes[i] != NULL);
        fill_weights(part_types[i], c->bytes[i], part_n[i] * k);
        scale_bytes = di_wtype_scale_bytes(part_types[i], part_n[i], k);
        if (scale_bytes > 0) {
            c->scales[i] = malloc(scale_bytes);
            CHECK(c->scales[i] != NULL);
            fill_scales(c->scales[i], scale_bytes);
        }
        c->parts[i] = (di_wpart_t) { part_types[i], c->bytes[i], part_n[i],
                                     c->scales[i] };
        c->n += part_n[i];
    }
    c->act = make_acts(ref, n_rows, k);
    c->act_bytes = n_rows * ops->act_bytes(ref->dev, k);
    if (rnd() % 2) {
        c->bias = malloc(c->n * sizeof(float));
        CHECK(c->bias != NULL);
        for (size_t i = 0; i < c->n; i++)
            c->bias[i] = rnd_float();
    }
}

static void
mmcase_free(mmcase_t *c)
{
    for (size_t i = 0; i < c->n_parts; i++) {
        free(c->bytes[i]);
        free(c->scales[i]);
    }
    free(c->act);
    free(c->bias);
}

/* Product of rows [first, first + n) as one launch. */
static void
run_matmul(side_t *side, const mmcase_t *c, const di_weight_t *w,
           size_t first, size_t n, float *out)
{
    size_t stride = ops->act_bytes(side->dev, c->k);
    size_t out_bytes = n * c->n * sizeof(float);
    di_view_t bias = { NULL, 0 }, act, vout;
    void *host;

    act = buf_of(side, c->act + first * stride, n * stride);
    vout = buf(side, out_bytes, &host);
    if (c->bias)
        bias = buf_of(side, c->bias, c->n * sizeof(float));
    ops->matmul(side->stream, vout, act, w, bias, n);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(out, host, out_bytes);
    buf_done(side, vout, host, out_bytes);
    buf_done(side, act, ops->buf_map(act.buf), n * stride);
    if (c->bias)
        ops->buf_free(side->dev, bias.buf);
}

/* Denormals are zeros to AMX. */
static float
flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}

/* A product with a micro format as AMX makes it: each block's sum of two
 * chains, of the even and the odd values. */
static float
amx_micro(const di_wpart_t *part, size_t n, const uint8_t *act, size_t k)
{
    float value[32], chain[2], scale, acc = 0;

    for (size_t b = 0; b < k / 32; b++) {
        scale = di_wmicro_get(part, n, k, b, value);
        chain[0] = chain[1] = 0;
        for (size_t i = 0; i < 32; i++)
            chain[i % 2] = flushed(fmaf(flushed(bf16_at(act, b * 32 + i)),
                                        value[i], chain[i % 2]));
        acc = fmaf(flushed(chain[0] + chain[1]), scale, acc);
    }
    return acc;
}

/* What the reference's sums in another order become on AMX. */
static void
want_amx(side_t *side, const mmcase_t *c, float *want)
{
    size_t stride = ops->act_bytes(side->dev, c->k), col = 0;

    for (size_t p = 0; p < c->n_parts; p++) {
        for (size_t n = 0; n < c->parts[p].n; n++, col++)
            for (size_t r = 0; r < c->n_rows
                               && di_wtype_is_micro(c->parts[p].type); r++)
                want[r * c->n + col]
                    = amx_micro(&c->parts[p], n, c->act + r * stride, c->k)
                      + (c->bias ? c->bias[col] : 0);
    }
}

static void
test_matmul_case(side_t *ref, side_t *side, side_t *alt, const mmcase_t *c,
                 const char *what)
{
    float *want = malloc(3 * c->n_rows * c->n * sizeof(float));
    float *got = want + c->n_rows * c->n, *part = got + c->n_rows * c->n;
    di_weight_t *wr = NULL, *ws = NULL, *wa = NULL;
    size_t first, n;

    CHECK(want != NULL);
    CHECK_EQ_INT(ops->weight_open(ref->dev, c->parts, c->n_parts, c->k, &wr,
                                  NULL), DI_OK);
    CHECK_EQ_INT(ops->weight_open(side->dev, c->parts, c->n_parts, c->k, &ws,
                                  NULL), DI_OK);
    CHECK_EQ_INT(ops->weight_open(alt->dev, c->parts, c->n_parts, c->k, &wa,
                                  NULL), DI_OK);
    CHECK(ops->weight_bytes(ws) > 0);

    run_matmul(ref, c, wr, 0, c->n_rows, want);
    run_matmul(side, c, ws, 0, c->n_rows, got);
    if (strcmp(side->name, "mx-amx") == 0)
        want_amx(side, c, want);
    if (side->arith != DI_ARITH_F32)
        check_same(side, what, got, want, c->n_rows * c->n * sizeof(float));
    else
        check_near(side, what, got, want, c->n_rows * c->n,
                   c->k < 4096 ? 1e-5 : 5e-5);

    for (size_t i = 0; i < 4; i++) {
        first = rnd() % c->n_rows;
        n = i < 2 ? 1 : 1 + rnd() % (c->n_rows - first);
        run_matmul(alt, c, wa, first, n, part);
        check_same(side, "matmul, other batch", part, got + first * c->n,
                   n * c->n * sizeof(float));
    }

    ops->weight_close(ref->dev, wr);
    ops->weight_close(side->dev, ws);
    ops->weight_close(alt->dev, wa);
    free(want);
}

/* Weights that an arithmetic has no products with are refused by name. */
static void
test_no_product(side_t *side, di_wtype_t type)
{
    uint8_t bytes[1024] = { 0 };
    di_wpart_t part = { type, bytes, 1, bytes };
    di_weight_t *w;
    di_err_t err = { 0 };

    CHECK_EQ_INT(ops->weight_open(side->dev, &part, 1, 256, &w, &err),
                 DI_EUNSUPPORTED);
    CHECK(strstr(err.text, di_wtype_name(type)) != NULL);
}

static void
test_matmul(side_t *ref, side_t *side, side_t *alt)
{
    static const size_t rows[] = { 1, 2, 16, 17, 33, 300 };
    /* Of MX on AMX the former take 16 rows at a time, the latter one. */
    static const size_t long_k[] = { 39936, 65536 }, long_rows[] = { 18, 3 };
    di_wtype_t mixed[] = { DI_W_Q4_K, DI_W_Q6_K, DI_W_F16 };
    di_wtype_t micro[] = { DI_W_E2M1_R32, DI_W_E4M3_B32, DI_W_BF16 };
    size_t n, mixed_n[] = { 40, 16, 7 };
    mmcase_t c;

    for (size_t t = 0; t < N_TYPES; t++) {
        if (!has_product(side->arith, types[t])) {
            test_no_product(side, types[t]);
            continue;
        }
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            n = 1 + rnd() % 70;
            mmcase_fill(&c, ref, &types[t], &n, 1,
                        di_wtype_block(types[t]) == 256 ? 512
                        : i % 2 ? 96 : 1600, rows[i]);
            test_matmul_case(ref, side, alt, &c, di_wtype_name(types[t]));
            mmcase_free(&c);
        }
        for (size_t i = 0; i < 2; i++) {
            n = 5;
            mmcase_fill(&c, ref, &types[t], &n, 1, long_k[i], long_rows[i]);
            test_matmul_case(ref, side, alt, &c, "long rows");
            mmcase_free(&c);
        }
    }
    if (has_product(side->arith, mixed[0])) {
        mmcase_fill(&c, ref, mixed, mixed_n, 3, 256, 19);
        test_matmul_case(ref, side, alt, &c, "mixed parts");
        mmcase_free(&c);
    }
    if (has_product(side->arith, micro[0])) {
        mmcase_fill(&c, ref, micro, mixed_n, 3, 160, 70);
        test_matmul_case(ref, side, alt, &c, "micro parts");
        mmcase_free(&c);
    }
}

/* A weight or a scale that is not a number makes one of its output, for each
 * row, and of no other's. */
static void
test_matmul_micro_nan(side_t *ref, side_t *side, di_wtype_t type)
{
    enum { K = 64, ROWS = 9, N = 40 };
    size_t n = N, first, last, bad = 0;
    float out[ROWS * N];
    di_weight_t *w = NULL;
    mmcase_t c;

    if (!has_product(side->arith, type))
        return;
    mmcase_fill(&c, ref, &type, &n, 1, K, ROWS);
    first = 17;
    last = 17;
    if (type == DI_W_E4M3_R32) {
        c.bytes[0][first * K + 33] = 0xff;
    } else {
        c.scales[0][(type == DI_W_E4M3_B32 ? first / 32 : first) * 2 + 1]
            = 255;
        first = type == DI_W_E4M3_B32 ? 0 : first;
        last = type == DI_W_E4M3_B32 ? 31 : last;
    }
    CHECK_EQ_INT(ops->weight_open(side->dev, c.parts, 1, K, &w, NULL), DI_OK);
    for (size_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
        run_matmul(side, &c, w, 0, rows, out);
        for (size_t i = 0; i < rows * N; i++)
            bad += !isnan(out[i]) != (i % N < first || i % N > last);
    }
    CHECK_EQ_INT(bad, 0);
    ops->weight_close(side->dev, w);
    mmcase_free(&c);
}

/* -- experts --------------------------------------------------------------- */

enum { EXPERTS = 7, TOP_K = 3 };

typedef struct {
    mmcase_t weights[EXPERTS];   /* their activations are not used          */
    uint8_t *act;                /* [n_rows]                                */
    int32_t *ids;                /* [n_rows][per_row]                       */
    size_t   n_rows;
    size_t   per_row;
    size_t   n;
    size_t   k;
} excase_t;

/* Expert 2 is never picked, expert 5 mostly. */
static void
excase_fill(excase_t *c, side_t *ref, const di_wtype_t *part_types,
            const size_t *part_n, size_t n_parts, size_t k, size_t n_rows,
            size_t per_row)
{
    memset(c, 0, sizeof(*c));
    c->n_rows = n_rows;
    c->per_row = per_row;
    c->k = k;
    for (size_t e = 0; e < EXPERTS; e++) {
        mmcase_fill(&c->weights[e], ref, part_types, part_n, n_parts, k, 1);
        free(c->weights[e].bias);
        c->weights[e].bias = NULL;
    }
    c->n = c->weights[0].n;
    c->act = make_acts(ref, n_rows, k);
    c->ids = malloc(n_rows * per_row * sizeof(*c->ids));
    CHECK(c->ids != NULL);
    for (size_t i = 0; i < n_rows * per_row; i++) {
        c->ids[i] = (int32_t) (rnd() % 2 ? 5 : rnd() % EXPERTS);
        c->ids[i] = c->ids[i] == 2 ? 5 : c->ids[i];
    }
}

static void
excase_free(excase_t *c)
{
    for (size_t e = 0; e < EXPERTS; e++)
        mmcase_free(&c->weights[e]);
    free(c->act);
    free(c->ids);
}

static di_experts_t *
excase_open(side_t *side, const excase_t *c)
{
    di_wpart_t parts[EXPERTS * 3];
    size_t n = c->weights[0].n_parts;
    di_experts_t *experts = NULL;

    for (size_t e = 0; e < EXPERTS; e++)
        memcpy(parts + e * n, c->weights[e].parts, n * sizeof(parts[0]));
    CHECK_EQ_INT(ops->experts_open(side->dev, parts, n, EXPERTS, c->k,
                                   &experts, NULL), DI_OK);
    return experts;
}

/* Rows [first, first + n) as one launch. */
static void
run_experts(side_t *side, const excase_t *c, const di_experts_t *experts,
            size_t first, size_t n, float *out)
{
    size_t stride = ops->act_bytes(side->dev, c->k);
    size_t outs = n * c->per_row, bytes = outs * c->n * sizeof(float);
    di_view_t act, ids, vout;
    void *host;

    act = buf_of(side, c->act + first * stride, n * stride);
    ids = buf_of(side, c->ids + first * c->per_row, outs * sizeof(*c->ids));
    vout = buf(side, bytes, &host);
    ops->matmul_experts(side->stream, vout, act, experts, ids, outs,
                        c->per_row);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(out, host, bytes);
    buf_done(side, vout, host, bytes);
    buf_done(side, act, ops->buf_map(act.buf), n * stride);
    ops->buf_free(side->dev, ids.buf);
}

/* Each output is what matmul() makes of its row and expert alone, bit for
 * bit, in whatever batch. */
static void
test_experts_case(side_t *side, side_t *alt, excase_t *c)
{
    size_t row = c->per_row * c->n, first, n;
    float *out = malloc(2 * c->n_rows * row * sizeof(float));
    float *part = out + c->n_rows * row;
    di_experts_t *es = excase_open(side, c), *ea = excase_open(alt, c);
    di_weight_t *w[EXPERTS];
    mmcase_t one;

    CHECK(out != NULL);
    run_experts(side, c, es, 0, c->n_rows, out);
    for (size_t e = 0; e < EXPERTS; e++)
        CHECK_EQ_INT(ops->weight_open(side->dev, c->weights[e].parts,
                                      c->weights[e].n_parts, c->k, &w[e],
                                      NULL), DI_OK);
    for (size_t i = 0; i < c->n_rows * c->per_row; i++) {
        one = c->weights[c->ids[i]];
        one.act = c->act;
        run_matmul(side, &one, w[c->ids[i]], i / c->per_row, 1, part);
        check_same(side, "matmul_experts", out + i * c->n, part,
                   c->n * sizeof(float));
    }
    for (size_t i = 0; i < 6; i++) {
        first = rnd() % c->n_rows;
        n = i < 3 ? 1 : 1 + rnd() % (c->n_rows - first);
        run_experts(alt, c, ea, first, n, part);
        check_same(side, "matmul_experts, other batch", out + first * row,
                   part, n * row * sizeof(float));
    }
    for (size_t e = 0; e < EXPERTS; e++)
        ops->weight_close(side->dev, w[e]);
    ops->experts_close(side->dev, es);
    ops->experts_close(alt->dev, ea);
    free(out);
}

static void
test_experts(side_t *ref, side_t *side, side_t *alt)
{
    static const di_wtype_t fp4[] = { DI_W_E2M1_R32, DI_W_E2M1_R32 };
    static const di_wtype_t q4[] = { DI_W_Q4_0, DI_W_Q4_0 };
    static const di_wtype_t plain[] = { DI_W_BF16 }, fp8[] = { DI_W_E4M3_B32 };
    static const di_wtype_t q8[] = { DI_W_Q8_0 };
    static const size_t two[] = { 64, 64 }, odd[] = { 75 };
    const bool micro = has_product(side->arith, fp4[0]);
    excase_t c;

    excase_fill(&c, ref, micro ? fp4 : q4, two, 2, 96, 1, TOP_K);
    test_experts_case(side, alt, &c);
    excase_free(&c);
    excase_fill(&c, ref, micro ? fp4 : q4, two, 2, 96, 60, TOP_K);
    test_experts_case(side, alt, &c);
    excase_free(&c);
    excase_fill(&c, ref, plain, odd, 1, 64, 13, TOP_K);
    test_experts_case(side, alt, &c);
    excase_free(&c);
    excase_fill(&c, ref, micro ? fp8 : q8, odd, 1, 128, 50, 1);
    test_experts_case(side, alt, &c);
    excase_free(&c);
}

/* Against a sort of all experts, with many equal scores. */
static void
test_route(side_t *side)
{
    enum { ROWS = 40, N = 48, K = 6 };
    static float logits[ROWS * N], bias[N], weights[ROWS * K];
    int32_t ids[ROWS * K], want[N], swap;
    di_view_t vids, vweights, vlogits, vbias;
    double s[N], total;
    void *hids, *hweights;

    for (size_t i = 0; i < ROWS * N; i++)
        logits[i] = i < ROWS * N / 2 ? (float) (rnd() % 5) - 2
                                     : rnd_float() * 30;
    for (size_t i = 0; i < N; i++)
        bias[i] = (float) (rnd() % 3) / 4;
    vlogits = buf_of(side, logits, sizeof(logits));
    vbias = buf_of(side, bias, sizeof(bias));
    vids = buf(side, sizeof(ids), &hids);
    vweights = buf(side, sizeof(weights), &hweights);
    ops->route(side->stream, vids, vweights, vlogits, vbias, 1.5f, ROWS, N,
               K);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(ids, hids, sizeof(ids));
    memcpy(weights, hweights, sizeof(weights));

    for (size_t r = 0; r < ROWS; r++) {
        total = 0;
        for (size_t e = 0; e < N; e++) {
            s[e] = sqrt(log1p(exp((double) logits[r * N + e])));
            want[e] = (int32_t) e;
        }
        for (size_t i = 1; i < N; i++) {         /* insertion: stable       */
            for (size_t j = i; j > 0; j--) {
                if ((float) s[want[j]] + bias[want[j]]
                    <= (float) s[want[j - 1]] + bias[want[j - 1]])
                    break;
                swap = want[j];
                want[j] = want[j - 1];
                want[j - 1] = swap;
            }
        }
        for (size_t i = 0; i < K; i++)
            total += s[want[i]];
        for (size_t i = 0; i < K; i++) {
            CHECK_EQ_INT(ids[r * K + i], want[i]);
            CHECK(fabs(weights[r * K + i] - s[want[i]] / total * 1.5) < 1e-6);
        }
    }
    ops->route(side->stream, vids, vweights, vlogits, vbias, 1.5f, 1, 2000,
               K);
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_EINVAL);
    buf_done(side, vids, hids, sizeof(ids));
    buf_done(side, vweights, hweights, sizeof(weights));
    ops->buf_free(side->dev, vlogits.buf);
    ops->buf_free(side->dev, vbias.buf);
}

static void
test_sum_rows(side_t *side)
{
    enum { ROWS = 9, N = 3, K = 48 };
    static float x[ROWS * N * K], add[ROWS * K];
    di_view_t vx, vadd, vy, none = { NULL, 0 };
    size_t bad = 0;
    float want, *y;
    void *host;

    for (size_t i = 0; i < ROWS * N * K; i++)
        x[i] = rnd_activation();
    for (size_t i = 0; i < ROWS * K; i++)
        add[i] = rnd_activation();
    vx = buf_of(side, x, sizeof(x));
    vadd = buf_of(side, add, sizeof(add));
    vy = buf(side, sizeof(add), &host);
    y = host;
    for (int with = 0; with < 2; with++) {
        ops->sum_rows(side->stream, vy, vx, with ? vadd : none, ROWS, N, K);
        CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
        for (size_t i = 0; i < ROWS * K; i++) {
            want = x[i / K * N * K + i % K];
            for (size_t j = 1; j < N; j++)
                want += x[(i / K * N + j) * K + i % K];
            bad += y[i] != want + (with ? add[i] : 0);
        }
    }
    CHECK_EQ_INT(bad, 0);
    buf_done(side, vy, host, sizeof(add));
    buf_done(side, vx, ops->buf_map(vx.buf), sizeof(x));
    ops->buf_free(side->dev, vadd.buf);
}

/* Infinities and NaN in a row stay in that row. */
static void
test_matmul_infinite(side_t *ref, side_t *side)
{
    enum { K = 64, ROWS = 5 };
    di_wtype_t type = side->arith == DI_ARITH_MX ? DI_W_BF16 : DI_W_Q4_1;
    size_t n = 32, stride = ops->act_bytes(side->dev, K), bad = 0;
    float out[ROWS * 32], inf = INFINITY;
    uint16_t h = di_f32_to_bf16(inf);
    di_weight_t *w = NULL;
    mmcase_t c;

    mmcase_fill(&c, ref, &type, &n, 1, K, ROWS);
    if (side->arith == DI_ARITH_F32)
        memcpy(c.act + 2 * stride, &inf, 4);
    else if (side->arith == DI_ARITH_BF16)
        memcpy(c.act + 2 * stride, &h, 2);
    else if (side->arith == DI_ARITH_MX)
        memcpy(c.act + 2 * stride + 2 * K, &h, 2);
    else
        memcpy(c.act + 2 * stride + K, &inf, 4);
    CHECK_EQ_INT(ops->weight_open(side->dev, c.parts, 1, K, &w, NULL), DI_OK);
    run_matmul(side, &c, w, 0, ROWS, out);
    for (size_t i = 0; i < ROWS * 32; i++)
        bad += isfinite(out[i]) != (i / 32 != 2);
    CHECK(bad <= 8);             /* a code of 0 times infinity is not NaN in
                                  * every column, nor infinite: few are     */
    for (size_t i = 0; i < ROWS * 32; i++)
        if (i / 32 != 2)
            CHECK(isfinite(out[i]));
    ops->weight_close(side->dev, w);
    mmcase_free(&c);
}

static void
test_embed(side_t *side)
{
    enum { N = 50, K = 256, ROWS = 40 };
    static uint8_t bytes[N * K * 4], scales[N * K / 32];
    static float want[K];
    di_view_t vx, vids;
    int32_t ids[ROWS];
    di_weight_t *w = NULL;
    di_wpart_t part;
    void *host;

    for (size_t t = 0; t < N_TYPES; t++) {
        if (!has_product(side->arith, types[t]))
            continue;
        fill_weights(types[t], bytes, N * K);
        fill_scales(scales, sizeof(scales));
        part = (di_wpart_t) { types[t], bytes, N,
                              di_wtype_is_micro(types[t]) ? scales : NULL };
        CHECK_EQ_INT(ops->weight_open(side->dev, &part, 1, K, &w, NULL),
                     DI_OK);
        for (size_t i = 0; i < ROWS; i++)
            ids[i] = (int32_t) (rnd() % N);
        ids[0] = 0;
        ids[1] = N - 1;
        vids = buf_of(side, ids, sizeof(ids));
        vx = buf(side, ROWS * K * sizeof(float), &host);
        ops->embed(side->stream, vx, w, vids, ROWS);
        CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
        for (size_t i = 0; i < ROWS; i++) {
            di_wpart_row(&part, (size_t) ids[i], K, want);
            check_same(side, "embed", (float *) host + i * K, want,
                       sizeof(want));
        }
        buf_done(side, vx, host, ROWS * K * sizeof(float));
        buf_done(side, vids, ops->buf_map(vids.buf), sizeof(ids));
        ops->weight_close(side->dev, w);
    }
}

/* -- KV cache and attention ------------------------------------------------ */

typedef struct {
    di_kv_geom_t    geom;
    uint32_t        n_heads;
    uint32_t        layer;
    uint32_t        n_seqs;
    uint32_t        len[8];      /* tokens of each sequence                 */
    uint32_t        stride;      /* table entries                           */
    uint32_t        n_blocks;
    int32_t        *tables;      /* [n_seqs][stride]                        */
    float          *qkv[8];      /* [len][width]                            */
    float           freqs[DI_WBLOCK * 4];
    di_rope_style_t style;
    size_t          width;
} kvcase_t;

static void
kvcase_fill(kvcase_t *c, uint32_t n_heads, uint32_t n_kv, uint32_t head_dim,
            const uint32_t *len, uint32_t n_seqs)
{
    int32_t next = 1, swap;
    size_t j;

    memset(c, 0, sizeof(*c));
    c->geom = (di_kv_geom_t) { 2, n_kv, head_dim, 16 };
    c->n_heads = n_heads;
    c->layer = rnd() % 2;
    c->n_seqs = n_seqs;
    c->width = (n_heads + 2 * n_kv) * head_dim;
    c->style = rnd() % 2 ? DI_ROPE_PAIRS : DI_ROPE_HALVES;
    for (uint32_t s = 0; s < n_seqs; s++) {
        c->len[s] = len[s];
        if (c->stride < (len[s] + 15) / 16 + 1)
            c->stride = (len[s] + 15) / 16 + 1;
    }
    c->n_blocks = n_seqs * c->stride + 1;
    c->tables = malloc(n_seqs * c->stride * sizeof(int32_t));
    CHECK(c->tables != NULL);
    for (size_t i = 0; i < n_seqs * c->stride; i++)
        c->tables[i] = next++;
    for (size_t i = n_seqs * c->stride - 1; i > 0; i--) {
        j = rnd() % (i + 1);
        swap = c->tables[i];
        c->tables[i] = c->tables[j];
        c->tables[j] = swap;
    }
    for (uint32_t s = 0; s < n_seqs; s++) {
        c->qkv[s] = malloc(len[s] * c->width * sizeof(float));
        CHECK(c->qkv[s] != NULL);
        for (size_t i = 0; i < len[s] * c->width; i++)
            c->qkv[s][i] = rnd_float() * 3;
    }
    for (size_t i = 0; i < head_dim / 2; i++)
        c->freqs[i] = powf(10000.0f, -2.0f * (float) i / (float) head_dim);
}

static void
kvcase_free(kvcase_t *c)
{
    for (uint32_t s = 0; s < c->n_seqs; s++)
        free(c->qkv[s]);
    free(c->tables);
}

/* Rows [pos[s], pos[s] + n[s]) of each sequence as one launch of rope_store
 * and attention; q and y get the rows' results, in the order of the rows. */
static void
run_kv(side_t *side, const kvcase_t *c, di_view_t kv, const uint32_t *pos,
       const uint32_t *n, float *qkv_out, uint8_t *y_out)
{
    size_t row_bytes = c->width * sizeof(float), n_rows = 0, r = 0;
    size_t stride = ops->act_bytes(side->dev, c->n_heads * c->geom.head_dim);
    int32_t *positions, first[9] = { 0 };
    di_view_t vqkv, vy, vfreqs;
    di_rows_t rows;
    void *qkv, *y;

    for (uint32_t s = 0; s < c->n_seqs; s++) {
        n_rows += n[s];
        first[s + 1] = (int32_t) n_rows;
    }
    positions = malloc(n_rows * sizeof(*positions));
    CHECK(positions != NULL);
    vqkv = buf(side, n_rows * row_bytes, &qkv);
    vy = buf(side, n_rows * stride, &y);
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        for (uint32_t i = 0; i < n[s]; i++, r++) {
            positions[r] = (int32_t) (pos[s] + i);
            memcpy((uint8_t *) qkv + r * row_bytes,
                   c->qkv[s] + (pos[s] + i) * c->width, row_bytes);
        }
    }
    rows = (di_rows_t) {
        .n_rows = (uint32_t) n_rows, .n_seqs = c->n_seqs,
        .table_stride = c->stride,
        .positions = buf_of(side, positions, n_rows * 4),
        .seq_first = buf_of(side, first, (c->n_seqs + 1) * 4),
        .tables = buf_of(side, c->tables, c->n_seqs * c->stride * 4),
    };
    vfreqs = buf_of(side, c->freqs, c->geom.head_dim * 2);

    ops->rope_store(side->stream, vqkv, c->n_heads, kv, &c->geom, c->layer,
                    &rows, vfreqs, c->style);
    ops->attention(side->stream, vy, vqkv, c->n_heads, kv, &c->geom,
                   c->layer, &rows,
                   1.0f / sqrtf((float) c->geom.head_dim));
    CHECK_EQ_INT(ops->stream_sync(side->stream), DI_OK);
    memcpy(qkv_out, qkv, n_rows * row_bytes);
    memcpy(y_out, y, n_rows * stride);

    buf_done(side, vqkv, qkv, n_rows * row_bytes);
    buf_done(side, vy, y, n_rows * stride);
    ops->buf_free(side->dev, rows.positions.buf);
    ops->buf_free(side->dev, rows.seq_first.buf);
    ops->buf_free(side->dev, rows.tables.buf);
    ops->buf_free(side->dev, vfreqs.buf);
    free(positions);
}

/* K and V are stored rounded: rotated values may differ in the last bit
 * before rounding, so the cache is compared in float. */
static void
compare_kv(side_t *side, const void *a, const void *b, size_t bytes)
{
    size_t n = side->arith == DI_ARITH_F32 ? bytes / 4 : bytes / 2;
    float *x = malloc(n * sizeof(float)), *y = malloc(n * sizeof(float));

    CHECK(x && y);
    for (size_t i = 0; i < n; i++) {
        x[i] = side->arith == DI_ARITH_F32
               ? ((const float *) a)[i]
               : di_bf16_to_f32(((const uint16_t *) a)[i]);
        y[i] = side->arith == DI_ARITH_F32
               ? ((const float *) b)[i]
               : di_bf16_to_f32(((const uint16_t *) b)[i]);
    }
    check_near(side, "KV cache", x, y, n,
               side->arith == DI_ARITH_F32 ? 2e-6 : 1.0 / 256);
    free(x);
    free(y);
}

static void
test_attention(side_t *ref, side_t *side, side_t *alt, uint32_t n_heads,
               uint32_t n_kv, uint32_t head_dim, const uint32_t *len,
               uint32_t n_seqs)
{
    static const uint32_t zero[8];
    size_t stride, rows = 0, kv_bytes;
    di_view_t kv_ref, kv_side;
    uint32_t pos[8], n[8], total;
    float *q_ref, *q_side, *q_part;
    uint8_t *y_ref, *y_side, *y_part;
    void *host_ref, *host_side;
    kvcase_t c;

    kvcase_fill(&c, n_heads, n_kv, head_dim, len, n_seqs);
    stride = ops->act_bytes(side->dev, n_heads * head_dim);
    kv_bytes = c.n_blocks * ops->kv_block_bytes(side->dev, &c.geom);
    CHECK_EQ_INT(kv_bytes,
                 c.n_blocks * ops->kv_block_bytes(ref->dev, &c.geom));
    for (uint32_t s = 0; s < n_seqs; s++)
        rows += len[s];
    q_ref = malloc(3 * rows * c.width * sizeof(float));
    y_ref = malloc(3 * rows * stride);
    CHECK(q_ref && y_ref);
    q_side = q_ref + rows * c.width;
    q_part = q_side + rows * c.width;
    y_side = y_ref + rows * stride;
    y_part = y_side + rows * stride;

    /* Not-a-number in what no row has written must not be seen.  In the
     * comparison of the caches it equals itself. */
    kv_ref = buf(ref, kv_bytes, &host_ref);
    kv_side = buf(side, kv_bytes, &host_side);
    memset(host_ref, 0xff, kv_bytes);
    memset(host_side, 0xff, kv_bytes);

    run_kv(ref, &c, kv_ref, zero, len, q_ref, y_ref);
    run_kv(side, &c, kv_side, zero, len, q_side, y_side);
    check_near(side, "rotated q", q_side, q_ref, rows * c.width, 2e-6);
    compare_kv(side, host_side, host_ref, kv_bytes);
    for (size_t r = 0; r < rows; r++) {
        float a[2048], b[2048];
        size_t k = n_heads * head_dim;

        act_values(side, y_side + r * stride, 1, k, a);
        act_values(side, y_ref + r * stride, 1, k, b);
        check_near(side, "attention", a, b, k,
                   side->arith == DI_ARITH_F32 ? 1e-5 : 1.5 / 64);
    }
    check_act_sums(side, y_side, rows, n_heads * head_dim);

    /* The same rows in random chunks: the same bits. */
    ops->buf_free(side->dev, kv_side.buf);
    kv_side = buf(alt, kv_bytes, &host_side);
    memset(host_side, 0xff, kv_bytes);
    memcpy(pos, zero, sizeof(pos));
    for (;;) {
        total = 0;
        for (uint32_t s = 0; s < n_seqs; s++) {
            n[s] = len[s] - pos[s];
            if (n[s] > 0)
                n[s] = rnd() % 3 ? rnd() % (n[s] + 1) : 1;
            total += n[s];
        }
        if (total == 0) {
            if (memcmp(pos, len, n_seqs * sizeof(*pos)) == 0)
                break;
            continue;
        }
        run_kv(alt, &c, kv_side, pos, n, q_part, y_part);
        for (uint32_t s = 0, at = 0, r = 0; s < n_seqs; s++) {
            for (uint32_t i = 0; i < n[s]; i++, r++) {
                size_t want = at + pos[s] + i;

                check_same(side, "rotated q, other chunks",
                           q_part + r * c.width, q_side + want * c.width,
                           c.width * sizeof(float));
                check_same(side, "attention, other chunks",
                           y_part + r * stride, y_side + want * stride,
                           act_used(side->arith, n_heads * head_dim));
            }
            at += len[s];
        }
        for (uint32_t s = 0; s < n_seqs; s++)
            pos[s] += n[s];
    }

    ops->buf_free(ref->dev, kv_ref.buf);
    ops->buf_free(alt->dev, kv_side.buf);
    kvcase_free(&c);
    free(q_ref);
    free(y_ref);
}

/* The first n tokens of block 2 are those of block 1; the others are as they
 * were, which the reference's block 2 beside it shows. */
static void
check_copied(const side_t *side, const di_kv_geom_t *geom, const void *host,
             const void *host_ref, size_t bytes, uint32_t n)
{
    const uint16_t *src = (const uint16_t *) host + bytes / 2;
    const uint16_t *dst = src + bytes / 2;
    size_t region = 16 * geom->head_dim, bad = 0, at;

    check_same(side, "kv_copy", host, host_ref, 3 * bytes);
    if (side->arith == DI_ARITH_F32)
        return;
    for (size_t h = 0; h < geom->n_layers * geom->n_kv_heads; h++) {
        for (size_t t = 0; t < n; t++) {
            for (size_t d = 0; d < geom->head_dim; d++) {
                at = 2 * h * region + d / 2 * 32 + t * 2 + d % 2;
                bad += src[at] != dst[at];
                at = (2 * h + 1) * region + t / 2 * 2 * geom->head_dim + d * 2
                     + t % 2;
                bad += src[at] != dst[at];
            }
        }
    }
    CHECK_EQ_INT(bad, 0);
}

/* Copying a block's first tokens copies them, in all layers, and nothing
 * else: other variants do what the reference does. */
static void
test_kv_copy(side_t *ref, side_t *side)
{
    di_kv_geom_t geom = { 3, 2, 64, 16 };
    size_t bytes = ops->kv_block_bytes(side->dev, &geom);
    void *host[2];
    side_t *sides[2] = { ref, side };
    di_view_t kv[2];

    for (uint32_t n = 0; n <= 16; n++) {
        uint64_t start = seed;

        for (size_t i = 0; i < 2; i++) {
            seed = start;
            kv[i] = buf(sides[i], 3 * bytes, &host[i]);
            for (size_t j = 0; j < 3 * bytes / 4; j++)
                ((uint32_t *) host[i])[j] = rnd();
            ops->kv_copy(sides[i]->stream, kv[i], &geom, 2, 1, n);
            CHECK_EQ_INT(ops->stream_sync(sides[i]->stream), DI_OK);
        }
        if (n == 16)
            check_same(side, "kv_copy, all", (uint8_t *) host[1] + 2 * bytes,
                       (uint8_t *) host[1] + bytes, bytes);
        check_copied(side, &geom, host[1], host[0], bytes, n);
        for (size_t i = 0; i < 2; i++)
            buf_done(sides[i], kv[i], host[i], 3 * bytes);
    }
}

/* -- all variants ---------------------------------------------------------- */

static void
test_variant(side_t *ref, side_t *side, side_t *alt)
{
    static const uint32_t one[] = { 1 }, some[] = { 37, 1, 16, 50 },
                          longs[] = { 600, 3 };

    test_rows(ref, side, alt, 1, 32);
    test_rows(ref, side, alt, 7, 96);
    test_rows(ref, side, alt, 33, 576);
    test_rows(ref, side, alt, 40, 1536);
    test_swiglu(ref, side, alt, 3, 32);
    test_swiglu(ref, side, alt, 33, 576);
    test_swiglu_values(side);
    test_embed(side);
    test_matmul(ref, side, alt);
    test_matmul_infinite(ref, side);
    test_matmul_micro_nan(ref, side, DI_W_E4M3_B32);
    test_matmul_micro_nan(ref, side, DI_W_E4M3_R32);
    test_matmul_micro_nan(ref, side, DI_W_E2M1_R32);
    test_experts(ref, side, alt);
    test_route(side);
    test_sum_rows(side);
    test_kv_copy(ref, side);
    test_attention(ref, side, alt, 1, 1, 32, one, 1);
    test_attention(ref, side, alt, 9, 3, 64, some, 4);
    test_attention(ref, side, alt, 8, 1, 96, some, 3);
    test_attention(ref, side, alt, 4, 4, 128, some, 2);
    test_attention(ref, side, alt, 2, 2, 256, some, 1);
    test_attention(ref, side, alt, 6, 2, 64, longs, 2);
}

/* Everything of two vector variants of Q8 or MX has the same bits, but for
 * the attention of Q8 with products of bfloat16. */
static void
test_agree(side_t *a, side_t *b)
{
    enum { N = 9, K = 192, LEN = 300 };
    static const uint32_t len[] = { LEN }, zero[8];
    size_t stride = ops->act_bytes(a->dev, K), kv_bytes;
    side_t *sides[2] = { a, b };
    uint8_t *y[2];
    float *x[2];
    void *host[2];
    di_view_t kv[2];
    rowcase_t rows;
    kvcase_t c;

    rowcase_fill(&rows, N, K);
    kvcase_fill(&c, 3, 1, 64, len, 1);
    kv_bytes = c.n_blocks * ops->kv_block_bytes(a->dev, &c.geom);
    for (size_t i = 0; i < 2; i++) {
        y[i] = calloc(LEN, 2 * stride);
        x[i] = malloc(LEN * c.width * sizeof(float));
        CHECK(y[i] && x[i]);
        run_norm(sides[i], &rows, 0, N, x[i], y[i]);
        run_silu(sides[i], &rows, 0, N, y[i] + N * stride);
    }
    for (size_t r = 0; r < 2 * N; r++)
        check_same(b, "rows, other variant", y[0] + r * stride,
                   y[1] + r * stride, act_used(a->arith, K));

    for (size_t i = 0; i < 2; i++) {
        kv[i] = buf(sides[i], kv_bytes, &host[i]);
        run_kv(sides[i], &c, kv[i], zero, len, x[i], y[i]);
    }
    check_same(b, "rotated q, other variant", x[0], x[1],
               LEN * c.width * sizeof(float));
    check_same(b, "KV cache, other variant", host[0], host[1], kv_bytes);
    for (size_t r = 0; r < LEN && strcmp(b->name, "q8-avx512bf16") != 0; r++)
        check_same(b, "attention, other variant", y[0] + r * stride,
                   y[1] + r * stride, act_used(a->arith, K));

    for (size_t i = 0; i < 2; i++) {
        ops->buf_free(sides[i]->dev, kv[i].buf);
        free(y[i]);
        free(x[i]);
    }
    rowcase_free(&rows);
    kvcase_free(&c);
}

/* Each vector variant that runs here against the first such. */
static void
test_all_agree(di_arith_t arith)
{
    static const char *const names[] = { "avx2", "avxvnni", "avx512",
                                         "avx512bf16", "amx" };
    side_t first, other;
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!side_open(n ? &other : &first, arith, names[i], 2, NULL))
            continue;
        if (n++ > 0) {
            test_agree(&first, &other);
            side_close(&other);
        }
    }
    if (n > 0)
        side_close(&first);
}

/* All variants cut their work into parts by the same code: under
 * ThreadSanitizer, a hundred times slower, the best of each arithmetic is
 * enough. */
#ifdef __SANITIZE_THREAD__
#define ONE_OF_EACH 1
#else
#define ONE_OF_EACH 0
#endif

/* Is a variant to be tested?  With emulated tiles (t/emulated/amx.h) those
 * that have none are left out. */
static bool
is_wanted(const char *name, const char *only)
{
#ifdef EMULATED_AMX
    if (strcmp(name, "bf16-amx") != 0 && strcmp(name, "mx-amx") != 0)
        return false;
#endif
    return only == NULL || strcmp(only, name) == 0;
}

int
main(int argc, char **argv)
{
    static const char *const names[] = { "ref", "avx2", "avxvnni", "avx512",
                                         "avx512bf16", "amx" };
    static const struct { di_arith_t arith; const char *name; } ariths[] = {
        { DI_ARITH_F32, "f32" }, { DI_ARITH_BF16, "bf16" },
        { DI_ARITH_Q8, "q8" }, { DI_ARITH_MX, "mx" },
    };
    const char *only = argc > 1 ? argv[1] : NULL;  /* "bf16-amx", "agree" */
    char name[32];

    ops = di_ops_cpu();
    printf("seed %llu\n", (unsigned long long) seed);

    for (size_t a = 0; a < 4; a++) {
        for (size_t i = sizeof(names) / sizeof(names[0]); i-- > 0;) {
            side_t ref, side, alt;
            di_err_t err = { 0 };

            if (ONE_OF_EACH && i == 0)
                break;

            snprintf(name, sizeof(name), "%s-%s", ariths[a].name, names[i]);
            if (!is_wanted(name, only))
                continue;
            if (!side_open(&side, ariths[a].arith, names[i], 2, &err)) {
                printf("SKIP %s: %s\n", name, err.text);
                continue;
            }
            CHECK(side_open(&ref, ariths[a].arith, "ref", 2, NULL));
            CHECK(side_open(&alt, ariths[a].arith, names[i], 3, NULL));
            CHECK_EQ_STR(side.name, name);
            test_variant(&ref, &side, &alt);
            side_close(&ref);
            side_close(&side);
            side_close(&alt);
            if (ONE_OF_EACH)
                break;
        }
    }
    if (!ONE_OF_EACH && (only == NULL || strcmp(only, "agree") == 0)) {
        test_all_agree(DI_ARITH_Q8);
        test_all_agree(DI_ARITH_MX);
    }
    return check_done("kernels");
}

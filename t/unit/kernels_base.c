/*
 * kernels_base.c - test of what lies below the CPU backend's operators:
 * formats of weights, pool and streams, errors of opening, and the loops of
 * vec.h against their scalar forms.
 */

#include "../../kernels/cpu/vec.h"
#include "kernels_test.h"

#include <stdatomic.h>

/* -- formats --------------------------------------------------------------- */

static void
test_micro_formats(void)
{
    enum { N = 70, K = 96 };
    static const di_wtype_t micro[] = { DI_W_E4M3_B32, DI_W_E4M3_R32,
                                        DI_W_E2M1_R32 };
    static const size_t scale_bytes[] = { 3 * 3, N * 3, N * 3 };
    static uint8_t data[N * K], scales[N * 3];
    float value[K];
    size_t bad = 0;

    for (size_t t = 0; t < 3; t++) {
        di_wpart_t part = { micro[t], data, N, scales };

        CHECK_EQ_INT(di_wtype_scale_bytes(micro[t], N, K), scale_bytes[t]);
        fill_weights(micro[t], data, N * K);
        fill_scales(scales, sizeof(scales));
        for (size_t n = 0; n < N; n++) {
            di_wpart_row(&part, n, K, value);
            for (size_t i = 0; i < K; i++)
                bad += value[i] != micro_at(&part, n, K, i);
        }
    }
    CHECK_EQ_INT(bad, 0);
    CHECK_EQ_INT(di_wtype_scale_bytes(DI_W_Q4_0, N, K), 0);
    CHECK(di_wtype_codes(DI_W_E4M3_B32) == NULL);
}

static void
test_formats(void)
{
    enum { N = 1024 };
    static uint8_t row[N * 4];
    static float value[N];

    for (size_t t = 0; t < N_TYPES; t++) {
        if (di_wtype_is_micro(types[t]))
            continue;
        fill_weights(types[t], row, N);
        di_dequantise(types[t], row, N, value);
        for (size_t i = 0; i < N; i++) {
            float want = value_at(types[t], row, i);

            if (value[i] != want)
                printf("%s[%zu]: %g, not %g\n", di_wtype_name(types[t]), i,
                       (double) value[i], (double) want);
            CHECK(value[i] == want);
        }
    }
    CHECK_EQ_INT(di_wtype_bytes((di_wtype_t) 99, 32), 0);
    CHECK_EQ_INT(di_wtype_block((di_wtype_t) 99), 0);
    CHECK(di_wtype_codes(DI_W_F16) == NULL);

    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7c00) != 0x7c00 || (h & 0x3ff) == 0)
            CHECK_EQ_INT(di_f32_to_f16(di_f16_to_f32((uint16_t) h)), h);
    CHECK(isnan(di_f16_to_f32(0x7e01)));
    CHECK_EQ_INT(di_f32_to_bf16(NAN) & 0x7fc0, 0x7fc0);
    CHECK_EQ_INT(di_f32_to_bf16(INFINITY), 0x7f80);
    CHECK_EQ_INT(di_f32_to_bf16(1.00390625f), 0x3f80);     /* tie: even    */
    CHECK_EQ_INT(di_f32_to_bf16(1.01171875f), 0x3f82);
}

/* -- pool and streams ------------------------------------------------------ */

typedef struct {
    _Atomic int total;           /* calls                                   */
    _Atomic int count[40000];    /* calls of each part                      */
} calls_t;

static void
count_call(void *arg, size_t part)
{
    calls_t *calls = arg;

    atomic_fetch_add(&calls->count[part], 1);
    atomic_fetch_add(&calls->total, 1);
}

typedef struct {
    calls_t *calls;
    int      want;               /* calls that must be over                 */
    int      seen;
} order_t;

static void
look_at_order(void *arg, size_t part)
{
    order_t *order = arg;

    (void) part;
    order->seen = atomic_load(&order->calls->total);
}

/* Every part once, ops in order, for all mixes of serial and shared ops. */
static void
test_stream(uint32_t n_threads)
{
    enum { N = 600 };            /* more than the queue holds               */
    static calls_t calls;
    static order_t order[N];
    di_dev_t *dev = open_dev(DI_ARITH_F32, "ref", n_threads, NULL);
    di_stream_t *stream = NULL;
    di_graph_t *graph = NULL;
    size_t n;

    CHECK(dev != NULL);
    CHECK_EQ_INT(ops->stream_open(dev, &stream), DI_OK);
    CHECK_EQ_INT(ops->stream_sync(stream), DI_OK);

    for (int round = 0; round < 20; round++) {
        int total = 0;

        memset(&calls, 0, sizeof(calls));
        for (size_t i = 0; i < N; i++) {
            n = rnd() % 4 == 0 ? 1 + rnd() % 50 : 1;
            total += (int) n;
            ops->host_call(stream, count_call, &calls, n);
            order[i] = (order_t) { &calls, total, -1 };
            ops->host_call(stream, look_at_order, &order[i], 1);
        }
        CHECK_EQ_INT(ops->stream_sync(stream), DI_OK);
        for (size_t i = 0; i < N; i++)
            CHECK_EQ_INT(order[i].seen, order[i].want);
    }

    memset(&calls, 0, sizeof(calls));
    CHECK_EQ_INT(ops->graph_begin(stream), DI_OK);
    CHECK_EQ_INT(ops->graph_begin(stream), DI_EINVAL);
    for (size_t i = 0; i < 10; i++)
        ops->host_call(stream, count_call, &calls, 40000);
    ops->host_call(stream, count_call, &calls, 0);
    CHECK_EQ_INT(ops->graph_end(stream, &graph), DI_OK);
    CHECK_EQ_INT(ops->graph_end(stream, &graph), DI_EINVAL);
    CHECK_EQ_INT(ops->stream_sync(stream), DI_OK);
    CHECK_EQ_INT(atomic_load(&calls.total), 0);
    ops->graph_launch(stream, graph);
    ops->graph_launch(stream, graph);
    CHECK_EQ_INT(ops->stream_sync(stream), DI_OK);
    for (size_t i = 0; i < 40000; i++)
        if (atomic_load(&calls.count[i]) != 20)
            CHECK_EQ_INT(atomic_load(&calls.count[i]), 20);
    CHECK_EQ_INT(atomic_load(&calls.total), 20 * 40000);

    ops->graph_free(graph);
    ops->stream_close(stream);
    ops->dev_close(dev);
}

static void
test_open_errors(void)
{
    di_dev_conf_t conf = { .arith = DI_ARITH_F32, .ops = "none",
                           .n_threads = 1 };
    uint8_t bytes[1024] = { 0 };
    di_wpart_t part = { (di_wtype_t) 99, bytes, 1, NULL };
    di_weight_t *weight;
    di_dev_t *dev;
    di_err_t err = { 0 };

    CHECK_EQ_INT(ops->dev_open(&conf, &dev, &err), DI_EUNSUPPORTED);
    CHECK(strstr(err.text, "none") != NULL);
    conf.ops = "ref";
    conf.n_threads = 0;
    CHECK_EQ_INT(ops->dev_open(&conf, &dev, NULL), DI_EINVAL);

    dev = open_dev(DI_ARITH_F32, "ref", 1, NULL);
    CHECK(dev != NULL);
    CHECK_EQ_INT(ops->weight_open(dev, &part, 1, 32, &weight, NULL),
                 DI_EUNSUPPORTED);
    part.type = DI_W_Q4_0;
    CHECK_EQ_INT(ops->weight_open(dev, &part, 1, 48, &weight, NULL),
                 DI_EUNSUPPORTED);
    part.type = DI_W_Q4_K;
    CHECK_EQ_INT(ops->weight_open(dev, &part, 1, 32, &weight, NULL),
                 DI_EUNSUPPORTED);
    part.n = 0;
    CHECK_EQ_INT(ops->weight_open(dev, &part, 1, 256, &weight, NULL),
                 DI_EINVAL);
    part = (di_wpart_t) { DI_W_E2M1_R32, bytes, 1, NULL };
    CHECK_EQ_INT(ops->weight_open(dev, &part, 1, 64, &weight, &err),
                 DI_EINVAL);
    ops->dev_close(dev);
}

/* Experts of different shapes, and none. */
static void
test_experts_errors(void)
{
    uint8_t bytes[2 * 34] = { 0 };
    di_wpart_t parts[2] = { { DI_W_Q8_0, bytes, 1, NULL },
                            { DI_W_Q8_0, bytes, 2, NULL } };
    di_dev_t *dev = open_dev(DI_ARITH_F32, "ref", 1, NULL);
    di_experts_t *experts;

    CHECK_EQ_INT(ops->experts_open(dev, parts, 1, 2, 32, &experts, NULL),
                 DI_EINVAL);
    CHECK_EQ_INT(ops->experts_open(dev, parts, 1, 0, 32, &experts, NULL),
                 DI_EINVAL);
    CHECK_EQ_INT(ops->experts_open(dev, parts, 1, 2, 48, &experts, NULL),
                 DI_EUNSUPPORTED);
    CHECK_EQ_INT(ops->experts_open(dev, parts, 2, 1, 32, &experts, NULL),
                 DI_OK);
    CHECK(ops->experts_bytes(experts) > 0);
    ops->experts_close(dev, experts);
    ops->dev_close(dev);
}

/* -- loops of vec.h ------------------------------------------------------- */

static void
same_floats(const char *what, const float *a, const float *b, size_t n)
{
    size_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad += isnan(a[i]) ? !isnan(b[i]) : memcmp(a + i, b + i, 4) != 0;
    if (bad)
        printf("%s: %zu of %zu differ\n", what, bad, n);
    CHECK_EQ_INT(bad, 0);
}

/* One size with both variants, the reference into the first half of out. */
static void
test_vec_size(const di_cpu_vec_t *vec, size_t n_a, size_t n_b, size_t k)
{
    static float a[8 * 512], b[40 * 512], w[8 * 48], out[2][8 * 512];
    const di_cpu_vec_t *both[2] = { &di_cpu_vec_ref, vec };

    for (size_t i = 0; i < n_a * k; i++)
        a[i] = rnd_activation();
    for (size_t i = 0; i < n_b * k; i++)
        b[i] = rnd_activation();
    for (size_t i = 0; i < 8 * 48; i++)
        w[i] = rnd_activation();
    memset(out, 0, sizeof(out));
    for (size_t v = 0; v < 2; v++)
        both[v]->dots(a, n_a, b, n_b, k, out[v], 48);
    same_floats("dots", out[0], out[1], 8 * 512);
    memset(out, 0, sizeof(out));
    for (size_t v = 0; v < 2; v++)
        both[v]->weigh(out[v], n_a, w, 48, b, n_b, k);
    same_floats("weigh", out[0], out[1], 8 * 512);
    for (size_t v = 0; v < 2; v++) {
        memcpy(out[v], a, n_a * k * sizeof(float));
        both[v]->remix(out[v], w, w + 8, b, n_a, k);
    }
    same_floats("remix", out[0], out[1], n_a * k);
    for (size_t v = 0; v < 2; v++) {
        for (size_t i = 0; i < k + n_a; i++)
            out[v][i] = b[i % 40] * 9;
        out[v][0] = -INFINITY;
        both[v]->softmax(out[v], k + n_a, 0.7f, w[1]);
    }
    same_floats("softmax", out[0], out[1], k + n_a + 8);
    for (size_t v = 0; v < 2; v++)
        both[v]->gate(out[v], w, b, n_b, k);
    same_floats("gate", out[0], out[1], 16);
}

/* Queries and scores of 16 keys, whose scales lie far apart. */
static void
test_vec_index(const di_cpu_vec_t *vec, size_t n_heads, size_t dim)
{
    enum { HEADS = 17, DIM = 1024, KEYS = 16 };
    static float x[HEADS * DIM], w[HEADS], scale[2][HEADS * DIM / 32];
    static int8_t q[2][HEADS * DIM];
    static int32_t start[2][HEADS * DIM / 32];
    static uint8_t key[KEYS][DIM / 2], scales[KEYS][DIM / 32];
    const uint8_t *data[KEYS], *key_scales[KEYS];
    const di_cpu_vec_t *both[2] = { &di_cpu_vec_ref, vec };
    float y[2][KEYS];

    for (size_t i = 0; i < n_heads * dim; i++)
        x[i] = i / 32 % 5 == 4 ? 0 : rnd_activation();
    for (size_t h = 0; h < n_heads; h++)
        w[h] = rnd_float();
    for (size_t j = 0; j < KEYS; j++) {
        data[j] = key[j];
        key_scales[j] = scales[j];
        for (size_t i = 0; i < dim / 2; i++)
            key[j][i] = (uint8_t) rnd();
        fill_scales(scales[j], dim / 32);
    }
    for (size_t v = 0; v < 2; v++) {
        di_cpu_queries_t to = { n_heads, dim, q[v], scale[v], start[v], w };

        both[v]->queries(&to, x);
        both[v]->score(y[v], &to, data, key_scales);
    }
    CHECK(memcmp(q[0], q[1], n_heads * dim) == 0);
    CHECK(memcmp(start[0], start[1], n_heads * dim / 32 * 4) == 0);
    same_floats("queries", scale[0], scale[1], n_heads * dim / 32);
    same_floats("score", y[0], y[1], KEYS);
}

static void
test_vec_casts(const di_cpu_vec_t *vec)
{
    static const di_cast_t casts[] = { DI_CAST_E4M3_32, DI_CAST_E2M1_32,
                                       DI_CAST_E2M1_16 };
    uint8_t data[256], scales[16];
    float out[2][256];

    for (size_t c = 0; c < 3; c++) {
        for (size_t i = 0; i < 256; i++)
            data[i] = (uint8_t) i;
        for (size_t i = 0; i < 16; i++)
            scales[i] = (uint8_t) (i == 0 ? 0 : i == 1 ? 0x7f : rnd() % 250);
        di_cpu_vec_ref.cast_get(casts[c], data, scales, 256, out[0]);
        vec->cast_get(casts[c], data, scales, 256, out[1]);
        same_floats("cast_get", out[0], out[1], 256);
    }
}

static void
test_vec_variant(const di_cpu_vec_t *vec)
{
    test_vec_size(vec, 1, 1, 16);
    test_vec_size(vec, 3, 7, 48);
    test_vec_size(vec, 8, 40, 512);
    test_vec_size(vec, 4, 5, 96);
    test_vec_size(vec, 5, 39, 80);
    test_vec_casts(vec);
    test_vec_index(vec, 1, 32);
    test_vec_index(vec, 4, 96);
    test_vec_index(vec, 16, 128);
    test_vec_index(vec, 17, 1024);
}

/* The vector loops have the bits of the plain ones, and these are right. */
static void
test_vec(void)
{
    double worst = 0, want;
    float x[2];

    for (float v = 0; v > -86; v -= 0.011f) {
        x[0] = v * 2;
        x[1] = 0;
        di_cpu_vec_ref.softmax(x, 2, 0.5f, -3);
        want = exp((double) v) / (exp((double) v) + exp(-3) + 1);
        worst = fmax(worst, fabs(x[0] - want) / want);
    }
    CHECK(worst < 4e-7);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        test_vec_variant(&di_cpu_vec_avx2);
    else
        printf("SKIP vec-avx2: this CPU has no AVX2\n");
    if (__builtin_cpu_supports("avx512vnni")
        && __builtin_cpu_supports("avx512vbmi"))
        test_vec_variant(&di_cpu_vec_avx512);
    else
        printf("SKIP vec-avx512: this CPU has no AVX-512 VNNI\n");
}

int
main(void)
{
    ops = di_ops_cpu();
    printf("seed %llu\n", (unsigned long long) seed);

    test_formats();
    test_micro_formats();
    test_open_errors();
    test_experts_errors();
    test_vec();
    for (uint32_t n = 1; n <= 5; n++)
        test_stream(n);
    return check_done("kernels_base");
}
